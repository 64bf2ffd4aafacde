"""Two-stream self-attention: the content stream sees a position's token, the query stream not (Yang et al. 2019)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.attention.capture import Capture, CapturedAttention
from transformer.attention.component import AttentionSizes, normal, zeros
from transformer.attention.masks import Mask
from transformer.attention.positions import PositionScheme
from transformer.attention.pytree_dataclass import array_field, pytree_dataclass
from transformer.layers.attention_parameters import TrainedPositions
from transformer.layers.functional_module import ParameterBuilder
from transformer.layers.lora import add_lora
from transformer.layers.segment_memory import concatenate_memory
from transformer.layers.transformer_block import Block, PerLayerInputs
from transformer.layers.transformer_config import TransformerConfig

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
    """Which maps of each stream to capture, or those that were captured.

    Attributes:
        content: Of the content stream.
        query: Of the query stream.
    """

    content: Capture | None = None
    query: Capture | None = None


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
    of_memory = jnp.where(filled_BxM, -1, NEVER)
    of_keys = jnp.concatenate([of_memory, jnp.where(real_BxT, order_BxT, NEVER)], axis=1).astype(jnp.int32)
    slots = filled_BxM.shape[1]
    offset = jnp.full(1, slots, jnp.int32) if slots else None
    content_BxT = jnp.where(real_BxT, order_BxT + 1, NOTHING).astype(jnp.int32)
    query_BxT = jnp.where(real_BxT & predicted_BxT, order_BxT, NOTHING).astype(jnp.int32)
    return StreamMasks(
        *(Mask(order=(of_queries, of_keys), query_offset=offset) for of_queries in (content_BxT, query_BxT))
    )


def apply_two_stream_block(
    block: Block,
    streams: StreamStates,
    layer: PerLayerInputs,
    memory_BxMxE: Float[Array, "B M E"] | None,
    *,
    masks: StreamMasks,
    predicted_BxP: Int[Array, "B P"],
    relative_positions: PositionScheme | None,
    capture: StreamCaptures,
) -> tuple[StreamStates, StreamCaptures, Float[Array, "B K E"]]:
    """Run one layer of both streams (Yang et al. 2019, section 2.3).

    g_z = Attention(Q = g_z, KV = h_<z) and h_z = Attention(Q = h_z, KV = h_<=z), with the same parameters.

    Args:
        block: The layer's block.
        streams: The streams before.
        layer: The layer's window, dropout and key.
        memory_BxMxE: The stored states of earlier segments; None for none.
        masks: The mask of each stream.
        predicted_BxP: The predicted positions.
        relative_positions: The relative positions' kinds, if any.
        capture: Which maps of each stream to capture.

    Returns:
        The streams after, what was captured of each, and the states that attention read.
    """
    keys = None if layer.key is None else jax.random.split(layer.key)

    def attend(x: Array, key: Key[Array, ""] | None) -> tuple[Array, Any]:
        attended = concatenate_memory(memory_BxMxE, x)
        projected = block.attention.keys_and_values(attended)
        y, captured = block.attention.read(
            x, *projected, mask=masks.content, table=relative_positions, key=key, capture=capture.content
        )
        return y, (captured, projected, attended)

    of_content = layer._replace(key=None if keys is None else keys[0])
    content, aux = block.apply(streams.content, of_content, attend, None)
    captured, projected, attended_BxKxE = aux.attention
    if streams.query is None:
        return StreamStates(content, None), StreamCaptures(captured, None), attended_BxKxE
    length = streams.content.shape[1]

    def attend_from_query(x_BxPxE: Array, key: Key[Array, ""] | None) -> tuple[Array, CapturedAttention | None]:
        # Queries stand at their places, where distances to the keys are the same in every row.
        empty = jnp.zeros((length, x_BxPxE.shape[-1]), x_BxPxE.dtype)
        x_BxTxE = jax.vmap(lambda x, at: empty.at[at].set(x))(x_BxPxE, predicted_BxP)
        y_BxTxE, captured = block.attention.read(
            x_BxTxE, *projected, mask=masks.query, table=relative_positions, key=key, capture=capture.query
        )
        return jnp.take_along_axis(y_BxTxE, predicted_BxP[..., None], axis=1), captured

    of_query = layer._replace(key=None if keys is None else keys[1])
    query, aux = block.apply(streams.query, of_query, attend_from_query, None)
    return StreamStates(content, query), StreamCaptures(captured, aux.attention), attended_BxKxE
