"""Capture: which maps and head statistics a forward pass returns beside its output, and how they are found.

Weights that were used are read where they exist. Beside a fused kernel, which keeps none, they are computed again
from the very q, k and log-sum-exp of that forward pass: rows as exp(logit - log-sum-exp), statistics block by block
in memory that grows with the length alone.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention import positions as relative
from transformer.attention.arguments import MAP, check_array, shown
from transformer.attention.blockwise import (
    BLOCK,
    Block,
    Form,
    Terms,
    join,
    log_sum_blockwise,
    logits_of_block,
    over_keys,
    over_queries,
    weights_again,
)
from transformer.attention.masks import Mask, check_mask, cut, look_up, query_positions, visible
from transformer.attention.pooling import block_of, evenly, pool
from transformer.attention.scores import repeat_heads
from transformer.attention.static import static
from transformer.attention.statistics import Cells, Expectation, Mass, Reduction, Rows, Statistic


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Capture:
    """A request, static but for its switch: the sites whose maps or head statistics are wanted.

    `maps`: the weights of the chosen `layers`, `heads` and query `rows` (None: all of them; a number: so many, evenly
    spaced). `cells`: a map with more positions a side than that is `pooled` to as many cells or fewer, and its
    `weights` are those of the chosen rows alone; `top`: of such a map also the largest so many weights of each row.
    `statistics`: of every head and layer, as sums over the rows that count, `by_example` or over the whole batch.

    `observe`: a traced switch; where it is False everything captured is zero and costs next to nothing, and turning
    it compiles nothing anew.
    """

    sites: tuple[str, ...] = static()
    layers: tuple[int, ...] | None = static(None)
    heads: tuple[int, ...] | None = static(None)
    rows: tuple[int, ...] | int | None = static(None)
    maps: bool = static(True)
    cells: int | None = static(None)
    top: int = static(0)
    statistics: tuple[Statistic, ...] = static(())
    by_example: bool = static(False)
    observe: Bool[Array, ""] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sites, str):
            raise TypeError(f"sites is {self.sites!r}, a string; give a tuple of names, ({self.sites!r},)")
        for statistic in self.statistics:
            if not isinstance(statistic, Statistic):
                raise TypeError(
                    f"statistics holds {shown(statistic)}; give instances of Expectation, Mass or Reduction, such as "
                    "STATISTICS['entropy']"
                )
        names = [statistic.name for statistic in self.statistics]
        if len(set(names)) != len(names):
            raise ValueError(f"statistics={names} holds a name twice")
        if isinstance(self.rows, int) and self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1; maps=False captures none")

    def at(self, site: str) -> "Capture | None":
        """The request as the attention at `site` sees it: None when nothing of it is wanted."""
        return self if site in self.sites else None

    def blocks(self, queries: int, keys: int) -> tuple[int, int]:
        """How many queries and keys one cell of a map of this size stands for."""
        return (1, 1) if self.cells is None else (block_of(queries, self.cells), block_of(keys, self.cells))


def check_capture(capture: Capture | None) -> None:
    """Refuse what is no request, such as True.

    Errors: TypeError that says what a request is.
    """
    if capture is not None and not isinstance(capture, Capture):
        raise TypeError(f"capture is {shown(capture)}; it must be None or a Capture, such as Capture(sites=('here',))")


# Whole rows that exist at one time while a long map is pooled.
ROWS_AT_ONCE = 128


class Captured(NamedTuple):
    """What one site returned, cut off from the gradient; a scan over layers adds the leading layer axis.

    `sums` of each statistic over the rows that count, and how many those were: their ratio is the head's mean; of
    each example where that was asked for. `pooled` and `top`, the keys and weights of the largest in each row, only
    where the map has more positions than `Capture.cells`.
    """

    weights: Float[Array, "*L B H R K"] | None
    sums: dict[str, Float[Array, "*heads"]]
    counts: dict[str, Float[Array, "*heads"]]
    pooled: Float[Array, "*L B H q k"] | None = None
    top: "Top | None" = None

    def means(self) -> dict[str, Float[Array, "*heads"]]:
        """The mean of each statistic over the rows that count; 0 where none does."""
        return {name: total / jnp.maximum(self.counts[name], 1) for name, total in self.sums.items()}

    def of_rows(self) -> "Captured":
        """The maps of a decoding step whose queries are an example's beams, as those of rows with one query each.

        [B, H, N, K] becomes [B N, H, 1, K]; statistics stay as they are.
        """
        return self._replace(weights=_of_rows_alone(self.weights), pooled=_of_rows_alone(self.pooled))

    def of_layers(self, layers: tuple[int, ...] | None) -> "Captured":
        """The maps of these layers alone; statistics stay those of every layer."""
        if layers is None or self.weights is None:
            return self
        beyond = [layer for layer in layers if not 0 <= layer < len(self.weights)]
        if beyond:
            raise ValueError(f"capture.layers={layers} names {beyond}; there are layers 0 ... {len(self.weights) - 1}")
        maps = (self.weights, self.pooled, self.top)
        weights, pooled, top = jax.tree.map(lambda of_layers: of_layers[jnp.asarray(layers)], maps)
        return self._replace(weights=weights, pooled=pooled, top=top)


def _of_rows_alone(weights_BxHxNxK: Array | None) -> Array | None:
    if weights_BxHxNxK is None:
        return None
    rows_BxNxHxK = jnp.moveaxis(weights_BxHxNxK, 2, 1)
    return rows_BxNxHxK.reshape(-1, 1, *rows_BxNxHxK.shape[2:]).swapaxes(1, 2)


class Top(NamedTuple):
    """The largest weights of each row, falling, and the keys that they are of."""

    keys: Int[Array, "*L B H Q k"]
    weights: Float[Array, "*L B H Q k"]


# What a pass without a request captured, by site.
NOTHING_CAPTURED: Mapping[str, Captured] = {}


def capture_weights(
    weights_BxHxQxK: Float[Array, "B H Q K"],
    capture: Capture | None,
    *,
    logits: Float[Array, "B H Q K"] | None = None,
    mask: Mask | None = None,
) -> Captured | None:
    """What was asked for of the very weights that multiply the values, in float32 at least.

    `logits` and `mask` are those that the weights came from; without logits their logarithm stands in.

    Errors: TypeError for a request, a mask or arrays of another type, ValueError for shapes that do not fit.
    """
    check_capture(capture)
    check_array("weights", weights_BxHxQxK, MAP)
    if logits is not None:
        check_array("logits", logits, MAP)
        if logits.shape != weights_BxHxQxK.shape:
            raise ValueError(f"logits {logits.shape} and weights {weights_BxHxQxK.shape} differ in their shape")
    if mask is not None:
        batch, heads, queries, keys = weights_BxHxQxK.shape
        check_mask(mask, batch=batch, heads=heads, queries=queries, keys=keys)
    if capture is None:
        return None
    mask = Mask() if mask is None else mask
    wide = jnp.promote_types(weights_BxHxQxK.dtype, jnp.float32)
    weights = jax.lax.stop_gradient(weights_BxHxQxK.astype(wide))
    given = None if logits is None else jax.lax.stop_gradient(logits.astype(wide))
    queries, keys = weights.shape[2:]

    def find() -> Captured:
        query_Q = jnp.arange(queries, dtype=jnp.int32)
        key_K = jnp.arange(keys, dtype=jnp.int32)
        seen = visible(mask, query_Q, key_K[None, None])
        allowed = jnp.ones((1, 1, 1, keys), bool) if seen is None else seen
        scores = jnp.log(weights) if given is None else given
        rows = Rows(query_Q, query_positions(mask, queries), mask, keys, jnp.arange(len(weights), dtype=jnp.int32))
        cells = Cells(weights, scores, allowed, rows.position_BxQ, key_K)
        folded = _fold_cells(_initial(capture.statistics, weights.shape[:3], wide), cells, rows, capture.statistics)
        masses = {}
        for statistic in capture.statistics:
            if isinstance(statistic, Mass):
                key_BxQ, there = _chosen_key(statistic, rows)
                index = jnp.broadcast_to(key_BxQ[:, None, :, None], (weights.shape[0], 1, queries, 1))
                masses[statistic.name] = (jnp.take_along_axis(weights, index, axis=3)[..., 0], there)
        some = jnp.broadcast_to(jnp.any(allowed, axis=-1), weights.shape[:3])
        sums, counts = _totals(_finished(folded, capture.statistics) | masses, some, capture)
        if not capture.maps:
            return Captured(None, sums, counts)
        of_heads = of_chosen_heads(weights, capture)
        blocks = capture.blocks(queries, keys)
        if blocks == (1, 1):
            return Captured(of_heads if capture.cells else _of_rows(of_heads, 2, capture.rows), sums, counts)
        top = _largest(of_heads, capture.top) if capture.top else None
        return Captured(_of_rows(of_heads, 2, capture.rows), sums, counts, pool(of_heads, *blocks), top)

    return switched(capture, find)


def one_layer(captured: Captured) -> Captured:
    """What a single layer captured, with the leading layer axis that a scan over layers would have added."""
    return jax.tree.map(lambda leaf: leaf[None], captured)


def captured_at(site: str, captured: Captured | None, capture: Capture | None) -> dict[str, Captured]:
    """`Aux.maps` of a site that is one layer: empty where nothing of the site is asked for."""
    if captured is None or capture is None or capture.at(site) is None:
        return {}
    return {site: one_layer(captured)}


def capture_products(
    q_BxQxHxD: Float[Array, "B Q H D"],
    k_BxKxGxD: Float[Array, "B K G D"],
    capture: Capture | None,
    *,
    terms: Terms,
    form: Form,
    log_sum: Float[Array, "B H Q"] | Callable[[], Float[Array, "B H Q"]] | None = None,
    block: int = BLOCK,
) -> Captured | None:
    """What was asked for of softmax((scale q . k + terms) / temperature), without the weights themselves.

    `log_sum` is the log-sum-exp of the same forward pass, float32 at least, or what computes it when something is
    really captured. None has it computed here, block by block.
    """
    if capture is None:
        return None
    q, k, terms = jax.lax.stop_gradient((q_BxQxHxD, k_BxKxGxD, terms))
    given = log_sum if log_sum is None or callable(log_sum) else jax.lax.stop_gradient(log_sum)

    def find() -> Captured:
        lse = given() if callable(given) else given
        if lse is None:
            lse = log_sum_blockwise(q, k, terms, form, block)
        products = Products(q, k, terms, form, lse, block)
        sums, counts = statistics_of(products, capture)
        weights, pooled, top = maps_of(products, capture)
        return Captured(weights, sums, counts, pooled, top)

    return switched(capture, find)


class Products(NamedTuple):
    """All that weights are computed again from; `first_example`: which of all examples is the first of these."""

    q: Array
    k: Array
    terms: Terms
    form: Form
    log_sum: Array
    block: int = BLOCK
    first_example: Array | int = 0


def maps_of(products: Products, capture: Capture) -> tuple[Array | None, Array | None, Top | None]:
    """The rows, the pooled map and the largest weights of each row; None for what was not asked for."""
    if not capture.maps:
        return None, None, None
    blocks = capture.blocks(products.q.shape[1], products.k.shape[1])
    if blocks == (1, 1):
        return _rows(products, None if capture.cells else capture.rows, capture), None, None
    return _rows(products, capture.rows, capture), *_pooled_rows(products, blocks, capture)


def _rows(products: Products, rows: tuple[int, ...] | int | None, capture: Capture) -> Array:
    query_Q = jnp.arange(products.q.shape[1], dtype=jnp.int32)
    chosen = (_of_rows(x, axis, rows) for x, axis in ((products.q, 1), (query_Q, 0), (products.log_sum, 2)))
    return of_chosen_heads(_whole_rows(products, *chosen), capture)


def _whole_rows(products: Products, q_BxRxHxD: Array, query_R: Array, log_sum_BxHxR: Array) -> Array:
    """The weights of some rows on every key."""
    queries, keys = products.q.shape[1], products.k.shape[1]
    found = logits_of_block(
        q_BxRxHxD,
        products.k,
        query_R,
        jnp.arange(keys, dtype=jnp.int32),
        products.terms,
        form=products.form,
        queries=queries,
        keys=keys,
    )
    return weights_again(found.logits_BxHxQxK, found.allowed, log_sum_BxHxR)


def _pooled_rows(products: Products, blocks: tuple[int, int], capture: Capture) -> tuple[Array, Top | None]:
    """The pooled map and the largest weights of each row; whole rows exist for a few blocks of queries at a time."""
    queries = products.q.shape[1]
    together = blocks[0] * -(-ROWS_AT_ONCE // blocks[0])

    def of_rows(q_block: Array, query: Array) -> tuple[Array, Top | None]:
        inside = jnp.minimum(query, queries - 1)
        log_sum = jnp.where(query < queries, jnp.take(products.log_sum, inside, axis=2), -jnp.inf)
        weights = of_chosen_heads(_whole_rows(products, q_block, inside, log_sum), capture)
        return pool(weights, *blocks), _largest(weights, capture.top) if capture.top else None

    pooled, top = over_queries(of_rows, products.q, together)
    count = -(-queries // blocks[0])
    whole = jax.tree.map(lambda parts: join(parts, 2, queries), top)
    return join(pooled, 2, count), whole


def _largest(weights_BxHxQxK: Array, count: int) -> Top:
    weights, keys = jax.lax.top_k(weights_BxHxQxK, min(count, weights_BxHxQxK.shape[-1]))
    return Top(keys, weights)


def statistics_of(products: Products, capture: Capture) -> tuple[dict, dict]:
    """The sums of each statistic, and how many rows counted."""
    q, k, terms, form, log_sum, block, first_example = products
    statistics = capture.statistics
    queries, keys = q.shape[1], k.shape[1]
    wide = log_sum.dtype
    if not statistics:
        return {}, {}
    gathered = tuple(statistic for statistic in statistics if isinstance(statistic, Mass))
    folded = tuple(statistic for statistic in statistics if not isinstance(statistic, Mass))

    def of_rows(q_block: Array, query: Array) -> tuple[dict, dict]:
        inside = jnp.minimum(query, queries - 1)
        lse = jnp.where(query < queries, jnp.take(log_sum, inside, axis=2), -jnp.inf)
        position_BxQ = jnp.take(query_positions(terms.mask, queries), inside, axis=1)
        example_B = first_example + jnp.arange(len(q), dtype=jnp.int32)
        rows = Rows(inside, position_BxQ, terms.mask, keys, example_B)

        def fold(state: Any, part: Block, _: Any) -> Any:
            weights = weights_again(part.logits_BxHxQxK, part.allowed, lse)
            cells = Cells(weights, part.logits_BxHxQxK, part.allowed, part.position_BxQ, part.key_K)
            return _fold_cells(state, cells, rows, folded)

        state = _initial(folded, lse.shape, wide)
        if folded:
            state = over_keys(fold, state, q_block, query, k, None, terms, form, block, queries)
        masses = {}
        for statistic in gathered:
            key_BxQ, there = _chosen_key(statistic, rows)
            logits = _logits_of_pairs(q_block, products, rows, key_BxQ)
            masses[statistic.name] = (weights_again(logits[..., None], there[..., None], lse)[..., 0], there)
        return _totals(_finished(state, folded) | masses, jnp.isfinite(lse), capture)

    sums, counts = over_queries(of_rows, q, block)
    return jax.tree.map(lambda parts: jnp.sum(parts, axis=0), (sums, counts))


def _logits_of_pairs(q_BxQxHxD: Array, products: Products, rows: Rows, key_BxQ: Array) -> Array:
    """The logit of one key for each query, without any other: [B, H, Q]."""
    batch, queries, heads, _ = q_BxQxHxD.shape
    key_BxQx1 = jnp.broadcast_to(key_BxQ, (batch, queries))[..., None]
    k_BxQxGxD = look_up(products.k, key_BxQx1)[:, :, 0]
    wide = products.log_sum.dtype
    logits = jnp.einsum("bqhd,bqhd->bhq", q_BxQxHxD, repeat_heads(k_BxQxGxD, heads), preferred_element_type=wide)
    logits = logits * products.form.scale
    from_positions = relative.relative_bias(
        products.form.position, products.terms.position, heads, rows.position_BxQ, key_BxQx1, wide
    )
    if from_positions is not None:
        logits = logits + from_positions[..., 0]
    if products.terms.bias is not None:
        logits = logits + cut(products.terms.bias, rows.query_Q, key_BxQx1)[..., 0].astype(wide)
    return logits / products.form.temperature


def _chosen_key(statistic: Mass, rows: Rows) -> tuple[Array, Array]:
    """The key of each query ([B or 1, Q], within bounds), and where it exists and is visible ([B or 1, H or 1, Q])."""
    key_BxQ = statistic.key(rows)
    there = ((key_BxQ >= 0) & (key_BxQ < rows.keys))[:, None]
    key_BxQ = jnp.clip(key_BxQ, 0, rows.keys - 1)
    batches = [leaf.shape[0] for leaf in jax.tree.leaves(rows.mask)]
    pairs = jnp.broadcast_to(key_BxQ, (max([key_BxQ.shape[0], *batches]), key_BxQ.shape[1]))[..., None]
    seen = visible(rows.mask, rows.query_Q, pairs)
    return key_BxQ, there if seen is None else there & seen[..., 0]


def _initial(statistics: tuple[Statistic, ...], shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    """The state before any key: a column's sum is a state of one number like any other."""
    start = {}
    for statistic in statistics:
        match statistic:
            case Reduction(initial=initial):
                start[statistic.name] = tuple(jnp.full(shape, value, dtype) for value in initial)
            case Expectation():
                start[statistic.name] = (jnp.zeros(shape, dtype),)
    return start


