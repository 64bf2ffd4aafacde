"""Lengths and padding: padding is one token's number and stands at the end of a row only."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def real_lengths(tokens_BxT: Int[Array, "B T"], pad: int) -> Int[Array, " B"]:
    """How many tokens of each row are not padding."""
    return jnp.sum(tokens_BxT != pad, axis=1)


def target_lengths(target_BxT: Int[Array, "B T"], source_lengths_B: Int[Array, " B"], pad: int) -> Int[Array, " B"]:
    """The lengths of a decoder's inputs: targets behind their begin token.

    The begin token counts whatever its number, for it may be the padding token itself (Marian, T5). A row without a
    source only fills the batch, and its target has the length 0.
    """
    return jnp.where(source_lengths_B > 0, 1 + jnp.sum(target_BxT[:, 1:] != pad, axis=1), 0)


def real_positions(lengths_B: Int[Array, " B"], count: int) -> Bool[Array, "B T"]:
    """Which of `count` positions stand before the end of each row."""
    return jnp.arange(count, dtype=jnp.int32)[None] < lengths_B[:, None]
