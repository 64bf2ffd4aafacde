"""Lines of digits in words, "three one four": text for the language model of a speech recognizer."""

import numpy as np

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""The digits by number."""
_LINES = {"train": 20_000, "validation": 1_000, "test": 1_000}
_FEWEST, _MOST = 2, 4


def generate_digit_lines() -> tuple[dict[str, list[str]], str]:
    """Generate a document for each split, of lines of 2 to 4 uniformly random digits, and describe their source."""
    splits = {}
    for number, (split, count) in enumerate(_LINES.items()):
        random = np.random.default_rng(number)
        lengths = random.integers(_FEWEST, _MOST + 1, count)
        lines = [" ".join(WORDS[digit] for digit in random.integers(10, size=length)) for length in lengths]
        splits[split] = ["".join(f"{line}\n" for line in lines)]
    return splits, "numbers drawn here"
