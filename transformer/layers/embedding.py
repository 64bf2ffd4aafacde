"""Token embeddings and learned positions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import UserError
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole
from transformer.layers.linear import logits_product


def padded_vocab_size(tokens: int, rows: int | None) -> int:
    """The number of embedding rows: `rows` if set (such as a multiple that a mesh divides), else the number of tokens.

    Raises:
        UserError: If `rows` is less than the number of tokens.
    """
    if rows is not None and rows < tokens:
        raise UserError(
            f"config.model.vocab_size={rows} does not hold the task's {tokens} tokens: give at least as many, or None"
        )
    return tokens if rows is None else rows


class Embedding(Module):
    """A table of token vectors, which can also compute logits.

    Args:
        vocabulary: Number of tokens.
        width: Features of a vector.
        role: Selects the table's initialization.
        builder: Makes the table.
    """

    def __init__(
        self, vocabulary: int, width: int, *, role: ParameterRole = ParameterRole.EMBEDDING, builder: ParameterBuilder
    ):
        self.table = builder.parameter(
            builder.rule(role, vocabulary, width), (vocabulary, width), ("vocabulary", "embed")
        )
        self.logits_dtype = builder.logits_dtype

    def __call__(self, tokens: Int[Array, "*B"], dtype: jax.typing.DTypeLike) -> Float[Array, "*B E"]:
        """Look up the vectors of tokens, in `dtype`; that of a token beyond the table is NaN, which no loss hides."""
        return jnp.take(self.table[...], tokens, axis=0).astype(dtype)

    def logits(self, x: Float[Array, "*B E"]) -> Float[Array, "*B V"]:
        """Compute the logit of every token with the same table, in float32 or wider."""
        return logits_product(x, self.output_matrix(x.dtype), self.logits_dtype)

    def output_matrix(self, dtype: jax.typing.DTypeLike) -> Float[Array, "E V"]:
        """The transposed table, the matrix that computes logits, in `dtype`."""
        return jnp.asarray(self.table[...], dtype).T


class LearnedPositions(Module):
    """A table of one vector per position (Gehring et al. 2017; Vaswani et al. 2017, table 3, row E)."""

    def __init__(self, max_length: int, width: int, *, builder: ParameterBuilder):
        rule = builder.rule(ParameterRole.POSITIONS, max_length, width)
        self.table = builder.parameter(rule, (max_length, width), ("positions", "embed"))

    def __call__(self, positions: Int[Array, "*B"]) -> Float[Array, "*B E"]:
        """Look up the vectors of positions."""
        return jnp.take(self.table[...], positions, axis=0)
