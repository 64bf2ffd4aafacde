"""Layer normalization and RMS normalization."""

import enum

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from transformer.layers.functional_module import Module, ParameterBuilder, store_inputs_alone

# The activation by which a norm multiplies: 1 / sqrt(variance + epsilon), or of the mean square.
NORM_FACTOR = "norm_factor"


class NormKind(enum.Enum):
    """The kind of norm.

    Attributes:
        LAYER: Layer normalization (Ba et al. 2016).
        RMS: By the root mean square alone (Zhang and Sennrich 2019).
        RMS_ZERO_CENTERED: The same with the factor 1 + scale, the scale beginning at 0, so that weight decay pulls the
            factor to 1 (Gemma's code).
    """

    LAYER = "layer"
    RMS = "rms"
    RMS_ZERO_CENTERED = "rms_zero_centered"


class LayerNorm(Module):
    """Layer normalization y = scale (x - mean) / sqrt(variance + epsilon) + bias (Ba et al. 2016, equation 4).

    It acts on the last axis. The variance is biased; the paper has no epsilon. Statistics are in float32 or wider.

    Args:
        width: Size of the last axis.
        builder: Makes the parameters.
        epsilon: Added to the variance.
        bias: Whether there is a bias.
    """

    def __init__(self, width: int, *, builder: ParameterBuilder, epsilon: float = 1e-6, bias: bool = True):
        self.scale = builder.parameter(jax.nn.initializers.ones, (width,), ("features",))
        self.bias = builder.parameter(jax.nn.initializers.zeros, (width,), ("features",)) if bias else None
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """Normalize each vector, in the type of x."""
        return store_inputs_alone(self._normalize, x)

    def _normalize(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        factor = checkpoint_name(jax.lax.rsqrt(variance + self.epsilon), NORM_FACTOR)
        scaled = centered * factor * jax.lax.broadcast_to_rank(self.scale[...], x.ndim)
        if self.bias is not None:
            scaled = scaled + jax.lax.broadcast_to_rank(self.bias[...], x.ndim)
        return scaled.astype(x.dtype)


class RmsNorm(Module):
    """RMS normalization y = scale x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019, equation 4).

    It acts on the last axis. The mean square is in float32 or wider.

    Args:
        width: Size of the last axis.
        builder: Makes the scale.
        epsilon: Added to the mean square.
        zero_centered: Whether the factor is 1 + scale, and the scale begins at 0.
    """

    def __init__(self, width: int, *, builder: ParameterBuilder, epsilon: float = 1e-6, zero_centered: bool = False):
        initial = jax.nn.initializers.zeros if zero_centered else jax.nn.initializers.ones
        self.scale = builder.parameter(initial, (width,), ("features",))
        self.epsilon, self.zero_centered = epsilon, zero_centered

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        """Normalize each vector, in the type of x."""
        return store_inputs_alone(self._normalize, x)

    def _normalize(self, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        scale = jax.lax.broadcast_to_rank(self.scale[...], x.ndim)
        scale = 1 + scale if self.zero_centered else scale
        factor = checkpoint_name(jax.lax.rsqrt(mean_square + self.epsilon), NORM_FACTOR)
        return (wide * factor * scale).astype(x.dtype)
