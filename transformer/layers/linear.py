"""Linear maps between named axes."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.layers.initialisation import Role
from transformer.layers.module import Builder, Module

Axes = tuple[tuple[str, int], ...]


class Linear(Module):
    """y = x W + b over the last axes of x, from axes `inputs` to axes `outputs`, each a list of (name, size).

    Computed in the type of x; parameters are cast to it. W begins by the builder's rule for its `role`, biases
    at zero.
    """

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
        self.contracted = len(inputs)
        output_names, output_sizes = zip(*outputs, strict=True)
        fan_in, fan_out = math.prod(size for _, size in inputs), math.prod(output_sizes)
        self.kernel = builder.parameter(builder.rule(role, fan_in, fan_out), sizes, names)
        # A vector along the width is too small to be worth dividing, and gathering again in every layer.
        bias_names = tuple("features" if name == "embed" else name for name in output_names)
        self.bias = builder.parameter(jax.nn.initializers.zeros, output_sizes, bias_names) if bias else None

    def __call__(self, x: Float[Array, "..."], kernel: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Contract the last axes of x with the kernel's first ones; `kernel` stands in for its own (a normed one)."""
        weights = self.kernel[...] if kernel is None else kernel
        y = jnp.tensordot(x, weights.astype(x.dtype), axes=self.contracted)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)
