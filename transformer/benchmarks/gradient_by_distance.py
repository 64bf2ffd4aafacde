"""The gradient norm over distance at initialization, through each type of layer.

For y the output at the last of n positions and u a random direction, the norm of d(u . y) / dx_1: what a loss at the
end can teach about the first input (Bengio et al. 1994; Hochreiter 1991).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.benchmarks.layer_types import LAYER_TYPES, LayerType

# The vanilla network's recurrent matrix is orthogonal times this: below 1 it shrinks every state, above 1 it stretches.
SPECTRAL_RADII = (0.9, 1.1)


def gradient_norms_by_distance(
    distances: Sequence[int], d: int, *, seeds: int = 16, scale: float = 0.01
) -> dict[str, list[float]]:
    """Return, by layer type, the geometric mean over seeds of the gradient norm at each distance.

    Each seed has its own initial values, inputs N(0, scale^2) and direction. Small inputs keep the vanilla network
    where its tanh is nearly straight, so that its matrix decides.
    """
    layers: dict[str, tuple[LayerType, float]] = {
        f"vanilla x {radius}": (LAYER_TYPES["vanilla"], radius) for radius in SPECTRAL_RADII
    }
    layers |= {name: (LAYER_TYPES[name], 1.0) for name in ("gru", "lstm", "attention")}
    return {
        name: [_mean_gradient_norm(kind, radius, distance + 1, d, seeds, scale) for distance in distances]
        for name, (kind, radius) in layers.items()
    }


def _mean_gradient_norm(kind: LayerType, radius: float, n: int, d: int, seeds: int, scale: float) -> float:
    module, run = kind.make_layer(d)

    def norm_for_key(key: Array) -> Float[Array, ""]:
        init, inputs, direction_key = jax.random.split(key, 3)
        params = module.init(init)
        if radius != 1:
            params = {
                **params,
                "forward": {**params["forward"], "recurrent_kernel": radius * params["forward"]["recurrent_kernel"]},
            }
        x_BxTxF = scale * jax.random.normal(inputs, (1, n, d))
        direction_F = jax.random.normal(direction_key, (d,))
        gradient_BxTxF = jax.grad(lambda x: run(params, x)[0, -1] @ direction_F / jnp.linalg.norm(direction_F))(x_BxTxF)
        return jnp.linalg.norm(gradient_BxTxF[0, 0])

    norms = np.asarray(jax.jit(jax.vmap(norm_for_key))(jax.random.split(jax.random.key(0), seeds)), np.float64)
    return float(np.exp(np.log(np.maximum(norms, np.finfo(np.float32).tiny)).mean()))
