"""All parameters of a model as one vector, and keys whose draws compile quickly.

What a step does with every parameter alike, such as the optimizer, the averages and the checks for finite numbers, is a
program of as many small parts as there are parameters, of which compiling takes most of the time of the contracts. A
family and a task do not know how their parameters lie; the toys, and cases with patterns of paths, keep the tree.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from transformer.layers.functional_module import FunctionalModule
from transformer.models.model import leaves_by_path
from transformer.training.state import TrainState

NAME = "parameters"


class FlatModule(FunctionalModule):
    """A module as functions of one vector, {"parameters": [N]}, in the place of its `FunctionalModule`."""

    def __init__(self, module: FunctionalModule):
        self._module = module
        leaves, self._structure = jax.tree.flatten(module.shapes())
        self._shapes = [leaf.shape for leaf in leaves]
        self._sizes = [leaf.size for leaf in leaves]
        (self._dtype,) = {leaf.dtype for leaf in leaves}

    def init(self, key: jax.Array) -> dict[str, Any]:
        return {NAME: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(self._module.init(key))])}

    def shapes(self) -> dict[str, Any]:
        return {NAME: jax.ShapeDtypeStruct((sum(self._sizes),), self._dtype)}

    def axes(self) -> dict[str, Any]:
        return {NAME: (None,)}

    def bind(self, params: dict[str, Any]) -> Any:
        # The transpose of `split` is one concatenation, that of slices a sum of as many vectors.
        parts = jax.lax.split(params[NAME], self._sizes)
        return self._module.bind(self._as_tree(parts))

    def unflatten(self, vector: Any) -> Any:
        """The parameters as a tree, in NumPy."""
        return self._as_tree(np.split(np.asarray(vector), np.cumsum(self._sizes)[:-1]))

    def _as_tree(self, parts: Any) -> Any:
        return jax.tree.unflatten(
            self._structure, [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        )


def unflatten(module: Any, state: TrainState) -> TrainState:
    """The state with a leaf for each parameter wherever there is one for all, so that each can be looked at."""
    if not isinstance(module, FlatModule):
        return state

    def is_vector(node: Any) -> bool:
        return isinstance(node, dict) and node.keys() == {NAME}

    def by_path(node: Any) -> Any:
        return leaves_by_path(module.unflatten(node[NAME])) if is_vector(node) else node

    optimizers, averages = jax.tree.map(by_path, (state.optimizers, state.averages), is_leaf=is_vector)
    variables = state.variables._replace(params=module.unflatten(state.variables.params[NAME]))
    return state._replace(variables=variables, optimizers=optimizers, averages=averages)


def _mix(bits: jax.Array) -> jax.Array:
    """A permutation of 32 bits all of which depend on all (Wellons 2018, "lowbias32")."""
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
    return bits ^ (bits >> np.uint32(16))


def _seed(seed: Any) -> jax.Array:
    return jnp.asarray(seed).astype(jnp.uint32)[None]


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _mix(key[0] ^ _mix(jax.lax.iota(jnp.uint32, int(np.prod(shape))) + np.uint32(1))).reshape(*shape, 1)


def _draw_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    numbers = jax.lax.iota(jnp.uint32, int(np.prod(shape))).reshape(shape)
    return _mix(key[0] + numbers * np.uint32(0x9E3779B9)).astype(f"uint{bit_width}")


def _fold_in(key: jax.Array, number: jax.Array) -> jax.Array:
    return _mix(key ^ _mix(jnp.asarray(number).astype(jnp.uint32) + np.uint32(0x85EBCA6B)))


# Initial parameters alone are drawn by it: a third of the time that Threefry's take to compile.
HASH = define_prng_impl(
    key_shape=(1,), seed=_seed, split=_split, random_bits=_draw_bits, fold_in=_fold_in, name="hash", tag="hash"
)
