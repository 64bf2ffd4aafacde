"""Dropout, from an explicit key."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.random_arrays import random_uint16

# The rate is realized to 1 part in this many: half the random bits that a float32 draw would take.
_PARTS = 2**16


def dropout(x: Float[Array, "..."], rate: float, key: Key[Array, ""] | None) -> Float[Array, "..."]:
    """Zero each entry with probability `rate`, scale the others by 1 / (1 - rate) (Srivastava et al. 2014, section 4).

    Args:
        x: Weights or features.
        rate: Probability of zeroing, at least 0 and below 1. It is rounded to 1 part in 65,536; the scale uses the
            rounded rate, so that the expectation is exact.
        key: Random key; None returns `x` unchanged.

    Returns:
        An array of the same shape and type.
    """
    if key is None or rate == 0:
        return x
    dropped = min(round(rate * _PARTS), _PARTS - 1)
    keep = random_uint16(key, x.shape) >= dropped
    return jnp.where(keep, x * (_PARTS / (_PARTS - dropped)), 0).astype(x.dtype)


def check_dropout_rate(name: str, rate: float) -> None:
    """Check that a dropout (or replacement) rate is at least 0 and below 1.

    Raises:
        ValueError: If it is not; gives the argument's name and value.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"{name}={rate} must be at least 0 and below 1")
