"""Lengths and padding. Padding has a token of its own and only follows the end of a row."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def real_lengths(tokens_BxT: Int[Array, "B T"], pad: int) -> Int[Array, " B"]:
    """Count the tokens of each row that are not padding."""
    return jnp.sum(tokens_BxT != pad, axis=1)


def target_lengths(target_BxT: Int[Array, "B T"], source_lengths_B: Int[Array, " B"], pad: int) -> Int[Array, " B"]:
    """The lengths of a decoder's inputs: targets after their begin token.

    The begin token always counts, because it may be the padding token itself (Marian, T5). A row without a source only
    fills the batch; its target has length 0.

    Args:
        target_BxT: The inputs, begin token first.
        source_lengths_B: The lengths of the sources.
        pad: The padding token.

    Returns:
        The length of each target.
    """
    return jnp.where(source_lengths_B > 0, 1 + jnp.sum(target_BxT[:, 1:] != pad, axis=1), 0)


def real_positions(lengths_B: Int[Array, " B"], count: int) -> Bool[Array, "B T"]:
    """Which of `count` positions come before the end of each row."""
    return jnp.arange(count, dtype=jnp.int32)[None] < lengths_B[:, None]
