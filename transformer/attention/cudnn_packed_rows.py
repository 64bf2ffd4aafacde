"""cuDNN's attention within the segments of packed rows, which it takes as the start and length of each."""

import inspect
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.blockwise import LogitScaling, LogitTerms, output_blockwise
from transformer.attention.component import Keys, Queries, Values
from transformer.attention.masks import Mask, zero_hidden_keys, zero_padded_queries
from transformer.attention.rare_branch import rare_branch


class PackedSequences(NamedTuple):
    """The runs of positions of one segment in each row, at most N of them.

    Attributes:
        starts: The first position of each; after the last one -1, of which there is one more than of lengths.
        lengths: The number of positions of each; after the last one -1.
        describe_mask: Whether the mask's segments are these runs: none is missing, no segment has two of them, and
            queries and keys are divided alike.
    """

    starts: Int[Array, "B N+1"]
    lengths: Int[Array, "B N"]
    describe_mask: Bool[Array, ""]


def packed_sequences(mask: Mask, length: int, max_sequences: int) -> PackedSequences:
    """Find the sequences that are packed into each row.

    Args:
        mask: A mask with segments, and with lengths or without.
        length: Positions in a row.
        max_sequences: The most sequences of a row, N.

    Returns:
        The sequences.
    """
    assert mask.segments is not None
    query_segments, key_segments = mask.segments
    position_T = jnp.arange(length)
    is_real_query, is_real_key = (
        _is_real_position(lengths, query_segments.shape) for lengths in (mask.query_lengths, mask.key_lengths)
    )
    previous_segments = jnp.pad(query_segments, ((0, 0), (1, 0)))[:, :length]
    is_start = is_real_query & ((position_T == 0) | (query_segments != previous_segments))
    number = jnp.cumsum(is_start, axis=1) - 1
    member_BxTxN = is_real_query[..., None] & (number[..., None] == jnp.arange(max_sequences))
    first_BxTxN = member_BxTxN & is_start[..., None]
    exists = jnp.any(first_BxTxN, axis=1)
    starts = jnp.where(exists, jnp.sum(jnp.where(first_BxTxN, position_T[:, None], 0), axis=1), -1)
    lengths = jnp.where(exists, jnp.sum(member_BxTxN, axis=1), -1)
    # The segment of each, numbered apart from those of sequences that do not exist.
    segment = jnp.sum(jnp.where(first_BxTxN, query_segments[..., None], 0), axis=1)
    pair = exists[:, :, None] & exists[:, None] & ~jnp.eye(max_sequences, dtype=bool)
    describe_mask = (
        jnp.all(number < max_sequences)
        & ~jnp.any(pair & (segment[:, :, None] == segment[:, None]))
        & jnp.all(is_real_query == is_real_key)
        & jnp.all(~is_real_query | (query_segments == key_segments))
    )
    starts = jnp.pad(starts, ((0, 0), (0, 1)), constant_values=-1)
    return PackedSequences(starts.astype(jnp.int32), lengths.astype(jnp.int32), describe_mask)


def _is_real_position(lengths: Int[Array, " B"] | None, shape: tuple[int, ...]) -> Bool[Array, "B T"]:
    """Which positions of each row are no padding."""
    return jnp.broadcast_to(True if lengths is None else jnp.arange(shape[1])[None] < lengths[:, None], shape)


def attend_packed(
    q_BxTxHxD: Queries, k_BxTxGxD: Keys, v_BxTxGxD: Values, mask: Mask, scaling: LogitScaling
) -> Float[Array, "B T H D"]:
    """Compute attention within segments, where queries and keys are the same positions.

    The kernel is compiled for a number of sequences in a row, with which its time grows: one for each 64 positions. A
    batch with more of them in a row, or whose segments are not whole sequences, is computed in blocks.

    Args:
        q_BxTxHxD: Queries.
        k_BxTxGxD: Keys.
        v_BxTxGxD: Values.
        mask: Segments, causality, lengths and, with causality, a window.
        scaling: Scale and temperature.

    Returns:
        The output.

    Raises:
        ValueError: If queries and keys differ in number, the mask has a window without causality, JAX doesn't pass
            offsets to cuDNN, or the call is under `jax.vmap`.
    """
    if mask.window is not None and not mask.causal:
        raise ValueError("backend=cudnn does not take mask.window without mask.causal")
    length = q_BxTxHxD.shape[1]
    if length != k_BxTxGxD.shape[1]:
        raise ValueError(
            f"backend=cudnn takes mask.segments of as many keys as queries, not {length} and {k_BxTxGxD.shape[1]}"
        )
    sequences = packed_sequences(mask, length, max_sequences=max(length // 64, 2))
    # What the kernel leaves at padding, in values and gradients, is undefined.
    q, k, v = zero_padded_queries(mask, q_BxTxHxD), zero_hidden_keys(mask, k_BxTxGxD), zero_hidden_keys(mask, v_BxTxGxD)
    scale = scaling.scale / scaling.temperature
    output = jax.lax.cond(
        _refuse_vmap(sequences.describe_mask, jax.lax.stop_gradient(q_BxTxHxD)),
        lambda q, k, v: _attend_with_offsets(q, k, v, sequences, mask, scale),
        rare_branch(lambda q, k, v: output_blockwise(q, k, v, LogitTerms(mask), scaling)),
        q,
        k,
        v,
    )
    return zero_padded_queries(mask, output)


@jax.custom_batching.custom_vmap
def _refuse_vmap(describe_mask: Array, q: Array) -> Array:
    """Return `describe_mask`; under `jax.vmap` raise an error, because JAX's own rule for cuDNN ignores offsets."""
    return describe_mask


@_refuse_vmap.def_vmap
def _raise_under_vmap(size: int, are_batched: list[bool], describe_mask: Array, q: Array) -> tuple[Array, bool]:
    raise ValueError("backend=cudnn does not take mask.segments under jax.vmap; backend=blockwise does")


def _attend_with_offsets(q: Array, k: Array, v: Array, sequences: PackedSequences, mask: Mask, scale: float) -> Array:
    """Call the function below `jax.nn.dot_product_attention`, which itself has no offsets in jax 0.12.

    The position that makes an odd length even is in no sequence.
    """
    from jax._src.cudnn import fused_attention_stablehlo as fused

    if not {"q_offsets", "kv_offsets"} <= inspect.signature(fused.dot_product_attention).parameters.keys():
        raise ValueError(f"backend=cudnn: jax {jax.__version__} doesn't pass the offsets of mask.segments to cuDNN")
    output: Array = fused.dot_product_attention(
        pad_to_even_length(q),
        pad_to_even_length(k),
        pad_to_even_length(v),
        q_seqlen=sequences.lengths,
        kv_seqlen=sequences.lengths,
        # Starts alone: JAX moves those of all rows together, so that the end of a row would be a sequence of the next.
        q_offsets=sequences.starts,
        kv_offsets=sequences.starts,
        scale=scale,
        mask_type=fused.MaskType.PADDING_CAUSAL if mask.causal else fused.MaskType.PADDING,
        # JAX counts the query's own position.
        sliding_window_length=None if mask.window is None else mask.window[0] + 1,
    )
    return output[:, : q.shape[1]]


def pad_to_even_length(x_BxLxHxD: Array) -> Array:
    """Add a position of zeros to an odd length, for which JAX refuses the gradient of cuDNN's attention."""
    odd = x_BxLxHxD.shape[1] % 2
    return jnp.pad(x_BxLxHxD, ((0, 0), (0, odd), (0, 0), (0, 0))) if odd else x_BxLxHxD
