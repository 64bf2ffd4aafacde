"""Examples that stand in two splits of a data set: what is held out should not have been trained on."""

import itertools
from collections.abc import Hashable, Iterable, Mapping

# Shorter lines repeat by themselves, as headings, empty lines and the names of speakers do.
_LEAST_LETTERS = 40


def said_of_overlap(splits: Mapping[str, Iterable[Hashable]], what: str) -> str:
    """How many examples of a split stand in an earlier one as well, in words; "" for none.

    `splits` are in the order train, validation, test; `what` the examples are called.
    """
    found = {name: list(examples) for name, examples in splits.items()}
    known = {name: frozenset(examples) for name, examples in found.items()}
    parts = []
    for earlier, later in itertools.combinations(found, 2):
        count = sum(example in known[earlier] for example in found[later])
        if count:
            parts.append(f"{count:,} of {len(found[later]):,} {later} {what} are in {earlier} as well")
    return "; ".join(parts)


def long_lines(texts: Iterable[str]) -> list[str]:
    """The lines of texts that are long enough not to repeat by themselves."""
    lines = (line.strip() for text in texts for line in text.split("\n"))
    return [line for line in lines if len(line) >= _LEAST_LETTERS]
