"""Random arrays by an explicit key, in programs that compile quickly.

On one device they are drawn as a vector: XLA compiles the draw of several axes for a CPU in a second, that of one in a
thirtieth of it. Where devices divide the axes, each draws its own. An entry's number in the whole array alone says what
it is.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, UInt16

from transformer.axes import divided


def drawn(
    draw: Callable[..., jax.Array], key: Key[Array, ""], shape: tuple[int, ...], *more: jax.typing.DTypeLike
) -> Array:
    """`draw(key, shape, *more)` of jax.random, with its numbers."""
    if divided():
        return draw(key, shape, *more)
    return draw(key, (math.prod(shape),), *more).reshape(shape)


def half_words(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt16[Array, "..."]:
    """16 random bits an entry: the halves of the 32-bit words of `jax.random.bits`, so that a draw serves two entries.

    jax.random.bits of uint16 takes a draw for each, and drawing is what dropout costs.
    """
    if divided() and shape and shape[-1] % 2 == 0:
        words = jax.random.bits(key, (*shape[:-1], shape[-1] // 2), jnp.uint32)
        return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(shape)
    size = math.prod(shape)
    words = jax.random.bits(key, (-(-size // 2),), jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[:size].reshape(shape)
