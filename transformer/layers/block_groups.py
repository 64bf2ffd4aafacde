"""Blocks that are one entry of a stack together, and layers that run in line instead of in a loop."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array

from transformer.layers.block import Block, Layer
from transformer.layers.module import Builder, Module, Params, entry, layer_of, unstacked
from transformer.layers.residual import Drops
from transformer.layers.transformer_config import TransformerConfig


class Group(Module):
    """`count` blocks one after another, of which the last alone has experts, as one entry of a stack.

    `make(experts, builder)` builds a block.
    """

    def __init__(self, make: Callable[[bool, Builder], Block], count: int, builder: Builder):
        self.dense = builder.stack(functools.partial(make, False), count - 1)
        self.last, self.count = make(True, builder), count

    @property
    def blocks(self) -> tuple[Block, ...]:
        """They, in order."""
        dense = (layer_of(self.dense, params) for params in unstacked(self.dense, self.count - 1))
        return (*dense, self.last)


def step_layers(
    stacked: Module,
    config: TransformerConfig,
    params: tuple[Params, ...],
    function: Callable[[Any, Array, Layer, Any], tuple[Array, Any]],
    x: Array,
    inputs: Sequence[Any],
) -> tuple[Array, tuple[Any, ...]]:
    """Run the function of `run_layers` over layers in line, each with its own input.

    `params` are those of each entry of the stack.

    A loop over layers would copy each layer's parameters and caches out of their stacks, and back: more than a step
    of decoding reads.
    """
    outputs = []
    blocks = [block for of_entry in params for block in layer_of(stacked, of_entry).blocks]
    for number, (block, given) in enumerate(zip(blocks, inputs, strict=True)):
        layer = Layer(config.period[number % len(config.period)], Drops(config.dropout, 0.0), None)
        x, output = function(block, x, layer, given)
        outputs.append(output)
    return x, tuple(outputs)


def each_layer(outputs: tuple[Any, ...]) -> list[Any]:
    """Outputs of `run_layers`, one tree for each layer."""
    periods = len(jax.tree.leaves(outputs)[0])
    return [entry(output, number) for number in range(periods) for output in outputs]
