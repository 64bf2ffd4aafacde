"""Find examples that occur in two splits of a data set, which would leak held-out data into training."""

import itertools
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping

# Shorter lines, such as headings, empty lines and the names of speakers, repeat by chance.
_LEAST_LETTERS = 40


def normalize_text(text: str) -> str:
    """Return a text in Unicode's NFC with single spaces and none at its ends, as splits are compared; case is kept."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _normalize_example(example: Hashable) -> Hashable:
    """Normalize an example's texts; anything else, such as the digest of an image, is compared as it is."""
    match example:
        case str():
            return normalize_text(example)
        case tuple():
            return tuple(map(_normalize_example, example))
        case _:
            return example


def describe_overlap(splits: Mapping[str, Iterable[Hashable]], what: str) -> str:
    """Describe how many examples of a split occur in an earlier one as well; "" for none.

    Texts are compared as `normalize_text` returns them.

    Args:
        splits: The examples by split, training first; training is read once and not kept in memory.
        what: What the examples are called.
    """
    if not splits:
        return ""
    first, *later_splits = splits
    normalized = {name: list(map(_normalize_example, splits[name])) for name in later_splits}
    example_sets = {name: frozenset(examples) for name, examples in normalized.items()}
    shared_with_first: dict[str, set[Hashable]] = {name: set() for name in later_splits}
    for example in map(_normalize_example, splits[first]):
        for name in later_splits:
            if example in example_sets[name]:
                shared_with_first[name].add(example)
    shared = [(first, name, shared_with_first[name]) for name in later_splits]
    shared += [
        (earlier, later, set(example_sets[earlier] & example_sets[later]))
        for earlier, later in itertools.combinations(later_splits, 2)
    ]
    parts = []
    for earlier, later, examples in shared:
        if count := sum(example in examples for example in normalized[later]):
            parts.append(f"{count:,} of {len(normalized[later]):,} {later} {what} are in {earlier} as well")
    return "; ".join(parts)


def long_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of texts that are long enough not to repeat by chance."""
    lines = (line.strip() for text in texts for line in text.split("\n"))
    return (line for line in lines if len(line) >= _LEAST_LETTERS)
