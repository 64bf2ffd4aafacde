"""Two-stream self-attention: the content stream sees a position's token, the query stream not (Yang et al. 2019)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.capture import Capture, CapturedAttention, add_importance
from transformer.attention.component import AttentionSizes, normal, zeros
from transformer.attention.importance import ImportanceGates
from transformer.attention.masks import Mask
from transformer.attention.positions import PositionScheme
from transformer.attention.pytree_dataclass import array_field, pytree_dataclass
from transformer.layers.attention_parameters import TrainedPositions
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.lora import add_lora
from transformer.layers.residual import BlockInput, DropRates
from transformer.layers.segment_memory import concatenate_memory, next_memory
from transformer.layers.transformer_block import (
    BLOCK_AXES,
    Block,
    BlockCapture,
    BlockGates,
    BlockKeys,
    GatesOfSublayers,
    PerLayerInputs,
    add_window,
    block_input,
)
from transformer.layers.transformer_config import TransformerConfig
from transformer.logical_axes import with_logical_constraint

# The names of the streams.
CONTENT_STREAM, QUERY_STREAM = "content", "query"
# The order of keys that nobody sees, and of queries that see nothing.
NEVER, NOTHING = jnp.iinfo(jnp.int32).max, -1


@pytree_dataclass
class SegmentDifferences(PositionScheme):
    """Whether query and key are of different kinds, such as sentences; passed to attention as its `table`.

    Attributes:
        differ_BxQxK: True where they are.
    """

    differ_BxQxK: Bool[Array, "B Q K"] = array_field("batch", "queries", "keys")


class _TrainedPositionsAndSegments(TrainedPositions):
    """A layer's relative positions, with trained encodings of kinds."""

    def __init__(self, scheme: type[PositionScheme], sizes: AttentionSizes, *, builder: ParameterBuilder):
        super().__init__(scheme, sizes, builder=builder)
        shape, axes = (sizes.heads, sizes.head_dim), ("heads", "head_dim")
        self.kind = builder.parameter(normal(sizes.width**-0.5), (2, *shape), ("positions", *axes))
        self.kind_bias = builder.parameter(zeros, shape, axes)

    def __call__(self, shared: PositionScheme | None, dtype: jnp.dtype) -> PositionScheme | None:
        assert isinstance(shared, SegmentDifferences)
        learned: Any = super().__call__(None, dtype)
        return dataclasses.replace(
            learned,
            segment_2xHxD=self.kind[...].astype(dtype),
            segment_bias_HxD=self.kind_bias[...].astype(dtype),
            differ_BxQxK=shared.differ_BxQxK,
        )


def make_two_stream_block(
    config: TransformerConfig, relative_segments: bool, alpha: float, builder: ParameterBuilder
) -> Block:
    """Build a block.

    Args:
        config: The configuration of the Transformer.
        relative_segments: Whether its attention has relative segment encodings.
        alpha: DeepNorm's factor of the residual stream.
        builder: Makes the parameters.

    Returns:
        The block, with LoRA if configured.
    """
    block = Block(config, cross=False, experts=False, alpha=alpha, builder=builder)
    if relative_segments:
        block.attention.relative = _TrainedPositionsAndSegments(
            config.positions.scheme, config.attention_sizes(), builder=builder
        )
    return add_lora(block, config.lora, builder)


class StreamStates(NamedTuple):
    """The two streams of a segment.

    Attributes:
        content: The content stream, at every position.
        query: The query stream, at the predicted positions only; None if there are none.
    """

    content: Float[Array, "B T E"]
    query: Float[Array, "B P E"] | None


class StreamMasks(NamedTuple):
    """The mask of each stream.

    Attributes:
        content: The content stream's mask.
        query: The query stream's mask.
    """

    content: Mask
    query: Mask


class StreamCaptures(NamedTuple):
    """Which maps of each stream to capture."""

    content: Capture | None
    query: Capture | None


class StreamGates(NamedTuple):
    """The gates of each stream, by which the importance of heads and branches is measured; None for none."""

    content: ImportanceGates | None
    query: ImportanceGates | None


class StreamMaps(NamedTuple):
    """What was captured of each stream."""

    content: CapturedAttention | None
    query: CapturedAttention | None


def two_stream_masks(
    order_BxT: Int[Array, "B T"],
    real_BxT: Bool[Array, "B T"],
    predicted_BxT: Bool[Array, "B T"],
    filled_BxM: Bool[Array, "B M"],
) -> StreamMasks:
    """Build the masks of both streams from a factorization order.

    Content sees positions at or before its own in the order, queries only those before. A memory comes before the whole
    segment. Positions of the same order see each other, but not queries of that order. Nobody sees padding
    or a memory's empty positions; queries that are not predicted see nothing.

    Args:
        order_BxT: The order of each position, from 0.
        real_BxT: False at padding.
        predicted_BxT: True at predicted positions.
        filled_BxM: Which positions of the memory are filled; M = 0 without a memory.

    Returns:
        The masks, with the memory's keys first.
    """
    memory_order_BxM = jnp.where(filled_BxM, -1, NEVER)
    key_order_BxK = jnp.concatenate([memory_order_BxM, jnp.where(real_BxT, order_BxT, NEVER)], axis=1).astype(jnp.int32)
    slots = filled_BxM.shape[1]
    offset = jnp.full(1, slots, jnp.int32) if slots else None
    content_BxT = jnp.where(real_BxT, order_BxT + 1, NOTHING).astype(jnp.int32)
    query_BxT = jnp.where(real_BxT & predicted_BxT, order_BxT, NOTHING).astype(jnp.int32)
    return StreamMasks(
        *(Mask(order=(query_order, key_order_BxK), query_offset=offset) for query_order in (content_BxT, query_BxT))
    )


