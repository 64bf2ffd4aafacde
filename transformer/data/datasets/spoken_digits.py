"""Sets of spoken digits by name: the recordings of FSDD, and those of speakers that are made here."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from transformer.config import UserError, from_config, nearest
from transformer.data.datasets.archives import members_of, unread_members
from transformer.data.datasets.folders import joined, said_of_left_out
from transformer.data.datasets.options import whole_numbers
from transformer.data.datasets.overlap import said_of_overlap
from transformer.data.datasets.own_files import located
from transformer.data.speaker import Voice
from transformer.data.spoken import Recording, Recordings
from transformer.data.wav import read_wav

SYNTHETIC, FSDD = "synthetic", "fsdd"
_ARCHIVE = "recordings.zip"
_NAME = re.compile(r"(?:.*/)?(\d)_([A-Za-z]+)_(\d+)\.wav")
# The official split: takes 0 to 4 test. Of the others, which train, these validate.
_TESTS, _VALIDATES = range(5), range(5, 8)
_MOST_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class SpokenDigits:
    """A set by split: which speakers train, and how it was cut."""

    name: str
    splits: Mapping[str, Recordings]
    cut: str


@dataclasses.dataclass(frozen=True)
class MadeUp:
    """Synthetic voices: `speakers` of them, each of whom says every digit `takes` times.

    Errors: UserError for no speaker, and for fewer takes than there are splits.
    """

    speakers: int = 12
    takes: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.speakers < 1 or self.takes < 3:
            raise UserError(
                f"speakers={self.speakers} and takes={self.takes} of synthetic digits: at least one speaker, and three "
                "takes, of which the first tests and the second validates"
            )

    def recordings(self) -> list[tuple[Recording, int]]:
        """Every take and its number."""
        random = np.random.default_rng(self.seed)
        voices = [(f"voice{number}", Voice.drawn(random)) for number in range(self.speakers)]
        return [
            (Recording(digit, name, voice.say(digit, random)), take)
            for name, voice in voices
            for digit in range(10)
            for take in range(self.takes)
        ]


def open_spoken(name: str, *, data_dir: str | None = None, held_out: str = "") -> SpokenDigits:
    """A set of spoken digits with its splits train, validation and test.

    "fsdd", the archive recordings.zip in `data_dir` (the Free Spoken Digit Dataset): takes 0 to 4 of every speaker and
    digit test, as its authors split it, 5 to 7 validate, the others train. "synthetic", with options as in
    "synthetic/speakers=12,takes=8": of the takes one tests and one validates. With the speaker `held_out` nothing of
    theirs trains or validates, and all of their recordings, and no others, test.

    Errors: UserError for an unknown name or speaker, and for an archive that is missing or cannot be read.
    """
    kind, _, options = name.partition("/")
    if kind == SYNTHETIC:
        made = from_config(MadeUp, whole_numbers(kind, options, "speakers=12,takes=8"), kind)
        recordings, tests, validates, unread = made.recordings(), range(1), range(1, 2), []
    elif name == FSDD:
        archive = located(_ARCHIVE, data_dir)
        recordings, tests, validates = _of_archive(archive), _TESTS, _VALIDATES
        unread = unread_members(archive, _NAME, ".wav")
    else:
        raise UserError(f"config.task.dataset={name!r} is unknown: {nearest(name, (SYNTHETIC, FSDD))}")
    speakers = sorted({recording.speaker for recording, _ in recordings})
    if held_out and held_out not in speakers:
        raise UserError(f"config.task.held_out={held_out!r} is no speaker of {name}: {nearest(held_out, speakers)}")
    if held_out and len(speakers) == 1:
        raise UserError(f"config.task.held_out={held_out!r} is the only speaker of {name}: nobody is left to train on")
    splits: dict[str, list[Recording]] = {"train": [], "validation": [], "test": []}
    for recording, take in recordings:
        held = "test" if take in tests else "validation" if take in validates else "train"
        if held_out:
            if recording.speaker == held_out:
                held = "test"
            elif held == "test":
                continue
        splits[held].append(recording)
    cut = f"takes {tests[0]} to {tests[-1]} test, {validates[0]} to {validates[-1]} validate"
    if held_out:
        cut = f"{held_out} tests and is heard in no other split, takes {validates[0]} to {validates[-1]} validate"
    try:
        opened = {split: Recordings(of_split) for split, of_split in splits.items()}
    except ValueError as error:
        raise UserError(f"{name} lacks recordings: {error}") from None
    overlap = said_of_overlap(
        {split: [each.samples.tobytes() for each in of_split] for split, of_split in splits.items()}, "recordings"
    )
    return SpokenDigits(name, opened, joined((cut, said_of_left_out(unread), overlap)))


def _of_archive(path: pathlib.Path) -> list[tuple[Recording, int]]:
    """Every DIGIT_SPEAKER_TAKE.wav and its take; members are read where they lie."""
    if not path.is_file():
        raise UserError(
            f"there is no file {path}: give the folder of FSDD's {_ARCHIVE} by --data_dir, or say dataset=synthetic"
        )
    recordings = [
        (Recording(int(match[1]), match[2], read_wav(sound, where)), int(match[3]))
        for match, where, sound in members_of(path, _NAME, _MOST_BYTES)
    ]
    if not recordings:
        raise UserError(f"{path} holds no DIGIT_SPEAKER_TAKE.wav, such as 7_jackson_32.wav")
    return recordings
