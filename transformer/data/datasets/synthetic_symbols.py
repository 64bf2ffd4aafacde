"""Random symbols to be said again, forwards or backwards: the smallest translations that ask for every source word.

Every target word has one known source word, so that alignment can be judged by what is true.
"""

import dataclasses
import functools
from typing import Annotated

import numpy as np

from transformer.config import Config, Positive, Range, UserError, from_config
from transformer.data.datasets.aligned_templates import AlignedPair, WordAlignment
from transformer.data.datasets.dataset_options import parse_int_options

# Letters and digits of Latin scripts, so that every symbol is one character that can be seen and written anywhere.
ALPHABET = "".join(chr(code) for code in range(0x250) if chr(code).isalnum())
SPLITS = ("train", "validation", "test")
# What the source and the target of each set are called.
SYMBOL_LANGUAGES = {"reversal": ("symbols", "reversed"), "copy": ("symbols", "copied")}


@dataclasses.dataclass(frozen=True)
class SymbolPairsConfig(Config):
    """What the pairs are: `length` words each, every one of them one of so many `symbols`, all equally likely.

    With `shortest`, lengths from that to `length` are equally likely, with `tested` those of the test split are that. A
    symbol is a word of one character, which BPE makes one token where its vocabulary holds 2 x symbols + 5. Who reads
    no source has a loss of log(symbols) nats a word. `train`, `validation` and `test` are numbers of pairs, drawn from
    `seed` and the split; of few symbols and short lengths the splits have pairs in common.
    """

    symbols: Annotated[int, Range(2, len(ALPHABET))] = 16
    length: Positive = 12
    shortest: Positive | None = None
    tested: Positive | None = None
    train: Positive = 32768
    validation: Positive = 256
    test: Positive = 512
    seed: int = 0

    def _check(self) -> None:
        for name, length in (("shortest", self.least), ("tested", self.tested or 1)):
            if length > self.length:
                raise ValueError(f"{name}={length} must be at most length={self.length}")

    @property
    def least(self) -> int:
        """The least number of words."""
        return self.length if self.shortest is None else self.shortest

    def draw(self, split: str, step: int) -> list[AlignedPair]:
        """The pairs of a split; `step` is 1 where targets are said forwards, -1 backwards."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        count = getattr(self, split)
        words_N = random.integers(self.least, self.length + 1, count)
        if split == "test" and self.tested is not None:
            words_N[:] = self.tested
        symbols_NxT = np.array(list(ALPHABET))[random.integers(0, self.symbols, (count, self.length))]
        return [
            AlignedPair(" ".join(row[:words]), " ".join(row[:words][::step]), _links(words, step))
            for row, words in zip(symbols_NxT.tolist(), words_N.tolist(), strict=True)
        ]


def generate_symbol_pairs(name: str, options: str) -> dict[str, list[AlignedPair]]:
    """The pairs of the set of this name by split; `options` are fields, as in "length=12,symbols=16".

    Raises:
        UserError: For an unknown option, a value that is no whole number, and impossible sizes.
    """
    config = from_config(SymbolPairsConfig, parse_int_options(name, options, "length=12,symbols=16"), name)
    return {split: config.draw(split, 1 if name == "copy" else -1) for split in SPLITS}


@dataclasses.dataclass(frozen=True)
class RepeatedSegmentsConfig(Config, path="repeated"):
    """What the documents are: `length` symbols each, of an alphabet of so many `symbols`.

    A document is a segment of `shortest` to `longest` symbols, all lengths and all symbols equally likely, over and
    over until it is full: a place by itself says nothing, and a head must find what followed the same symbol before.
    With n lengths, m their mean and S symbols no model can have a loss below (m - 1) log S + log n nats a document,
    the first symbol of which is given; that of one which repeats nothing is (length - 1) log S. `train`, `validation`
    and `test` are numbers of documents, drawn from `seed` and the split.
    """

    symbols: Annotated[int, Range(2, len(ALPHABET))] = 64
    shortest: Annotated[int, Range(2)] = 8
    longest: int = 24
    length: int = 64
    train: Positive = 16384
    validation: Positive = 512
    test: Positive = 512
    seed: int = 0

    def _check(self) -> None:
        if not self.shortest <= self.longest < self.length:
            raise UserError(
                f"repeated: shortest={self.shortest}, longest={self.longest} and length={self.length} must rise, from "
                "at least 2, and the longest segment must be shorter than a document"
            )

    def draw(self, split: str) -> list[str]:
        """The documents of a split."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        count = getattr(self, split)
        period_Nx1 = random.integers(self.shortest, self.longest + 1, (count, 1))
        segment_NxP = random.integers(0, self.symbols, (count, self.longest))
        document_NxT = np.take_along_axis(segment_NxP, np.arange(self.length) % period_Nx1, axis=1)
        return ["".join(row) for row in np.array(list(ALPHABET))[document_NxT]]


def generate_repeated_segments(options: str) -> tuple[dict[str, list[str]], str]:
    """The documents by split, and what they were drawn from; `options` are fields, as in "symbols=32,longest=16".

    Raises:
        UserError: For an unknown option, a value that is no whole number, and impossible sizes.
    """
    values = parse_int_options("repeated", options, "symbols=32,longest=16")
    config = from_config(RepeatedSegmentsConfig, values, "repeated")
    return {split: config.draw(split) for split in SPLITS}, f"seed {config.seed}"


@functools.cache
def _links(words: int, step: int) -> WordAlignment:
    """The links of every pair of so many words: each with itself, or first with last and last with first."""
    links = tuple(zip(range(words), range(words)[::step], strict=True))
    return WordAlignment(links, links)