def _fold_cells(state: dict, cells: Cells, rows: Rows, statistics: tuple[Statistic, ...]) -> dict:
    state = dict(state)
    weights = cells.weights_BxHxQxK
    # All columns ride on one product with the weights, as further columns of v would.
    columns = [statistic for statistic in statistics if isinstance(statistic, Expectation)]
    if columns:
        values = [
            jnp.broadcast_to(one.column(rows, cells.key_K), (weights.shape[0], weights.shape[3])) for one in columns
        ]
        stacked_BxKxC = jnp.stack(values, axis=-1).astype(weights.dtype)
        expected = jnp.einsum("bhqk,bkc->bhqc", weights, stacked_BxKxC, precision="highest")
        for index, column in enumerate(columns):
            state[column.name] = (state[column.name][0] + expected[..., index],)
    for statistic in statistics:
        if isinstance(statistic, Reduction):
            state[statistic.name] = statistic.merge(state[statistic.name], statistic.cells(cells))
    return state


def _finished(state: dict, statistics: tuple[Statistic, ...]) -> dict[str, tuple[Array, Array]]:
    """The number of each row, and where it is one."""
    found: dict[str, tuple[Array, Array]] = {}
    for statistic in statistics:
        match statistic:
            case Reduction(name=name, finish=finish, counts=counts):
                found[name] = finish(state[name]), counts(state[name])
            case Expectation(name=name):
                found[name] = state[name][0], jnp.bool_(True)
    return found


