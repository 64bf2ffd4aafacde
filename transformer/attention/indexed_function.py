"""A function of example, head, query and key, with the examples and heads to which one part of a call belongs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from transformer.attention.pytree_dataclass import array_field, function_field, is_pytree, pytree_dataclass


@pytree_dataclass
class IndexedFunction:
    """A mask function or a modification of the logits, with the indices that it gets in one part of a call.

    Attributes:
        function: The function.
        batch_B: The index of each example.
        head_H: The index of each query head.
        start: Position in the whole map from which positions are counted; None for the beginning.
    """

    function: Any = function_field()
    batch_B: Int[Array, " B"] = array_field("batch")
    head_H: Int[Array, " H"] = array_field("heads")
    start: Int[Array, ""] | None = array_field(default=None)

    def __call__(self, query: Int[Array, "#B 1 Q 1"], key: Int[Array, "#B 1 #Q K"], *logits: Array) -> Array:
        """Return the function of these positions, and of their logits if there are any."""
        if self.start is not None:
            query, key = query + self.start, key + self.start
        return self.function(*logits, self.batch_B[:, None, None, None], self.head_H[None, :, None, None], query, key)

    def shifted(self, start: Array | int) -> "IndexedFunction":
        """The same function of positions that are counted from `start`."""
        previous = 0 if self.start is None else self.start
        return dataclasses.replace(self, start=jnp.asarray(start, jnp.int32) + previous)


def index_function(function: Any, batch: int, heads: int) -> IndexedFunction | None:
    """A function with the indices of this many examples and heads; None and what has its indices are unchanged."""
    if function is None or isinstance(function, IndexedFunction):
        return function
    if is_pytree(function):
        function = jax.tree.map(jnp.asarray, function)
    return IndexedFunction(function, jnp.arange(batch, dtype=jnp.int32), jnp.arange(heads, dtype=jnp.int32))
