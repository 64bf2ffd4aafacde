"""Blockwise softmax attention: memory linear in the length, with a custom gradient rule, on any platform."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.component import Keys, Queries, Values
from transformer.attention.indexed_function import IndexedFunction
from transformer.attention.masks import LOGIT_AXES, Mask, query_positions, take_at_queries_and_keys, visible_keys
from transformer.attention.normalizers import add_sinks
from transformer.attention.positions import PositionScheme
from transformer.attention.pytree_dataclass import array_field, pytree_dataclass
from transformer.attention.scores import grouped_products

# Rows and columns of one block. On a CPU a block of every head of a few examples fits the last cache; larger blocks
# mean fewer, larger products, which accelerators want.
BLOCK = 512
# What hides keys by their distance alone, so that the ends of a block say whether it hides all of it.
_FIELDS_BY_DISTANCE = frozenset({"causal", "window", "head_windows", "query_offset"})


@pytree_dataclass
class LogitTerms:
    """Everything besides q . k that determines the logits.

    Attributes:
        mask: The mask.
        bias: Added to the logits.
        position: A position scheme whose `position_bias` is added to the logits.
        modification: A function of the scaled logits, before anything is added.
        sinks_H: The logit of each head's sink, a key without a value; None for none.
    """

    mask: Mask
    bias: Float[Array, "#B #H #Q #K"] | None = array_field(*LOGIT_AXES, default=None)
    position: PositionScheme | None = None
    modification: IndexedFunction | None = None
    sinks_H: Float[Array, " H"] | None = array_field("heads", default=None)

    def apply_to(
        self,
        logits: Float[Array, "B H Q K"],
        query_Q: Int[Array, " Q"],
        position_BxQ: Int[Array, "#B Q"],
        key: Int[Array, "#B #Q K"],
    ) -> Float[Array, "B H Q K"]:
        """Modify some logits, and add the bias and the position bias.

        Args:
            logits: Scaled logits of some queries and keys.
            query_Q: Indices of the queries.
            position_BxQ: Positions of the queries.
            key: Indices of the keys: one row for all queries, or one for each.

        Returns:
            The logits, of the same shape.
        """
        if self.modification is not None:
            logits = self.modification(position_BxQ[:, None, :, None], key[:, None], logits)
        if self.position is not None:
            from_positions = self.position.position_bias(position_BxQ, key, logits.shape[1], logits.dtype)
            assert from_positions is not None
            logits = logits + from_positions
        return (
            logits
            if self.bias is None
            else logits + take_at_queries_and_keys(self.bias, query_Q, key).astype(logits.dtype)
        )

    def differentiable_arrays(self) -> list[Array]:
        """The arrays that have a gradient here: all of floating point but those of the mask and the sinks."""
        return [x for x in jax.tree.leaves(self._differentiable_fields()) if jnp.issubdtype(x.dtype, jnp.floating)]

    def with_differentiable_arrays(self, arrays: list[Array]) -> "LogitTerms":
        """The terms with these in place of `differentiable_arrays`."""
        replacements = iter(arrays)
        bias, position, modification = jax.tree.map(
            lambda x: next(replacements) if jnp.issubdtype(x.dtype, jnp.floating) else x, self._differentiable_fields()
        )
        return dataclasses.replace(self, bias=bias, position=position, modification=modification)

    def _differentiable_fields(self) -> tuple[Any, Any, Any]:
        return self.bias, self.position, self.modification


class LogitScaling(NamedTuple):
    """The static part of the logits: (scale q . k + terms) / temperature.

    Attributes:
        scale: Factor on the products.
        temperature: Divides the logits.
    """

    scale: float = 1.0
    temperature: float = 1.0


class LogitBlock(NamedTuple):
    """A block of logits: some queries of every head against some keys.

    Attributes:
        key_K: Positions of the keys.
        position_BxQ: Positions of the queries.
        logits_BxHxQxK: The logits.
        allowed: True where a key is visible; broadcasts against the logits.
    """

    key_K: Int[Array, " K"]
    position_BxQ: Int[Array, "#B Q"]
    logits_BxHxQxK: Float[Array, "B H Q K"]
    allowed: Array


def logits_of_block(
    q_BxQxHxD: Queries,
    k_BxKxGxD: Keys,
    query_Q: Int[Array, " Q"],
    key_K: Int[Array, " K"],
    terms: LogitTerms,
    *,
    scaling: LogitScaling,
    queries: int,
    keys: int,
) -> LogitBlock:
    """Compute the logits of some queries and keys.

    Args:
        q_BxQxHxD: The block of queries.
        k_BxKxGxD: The block of keys.
        query_Q: Indices of the queries.
        key_K: Indices of the keys.
        terms: Mask, bias and position bias of the whole map.
        scaling: Scale and temperature.
        queries: Number of queries of the whole map.
        keys: Number of keys of the whole map.

    Returns:
        The block. Keys with an index at or beyond `keys` are not allowed, nor is any key to a query at or beyond
        `queries`.
    """
    logits = grouped_products(q_BxQxHxD, k_BxKxGxD) * scaling.scale
    key_1x1xK = jnp.minimum(key_K, keys - 1)[None, None]
    query_inside = jnp.minimum(query_Q, queries - 1)
    positions = jnp.take(query_positions(terms.mask, queries), query_inside, axis=1)
    logits = terms.apply_to(logits, query_inside, positions, key_1x1xK)
    if scaling.temperature != 1:
        logits = logits / scaling.temperature
    allowed = (key_K < keys)[None, None, None]
    if queries % len(query_Q):
        # Rows that fill the last block have no log-sum-exp: the backward pass would multiply exp(logit) by their
        # gradient of 0, which is NaN where a bias makes that exponential infinite.
        allowed = allowed & (query_Q < queries)[:, None]
    visible = visible_keys(terms.mask, query_inside, key_1x1xK)
    return LogitBlock(key_K, positions, logits, allowed if visible is None else allowed & visible)


def recompute_weights(
    logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Bool[Array, "#B #H #Q #K"], log_sum_BxHxQ: Float[Array, "B H Q"]
) -> Float[Array, "B H Q K"]:
    """Recompute the softmax's weights exp(logit - log-sum-exp): zero where a key is hidden or a row sees none."""
    allowed = allowed & jnp.isfinite(log_sum_BxHxQ)[..., None]
    # Hidden logits never reach a difference: infinity minus infinity would be NaN.
    return jnp.where(allowed, jnp.exp(jnp.where(allowed, logits_BxHxQxK - log_sum_BxHxQ[..., None], 0)), 0)


