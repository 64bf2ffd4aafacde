"""A replay buffer of episodes: arrays of a fixed size in a task's `extra`, the oldest overwritten first."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

PyTree = Any


class Replay(NamedTuple):
    """`episodes` is a tree of [capacity, ...]; `written` episodes were put into it in all."""

    episodes: PyTree
    written: Int[Array, ""]


def empty(episodes: PyTree, capacity: int) -> Replay:
    """A buffer for `capacity` episodes of these shapes [rows, ...]."""
    return Replay(jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape[1:]), leaf.dtype), episodes), jnp.int32(0))


def put(replay: Replay, episodes: PyTree) -> Replay:
    """The buffer with so many more episodes [rows, ...]: episode n lies at n modulo its capacity."""
    rows, capacity = (len(jax.tree.leaves(tree)[0]) for tree in (episodes, replay.episodes))
    at = (replay.written + jnp.arange(rows)) % capacity
    kept = jax.tree.map(lambda old, new: old.at[at].set(new), replay.episodes, episodes)
    return Replay(kept, replay.written + rows)


def sample(replay: Replay, rows: int, key: Key[Array, ""]) -> PyTree:
    """Episodes [rows, ...], each any one of those in the buffer with equal probability; one may come twice."""
    capacity = len(jax.tree.leaves(replay.episodes)[0])
    chosen = jax.random.randint(key, (rows,), 0, jnp.minimum(replay.written, capacity))
    return jax.tree.map(lambda leaf: leaf[chosen], replay.episodes)
