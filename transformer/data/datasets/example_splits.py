"""Splits of generated examples: a hash says which split an example belongs to, so that no two splits share one."""

import hashlib
from collections.abc import Callable, Hashable, Iterable

from transformer.config import UserError

NUM_BUCKETS = 20
# After so many draws in a row that belong to other splits, the wanted one has no example, or hardly any.
_MOST_MISSES = 2_000
# One in twenty belongs to the smallest split: so many draws all miss it once in a hundred thousand times.
_MOST_REDRAWS = 220
# Of so many equally likely examples, two draws of a hundred thousand have none in common: less than one in ten thousand
# such pairs of draws do.
ENOUGH_EXAMPLES = 2**48


def hash_bucket(text: str) -> int:
    """Return the bucket of a text, from 0 to `NUM_BUCKETS` - 1, all equally likely: a pure function."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % NUM_BUCKETS


def hash_split(text: str) -> str:
    """Return the split of a text: one in ten is for test, one in twenty for validation, the others for training."""
    bucket = hash_bucket(text)
    return "test" if bucket < 2 else "validation" if bucket < 3 else "train"


def draw_again[T](
    example: T, draw: Callable[[], T], belongs: Callable[[T], bool], kind: Hashable, missing_kinds: set[Hashable]
) -> T:
    """Return an example, or another draw of its kind while it does not belong to the wanted split.

    So a split has as many examples of a kind with few, as of one with so many that they are not divided.

    Args:
        example: The example.
        draw: A function that draws another of its kind.
        belongs: Whether an example belongs to the split.
        kind: Its kind.
        missing_kinds: The kinds of which the split seems to have no example, to which one is added after many draws;
            of these the first draw is returned.
    """
    if kind in missing_kinds:
        return example
    for _ in range(_MOST_REDRAWS):
        if belongs(example):
            return example
        example = draw()
    missing_kinds.add(kind)
    return example


def take_examples[T](
    candidates: Iterable[T], count: int, belongs: Callable[[T], bool], name: str, split: str
) -> list[T]:
    """Return the first `count` of endless random examples that belong to a split.

    Args:
        candidates: The examples.
        count: The number of examples.
        belongs: Whether an example belongs to the split.
        name: The name of the data set, for the message.
        split: The split, for the message.

    Raises:
        UserError: If the data set has too few different examples: no candidate belongs to the split for so long that
            hardly any can.
    """
    examples: list[T] = []
    misses = 0
    for candidate in candidates:
        if belongs(candidate):
            examples.append(candidate)
            misses = 0
            if len(examples) == count:
                break
        elif (misses := misses + 1) == _MOST_MISSES:
            raise UserError(
                f"{name} has too few different examples to hold some out: of {misses:,} drawn in a row none is left "
                f"for {split}; give it longer or more varied examples"
            )
    return examples
