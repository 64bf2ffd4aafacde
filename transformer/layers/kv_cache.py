"""Ring-buffer caches of keys and values, where position p is stored at slot p mod the number of slots.

A cache has the axes [S, G, N, K, D]: either the N rows (beams) of an example share one, or each row has its own and
N is 1. In a shared cache no beam's history is ever moved: `ancestors` gives the row that wrote each position of a
row's history.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.attention_spec import AttentionSpec
from transformer.attention.logit_modification import Softcap
from transformer.attention.normalizers import normalize
from transformer.attention.scores import resolve_score_function
from transformer.logical_axes import is_sharded

KeysAndValues = tuple[Float[Array, "..."], Float[Array, "..."]]

# The rows of an example that share a cache: each reads what all wrote, which is more work than it saves for many.
MOST_SHARED = 8
# So many caches are written in place, one after the other.
IN_PLACE = 8


def rows_per_cache(num_beams: int) -> int:
    """How many rows share a cache if an example has this many beams."""
    return num_beams if num_beams <= MOST_SHARED else 1


def slot_positions(position_R: Int[Array, " R"], slots: int) -> Int[Array, "R K"]:
    """The position stored in each slot.

    Args:
        position_R: The newest position of each row.
        slots: K, the number of slots.

    Returns:
        The positions; negative for a slot that is still empty.
    """
    return position_R[:, None] - (position_R[:, None] - jnp.arange(slots)) % slots


def fill_cache(
    values_BxPxGxD: Float[Array, "B P G D"], last_B: Int[Array, " B"], slots: int
) -> Float[Array, "B K G D"]:
    """Fill the slots of a cache with the values at positions up to each row's last one.

    Args:
        values_BxPxGxD: Keys or values of all positions.
        last_B: The last real position of each row.
        slots: K, the number of slots.

    Returns:
        The newest values in their slots, zero in empty slots.
    """
    held_BxK = slot_positions(last_B, slots)
    index = jnp.clip(held_BxK, 0, values_BxPxGxD.shape[1] - 1)[:, :, None, None]
    picked = jnp.take_along_axis(values_BxPxGxD, index, axis=1)
    return jnp.where((held_BxK >= 0)[:, :, None, None], picked, 0)


def repeat_cache(values_BxKxGxD: Float[Array, "B K G D"], num_beams: int) -> Float[Array, "S G N K D"]:
    """Repeat the caches of examples whose `num_beams` rows begin alike, in the layout [S, G, N, K, D]."""
    values_BxGx1xKxD = jnp.moveaxis(values_BxKxGxD, 2, 1)[:, :, None]
    shared = rows_per_cache(num_beams)
    return jnp.repeat(jnp.repeat(values_BxGx1xKxD, shared, axis=2), num_beams // shared, axis=0)


def write_slot(
    cache_SxGxNxKxD: Float[Array, "S G N K D"], new_Rx1xGxD: Float[Array, "R 1 G D"], position_R: Int[Array, " R"]
) -> Float[Array, "S G N K D"]:
    """Write each row's new key or value at the slot of its position.

    Rows that share a cache have the same position. Few caches are updated in place; many, or sharded ones, by one pass
    over the whole array.

    Args:
        cache_SxGxNxKxD: The cache.
        new_Rx1xGxD: New keys or values.
        position_R: The position of each row.

    Returns:
        The updated cache.
    """
    shares, groups, rows, slots, depth = cache_SxGxNxKxD.shape
    new = jnp.swapaxes(new_Rx1xGxD.reshape(shares, rows, groups, depth), 1, 2)[:, :, :, None]
    slot_S = position_R[::rows] % slots
    if shares > IN_PLACE or is_sharded():
        here_SxK = jnp.arange(slots)[None] == slot_S[:, None]
        return jnp.where(here_SxK[:, None, None, :, None], new, cache_SxGxNxKxD)
    for share in range(shares):
        # In 64-bit mode Python's numbers would be of another type than the slot.
        at = tuple(jnp.asarray(index, slot_S.dtype) for index in (share, 0, 0, slot_S[share], 0))
        cache_SxGxNxKxD = jax.lax.dynamic_update_slice(cache_SxGxNxKxD, new[share : share + 1], at)
    return cache_SxGxNxKxD


def gather_from_writers(
    cache_SxGxNxKxD: Float[Array, "S G N K D"], writer_RxK: Int[Array, "R K"]
) -> Float[Array, "R K G D"]:
    """Gather each row's keys or values from the rows that wrote them.

    Args:
        cache_SxGxNxKxD: The cache.
        writer_RxK: For each row and slot, the row of its example that wrote it.

    Returns:
        The keys or values of each row.
    """
    shares, groups, rows, slots, depth = cache_SxGxNxKxD.shape
    index = writer_RxK.reshape(shares, 1, rows, slots, 1)
    picked = jnp.take_along_axis(cache_SxGxNxKxD, index, axis=2) if rows > 1 else cache_SxGxNxKxD
    return jnp.moveaxis(jnp.moveaxis(picked, 2, 1).reshape(shares * rows, groups, slots, depth), 1, 2)


def slot_writers(ancestors_RxT: Int[Array, "R T"], held_RxK: Int[Array, "R K"]) -> Int[Array, "R K"]:
    """Look up which row of an example wrote each slot of a row's history.

    Args:
        ancestors_RxT: For each row and position, the row that wrote it.
        held_RxK: The position in each slot.

    Returns:
        The row that wrote each slot.
    """
    return jnp.take_along_axis(ancestors_RxT, jnp.clip(held_RxK, 0), axis=1)


def initial_ancestors(rows: int, num_beams: int, length: int) -> Int[Array, "R T"]:
    """The ancestors at the beginning: each row is its own."""
    own_R = jnp.arange(rows, dtype=jnp.int32) % rows_per_cache(num_beams)
    return jnp.broadcast_to(own_R[:, None], (rows, length))


def update_ancestors(ancestors_RxT: Int[Array, "R T"], position_R: Int[Array, " R"], shared: int) -> Int[Array, "R T"]:
    """Update the ancestors after each row has written its position itself.

    Args:
        ancestors_RxT: The ancestors so far.
        position_R: The position that each row wrote.
        shared: How many rows share a cache.

    Returns:
        The new ancestors.
    """
    rows, length = ancestors_RxT.shape
    here_RxT = jnp.arange(length) == position_R[:, None]
    return jnp.where(here_RxT, (jnp.arange(rows, dtype=jnp.int32) % shared)[:, None], ancestors_RxT)


def attend_to_cache(
    q_Rx1xHxD: Float[Array, "R 1 H D"],
    caches: KeysAndValues,
    seen_RxK: Bool[Array, "R K"],
    writer_RxK: Int[Array, "R K"],
    spec: AttentionSpec,
    bias_Rx_x1xK: Float[Array, "#R #H 1 K"] | None,
) -> Float[Array, "R 1 H D"]:
    """Attend from one new position of each row to the cache, for scores that are a product of query and key.

    The rows of an example and the heads of a group are queries of a single product, so that keys and values are read in
    place: never repeated, moved or cleared. What a row does not see has a weight of exactly 0.

    Args:
        q_Rx1xHxD: A query per row.
        caches: The caches of keys and of values.
        seen_RxK: Which slots each row sees.
        writer_RxK: The row that wrote each slot.
        spec: The score, scale, soft cap and normalizer.
        bias_Rx_x1xK: Added to the logits.

    Returns:
        The output of each row.
    """
    shares, num_kv_heads, shared, slots, depth = caches[0].shape
    k_SxGxMxD, v_SxGxMxD = (cache.reshape(shares, num_kv_heads, shared * slots, -1) for cache in caches)
    _, _, heads, _ = q_Rx1xHxD.shape
    group_heads = heads // num_kv_heads
    # Queries of a group: [row, head within the group].
    q_SxGxQxD = jnp.swapaxes(q_Rx1xHxD.reshape(shares, shared, num_kv_heads, group_heads, depth), 1, 2)
    q_SxGxQxD = q_SxGxQxD.reshape(shares, num_kv_heads, shared * group_heads, depth)
    wide = jnp.promote_types(q_Rx1xHxD.dtype, jnp.float32)
    logits = jnp.einsum("sgqd,sgmd->sgqm", q_SxGxQxD, k_SxGxMxD, preferred_element_type=wide)
    logits = logits * resolve_score_function(spec.score, None).scale(depth, spec.scale)
    if spec.logit_modification is not None:
        assert isinstance(spec.logit_modification, Softcap)
        logits = spec.logit_modification(logits)
    if bias_Rx_x1xK is not None:
        bias = jnp.broadcast_to(bias_Rx_x1xK, (shares * shared, heads, 1, slots)).astype(wide)
        bias = jnp.swapaxes(bias.reshape(shares, shared, num_kv_heads, group_heads, slots), 1, 2)
        bias = bias.reshape(shares, num_kv_heads, shared * group_heads, 1, slots)
        logits = (logits.reshape(*logits.shape[:3], shared, slots) + bias).reshape(logits.shape)
    seen_RxNxK = seen_RxK[:, None]
    if shared > 1:
        seen_RxNxK = seen_RxNxK & (writer_RxK[:, None] == jnp.arange(shared)[:, None])
    allowed = jnp.repeat(seen_RxNxK.reshape(shares, 1, shared, shared * slots), group_heads, axis=2)
    weights = normalize(logits, allowed, spec.normalizer).values.astype(v_SxGxMxD.dtype)
    output = jnp.einsum("sgqm,sgmd->sgqd", weights, v_SxGxMxD)
    output = jnp.swapaxes(output.reshape(shares, num_kv_heads, shared, group_heads, -1), 1, 2)
    return output.reshape(shares * shared, 1, heads, -1)
