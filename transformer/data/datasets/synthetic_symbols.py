"""Random symbols to copy or reverse: the smallest translation problems that need every source word.

Every target word has one known source word, so that the true alignment is known.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from transformer.config import Config, PositiveInt, Range, UserError, from_config
from transformer.data.datasets.aligned_templates import AlignedPair, WordAlignment
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.example_splits import ENOUGH_EXAMPLES, draw_again, hash_split, take_examples

# Letters and digits of Latin scripts, so that every symbol is one visible character.
ALPHABET = "".join(chr(code) for code in range(0x250) if chr(code).isalnum())
SPLITS = ("train", "validation", "test")
# The names of source and target of each data set.
SYMBOL_LANGUAGES = {"reversal": ("symbols", "reversed"), "copy": ("symbols", "copied")}


@dataclasses.dataclass(frozen=True)
class SymbolPairsDatasetConfig(Config):
    """Pairs of random symbols, all equally likely.

    A symbol is a word of one character, which BPE makes one token if its vocabulary holds 2 x symbols + 5. Without the
    source the best loss is log(symbols) nats per word. A hash of the source says which split a pair belongs to, where
    its length has so few sources that random ones recur.

    Attributes:
        num_symbols: The number of symbols.
        length: The number of words, or the largest.
        min_length: The smallest number of words; all lengths are equally likely. None is `length`.
        test_length: The number of words in the test split, if it differs.
        train: The number of training pairs.
        validation: The number of validation pairs.
        test: The number of test pairs.
        seed: The seed; a split is drawn from seed and split.
    """

    num_symbols: Annotated[int, Range(2, len(ALPHABET))] = 16
    length: PositiveInt = 12
    min_length: PositiveInt | None = None
    test_length: PositiveInt | None = None
    train: PositiveInt = 32768
    validation: PositiveInt = 256
    test: PositiveInt = 512
    seed: int = 0

    def _check(self) -> None:
        for name, length in (("min_length", self.resolved_min_length), ("test_length", self.test_length or 1)):
            if length > self.length:
                raise ValueError(f"{name}={length} must be at most length={self.length}")

    @property
    def resolved_min_length(self) -> int:
        """The smallest number of words."""
        return self.length if self.min_length is None else self.min_length

    def draw(self, split: str, name: str) -> list[AlignedPair]:
        """Sample the pairs of a split of "copy" or "reversal"."""
        step = 1 if name == "copy" else -1

        def belongs(words: list[str]) -> bool:
            return self.num_symbols ** len(words) >= ENOUGH_EXAMPLES or hash_split(" ".join(words)) == split

        sources = take_examples(self._generate_sources(split, belongs), getattr(self, split), belongs, name, split)
        return [
            AlignedPair(" ".join(words), " ".join(words[::step]), _link_words(len(words), step)) for words in sources
        ]

    def _generate_sources(self, split: str, belongs: Callable[[list[str]], bool]) -> Iterator[list[str]]:
        random, count = np.random.default_rng((self.seed, SPLITS.index(split))), getattr(self, split)
        missing_lengths = set[Hashable]()
        while True:
            words_N = random.integers(self.resolved_min_length, self.length + 1, count)
            if split == "test" and self.test_length is not None:
                words_N[:] = self.test_length
            symbols_NxT = random.integers(0, self.num_symbols, (count, self.length))
            for symbols, words in zip(symbols_NxT.tolist(), words_N.tolist(), strict=True):
                first = [ALPHABET[symbol] for symbol in symbols[:words]]
                yield draw_again(
                    first, functools.partial(self._draw_source, random, words), belongs, words, missing_lengths
                )

    def _draw_source(self, random: np.random.Generator, words: int) -> list[str]:
        return [ALPHABET[symbol] for symbol in random.integers(0, self.num_symbols, words).tolist()]


def generate_symbol_pairs(name: str, options: str) -> dict[str, list[AlignedPair]]:
    """Generate the pairs of "copy" or "reversal" by split.

    Args:
        name: The name of the data set.
        options: Fields of `SymbolPairsDatasetConfig`, as in "length=12,num_symbols=16".

    Raises:
        UserError: If an option is unknown, a value is not a whole number, or sizes are impossible.
    """
    config = from_config(SymbolPairsDatasetConfig, parse_int_options(name, options, "length=12,num_symbols=16"), name)
    return {split: config.draw(split, name) for split in SPLITS}


@dataclasses.dataclass(frozen=True)
class RepeatedSegmentsDatasetConfig(Config, path="repeated"):
    """Documents of random symbols that repeat, to train induction heads.

    A document is a segment of `min_segment_length` to `max_segment_length` symbols, all lengths and symbols equally
    likely, repeated until it is full. A position alone says nothing: a head must find what followed the same symbol
    before. With n lengths of mean m and S symbols no model can have a loss below (m - 1) log S + log n nats per
    document, given its first symbol; a model that does not use the repetition has (length - 1) log S. A hash of the
    document says which split it belongs to, where its segment is so short that random ones recur.

    Attributes:
        num_symbols: The number of symbols S.
        min_segment_length: The smallest length of a segment.
        max_segment_length: The largest length of a segment.
        length: The number of symbols in a document.
        train: The number of training documents.
        validation: The number of validation documents.
        test: The number of test documents.
        seed: The seed; a split is drawn from seed and split.
    """

    num_symbols: Annotated[int, Range(2, len(ALPHABET))] = 64
    min_segment_length: Annotated[int, Range(2)] = 8
    max_segment_length: int = 24
    length: int = 64
    train: PositiveInt = 16384
    validation: PositiveInt = 512
    test: PositiveInt = 512
    seed: int = 0

    def _check(self) -> None:
        if not self.min_segment_length <= self.max_segment_length < self.length:
            raise UserError(
                f"repeated: min_segment_length={self.min_segment_length}, "
                f"max_segment_length={self.max_segment_length} and length={self.length} must rise, from "
                "at least 2, and the longest segment must be shorter than a document"
            )

    def draw(self, split: str) -> list[str]:
        """Sample the documents of a split."""

        def belongs(document: _RepeatedDocument) -> bool:
            return self.num_symbols**document.period >= ENOUGH_EXAMPLES or hash_split(document.text) == split

        documents = take_examples(
            self._generate_documents(split, belongs), getattr(self, split), belongs, "repeated", split
        )
        return [document.text for document in documents]

    def _generate_documents(
        self, split: str, belongs: Callable[["_RepeatedDocument"], bool]
    ) -> Iterator["_RepeatedDocument"]:
        random, count = np.random.default_rng((self.seed, SPLITS.index(split))), getattr(self, split)
        missing_periods = set[Hashable]()
        while True:
            period_N = random.integers(self.min_segment_length, self.max_segment_length + 1, (count, 1))[:, 0]
            segment_NxP = random.integers(0, self.num_symbols, (count, self.max_segment_length))
            for period, segment in zip(period_N.tolist(), segment_NxP.tolist(), strict=True):
                first = self._repeat_segment(segment[:period])
                yield draw_again(
                    first, functools.partial(self._draw_document, random, period), belongs, period, missing_periods
                )

    def _draw_document(self, random: np.random.Generator, period: int) -> "_RepeatedDocument":
        return self._repeat_segment(random.integers(0, self.num_symbols, period).tolist())

    def _repeat_segment(self, segment: Sequence[int]) -> "_RepeatedDocument":
        text = "".join(ALPHABET[symbol] for symbol in segment)
        return _RepeatedDocument(len(text), (text * (self.length // len(text) + 1))[: self.length])


class _RepeatedDocument(NamedTuple):
    """A document of a repeated segment of `period` symbols."""

    period: int
    text: str


def generate_repeated_segments(options: str) -> tuple[dict[str, list[str]], str]:
    """Generate the documents of "repeated" by split, and describe their source.

    Args:
        options: Fields of `RepeatedSegmentsDatasetConfig`, as in "num_symbols=32,max_segment_length=16".

    Raises:
        UserError: If an option is unknown, a value is not a whole number, or sizes are impossible.
    """
    values = parse_int_options("repeated", options, "num_symbols=32,max_segment_length=16")
    config = from_config(RepeatedSegmentsDatasetConfig, values, "repeated")
    return {split: config.draw(split) for split in SPLITS}, f"seed {config.seed}"


@functools.cache
def _link_words(words: int, step: int) -> WordAlignment:
    """Return the links of pairs of so many words: each to its copy, or the first to the last and so on."""
    links = tuple(zip(range(words), range(words)[::step], strict=True))
    return WordAlignment(links, links)