def _totals(values: dict[str, tuple[Array, Array]], some: Array, capture: Capture) -> tuple[dict, dict]:
    """Sums over rows (and batch) of each statistic, and how many rows counted: those that see any key at all."""
    summed = 2 if capture.by_example else (0, 2)
    sums, counts = {}, {}
    for name, (value, there) in values.items():
        here = jnp.broadcast_to(some & there, value.shape)
        sums[name] = jnp.sum(value, axis=summed, where=here)
        counts[name] = jnp.sum(here, axis=summed).astype(value.dtype)
    return sums, counts


def of_chosen_heads(weights_BxHxQxK: Array, capture: Capture) -> Array:
    """The heads that were asked for, of an array whose second axis they are.

    Errors: ValueError for a head that is not there.
    """
    if capture.heads is None:
        return weights_BxHxQxK
    heads = weights_BxHxQxK.shape[1]
    beyond = [head for head in capture.heads if not 0 <= head < heads]
    if beyond:
        raise ValueError(f"capture.heads={capture.heads} names {beyond}; there are heads 0 ... {heads - 1}")
    return weights_BxHxQxK[:, jnp.asarray(capture.heads)]


def _of_rows(x: Array, axis: int, rows: tuple[int, ...] | int | None) -> Array:
    if rows is None:
        return x
    queries = x.shape[axis]
    chosen = evenly(queries, rows) if isinstance(rows, int) else rows
    beyond = [row for row in chosen if not 0 <= row < queries]
    if beyond:
        raise ValueError(f"capture.rows={rows} names {beyond}; there are queries 0 ... {queries - 1}")
    return jnp.take(x, jnp.asarray(chosen, jnp.int32), axis=axis)


def switched(capture: Capture, find: Callable[[], Captured]) -> Captured:
    """What `find` finds, or zeros where `observe` is False: then `find` does not run."""
    if capture.observe is None:
        return find()
    shapes = jax.eval_shape(find)
    return jax.lax.cond(
        capture.observe, find, lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    )
