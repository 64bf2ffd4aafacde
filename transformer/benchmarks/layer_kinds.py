"""Recurrence, convolution and self-attention side by side: what a layer of each costs, and how far it carries.

Vaswani et al. 2017, table 1, with what stands in front of its orders of growth.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.masks import Mask
from transformer.attention.spec import Backend
from transformer.costs.flops import count_products
from transformer.layers.convolution import Convolution1D, Padding, Window
from transformer.layers.functional_module import Functional, Params
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.recurrent import Cell, RecurrentConfig, RecurrentLayer
from transformer.layers.transformer_config import TransformerConfig

# The positions that an output of the convolution reads.
WINDOW = 3

Run = Callable[[Params, Float[Array, "B T F"]], Float[Array, "B T F"]]


class LayerKind(NamedTuple):
    """One kind of layer over n positions of d features, and what is said of it.

    `layer(d)`: its parameters' module, and a pass over inputs.
    `waits(n)`: the steps of which each waits for the one before it. `path(n)`: how many layers, or in a recurrence
    steps, lie between the first input and the last output.
    """

    layer: Callable[[int], tuple[Functional, Run]]
    waits: Callable[[int], int]
    path: Callable[[int], int]

    def flops(self, n: int, d: int) -> int:
        """The FLOPs of a forward pass over one row."""
        functional, run = self.layer(d)
        return count_products(
            jax.make_jaxpr(run)(functional.shapes(), jax.ShapeDtypeStruct((1, n, d), jnp.float32)).jaxpr
        )


def _recurrent(cell: Cell) -> LayerKind:
    def layer(d: int) -> tuple[Functional, Run]:
        made = Functional(lambda builder: RecurrentLayer(RecurrentConfig(cell, d), d, builder=builder))
        return made, lambda params, x: made.bind(params)(x)[0]

    return LayerKind(layer, waits=lambda n: n, path=lambda n: n)


def _convolution(d: int) -> tuple[Functional, Run]:
    window = Window(WINDOW, padding=Padding.CAUSAL)
    made = Functional(lambda builder: Convolution1D(d, ("embed", d), window, builder=builder))
    return made, lambda params, x: made.bind(params)(x)


def _attention(d: int) -> tuple[Functional, Run]:
    # The dense map, whose memory the table is about; blockwise needs less (docs/guides/attention.md).
    config = TransformerConfig(width=d, heads=1, feed_forward=1, backend=Backend.EINSUM)
    made = Functional(lambda builder: MultiHeadAttention(config, cross=False, builder=builder))
    return made, lambda params, x: made.bind(params)(x, x, mask=Mask(causal=True))[0]


KINDS = {
    "vanilla": _recurrent(Cell.VANILLA),
    "gru": _recurrent(Cell.GRU_RESET_AFTER),
    "lstm": _recurrent(Cell.LSTM),
    "convolution": LayerKind(_convolution, waits=lambda n: 1, path=lambda n: math.ceil((n - 1) / (WINDOW - 1))),
    "attention": LayerKind(_attention, waits=lambda n: 1, path=lambda n: 1),
}
