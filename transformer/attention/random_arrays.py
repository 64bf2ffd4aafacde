"""Random arrays from explicit keys, in programs that compile quickly."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, UInt16

from transformer.logical_axes import is_sharded


def draw_array(
    draw: Callable[..., jax.Array], key: Key[Array, ""], shape: tuple[int, ...], *more: jax.typing.DTypeLike
) -> Array:
    """Call `draw(key, shape, *more)` of `jax.random`, flat where that compiles faster; the numbers are the same."""
    if is_sharded():
        return draw(key, shape, *more)
    return draw(key, (math.prod(shape),), *more).reshape(shape)


def random_uint16(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt16[Array, "..."]:
    """Draw 16 random bits per entry, as halves of 32-bit words, so that one draw serves two entries.

    `jax.random.bits` of uint16 takes a draw for each entry, and drawing dominates the cost of dropout.
    """
    if is_sharded() and shape and shape[-1] % 2 == 0:
        words = jax.random.bits(key, (*shape[:-1], shape[-1] // 2), jnp.uint32)
        return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(shape)
    size = math.prod(shape)
    words = jax.random.bits(key, (-(-size // 2),), jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[:size].reshape(shape)
