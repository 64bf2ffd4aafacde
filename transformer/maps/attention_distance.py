"""How far the heads of an image look, in pixels: what the stored distances between patches come to."""

from typing import Any

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import Axis, Site
from transformer.attention.statistics import DISTANCE
from transformer.maps.store import MapStore, Statistics

PIXELS = "distance_in_pixels"


def shared_grid(site: Site) -> Axis | None:
    """The grid whose patches a site's queries and keys both are; None where it has no such one."""
    return site.key if site.query == site.key and site.key.shape is not None else None


def distances_in_pixels(statistics: Statistics, site: Site) -> Statistics:
    """The statistics of a site with the distance of its patches in pixels, under the name `PIXELS`.

    It is the mean attention distance of Dosovitskiy et al. (2021, figure 7): the mean over queries of
    sum_k w_qk |center of q - center of k| / sum_k w_qk. Both run over patches alone: what leads them, such as a class
    token, is no query here, and as a key it is left out of both sums. Other sites' statistics stay as they are.
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
    """The distance in pixels of a head that reads all patches alike."""
    assert grid.shape is not None
    centers = grid.stride * np.indices(grid.shape).reshape(2, -1)
    return float(np.hypot(*(centers[:, :, None] - centers[:, None])).mean())


def distances(store: MapStore) -> list[dict[str, Any] | None]:
    """Of every site on one grid how far its heads look at the last step, [layer][head], and `even`; the page's data."""
    return [_of_site(store, site) for site in store.sites]


def _of_site(store: MapStore, site: Site) -> dict[str, Any] | None:
    grid = shared_grid(site)
    if grid is None:
        return None
    names, values_SxBxLxHxN = distances_in_pixels(store.statistics(site.name), site)
    far_BxLxH = np.asarray(values_SxBxLxHxN[-1, ..., names.index(PIXELS)], np.float64)
    return {"even": _rounded(uniform_distance(grid)), "heads": _means(far_BxLxH)}


def _means(far_BxLxH: Float[np.ndarray, "B L H"]) -> list[list[float | None]]:
    """Means over the examples; None for a head that reads no patch in any."""
    known = np.isfinite(far_BxLxH)
    sums, counts = np.where(known, far_BxLxH, 0).sum(axis=0), known.sum(axis=0)
    return [
        [_rounded(total / count) if count else None for total, count in zip(*layer, strict=True)]
        for layer in zip(sums, counts, strict=True)
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
