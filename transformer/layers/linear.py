"""Linear maps between named axes."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.layers.module import Initializer, Keys, Module, Parameter


def xavier_uniform(fan_in: int, fan_out: int) -> Initializer:
    """U(-a, a) with a = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 16)."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


class Linear(Module):
    """y = x W + b over the last axes of x, from axes `inputs` to axes `outputs`, each a list of (name, size).

    Computed in the type of x; parameters are cast to it. Xavier initialisation, biases at zero.
    """

    def __init__(
        self,
        inputs: tuple[tuple[str, int], ...],
        outputs: tuple[tuple[str, int], ...],
        *,
        bias: bool,
        parameter: Parameter,
        keys: Keys,
    ):
        names, sizes = zip(*inputs, *outputs, strict=True)
        self.contracted = len(inputs)
        output_names, output_sizes = zip(*outputs, strict=True)
        fan_in, fan_out = math.prod(size for _, size in inputs), math.prod(output_sizes)
        self.kernel = parameter(keys, xavier_uniform(fan_in, fan_out), sizes, names)
        self.bias = parameter(keys, jax.nn.initializers.zeros, output_sizes, output_names) if bias else None

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Contract the last axes of x with the kernel's first ones."""
        y = jnp.tensordot(x, self.kernel[...].astype(x.dtype), axes=self.contracted)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)
