"""The plan of the probe batch's maps: what is captured and what is stored, the same for every family."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.attention.capture import Capture, Captured
from transformer.attention.sites import Site
from transformer.attention.statistics import DISTANCE, STATISTICS, Statistic, grid_distance, induction
from transformer.maps.tiers import Level, MapsConfig, StoredMaps, Tiers, choose_tiers, keep, levels_of
from transformer.tasks.labels import Labels

ALIGNMENT_ERROR = "alignment_error"

Sizes = Mapping[str, tuple[int, int]]


def statistics_of(site: Site, labels: Labels) -> dict[str, Statistic]:
    """The statistics of a site's heads, by the names that they are stored under.

    Distances are two-dimensional on a grid; induction is measured where examples repeat random tokens.
    """
    statistics = dict(STATISTICS)
    axis = site.key
    if site.query == axis and axis.shape is not None:
        statistics[DISTANCE.name] = dataclasses.replace(
            grid_distance(axis.shape[1], axis.leading), name=f"{DISTANCE.name} of {axis.name}"
        )
    if site.causal and labels.periods is not None and any(labels.periods):
        statistic = induction(*labels.periods)
        statistics[statistic.name] = statistic
    return statistics


def statistic_names(site: Site, labels: Labels) -> tuple[str, ...]:
    """The names of the statistics that are stored of a site's heads."""
    linked = site.name in (labels.links or {})
    return (*statistics_of(site, labels), *((ALIGNMENT_ERROR,) if linked else ()))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The stored part of a batch's maps: its tiers, and the number of queries and keys of each site."""

    sites: tuple[Site, ...]
    labels: Labels
    tiers: Tiers
    sizes: Sizes

    def request(self) -> Capture:
        """The capture of everything that is stored."""
        statistics = {each.name: each for site in self.sites for each in statistics_of(site, self.labels).values()}
        return Capture(
            tuple(site.name for site in self.sites),
            rows=self.tiers.rows,
            cells=self.tiers.cells[-1],
            top=self.tiers.top,
            statistics=tuple(statistics.values()),
            by_example=True,
        )

    def keep(self, maps: Mapping[str, Captured]) -> dict[str, StoredMaps]:
        """The stored maps of each site, from a pass with the capture of `request`."""
        stored = {}
        for site in self.sites:
            levels = levels_of(*self.sizes[site.name], self.tiers.cells)
            stored[site.name] = _keep(maps[site.name], site, self.labels, levels)
        return stored


def make_plan(
    traced: Mapping[str, Captured],
    sites: Sequence[Site],
    labels: Labels,
    config: MapsConfig,
    times: int = 1,
    tiers: Tiers | None = None,
) -> Plan:
    """The plan whose maps of `times` steps fit the budget of `config`, or with the `tiers` that were chosen before.

    `traced` are the abstract whole maps of a pass over the batch. A whole map is cut to the longest example;
    a pooled one keeps its padding.
    """
    shapes = {site: captured.weights.shape for site, captured in traced.items() if captured.weights is not None}
    tiers = tiers or choose_tiers(config, list(shapes.values()), times)
    sizes = {}
    for site in sites:
        queries, keys = shapes[site.name][-2:]
        if levels_of(queries, keys, tiers.cells)[-1].name == "full":
            queries, keys = (int(_lengths(axis.name, labels).max()) for axis in (site.query, site.key))
        sizes[site.name] = (queries, keys)
    return Plan(tuple(sites), labels, tiers, sizes)


def _keep(captured: Captured, site: Site, labels: Labels, levels: Sequence[Level]) -> StoredMaps:
    means, counts = captured.means(), captured.counts
    statistics = {
        name: jnp.where(counts[statistic.name] > 0, means[statistic.name], jnp.nan)
        for name, statistic in statistics_of(site, labels).items()
    }
    if captured.pooled is not None:
        return keep(captured.pooled, levels, statistics, captured.weights, captured.top)
    assert captured.weights is not None
    weights = captured.weights[..., : levels[-1].queries, : levels[-1].keys]
    if site.name in (labels.links or {}):
        statistics[ALIGNMENT_ERROR] = alignment_error(weights, site, labels)
    return keep(weights, levels, statistics)


def alignment_error(weights: Float[Array, "L B H Q K"], site: Site, labels: Labels) -> Float[Array, "L B H"]:
    """AER = 1 - (|A & S| + |A & P|) / (|A| + |S|) of each head and example (Och and Ney 2003, equation 8).

    A links each query that has a gold link with the key of its largest weight; S are the sure links, P the possible
    ones with the sure among them. Queries without a gold link are left out. NaN for an example without links.
    """
    assert labels.links is not None
    examples, (queries, keys) = labels.links[site.name], weights.shape[-2:]
    sure, possible = np.zeros((2, len(examples), queries, keys), bool)
    for example, links in enumerate(examples):
        for query, key, is_sure in links:
            possible[example, query, key] = True
            sure[example, query, key] = is_sure
    chosen = jnp.argmax(weights, axis=-1)[..., None]

    def agreed(truth_BxQxK: np.ndarray) -> Array:
        hits = jnp.take_along_axis(jnp.asarray(truth_BxQxK)[None, :, None], chosen, axis=-1)
        return jnp.sum(hits, axis=(-2, -1))

    total_B = possible.any(axis=-1).sum(axis=-1) + sure.sum(axis=(-2, -1))
    known_Bx1 = jnp.asarray(total_B)[:, None]
    error = 1 - (agreed(sure) + agreed(possible)) / jnp.maximum(known_Bx1, 1)
    return jnp.where(known_Bx1 > 0, error, jnp.nan)


def _lengths(axis: str, labels: Labels) -> np.ndarray:
    return np.array([len(tokens) for tokens in labels.tokens[axis]], np.int32)
