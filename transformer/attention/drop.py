"""Dropout by an explicit key, of attention weights and of whatever a layer gives."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt16

from transformer.axes import placement

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
    keep = _bits(key, x.shape) >= dropped
    return jnp.where(keep, x * (_PARTS / (_PARTS - dropped)), 0).astype(x.dtype)


def _bits(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt16[Array, "..."]:
    """`jax.random.bits` of 16 bits an entry, which depend on an entry's number in the whole array alone.

    On one device they are drawn as a vector: XLA compiles the draw of several axes for a CPU in a second, that of one
    in a thirtieth of it. Where devices divide the axes, each draws its own.
    """
    placed = placement()
    if placed is not None and placed.mesh.size > 1:
        return jax.random.bits(key, shape, jnp.uint16)
    return jax.random.bits(key, (math.prod(shape),), jnp.uint16).reshape(shape)


def check_rate(name: str, rate: float) -> None:
    """Refuse what is no share of entries that can be dropped: at least 0 and below 1.

    Errors: ValueError that names the argument and its value.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"{name}={rate} must be at least 0 and below 1, the share of entries that is dropped")