def log_sum_exp_blockwise(
    q_BxQxHxD: Queries, k_BxKxGxD: Keys, terms: LogitTerms, scaling: LogitScaling, block: int = BLOCK
) -> Float[Array, "B H Q"]:
    """Compute the log-sum-exp of each row as `attend_blockwise` does, cheaply: its values have a single feature."""
    nothing = jnp.zeros((*k_BxKxGxD.shape[:3], 1), k_BxKxGxD.dtype)
    return attend_blockwise(q_BxQxHxD, k_BxKxGxD, nothing, terms, scaling, block)[1]


def attend_blockwise(
    q_BxQxHxD: Queries,
    k_BxKxGxD: Keys,
    v_BxKxGxDv: Values,
    terms: LogitTerms,
    scaling: LogitScaling,
    block: int = BLOCK,
) -> tuple[Float[Array, "B Q H Dv"], Float[Array, "B H Q"]]:
    """Compute softmax((scale q . k + terms) / temperature) v and the log-sum-exp of each row.

    Each block of keys is folded into a running maximum, sum and output (Milakov & Gimelshein 2018; Rabe & Staats
    2021); the backward pass recomputes the weights from the log-sum-exp (Dao et al. 2022, algorithm 4), so
    that nothing of size Q K is ever stored.

    Args:
        q_BxQxHxD: Queries.
        k_BxKxGxD: Keys.
        v_BxKxGxDv: Values.
        terms: Mask, bias and position bias.
        scaling: Scale and temperature.
        block: Queries and keys of one block.

    Returns:
        The output in the values' type, and the log-sum-exp in float32 or wider. A row that sees no key gives 0 and
        minus infinity.
    """
    # As leaves: custom_vjp rebuilds its arguments around placeholders, which a checked dataclass refuses.
    leaves, tree = jax.tree.flatten(dataclasses.replace(terms, sinks_H=None))
    output, log_sum = _attend(q_BxQxHxD, k_BxKxGxD, v_BxKxGxDv, leaves, tree, scaling, block)
    return add_sinks_to_output(output, log_sum, terms)


