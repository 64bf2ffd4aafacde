"""Linear maps between named axes."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.importance import OutputGates, gate_bias, gate_input
from transformer.layers.functional_module import Module, ParameterBuilder
from transformer.layers.initialization import ParameterRole
from transformer.logical_axes import is_sharded, target_platform

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
    batch_shape, output_shape = x.shape[: x.ndim - contracted], weights.shape[contracted:]
    size = math.prod(weights.shape[:contracted])
    y = jnp.matmul(x.reshape(-1, size), weights.reshape(size, -1), preferred_element_type=dtype)
    return y.reshape(*batch_shape, *output_shape)


def logits_product(
    x: Float[Array, "*B E"], weights: Float[Array, "E V"], dtype: jax.typing.DTypeLike = jnp.float32
) -> Float[Array, "*B V"]:
    """Compute x W over the classes of a head, such as a vocabulary, with a result in float32 or wider.

    For bfloat16, the products of the backward pass take the result's gradient in bfloat16 and sum in float32. Those of
    autodiff have float32 operands, which accelerators multiply at half the rate or less. float16 keeps them, because
    gradients of a mean over many tokens are below its range.

    Args:
        x: The inputs.
        weights: W, in the type of x.
        dtype: The type in which the product is stored, `Precision.logits_dtype`, or that of x if it is wider.

    Returns:
        The product.
    """
    if x.dtype == jnp.bfloat16:
        return _bfloat16_product(x, weights, dtype)
    stored = product(x, weights, dtype=jnp.promote_types(x.dtype, dtype))
    return stored.astype(jnp.promote_types(x.dtype, jnp.float32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _bfloat16_product(
    x: Float[Array, "*B E"], weights: Float[Array, "E V"], dtype: jax.typing.DTypeLike
) -> Float[Array, "*B V"]:
    return _bfloat16_forward(x, weights, dtype)[0]


def _bfloat16_forward(x: Array, weights: Array, dtype: jax.typing.DTypeLike) -> tuple[Array, tuple[Array, Array]]:
    stored = product(x, _align(weights), dtype=dtype)[..., : weights.shape[1]]
    return stored.astype(jnp.float32), (x, weights)


def _bfloat16_backward(
    _: jax.typing.DTypeLike, saved: tuple[Array, Array], gradient: Float[Array, "*B V"]
) -> tuple[Array, Array]:
    x, weights = saved
    aligned_BxW = _align(gradient.astype(x.dtype))
    positions = tuple(range(x.ndim - 1))
    weight_gradient_ExW = jnp.tensordot(x, aligned_BxW, axes=(positions, positions), preferred_element_type=jnp.float32)
    return product(aligned_BxW, _align(weights).T), weight_gradient_ExW[:, : weights.shape[1]].astype(weights.dtype)


_bfloat16_product.defvjp(_bfloat16_forward, _bfloat16_backward)


def _align(x: Float[Array, "*B V"]) -> Float[Array, "*B W"]:
    """Pad the last axis with zeros to a multiple of 64 on a GPU, whose fast loads take rows of 16-byte multiples.

    The compiler fuses the padding, and the slice of the result, into the programs that write and read these arrays.
    """
    missing = -x.shape[-1] % 64 if target_platform() == "gpu" else 0
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, missing),)) if missing else x


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
        role: ParameterRole = ParameterRole.DENSE,
        builder: ParameterBuilder,
    ):
        names, sizes = zip(*inputs, *outputs, strict=True)
        self.inputs, self.outputs, self.contracted = inputs, outputs, len(inputs)
        self.logits_dtype = builder.logits_dtype
        output_names, output_sizes = zip(*outputs, strict=True)
        fan_in, fan_out = math.prod(size for _, size in inputs), math.prod(output_sizes)
        self.kernel = builder.parameter(builder.rule(role, fan_in, fan_out), sizes, names)
        # A vector along the width is too small to be worth dividing, and gathering again in every layer.
        bias_names = tuple("features" if name == "embed" else name for name in output_names)
        self.bias = builder.parameter(jax.nn.initializers.zeros, output_sizes, bias_names) if bias else None

    def __call__(self, x: Float[Array, "..."], kernel: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Apply the map; `kernel` replaces the layer's own W, such as a spectrally normalized one."""
        weights = self.kernel[...] if kernel is None else kernel
        return self._add_to_product(product(x, jnp.asarray(weights, x.dtype), self.contracted), x)

    def gated(self, x: Float[Array, "B ..."], gates: OutputGates | None) -> Float[Array, "B ..."]:
        """Apply the map at the end of a sub-layer; `gates` measure the importance of its heads and result."""
        if gates is None or gates.is_empty:
            return self(x)
        weights, flat, contracted = jnp.asarray(self.kernel[...], x.dtype), x, self.contracted
        if not is_sharded():  # the shapes in which `product` multiplies and stores them
            size = math.prod(weights.shape[:contracted])
            weights, flat, contracted = weights.reshape(size, *weights.shape[contracted:]), x.reshape(-1, size), 1
        flat, zeros_B = gate_input(flat, x.shape, gates)
        y = product(flat, weights, contracted).reshape(
            *x.shape[: x.ndim - self.contracted], *weights.shape[contracted:]
        )
        y = self._add_to_product(y, flat.reshape(x.shape))
        return y if self.bias is None else gate_bias(y, self.bias[...], zeros_B, gates)

    def logits(self, x: Float[Array, "*B E"], kernel: Float[Array, "E V"] | None = None) -> Float[Array, "*B V"]:
        """Apply the map as the head of a model: as `__call__`, but with a result in float32 or wider."""
        weights = self.kernel[...] if kernel is None else kernel
        return self._add_to_product(logits_product(x, jnp.asarray(weights, x.dtype), self.logits_dtype), x)

    def _add_to_product(self, y: Float[Array, "..."], x: Float[Array, "..."]) -> Float[Array, "..."]:
        if self.lora is not None:
            y = y + self.lora(x).astype(y.dtype)
        return y if self.bias is None else y + jax.lax.broadcast_to_rank(self.bias[...].astype(y.dtype), y.ndim)

    def full_matrix(self) -> Float[Array, "..."]:
        """The matrix of the map: W plus its low-rank update, if any."""
        kernel = jnp.asarray(self.kernel[...])
        return kernel if self.lora is None else kernel + self.lora.matrix()
