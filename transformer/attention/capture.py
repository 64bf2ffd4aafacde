"""Capture: requesting maps and head statistics of a forward pass, and computing them from its weights."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.argument_checks import MAP_AXES, check_array, describe_value
from transformer.attention.blockwise import (
    BLOCK,
    LogitBlock,
    LogitScaling,
    LogitTerms,
    fold_key_blocks,
    join_blocks,
    log_sum_exp_blockwise,
    logits_of_block,
    map_query_blocks,
    recompute_weights,
)
from transformer.attention.importance import ImportanceGates
from transformer.attention.masks import (
    Mask,
    check_mask,
    query_positions,
    take_at_keys,
    visible_keys,
    with_indexed_function,
)
from transformer.attention.pytree_dataclass import field_axes, pytree_dataclass, static_field
from transformer.attention.rare_branch import compute_if
from transformer.attention.scores import repeat_heads
from transformer.attention.statistics import (
    ExpectationStatistic,
    KeyWeightStatistic,
    MapBlock,
    MapRows,
    ReductionStatistic,
    Statistic,
)

# Whole rows that exist at one time while a long map is pooled.
ROW_CHUNK_SIZE = 128


@pytree_dataclass
class Capture:
    """A request for maps and head statistics. All fields are static except `observe`.

    Attributes:
        sites: Names of the attention sites to capture.
        layers: Layers whose maps are kept; None keeps all. Statistics always cover every layer.
        heads: Heads whose maps are kept; None keeps all. Statistics always cover every head.
        rows: Query rows whose weights are kept; a number takes that many, evenly spaced; None keeps all.
        maps: Whether to return weights at all.
        max_map_size: The most positions per side before a map is max-pooled. A larger map is returned as `pooled`, of
            at most so many cells per side, with the `weights` of the chosen rows. None never pools.
        top_k: How many of the largest weights of each row to return with a pooled map.
        statistics: Statistics to sum over the rows that count, for every head and layer.
        by_example: Whether the sums are per example rather than over the whole batch.
        value_norms: Whether to return the norms of the transformed values, of every layer and head
            (`CapturedAttention.value_norms`). They are never pooled and ignore `observe`; meant for a few short texts.
        query_key_vectors: Whether to return queries and keys, of every layer and head; as for `value_norms`.
        observe: A traced switch; where it is False, maps and statistics are zero and cost next to nothing. Toggling it
            does not recompile.
        gates: Gates of the heads and residual branches of each site by its name, with respect to which the loss is
            differentiated: their gradient is the importance. None measures none.

    Raises:
        TypeError: If `sites` is a string, or if `statistics` holds anything but statistics.
        ValueError: If two statistics have the same name, or if `rows` is a number below 1.

    Example:
        ```python
        import jax
        from transformer.attention import STATISTICS, Capture, attend

        q = k = v = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
        capture = Capture(sites=("here",), maps=False, statistics=(STATISTICS["entropy"],))
        _, aux = attend(q, k, v, capture=capture)
        aux.captured.means()["entropy"].shape  # (2,), in nats for each head
        ```
    """

    sites: tuple[str, ...] = static_field()
    layers: tuple[int, ...] | None = static_field(default=None)
    heads: tuple[int, ...] | None = static_field(default=None)
    rows: tuple[int, ...] | int | None = static_field(default=None)
    maps: bool = static_field(default=True)
    max_map_size: int | None = static_field(default=None)
    top_k: int = static_field(default=0)
    statistics: tuple[Statistic, ...] = static_field(default=())
    by_example: bool = static_field(default=False)
    value_norms: bool = static_field(default=False)
    query_key_vectors: bool = static_field(default=False)
    observe: Bool[Array, ""] | None = None
    gates: Mapping[str, ImportanceGates] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sites, str):
            raise TypeError(f"sites is {self.sites!r}, a string; give a tuple of names, ({self.sites!r},)")
        for statistic in self.statistics:
            if not isinstance(statistic, Statistic):
                raise TypeError(
                    f"statistics holds {describe_value(statistic)}; give instances of ExpectationStatistic, "
                    "KeyWeightStatistic or ReductionStatistic, such as STATISTICS['entropy']"
                )
        names = [statistic.name for statistic in self.statistics]
        if len(set(names)) != len(names):
            raise ValueError(f"statistics={names} holds a name twice")
        if isinstance(self.rows, int) and self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1; maps=False captures none")

    def blocks(self, queries: int, keys: int) -> tuple[int, int]:
        """The numbers of queries and keys that one cell of a map of this size covers."""
        return (
            (1, 1)
            if self.max_map_size is None
            else (pooling_block_size(queries, self.max_map_size), pooling_block_size(keys, self.max_map_size))
        )


def check_capture(capture: Capture | None) -> None:
    """Check that `capture` is None or a `Capture`, and not, say, True.

    Raises:
        TypeError: If it is not; gives an example.
    """
    if capture is not None and not isinstance(capture, Capture):
        raise TypeError(
            f"capture is {describe_value(capture)}; it must be None or a Capture, such as Capture(sites=('here',))"
        )


class CapturedAttention(NamedTuple):
    """What was captured at one site, without gradient. Scans over layers add the leading axis L.

    Attributes:
        weights: Weights of the chosen layers, heads and R query rows; None if no maps were requested.
        sums: Each statistic, summed over the rows that count; per head, and per example if requested.
        counts: How many rows counted; `sums / counts` is the mean of a head.
        pooled: The max-pooled map, only where the map has more positions than `Capture.max_map_size`.
        top_weights: The largest weights of each row and their keys, only beside `pooled`.
        value_norms: |f(x)| of each key, f(x) = (x W_V + b_V) W_O with the head's own rows of W_O: weight * norm =
            |weight f(x)| (Kobayashi et al. 2020, "Attention is not only a weight").
        query_key_vectors: The queries and keys themselves.
    """

    weights: Float[Array, "*L B H R K"] | None
    sums: dict[str, Float[Array, "*heads"]]
    counts: dict[str, Float[Array, "*heads"]]
    pooled: Float[Array, "*L B H q k"] | None = None
    top_weights: "TopWeights | None" = None
    value_norms: Float[Array, "*L B H K"] | None = None
    query_key_vectors: "QueryKeyVectors | None" = None

    def means(self) -> dict[str, Float[Array, "*heads"]]:
        """The mean of each statistic over the rows that count; 0 where none does."""
        return {name: total / jnp.maximum(self.counts[name], 1) for name, total in self.sums.items()}

    def select_layers(self, layers: tuple[int, ...] | None) -> "CapturedAttention":
        """Keep only the maps of these layers; statistics keep every layer.

        Raises:
            ValueError: If a layer does not exist.
        """
        if layers is None or self.weights is None:
            return self
        out_of_range = [layer for layer in layers if not 0 <= layer < len(self.weights)]
        if out_of_range:
            raise ValueError(
                f"capture.layers={layers} names {out_of_range}; there are layers 0 ... {len(self.weights) - 1}"
            )
        return self.with_maps(lambda maps: maps[jnp.asarray(layers)])

    def with_maps(self, change: Callable[[Array], Array]) -> "CapturedAttention":
        """Apply `change` to each array of the maps (weights, pooled, top); statistics stay as they are."""
        weights, pooled, top = jax.tree.map(change, (self.weights, self.pooled, self.top_weights))
        return self._replace(weights=weights, pooled=pooled, top_weights=top)


class TopWeights(NamedTuple):
    """The largest weights of each row.

    Attributes:
        keys: Indices of their keys.
        weights: The weights, in descending order.
    """

    keys: Int[Array, "*L B H Q k"]
    weights: Float[Array, "*L B H Q k"]


class QueryKeyVectors(NamedTuple):
    """Queries and keys after the position scheme, such that a logit is scale (q . k).

    Attributes:
        q: Queries.
        k: Keys.
        scale: Factor on the dot product.
        is_whole_logit: Whether scale (q . k) is the whole logit; False where positions or a bias add to the logits, or
            a temperature divides them.
    """

    q: Float[Array, "*L B Q H D"]
    k: Float[Array, "*L B K G D"]
    scale: Float[Array, "*L"]
    is_whole_logit: Bool[Array, "*L"]


def add_importance(
    captured: CapturedAttention | None, gates: ImportanceGates | None, capture: Capture | None, examples: int
) -> CapturedAttention | None:
    """Add the statistics that the backward pass computes: their counts are examples, their sums still zero.

    Args:
        captured: What a layer's attention captured; None stays None.
        gates: The gates of that layer; None adds nothing.
        capture: The request.
        examples: The number of examples in the batch.

    Returns:
        The captured arrays, for `fill_importance` to complete.
    """
    if captured is None or gates is None or capture is None:
        return captured
    observed = 1.0 if capture.observe is None else capture.observe
    counts = {name: jnp.full_like(gate, examples) * observed for name, gate in gates.by_statistic().items()}
    sums = {name: jnp.zeros_like(count) for name, count in counts.items()}
    return captured._replace(sums={**captured.sums, **sums}, counts={**captured.counts, **counts})


def fill_importance(
    maps: Mapping[str, CapturedAttention], gradients: Mapping[str, ImportanceGates]
) -> dict[str, CapturedAttention]:
    """Fill in the sums of the statistics that `add_importance` has added.

    The mean over B examples is the gradient, sum_b |dL/dg_b|: the mean of |d(B L)/dg_b|, where B L_b, the share of an
    example in a loss that is the mean over examples, is the loss of that example.

    Args:
        maps: The captured arrays by site.
        gradients: The gradient of the loss with respect to the gates of each site.

    Returns:
        The captured arrays by site.
    """
    filled = {}
    for site, captured in maps.items():
        measured = gradients[site].by_statistic() if site in gradients else {}
        sums = {name: measured[name] * captured.counts[name] for name in measured if name in captured.sums}
        filled[site] = captured._replace(sums={**captured.sums, **sums})
    return filled


# What a pass without a request captured, by site.
NOTHING_CAPTURED: Mapping[str, CapturedAttention] = {}


def add_layer_axis(captured: CapturedAttention) -> CapturedAttention:
    """Add the leading layer axis that a scan over layers would have added."""
    return jax.tree.map(lambda leaf: leaf[None], captured)


def capture_for_site(site: str, capture: Capture | None) -> Capture | None:
    """The request as the attention at a site sees it.

    Args:
        site: Name of the site.
        capture: The request to the model, or None.

    Returns:
        The request, without gates, which are not of attention's inside; None if nothing of the site is requested.
    """
    if capture is None or site not in capture.sites:
        return None
    return capture if capture.gates is None else dataclasses.replace(capture, gates=None)


def gates_for_site(site: str, capture: Capture | None) -> ImportanceGates | None:
    """The gates of all layers of a site; None if its importance is not measured."""
    return None if capture is None or capture.gates is None else capture.gates.get(site)


def single_layer_maps(
    site: str, captured: CapturedAttention | None, capture: Capture | None
) -> dict[str, CapturedAttention]:
    """The entries of `Aux.maps` for a site with a single layer.

    Args:
        site: Name of the site.
        captured: What was captured there, without a layer axis, or None.
        capture: The request to the model, or None.

    Returns:
        The site with what was captured, with a layer axis of 1; empty if nothing of the site is requested.
    """
    return {} if captured is None or capture_for_site(site, capture) is None else {site: add_layer_axis(captured)}


def pooling_block_size(positions: int, cells: int) -> int:
    """The smallest power of two that cuts `positions` into at most `cells` blocks, so that finer poolings nest.

    Raises:
        ValueError: If `cells` is below 1.
    """
    if cells < 1:
        raise ValueError(f"cells={cells} must be at least 1")
    return 1 << max(0, -(-positions // cells) - 1).bit_length()


def max_pool_map(weights: Float[Array | np.ndarray, "*maps Q K"], query_block: int, key_block: int) -> Any:
    """Compute the largest weight of each query_block x key_block block; incomplete blocks are padded with zeros.

    Args:
        weights: Maps, of NumPy or JAX.
        query_block: Queries of one block.
        key_block: Keys of one block.

    Returns:
        The pooled maps, [*maps, ceil(Q / query_block), ceil(K / key_block)].
    """
    xp: Any = weights.__array_namespace__()
    *maps, queries, keys = weights.shape
    q, k = -(-queries // query_block), -(-keys // key_block)
    padding = [(0, 0)] * len(maps) + [(0, q * query_block - queries), (0, k * key_block - keys)]
    return xp.max(xp.reshape(xp.pad(weights, padding), (*maps, q, query_block, k, key_block)), axis=(-3, -1))


def evenly_spaced_positions(positions: int, count: int) -> tuple[int, ...]:
    """Choose `count` of `positions` indices, evenly spaced and including the first and last; all of them if too few."""
    steps = max(min(positions, count) - 1, 1)
    return tuple(round(index * (positions - 1) / steps) for index in range(min(positions, count)))


def capture_weights(
    weights_BxHxQxK: Float[Array, "B H Q K"],
    capture: Capture | None,
    *,
    logits: Float[Array, "B H Q K"] | None = None,
    mask: Mask | None = None,
) -> CapturedAttention | None:
    """Capture maps and statistics from the attention weights that multiply the values.

    Args:
        weights_BxHxQxK: Attention weights.
        capture: The request; None returns None.
        logits: The logits that the weights came from; without them, statistics use the weights' logarithm.
        mask: The mask that the weights came from; None hides no key.

    Returns:
        What was requested, in float32 or wider and without gradient.

    Raises:
        TypeError: If the request, the mask or an array has another type.
        ValueError: If shapes do not match, or if a chosen head or row does not exist.
    """
    check_capture(capture)
    check_array("weights", weights_BxHxQxK, MAP_AXES)
    if logits is not None:
        check_array("logits", logits, MAP_AXES)
        if logits.shape != weights_BxHxQxK.shape:
            raise ValueError(f"logits {logits.shape} and weights {weights_BxHxQxK.shape} differ in their shape")
    if mask is not None:
        batch, heads, queries, keys = weights_BxHxQxK.shape
        check_mask(mask, batch=batch, heads=heads, queries=queries, keys=keys)
        mask = with_indexed_function(mask, batch, heads)
    if capture is None:
        return None
    mask = Mask() if mask is None else mask
    wide = jnp.promote_types(weights_BxHxQxK.dtype, jnp.float32)
    weights = jax.lax.stop_gradient(weights_BxHxQxK.astype(wide))
    detached_logits = None if logits is None else jax.lax.stop_gradient(logits.astype(wide))
    queries, keys = weights.shape[2:]

    def compute_capture() -> CapturedAttention:
        query_Q = jnp.arange(queries, dtype=jnp.int32)
        key_K = jnp.arange(keys, dtype=jnp.int32)
        visible_by_mask = visible_keys(mask, query_Q, key_K[None, None])
        allowed = jnp.ones((1, 1, 1, keys), bool) if visible_by_mask is None else visible_by_mask
        scores = jnp.log(weights) if detached_logits is None else detached_logits
        rows = MapRows(query_Q, query_positions(mask, queries), mask, keys, jnp.arange(len(weights), dtype=jnp.int32))
        if detached_logits is not None:
            allowed = allowed & _visible_by_bias(detached_logits)
        map_block = MapBlock(weights, scores, allowed, rows.position_BxQ, key_K)
        folded = _fold_map_block(
            _initial_statistic_states(capture.statistics, weights.shape[:3], wide), map_block, rows, capture.statistics
        )
        masses = {}
        for statistic in capture.statistics:
            if isinstance(statistic, KeyWeightStatistic):
                key_BxQ, exists = _resolve_key_index(statistic, rows)
                index = jnp.broadcast_to(key_BxQ[:, None, :, None], (weights.shape[0], 1, queries, 1))
                weight, visible = (
                    jnp.take_along_axis(jnp.broadcast_to(x, weights.shape), index, axis=3)[..., 0]
                    for x in (weights, allowed)
                )
                masses[statistic.name] = (weight, exists & visible)
        sees_any_key = jnp.broadcast_to(jnp.any(allowed, axis=-1), weights.shape[:3])
        sums, counts = _sum_and_count_rows(
            _finish_statistics(folded, capture.statistics) | masses, sees_any_key, capture
        )
        if not capture.maps:
            return CapturedAttention(None, sums, counts)
        selected_weights = select_heads(weights, capture)
        blocks = capture.blocks(queries, keys)
        if blocks == (1, 1):
            return CapturedAttention(
                selected_weights if capture.max_map_size else _select_rows(selected_weights, 2, capture.rows),
                sums,
                counts,
            )
        top = _select_top_weights(selected_weights, capture.top_k) if capture.top_k else None
        return CapturedAttention(
            _select_rows(selected_weights, 2, capture.rows), sums, counts, max_pool_map(selected_weights, *blocks), top
        )

    return capture_if_enabled(capture, compute_capture)


def capture_from_queries_and_keys(
    q_BxQxHxD: Float[Array, "B Q H D"],
    k_BxKxGxD: Float[Array, "B K G D"],
    capture: Capture | None,
    *,
    terms: LogitTerms,
    scaling: LogitScaling,
    log_sum: Float[Array, "B H Q"] | Callable[[], Float[Array, "B H Q"]] | None = None,
    block: int = BLOCK,
) -> CapturedAttention | None:
    """Capture maps and statistics of softmax((scale q . k + terms) / temperature) without storing all the weights.

    Args:
        q_BxQxHxD: Queries.
        k_BxKxGxD: Keys.
        capture: The request; None returns None.
        terms: Mask, bias and position bias.
        scaling: Scale and temperature.
        log_sum: The log-sum-exp of the same forward pass, in float32 or wider, or a function that computes it if
            something is captured. None computes it blockwise.
        block: Queries and keys of one block.

    Returns:
        What was requested, without gradient.

    Raises:
        ValueError: If a chosen head or row does not exist.
    """
    if capture is None:
        return None
    q, k, terms = jax.lax.stop_gradient((q_BxQxHxD, k_BxKxGxD, terms))
    detached_log_sum = log_sum if log_sum is None or callable(log_sum) else jax.lax.stop_gradient(log_sum)

    def compute_capture() -> CapturedAttention:
        lse = detached_log_sum() if callable(detached_log_sum) else detached_log_sum
        if lse is None:
            lse = log_sum_exp_blockwise(q, k, terms, scaling, block)
        inputs = WeightRecomputeInputs(q, k, terms, scaling, lse, block)
        sums, counts = compute_statistics_blockwise(inputs, capture)
        weights, pooled, top = compute_maps_blockwise(inputs, capture)
        return CapturedAttention(weights, sums, counts, pooled, top)

    return capture_if_enabled(capture, compute_capture)


class WeightRecomputeInputs(NamedTuple):
    """Everything from which weights can be recomputed.

    Attributes:
        q: Queries.
        k: Keys.
        terms: Mask, bias and position bias.
        scaling: Scale and temperature.
        log_sum: Log-sum-exp of each row.
        block_size: Queries and keys of one block.
        first_example: Index in the whole batch of the first of these examples.
    """

    q: Array
    k: Array
    terms: LogitTerms
    scaling: LogitScaling
    log_sum: Array
    block_size: int = BLOCK
    first_example: Array | int = 0

    def at(self, query_Q: Array) -> tuple[Array, Array]:
        """Clip row indices to the last row, and look up their log-sum-exps; indices past the end get minus infinity."""
        inside_Q = jnp.minimum(query_Q, self.q.shape[1] - 1)
        log_sum = jnp.take(self.log_sum, inside_Q, axis=2)
        return inside_Q, jnp.where(query_Q < self.q.shape[1], log_sum, -jnp.inf)


def compute_maps_blockwise(
    inputs: WeightRecomputeInputs, capture: Capture
) -> tuple[Array | None, Array | None, TopWeights | None]:
    """Compute the chosen rows, the pooled map and the largest weights of each row; None for what was not requested."""
    if not capture.maps:
        return None, None, None
    blocks = capture.blocks(inputs.q.shape[1], inputs.k.shape[1])
    if blocks == (1, 1):
        return _compute_selected_rows(inputs, None if capture.max_map_size else capture.rows, capture), None, None
    return _compute_selected_rows(inputs, capture.rows, capture), *_compute_pooled_map(inputs, blocks, capture)


def _compute_selected_rows(
    inputs: WeightRecomputeInputs, rows: tuple[int, ...] | int | None, capture: Capture
) -> Array:
    query_Q = jnp.arange(inputs.q.shape[1], dtype=jnp.int32)
    selected = (_select_rows(x, axis, rows) for x, axis in ((inputs.q, 1), (query_Q, 0), (inputs.log_sum, 2)))
    return select_heads(_compute_row_weights(inputs, *selected), capture)


def _compute_row_weights(
    inputs: WeightRecomputeInputs, q_BxRxHxD: Array, query_R: Array, log_sum_BxHxR: Array
) -> Array:
    """The weights of some rows on every key."""
    queries, num_keys = inputs.q.shape[1], inputs.k.shape[1]
    part = logits_of_block(
        q_BxRxHxD,
        inputs.k,
        query_R,
        jnp.arange(num_keys, dtype=jnp.int32),
        inputs.terms,
        scaling=inputs.scaling,
        queries=queries,
        keys=num_keys,
    )
    return recompute_weights(part.logits_BxHxQxK, part.allowed, log_sum_BxHxR)


def _compute_pooled_map(
    inputs: WeightRecomputeInputs, blocks: tuple[int, int], capture: Capture
) -> tuple[Array, TopWeights | None]:
    """The pooled map and the largest weights of each row, from whole rows of a few query blocks at a time."""
    queries = inputs.q.shape[1]
    rows_per_chunk = blocks[0] * -(-ROW_CHUNK_SIZE // blocks[0])

    def pool_query_block(q_block: Array, query: Array) -> tuple[Array, TopWeights | None]:
        inside, log_sum = inputs.at(query)
        weights = select_heads(_compute_row_weights(inputs, q_block, inside, log_sum), capture)
        return max_pool_map(weights, *blocks), _select_top_weights(weights, capture.top_k) if capture.top_k else None

    pooled, top = map_query_blocks(pool_query_block, inputs.q, rows_per_chunk)
    count = -(-queries // blocks[0])
    top_weights = jax.tree.map(lambda parts: join_blocks(parts, 2, queries), top)
    return join_blocks(pooled, 2, count), top_weights


def _select_top_weights(weights_BxHxQxK: Array, count: int) -> TopWeights:
    weights, keys = jax.lax.top_k(weights_BxHxQxK, min(count, weights_BxHxQxK.shape[-1]))
    return TopWeights(keys, weights)


def compute_statistics_blockwise(inputs: WeightRecomputeInputs, capture: Capture) -> tuple[dict, dict]:
    """Compute the sums of each statistic and how many rows counted, without storing all the weights."""
    q, k, terms, scaling, log_sum, block, first_example = inputs
    statistics = capture.statistics
    queries, keys = q.shape[1], k.shape[1]
    wide = log_sum.dtype
    if not statistics:
        return {}, {}
    gathered = tuple(statistic for statistic in statistics if isinstance(statistic, KeyWeightStatistic))
    folded = tuple(statistic for statistic in statistics if not isinstance(statistic, KeyWeightStatistic))

    def sum_query_block(q_block: Array, query: Array) -> tuple[dict, dict]:
        inside, lse = inputs.at(query)
        position_BxQ = jnp.take(query_positions(terms.mask, queries), inside, axis=1)
        example_B = first_example + jnp.arange(len(q), dtype=jnp.int32)
        rows = MapRows(inside, position_BxQ, terms.mask, keys, example_B)

        def fold(state: Any, part: LogitBlock, _: Any) -> Any:
            weights = recompute_weights(part.logits_BxHxQxK, part.allowed, lse)
            allowed = part.allowed & _visible_by_bias(part.logits_BxHxQxK)
            map_block = MapBlock(weights, part.logits_BxHxQxK, allowed, part.position_BxQ, part.key_K)
            return _fold_map_block(state, map_block, rows, folded)

        state = _initial_statistic_states(folded, lse.shape, wide)
        if folded:
            state = fold_key_blocks(fold, state, q_block, query, k, None, terms, scaling, block, queries)
        masses = {}
        for statistic in gathered:
            key_BxQ, exists = _resolve_key_index(statistic, rows)
            logits = _compute_pair_logits(q_block, inputs, rows, key_BxQ)
            exists = exists & _visible_by_bias(logits)
            masses[statistic.name] = (recompute_weights(logits[..., None], exists[..., None], lse)[..., 0], exists)
        return _sum_and_count_rows(_finish_statistics(state, folded) | masses, jnp.isfinite(lse), capture)

    sums, counts = map_query_blocks(sum_query_block, q, block)
    return jax.tree.map(lambda parts: jnp.sum(parts, axis=0), (sums, counts))


def _compute_pair_logits(q_BxQxHxD: Array, inputs: WeightRecomputeInputs, rows: MapRows, key_BxQ: Array) -> Array:
    """The logit of each query with one chosen key, [B, H, Q]."""
    batch, queries, heads, _ = q_BxQxHxD.shape
    key_BxQx1 = jnp.broadcast_to(key_BxQ, (batch, queries))[..., None]
    k_BxQxGxD = take_at_keys(inputs.k, key_BxQx1)[:, :, 0]
    wide = inputs.log_sum.dtype
    logits = jnp.einsum("bqhd,bqhd->bhq", q_BxQxHxD, repeat_heads(k_BxQxGxD, heads), preferred_element_type=wide)
    logits = logits * inputs.scaling.scale
    added = inputs.terms.apply_to(logits[..., None], rows.query_Q, rows.position_BxQ, key_BxQx1)
    return added[..., 0] / inputs.scaling.temperature


def _visible_by_bias(logits: Array) -> Array:
    """False where a bias of minus infinity hides the key. NaN is visible: a failed run must not lose its rows."""
    return logits != -jnp.inf


def _resolve_key_index(statistic: KeyWeightStatistic, rows: MapRows) -> tuple[Array, Array]:
    """The key of each query ([B or 1, Q], clipped), and whether it exists and is visible ([B or 1, H or 1, Q])."""
    key_BxQ = statistic.key_index_fn(rows)
    exists = ((key_BxQ >= 0) & (key_BxQ < rows.keys))[:, None]
    key_BxQ = jnp.clip(key_BxQ, 0, rows.keys - 1)
    leaves = zip(field_axes(rows.mask), jax.tree.leaves(rows.mask), strict=True)
    batches = [leaf.shape[0] for axes, leaf in leaves if axes[:1] == ("batch",)]
    chosen_keys = jnp.broadcast_to(key_BxQ, (max([key_BxQ.shape[0], *batches]), key_BxQ.shape[1]))[..., None]
    visible = visible_keys(rows.mask, rows.query_Q, chosen_keys)
    return key_BxQ, exists if visible is None else exists & visible[..., 0]


def _initial_statistic_states(statistics: tuple[Statistic, ...], shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    """The state of each statistic before any key; an expectation's state is its sum."""
    start = {}
    for statistic in statistics:
        match statistic:
            case ReductionStatistic(initial_state=initial):
                start[statistic.name] = tuple(jnp.full(shape, value, dtype) for value in initial)
            case ExpectationStatistic():
                start[statistic.name] = (jnp.zeros(shape, dtype),)
    return start


