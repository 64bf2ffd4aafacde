"""Dropout by an explicit key, of attention weights and of whatever a layer gives."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer.attention.rng import half_words

# The rate is realised to 1 part in this many: half the random bits that a float32 draw would take.
_PARTS = 2**16


def dropout(x: Float[Array, "..."], rate: float, key: Key[Array, ""] | None) -> Float[Array, "..."]:
    """Zero each entry with probability `rate` and scale the others by 1 / (1 - rate); the identity without a key.

    Srivastava et al. 2014, section 4. The rate is realised to 1 part in 65,536; the scale uses the realised rate, so
    that the expectation is exact.
    """
    if key is None or rate == 0:
        return x
    dropped = min(round(rate * _PARTS), _PARTS - 1)
    keep = half_words(key, x.shape) >= dropped
    return jnp.where(keep, x * (_PARTS / (_PARTS - dropped)), 0).astype(x.dtype)


def check_rate(name: str, rate: float) -> None:
    """Refuse what is no share that may be dropped, or replaced, in training: at least 0 and below 1.

    Errors: ValueError that names the argument and its value.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"{name}={rate} must be at least 0 and below 1")
