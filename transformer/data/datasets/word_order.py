"""Sentences whose class is in the order of their words alone: "dog behind cat" and "cat behind dog"."""

import dataclasses
from typing import Annotated

import numpy as np

from transformer.config import Config, Positive, Range, UserError, from_config
from transformer.data.datasets.dataset_options import parse_int_options
from transformer.data.datasets.synthetic_symbols import SPLITS
from transformer.data.labeled_text_batches import LabeledText

# Which of the two stands in front; neither word of these says more about one than about the other.
CLASSES = ("cat", "dog")
FILLERS = ("old", "small", "quiet", "brown", "very", "still", "here", "today", "outside", "again")


@dataclasses.dataclass(frozen=True)
class WordOrderConfig(Config, path="word_order"):
    """What the sentences are: `shortest` to `longest` words, all lengths equally likely.

    Among them are "dog", "behind" and "cat", in this order or as "cat", "behind", "dog", at places drawn at random, and
    other words around them. The class is the animal in front, which is named last. Sentences come in pairs that differ
    in that order alone and so in their class: whoever only counts words is right in exactly half of them. `train`,
    `validation` and `test` are numbers of pairs, drawn from `seed` and the split; splits of short sentences have
    some in common.
    """

    shortest: Annotated[int, Range(3)] = 3
    longest: int = 12
    train: Positive = 4096
    validation: Positive = 256
    test: Positive = 256
    seed: int = 0

    def _check(self) -> None:
        if self.shortest > self.longest:
            raise UserError(
                f"word_order: shortest={self.shortest} and longest={self.longest} must rise, from at least 3 words"
            )

    def draw(self, split: str) -> list[LabeledText]:
        """The sentences of a split, the two of a pair one behind the other."""
        random = np.random.default_rng((self.seed, SPLITS.index(split)))
        sentences = []
        for length in random.integers(self.shortest, self.longest + 1, getattr(self, split)):
            words = random.choice(FILLERS, length)
            places = np.sort(random.choice(length, 3, replace=False))
            for label, front in enumerate(CLASSES):
                words[places] = CLASSES[1 - label], "behind", front
                sentences.append(LabeledText(" ".join(words), label))
        return sentences


def generate_word_order(options: str) -> dict[str, list[LabeledText]]:
    """The sentences by split; `options` are fields, as in "longest=6,train=512".

    Raises:
        UserError: For an unknown option, a value that is no whole number, and impossible sizes.
    """
    config = from_config(WordOrderConfig, parse_int_options("word_order", options, "longest=6,train=512"), "word_order")
    return {split: config.draw(split) for split in SPLITS}
