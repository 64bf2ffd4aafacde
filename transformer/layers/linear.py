"""Linear maps between named axes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import Role
from transformer.logical_axes import is_sharded

Axes = tuple[tuple[str, int], ...]


def product(
    x: Float[Array, "..."], weights: Float[Array, "..."], contracted: int = 1, dtype: jax.typing.DTypeLike | None = None
) -> Float[Array, "..."]:
    """Compute x W over the last `contracted` axes of x and the first of W.

    On one device it is a matrix product: XLA on CPUs copies arrays with more axes into other layouts, especially
    in the backward pass. Where axes are sharded, they are kept as they are.

    Args:
        x: The inputs.
        weights: W.
        contracted: Number of axes to contract.
        dtype: Type of the result; None means the type of x.

    Returns:
        The product.
    """
    if is_sharded():
        return jnp.tensordot(x, weights, axes=contracted, preferred_element_type=dtype)
    kept, new = x.shape[: x.ndim - contracted], weights.shape[contracted:]
    size = math.prod(weights.shape[:contracted])
    y = jnp.matmul(x.reshape(-1, size), weights.reshape(size, -1), preferred_element_type=dtype)
    return y.reshape(*kept, *new)


class Linear(Module):
    """A linear map y = x W + b over the last axes of x. It computes in the type of x.

    Args:
        inputs: Logical name and size of each input axis.
        outputs: Logical name and size of each output axis.
        bias: Whether there is a bias, initially zero.
        role: Selects the initialization of W.
        builder: Makes the parameters.

    Attributes:
        lora: A low-rank map that is added (transformer.layers.lora), or None.
    """

    lora: Any = None

    def __init__(
        self,
        inputs: Axes,
        outputs: Axes,
        *,
        bias: bool,
        role: Role = Role.DENSE,
        builder: ParameterBuilder,
    ):
        names, sizes = zip(*inputs, *outputs, strict=True)
        self.inputs, self.outputs, self.contracted = inputs, outputs, len(inputs)
        output_names, output_sizes = zip(*outputs, strict=True)
        fan_in, fan_out = math.prod(size for _, size in inputs), math.prod(output_sizes)
        self.kernel = builder.parameter(builder.rule(role, fan_in, fan_out), sizes, names)
        # A vector along the width is too small to be worth dividing, and gathering again in every layer.
        bias_names = tuple("features" if name == "embed" else name for name in output_names)
        self.bias = builder.parameter(jax.nn.initializers.zeros, output_sizes, bias_names) if bias else None

    def __call__(self, x: Float[Array, "..."], kernel: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Apply the map; `kernel` replaces the layer's own W, such as a spectrally normalized one."""
        weights = self.kernel[...] if kernel is None else kernel
        y = product(x, jnp.asarray(weights, x.dtype), self.contracted)
        if self.lora is not None:
            y = y + self.lora(x)
        return y if self.bias is None else y + jax.lax.broadcast_to_rank(self.bias[...].astype(x.dtype), y.ndim)

    def full_matrix(self) -> Float[Array, "..."]:
        """The matrix of the map: W plus its low-rank update, if any."""
        kernel = jnp.asarray(self.kernel[...])
        return kernel if self.lora is None else kernel + self.lora.matrix()
