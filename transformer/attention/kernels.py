"""Softmax of products of queries and keys by the program that was chosen: blocks, or a kernel that JAX ships."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.attention.blockwise import (
    BLOCK,
    LogitScaling,
    LogitTerms,
    attend_blockwise,
    log_sum_exp_blockwise,
    output_blockwise,
)
from transformer.attention.component import Keys, Queries, Values
from transformer.attention.masks import Mask, dense_mask, query_positions, visible_keys
from transformer.attention.spec import Backend

TPU_LANES = 128
# Beside it no logit counts, and bfloat16 holds it.
_HIDING = -1e9


def attend_with_kernel(
    q: Array,
    k: Array,
    v: Array,
    terms: LogitTerms,
    form: LogitScaling,
    backend: Backend,
    *,
    interpret: bool,
    keep: bool = True,
    kernel: Any = None,
) -> tuple[Array, Array | None]:
    """softmax((scale q . k + terms) / temperature) v, and its log-sum-exp where the program has it and is to `keep` it.

    `kernel`: the part of splash's that a device runs, where positions are divided.
    """
    match backend:
        case Backend.BLOCKWISE:
            if not keep:
                return output_blockwise(q, k, v, terms, form), None
            return attend_blockwise(q, k, v, terms, form)
        case Backend.SPLASH:
            factor = form.scale / form.temperature
            return splash_attention(q, k, v, terms.mask, factor, interpret=interpret, kernel=kernel), None
        case _:
            return dot_product_attention(q, k, v, terms, form, backend), None


def log_sum_exp_with_kernel(
    q: Array, k: Array, v: Array, terms: LogitTerms, form: LogitScaling, backend: Backend, *, interpret: bool
) -> Array:
    """The log-sum-exp of each row, by one more pass of the kernel, or in blocks: what only capturing should pay."""
    if backend is Backend.SPLASH:
        return splash_log_sum(q, k, v, terms.mask, form.scale / form.temperature, interpret=interpret)
    return log_sum_exp_blockwise(q, k, terms, form)


def dot_product_attention(
    q_BxQxHxD: Queries, k_BxKxGxD: Keys, v_BxKxGxD: Values, terms: LogitTerms, form: LogitScaling, backend: Backend
) -> Float[Array, "B Q H D"]:
    """`jax.nn.dot_product_attention` by XLA or cuDNN, with exact zeros where a query sees no key.

    causal, window and lengths are handed over as facts. What XLA's version does not know (offsets, segments and the
    rest) becomes a dense mask, ALiBi and T5 a dense bias. Its log-sum-exp comes in the inputs' type and is not used.
    """
    queries, keys = q_BxQxHxD.shape[1], k_BxKxGxD.shape[1]
    mask = terms.mask
    bias = terms.bias
    if terms.position is not None:
        key_1x1xK = jnp.arange(keys, dtype=jnp.int32)[None, None]
        positions = query_positions(mask, queries), key_1x1xK
        from_positions = terms.position.bias(*positions, q_BxQxHxD.shape[2], jnp.dtype(jnp.float32))
        assert from_positions is not None
        bias = from_positions if bias is None else bias + from_positions
    seen = mask
    if bias is not None:
        # A row of minus infinities has no softmax: a finite number hides as well, and a row of nothing else is zeroed.
        hidden = bias == -jnp.inf
        bias = jnp.where(hidden, _HIDING, bias / form.temperature)
        seen = dataclasses.replace(mask, allowed=~hidden if mask.allowed is None else mask.allowed & ~hidden)
    # Causal hides what lies behind a query anyway, and beside lengths cuDNN refuses to hear of it.
    window = (mask.window[0], 0) if mask.window is not None and mask.causal else mask.window
    native = mask.facts() <= {"causal", "window", "query_lengths", "key_lengths"}
    output = jax.nn.dot_product_attention(
        q_BxQxHxD,
        k_BxKxGxD,
        v_BxKxGxD,
        bias,
        None if native else dense_mask(mask, queries, keys),
        scale=form.scale / form.temperature,
        is_causal=native and mask.causal,
        query_seq_lengths=_lengths(mask.query_lengths, backend) if native else None,
        key_value_seq_lengths=_lengths(mask.key_lengths, backend) if native else None,
        local_window_size=window if native else None,
        implementation="cudnn" if backend is Backend.CUDNN else "xla",
    )
    return _where_seen(output, seen, keys)


def splash_attention(
    q_BxQxHxD: Queries,
    k_BxKxGxD: Keys,
    v_BxKxGxDv: Values,
    mask: Mask,
    scale: float,
    *,
    interpret: bool,
    kernel: Any = None,
) -> Float[Array, "B Q H Dv"]:
    """JAX's splash attention for TPUs: blocks that causal and window hide are never visited.

    Lengths and segments go in as segment numbers. Depths are filled up to 128 lanes. `interpret` runs the kernel
    without a TPU, for tests. `kernel` is this device's part of `splash_kernel` where positions are divided: causal and
    window are then its own to know, and the mask's offset says where the queries stand.
    """
    if kernel is None:
        lengths = q_BxQxHxD.shape[1], k_BxKxGxD.shape[1]
        kernel = splash_kernel(mask, *lengths, q_BxQxHxD.shape[2], interpret=interpret)
    output_BxHxQxD = _splash(kernel, q_BxQxHxD, k_BxKxGxD, v_BxKxGxDv, mask, scale)
    output = jnp.moveaxis(output_BxHxQxD, 1, 2)[..., : v_BxKxGxDv.shape[-1]].astype(v_BxKxGxDv.dtype)
    return _where_seen(output, mask, k_BxKxGxD.shape[1])


def splash_log_sum(
    q_BxQxHxD: Queries, k_BxKxGxD: Keys, v_BxKxGxDv: Values, mask: Mask, scale: float, *, interpret: bool
) -> Float[Array, "B H Q"]:
    """The log-sum-exp of the same kernel in float32, without gradient (its derivative is not implemented).

    Where bfloat16 queries cannot hold the scale (it is no power of two, as the 1/8 of depth 64 is), the kernel's
    logits are rounded, and weights that are computed from others would not sum to one: then from blocks.
    """
    q, k, v = jax.lax.stop_gradient((q_BxQxHxD, k_BxKxGxD, v_BxKxGxDv))
    if q.dtype != jnp.float32 and math.frexp(scale)[0] != 0.5:
        return log_sum_exp_blockwise(q, k, LogitTerms(mask), LogitScaling(scale=scale))
    lengths = q_BxQxHxD.shape[1], k_BxKxGxD.shape[1]
    kernel = splash_kernel(mask, *lengths, q_BxQxHxD.shape[2], interpret=interpret, residuals=True)
    _, (log_sum_BxHxQ,) = _splash(kernel, q, k, v, mask, scale)
    seen = rows_with_visible_keys(mask, *lengths)
    return log_sum_BxHxQ if seen is None else jnp.where(seen, log_sum_BxHxQ, -jnp.inf)


def _splash(kernel: Any, q: Array, k: Array, v: Array, mask: Mask, scale: float) -> Any:
    """The kernel's output, heads in front and depths filled up; if it keeps residuals also the log-sum-exp."""
    segments = _segments(mask, q.shape, k.shape)
    return jax.vmap(kernel)(*_laid_out(q, k, v, scale), segments)


