"""Digests of arrays, computed shard by shard; they depend on neither the sharding nor the number of processes.

An array is a sequence of 32-bit words w_p, p = 0, 1, ... in C order: an element of one or two bytes is one word, one of
eight is two. With z_p = p G + w_p mod 2^64, its digest is the pair of sums over p, mod 2^64, of two scramblings of z_p
(the finalizer of SplitMix64, Steele et al. 2014, and the same with another last factor). G is the odd number nearest to
2^64 over the golden ratio, whose multiples are spread so evenly that no two of a billion words can have the same z
whatever they are: an array whose words were changed, exchanged, zeroed or shifted has other z, and the same two sums
with a probability of about 2^-128. Sums of integers are exact in any order, so that each process adds up its own part.

It detects accidents, not forgery.
"""

import concurrent.futures
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import UInt32, UInt64

from transformer.config import MatchesPattern

Digest = Annotated[str, MatchesPattern("[0-9a-f]{32}", "32 hexadecimal digits")]
"""A digest as written in a file."""
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_LAST = (0x94D049BB133111EB, 0xD6E8FEB86659FD93)
_BLOCK = 1 << 15  # words at a time, so that they stay in a core's cache


class _Part(NamedTuple):
    """A shard of this process: its index in the array, its values, and the copies of the array that it belongs to."""

    where: tuple[slice, ...]
    values: Any
    copies: tuple[int, ...] = (0,)


