"""Attention rollout in NumPy, which the page computes in JavaScript: how layers of attention together mix positions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import MapValues, Site
from transformer.config import UserError
from transformer.maps.role_rules import is_self_attention
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels


class RolloutStacks(NamedTuple):
    """The self-attention modules on both sides of a cross-attention.

    Attributes:
        decoder_site: The decoder's self-attention.
        encoder_site: The encoder's self-attention, None without one.
    """

    decoder_site: Site
    encoder_site: Site | None


def read_rollout(store: MapStore, site: str, step: int) -> Float[np.ndarray, "B L Q K"]:
    """Compute the rollout of all layers of an attention module from the stored whole maps of a step.

    Args:
        store: The maps of a run.
        site: The name of a self-attention, or of a cross-attention whose queries have self-attention in every layer.
        step: The training step.

    Returns:
        The rollout [example, layer, query, key]: `rollout` for self-attention, `rollout_across` for cross-attention.

    Raises:
        UserError: If the rows of the module's maps do not sum to one, it is neither self-attention nor cross-attention
            with self-attention in every layer, or whole maps are not stored at that step.
    """
    stored = store.site(site)
    if stored.values is not MapValues.PROBABILITY:
        raise UserError(f"site={site!r} has maps of values={stored.values.value}: rollout needs rows that sum to one")
    queries, keys = ([len(tokens) for tokens in store.labels.tokens[axis.name]] for axis in (stored.query, stored.key))
    if is_self_attention(stored, store.labels):
        return rollout(store.read(site, step), queries)
    stacks = rollout_stacks(stored, store.sites, store.labels)
    if stacks is None:
        raise UserError(
            f"site={site!r} attends from {stored.query.name} to {stored.key.name}: rollout needs self-attention, whose "
            "position i is the same on both sides, in it or beside it in every layer"
        )
    read = None if stacks.encoder_site is None else rollout(store.read(stacks.encoder_site.name, step), keys)[:, -1]
    return rollout_across(store.read(site, step), store.read(stacks.decoder_site.name, step), read, queries, keys)


def rollout_stacks(cross: Site, sites: Sequence[Site], labels: AxisLabels) -> RolloutStacks | None:
    """Return the self-attention of the queries and of the keys of a cross-attention.

    Args:
        cross: The cross-attention.
        sites: All attention modules of the model.
        labels: The labels of their positions.

    Returns:
        The two stacks; None if the queries have no self-attention with the same layers.
    """
    alone = [site for site in sites if site.values is MapValues.PROBABILITY and is_self_attention(site, labels)]
    decoders = [site for site in alone if site.query.name == cross.query.name and site.layers == cross.layers]
    encoders = [site for site in alone if site.query.name == cross.key.name]
    return RolloutStacks(decoders[0], encoders[0] if encoders else None) if decoders else None


def rollout_across(
    cross_BxLxHxQxK: Float[np.ndarray, "B L H Q K"],
    decoder_BxLxGxQxQ: Float[np.ndarray, "B L G Q Q"],
    encoder_BxKxK: Float[np.ndarray, "B K K"] | None,
    queries: Sequence[int],
    keys: Sequence[int],
) -> Float[np.ndarray, "B L Q K"]:
    """Compute how much of each source position is in each target position, after every layer of the decoder.

    R_l = 0.5 A_l R_(l-1) + 0.5 C_l E, R_0 = 0: C_l is the mean of the heads of cross-attention, A_l the mixing of the
    decoder's self-attention as in `rollout`, and E the rollout of the whole encoder, the identity without one. Each
    sub-layer leaves half of a position to the residual stream. A row sums to at most one; the rest is the share of the
    target's own positions.

    Args:
        cross_BxLxHxQxK: The cross-attention weights [example, layer, head, query, key].
        decoder_BxLxGxQxQ: The weights of the decoder's self-attention.
        encoder_BxKxK: The rollout of the whole encoder [example, key, key]; None without an encoder.
        queries: The number of target positions of each example.
        keys: The number of source positions of each example.

    Returns:
        The shares [example, layer, query, key], zero beyond an example's length.
    """
    mixed = np.zeros(cross_BxLxHxQxK[:, :, 0].shape, cross_BxLxHxQxK.dtype)
    for example, (num_queries, num_keys) in enumerate(zip(queries, keys, strict=True)):
        source = np.eye(num_keys) if encoder_BxKxK is None else encoder_BxKxK[example, :num_keys, :num_keys]
        mixture = np.zeros((num_queries, num_keys))
        for layer in range(mixed.shape[1]):
            own = 0.5 * decoder_BxLxGxQxQ[example, layer, :, :num_queries, :num_queries].mean(axis=0) + 0.5 * np.eye(
                num_queries
            )
            cross = cross_BxLxHxQxK[example, layer, :, :num_queries, :num_keys].mean(axis=0)
            # Stored weights are quantized; a row that reads nothing of the source stays as it is.
            combined = (own / own.sum(axis=-1, keepdims=True)) @ mixture + cross @ source
            mixture = combined / (1 + cross.sum(axis=-1, keepdims=True))
            mixed[example, layer, :num_queries, :num_keys] = mixture
    return mixed


def rollout(weights_BxLxHxQxK: Float[np.ndarray, "B L H Q K"], lengths: Sequence[int]) -> Float[np.ndarray, "B L Q K"]:
    """Compute how much of each input position is in each position, after every layer of a stack of self-attention.

    A_l = 0.5 mean_h W_lh + 0.5 I with rows that sum to one, R_l = A_l R_(l-1), R_0 = I (Abnar and Zuidema 2020,
    equation 1): half of a position stays in place along the residual stream. The maps must be those of one stack, from
    its first layer. Rollout follows the weights alone and ignores values, norms and feed-forward layers: it shows how
    positions are mixed, and is no attribution.

    Args:
        weights_BxLxHxQxK: The weights [example, layer, head, query, key], with as many queries as keys.
        lengths: The number of positions of each example.

    Returns:
        The shares [example, layer, query, key], zero beyond an example's length.

    Raises:
        ValueError: If the maps are not square, or `lengths` does not hold one length for each example.
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
        # Stored weights are quantized; a row that attends to nothing keeps only itself.
        total_BxQx1 = step_BxQxK.sum(axis=-1, keepdims=True)
        step_BxQxK /= np.where(total_BxQx1 > 0, total_BxQx1, 1)
        before_BxQxK = mixed_BxLxQxK[:, layer] = step_BxQxK @ before_BxQxK
    return mixed_BxLxQxK
