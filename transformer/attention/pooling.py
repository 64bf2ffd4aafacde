"""How a long map is made small: the largest weight of each block of positions, or some rows of many."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float


def block_of(positions: int, cells: int) -> int:
    """The least power of two that cuts `positions` into at most `cells` blocks; so the blocks of more cells nest.

    Errors: ValueError when `cells` is below 1.
    """
    if cells < 1:
        raise ValueError(f"cells={cells} must be at least 1")
    return 1 << max(0, -(-positions // cells) - 1).bit_length()


def pool(weights: Float[Array | np.ndarray, "*maps Q K"], query_block: int, key_block: int) -> Any:
    """The largest weight of each block of query_block x key_block; what is missing of the last blocks is zero."""
    xp: Any = weights.__array_namespace__()
    *maps, queries, keys = weights.shape
    q, k = -(-queries // query_block), -(-keys // key_block)
    padding = [(0, 0)] * len(maps) + [(0, q * query_block - queries), (0, k * key_block - keys)]
    return xp.max(xp.reshape(xp.pad(weights, padding), (*maps, q, query_block, k, key_block)), axis=(-3, -1))


def evenly(positions: int, count: int) -> tuple[int, ...]:
    """`count` of `positions`, evenly spaced, the first and the last among them; all of them where they are no more."""
    steps = max(min(positions, count) - 1, 1)
    return tuple(round(index * (positions - 1) / steps) for index in range(min(positions, count)))