def rows_with_visible_keys(mask: Mask, queries: int, keys: int) -> Bool[Array, "#B #H Q"] | None:
    """Whether each query sees any key, asked in blocks of keys; None where every one certainly does."""
    size = min(BLOCK, keys)
    query_Q = jnp.arange(queries, dtype=jnp.int32)
    # Causal alone leaves every query its own and all earlier keys, of which the first is one.
    if mask.facts() <= {"causal"} or visible_keys(mask, query_Q, query_Q[None, None, :1]) is None:
        return None
    blocks = jnp.arange(-(-keys // size) * size, dtype=jnp.int32).reshape(-1, size)

    def some(key_K: Array) -> Array:
        inside = jnp.minimum(key_K, keys - 1)
        seen = visible_keys(mask, query_Q, inside[None, None])
        assert seen is not None
        return jnp.any(seen, axis=-1)

    seeing = jnp.any(jax.lax.map(some, blocks), axis=0)
    return jnp.broadcast_to(seeing, (*seeing.shape[:2], queries))


def _where_seen(output_BxQxHxD: Array, mask: Mask, keys: int) -> Array:
    """Exactly zero, value and gradient, where a query sees no key: kernels give it the average of all values."""
    seen = rows_with_visible_keys(mask, output_BxQxHxD.shape[1], keys)
    return output_BxQxHxD if seen is None else jnp.where(jnp.moveaxis(seen, 1, 2)[..., None], output_BxQxHxD, 0)


def _lengths(lengths: Array | None, backend: Backend) -> Array | None:
    """Lengths as the kernel takes them: for cuDNN, which divides by what it sees, at least one.

    The rows that this lets see a padded key are zeroed behind the kernel.
    """
    if lengths is None:
        return None
    return (jnp.maximum(lengths, 1) if backend is Backend.CUDNN else lengths).astype(jnp.int32)


def _laid_out(q: Array, k: Array, v: Array, scale: float) -> tuple[Array, Array, Array]:
    """Heads in front, depths filled up to the lanes, and the scale, which the kernel knows nothing of, in q."""

    def heads_first(x: Array) -> Array:
        missing = -x.shape[-1] % TPU_LANES
        return jnp.moveaxis(jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))), 2, 1)

    scaled = (q.astype(jnp.float32) * scale).astype(q.dtype)
    return heads_first(scaled), heads_first(k), heads_first(v)


def _segments(mask: Mask, q_shape: tuple[int, ...], k_shape: tuple[int, ...]) -> Any:
    """Segment numbers for the kernel: padding is a segment that no other side has."""
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    batch, queries, keys = q_shape[0], q_shape[1], k_shape[1]
    of_query, of_key = jnp.zeros((batch, queries), jnp.int32), jnp.zeros((batch, keys), jnp.int32)
    if mask.segments is not None:
        of_query, of_key = (part.astype(jnp.int32) for part in mask.segments)
    smallest = jnp.minimum(jnp.min(of_query), jnp.min(of_key))
    if mask.query_lengths is not None:
        of_query = jnp.where(jnp.arange(queries)[None] < mask.query_lengths[:, None], of_query, smallest - 1)
    if mask.key_lengths is not None:
        of_key = jnp.where(jnp.arange(keys)[None] < mask.key_lengths[:, None], of_key, smallest - 2)
    return SegmentIds(of_query, of_key)


def splash_kernel(
    mask: Mask, queries: int, keys: int, heads: int, *, interpret: bool, residuals: bool = False, parts: int = 1
) -> Any:
    """The kernel of the static facts. Its tables of blocks are made on the host, where jax keeps them for each mask.

    Queries may be divided into `parts`: of the arrays that it then holds each device takes its own.
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
        interpret=interpret,
    )


def _largest_block(length: int) -> int:
    """The largest block of at most 512 that divides the length."""
    return max(size for size in (128, 256, 384, 512) if length % size == 0)
