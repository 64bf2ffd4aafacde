"""Normalisation of one vector."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.layers.module import Keys, Module, Parameter


class LayerNorm(Module):
    """y = scale (x - mean) / sqrt(variance + epsilon) + bias over the last axis (Ba et al. 2016, equation 4).

    The variance is the biased one; the paper has no epsilon. Statistics are at least float32.
    """

    def __init__(self, width: int, *, parameter: Parameter, keys: Keys, epsilon: float = 1e-6):
        self.scale = parameter(keys, jax.nn.initializers.ones, (width,), ("embed",))
        self.bias = parameter(keys, jax.nn.initializers.zeros, (width,), ("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """Normalise every vector by itself, in the type of x."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normalised = centred * jax.lax.rsqrt(variance + self.epsilon)
        return (normalised * self.scale[...] + self.bias[...]).astype(x.dtype)
