"""Find examples that occur in two splits of a data set, which would leak held-out data into training."""

import itertools
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping

# Shorter lines, such as headings, empty lines and the names of speakers, repeat by chance.
_LEAST_LETTERS = 40


def normalize_text(text: str) -> str:
    """Return a text in Unicode's NFC with single spaces and none at its ends, as splits are compared; case is kept."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _normalize(example: Hashable) -> Hashable:
    """Normalize an example's texts; anything else, such as the digest of an image, is compared as it is."""
    match example:
        case str():
            return normalize_text(example)
        case tuple():
            return tuple(map(_normalize, example))
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
    first, *others = splits
    normalized = {name: list(map(_normalize, splits[name])) for name in others}
    known = {name: frozenset(examples) for name, examples in normalized.items()}
    found: dict[str, set[Hashable]] = {name: set() for name in others}
    for example in map(_normalize, splits[first]):
        for name in others:
            if example in known[name]:
                found[name].add(example)
    shared = [(first, name, found[name]) for name in others]
    shared += [
        (earlier, later, set(known[earlier] & known[later])) for earlier, later in itertools.combinations(others, 2)
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
