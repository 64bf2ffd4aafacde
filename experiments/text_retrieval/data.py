"""Pairs of texts that mean the same: numbers in English and German words, in twins that only order tells apart."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from transformer.config import Config, Range, Seed, UserError, from_config
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.translation import open_translation_dataset
from transformer.data.phrases.number_words import german_number, number_spans
from transformer.models.task_interface import signature
from transformer.storage.paths import storage_of

NUMBER_WORDS = "number_words"
SPLITS = ("train", "validation", "test")
# Both texts of a pair as tokens, padded; their embeddings [B, 2, E] have length one.
PAIR_EMBEDDING = signature("source", "target", output="embeddings of both texts")


class TextPair(NamedTuple):
    """Two texts that mean the same."""

    source: str
    target: str


class PairData(NamedTuple):
    """The pairs of every split.

    Attributes:
        splits: The pairs by split, whose groups stand one after the other.
        group_size: The number of pairs in a group, which are drawn together.
    """

    splits: dict[str, list[TextPair]]
    group_size: int


NumPairs = Annotated[int, Range(2, 2**18)]
"""A number of pairs, of which two have the same words."""


@dataclasses.dataclass(frozen=True)
class NumberWordsConfig(Config):
    """The sizes of the generated data.

    Attributes:
        train: The number of training pairs.
        validation: The number of validation pairs.
        test: The number of test pairs.
        seed: The seed.

    Raises:
        UserError: If a number is odd or out of range.
    """

    train: NumPairs = 40_000
    validation: NumPairs = 1_000
    test: NumPairs = 1_000
    seed: Seed = 0

    def _check(self) -> None:
        for split in SPLITS:
            if getattr(self, split) % 2:
                raise UserError(f"{NUMBER_WORDS}/{split}={getattr(self, split)} must be even: pairs come in twins")


def number_pair(thousands: int, rest: int) -> TextPair:
    """Write 1000 x thousands + rest in English and German words."""
    number = 1000 * thousands + rest
    english, _ = number_spans(number, "en")
    return TextPair(" ".join(words for words, _ in english), german_number(number))


def generate_number_words(options: str) -> dict[str, list[TextPair]]:
    """Generate six-digit numbers in twins: 1000 a + b is followed by 1000 b + a.

    a and b are different and from 100 to 999, so that the English texts of twins have the same words. No two of a and b
    are in two splits.

    Args:
        options: Fields of `NumberWordsConfig`, as in "train=2000,test=200".

    Returns:
        The pairs by split.

    Raises:
        UserError: If an option is unknown, or a value is odd or out of range.
    """
    config = from_config(NumberWordsConfig, parse_int_options(NUMBER_WORDS, options, "train=2000,test=200"))
    sizes = [getattr(config, split) // 2 for split in SPLITS]
    random = np.random.default_rng(config.seed)
    pairs = dict[tuple[int, int], None]()  # in the order of drawing
    while len(pairs) < sum(sizes):
        a, b = sorted(map(int, random.integers(100, 1000, 2)))
        if a < b:
            pairs[a, b] = None
    twins = iter(pairs)
    return {
        split: [number_pair(*parts) for a, b in itertools.islice(twins, size) for parts in ((a, b), (b, a))]
        for split, size in zip(SPLITS, sizes, strict=True)
    }


def open_pairs(
    dataset: str, directory: Path, *, data_dir: str | None, languages: tuple[str, ...], test_split: str = "test"
) -> PairData:
    """Open generated number words, or any data set of translations.

    Args:
        dataset: "number_words", also with options as in "number_words/train=2000,test=200", or a name that
            `open_translation_dataset` takes, such as "phrases" or "multi30k/tokenized/en-de".
        directory: The run directory, beneath which data sets are prepared.
        data_dir: The folder of the data, for data sets that are not generated.
        languages: (source, target), for data sets with several; empty for their own.
        test_split: The name of the test split of a data set of translations.

    Raises:
        UserError: If the data set, a language or the split is unknown, or files are missing.
    """
    name, _, options = dataset.partition("/")
    if name == NUMBER_WORDS:
        return PairData(generate_number_words(options), group_size=2)
    data = open_translation_dataset(
        dataset,
        data_dir=data_dir,
        prepared_dir=str(storage_of(directory).scratch(directory / "data")),
        languages=(languages[0], languages[1]) if languages else None,
    )
    names = {"train": "train", "validation": "validation", "test": test_split}
    read = {split: [TextPair(pair.source, pair.target) for pair in data.split(own)] for split, own in names.items()}
    return PairData(read, group_size=1)


def distinct_pairs(pairs: Sequence[TextPair], count: int) -> list[int]:
    """Return the indices of the first `count` pairs whose source and target no earlier one has.

    Args:
        pairs: The pairs.
        count: The largest number of indices.
    """
    sources, targets, indices = set[str](), set[str](), list[int]()
    for index, (source, target) in enumerate(pairs):
        if len(indices) < count and source not in sources and target not in targets:
            indices.append(index)
        sources.add(source)
        targets.add(target)
    return indices
