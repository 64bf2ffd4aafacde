"""Randomness by an explicit key: arrays in programs that compile quickly, and dropout of weights and features."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt16

from transformer.logical_axes import divided

# The rate is realized to 1 part in this many: half the random bits that a float32 draw would take.
_PARTS = 2**16


def dropout(x: Float[Array, "..."], rate: float, key: Key[Array, ""] | None) -> Float[Array, "..."]:
    """Zero each entry with probability `rate` and scale the others by 1 / (1 - rate); the identity without a key.

    Srivastava et al. 2014, section 4. The rate is realized to 1 part in 65,536; the scale uses the realized rate, so
    that the expectation is exact.
    """
    if key is None or rate == 0:
        return x
    dropped = min(round(rate * _PARTS), _PARTS - 1)
    keep = random_uint16(key, x.shape) >= dropped
    return jnp.where(keep, x * (_PARTS / (_PARTS - dropped)), 0).astype(x.dtype)


def check_dropout_rate(name: str, rate: float) -> None:
    """Refuse what is no share that may be dropped, or replaced, in training: at least 0 and below 1.

    Raises:
        ValueError: That names the argument and its value.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"{name}={rate} must be at least 0 and below 1")


def draw_array(
    draw: Callable[..., jax.Array], key: Key[Array, ""], shape: tuple[int, ...], *more: jax.typing.DTypeLike
) -> Array:
    """`draw(key, shape, *more)` of jax.random, with its numbers."""
    if divided():
        return draw(key, shape, *more)
    return draw(key, (math.prod(shape),), *more).reshape(shape)


def random_uint16(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt16[Array, "..."]:
    """16 random bits an entry: the halves of the 32-bit words of `jax.random.bits`, so that a draw serves two entries.

    jax.random.bits of uint16 takes a draw for each, and drawing is what dropout costs.
    """
    if divided() and shape and shape[-1] % 2 == 0:
        words = jax.random.bits(key, (*shape[:-1], shape[-1] // 2), jnp.uint32)
        return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(shape)
    size = math.prod(shape)
    words = jax.random.bits(key, (-(-size // 2),), jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[:size].reshape(shape)
