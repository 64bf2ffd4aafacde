"""The attention distance of the heads of an image model, in pixels."""

from typing import Any

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import Axis, Site
from transformer.attention.statistics import DISTANCE
from transformer.maps.store import MapStore, Statistics

PIXELS = "distance_in_pixels"


def shared_grid(site: Site) -> Axis | None:
    """Return the grid of patches that an attention module's queries and keys share, None if there is no such grid."""
    return site.key if site.query == site.key and site.key.shape is not None else None


def distances_in_pixels(statistics: Statistics, site: Site) -> Statistics:
    """Convert the mean attention distance of an image's patches to pixels.

    It is the mean attention distance of Dosovitskiy et al. (2021, figure 7): the mean over queries of sum_k w_qk
    |center of q - center of k| / sum_k w_qk. Only patches count: leading positions, such as a class token, are left out
    as queries and, in both sums, as keys.

    Args:
        statistics: The statistics of a module's heads, with the distance in patches.
        site: The attention module.

    Returns:
        The statistics with the distance in pixels, named `PIXELS`; unchanged if the module has no shared grid.
    """
    grid = shared_grid(site)
    if grid is None:
        return statistics
    place = statistics.names.index(DISTANCE.name)
    values = np.array(statistics.values)
    # The run measures in patches.
    values[..., place] *= grid.stride
    return Statistics((*statistics.names[:place], PIXELS, *statistics.names[place + 1 :]), values)


def uniform_distance(grid: Axis) -> float:
    """Return the attention distance in pixels of a head that weights all patches of a grid alike."""
    assert grid.shape is not None
    centers = grid.stride * np.indices(grid.shape).reshape(2, -1)
    return float(np.hypot(*(centers[:, :, None] - centers[:, None])).mean())


def page_attention_distances(store: MapStore) -> list[dict[str, Any] | None]:
    """Return the attention distances at the last stored step, for the page.

    Returns:
        For each attention module None without a shared grid, else a dictionary: `heads` are the distances in pixels
        [layer][head], averaged over examples, and `uniform` is the distance of uniform attention.
    """
    return [_site_distances(store, site) for site in store.sites]


def _site_distances(store: MapStore, site: Site) -> dict[str, Any] | None:
    grid = shared_grid(site)
    if grid is None:
        return None
    names, values_SxBxLxHxN = distances_in_pixels(store.statistics(site.name), site)
    far_BxLxH = np.asarray(values_SxBxLxHxN[-1, ..., names.index(PIXELS)], np.float64)
    return {"uniform": _round_to_four_digits(uniform_distance(grid)), "heads": _mean_over_examples(far_BxLxH)}


def _mean_over_examples(far_BxLxH: Float[np.ndarray, "B L H"]) -> list[list[float | None]]:
    """Average over the examples; None for a head that attends to no patch in any example."""
    is_defined = np.isfinite(far_BxLxH)
    sums, counts = np.where(is_defined, far_BxLxH, 0).sum(axis=0), is_defined.sum(axis=0)
    return [
        [_round_to_four_digits(total / count) if count else None for total, count in zip(*layer, strict=True)]
        for layer in zip(sums, counts, strict=True)
    ]


def _round_to_four_digits(value: float) -> float:
    return float(f"{value:.4g}")
