"""Waves of a position: added to a token's vector, or by which the features of queries and keys are turned."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Combination(enum.Enum):
    """How a position's vector joins a token's: x + p, or [x ; p]."""

    ADD = "add"
    CONCATENATE = "concatenate"


def combine(
    x: Float[Array, "*B E"], position: Float[Array, "*#B P"], how: Combination = Combination.ADD
) -> Float[Array, "*B _"]:
    """Token and position as one vector.

    A linear map of [x ; p] is x W_x + p W_p: the sum with a projection each.
    """
    match how:
        case Combination.ADD:
            return x + position
        case Combination.CONCATENATE:
            broadcast = jnp.broadcast_to(position, (*x.shape[:-1], position.shape[-1]))
            return jnp.concatenate([x, broadcast.astype(x.dtype)], axis=-1)


def sinusoidal(positions: Int[Array, "*shape"], width: int, *, halves: bool = False) -> Float[Array, "*shape {width}"]:
    """Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)); `halves` puts all sines
    before all cosines instead, as the authors' code does.

    Errors: ValueError when `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width={width} is odd; sinusoidal positions pair each sine with a cosine")
    sines, cosines = waves_of(positions, width, 10000.0, jnp.dtype(jnp.float32))
    if halves:
        return jnp.concatenate([sines, cosines], axis=-1)
    return jnp.stack([sines, cosines], axis=-1).reshape(*positions.shape, width)


def rotary(
    x_BxNxHxD: Float[Array, "B N H D"], positions: Int[Array, "#B N"], *, base: float = 10000.0, halves: bool = False
) -> Float[Array, "B N H D"]:
    """Each pair of features turned by its position times its frequency (Su et al. 2021, section 3.2.2, equation 15).

    (x_2i, x_2i+1) -> R(p base^(-2i / D)) (x_2i, x_2i+1); `halves` pairs (x_i, x_(i + D/2)) instead. The product of
    a turned query and a turned key depends on their positions by the difference alone.

    Errors: ValueError when the depth D is odd.
    """
    depth = x_BxNxHxD.shape[-1]
    if depth % 2:
        raise ValueError(f"head depth {depth} is odd; rotary positions turn pairs of features")
    wide = jnp.promote_types(x_BxNxHxD.dtype, jnp.float32)
    sines, cosines = (wave[:, :, None] for wave in waves_of(positions, depth, base, wide))
    x = x_BxNxHxD.astype(wide)
    first, second = jnp.split(x, 2, axis=-1) if halves else (x[..., 0::2], x[..., 1::2])
    turned = (first * cosines - second * sines, first * sines + second * cosines)
    joined = jnp.concatenate(turned, axis=-1) if halves else jnp.stack(turned, axis=-1).reshape(x.shape)
    return joined.astype(x_BxNxHxD.dtype)


def waves_of(positions: Int[Array, "*shape"], width: int, base: float, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Sines and cosines of p base^(-2i / width), i from 0 to width / 2."""
    # Frequencies in float64 on the host: float32 powers would shift the slowest waves.
    frequencies = np.power(base, -np.arange(0, width, 2) / width)
    of_last = jax.lax.broadcast_to_rank(jnp.asarray(frequencies, dtype), positions.ndim + 1)
    angles = positions[..., None].astype(dtype) * of_last
    return jnp.sin(angles), jnp.cos(angles)
