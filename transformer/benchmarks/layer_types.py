"""Recurrent, convolutional and self-attention layers: complexity and path length (Vaswani et al. 2017, table 1)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.attention_spec import Backend
from transformer.attention.masks import Mask
from transformer.costs.flops import count_matmul_flops
from transformer.layers.convolution import Convolution1D, ConvolutionWindow, Padding
from transformer.layers.functional_module import FunctionalModule, Params
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.recurrent import CellKind, RecurrentConfig, RecurrentLayer
from transformer.layers.transformer_config import TransformerConfig

# The positions that an output of the convolution reads.
KERNEL_WIDTH = 3

LayerFunction = Callable[[Params, Float[Array, "B T F"]], Float[Array, "B T F"]]


class LayerType(NamedTuple):
    """A type of layer over n positions of d features.

    Attributes:
        make_layer: Maps d to the module of the parameters and the forward function.
        count_sequential_steps: Maps n to the number of sequential operations.
        max_path_length: Maps n to the number of layers, or steps of a recurrence, from the first input to the last
            output.
    """

    make_layer: Callable[[int], tuple[FunctionalModule, LayerFunction]]
    count_sequential_steps: Callable[[int], int]
    max_path_length: Callable[[int], int]

    def count_flops(self, n: int, d: int) -> int:
        """Return the FLOPs of a forward pass over one sequence."""
        functional, run = self.make_layer(d)
        return count_matmul_flops(
            jax.make_jaxpr(run)(functional.shapes(), jax.ShapeDtypeStruct((1, n, d), jnp.float32)).jaxpr
        )


def _recurrent(cell: CellKind) -> LayerType:
    def layer(d: int) -> tuple[FunctionalModule, LayerFunction]:
        module = FunctionalModule(lambda builder: RecurrentLayer(RecurrentConfig(cell, d), d, builder=builder))
        return module, lambda params, x: module.bind(params)(x)[0]

    return LayerType(layer, count_sequential_steps=lambda n: n, max_path_length=lambda n: n)


def _convolution(d: int) -> tuple[FunctionalModule, LayerFunction]:
    window = ConvolutionWindow(KERNEL_WIDTH, padding=Padding.CAUSAL)
    module = FunctionalModule(lambda builder: Convolution1D(d, ("embed", d), window, builder=builder))
    return module, lambda params, x: module.bind(params)(x)


def _attention(d: int) -> tuple[FunctionalModule, LayerFunction]:
    # The dense map, whose memory the table is about; blockwise needs less (docs/guides/attention.md).
    config = TransformerConfig(width=d, heads=1, feed_forward=1, backend=Backend.EINSUM)
    module = FunctionalModule(lambda builder: MultiHeadAttention(config, cross=False, builder=builder))
    return module, lambda params, x: module.bind(params)(x, x, mask=Mask(causal=True))[0]


LAYER_TYPES = {
    "vanilla": _recurrent(CellKind.VANILLA),
    "gru": _recurrent(CellKind.GRU_RESET_AFTER),
    "lstm": _recurrent(CellKind.LSTM),
    "convolution": LayerType(
        _convolution,
        count_sequential_steps=lambda n: 1,
        max_path_length=lambda n: math.ceil((n - 1) / (KERNEL_WIDTH - 1)),
    ),
    "attention": LayerType(_attention, count_sequential_steps=lambda n: 1, max_path_length=lambda n: 1),
}
