"""Examples that stand in two splits of a data set: what is held out should not have been trained on."""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping

# Shorter lines repeat by themselves, as headings, empty lines and the names of speakers do.
_LEAST_LETTERS = 40


def describe_overlap(splits: Mapping[str, Iterable[Hashable]], what: str) -> str:
    """How many examples of a split stand in an earlier one as well, in words; "" for none.

    `splits` are in their order, training first, which is read once and not kept; `what` the examples are called.
    """
    if not splits:
        return ""
    first, *others = splits
    held = {name: list(splits[name]) for name in others}
    known = {name: frozenset(examples) for name, examples in held.items()}
    found: dict[str, set[Hashable]] = {name: set() for name in others}
    for example in splits[first]:
        for name in others:
            if example in known[name]:
                found[name].add(example)
    shared = [(first, name, found[name]) for name in others]
    shared += [
        (earlier, later, set(known[earlier] & known[later])) for earlier, later in itertools.combinations(others, 2)
    ]
    parts = []
    for earlier, later, examples in shared:
        if count := sum(example in examples for example in held[later]):
            parts.append(f"{count:,} of {len(held[later]):,} {later} {what} are in {earlier} as well")
    return "; ".join(parts)


def long_lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of texts that are long enough not to repeat by themselves."""
    lines = (line.strip() for text in texts for line in text.split("\n"))
    return (line for line in lines if len(line) >= _LEAST_LETTERS)
