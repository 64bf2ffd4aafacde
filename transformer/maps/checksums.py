"""Digests of stored maps: of every array at every step, added up over the processes that wrote its parts.

They are those of transformer.runs.checksums, whose sums over the parts of an array add up. JSON holds them by array, a
text for each step of the list beside them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from transformer.config import UserError
from transformer.runs.checksums import combine_digests, part_digest

# Of every step, of every array by name.
Digests = dict[int, dict[str, str]]


class CorruptMapsError(UserError):
    """Maps whose bytes are not those that were written; `step` is theirs, None where it is the whole store."""

    def __init__(self, path: Path, what: str, step: int | None = None):
        super().__init__(f"{path} is damaged: {what}")
        self.path, self.step = path, step


def digest_shards(
    pieces: Sequence[tuple[tuple[slice, ...], np.ndarray]], shape: tuple[int, ...], *, first: bool
) -> str:
    """The digest of the parts of an array of this shape that one process writes.

    An array that every process has whole all of them write; the first one's counts.
    """
    counted = [(where, values) for where, values in pieces if first or any(part != slice(None) for part in where)]
    return combine_digests(*(part_digest(_whole(where, shape), values, shape) for where, values in counted))


def digest_array(array: np.ndarray) -> str:
    """The digest of a whole array."""
    return part_digest(_whole((), array.shape), array, array.shape)


def digests_by_array(digests: Digests, steps: Sequence[int]) -> dict[str, list[str]]:
    """The digests as JSON has them."""
    names = sorted({name for step in steps for name in digests.get(step, {})})
    return {name: [digests.get(step, {}).get(name, combine_digests()) for step in steps] for name in names}


def digests_by_step(steps: Sequence[int], digests: Mapping[str, Sequence[str]]) -> Digests:
    """The inverse of `digests_by_array`."""
    return {step: {name: of_steps[place] for name, of_steps in digests.items()} for place, step in enumerate(steps)}


def merge_digests(parts: Sequence[Digests], steps: Sequence[int]) -> Digests:
    """The digests of whole arrays from those of the parts that each process wrote."""
    whole: Digests = {}
    for step in steps:
        names = sorted({name for part in parts for name in part.get(step, {})})
        whole[step] = {
            name: combine_digests(*(part[step][name] for part in parts if name in part.get(step, {}))) for name in names
        }
    return whole


def _whole(where: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return (*where, *(slice(None),) * (len(shape) - len(where)))
