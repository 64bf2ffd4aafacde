"""Statistics of the rows of attention maps. A new one is a few lines: an instance of one of three classes.

An `ExpectationStatistic` is the expected value of a function of the key: one more column beside the values. A
`KeyWeightStatistic` is the weight of one chosen key: a gather. A `ReductionStatistic` is anything else that can be
folded block by block over the keys.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.masks import Mask, take_at_keys

State = tuple[Array, ...]


class MapRows(NamedTuple):
    """Some rows of a map, as a statistic sees them.

    Attributes:
        query_Q: Indices of the queries.
        position_BxQ: Positions of the queries.
        mask: The mask of the whole map.
        keys: Number of keys.
        example_B: Index in the whole batch of each example; a device with a part of the batch sees only some.
    """

    query_Q: Int[Array, " Q"]
    position_BxQ: Int[Array, "#B Q"]
    mask: Mask
    keys: int
    example_B: Int[Array, " B"]


class MapBlock(NamedTuple):
    """A block of a map: some rows against some keys.

    Attributes:
        weights_BxHxQxK: Attention weights.
        logits_BxHxQxK: The logits that they came from; meaningful only where allowed.
        allowed: True where a key is visible.
        position_BxQ: Positions of the queries.
        key_K: Positions of the keys.
    """

    weights_BxHxQxK: Float[Array, "B H Q K"]
    logits_BxHxQxK: Float[Array, "B H Q K"]
    allowed: Bool[Array, "#B #H #Q K"]
    position_BxQ: Int[Array, "#B Q"]
    key_K: Int[Array, " K"]

    def distance(self) -> Float[Array, "#B 1 Q K"]:
        """Key position minus query position."""
        return (self.key_K[None, None] - self.position_BxQ[:, :, None])[:, None].astype(self.weights_BxHxQxK.dtype)


@dataclasses.dataclass(frozen=True)
class ExpectationStatistic:
    """The expected value of a function of the key, sum_k w_qk f(k).

    Attributes:
        name: The statistic's name.
        key_function: f, called with the rows and the key indices; returns [B or 1, K].
    """

    name: str
    key_function: Callable[[MapRows, Int[Array, " K"]], Float[Array, "#B K"]]


@dataclasses.dataclass(frozen=True)
class KeyWeightStatistic:
    """The weight of one key of each query.

    Attributes:
        name: The statistic's name.
        key_index_fn: Called with the rows; returns the index of each query's key, [B or 1, Q]. A row whose key does not
            exist or is hidden does not count.
    """

    name: str
    key_index_fn: Callable[[MapRows], Int[Array, "#B Q"]]


def count_every_row(state: State) -> Bool[Array, ""]:
    """The `counts` of a reduction that is defined for every row that sees a key."""
    return jnp.bool_(True)


@dataclasses.dataclass(frozen=True)
class ReductionStatistic:
    """A statistic that is folded over blocks of keys.

    Attributes:
        name: The statistic's name.
        initial_state: Initial value of each array of the state.
        reduce_block: Computes the state of a block of the map.
        merge: Merges two states.
        finish: Computes the value of each row from the final state.
        counts_row: True for the rows that count, from the final state; only rows that see a key are considered.
    """

    name: str
    initial_state: tuple[float, ...]
    reduce_block: Callable[[MapBlock], State]
    merge: Callable[[State, State], State]
    finish: Callable[[State], Float[Array, "B H Q"]]
    counts_row: Callable[[State], Bool[Array, "*#rows"]] = count_every_row


Statistic = ExpectationStatistic | KeyWeightStatistic | ReductionStatistic


def add_states(first: State, second: State) -> State:
    """Merge two states of sums."""
    return tuple(a + b for a, b in zip(first, second, strict=True))


def max_states(first: State, second: State) -> State:
    """Merge two states of maxima."""
    return tuple(jnp.maximum(a, b) for a, b in zip(first, second, strict=True))


def finish_first_array(state: State) -> Array:
    """Finish a state whose first array is the result."""
    return state[0]


def _ratio_of_sums(state: State) -> Array:
    """The first of two sums divided by the second; 0 where that is 0."""
    return state[0] / jnp.where(state[1] > 0, state[1], 1)


def _block_entropy(block: MapBlock) -> State:
    weights = block.weights_BxHxQxK
    return (-jnp.sum(weights * jnp.log(jnp.where(weights > 0, weights, 1)), axis=-1),)


def _moments(block: MapBlock) -> State:
    weights = block.weights_BxHxQxK
    key_position = block.key_K[None, None, None].astype(weights.dtype)
    total = jnp.sum(weights, axis=-1)
    mean = jnp.sum(weights * key_position, axis=-1) / jnp.where(total > 0, total, 1)
    return total, mean, jnp.sum(weights * jnp.square(key_position - mean[..., None]), axis=-1)


def _merge_moments(first: State, second: State) -> State:
    # Chan et al. 1979: sums of squares about each part's own mean, so that far positions do not cancel.
    total = first[0] + second[0]
    safe = jnp.where(total > 0, total, 1)
    step = second[1] - first[1]
    mean = first[1] + step * second[0] / safe
    return total, mean, first[2] + second[2] + jnp.square(step) * first[0] * second[0] / safe


def _distance_and_farthest(block: MapBlock) -> State:
    """The expected distance to the key, and the distance to the farthest visible key."""
    distance = jnp.abs(block.distance())
    shape = block.weights_BxHxQxK.shape
    visible = jnp.broadcast_to(block.allowed, shape)
    farthest = jnp.max(jnp.broadcast_to(distance, shape), axis=-1, where=visible, initial=0)
    return jnp.sum(block.weights_BxHxQxK * distance, axis=-1), farthest


def _segment_start(rows: MapRows) -> Array:
    if rows.mask.segments is None:
        return jnp.zeros_like(rows.position_BxQ)
    query_segments, key_segments = rows.mask.segments
    same = jnp.take(query_segments, rows.query_Q, axis=1)[:, :, None] == key_segments[:, None, :]
    return jnp.argmax(same, axis=-1).astype(jnp.int32)


ENTROPY = ReductionStatistic("entropy", (0.0,), _block_entropy, add_states, finish_first_array)
LARGEST_WEIGHT = ReductionStatistic(
    "largest_weight", (0.0,), lambda block: (jnp.max(block.weights_BxHxQxK, axis=-1),), max_states, finish_first_array
)
LARGEST_LOGIT = ReductionStatistic(
    "largest_logit",
    (-jnp.inf,),
    lambda block: (jnp.max(block.logits_BxHxQxK, axis=-1, where=block.allowed, initial=-jnp.inf),),
    max_states,
    finish_first_array,
)
DISTANCE = ReductionStatistic(
    "distance",
    (0.0,),
    lambda block: (jnp.sum(block.weights_BxHxQxK * jnp.abs(block.distance()), axis=-1),),
    add_states,
    finish_first_array,
)
# 1 - sum_k w_k |k - q| / max_k |k - q| over the keys that are seen: 1 on the diagonal and for a row that sees itself
# alone, 0 for the farthest key (after the diagonality of Zhang et al. 2021).
DIAGONALITY = ReductionStatistic(
    "diagonality",
    (0.0, 0.0),
    _distance_and_farthest,
    lambda first, second: (first[0] + second[0], jnp.maximum(first[1], second[1])),
    lambda state: 1 - _ratio_of_sums(state),
)
SPREAD = ReductionStatistic(
    "spread", (0.0, 0.0, 0.0), _moments, _merge_moments, lambda state: jnp.sqrt(_ratio_of_sums((state[2], state[0])))
)
KEY_POSITION = ExpectationStatistic("key_position", lambda rows, key_K: key_K[None].astype(jnp.float32))
FIRST_TOKEN = KeyWeightStatistic("first_token", _segment_start)
PREVIOUS_TOKEN = KeyWeightStatistic("previous_token", lambda rows: rows.position_BxQ - 1)
DIAGONAL = KeyWeightStatistic("diagonal", lambda rows: rows.position_BxQ)

STATISTICS: dict[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        ENTROPY,
        LARGEST_WEIGHT,
        LARGEST_LOGIT,
        DISTANCE,
        DIAGONALITY,
        SPREAD,
        KEY_POSITION,
        FIRST_TOKEN,
        PREVIOUS_TOKEN,
        DIAGONAL,
    )
}


@functools.cache
def induction_mass(*periods: int | None) -> KeyWeightStatistic:
    """Build the statistic of induction heads: the weight on the key after the query token's previous occurrence.

    An induction head copies what followed (Olsson et al. 2022). In a text that repeats every `period` tokens, position
    q attends to q - period + 1. Rows of the first period do not count, since there is nothing to copy yet.

    Args:
        *periods: One period for the whole batch or one per example, in tokens; None for an example that does not
            repeat, none of whose rows count.

    Returns:
        A statistic named "induction".

    Raises:
        ValueError: If there is no period, or if one is below 2.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from transformer.attention import Capture, Mask, attend, induction_mass

        x = jnp.tile(jax.random.normal(jax.random.key(0), (1, 4, 1, 8)), (1, 3, 1, 1))  # 4 tokens, 3 times
        capture = Capture(sites=("here",), statistics=(induction_mass(4),))
        _, aux = attend(x, x, x, mask=Mask(causal=True), capture=capture)
        aux.captured.counts["induction"]  # [8.0]: the rows of the second and third time
        ```
    """
    if not periods:
        raise ValueError("induction() needs a period: one for every example, or one for each")
    for period in periods:
        if period is not None and period < 2:
            raise ValueError(f"period={period} must be at least 2: a text of one repeated token has no order to copy")

    def key(rows: MapRows) -> Array:
        period_Bx1 = jnp.array([period or 0 for period in periods], jnp.int32)[:, None]
        if len(periods) > 1:
            period_Bx1 = period_Bx1[rows.example_B]
        again = (period_Bx1 > 0) & (rows.position_BxQ >= period_Bx1)
        return jnp.where(again, rows.position_BxQ - period_Bx1 + 1, -1)

    return KeyWeightStatistic("induction", key)


@functools.cache
def grid_distance(columns: int, num_leading_positions: int = 0) -> ReductionStatistic:
    """Build the statistic of attention distance in patches, which replaces `DISTANCE` (under its name) on grids.

    With position p = `num_leading_positions` + row columns + column, it is
    sum_k w_qk |(row, column)_q - (row, column)_k| / sum_k w_qk over the keys k on the grid.

    Args:
        columns: Patches in a row.
        num_leading_positions: Number of positions before the grid, such as a class token. As keys they are left out of
            both sums; as queries they do not count.

    Returns:
        The statistic. A row without weight on the grid does not count.

    Raises:
        ValueError: If `columns` is below 1 or `num_leading_positions` below 0.
    """
    if columns < 1 or num_leading_positions < 0:
        raise ValueError(
            f"grid_distance({columns}, {num_leading_positions}) needs at least 1 column and leading positions from 0"
        )

    def sum_patch_distances(block: MapBlock) -> State:
        query_BxQx1, key_K = (
            (block.position_BxQ - num_leading_positions)[..., None],
            block.key_K - num_leading_positions,
        )
        rows = query_BxQx1 // columns - key_K // columns
        across = query_BxQx1 % columns - key_K % columns
        on_grid = (query_BxQx1 >= 0) & (key_K >= 0)
        weights = jnp.where(on_grid[:, None], block.weights_BxHxQxK, 0)
        patches = jnp.sqrt((rows**2 + across**2).astype(weights.dtype))[:, None]
        return jnp.sum(weights * patches, axis=-1), jnp.sum(weights, axis=-1)

    return ReductionStatistic(
        DISTANCE.name, (0.0, 0.0), sum_patch_distances, add_states, _ratio_of_sums, lambda state: state[1] > 0
    )


@functools.cache
def span_mass(start: int, stop: int) -> ExpectationStatistic:
    """Build the statistic of the weight on the keys start ... stop - 1, such as a sentence or a prompt.

    Raises:
        ValueError: If the span is empty or starts below 0.
    """
    if not 0 <= start < stop:
        raise ValueError(f"span({start}, {stop}) holds no key; it needs 0 <= start < stop")
    return ExpectationStatistic(
        f"span_{start}_{stop}", lambda rows, key_K: ((key_K >= start) & (key_K < stop))[None].astype(jnp.float32)
    )


@functools.cache
def segment_mass(label: int) -> ExpectationStatistic:
    """Build the statistic of the weight on the keys with this label in the mask's `segments`.

    Raises:
        ValueError: If used on a mask without segments (raised when the statistic is computed).
    """

    def column(rows: MapRows, key_K: Array) -> Array:
        if rows.mask.segments is None:
            raise ValueError(f"statistic segment_{label} needs mask.segments, which is absent")
        return (take_at_keys(rows.mask.segments[1], key_K[None, None])[:, 0] == label).astype(jnp.float32)

    return ExpectationStatistic(f"segment_{label}", column)