def compute_digests(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Compute the digest of every array by name. All processes call it together and get the same result."""
    sums = _sum_copies({name: (1, _list_first_copy_parts(array)) for name, array in arrays.items()}, arrays)
    return {
        name: _format_digest(total)
        for name, total in zip(arrays, _sum_over_processes(list(sums.values())), strict=True)
    }


def compute_local_digests(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Compute the digests of arrays that this process holds completely, without the other processes."""
    return {
        name: _format_digest(sums[0])
        for name, sums in _sum_copies({n: _list_copies(a) for n, a in arrays.items()}, arrays).items()
    }


def compute_array_part_digest(where: tuple[slice, ...], values: np.ndarray, shape: tuple[int, ...]) -> str:
    """Compute the digest of a part of an array; `combine_digests` combines those of all parts.

    Args:
        where: The index of the part.
        values: Its values.
        shape: The shape of the array.
    """
    return _format_digest(_sum_part(_Part(where, values), shape))


def combine_digests(*digests: str) -> str:
    """Combine the digests of all parts of an array into the digest of the array."""
    sums = [[int(digest[:16], 16), int(digest[16:], 16)] for digest in digests]
    return _format_digest(np.array(sums, np.uint64).reshape(-1, 2).sum(axis=0, dtype=np.uint64))


def find_mismatched_arrays(arrays: Mapping[str, Any], expected: Mapping[str, str]) -> list[str]:
    """Return the names of the arrays of which a copy on any process has another digest than expected.

    All processes call it together and get the same result.

    Args:
        arrays: The arrays by name.
        expected: Their digests.
    """
    summed = _sum_copies({name: _list_copies(array) for name, array in arrays.items()}, arrays)
    # A process compares arrays that it holds completely; the sums of others are first added over processes.
    local = [name for name, array in arrays.items() if _has_complete_copy(array)]
    scattered = [name for name in arrays if name not in set(local)]
    mismatches = [np.array([[_format_digest(summed[name][0]) != expected[name]] * 2], np.uint64) for name in local]
    totals = _sum_over_processes([*mismatches, *(summed[name] for name in scattered)])
    wrong = {name for name, count in zip(local, totals, strict=False) if count.any()}
    owners = [name for name in scattered for _ in summed[name]]
    wrong |= {
        name for name, sums in zip(owners, totals[len(local) :], strict=True) if _format_digest(sums) != expected[name]
    }
    return [name for name in arrays if name in wrong]


def _has_complete_copy(array: Any) -> bool:
    if not isinstance(array, jax.Array) or not array.size:
        return True
    return array.is_fully_addressable or array.is_fully_replicated


def _list_first_copy_parts(array: Any) -> list[_Part]:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return [_Part(shard.index, shard.data) for shard in array.addressable_shards if shard.replica_id == 0]
    # Every process has a copy: the first one's counts.
    return _list_copies(array)[1] if jax.process_index() == 0 else []


def _list_copies(array: Any) -> tuple[int, list[_Part]]:
    """Return the number of separate copies and this process's distinct shards; a complete array is one copy."""
    if not isinstance(array, jax.Array):
        return 1, [_Part((slice(None),) * array.ndim, array)]
    parts: dict[tuple[slice, ...], _Part] = {}
    for shard in array.addressable_shards:
        before = parts.get(shard.index, _Part(shard.index, shard.data, ()))
        parts[shard.index] = before._replace(copies=(*before.copies, shard.replica_id))
    if _has_complete_copy(array):
        return 1, [part._replace(copies=(0,)) for part in parts.values()]
    shards_per_copy = array.size // math.prod(array.sharding.shard_shape(array.shape))
    return len(array.sharding.device_set) // shards_per_copy, list(parts.values())


def _sum_copies(
    copies: Mapping[str, tuple[int, Sequence[_Part]]], arrays: Mapping[str, Any]
) -> dict[str, UInt64[np.ndarray, "copies 2"]]:
    """Return the two sums of every copy of every array, over this process's shards."""
    totals = {name: np.zeros((count, 2), np.uint64) for name, (count, _) in copies.items()}
    work = [(name, part) for name, (_, parts) in copies.items() for part in parts]
    with concurrent.futures.ThreadPoolExecutor() as pool:  # NumPy releases the interpreter lock
        sums = pool.map(lambda item: _sum_part(item[1], arrays[item[0]].shape), work)
        for (name, part), part_sums in zip(work, sums, strict=True):
            totals[name][list(part.copies)] += part_sums
    return totals


def _sum_part(part: _Part, shape: tuple[int, ...]) -> UInt64[np.ndarray, "2"]:
    """Return the two sums over the words of a part of an array of this shape."""
    values = np.ascontiguousarray(np.asarray(part.values))
    total = np.zeros(2, np.uint64)
    if not values.size:
        return total
    words = values.reshape(-1).view({1: np.uint8, 2: np.uint16}.get(values.itemsize, np.uint32))
    starts = _list_run_starts(part.where, shape) * np.uint64(words.size // values.size)
    shifted, scrambled = np.empty((2, _BLOCK), np.uint64)
    for z in _iterate_blocks(starts, words.reshape(len(starts), -1)):
        # In place: allocating new arrays would take longer than the arithmetic.
        t, y = shifted[: z.size], scrambled[: z.size]
        np.bitwise_xor(z, np.right_shift(z, 30, out=t), out=z)
        np.multiply(z, _FIRST, out=z)
        np.bitwise_xor(z, np.right_shift(z, 27, out=t), out=z)
        for number, factor in enumerate(_LAST):
            np.multiply(z, factor, out=y)
            np.bitwise_xor(y, np.right_shift(y, 31, out=t), out=y)
            total[number : number + 1] += y.sum()
    return total


def _list_run_starts(where: tuple[slice, ...], shape: tuple[int, ...]) -> UInt64[np.ndarray, " runs"]:
    """Return the positions in the array at which the part's contiguous runs of elements begin, in C order."""
    bounds = [place.indices(size)[:2] for place, size in zip(where, shape, strict=True)]
    last = len(shape)
    while last and bounds[last - 1] == (0, shape[last - 1]):
        last -= 1
    starts = np.zeros(1, np.uint64)
    for axis, (first, end) in enumerate(bounds[:last]):
        # Along the last divided axis the elements are contiguous: one run.
        indices = np.arange(first, first + 1 if axis == last - 1 else end, dtype=np.uint64)
        starts = (starts[:, None] + indices * np.uint64(math.prod(shape[axis + 1 :]))).reshape(-1)
    return starts


def _iterate_blocks(
    starts: UInt64[np.ndarray, " runs"], words: UInt32[np.ndarray, "runs length"]
) -> Iterator[UInt64[np.ndarray, " words"]]:
    """Yield the z of all words, at most a block at a time."""
    runs, length = words.shape
    ramp = np.arange(min(length, _BLOCK), dtype=np.uint64) * _GOLDEN
    runs_per_block = max(1, _BLOCK // length)
    for run in range(0, runs, runs_per_block):
        for place in range(0, length, _BLOCK):
            block = words[run : run + runs_per_block, place : place + _BLOCK]
            z = block.astype(np.uint64)
            z += ramp[: block.shape[1]]
            z += (starts[run : run + runs_per_block, None] + np.uint64(place)) * _GOLDEN
            yield z.reshape(-1)


def _sum_over_processes(sums: Sequence[UInt64[np.ndarray, "some 2"]]) -> UInt64[np.ndarray, "all 2"]:
    """Add up the sums of all processes, in one exchange."""
    local = np.concatenate([np.zeros((0, 2), np.uint64), *sums])
    if jax.process_count() == 1 or not local.size:
        return local
    # As 32-bit words: jax has no wider integers by default.
    gathered = np.asarray(multihost_utils.process_allgather(local.view(np.uint32)))
    return np.ascontiguousarray(gathered).view(np.uint64).sum(axis=0)


def _format_digest(sums: UInt64[np.ndarray, "2"]) -> str:
    return "".join(f"{int(value):016x}" for value in sums)
