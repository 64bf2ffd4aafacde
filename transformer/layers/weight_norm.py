"""Weight normalisation: a matrix as the lengths of its columns and their directions."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.layers.convolution import Convolution1D
from transformer.layers.linear import Linear
from transformer.layers.module import Builder, Module


class WeightNormed[Layer: Linear | Convolution1D](Module):
    """A layer whose kernel is w = g v / ||v||, for each output by itself (Salimans and Kingma 2016, equation 2).

    v is the layer's own kernel and g begins as ||v||, so that w begins as the layer's initialisation draws it.
    `outputs` is the logical name and the number of the outputs, which are the kernel's last axis.
    """

    def __init__(self, layer: Layer, outputs: tuple[str, int], *, builder: Builder):
        name, size = outputs
        self.layer = layer
        self.length = builder.parameter(
            lambda key, shape, dtype: _lengths(layer.kernel[...]).astype(dtype), (size,), (name,)
        )

    @property
    def kernel(self) -> Float[Array, "*I F"]:
        """w, by which the layer computes."""
        direction = self.layer.kernel[...]
        return direction * jax.lax.broadcast_to_rank(self.length[...] / _lengths(direction), direction.ndim)

    def __call__(self, x: Float[Array, "..."], **given: Any) -> Float[Array, "..."]:
        """The layer's outputs; `given` as it takes them beside x."""
        return self.layer(x, kernel=self.kernel, **given)


def _lengths(kernel: Float[Array, "*I F"]) -> Float[Array, " F"]:
    """The Euclidean length of every output's weights."""
    return jnp.sqrt(jnp.sum(jnp.square(kernel), axis=tuple(range(kernel.ndim - 1))))
