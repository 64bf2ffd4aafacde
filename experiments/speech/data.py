"""Recordings of single digits (FSDD or synthetic), and utterances joined from them with silences."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.speech.log_mel import SAMPLE_RATE
from experiments.speech.spoken_digit_synthesis import Voice
from experiments.speech.wav import decode_wav
from transformer.config import Config, PositiveInt, Range, UserError, from_config, suggest_nearest
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.local_files import (
    describe_left_out,
    join_notes,
    locate_file,
    read_members,
    unread_members,
)
from transformer.data.datasets.split_overlap import describe_overlap

_SILENCE_DEVIATION = 5e-4  # the deviation of the noise that fills silences
_PAUSES = (0.05, 0.2)  # seconds
_EDGES = (0.02, 0.1)
_MAX_TRIES = 100


class Recording(NamedTuple):
    """A recording of one digit.

    Attributes:
        digit: The digit.
        speaker: The speaker.
        samples: The audio samples.
    """

    digit: int
    speaker: str
    samples: Float[np.ndarray, " N"]


class Utterance(NamedTuple):
    """A string of digits as audio.

    Attributes:
        digits: The digits.
        samples: The audio samples.
        digit_spans: The first sample of each digit, and the one after its last.
    """

    digits: tuple[int, ...]
    samples: Float[np.ndarray, " N"]
    digit_spans: tuple[tuple[int, int], ...]


class RecordingSet:
    """The recordings of a split, by speaker and digit.

    Raises:
        ValueError: If a speaker lacks a digit.
    """

    def __init__(self, recordings: Sequence[Recording]):
        self.all = tuple(recordings)
        self.speakers = tuple(sorted({recording.speaker for recording in recordings}))
        self._samples: dict[tuple[str, int], list[np.ndarray]] = {}
        for recording in recordings:
            self._samples.setdefault((recording.speaker, recording.digit), []).append(recording.samples)
        for speaker in self.speakers:
            for digit in range(10):
                if (speaker, digit) not in self._samples:
                    raise ValueError(f"{speaker} never says {digit}: every speaker must say every digit")

    def __len__(self) -> int:
        return len(self.all)

    def sample_utterance(
        self, random: np.random.Generator, *, min_digits: int, max_digits: int, longest: int
    ) -> Utterance:
        """Sample a string of digits by one speaker.

        Args:
            random: The random generator.
            min_digits: The fewest digits.
            max_digits: The most digits.
            longest: The most audio samples.

        Returns:
            The string.

        Raises:
            UserError: If none of many strings is short enough.
        """
        speaker = self.speakers[random.integers(len(self.speakers))]
        for _ in range(_MAX_TRIES):
            digits = random.integers(10, size=random.integers(min_digits, max_digits + 1)).tolist()
            takes = [self._samples[speaker, digit] for digit in digits]
            utterance = concatenate_recordings(
                digits, [digit_takes[random.integers(len(digit_takes))] for digit_takes in takes], random
            )
            if len(utterance.samples) <= longest:
                return utterance
        raise UserError(
            f"none of {_MAX_TRIES} strings of {min_digits} to {max_digits} digits by {speaker} lasts "
            f"{longest / SAMPLE_RATE:g} seconds at most: increase config.task.max_seconds"
        )


def concatenate_recordings(
    digits: Sequence[int], takes: Sequence[np.ndarray], random: np.random.Generator
) -> Utterance:
    """Join recordings, with silences of faint noise before, between and after them.

    Args:
        digits: The digits.
        takes: The recording of each digit.
        random: The random generator.

    Returns:
        The string.
    """

    def silence(seconds: tuple[float, float]) -> np.ndarray:
        return np.zeros(int(SAMPLE_RATE * random.uniform(*seconds)), np.float32)

    parts, spans, at = [silence(_EDGES)], [], 0
    for number, take in enumerate(takes):
        at = sum(map(len, parts))
        spans.append((at, at + len(take)))
        parts += [take, silence(_PAUSES if number < len(takes) - 1 else _EDGES)]
    sound = np.concatenate(parts)
    noisy = sound + _SILENCE_DEVIATION * random.standard_normal(len(sound), dtype=np.float32)
    return Utterance(tuple(digits), noisy.astype(np.float32), tuple(spans))


def synthesize_digits(voice: Voice, digits: Sequence[int], random: np.random.Generator) -> Utterance:
    """Synthesize a string of digits.

    Args:
        voice: The speaker.
        digits: The digits.
        random: The random generator.

    Returns:
        The utterance.
    """
    return concatenate_recordings(digits, [voice.synthesize(digit, random) for digit in digits], random)


SYNTHETIC, FSDD = "synthetic", "fsdd"
_ARCHIVE = "recordings.zip"
_NAME = re.compile(r"(?:.*/)?(\d)_([A-Za-z]+)_(\d+)\.wav")
# The official split: takes 0 to 4 test. Of the others, which train, these validate.
_TEST_TAKES, _VALIDATION_TAKES = range(5), range(5, 8)
_MOST_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class SpokenDigitSet:
    """A set of spoken digits.

    Attributes:
        name: Its name, with options.
        splits: The recordings of each split.
        split_note: A note on how recordings were divided.
    """

    name: str
    splits: Mapping[str, RecordingSet]
    split_note: str


@dataclasses.dataclass(frozen=True)
class SyntheticSpeakers(Config):
    """Recordings of synthetic voices.

    Attributes:
        num_speakers: The number of voices.
        num_takes: How often each says every digit.
        seed: The seed.

    Raises:
        UserError: If there is no speaker, or there are fewer takes than splits.
    """

    num_speakers: PositiveInt = 12
    num_takes: Annotated[int, Range(3, note=": the first tests and the second validates")] = 8
    seed: int = 0

    def recordings(self) -> list[tuple[Recording, int]]:
        """Return every recording and its take."""
        random = np.random.default_rng(self.seed)
        voices = [(f"voice{number}", Voice.sample(random)) for number in range(self.num_speakers)]
        return [
            (Recording(digit, name, voice.synthesize(digit, random)), take)
            for name, voice in voices
            for digit in range(10)
            for take in range(self.num_takes)
        ]


def open_spoken_digits(name: str, *, data_dir: str | None = None, held_out: str = "") -> SpokenDigitSet:
    """Open a set of spoken digits with its splits train, validation and test.

    In "fsdd", takes 0 to 4 of every speaker and digit are the test set, as its authors split it, 5 to 7 validation, the
    others training. In "synthetic", one take is test and one validation.

    Args:
        name: "fsdd" (the Free Spoken Digit Dataset), or "synthetic" with options as in
            "synthetic/num_speakers=12,num_takes=8".
        data_dir: The folder of FSDD's recordings.zip.
        held_out: A speaker whose recordings are the whole test set, and in no other split.

    Returns:
        The set.

    Raises:
        UserError: If the name or the speaker is unknown, or the archive is missing or cannot be read.
    """
    kind, _, options = name.partition("/")
    if kind == SYNTHETIC:
        speakers_config = from_config(
            SyntheticSpeakers, parse_int_options(kind, options, "num_speakers=12,num_takes=8"), kind
        )
        recordings, tests, validates, unread = speakers_config.recordings(), range(1), range(1, 2), []
    elif name == FSDD:
        archive = locate_file(_ARCHIVE, data_dir)
        recordings, tests, validates = _read_archive(archive), _TEST_TAKES, _VALIDATION_TAKES
        unread = unread_members(archive, _NAME, ".wav")
    else:
        raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, (SYNTHETIC, FSDD))}")
    speakers = sorted({recording.speaker for recording, _ in recordings})
    if held_out and held_out not in speakers:
        raise UserError(
            f"config.task.held_out_speaker={held_out!r} is no speaker of {name}: {suggest_nearest(held_out, speakers)}"
        )
    if held_out and len(speakers) == 1:
        raise UserError(
            f"config.task.held_out_speaker={held_out!r} is the only speaker of {name}: nobody is left to train on"
        )
    splits: dict[str, list[Recording]] = {"train": [], "validation": [], "test": []}
    for recording, take in recordings:
        split_name = "test" if take in tests else "validation" if take in validates else "train"
        if held_out:
            if recording.speaker == held_out:
                split_name = "test"
            elif split_name == "test":
                continue
        splits[split_name].append(recording)
    cut = f"takes {tests[0]} to {tests[-1]} test, {validates[0]} to {validates[-1]} validate"
    if held_out:
        cut = f"{held_out} tests and is heard in no other split, takes {validates[0]} to {validates[-1]} validate"
    try:
        opened = {split: RecordingSet(split_recordings) for split, split_recordings in splits.items()}
    except ValueError as error:
        raise UserError(f"{name} lacks recordings: {error}") from None
    overlap = describe_overlap(
        {split: [item.samples.tobytes() for item in split_recordings] for split, split_recordings in splits.items()},
        "recordings",
    )
    return SpokenDigitSet(name, opened, join_notes((cut, describe_left_out(unread), overlap)))


def _read_archive(path: pathlib.Path) -> list[tuple[Recording, int]]:
    """Read every DIGIT_SPEAKER_TAKE.wav of an archive with its take, without extracting it."""
    if not path.is_file():
        raise UserError(
            f"there is no file {path}: give the folder of FSDD's {_ARCHIVE} by --data_dir, or say dataset=synthetic"
        )
    recordings = [
        (Recording(int(match[1]), match[2], decode_wav(sound, where)), int(match[3]))
        for match, where, sound in read_members(path, _NAME, _MOST_BYTES)
    ]
    if not recordings:
        raise UserError(f"{path} holds no DIGIT_SPEAKER_TAKE.wav, such as 7_jackson_32.wav")
    return recordings