def add_sinks_to_output(
    output_BxQxHxD: Float[Array, "B Q H D"], log_sum_BxHxQ: Float[Array, "B H Q"], terms: LogitTerms
) -> tuple[Float[Array, "B Q H D"], Float[Array, "B H Q"]]:
    """Return output and log-sum-exp as they are where every row sees the sink of its head too, if there are sinks."""
    if terms.sinks_H is None:
        return output_BxQxHxD, log_sum_BxHxQ
    share_BxHxQ, log_sum_BxHxQ = add_sinks(log_sum_BxHxQ, terms.sinks_H)
    share_BxQxHx1 = jnp.moveaxis(share_BxHxQ, 1, 2)[..., None]
    return (output_BxQxHxD * share_BxQxHx1).astype(output_BxQxHxD.dtype), log_sum_BxHxQ


def output_blockwise(
    q_BxQxHxD: Queries,
    k_BxKxGxD: Keys,
    v_BxKxGxDv: Values,
    terms: LogitTerms,
    scaling: LogitScaling,
    block: int = BLOCK,
) -> Float[Array, "B Q H Dv"]:
    """Compute only the output of `attend_blockwise`."""
    if terms.sinks_H is not None:
        return attend_blockwise(q_BxQxHxD, k_BxKxGxD, v_BxKxGxDv, terms, scaling, block)[0]
    leaves, tree = jax.tree.flatten(terms)
    return _attend_output(q_BxQxHxD, k_BxKxGxD, v_BxKxGxDv, leaves, tree, scaling, block)


@functools.partial(jax.jit, inline=True, static_argnums=(4, 5, 6))
def _attend_output(
    q: Array, k: Array, v: Array, leaves: list[Array], tree: Any, scaling: LogitScaling, block: int
) -> Array:
    """Compiled as one program even where nothing else is, so that its infinities stay inside (see `jax_debug_infs`)."""
    return _attend(q, k, v, leaves, tree, scaling, block)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _attend(q: Array, k: Array, v: Array, leaves: list[Array], tree: Any, scaling: LogitScaling, block: int) -> tuple:
    return blockwise_forward(q, k, v, tree.unflatten(leaves), scaling, block, v.dtype)


def blockwise_forward(
    q: Array, k: Array, v: Array, terms: LogitTerms, scaling: LogitScaling, block: int, dtype: jnp.dtype
) -> tuple[Array, Array]:
    """The forward pass of `attend_blockwise`, with the output in `dtype`.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        terms: Mask, bias and position bias.
        scaling: Scale and temperature.
        block: Queries and keys of one block.
        dtype: Type of the output.

    Returns:
        The output, and the log-sum-exp of each row.
    """
    wide = jnp.promote_types(q.dtype, jnp.float32)
    depth = v.shape[-1]

    def fold(carry: Any, part: LogitBlock, v_block: Array) -> Any:
        largest, total, output = carry
        masked_logits = jnp.where(part.allowed, part.logits_BxHxQxK, -jnp.inf)
        # The maximum only scales; its gradient cancels.
        new_largest = jax.lax.stop_gradient(jnp.maximum(largest, jnp.max(masked_logits, axis=-1)))
        finite = jnp.where(jnp.isfinite(new_largest), new_largest, 0)
        weights = jnp.where(
            part.allowed, jnp.exp(jnp.where(part.allowed, part.logits_BxHxQxK - finite[..., None], 0)), 0
        )
        correction = jnp.exp(jnp.where(jnp.isfinite(largest), largest - finite, -jnp.inf))
        output = output * correction[..., None] + _sum_weighted_values(weights, v_block)
        return new_largest, total * correction + jnp.sum(weights, axis=-1), output

    def attend_query_block(q_block: Array, query: Array) -> Any:
        shape = (q_block.shape[0], q_block.shape[2], q_block.shape[1])
        empty = (jnp.full(shape, -jnp.inf, wide), jnp.zeros(shape, wide), jnp.zeros((*shape, depth), wide))
        largest, total, output = fold_key_blocks(fold, empty, q_block, query, k, v, terms, scaling, block, q.shape[1])
        sees_any_key = total > 0
        output = output / jnp.where(sees_any_key, total, 1)[..., None]
        log_sum = jnp.where(
            sees_any_key, jnp.log(jnp.where(sees_any_key, total, 1)) + jnp.where(sees_any_key, largest, 0), -jnp.inf
        )
        return jnp.moveaxis(output, 1, 2).astype(dtype), log_sum

    output, log_sum = map_query_blocks(attend_query_block, q, block)
    return join_blocks(output, 1, q.shape[1]), join_blocks(log_sum, 2, q.shape[1])