def _fold_map_block(state: dict, map_block: MapBlock, rows: MapRows, statistics: tuple[Statistic, ...]) -> dict:
    state = dict(state)
    weights = map_block.weights_BxHxQxK
    # All columns ride on one product with the weights, as further columns of v would.
    columns = [statistic for statistic in statistics if isinstance(statistic, ExpectationStatistic)]
    if columns:
        values = [
            jnp.broadcast_to(column.key_function(rows, map_block.key_K), (weights.shape[0], weights.shape[3]))
            for column in columns
        ]
        stacked_BxKxC = jnp.stack(values, axis=-1).astype(weights.dtype)
        expected = jnp.einsum("bhqk,bkc->bhqc", weights, stacked_BxKxC, precision="highest")
        for index, column in enumerate(columns):
            state[column.name] = (state[column.name][0] + expected[..., index],)
    for statistic in statistics:
        if isinstance(statistic, ReductionStatistic):
            state[statistic.name] = statistic.merge(state[statistic.name], statistic.reduce_block(map_block))
    return state


def _finish_statistics(state: dict, statistics: tuple[Statistic, ...]) -> dict[str, tuple[Array, Array]]:
    """The value of each row, and whether it is defined."""
    values: dict[str, tuple[Array, Array]] = {}
    for statistic in statistics:
        match statistic:
            case ReductionStatistic(name=name, finish=finish, counts_row=counts):
                values[name] = finish(state[name]), counts(state[name])
            case ExpectationStatistic(name=name):
                values[name] = state[name][0], jnp.bool_(True)
    return values


