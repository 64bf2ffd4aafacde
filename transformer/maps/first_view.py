"""What the page opens with: the cross-attention head that aligns best, on a sentence that re-orders."""

from typing import Any

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import Site
from transformer.maps.store import MapStore
from transformer.tasks.labels import Labels


def first_view(store: MapStore) -> dict[str, Any]:
    """Indices of the site, example, layer and head to open with, at the store's last step.

    The site is the first with gold links, else the first between two sequences. Its head is the one with the
    most weight on gold links, else with the sharpest rows; its example the one in which the strongest weights of that
    head, those on gold links where there are any, cross most often.
    """
    linked = [site for site in store.sites if site.name in (store.labels.links or {})]
    between = [site for site in store.sites if site.query.name != site.key.name and not site.causal]
    site = (linked or between or list(store.sites))[0]
    weights = store.read(site.name, store.steps[-1])
    if linked:
        scores = linked_mass(weights, site, store.labels)
    else:
        scores = sharpness(weights, site, store.labels)
    layer, head = np.unravel_index(np.argmax(scores), scores.shape)
    crossings = [
        count_crossings(_pairs(weights[example, layer, head], site, store.labels, example))
        for example in range(len(store.labels.titles))
    ]
    return {
        "site": store.sites.index(site),
        "example": int(np.argmax(crossings)),
        "layer": int(layer),
        "head": int(head),
    }


def linked_mass(weights: Float[np.ndarray, "B L H Q K"], site: Site, labels: Labels) -> Float[np.ndarray, "L H"]:
    """The weight that a head puts on gold links, averaged over all query positions that have one."""
    assert labels.links is not None
    total, rows = np.zeros(weights.shape[1:3]), 0
    for example, links in enumerate(labels.links[site.name]):
        total += sum(weights[example, :, :, query, key] for query, key, _ in links)
        rows += len({query for query, _, _ in links})
    return total / max(rows, 1)


def sharpness(weights: Float[np.ndarray, "B L H Q K"], site: Site, labels: Labels) -> Float[np.ndarray, "L H"]:
    """The largest weight of a row, averaged over the rows of all examples."""
    rows = sum(len(tokens) for tokens in labels.tokens[site.query.name])
    return weights.max(axis=-1, initial=0.0).sum(axis=(0, 3)) / max(rows, 1)


def count_crossings(pairs: list[tuple[int, int]]) -> int:
    """How many pairs of (query, key) links run against each other: i < i' while k > k'."""
    return sum(a[0] < b[0] and a[1] > b[1] for a in pairs for b in pairs)


def _pairs(weights_QxK: np.ndarray, site: Site, labels: Labels, example: int) -> list[tuple[int, int]]:
    """Each query with its strongest key, without pairs that are no gold link where links are known."""
    queries = len(labels.tokens[site.query.name][example])
    strongest = [(query, int(weights_QxK[query].argmax())) for query in range(queries)]
    if not labels.links or site.name not in labels.links:
        return strongest
    # Possible links may fill a whole phrase and cross by themselves: only what the head really picks re-orders.
    linked = {(query, key) for query, key, _ in labels.links[site.name][example]}
    return [pair for pair in strongest if pair in linked]
