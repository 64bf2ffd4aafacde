"""Checksums of stored maps, of every array at every step, combined from the parts that several processes wrote.

They are those of transformer.runs.array_digests, which can be combined over the parts of an array. In JSON each array
has a list of them, one for each step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from transformer.config import UserError
from transformer.runs.array_digests import combine_digests, compute_array_part_digest

# Of every step, of every array by name.
Digests = dict[int, dict[str, str]]


class CorruptMapsError(UserError):
    """Raised when stored maps are not the bytes that were written.

    Attributes:
        path: The store.
        step: The damaged step, None if the whole store is damaged.
    """

    def __init__(self, path: Path, what: str, step: int | None = None):
        super().__init__(f"{path} is damaged: {what}")
        self.path, self.step = path, step


def digest_shards(
    pieces: Sequence[tuple[tuple[slice, ...], np.ndarray]], shape: tuple[int, ...], *, first: bool
) -> str:
    """Compute the digest of the parts of an array that this process writes.

    If every process holds the whole array, all of them write it and only the first one's digest counts.

    Args:
        pieces: The parts, each as its index into the array and its values.
        shape: The shape of the whole array.
        first: Whether this is the first process.

    Returns:
        The digest.
    """
    counted = [(where, values) for where, values in pieces if first or any(part != slice(None) for part in where)]
    return combine_digests(
        *(compute_array_part_digest(_full_slices(where, shape), values, shape) for where, values in counted)
    )


def digest_array(array: np.ndarray) -> str:
    """Return the digest of a whole array."""
    return compute_array_part_digest(_full_slices((), array.shape), array, array.shape)


def digests_by_array(digests: Digests, steps: Sequence[int]) -> dict[str, list[str]]:
    """Convert digests by step and array to lists by array, as JSON stores them.

    Args:
        digests: The digest of every array at every step.
        steps: The steps.

    Returns:
        For each array a digest for each of `steps`, that of no values where it has none.
    """
    names = sorted({name for step in steps for name in digests.get(step, {})})
    return {name: [digests.get(step, {}).get(name, combine_digests()) for step in steps] for name in names}


def regroup_digests_by_step(steps: Sequence[int], digests: Mapping[str, Sequence[str]]) -> Digests:
    """Convert lists of digests by array to digests by step and array; the inverse of `digests_by_array`.

    Args:
        steps: The steps.
        digests: For each array a digest for each of `steps`.

    Returns:
        The digest of every array at every step.
    """
    return {
        step: {name: step_digests[place] for name, step_digests in digests.items()} for place, step in enumerate(steps)
    }


def merge_digests(parts: Sequence[Digests], steps: Sequence[int]) -> Digests:
    """Combine the digests of the parts that each process wrote into digests of whole arrays.

    Args:
        parts: The digests of each process.
        steps: The steps that all of them wrote.

    Returns:
        The digests by step and array.
    """
    merged: Digests = {}
    for step in steps:
        names = sorted({name for part in parts for name in part.get(step, {})})
        merged[step] = {
            name: combine_digests(*(part[step][name] for part in parts if name in part.get(step, {}))) for name in names
        }
    return merged


def _full_slices(where: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return (*where, *(slice(None),) * (len(shape) - len(where)))
