"""Masks: which keys a query may see, described by fields that fused kernels can take natively."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.argument_checks import MAP_AXES, check_function, describe_value, is_array
from transformer.attention.indexed_function import IndexedFunction, index_function
from transformer.attention.pytree_dataclass import array_field, function_field, pytree_dataclass, static_field

LOGIT_AXES = ("batch", "heads", "queries", "keys")
_SIDES = (("batch", "queries"), ("batch", "keys"))
_OF_HEADS = (("heads",), ("heads",))


MaskFunction = Callable[
    [Int[Array, "B 1 1 1"], Int[Array, "1 H 1 1"], Int[Array, "#B 1 Q 1"], Int[Array, "#B 1 #Q K"]],
    Bool[Array, "#B #H Q K"],
]
"""Whether queries see keys: of the example, the head, and the positions of both."""


@pytree_dataclass
class Mask:
    """Which keys each query may see: those that every field admits. An absent field hides nothing.

    A query's position is its index plus its example's `query_offset`; a key's position is its index.

    Attributes:
        causal: Keys at positions up to the query's are visible.
        window: (before, after): keys from `before` positions before the center to `after` positions behind it are
            visible. The center is the query's position, or `center` if set (Luong et al. 2015, section 3.2).
        head_windows: (before, after) of each head: a window of its own around the query's position, beside `window`.
        query_offset: Position of each example's first query, for queries that continue a cache; a single number if it
            is the same for all examples, which avoids computing relative positions per example.
        query_lengths: Queries at or beyond an example's length are padding and see nothing.
        key_lengths: Keys at or beyond an example's length are padding and hidden from every query.
        prefix: Keys below an example's prefix are visible in spite of `causal` (prefix language models).
        segments: Segment numbers of queries and of keys; only keys of the query's own segment are visible (packing).
        order: Order of queries and of keys; only keys of a lower order are visible (permutation language models, Yang
            et al. 2019).
        center: Center of each query's window, a real number.
        allowed: An arbitrary dense mask, True where a query may see a key.
        function: A function of (batch, head, query, key): the indices of the example and of the head and the positions
            of query and key, as arrays that broadcast against each other. It is True where a key is visible, as in
            FlexAttention (Dong et al. 2024, section 3). A function of arrays is a pytree, such as a
            `jax.tree_util.Partial`; any other must be hashable, as every module-level function and frozen dataclass is.
            What it alone hides must be finite.

    Example:
        ```python
        import jax.numpy as jnp
        from transformer.attention import Mask, dense_mask

        segments = jnp.array([[1, 1, 2]])  # two texts packed into a row
        mask = Mask(causal=True, segments=(segments, segments))
        dense_mask(mask, 3, 3)[0, 0]  # [[True, False, False], [True, True, False], [False, False, True]]
        ```
    """

    causal: bool = static_field(default=False)
    window: tuple[int, int] | None = static_field(default=None)
    head_windows: tuple[Int[Array, " H"], Int[Array, " H"]] | None = array_field(*_OF_HEADS, default=None)
    query_offset: Int[Array, "#B"] | None = array_field("batch", default=None)
    query_lengths: Int[Array, " B"] | None = array_field("batch", default=None, counts="queries")
    key_lengths: Int[Array, " B"] | None = array_field("batch", default=None, counts="keys")
    prefix: Int[Array, " B"] | None = array_field("batch", default=None, counts="keys")
    segments: tuple[Int[Array, "B Q"], Int[Array, "B K"]] | None = array_field(*_SIDES, default=None)
    order: tuple[Int[Array, "B Q"], Int[Array, "B K"]] | None = array_field(*_SIDES, default=None)
    center: Float[Array, "B H Q"] | None = array_field("batch", "heads", "queries", default=None, counts="keys")
    allowed: Bool[Array, "#B #H #Q #K"] | None = array_field(*LOGIT_AXES, default=None)
    function: MaskFunction | IndexedFunction | None = function_field(default=None)

    def present_fields(self) -> frozenset[str]:
        """The names of the fields that are set."""
        absent = (None, False)
        return frozenset(
            field.name
            for field in dataclasses.fields(self)
            if not any(getattr(self, field.name) is value for value in absent)
        )


MASK_FIELDS = tuple(field.name for field in dataclasses.fields(Mask))
# The field without which another says nothing, and what that has to do with it.
REQUIRED_FIELD = {"center": "window", "prefix": "causal"}
_ROLES = {"window": "which says how far around it a query sees", "causal": "the fact that it lifts"}


def missing_field(fields: frozenset[str]) -> str | None:
    """Say which of these fields is set without the field that it needs; None if none is."""
    for field, needed in REQUIRED_FIELD.items():
        if field in fields and needed not in fields:
            return f"mask.{field} is given without mask.{needed}, {_ROLES[needed]}"
    return None


def local_monotonic(half_width: int) -> Mask:
    """The mask of local-m: keys s with |s - t| <= `half_width` around position t (Luong et al. 2015, section 3.2)."""
    return Mask(window=(half_width, half_width))


def local_predictive(center_BxHxQ: Float[Array, "B H Q"], half_width: int) -> Mask:
    """The mask of local-p: keys s with |s - p_t| <= D around a predicted position p_t (Luong et al. 2015, section 3.2).

    With `Reweighting.GAUSSIAN` the weights are multiplied by exp(-(s - p_t)^2 / (2 (D / 2)^2)), through which
    the gradient reaches the prediction.

    Args:
        center_BxHxQ: Predicted positions p_t, such as those of `predicted_center`.
        half_width: D.

    Returns:
        A mask with `window` and `center` set.
    """
    return Mask(window=(half_width, half_width), center=center_BxHxQ)


def predicted_center(
    q_BxQxHxD: Float[Array, "B Q H D"],
    weight_HxDxA: Float[Array, "H D A"],
    score_HxA: Float[Array, "H A"],
    key_lengths_B: Int[Array, " B"],
) -> Float[Array, "B H Q"]:
    """Compute p_t = S sigmoid(v_p' tanh(W_p h_t)) (Luong et al. 2015, equation 9).

    Positions count from 0, not from 1 as in the paper, so S - 1 takes the place of S.

    Args:
        q_BxQxHxD: Decoder states h_t.
        weight_HxDxA: W_p of each head.
        score_HxA: v_p of each head.
        key_lengths_B: Length S of each source.

    Returns:
        Positions in [0, S - 1], in float32 or wider.
    """
    wide = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
    hidden_BxHxQxA = jnp.tanh(jnp.einsum("bqhd,hda->bhqa", q_BxQxHxD, weight_HxDxA))
    logits_BxHxQ = jnp.einsum("bhqa,ha->bhq", hidden_BxHxQxA, score_HxA, preferred_element_type=wide)
    share_BxHxQ = jax.nn.sigmoid(logits_BxHxQ)
    return (key_lengths_B - 1)[:, None, None].astype(wide) * share_BxHxQ


def query_positions(mask: Mask, queries: int) -> Int[Array, "#B Q"]:
    """The position of every query: its index plus the example's offset."""
    index_1xQ = jnp.arange(queries, dtype=jnp.int32)[None]
    return index_1xQ if mask.query_offset is None else index_1xQ + mask.query_offset[:, None]


def visible_keys(
    mask: Mask, query_Q: Int[Array, " Q"], key: Int[Array, "#B #Q K"]
) -> Bool[Array, "#B #H #Q #K"] | None:
    """Compute which keys the queries may see.

    Args:
        mask: The mask of the whole map.
        query_Q: Indices of the queries.
        key: Indices of the keys: one row for all queries ([1, 1, K]) or one per query ([B, Q, K]).

    Returns:
        True where a key is visible; None if all are.
    """
    key_Bx1xQxK = key[:, None]
    position_Bx1xQx1 = query_Q[None, None, :, None]
    if mask.query_offset is not None:
        position_Bx1xQx1 = position_Bx1xQx1 + mask.query_offset[:, None, None, None]
    rules: list[jax.Array] = []
    if mask.causal:
        is_earlier = key_Bx1xQxK <= position_Bx1xQx1
        rules.append(
            is_earlier if mask.prefix is None else is_earlier | (key_Bx1xQxK < mask.prefix[:, None, None, None])
        )
    if mask.window is not None:
        center = position_Bx1xQx1 if mask.center is None else jnp.take(mask.center, query_Q, axis=2)[..., None]
        rules.append((key_Bx1xQxK >= center - mask.window[0]) & (key_Bx1xQxK <= center + mask.window[1]))
    if mask.head_windows is not None:
        before, after = (size_H[None, :, None, None] for size_H in mask.head_windows)
        rules.append((key_Bx1xQxK >= position_Bx1xQx1 - before) & (key_Bx1xQxK <= position_Bx1xQx1 + after))
    if mask.query_lengths is not None:
        rules.append(query_Q[None, None, :, None] < mask.query_lengths[:, None, None, None])
    if mask.key_lengths is not None:
        rules.append(key_Bx1xQxK < mask.key_lengths[:, None, None, None])
    if mask.segments is not None:
        query_segments, key_segments = mask.segments
        rules.append(
            jnp.take(query_segments, query_Q, axis=1)[:, None, :, None] == take_at_keys(key_segments, key)[:, None]
        )
    if mask.order is not None:
        query_order, key_order = mask.order
        rules.append(take_at_keys(key_order, key)[:, None] < jnp.take(query_order, query_Q, axis=1)[:, None, :, None])
    if mask.allowed is not None:
        rules.append(take_at_queries_and_keys(mask.allowed, query_Q, key))
    if mask.function is not None:
        assert isinstance(mask.function, IndexedFunction)
        shown = jnp.asarray(mask.function(position_Bx1xQx1, key_Bx1xQxK))
        if shown.dtype != bool:
            raise TypeError(
                f"mask.function returns numbers of type {shown.dtype}; let it return booleans, True where a query may "
                "see a key"
            )
        rules.append(shown)
    if not rules:
        return None
    visible = rules[0]
    for rule in rules[1:]:
        visible = visible & rule
    return visible


def mask_for_block(mask: Mask, batch: int, query_start: Array | int, key_start: Array | int) -> Mask:
    """The mask of a block of the map that begins at these indices.

    Fields with an entry per query or key must already be those of the block; positions become relative to its
    beginning.

    Args:
        mask: The mask.
        batch: Number of examples.
        query_start: Index of the block's first query.
        key_start: Index of the block's first key.

    Returns:
        The mask with `query_offset` set.
    """
    starts = {"queries": query_start, "keys": key_start}
    moved = {
        field.name: getattr(mask, field.name) - starts[field.metadata["counts"]]
        for field in dataclasses.fields(mask)
        if field.metadata.get("counts") and getattr(mask, field.name) is not None
    }
    offset_B = jnp.zeros(batch, jnp.int32) if mask.query_offset is None else mask.query_offset
    if mask.function is not None:
        assert isinstance(mask.function, IndexedFunction)
        moved["function"] = mask.function.shifted(key_start)
    return dataclasses.replace(mask, query_offset=offset_B + query_start - key_start, **moved)


def take_at_keys(values_BxK: Array, key: Int[Array, "#B #Q K"]) -> Array:
    """Take values at key indices, to [B, Q, K] or [B, 1, K]; `values_BxK` may have one more axis at the end."""
    if key.shape[:2] == (1, 1):
        return jnp.take(values_BxK, key[0, 0], axis=1)[:, None]
    return jax.vmap(lambda values, key_QxK: values[key_QxK])(
        jnp.broadcast_to(values_BxK, (key.shape[0], *values_BxK.shape[1:])), key
    )


def take_at_queries_and_keys(grid: Array, query_Q: Int[Array, " Q"], key: Int[Array, "#B #Q K"]) -> Array:
    """Take the entries of an array [#B, #H, #Q, #K] at some queries and keys.

    Args:
        grid: The array.
        query_Q: Indices of the queries.
        key: Indices of the keys: one row for all queries, or one for each.

    Returns:
        The entries, which still broadcast against logits.
    """
    if grid.shape[2] > 1:
        grid = jnp.take(grid, query_Q, axis=2)
    if grid.shape[3] == 1:
        return grid
    if key.shape[:2] == (1, 1):
        return jnp.take(grid, key[0, 0], axis=3)
    batch = max(grid.shape[0], key.shape[0])
    grid = jnp.broadcast_to(grid, (batch, grid.shape[1], key.shape[1], grid.shape[3]))
    return jnp.take_along_axis(grid, jnp.broadcast_to(key[:, None], (batch, 1, *key.shape[1:])), axis=3)


def with_indexed_function(mask: Mask, batch: int, heads: int) -> Mask:
    """The mask whose function, if it has one, gets the indices of this many examples and heads."""
    return dataclasses.replace(mask, function=index_function(mask.function, batch, heads))


def dense_mask(
    mask: Mask, queries: int, keys: int, *, batch: int | None = None, heads: int | None = None
) -> Bool[Array, "#B #H #Q #K"] | None:
    """Convert a mask to booleans.

    Args:
        mask: The mask.
        queries: Number of queries Q.
        keys: Number of keys K.
        batch: Number of examples B, which a mask with a function needs.
        heads: Number of query heads H, which a mask with a function needs.

    Returns:
        True where a query may see a key, broadcastable against logits [B, H, Q, K]; None if every key is visible.

    Raises:
        ValueError: If the mask has a function and `batch` or `heads` is None.

    Example:
        ```python
        from transformer.attention import Mask, dense_mask

        dense_mask(Mask(causal=True), 2, 3)[0, 0]  # [[True, False, False], [True, True, False]]
        ```
    """
    if mask.function is not None and not isinstance(mask.function, IndexedFunction):
        if batch is None or heads is None:
            raise ValueError(
                f"batch={batch} and heads={heads}: mask.function is a function of them; give dense_mask both numbers"
            )
        mask = with_indexed_function(mask, batch, heads)
    return visible_keys(mask, jnp.arange(queries, dtype=jnp.int32), jnp.arange(keys, dtype=jnp.int32)[None, None])


def zero_padded_queries(mask: Mask, q_BxQxHxD: Float[Array, "B Q H D"]) -> Float[Array, "B Q H D"]:
    """Set the queries that `query_lengths` marks as padding to zero.

    Their weights are 0 anyway, but the gradient of a key multiplies that 0 by the query, and 0 NaN is NaN.
    """
    if mask.query_lengths is None:
        return q_BxQxHxD
    inside_BxQ = jnp.arange(q_BxQxHxD.shape[1])[None] < mask.query_lengths[:, None]
    return jnp.where(inside_BxQ[:, :, None, None], q_BxQxHxD, 0)


def zero_hidden_keys(
    mask: Mask,
    x_BxKxGxD: Float[Array, "B K G D"],
    queries: int | None = None,
    bias: Float[Array, "#B #H #Q #K"] | None = None,
) -> Float[Array, "B K G D"]:
    """Set the keys or values that a single field hides from every query to zero.

    Their weights are 0 anyway, but 0 NaN is NaN, in the output and in the gradient of the queries.

    Args:
        mask: The mask.
        x_BxKxGxD: Keys or values.
        queries: Number of queries; None skips the fields that concern queries.
        bias: Hides a key from a query where it is minus infinity.

    Returns:
        The keys or values, with zeros where hidden.
    """
    rules = _visible_to_some_query(mask, queries, x_BxKxGxD.shape[1])
    if bias is not None:
        rules.append(jnp.any(bias != -jnp.inf, axis=(1, 2)))
    for visible in rules:
        x_BxKxGxD = jnp.where(visible[:, :, None, None], x_BxKxGxD, 0)
    return x_BxKxGxD


def _visible_to_some_query(mask: Mask, queries: int | None, keys: int) -> list[Bool[Array, "#B #K"]]:
    """For each field that can hide a key from every query: the keys that it shows to some query."""
    key_1xK = jnp.arange(keys, dtype=jnp.int32)[None]
    rules = []
    if mask.key_lengths is not None:
        rules.append(key_1xK < mask.key_lengths[:, None])
    if mask.allowed is not None:
        rules.append(jnp.any(mask.allowed, axis=(1, 2)))
    if queries is None:
        return rules
    count_Bx1 = jnp.full((1, 1), queries) if mask.query_lengths is None else mask.query_lengths[:, None]
    # A query of every position sees its own key; behind a cache's queries stand the zeros that it was made of, and to
    # copy it at every step would take as long as the step.
    every_key_has_query = mask.query_lengths is None and keys <= queries
    limited_by_queries = mask.query_offset is None and not every_key_has_query
    if mask.causal and limited_by_queries:
        is_visible = key_1xK < count_Bx1
        rules.append(
            is_visible if mask.prefix is None else is_visible | (key_1xK < mask.prefix[:, None]) & (count_Bx1 > 0)
        )
    if mask.window is not None and mask.center is None and limited_by_queries:
        rules.append(key_1xK < count_Bx1 + mask.window[1])
    if mask.head_windows is not None and limited_by_queries:
        rules.append(key_1xK < count_Bx1 + jnp.max(mask.head_windows[1]))
    if mask.window is not None and mask.center is not None:
        distance = key_1xK[:, None, None] - mask.center[..., None]
        rules.append(jnp.any((distance >= -mask.window[0]) & (distance <= mask.window[1]), axis=(1, 2)))
    inside = jnp.arange(queries)[None] < count_Bx1
    if mask.segments is not None and mask.segments[0] is not mask.segments[1]:
        query_segments, key_segments = mask.segments
        rules.append(jnp.any((query_segments[:, :, None] == key_segments[:, None]) & inside[:, :, None], axis=1))
    if mask.order is not None:
        query_order, key_order = mask.order
        smallest = jnp.iinfo(query_order.dtype).min
        rules.append(key_order < jnp.max(jnp.where(inside, query_order, smallest), axis=1, keepdims=True))
    return rules


def check_mask(mask: Mask, *, batch: int, heads: int, queries: int, keys: int) -> None:
    """Check that a mask's fields match the arrays and each other.

    Args:
        mask: The mask.
        batch: Number of examples.
        heads: Number of query heads.
        queries: Number of queries.
        keys: Number of keys.

    Raises:
        ValueError: If a field's shape or value is wrong, or if it needs another field; says what would be right.
        TypeError: If it is not a `Mask`, if a field is not an array, or if `allowed` is not boolean.
    """
    if not isinstance(mask, Mask):
        suggestion = f"Mask(allowed=...), booleans {MAP_AXES}" if is_array(mask) else "such as Mask(causal=True)"
        raise TypeError(f"mask is {describe_value(mask)}; it must be a Mask, {suggestion}")
    if mask.window is not None:
        is_pair = isinstance(mask.window, tuple) and len(mask.window) == 2
        if not is_pair or not all(isinstance(size, int) and size >= 0 for size in mask.window):
            raise ValueError(f"mask.window={mask.window} must be (before, after), whole numbers at least 0")
        if mask.center is not None and sum(mask.window) == 0:
            raise ValueError(f"mask.window={mask.window} around mask.center must reach further: say at least (1, 1)")
    if mask.function is not None:
        check_function("mask.function", mask.function, ("batch", "head", "query", "key"))
    missing = missing_field(mask.present_fields())
    if missing is not None:
        raise ValueError(missing)
    sizes = {"batch": batch, "heads": heads, "queries": queries, "keys": keys}
    for field in dataclasses.fields(mask):
        name, value, axes = field.name, getattr(mask, field.name), field.metadata.get("axes")
        if value is None or axes is None:
            continue
        if axes == LOGIT_AXES:
            check_allowed_array(f"mask.{name}", value, (batch, heads, queries, keys))
            continue
        pair = isinstance(axes[0], tuple)
        shapes = tuple(tuple(sizes[axis] for axis in part_axes) for part_axes in (axes if pair else (axes,)))
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if not is_array(part):
                raise TypeError(f"mask.{name} is {describe_value(part)}; it must be an array {_format_shapes(shapes)}")
        actual_shapes = tuple(tuple(part.shape) for part in parts)
        if actual_shapes != shapes and (name, actual_shapes) != ("query_offset", ((1,),)):
            raise ValueError(
                f"mask.{name} has shape {_format_shapes(actual_shapes)}; queries of batch {batch}, "
                f"{heads} heads, {queries} queries and {keys} keys need {_format_shapes(shapes)}"
            )


def check_allowed_array(name: str, allowed: Array, shape: tuple[int, int, int, int]) -> None:
    """Check that `allowed` is a boolean array that broadcasts against logits of this shape.

    Raises:
        TypeError: If it is not a boolean array.
        ValueError: If it does not broadcast.
    """
    if isinstance(allowed, Mask):
        raise TypeError(f"{name} is a Mask; give dense_mask(mask, queries, keys), its booleans")
    check_broadcast(name, allowed, shape)
    if allowed.dtype != bool:
        raise TypeError(f"{name} has numbers of type {allowed.dtype}; give booleans, True where a query may see a key")


def check_broadcast(name: str, array: Array, shape: tuple[int, int, int, int]) -> None:
    """Check that an array broadcasts against logits of this shape.

    Raises:
        ValueError: If it does not; gives the array's name and both shapes.
        TypeError: If it is not an array.
    """
    if not is_array(array):
        raise TypeError(
            f"{name} is {describe_value(array)}; it must be an array that broadcasts against logits {shape}"
        )
    if array.ndim != 4:
        raise ValueError(
            f"{name} has shape {tuple(array.shape)}, {array.ndim} axes; it must have the four of the logits, batch, "
            f"heads, queries and keys {shape}, each whole or 1: x[None, None] adds a batch and heads in front"
        )
    if any(size not in (1, full_size) for size, full_size in zip(array.shape, shape, strict=True)):
        raise ValueError(f"{name} has shape {tuple(array.shape)}, which does not broadcast against logits {shape}")


def _format_shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return str(shapes[0]) if len(shapes) == 1 else str(shapes)
