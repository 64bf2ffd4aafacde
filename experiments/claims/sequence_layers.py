"""One layer of attention, recurrence or convolution over a sequence, as functions of its parameters."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention import Mask
from transformer.attention.reference_mode import trace_reference
from transformer.costs.flops import count_matmul_flops
from transformer.layers.convolution import Convolution1D, ConvolutionWindow, Padding
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.recurrent import CellKind, RecurrentConfig, RecurrentLayer
from transformer.layers.transformer_config import Biases, PositionEncoding, Projections, TransformerConfig

EVERYTHING = Mask()  # every query sees every key


@dataclass(frozen=True)
class SequenceLayer:
    """A layer from [batch, position, feature] to the same shape.

    Attributes:
        module: Its parameters.
        call: Applies the module with its parameters to a sequence.
    """

    module: FunctionalModule
    call: Callable[[Any, jax.Array], jax.Array]

    def apply(self, params: Any, x_BxTxE: jax.Array) -> jax.Array:
        """Apply the layer with these parameters."""
        return self.call(self.module.bind(params), x_BxTxE)

    def trace(self, length: int, width: int) -> Any:
        """Return the jaxpr of the layer's equations for one sequence."""
        with trace_reference():
            x = jax.ShapeDtypeStruct((1, length, width), jnp.float32)
            return jax.make_jaxpr(self.apply)(self.module.shapes(), x).jaxpr

    def flops(self, length: int, width: int) -> int:
        """Count the FLOPs of the layer for one sequence."""
        return count_matmul_flops(self.trace(length, width))


def attention_layer(
    width: int, *, heads: int = 1, projections: Projections = Projections.LINEAR, mask: Mask = EVERYTHING
) -> SequenceLayer:
    """Return self-attention without positions and biases."""
    config = TransformerConfig(
        width=width, heads=heads, positions=PositionEncoding.NONE, projections=projections, biases=Biases.NONE
    )
    module = FunctionalModule(lambda builder: MultiHeadAttention(config, cross=False, builder=builder))
    return SequenceLayer(module, lambda attention, x: attention(x, x, mask=mask)[0])


def recurrent_layer(width: int, cell: CellKind) -> SequenceLayer:
    """Return a layer of recurrent cells that read forward."""
    config = RecurrentConfig(cell=cell, width=width)
    module = FunctionalModule(lambda builder: RecurrentLayer(config, width, builder=builder))
    return SequenceLayer(module, lambda layer, x: layer(x)[0])


def convolution_layer(width: int, size: int, *, dilation: int = 1) -> SequenceLayer:
    """Return a causal convolution: an output reads its own position and those before."""
    window = ConvolutionWindow(size, dilation=dilation, padding=Padding.CAUSAL)
    module = FunctionalModule(
        lambda builder: Convolution1D(width, ("features", width), window, bias=False, builder=builder)
    )
    return SequenceLayer(module, lambda convolution, x: convolution(x))


def layers_to_connect(layers: Iterable[SequenceLayer], length: int, width: int) -> int:
    """Return after how many layers of random parameters the last output has a derivative to the first input."""
    random = np.random.default_rng(0)

    def draw(shape: jax.ShapeDtypeStruct) -> np.ndarray:
        return random.normal(scale=width**-0.5, size=shape.shape).astype(shape.dtype)

    x_1xTxE = jnp.asarray(random.standard_normal((1, length, width)), jnp.float32)
    tangent_1xTxE = jnp.zeros_like(x_1xTxE).at[:, 0].set(1.0)
    for number, layer in enumerate(layers, start=1):
        params = jax.tree.map(draw, layer.module.shapes())
        x_1xTxE, tangent_1xTxE = _apply_with_tangent(layer, params, x_1xTxE, tangent_1xTxE)
        # Derivatives of random linear layers grow or shrink with depth; only whether they are zero counts.
        scale = float(jnp.abs(tangent_1xTxE).max())
        x_1xTxE, tangent_1xTxE = x_1xTxE / jnp.std(x_1xTxE), tangent_1xTxE / scale
        if np.any(np.asarray(tangent_1xTxE)[0, -1] != 0):
            return number
    raise ValueError(f"length={length}: no stack of the given layers connects the first input with the last output")


@functools.partial(jax.jit, static_argnums=0)
def _apply_with_tangent(layer: SequenceLayer, params: Any, x: jax.Array, tangent: jax.Array) -> tuple[Any, Any]:
    return jax.jvp(functools.partial(layer.apply, params), (x,), (tangent,))


def loop_lengths(jaxpr: Any) -> list[int]:
    """Return the lengths of all scans of a jaxpr, outer and inner."""
    lengths = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            lengths.append(equation.params["length"])
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                lengths += loop_lengths(inner)
    return lengths
