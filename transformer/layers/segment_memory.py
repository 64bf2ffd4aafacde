"""Segment-level recurrence: attention also reads a layer's inputs of earlier segments (Dai et al. 2019).

A long text is read in segments. The states that each layer's attention read at the last M positions are stored, and
the next segment's queries attend to them as well, without gradient (section 3.2).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.capture import add_importance
from transformer.attention.masks import Mask
from transformer.attention.positions import PositionScheme
from transformer.attention.sites import Axis
from transformer.layers.residual import BlockInput
from transformer.layers.transformer_block import (
    BLOCK_AXES,
    Block,
    BlockAux,
    BlockCapture,
    PerLayerInputs,
    add_window,
    block_input,
    merge_periods_into_layers,
)
from transformer.logical_axes import with_logical_constraint

TOKENS = Axis("tokens")
# The keys of a model that has a memory: its positions first, then those of the segment.
MEMORY_AND_TOKENS = Axis("memory and tokens")


def memory_key_axis(memory: int) -> Axis:
    """The axis of the keys of a segment's queries, with a memory of this many positions."""
    return MEMORY_AND_TOKENS if memory else TOKENS


def concatenate_memory(
    memory_BxMxE: Float[Array, "B M E"] | None, x_BxTxE: Float[Array, "B T E"]
) -> Float[Array, "B _ E"]:
    """Concatenate memory and segment: [SG(memory) ; x], SG being the stopped gradient (Dai et al. 2019, section 3.2).

    Args:
        memory_BxMxE: The stored states of earlier segments; None for none.
        x_BxTxE: The segment.

    Returns:
        The memory followed by the segment.
    """
    if memory_BxMxE is None:
        return x_BxTxE
    return jnp.concatenate([jax.lax.stop_gradient(memory_BxMxE).astype(x_BxTxE.dtype), x_BxTxE], axis=1)


def next_memory(joined_BxKxE: Float[Array, "B K E"], memory: int) -> Float[Array, "B M E"]:
    """Select the states to store for the next segment.

    Args:
        joined_BxKxE: What attention read.
        memory: M, the number of positions to store.

    Returns:
        The last M positions, without gradient; zeros in front if there are fewer.
    """
    last_states = jax.lax.stop_gradient(joined_BxKxE[:, max(joined_BxKxE.shape[1] - memory, 0) :])
    return jnp.pad(last_states, ((0, 0), (memory - last_states.shape[1], 0), (0, 0)))


def valid_keys(memory: int, past_B: Int[Array, " B"], length: int) -> Bool[Array, "B K"]:
    """Which keys are real.

    Args:
        memory: M, the positions of the memory.
        past_B: How many positions of the same text came before the segment.
        length: Positions of the segment.

    Returns:
        True for the last `past_B` positions of the memory and for the whole segment.
    """
    return jnp.arange(memory + length)[None] >= memory - past_B[:, None]


def mask_after_memory(mask: Mask, memory: int, past_B: Int[Array, " B"], length: int) -> Mask:
    """The mask of a segment whose keys follow those of a memory.

    Args:
        mask: The mask of the segment alone.
        memory: M, the positions of the memory.
        past_B: How many positions of the same text came before the segment.
        length: Positions of the segment.

    Returns:
        The mask of its queries over memory and segment.
    """
    lengths_B = None if mask.key_lengths is None else mask.key_lengths + memory
    return dataclasses.replace(
        mask,
        query_offset=jnp.full(1, memory, jnp.int32),
        key_lengths=lengths_B,
        allowed=valid_keys(memory, past_B, length)[:, None, None],
    )


def apply_block_with_memory(
    block: Block,
    x_BxTxE: Float[Array, "B T E"],
    layer: PerLayerInputs,
    *,
    memory_length: int,
    mask: Mask,
    relative_positions: PositionScheme | None = None,
    capture: BlockCapture,
) -> tuple[Float[Array, "B T E"], tuple[BlockAux, Float[Array, "B M E"]]]:
    """Run one layer over a segment with its memory: `Block.__call__` with more keys.

    Args:
        block: The layer's block.
        x_BxTxE: The segment.
        layer: The layer's window, dropout, key, memory and gates.
        memory_length: M, the number of positions to store for the next segment.
        mask: Which keys, those of the memory first, each query may see, before the layer's window.
        relative_positions: The position scheme's parameters that layers share, if any.
        capture: Which maps to capture.

    Returns:
        The layer's output, what its sub-layers captured, and its memory for the next segment.
    """
    keys, rates, gates = block.split_key(layer.key), layer.drop_rates, block.split_gates(layer.gates, capture)
    x = block_input(x_BxTxE)

    read = block.attention_residual.read(x)
    first = BlockInput(x, read)
    attended_BxKxE = concatenate_memory(layer.segment_memory, read)
    y, attention = block.attention(
        read,
        attended_BxKxE,
        mask=add_window(mask, layer.kind.window),
        table=relative_positions,
        rotary=layer.kind.rotary,
        key=keys.attention.inside,
        capture=capture.attention,
        gates=gates.attention.inside,
    )
    attention = add_importance(attention, layer.gates.attention, capture.attention, len(x))
    x = block.attention_residual.write(x, y, rates, keys.attention.output, gates.attention.output)

    y, expert_gates, balance = block.feed_forward_or_experts(
        block.feed_forward_residual.read(x, first),
        mask.query_lengths,
        keys.feed_forward.inside,
        capture.expert_gates,
        gates.feed_forward.inside,
    )
    x = block.feed_forward_residual.write(x, y, rates, keys.feed_forward.output, gates.feed_forward.output)
    aux = BlockAux(attention, None, expert_gates, balance)
    return with_logical_constraint(x, *BLOCK_AXES), (aux, next_memory(attended_BxKxE, memory_length))


def split_memory_by_layer(memory_BxLxMxE: Any | None, period: int) -> tuple[Any, ...] | None:
    """Reshape a memory for `scan_blocks`.

    Args:
        memory_BxLxMxE: The memory of each example; None returns None.
        period: Number of layers in a period.

    Returns:
        An array [periods, B, M, E] for each layer of a period.
    """
    if memory_BxLxMxE is None:
        return None
    memory_LxBxMxE = jnp.moveaxis(memory_BxLxMxE, 1, 0)
    return tuple(memory_LxBxMxE[number::period] for number in range(period))


def stack_memory_of_layers(memories: tuple[Float[Array, "P B M E"], ...]) -> Float[Array, "B L M E"]:
    """Reshape what the layers of a period stored to the memory of each example."""
    return jnp.moveaxis(merge_periods_into_layers(*memories), 0, 1)
