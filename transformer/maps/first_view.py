"""The page's first view: the cross-attention head that aligns best, on a sentence that re-orders."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import Site
from transformer.maps.store import MapStore
from transformer.tasks.labels import Labels, Link


def first_view(store: MapStore) -> dict[str, Any]:
    """Indices of the site, example, layer and head to open with, at the store's last step.

    The site is the first with gold links whose whole maps are kept, else the first between two sequences. Its head
    is the one with the most weight on gold links, else with the sharpest rows; its example the one in which the
    strongest weights of that head, those on gold links if the site has some, cross most often. Long sites are judged
    by their coarsest level.
    """
    linked = [site for site in store.sites if site.name in (store.labels.links or {}) and _coarsest(store, site).whole]
    between = [site for site in store.sites if site.query.name != site.key.name and not site.causal]
    site = (linked or between or list(store.sites))[0]
    view = _coarsest(store, site)
    weights = store.read(site.name, store.steps[-1], view.level)
    scores = linked_mass(weights, site, store.labels) if linked else sharpness(weights)
    layer, head = np.unravel_index(np.argmax(scores), scores.shape)
    links = store.labels.links[site.name] if linked and store.labels.links else [None] * len(store.labels.titles)
    crossings = [
        count_crossings(_pairs(weights[example, layer, head], of_example)) for example, of_example in enumerate(links)
    ]
    return {
        "site": store.sites.index(site),
        "example": int(np.argmax(crossings)),
        "layer": int(layer),
        "head": int(head),
    }


class _View(NamedTuple):
    level: str
    whole: bool


def _coarsest(store: MapStore, site: Site) -> _View:
    level = store.levels(site.name)[0]
    return _View(level.name, (level.query_block, level.key_block) == (1, 1))


def linked_mass(weights: Float[np.ndarray, "B L H Q K"], site: Site, labels: Labels) -> Float[np.ndarray, "L H"]:
    """The weight that a head puts on gold links, averaged over all query positions that have one."""
    assert labels.links is not None
    total, rows = np.zeros(weights.shape[1:3]), 0
    for example, links in enumerate(labels.links[site.name]):
        total += sum(weights[example, :, :, query, key] for query, key, _ in links)
        rows += len({query for query, _, _ in links})
    return total / max(rows, 1)


def sharpness(weights: Float[np.ndarray, "B L H Q K"]) -> Float[np.ndarray, "L H"]:
    """The largest weight of a row, averaged over the rows of all examples that have any weight."""
    largest = weights.max(axis=-1, initial=0.0)
    rows = (largest > 0).sum(axis=(0, 3))
    return largest.sum(axis=(0, 3)) / np.maximum(rows, 1)


def count_crossings(pairs: list[tuple[int, int]]) -> int:
    """How many pairs of (query, key) links run against each other: i < i' while k > k'."""
    return sum(a[0] < b[0] and a[1] > b[1] for a in pairs for b in pairs)


def _pairs(weights_QxK: Float[np.ndarray, "Q K"], links: Sequence[Link] | None) -> list[tuple[int, int]]:
    """Each query with its strongest key, without pairs that are no gold link where links are known."""
    attending = np.flatnonzero(weights_QxK.max(axis=-1, initial=0.0))
    strongest = [(int(query), int(weights_QxK[query].argmax())) for query in attending]
    if links is None:
        return strongest
    # Possible links may fill a whole phrase and cross each other: only the head's own choices count.
    linked = {(query, key) for query, key, _ in links}
    return [pair for pair in strongest if pair in linked]