def map_query_blocks(function: Callable[[Array, Array], Any], q: Array, block: int) -> Any:
    """Apply `function(q_block, indices)` to each block of queries and stack the results in front."""
    blocks, index = _split_into_indexed_blocks(q, block)
    if len(index) == 1:
        return jax.tree.map(lambda x: x[None], function(blocks[0], index[0]))
    return jax.lax.map(lambda part: function(*part), (blocks, index))


def fold_key_blocks(
    fold: Callable[[Any, LogitBlock, Array], Any],
    carry: Any,
    q_block: Array,
    query: Array,
    k: Array,
    v: Array | None,
    terms: LogitTerms,
    scaling: LogitScaling,
    block: int,
    queries: int,
) -> Any:
    """Fold all blocks of keys into `carry`, skipping those of which `any_key_visible` says that all are hidden.

    Args:
        fold: Takes the carry, a `LogitBlock` and the block of values, and returns the new carry.
        carry: The initial carry.
        q_block: A block of queries.
        query: Their indices.
        k: All keys.
        v: All values, or None.
        terms: Mask, bias and position bias.
        scaling: Scale and temperature.
        block: Keys of one block.
        queries: Number of queries of the whole map.

    Returns:
        The carry after the last block.
    """
    k_blocks, index = _split_into_indexed_blocks(k, block)
    has_several_blocks = max(queries, k.shape[1]) > block

    def fold_key_block(carry: Any, part: Any) -> tuple[Any, None]:
        k_block, v_block, key = part

        def compute(carry: Any) -> Any:
            part = logits_of_block(
                q_block, k_block, query, key, terms, scaling=scaling, queries=queries, keys=k.shape[1]
            )
            return fold(carry, part, v_block)

        any_visible = any_key_visible(terms.mask, query, key) if has_several_blocks else None
        return (
            compute(carry) if any_visible is None else jax.lax.cond(any_visible, compute, lambda same: same, carry)
        ), None

    blocks = (k_blocks, None if v is None else _split_into_blocks(v, block), index)
    if len(index) == 1:
        return fold_key_block(carry, jax.tree.map(lambda x: x[0], blocks))[0]
    return jax.lax.scan(fold_key_block, carry, blocks)[0]


def _backward_rule(tree: Any, scaling: LogitScaling, block: int, residuals: Any, cotangents: Any) -> Any:
    q, k, v, leaves, output, log_sum = residuals
    terms = tree.unflatten(leaves)
    d_output, d_log_sum = cotangents
    delta = gradient_delta(output, log_sum, d_output, d_log_sum)
    gradients = blockwise_backward(q, k, v, terms, d_output, delta, log_sum, scaling, block, q.dtype)
    return cast_gradients(q, k, v, terms, gradients)


def gradient_delta(output: Array, log_sum: Array, d_output: Array, d_log_sum: Array) -> Array:
    """Compute the shared term of a row's gradient: d logit_k = w_k (d_output . v_k - d_output . output + d_log_sum).

    Args:
        output: The output, [B, Q, H, D].
        log_sum: The log-sum-exp, [B, H, Q].
        d_output: Gradient of the output.
        d_log_sum: Gradient of the log-sum-exp.

    Returns:
        d_output . output - d_log_sum, [B, H, Q].
    """
    wide = log_sum.dtype
    return jnp.einsum("bqhd,bqhd->bhq", d_output.astype(wide), output.astype(wide)) - d_log_sum


class Gradients(NamedTuple):
    """Gradients of one call.

    Attributes:
        q: Gradient of the queries, in the type chosen by the caller.
        k: Gradient of the keys, in the wide type in which it is summed, as are the others.
        v: Gradient of the values.
        terms: Gradients of the terms' `differentiable_arrays`.
    """

    q: Array
    k: Array
    v: Array
    terms: list[Array]


def cast_gradients(q: Array, k: Array, v: Array, terms: LogitTerms, gradients: Gradients) -> tuple:
    """The cotangents of (q, k, v, leaves of terms) in the inputs' types; fields of the mask have none."""
    assert terms.sinks_H is None  # they are added to what this program returns
    d_terms = iter(gradients.terms)
    leaves = [None] * len(jax.tree.leaves(terms.mask)) + [
        next(d_terms).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else None
        for x in jax.tree.leaves((terms.bias, terms.position, terms.modification))
    ]
    return gradients.q.astype(q.dtype), gradients.k.astype(k.dtype), gradients.v.astype(v.dtype), leaves


