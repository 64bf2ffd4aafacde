"""Reversal: random symbols to be said backwards, the smallest translation that cannot be done without attention.

Every target word has one known source word, at the other end, so that alignment can be judged by what is true.
"""

import dataclasses
import functools

import numpy as np

from transformer.config import UserError, from_config
from transformer.data.datasets.repeated import ALPHABET, SPLITS
from transformer.data.datasets.slots import Links, Phrase

LANGUAGES = ("symbols", "reversed")


@dataclasses.dataclass(frozen=True)
class Reversal:
    """What the pairs are: `length` words each, every one of them one of so many `symbols`, all equally likely.

    With `shortest`, lengths from that to `length` are equally likely. A symbol is a word of one character, which BPE
    makes one token where its vocabulary holds 2 x symbols + 5. Who reads no source has a loss of log(symbols) nats a
    word. `train`, `validation` and `test` are numbers of pairs, drawn from `seed` and the split; of few symbols and
    short lengths the splits have pairs in common.
    """

    symbols: int = 16
    length: int = 12
    shortest: int | None = None
    train: int = 32768
    validation: int = 256
    test: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.symbols <= len(ALPHABET):
            raise UserError(f"reversal: symbols={self.symbols} must be from 2 to {len(ALPHABET)}")
        if not 1 <= self.least <= self.length:
            raise UserError(f"reversal: shortest={self.least} must be from 1 to length={self.length}")
        for split in SPLITS:
            if getattr(self, split) < 1:
                raise UserError(f"reversal: {split}={getattr(self, split)} must be at least 1 pair")

    @property
    def least(self) -> int:
        """The least number of words."""
        return self.length if self.shortest is None else self.shortest

    def draw(self, split: str) -> list[Phrase]:
        """The pairs of a split."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        count = getattr(self, split)
        words_N = random.integers(self.least, self.length + 1, count)
        symbols_NxT = np.array(list(ALPHABET))[random.integers(0, self.symbols, (count, self.length))]
        return [
            Phrase(" ".join(row[:words]), " ".join(row[:words][::-1]), _crossed(words))
            for row, words in zip(symbols_NxT.tolist(), words_N.tolist(), strict=True)
        ]


def reversal(options: str) -> dict[str, list[Phrase]]:
    """The pairs by split; `options` are fields, as in "length=12,symbols=16".

    Errors: UserError for an unknown option, a value that is no whole number, and impossible sizes.
    """
    values = {}
    for item in options.split(",") if options else ():
        key, _, number = item.partition("=")
        if not number.isdecimal():
            raise UserError(f"reversal: {item!r} must give a whole number, as in reversal/length=12,symbols=16")
        values[key] = int(number)
    config = from_config(Reversal, values, "reversal")
    return {split: config.draw(split) for split in SPLITS}


@functools.cache
def _crossed(words: int) -> Links:
    """First with last and last with first: the links of every pair of so many words."""
    links = tuple((place, words - 1 - place) for place in range(words))
    return Links(links, links)
