"""Position encodings as functions of the position."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


def sinusoidal(positions: Int[Array, "*shape"], width: int) -> Float[Array, "*shape {width}"]:
    """Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(p / 10000^(2i / width)).

    Errors: ValueError when `width` is odd.
    """
    if width % 2:
        raise ValueError(f"width={width} is odd; sinusoidal positions pair each sine with a cosine")
    # In float64 on the host: float32 powers would shift the slowest waves.
    frequencies = np.power(10000.0, -np.arange(0, width, 2) / width)
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, width)
