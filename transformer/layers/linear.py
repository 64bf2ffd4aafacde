"""Linear maps between named axes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.layers.functional_module import Builder, Module
from transformer.layers.initialization import Role
from transformer.logical_axes import divided

Axes = tuple[tuple[str, int], ...]


def product(
    x: Float[Array, "..."], weights: Float[Array, "..."], contracted: int = 1, dtype: jax.typing.DTypeLike | None = None
) -> Float[Array, "..."]:
    """The product x W over the last `contracted` axes of x and the first of W, as `dtype` or the type of x.

    On one device it is the product of two matrices: a compiler for CPUs copies arrays of more axes into other layouts,
    in the backward pass most of all. Where devices divide the axes, they are kept as they are.
    """
    if divided():
        return jnp.tensordot(x, weights, axes=contracted, preferred_element_type=dtype)
    kept, new = x.shape[: x.ndim - contracted], weights.shape[contracted:]
    size = math.prod(weights.shape[:contracted])
    y = jnp.matmul(x.reshape(-1, size), weights.reshape(size, -1), preferred_element_type=dtype)
    return y.reshape(*kept, *new)


class Linear(Module):
    """y = x W + b over the last axes of x, from axes `inputs` to axes `outputs`, each a list of (name, size).

    Computed in the type of x; parameters are cast to it. W begins by the builder's rule for its `role`, biases
    at zero. `lora` is added to the map of x, where a low rank is learned beside W (transformer.layers.lora).
    """

    lora: Any = None

    def __init__(
        self,
        inputs: Axes,
        outputs: Axes,
        *,
        bias: bool,
        role: Role = Role.DENSE,
        builder: Builder,
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
        """Contract the last axes of x with the kernel's first ones; `kernel` stands in for its own (a normed one)."""
        weights = self.kernel[...] if kernel is None else kernel
        y = product(x, jnp.asarray(weights, x.dtype), self.contracted)
        if self.lora is not None:
            y = y + self.lora(x)
        return y if self.bias is None else y + jax.lax.broadcast_to_rank(self.bias[...].astype(x.dtype), y.ndim)

    def whole(self) -> Float[Array, "..."]:
        """The matrix of the map: W, with what is learned beside it."""
        kernel = jnp.asarray(self.kernel[...])
        return kernel if self.lora is None else kernel + self.lora.matrix()
