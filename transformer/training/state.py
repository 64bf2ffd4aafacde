"""The training state: everything that a run carries from step to step, and all that a checkpoint holds."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int, Key

from transformer.models.contract import Variables

PyTree = Any

# How the paths of a state's leaves begin in a checkpoint: parameters, what the model carries, averages by name.
PARAMS, STATE, AVERAGES = "variables/params/", "variables/state/", "averages/"


class TrainState(NamedTuple):
    """`step` updates have been made; `optimisers` are by objective, `averages` by name.

    `hyper` are the optimisers' numbers by objective, such as the learning rate: here, so that no value is part of the
    program.
    """

    step: Int[Array, ""]
    key: Key[Array, ""]
    variables: Variables
    optimisers: Mapping[str, PyTree]
    averages: Mapping[str, Mapping[str, Array]]
    extra: PyTree
    hyper: Mapping[str, Mapping[str, Float[Array, ""]]]

    def for_looking(self) -> "TrainState":
        """The state without what updates alone are made with: what evaluations and probes are compiled for."""
        return self._replace(optimisers={}, hyper={})


def key_for(key: Key[Array, ""], step: int | Int[Array, ""], name: str) -> Key[Array, ""]:
    """The key of one named purpose at one step: a pure function, so that no other key need be saved."""
    return jax.random.fold_in(jax.random.fold_in(key, step), zlib.crc32(name.encode()))


def by_path(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """The leaves of a tree by their path, names joined with "/"; `is_leaf` as in `jax.tree`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
