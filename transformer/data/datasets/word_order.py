"""Sentences whose class is encoded only in the order of their words: "dog behind cat" and "cat behind dog"."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from transformer.config import Config, PositiveInt, Range, UserError, from_config
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.example_splits import hash_split, take_examples
from transformer.data.datasets.synthetic_symbols import SPLITS
from transformer.data.labeled_text_batches import LabeledText

# The class is the animal in front; the fillers say nothing about it.
CLASSES = ("cat", "dog")
FILLERS = ("old", "small", "quiet", "brown", "very", "still", "here", "today", "outside", "again")


@dataclasses.dataclass(frozen=True)
class WordOrderDatasetConfig(Config, path="word_order"):
    """Sentences of `min_length` to `max_length` words, all lengths equally likely.

    They contain "dog", "behind" and "cat" in this order, or "cat", "behind" and "dog", at random positions among filler
    words. The class is the animal in front, which is named last. Sentences come in pairs that differ only in that
    order, and so in their class: a model that only counts words is correct in exactly half of them. A hash of the pair
    says which split it belongs to; there is one pair of three words, which is in one split alone.

    Attributes:
        min_length: The smallest number of words.
        max_length: The largest number of words.
        train: The number of training pairs.
        validation: The number of validation pairs.
        test: The number of test pairs.
        seed: The seed; a split is drawn from seed and split.
    """

    min_length: Annotated[int, Range(3)] = 3
    max_length: int = 12
    train: PositiveInt = 4096
    validation: PositiveInt = 256
    test: PositiveInt = 256
    seed: int = 0

    def _check(self) -> None:
        if self.min_length > self.max_length:
            raise UserError(
                f"word_order: min_length={self.min_length} and max_length={self.max_length} must rise, from at least "
                "3 words"
            )

    def draw(self, split: str) -> list[LabeledText]:
        """Sample the sentences of a split, the two of a pair one after the other."""
        pairs = take_examples(
            self._generate_pairs(np.random.default_rng((self.seed, SPLITS.index(split)))),
            getattr(self, split),
            lambda pair: hash_split("\n".join(text for text, _ in pair)) == split,
            "word_order",
            split,
        )
        return [sentence for pair in pairs for sentence in pair]

    def _generate_pairs(self, random: np.random.Generator) -> Iterator[list[LabeledText]]:
        while True:
            length = random.integers(self.min_length, self.max_length + 1)
            words = random.choice(FILLERS, length)
            places = np.sort(random.choice(length, 3, replace=False))
            pair = []
            for label, front in enumerate(CLASSES):
                words[places] = CLASSES[1 - label], "behind", front
                pair.append(LabeledText(" ".join(words), label))
            yield pair


def generate_word_order(options: str) -> dict[str, list[LabeledText]]:
    """Generate the sentences by split.

    Args:
        options: Fields of `WordOrderDatasetConfig`, as in "max_length=6,train=512".

    Raises:
        UserError: If an option is unknown, a value is not a whole number, or sizes are impossible.
    """
    config = from_config(
        WordOrderDatasetConfig, parse_int_options("word_order", options, "max_length=6,train=512"), "word_order"
    )
    return {split: config.draw(split) for split in SPLITS}
