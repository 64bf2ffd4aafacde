"""Attention rollout: how the layers of self-attention together mix positions. A view of mixing, no attribution."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import Site, Values
from transformer.config import UserError
from transformer.maps.store import MapStore
from transformer.tasks.labels import Labels


def rollout_of(store: MapStore, site: str, step: int) -> Float[np.ndarray, "B L Q K"]:
    """The rollout of all layers of `site` at `step`, from its whole maps.

    Errors: UserError where the site is no self-attention, or its whole maps are not stored at that step.
    """
    stored = store.site(site)
    if stored.values is not Values.PROBABILITY:
        raise UserError(f"site={site!r} has maps of values={stored.values.value}: rollout needs rows that sum to one")
    if not is_self_attention(stored, store.labels):
        raise UserError(
            f"site={site!r} attends from {stored.query.name} to {stored.key.name}: rollout needs self-attention, whose "
            "position i is the same on both sides"
        )
    lengths = [len(tokens) for tokens in store.labels.tokens[stored.query.name]]
    return rollout(store.read(site, step), lengths)


def rollout(weights_BxLxHxQxK: Float[np.ndarray, "B L H Q K"], lengths: Sequence[int]) -> Float[np.ndarray, "B L Q K"]:
    """The share of each position of the first layer's input in each position, after every layer.

    A_l = 0.5 mean_h W_lh + 0.5 I with rows that sum to one, R_l = A_l R_(l-1), R_0 = I (Abnar and Zuidema 2020,
    equation 1): half of a position stays where it is, along the residual stream. The maps must be those of one stack,
    from its first layer. It follows the weights alone, not values, norms and feed-forward layers: it shows how
    positions are mixed, and is no attribution. Beyond an example's length all is zero.

    Errors: ValueError if maps are not square, or `lengths` is not one length for each example.
    """
    examples, layers, _, queries, keys = weights_BxLxHxQxK.shape
    if queries != keys:
        raise ValueError(f"weights has {queries} queries and {keys} keys: rollout needs square maps")
    if len(lengths) != examples or not all(0 <= length <= queries for length in lengths):
        raise ValueError(f"lengths={list(lengths)} must be {examples} numbers from 0 to {queries}, one an example")
    real_BxQ = np.arange(queries) < np.asarray(lengths)[:, None]
    inside_BxQxK = real_BxQ[:, :, None] & real_BxQ[:, None, :]
    mixed_BxLxQxK = np.zeros((examples, layers, queries, keys), weights_BxLxHxQxK.dtype)
    before_BxQxK = np.where(inside_BxQxK, np.eye(queries), 0).astype(mixed_BxLxQxK.dtype)
    stays_BxQxK = 0.5 * before_BxQxK
    for layer in range(layers):
        step_BxQxK = np.where(inside_BxQxK, 0.5 * weights_BxLxHxQxK[:, layer].mean(axis=1), 0) + stays_BxQxK
        # Stored weights are quantised; a row that attends to nothing keeps only itself.
        total_BxQx1 = step_BxQxK.sum(axis=-1, keepdims=True)
        step_BxQxK /= np.where(total_BxQx1 > 0, total_BxQx1, 1)
        before_BxQxK = mixed_BxLxQxK[:, layer] = step_BxQxK @ before_BxQxK
    return mixed_BxLxQxK


def is_self_attention(site: Site, labels: Labels) -> bool:
    """Whether position i is the same on both sides of a site's maps.

    So it is where both have one axis, and in a causal decoder, whose keys are named by its shifted input.
    """
    if site.query.name == site.key.name:
        return True
    sides = (map(len, labels.tokens[axis.name]) for axis in (site.query, site.key))
    return site.causal and all(queries == keys for queries, keys in zip(*sides, strict=True))
