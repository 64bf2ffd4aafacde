"""Softmax attention on queries and keys by the chosen backend: blockwise, or a kernel that JAX ships."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.attention.attention_spec import Backend
from transformer.attention.blockwise import (
    BLOCK,
    LogitScaling,
    LogitTerms,
    attend_blockwise,
    log_sum_exp_blockwise,
    output_blockwise,
)
from transformer.attention.component import Keys, Queries, Values
from transformer.attention.cudnn_packed_rows import attend_packed, pad_to_even_length
from transformer.attention.indexed_function import index_function
from transformer.attention.logit_modification import Softcap
from transformer.attention.masks import Mask, dense_mask, query_positions, visible_keys

TPU_LANES = 128
# Beside it no logit counts, and bfloat16 holds it.
_HIDDEN_LOGIT = -1e9


def attend_with_kernel(
    q: Array,
    k: Array,
    v: Array,
    terms: LogitTerms,
    scaling: LogitScaling,
    backend: Backend,
    *,
    interpret: bool,
    keep: bool = True,
    kernel: Any = None,
) -> tuple[Array, Array | None]:
    """Compute softmax((scale q . k + terms) / temperature) v with a backend other than einsum.

    Args:
        q: Queries, [B, Q, H, D].
        k: Keys, [B, K, G, D].
        v: Values, [B, K, G, Dv].
        terms: Mask, bias and position bias.
        scaling: Scale and temperature.
        backend: The backend.
        interpret: Whether to interpret the splash kernel, without a TPU.
        keep: Whether to return the log-sum-exp where the backend computes it with a gradient (blockwise).
        kernel: This device's part of `splash_kernel`, where positions are sharded.

    Returns:
        The output [B, Q, H, Dv], and the log-sum-exp [B, H, Q] or None.
    """
    match backend:
        case Backend.BLOCKWISE:
            if not keep:
                return output_blockwise(q, k, v, terms, scaling), None
            return attend_blockwise(q, k, v, terms, scaling)
        case Backend.SPLASH:
            factor, softcap = scaling.scale / scaling.temperature, find_softcap(terms, scaling)
            output = splash_attention(q, k, v, terms.mask, factor, softcap=softcap, interpret=interpret, kernel=kernel)
            return output, None
        case _:
            return dot_product_attention(q, k, v, terms, scaling, backend), None


def log_sum_exp_with_kernel(
    q: Array, k: Array, v: Array, terms: LogitTerms, scaling: LogitScaling, backend: Backend, *, interpret: bool
) -> Array:
    """Compute the log-sum-exp of each row, by another pass of splash or blockwise; only capture should pay for it."""
    if backend is Backend.SPLASH:
        factor, softcap = scaling.scale / scaling.temperature, find_softcap(terms, scaling)
        return splash_log_sum(q, k, v, terms.mask, factor, softcap=softcap, interpret=interpret)
    return log_sum_exp_blockwise(q, k, terms, scaling)


def find_softcap(terms: LogitTerms, scaling: LogitScaling) -> float | None:
    """The bound of logits that are divided by the temperature before it; None for none."""
    modification = None if terms.modification is None else terms.modification.function
    return modification.cap / scaling.temperature if isinstance(modification, Softcap) else None


def dot_product_attention(
    q_BxQxHxD: Queries, k_BxKxGxD: Keys, v_BxKxGxD: Values, terms: LogitTerms, scaling: LogitScaling, backend: Backend
) -> Float[Array, "B Q H D"]:
    """Run `jax.nn.dot_product_attention` by XLA or cuDNN, with exact zeros where a query sees no key.

    Causality, window and lengths are passed natively. Where XLA does not support a field of the mask (offsets, segments
    and others), all of them become a dense mask; ALiBi and T5 become a dense bias. The backend's log-sum-exp has the
    inputs' type and is not used.

    Args:
        q_BxQxHxD: Queries.
        k_BxKxGxD: Keys.
        v_BxKxGxD: Values.
        terms: Mask, bias and position bias.
        scaling: Scale and temperature.
        backend: XLA or CUDNN.

    Returns:
        The output.
    """
    queries, keys = q_BxQxHxD.shape[1], k_BxKxGxD.shape[1]
    mask = terms.mask
    if backend is Backend.CUDNN and mask.segments is not None:
        return attend_packed(q_BxQxHxD, k_BxKxGxD, v_BxKxGxD, mask, scaling)
    bias = terms.bias
    if terms.position is not None:
        key_1x1xK = jnp.arange(keys, dtype=jnp.int32)[None, None]
        positions = query_positions(mask, queries), key_1x1xK
        from_positions = terms.position.position_bias(*positions, q_BxQxHxD.shape[2], jnp.dtype(jnp.float32))
        assert from_positions is not None
        bias = from_positions if bias is None else bias + from_positions
    effective_mask = mask
    if bias is not None:
        # A row of minus infinities has no softmax: a finite number hides as well, and a row of nothing else is zeroed.
        hidden = bias == -jnp.inf
        bias = jnp.where(hidden, _HIDDEN_LOGIT, bias / scaling.temperature)
        effective_mask = dataclasses.replace(mask, allowed=~hidden if mask.allowed is None else mask.allowed & ~hidden)
    # Causal hides what lies behind a query anyway, and beside lengths cuDNN refuses to hear of it.
    window = (mask.window[0], 0) if mask.window is not None and mask.causal else mask.window
    native = mask.present_fields() <= {"causal", "window", "query_lengths", "key_lengths"}
    q, k, v = q_BxQxHxD, k_BxKxGxD, v_BxKxGxD
    query_lengths, key_lengths = mask.query_lengths, mask.key_lengths
    if backend is Backend.CUDNN:
        q, k, v = (pad_to_even_length(x) for x in (q, k, v))
        if window is not None and queries > keys + window[0]:
            # Queries whose window lies beyond all keys are padding to cuDNN: otherwise such a call failed on an H100.
            reach = jnp.full(q.shape[:1], keys + window[0])
            query_lengths = reach if query_lengths is None else jnp.minimum(query_lengths, reach)
        # Causality alone hides an added key from every real query where no query is at or beyond its position.
        if keys % 2 and key_lengths is None and not (mask.causal and queries <= keys):
            key_lengths = jnp.full(k.shape[:1], keys)
    output = jax.nn.dot_product_attention(
        q,
        k,
        v,
        bias,
        None if native else dense_mask(mask, queries, keys),
        scale=scaling.scale / scaling.temperature,
        is_causal=native and mask.causal,
        query_seq_lengths=_kernel_lengths(query_lengths, backend) if native else None,
        key_value_seq_lengths=_kernel_lengths(key_lengths, backend) if native else None,
        local_window_size=window if native else None,
        implementation="cudnn" if backend is Backend.CUDNN else "xla",
    )
    return _zero_rows_without_keys(output[:, :queries], effective_mask, keys)


def splash_attention(
    q_BxQxHxD: Queries,
    k_BxKxGxD: Keys,
    v_BxKxGxDv: Values,
    mask: Mask,
    scale: float,
    *,
    softcap: float | None = None,
    interpret: bool,
    kernel: Any = None,
) -> Float[Array, "B Q H Dv"]:
    """Run JAX's splash attention for TPUs, which skips the blocks that causality and window hide.

    Lengths and segments are passed as segment numbers. Depths are padded to 128 lanes.

    Args:
        q_BxQxHxD: Queries.
        k_BxKxGxD: Keys.
        v_BxKxGxDv: Values.
        mask: Causality, window, lengths and segments.
        scale: Factor on the products.
        softcap: The bound of `Softcap`; None for none.
        interpret: Whether to run the kernel without a TPU, for tests.
        kernel: This device's part of `splash_kernel`, where positions are sharded. It then has its own causality and
            window, and the mask's offset gives the queries' positions.

    Returns:
        The output in the values' type.
    """
    if kernel is None:
        lengths = q_BxQxHxD.shape[1], k_BxKxGxD.shape[1]
        kernel = splash_kernel(mask, *lengths, q_BxQxHxD.shape[2], softcap=softcap, interpret=interpret)
    output_BxHxQxD = _run_splash_kernel(kernel, q_BxQxHxD, k_BxKxGxD, v_BxKxGxDv, mask, scale)
    output = jnp.moveaxis(output_BxHxQxD, 1, 2)[..., : v_BxKxGxDv.shape[-1]].astype(v_BxKxGxDv.dtype)
    return _zero_rows_without_keys(output, mask, k_BxKxGxD.shape[1])


def splash_log_sum(
    q_BxQxHxD: Queries,
    k_BxKxGxD: Keys,
    v_BxKxGxDv: Values,
    mask: Mask,
    scale: float,
    *,
    softcap: float | None = None,
    interpret: bool,
) -> Float[Array, "B H Q"]:
    """Compute the log-sum-exp with the same kernel, in float32, without gradient (its derivative is not implemented).

    Where bfloat16 queries cannot hold the scale (if it is not a power of two), the kernel's logits are rounded, and
    weights recomputed from exact logits would not sum to one: then it is computed blockwise.

    Args:
        q_BxQxHxD: Queries.
        k_BxKxGxD: Keys.
        v_BxKxGxDv: Values.
        mask: Causality, window, lengths and segments.
        scale: Factor on the products.
        softcap: The bound of `Softcap`; None for none.
        interpret: Whether to run the kernel without a TPU, for tests.

    Returns:
        The log-sum-exp of each row; minus infinity where a query sees no key.
    """
    q, k, v = jax.lax.stop_gradient((q_BxQxHxD, k_BxKxGxD, v_BxKxGxDv))
    if q.dtype != jnp.float32 and math.frexp(scale)[0] != 0.5:
        modification = index_function(None if softcap is None else Softcap(softcap), q.shape[0], q.shape[2])
        return log_sum_exp_blockwise(q, k, LogitTerms(mask, modification=modification), LogitScaling(scale=scale))
    lengths = q_BxQxHxD.shape[1], k_BxKxGxD.shape[1]
    kernel = splash_kernel(mask, *lengths, q_BxQxHxD.shape[2], softcap=softcap, interpret=interpret, residuals=True)
    _, (log_sum_BxHxQ,) = _run_splash_kernel(kernel, q, k, v, mask, scale)
    sees_any_key = rows_with_visible_keys(mask, *lengths)
    return log_sum_BxHxQ if sees_any_key is None else jnp.where(sees_any_key, log_sum_BxHxQ, -jnp.inf)


def _run_splash_kernel(kernel: Any, q: Array, k: Array, v: Array, mask: Mask, scale: float) -> Any:
    """The kernel's output, heads in front and depths padded, and the log-sum-exp if the kernel keeps residuals."""
    segments = _splash_segment_ids(mask, q.shape, k.shape)
    return jax.vmap(kernel)(*_prepare_splash_inputs(q, k, v, scale), segments)