def blockwise_backward(
    q: Array,
    k: Array,
    v: Array,
    terms: LogitTerms,
    d_output: Array,
    delta: Array,
    log_sum: Array,
    scaling: LogitScaling,
    block: int,
    dtype: jnp.dtype,
) -> Gradients:
    """Compute the gradients that flow through some keys.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        terms: Mask, bias and position bias.
        d_output: Gradient of the output.
        delta: `gradient_delta` of each row.
        log_sum: Log-sum-exp of each row over all keys, which may be more than these.
        scaling: Scale and temperature.
        block: Queries and keys of one block.
        dtype: Type of the queries' gradient.

    Returns:
        The gradients.
    """
    wide = log_sum.dtype
    queries, keys = q.shape[1], k.shape[1]
    (k_blocks, key_index), v_blocks = _split_into_indexed_blocks(k, block), _split_into_blocks(v, block)
    wide_terms = [x.astype(wide) for x in terms.differentiable_arrays()]
    has_several_blocks = max(queries, keys) > block

    def accumulate_query_block(carry: Any, part: Any) -> tuple[Any, Any]:
        d_k, d_v, d_terms = carry
        q_block, d_out_block, delta_block, log_sum_block, query = part
        log_sum_block, delta_block = jnp.moveaxis(log_sum_block, 1, 2), jnp.moveaxis(delta_block, 1, 2)
        delta_block = jnp.where(jnp.isfinite(log_sum_block), delta_block, 0)

        def accumulate_key_block(carry: Any, part: Any) -> tuple[Any, Any]:
            k_block, v_block, key = part

            def logits(q_block: Array, k_block: Array, wide_terms: list[Array]) -> tuple[Array, Array]:
                block_terms = terms.with_differentiable_arrays(wide_terms)
                part = logits_of_block(
                    q_block,
                    k_block,
                    query,
                    key,
                    block_terms,
                    scaling=scaling,
                    queries=queries,
                    keys=keys,
                )
                return part.logits_BxHxQxK, part.allowed

            def compute(carry: Any) -> tuple[Any, Any]:
                d_q, d_terms = carry
                block_logits, pull_back, allowed = jax.vjp(logits, q_block, k_block, wide_terms, has_aux=True)
                weights = recompute_weights(block_logits, allowed, log_sum_block)
                d_weights = grouped_products(d_out_block, v_block)
                d_logits = jnp.where(allowed, weights * (d_weights - delta_block[..., None]), 0)
                d_q_new, d_k_block, d_terms_new = pull_back(d_logits)
                d_v_block = _compute_value_gradient(weights, d_out_block, v_block)
                d_q = d_q + d_q_new.astype(wide)
                return (d_q, jax.tree.map(jnp.add, d_terms, d_terms_new)), (d_k_block.astype(wide), d_v_block)

            def skip(carry: Any) -> tuple[Any, Any]:
                return carry, (jnp.zeros(k_block.shape, wide), jnp.zeros(v_block.shape, wide))

            any_visible = any_key_visible(terms.mask, query, key) if has_several_blocks else None
            return compute(carry) if any_visible is None else jax.lax.cond(any_visible, compute, skip, carry)

        start = (jnp.zeros(q_block.shape, wide), d_terms)
        (d_q, d_terms), (d_k_new, d_v_new) = jax.lax.scan(accumulate_key_block, start, (k_blocks, v_blocks, key_index))
        return (d_k + d_k_new, d_v + d_v_new, d_terms), d_q.astype(dtype)

    q_blocks, query_index = _split_into_indexed_blocks(q, block)
    parts = (
        q_blocks,
        _split_into_blocks(d_output, block),
        _split_into_blocks(jnp.moveaxis(delta, 1, 2), block),
        _split_into_blocks(jnp.moveaxis(log_sum, 1, 2), block),
        query_index,
    )
    empty = (jnp.zeros(k_blocks.shape, wide), jnp.zeros(v_blocks.shape, wide), jax.tree.map(jnp.zeros_like, wide_terms))
    (d_k, d_v, d_terms), d_q = jax.lax.scan(accumulate_query_block, empty, parts)
    return Gradients(join_blocks(d_q, 1, queries), join_blocks(d_k, 1, keys), join_blocks(d_v, 1, keys), d_terms)


def _forward_rule(
    q: Array, k: Array, v: Array, leaves: list[Array], tree: Any, scaling: LogitScaling, block: int
) -> tuple:
    output, log_sum = blockwise_forward(q, k, v, tree.unflatten(leaves), scaling, block, v.dtype)
    # A row that sees no key has weights of 0 whatever its log-sum-exp: no infinity is kept for the backward pass.
    return (output, log_sum), (q, k, v, leaves, output, jnp.where(jnp.isfinite(log_sum), log_sum, 0))


