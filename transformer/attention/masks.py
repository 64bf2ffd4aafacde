"""Masks as facts: what a query may see, said in a form that a fused kernel could take natively."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Mask(NamedTuple):
    """Which keys each query may see; an absent fact forbids nothing.

    `causal`: query at position p sees keys at positions <= p. `query_offset`: the position of an example's
    first query, for queries that continue a cache. `key_lengths`: keys at or beyond an example's length are
    padding.
    """

    causal: bool = False
    query_offset: Int[Array, " B"] | None = None
    key_lengths: Int[Array, " B"] | None = None


def dense(mask: Mask, queries: int, keys: int) -> Bool[Array, "#B 1 #Q K"] | None:
    """The mask as booleans (True: may see), broadcastable against logits `B H Q K`; None allows everything."""
    allowed: jax.Array | None = None
    key_1xK = jnp.arange(keys)[None]
    if mask.causal:
        query_1xQ = jnp.arange(queries)[None]
        position_BxQ = query_1xQ if mask.query_offset is None else query_1xQ + mask.query_offset[:, None]
        allowed = (key_1xK[:, None, :] <= position_BxQ[:, :, None])[:, None]
    if mask.key_lengths is not None:
        real = (key_1xK < mask.key_lengths[:, None])[:, None, None, :]
        allowed = real if allowed is None else allowed & real
    return allowed