def rows_with_visible_keys(mask: Mask, queries: int, keys: int) -> Bool[Array, "#B #H Q"] | None:
    """Whether each query sees any key, computed in blocks of keys; None if every query certainly does."""
    size = min(BLOCK, keys)
    query_Q = jnp.arange(queries, dtype=jnp.int32)
    # Causal alone leaves every query its own and all earlier keys, of which the first is one.
    if mask.present_fields() <= {"causal"} or visible_keys(mask, query_Q, query_Q[None, None, :1]) is None:
        return None
    blocks = jnp.arange(-(-keys // size) * size, dtype=jnp.int32).reshape(-1, size)

    def any_visible(key_K: Array) -> Array:
        inside = jnp.minimum(key_K, keys - 1)
        visible = visible_keys(mask, query_Q, inside[None, None])
        assert visible is not None
        return jnp.any(visible, axis=-1)

    sees_any_key = jnp.any(jax.lax.map(any_visible, blocks), axis=0)
    return jnp.broadcast_to(sees_any_key, (*sees_any_key.shape[:2], queries))


def _zero_rows_without_keys(output_BxQxHxD: Array, mask: Mask, keys: int) -> Array:
    """Set the output to exactly zero, value and gradient, where a query sees no key; kernels average values there."""
    sees_any_key = rows_with_visible_keys(mask, output_BxQxHxD.shape[1], keys)
    return (
        output_BxQxHxD
        if sees_any_key is None
        else jnp.where(jnp.moveaxis(sees_any_key, 1, 2)[..., None], output_BxQxHxD, 0)
    )


def _kernel_lengths(lengths: Array | None, backend: Backend) -> Array | None:
    """Lengths as the kernel takes them: at least 1 for cuDNN, which divides by what it sees.

    The rows that then see a padded key are zeroed after the kernel.
    """
    if lengths is None:
        return None
    return (jnp.maximum(lengths, 1) if backend is Backend.CUDNN else lengths).astype(jnp.int32)


def _prepare_splash_inputs(q: Array, k: Array, v: Array, scale: float) -> tuple[Array, Array, Array]:
    """Heads in front, depths padded to the lanes, and q multiplied by the scale, which the kernel does not apply."""

    def heads_first(x: Array) -> Array:
        missing = -x.shape[-1] % TPU_LANES
        return jnp.moveaxis(jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))), 2, 1)

    scaled = (q.astype(jnp.float32) * scale).astype(q.dtype)
    return heads_first(scaled), heads_first(k), heads_first(v)


