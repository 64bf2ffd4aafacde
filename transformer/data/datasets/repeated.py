"""Random symbols that repeat: only what came before tells what comes next, which is what induction heads read."""

import dataclasses

import numpy as np

from transformer.config import UserError, from_config
from transformer.data.datasets.options import whole_numbers

# Letters and digits of Latin scripts, so that every symbol is one character that can be seen and written anywhere.
ALPHABET = "".join(chr(code) for code in range(0x250) if chr(code).isalnum())
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Repeated:
    """What the documents are: `length` symbols each, of an alphabet of so many `symbols`.

    A document is a segment of `shortest` to `longest` symbols, all lengths and all symbols equally likely, over and
    over until it is full: a place by itself says nothing, and a head must find what followed the same symbol before.
    With n lengths, m their mean and S symbols no model can have a loss below (m - 1) log S + log n nats a document,
    the first symbol of which is given; that of one which repeats nothing is (length - 1) log S. `train`, `validation`
    and `test` are numbers of documents, drawn from `seed` and the split.
    """

    symbols: int = 64
    shortest: int = 8
    longest: int = 24
    length: int = 64
    train: int = 16384
    validation: int = 512
    test: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.symbols <= len(ALPHABET):
            raise UserError(f"repeated: symbols={self.symbols} must be from 2 to {len(ALPHABET)}")
        if not 2 <= self.shortest <= self.longest < self.length:
            raise UserError(
                f"repeated: shortest={self.shortest}, longest={self.longest} and length={self.length} must rise, from "
                "at least 2, and the longest segment must be shorter than a document"
            )
        for split in SPLITS:
            if getattr(self, split) < 1:
                raise UserError(f"repeated: {split}={getattr(self, split)} must be at least 1 document")

    def draw(self, split: str) -> list[str]:
        """The documents of a split."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        count = getattr(self, split)
        period_Nx1 = random.integers(self.shortest, self.longest + 1, (count, 1))
        segment_NxP = random.integers(0, self.symbols, (count, self.longest))
        document_NxT = np.take_along_axis(segment_NxP, np.arange(self.length) % period_Nx1, axis=1)
        return ["".join(row) for row in np.array(list(ALPHABET))[document_NxT]]


def repeated(options: str) -> tuple[dict[str, list[str]], str]:
    """The documents by split, and what they were drawn from; `options` are fields, as in "symbols=32,longest=16".

    Errors: UserError for an unknown option, a value that is no whole number, and impossible sizes.
    """
    values = whole_numbers("repeated", options, "symbols=32,longest=16")
    config = from_config(Repeated, values, "repeated")
    return {split: config.draw(split) for split in SPLITS}, f"seed {config.seed}"
