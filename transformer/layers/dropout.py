"""Dropout by an explicit key."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


def dropout(x: Float[Array, "..."], rate: float, key: Key[Array, ""] | None) -> Float[Array, "..."]:
    """Zero each entry with probability `rate` and scale the others by 1 / (1 - rate); the identity without a key.

    Srivastava et al. 2014, section 4. The rate is realised to 1 part in 65,536, half the random bits of a
    float32 draw; the scale uses the realised rate, so that the expectation is exact.
    """
    if key is None or rate == 0:
        return x
    dropped = round(rate * 65536)
    keep = jax.random.bits(key, x.shape, jnp.uint16) >= dropped
    return jnp.where(keep, x * (65536 / (65536 - dropped)), 0).astype(x.dtype)
