"""Token embeddings and learned positions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.layers.module import Keys, Module, Parameter


class Embedding(Module):
    """A table of token vectors, which can also score vectors against every token.

    Entries start as N(0, 1 / width), so that vectors scaled by sqrt(width) and logits both have unit variance.
    """

    def __init__(self, vocabulary: int, width: int, *, parameter: Parameter, keys: Keys):
        normal = jax.nn.initializers.normal(width**-0.5)
        self.table = parameter(keys, normal, (vocabulary, width), ("vocabulary", "embed"))

    def __call__(self, tokens: Int[Array, "*B"], dtype: jax.typing.DTypeLike) -> Float[Array, "*B E"]:
        """The tokens' vectors, scaled by sqrt(width) (Vaswani et al. 2017, section 3.4)."""
        table = self.table[...]
        return jnp.take(table, tokens, axis=0).astype(dtype) * jnp.asarray(table.shape[1] ** 0.5, dtype)

    def logits(self, x: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """The score of every token with the same table, in at least float32."""
        at_least_float32 = jnp.promote_types(x.dtype, jnp.float32)
        table = self.table[...].astype(x.dtype)
        return jnp.einsum("...e,ve->...v", x, table, preferred_element_type=at_least_float32)


class LearnedPositions(Module):
    """A table of one vector a position (Gehring et al. 2017; Vaswani et al. 2017, table 3, row E)."""

    def __init__(self, longest: int, width: int, *, parameter: Parameter, keys: Keys):
        normal = jax.nn.initializers.normal(width**-0.5)
        self.table = parameter(keys, normal, (longest, width), ("positions", "embed"))

    def __call__(self, positions: Int[Array, "*B"]) -> Float[Array, "*B E"]:
        """The positions' vectors."""
        return jnp.take(self.table[...], positions, axis=0)
