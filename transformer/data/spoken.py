"""Recordings of single digits, and strings of them that one speaker says with silences between."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.config import UserError
from transformer.data.speaker import Voice
from transformer.layers.sound import RATE

_QUIET = 5e-4  # the deviation of the noise that fills silences
_PAUSES = (0.05, 0.2)  # seconds
_EDGES = (0.02, 0.1)
_TRIES = 100


class Recording(NamedTuple):
    """One digit that a speaker has said."""

    digit: int
    speaker: str
    samples: Float[np.ndarray, " N"]


class Spoken(NamedTuple):
    """A string of digits as sound, and the samples at which each of them begins and ends."""

    digits: tuple[int, ...]
    samples: Float[np.ndarray, " N"]
    spans: tuple[tuple[int, int], ...]


class Recordings:
    """The recordings of a split, by speaker and digit.

    Errors: ValueError where a speaker lacks a digit.
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

    def draw(self, random: np.random.Generator, *, fewest: int, most: int, longest: int) -> Spoken:
        """A string of `fewest` to `most` digits, all by one of the speakers; one of more samples is drawn anew.

        Errors: UserError where none of many strings is as short as `longest`.
        """
        speaker = self.speakers[random.integers(len(self.speakers))]
        for _ in range(_TRIES):
            digits = random.integers(10, size=random.integers(fewest, most + 1)).tolist()
            takes = [self._samples[speaker, digit] for digit in digits]
            spoken = joined(digits, [of_digit[random.integers(len(of_digit))] for of_digit in takes], random)
            if len(spoken.samples) <= longest:
                return spoken
        raise UserError(
            f"none of {_TRIES} strings of {fewest} to {most} digits by {speaker} lasts {longest / RATE:g} seconds at "
            "most: raise config.task.seconds"
        )


def joined(digits: Sequence[int], takes: Sequence[np.ndarray], random: np.random.Generator) -> Spoken:
    """Takes in a row, with silences of faint noise before, between and behind them."""

    def silence(seconds: tuple[float, float]) -> np.ndarray:
        return np.zeros(int(RATE * random.uniform(*seconds)), np.float32)

    parts, spans, at = [silence(_EDGES)], [], 0
    for number, take in enumerate(takes):
        at = sum(map(len, parts))
        spans.append((at, at + len(take)))
        parts += [take, silence(_PAUSES if number < len(takes) - 1 else _EDGES)]
    sound = np.concatenate(parts)
    noisy = sound + _QUIET * random.standard_normal(len(sound), dtype=np.float32)
    return Spoken(tuple(digits), noisy.astype(np.float32), tuple(spans))


def say(voice: Voice, digits: Sequence[int], random: np.random.Generator) -> Spoken:
    """A string of digits by a synthetic speaker."""
    return joined(digits, [voice.say(digit, random) for digit in digits], random)