def _sum_and_count_rows(
    values: dict[str, tuple[Array, Array]], sees_any_key: Array, capture: Capture
) -> tuple[dict, dict]:
    """Sums over rows (and batch) of each statistic, and the number of rows that counted: those that see any key."""
    summed = 2 if capture.by_example else (0, 2)
    sums, counts = {}, {}
    for name, (value, exists) in values.items():
        counted = jnp.broadcast_to(sees_any_key & exists, value.shape)
        sums[name] = jnp.sum(value, axis=summed, where=counted)
        counts[name] = jnp.sum(counted, axis=summed).astype(value.dtype)
    return sums, counts


def select_heads(weights_BxHxQxK: Array, capture: Capture) -> Array:
    """Select the requested heads from the second axis of an array.

    Raises:
        ValueError: If a requested head does not exist.
    """
    if capture.heads is None:
        return weights_BxHxQxK
    heads = weights_BxHxQxK.shape[1]
    out_of_range = [head for head in capture.heads if not 0 <= head < heads]
    if out_of_range:
        raise ValueError(f"capture.heads={capture.heads} names {out_of_range}; there are heads 0 ... {heads - 1}")
    return weights_BxHxQxK[:, jnp.asarray(capture.heads)]


def _select_rows(x: Array, axis: int, rows: tuple[int, ...] | int | None) -> Array:
    if rows is None:
        return x
    queries = x.shape[axis]
    row_indices = evenly_spaced_positions(queries, rows) if isinstance(rows, int) else rows
    out_of_range = [row for row in row_indices if not 0 <= row < queries]
    if out_of_range:
        raise ValueError(f"capture.rows={rows} names {out_of_range}; there are queries 0 ... {queries - 1}")
    return jnp.take(x, jnp.asarray(row_indices, jnp.int32), axis=axis)


def capture_if_enabled(capture: Capture, compute_capture: Callable[[], CapturedAttention]) -> CapturedAttention:
    """Return `compute_capture()`, or zeros of the same shapes without running it where `capture.observe` is False."""
    return compute_if(capture.observe, compute_capture)