def apply_two_stream_block(
    block: Block,
    streams: StreamStates,
    layer: PerLayerInputs,
    *,
    memory_length: int,
    masks: StreamMasks,
    predicted_BxP: Int[Array, "B P"],
    relative_positions: PositionScheme | None,
    capture: StreamCaptures,
) -> tuple[StreamStates, tuple[StreamMaps, Float[Array, "B M E"]]]:
    """Run one layer of both streams (Yang et al. 2019, section 2.3).

    g_z = Attention(Q = g_z, KV = h_<z) and h_z = Attention(Q = h_z, KV = h_<=z), with the same parameters.

    Args:
        block: The layer's block.
        streams: The streams before.
        layer: The layer's window, dropout, key, memory, and gates as `StreamGates`.
        memory_length: M, the number of positions to store for the next segment.
        masks: The mask of each stream, before the layer's window.
        predicted_BxP: The predicted positions.
        relative_positions: The relative positions' kinds, if any.
        capture: Which maps of each stream to capture.

    Returns:
        The streams after, what was captured of each, and the layer's memory for the next segment.
    """
    content_key, query_key = (None, None) if layer.key is None else jax.random.split(layer.key)

    with jax.named_scope(CONTENT_STREAM):
        keys, x_BxTxE = block.split_key(content_key), block_input(streams.content)
        gates = block.split_gates(BlockGates(layer.gates.content), BlockCapture(capture.content))
        read_BxTxE = block.attention_residual.read(x_BxTxE)
        attended_BxKxE = concatenate_memory(layer.segment_memory, read_BxTxE)
        projected = block.attention.keys_and_values(attended_BxKxE)
        y_BxTxE, content_maps = block.attention.read(
            read_BxTxE,
            *projected,
            mask=add_window(masks.content, layer.kind.window),
            table=relative_positions,
            rotary=layer.kind.rotary,
            key=keys.attention.inside,
            capture=capture.content,
            gates=gates.attention.inside,
        )
        content_maps = add_importance(content_maps, layer.gates.content, capture.content, len(x_BxTxE))
        content = _finish_block(block, x_BxTxE, read_BxTxE, y_BxTxE, layer.drop_rates, keys, gates)
        memory_BxMxE = next_memory(attended_BxKxE, memory_length)
    if streams.query is None:
        return StreamStates(content, None), (StreamMaps(content_maps, None), memory_BxMxE)

    with jax.named_scope(QUERY_STREAM):
        keys, x_BxPxE = block.split_key(query_key), block_input(streams.query)
        gates = block.split_gates(BlockGates(layer.gates.query), BlockCapture(capture.query))
        read_BxPxE = block.attention_residual.read(x_BxPxE)
        # Queries stand at their places, where distances to the keys are the same in every row.
        empty = jnp.zeros(content.shape[1:], read_BxPxE.dtype)
        placed_BxTxE = jax.vmap(lambda x, at: empty.at[at].set(x))(read_BxPxE, predicted_BxP)
        y_BxTxE, query_maps = block.attention.read(
            placed_BxTxE,
            *projected,
            mask=add_window(masks.query, layer.kind.window),
            table=relative_positions,
            rotary=layer.kind.rotary,
            key=keys.attention.inside,
            capture=capture.query,
            gates=gates.attention.inside,
        )
        query_maps = add_importance(query_maps, layer.gates.query, capture.query, len(x_BxPxE))
        y_BxPxE = jnp.take_along_axis(y_BxTxE, predicted_BxP[..., None], axis=1)
        query = _finish_block(block, x_BxPxE, read_BxPxE, y_BxPxE, layer.drop_rates, keys, gates)
    return StreamStates(content, query), (StreamMaps(content_maps, query_maps), memory_BxMxE)


def _finish_block(
    block: Block,
    x: Float[Array, "B N E"],
    read: Float[Array, "B N E"],
    y: Float[Array, "B N E"],
    rates: DropRates,
    keys: BlockKeys,
    gates: GatesOfSublayers,
) -> Float[Array, "B N E"]:
    """Write the output y of attention into the residual stream x, and apply the feed-forward network."""
    first = BlockInput(x, read)
    x = block.attention_residual.write(x, y, rates, keys.attention.output, gates.attention.output)
    y, _, _ = block.feed_forward_or_experts(block.feed_forward_residual.read(x, first), gates=gates.feed_forward.inside)
    x = block.feed_forward_residual.write(x, y, rates, keys.feed_forward.output, gates.feed_forward.output)
    return with_logical_constraint(x, *BLOCK_AXES)
