"""Random arrays by an explicit key: the numbers of jax.random, in programs that compile quickly."""

import math
from collections.abc import Callable

import jax
from jaxtyping import Array, Key

from transformer.axes import placement


def drawn(
    draw: Callable[..., jax.Array], key: Key[Array, ""], shape: tuple[int, ...], *more: jax.typing.DTypeLike
) -> Array:
    """`draw(key, shape, *more)` of jax.random, where an entry's number in the whole array says what it is.

    On one device it is drawn as a vector: XLA compiles the draw of several axes for a CPU in a second, that of one in
    a thirtieth of it. Where devices divide the axes, each draws its own.
    """
    placed = placement()
    if placed is not None and placed.mesh.size > 1:
        return draw(key, shape, *more)
    return draw(key, (math.prod(shape),), *more).reshape(shape)