def _splash_segment_ids(mask: Mask, q_shape: tuple[int, ...], k_shape: tuple[int, ...]) -> Any:
    """Segment numbers for the kernel; padding gets a number that the other side does not have."""
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    batch, queries, keys = q_shape[0], q_shape[1], k_shape[1]
    query_segments, key_segments = jnp.zeros((batch, queries), jnp.int32), jnp.zeros((batch, keys), jnp.int32)
    if mask.segments is not None:
        query_segments, key_segments = (part.astype(jnp.int32) for part in mask.segments)
    smallest = jnp.minimum(jnp.min(query_segments), jnp.min(key_segments))
    if mask.query_lengths is not None:
        query_segments = jnp.where(
            jnp.arange(queries)[None] < mask.query_lengths[:, None], query_segments, smallest - 1
        )
    if mask.key_lengths is not None:
        key_segments = jnp.where(jnp.arange(keys)[None] < mask.key_lengths[:, None], key_segments, smallest - 2)
    return SegmentIds(query_segments, key_segments)


def splash_kernel(
    mask: Mask,
    queries: int,
    keys: int,
    heads: int,
    *,
    softcap: float | None = None,
    interpret: bool,
    residuals: bool = False,
    parts: int = 1,
) -> Any:
    """Build the kernel for the mask's static fields. Its block tables are made on the host and cached by JAX.

    Args:
        mask: Causality and window.
        queries: Number of queries.
        keys: Number of keys.
        heads: Number of query heads.
        softcap: The bound of `Softcap`; None for none.
        interpret: Whether to run the kernel without a TPU.
        residuals: Whether the kernel also returns the log-sum-exp.
        parts: Into how many parts queries are sharded; each device takes its own part of the kernel's arrays.

    Returns:
        The kernel, a pytree.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    one: Any
    if mask.window is not None:
        # One mask that the kernel computes by itself; of two, joined, it would have to load the blocks.
        before, after = mask.window
        one = splash.LocalMask((queries, keys), (before, 0 if mask.causal else after), 0)
    else:
        one = (splash.CausalMask if mask.causal else splash.FullMask)((queries, keys))
    block_q, block_k = _largest_block(queries // parts), _largest_block(keys)
    sizes: dict[str, Any] = dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), block_q)
    sizes |= dict.fromkeys(("block_kv", "block_kv_compute", "block_kv_dq"), block_k)
    sizes |= dict.fromkeys(("block_kv_dkv", "block_kv_dkv_compute"), block_k)
    return splash.make_splash_mha(
        splash.MultiHeadMask([one] * heads),
        block_sizes=splash.BlockSizes(**sizes),
        save_residuals=residuals,
        head_shards=1,
        q_seq_shards=parts,
        attn_logits_soft_cap=softcap,
        interpret=interpret,
    )


def _largest_block(length: int) -> int:
    """The largest multiple of 128 up to 512 that divides the length."""
    return max(size for size in (128, 256, 384, 512) if length % size == 0)