_attend.defvjp(_forward_rule, _backward_rule)


def _sum_weighted_values(weights_BxHxQxK: Array, v_BxKxGxD: Array) -> Array:
    """The output W v in float32 or wider, [B, H, Q, D]; each value head serves H / G query heads."""
    batch, heads, queries, keys = weights_BxHxQxK.shape
    groups = v_BxKxGxD.shape[2]
    grouped = weights_BxHxQxK.reshape(batch, groups, heads // groups, queries, keys).astype(v_BxKxGxD.dtype)
    wide = weights_BxHxQxK.dtype
    output = jnp.einsum("bgrqk,bkgd->bgrqd", grouped, v_BxKxGxD, preferred_element_type=wide)
    return output.reshape(batch, heads, queries, -1)


def _compute_value_gradient(weights_BxHxQxK: Array, d_out_BxQxHxD: Array, v_BxKxGxD: Array) -> Array:
    """The gradient of a block of values, summed over the query heads that each value head serves."""
    batch, heads, queries, keys = weights_BxHxQxK.shape
    groups = v_BxKxGxD.shape[2]
    grouped = weights_BxHxQxK.reshape(batch, groups, heads // groups, queries, keys).astype(d_out_BxQxHxD.dtype)
    d_out = d_out_BxQxHxD.reshape(batch, queries, groups, heads // groups, -1)
    return jnp.einsum("bgrqk,bqgrd->bkgd", grouped, d_out, preferred_element_type=weights_BxHxQxK.dtype)


def any_key_visible(mask: Mask, query: Array, key: Array) -> Array | None:
    """Whether any of these queries may see any of these keys; None if the mask hides nothing."""
    if mask.present_fields() <= _FIELDS_BY_DISTANCE:
        return any_key_within_reach(mask, query, key)
    visible = visible_keys(mask, query, key[None, None])
    return None if visible is None else jnp.any(visible)


def any_key_within_reach(mask: Mask, query: Array, key: Array) -> Array | None:
    """Whether causality and windows let any of these queries see any of these keys; None if certainly so."""
    if mask.center is not None:
        return None
    rules = []
    first, last = query[0], query[-1]
    if mask.query_offset is not None:
        first, last = first + jnp.min(mask.query_offset), last + jnp.max(mask.query_offset)
    if mask.causal and mask.prefix is None:
        rules.append(key[0] <= last)
    if mask.window is not None:
        rules += [key[-1] >= first - mask.window[0], key[0] <= last + mask.window[1]]
    if mask.head_windows is not None:
        before, after = (jnp.max(size_H) for size_H in mask.head_windows)
        rules += [key[-1] >= first - before, key[0] <= last + after]
    return functools.reduce(jnp.logical_and, rules) if rules else None


def _split_into_indexed_blocks(x_BxNx: Array, block: int) -> tuple[Array, Array]:
    """Blocks of the second axis in front, the last one padded with zeros, and the indices of their entries.

    The indices are tied to the blocks. Under a differentiated scan over layers, JAX hoists what does not depend on the
    layer out of the loop and stores it: untied, that would be the masks of all blocks, as large as the whole map.
    """
    blocks = _split_into_blocks(x_BxNx, block)
    index = jnp.arange(blocks.shape[0] * blocks.shape[2], dtype=jnp.int32).reshape(blocks.shape[0], -1)
    return jax.lax.optimization_barrier((blocks, index))


def _split_into_blocks(x_BxNx: Array, block: int) -> Array:
    """Blocks of the second axis in front, the last one padded with zeros."""
    size = min(block, x_BxNx.shape[1])
    count = -(-x_BxNx.shape[1] // size)
    padding = [(0, 0), (0, count * size - x_BxNx.shape[1]), *[(0, 0)] * (x_BxNx.ndim - 2)]
    padded = jnp.pad(x_BxNx, padding)
    return jnp.moveaxis(padded.reshape(x_BxNx.shape[0], count, size, *x_BxNx.shape[2:]), 1, 0)


def join_blocks(blocks: Array, axis: int, length: int) -> Array:
    """Concatenate blocks stacked in front along `axis`, without the padding."""
    moved = jnp.moveaxis(blocks, 0, axis)
    shape = (*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :])
    return jax.lax.slice_in_dim(moved.reshape(shape), 0, length, axis=axis)
