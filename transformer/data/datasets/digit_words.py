"""Lines of digits in words, "three one four": text for the language model of a speech recognizer."""

from collections.abc import Iterator

import numpy as np

from transformer.data.datasets.example_splits import hash_split, take_examples

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""The digits by number."""
_LINES = {"train": 20_000, "validation": 1_000, "test": 1_000}
_FEWEST, _MOST = 2, 4


def generate_digit_lines() -> tuple[dict[str, list[str]], str]:
    """Generate a document for each split, of lines of 2 to 4 uniformly random digits, and describe their source.

    A hash of a line says which split it belongs to.
    """
    splits = {split: ["".join(f"{line}\n" for line in _generate_split(split))] for split in _LINES}
    return splits, "numbers drawn here"


def _generate_split(split: str) -> list[str]:
    candidates = _generate_lines(np.random.default_rng(list(_LINES).index(split)))
    return take_examples(candidates, _LINES[split], lambda line: hash_split(line) == split, "digit_words", split)


def _generate_lines(random: np.random.Generator) -> Iterator[str]:
    while True:
        digits = random.integers(10, size=random.integers(_FEWEST, _MOST + 1))
        yield " ".join(WORDS[digit] for digit in digits)
