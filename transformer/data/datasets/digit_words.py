"""Lines of digits in words, "three one four": text for the language model of a speech recognizer."""

from collections.abc import Iterator

import numpy as np

from transformer.data.datasets.example_splits import split_of, take_examples

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""The digits by number."""
_LINES = {"train": 20_000, "validation": 1_000, "test": 1_000}
_FEWEST, _MOST = 2, 4


def generate_digit_lines() -> tuple[dict[str, list[str]], str]:
    """Generate a document for each split, of lines of 2 to 4 uniformly random digits, and describe their source.

    A hash of a line says which split it belongs to.
    """
    splits = {}
    for number, (split, count) in enumerate(_LINES.items()):
        lines = take_examples(
            _lines(np.random.default_rng(number)),
            count,
            lambda line, split=split: split_of(line) == split,
            "digit_words",
            split,
        )
        splits[split] = ["".join(f"{line}\n" for line in lines)]
    return splits, "numbers drawn here"


def _lines(random: np.random.Generator) -> Iterator[str]:
    while True:
        digits = random.integers(10, size=random.integers(_FEWEST, _MOST + 1))
        yield " ".join(WORDS[digit] for digit in digits)
