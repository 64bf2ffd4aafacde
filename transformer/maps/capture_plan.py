"""The plan of a run's map capture: what is captured from the probe batch, and at which resolutions it is stored."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.attention.capture import Capture, CapturedAttention, TopWeights, max_pool_map, pooling_block_size
from transformer.attention.sites import Site
from transformer.attention.statistics import DISTANCE, STATISTICS, Statistic, grid_distance, induction_mass
from transformer.config import Config, NonNegativeInt, PositiveFloat, PositiveInt
from transformer.maps.quantize import AnyArray, Quantized, quantize
from transformer.tasks.axis_labels import AxisLabels

THUMBNAIL = 64  # cells a side of the coarsest level
FINEST = 8192  # cells a side of the largest map that is stored whole
ALIGNMENT_ERROR = "alignment_error"
Sizes = Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class MapStorageConfig(Config, path="config.maps"):
    """The storage budget of a run's attention maps.

    Thumbnails, one whole row and the statistics of every head are always stored. A map that does not fit is pooled; for
    a pooled map some whole rows and the largest weights of every row are stored as well, as far as they fit.

    Attributes:
        max_megabytes: The largest size of all steps together in MB (1e6 bytes), before compression.
        max_full_rows: The most whole rows stored of a pooled map, evenly spaced.
        top_k: The most weights stored of every row of a pooled map, the largest ones.
    """

    max_megabytes: PositiveFloat = 500.0
    max_full_rows: PositiveInt = 8
    top_k: NonNegativeInt = 8


@dataclasses.dataclass(frozen=True)
class StoredResolutions:
    """The resolutions at which maps are stored.

    Attributes:
        level_sizes: The largest number of cells a side at each level, coarse to fine.
        num_rows: The number of whole rows stored of a pooled map.
        top_k: The number of largest weights stored of every row of a pooled map.
    """

    level_sizes: tuple[int, ...] = (64, 128, 256, 512, 1024)
    num_rows: int = 8
    top_k: int = 8


@dataclasses.dataclass(frozen=True)
class ResolutionLevel:
    """One resolution of a module's maps.

    Attributes:
        name: "full" for whole maps, else "pooled-" and the number of cells a side.
        num_queries: The number of rows.
        num_keys: The number of columns.
        query_block: The number of query positions a row stands for.
        key_block: The number of key positions a column stands for.
    """

    name: str
    num_queries: int
    num_keys: int
    query_block: int
    key_block: int


class StoredMaps(NamedTuple):
    """The stored maps of one attention module at one step; arrays are [example, layer, head, ...].

    Attributes:
        levels: The weights of each level [example, layer, head, query, key] by its name, coarse to fine.
        rows: Some whole rows of a pooled map, evenly spaced along the query axis.
        top_weights: The keys and the weights of the largest weights of every row of a pooled map.
        statistics: The statistics [example, layer, head] by name.
    """

    levels: dict[str, Quantized]
    rows: Quantized | None
    top_weights: tuple[Any, Quantized] | None
    statistics: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class CapturePlan:
    """What is stored of a batch's maps.

    Attributes:
        sites: The attention modules.
        labels: The labels of the batch's positions.
        resolutions: The resolutions.
        sizes: The numbers of queries and keys by the name of a module.
    """

    sites: tuple[Site, ...]
    labels: AxisLabels
    resolutions: StoredResolutions
    sizes: Sizes

    def request(self) -> Capture:
        """Return the capture request for everything that is stored."""
        statistics = {
            statistic.name: statistic
            for site in self.sites
            for statistic in site_statistics(site, self.labels).values()
        }
        return Capture(
            tuple(site.name for site in self.sites),
            rows=self.resolutions.num_rows,
            max_map_size=self.resolutions.level_sizes[-1],
            top_k=self.resolutions.top_k,
            statistics=tuple(statistics.values()),
            by_example=True,
        )

    def stored_maps(self, maps: Mapping[str, CapturedAttention]) -> dict[str, StoredMaps]:
        """Quantize the maps of each module, captured by a pass with `request`.

        Args:
            maps: What the pass captured, by the name of the module.

        Returns:
            The stored maps by the name of the module.
        """
        stored = {}
        for site in self.sites:
            levels = resolution_levels(*self.sizes[site.name], self.resolutions.level_sizes)
            stored[site.name] = _quantize_site(maps[site.name], site, self.labels, levels)
        return stored


def plan_capture(
    traced: Mapping[str, CapturedAttention],
    sites: Sequence[Site],
    labels: AxisLabels,
    config: MapStorageConfig,
    times: int = 1,
    resolutions: StoredResolutions | None = None,
) -> CapturePlan:
    """Plan the capture so that the maps of all steps fit the budget.

    Whole maps are cut to the longest example of the batch; pooled maps keep the padding.

    Args:
        traced: The abstract whole maps of a pass over the batch, by the name of the module.
        sites: The attention modules.
        labels: The labels of the batch's positions.
        config: The budget.
        times: The number of steps whose maps are stored.
        resolutions: The resolutions of an existing store, which is continued; by default the finest that fit.

    Returns:
        The plan.
    """
    shapes = {site: captured.weights.shape for site, captured in traced.items() if captured.weights is not None}
    resolutions = resolutions or choose_resolutions(config, list(shapes.values()), times)
    sizes = {}
    for site in sites:
        queries, keys = shapes[site.name][-2:]
        if resolution_levels(queries, keys, resolutions.level_sizes)[-1].name == "full":
            queries, keys = (int(_token_counts(axis.name, labels).max()) for axis in (site.query, site.key))
        sizes[site.name] = (queries, keys)
    return CapturePlan(tuple(sites), labels, resolutions, sizes)


def choose_resolutions(config: MapStorageConfig, shapes: Sequence[tuple[int, ...]], steps: int) -> StoredResolutions:
    """Choose the finest levels that fit the budget.

    Each level has twice the cells a side of the one before.

    Args:
        config: The budget.
        shapes: The shapes [layer, example, head, query, key] of each module's whole maps.
        steps: The number of steps whose maps are stored.

    Returns:
        The levels, and the numbers of whole rows and of largest weights that fit.
    """
    budget = config.max_megabytes * 1e6 / max(steps, 1)
    resolutions = StoredResolutions((THUMBNAIL,), config.max_full_rows, config.top_k)
    # Beside the thumbnails, the larger part is reduced first.
    while sum(_step_bytes(shape, resolutions) for shape in shapes) > budget and (
        resolutions.top_k or resolutions.num_rows > 1
    ):
        if resolutions.top_k:
            resolutions = dataclasses.replace(resolutions, top_k=resolutions.top_k // 2)
        else:
            resolutions = dataclasses.replace(resolutions, num_rows=resolutions.num_rows // 2)
    # A model without attention has no maps.
    while resolutions.level_sizes[-1] < min(FINEST, max((max(shape[-2:]) for shape in shapes), default=0)):
        finer = dataclasses.replace(
            resolutions, level_sizes=(*resolutions.level_sizes, 2 * resolutions.level_sizes[-1])
        )
        if sum(_step_bytes(shape, finer) for shape in shapes) > budget:
            break
        resolutions = finer
    return resolutions


def _step_bytes(shape: tuple[int, ...], resolutions: StoredResolutions) -> int:
    """Return the bytes of one step before compression.

    A row takes a byte a code, 4 for its scale and 1 for its root; each of its largest weights 4 more for the key.
    """
    *heads, queries, keys = shape
    levels = resolution_levels(queries, keys, resolutions.level_sizes)
    size = sum(level.num_queries * (level.num_keys + 5) for level in levels)
    if levels[-1].name != "full":
        size += min(resolutions.num_rows, queries) * (keys + 5)
        size += queries * (5 * min(resolutions.top_k, keys) + 5) if resolutions.top_k else 0
    return math.prod(heads) * size


def resolution_levels(queries: int, keys: int, cells: Sequence[int]) -> tuple[ResolutionLevel, ...]:
    """Return the levels of a map, coarse to fine, up to the first that is the whole map.

    Args:
        queries: The number of queries.
        keys: The number of keys.
        cells: The largest number of cells a side of each level, ascending.

    Returns:
        The levels; the last one is named "full" if it is the whole map.
    """
    levels: list[ResolutionLevel] = []
    for side in cells:
        blocks = pooling_block_size(queries, side), pooling_block_size(keys, side)
        is_full = blocks == (1, 1)
        name = "full" if is_full else f"pooled-{side}"
        levels.append(ResolutionLevel(name, -(-queries // blocks[0]), -(-keys // blocks[1]), *blocks))
        if is_full:
            break
    return tuple(levels)


def quantize_maps(
    weights: Float[AnyArray, "L B H q k"],
    levels: Sequence[ResolutionLevel],
    statistics: Mapping[str, Float[AnyArray, "L B H"]] | None = None,
    rows: Float[AnyArray, "L B H R K"] | None = None,
    top: TopWeights | None = None,
) -> StoredMaps:
    """Quantize the maps of one attention module at all of its levels; takes NumPy and JAX arrays.

    Args:
        weights: The weights at the finest level [layer, example, head, query, key].
        levels: The levels, coarse to fine. Coarser maps hold the largest weight of each block.
        statistics: The statistics of the heads by name.
        rows: Whole rows of a pooled map.
        top: The largest weights of every row of a pooled map.

    Returns:
        The quantized maps, with the example axis first.

    Raises:
        ValueError: If `weights` does not have the size of the finest level.
    """
    finest = levels[-1]
    if weights.shape[-2:] != (finest.num_queries, finest.num_keys):
        raise ValueError(
            f"weights has shape {weights.shape}; its last axes must be {(finest.num_queries, finest.num_keys)}, "
            f"those of the level {finest.name}"
        )
    quantized_levels = {finest.name: quantize(_move_examples_first(weights))}
    for fine, coarse in itertools.pairwise(reversed(levels)):
        weights = max_pool_map(weights, coarse.query_block // fine.query_block, coarse.key_block // fine.key_block)
        quantized_levels[coarse.name] = quantize(_move_examples_first(weights))
    return StoredMaps(
        dict(reversed(quantized_levels.items())),
        None if rows is None else quantize(_move_examples_first(rows)),
        None if top is None else (_move_examples_first(top.keys), quantize(_move_examples_first(top.weights))),
        {name: _move_examples_first(values) for name, values in (statistics or {}).items()},
    )


def _move_examples_first(array_LxBx: AnyArray) -> Any:
    xp: Any = array_LxBx.__array_namespace__()
    return xp.moveaxis(xp.asarray(array_LxBx), 1, 0)


def site_statistics(site: Site, labels: AxisLabels) -> dict[str, Statistic]:
    """Return the statistics that are stored of a module's heads.

    Args:
        site: The attention module.
        labels: The labels of the probe examples. The induction score is included if they repeat random tokens.

    Returns:
        The statistics by the name they are stored under. On a grid the attention distance is two-dimensional.
    """
    statistics = dict(STATISTICS)
    axis = site.key
    if site.query == axis and axis.shape is not None:
        statistics[DISTANCE.name] = dataclasses.replace(
            grid_distance(axis.shape[1], axis.num_leading_positions), name=f"{DISTANCE.name} of {axis.name}"
        )
    if site.causal and labels.periods is not None and any(labels.periods):
        statistic = induction_mass(*labels.periods)
        statistics[statistic.name] = statistic
    return statistics


def statistic_names(site: Site, labels: AxisLabels) -> tuple[str, ...]:
    """Return the names of all statistics that are stored of a module's heads.

    Args:
        site: The attention module.
        labels: The labels of the probe examples.

    Returns:
        The names of `site_statistics`, and the alignment error if the labels have gold alignments of the module.
    """
    linked = site.name in (labels.gold_alignments or {})
    return (*site_statistics(site, labels), *((ALIGNMENT_ERROR,) if linked else ()))


def _quantize_site(
    captured: CapturedAttention, site: Site, labels: AxisLabels, levels: Sequence[ResolutionLevel]
) -> StoredMaps:
    means, counts = captured.means(), captured.counts
    statistics = {
        name: jnp.where(counts[statistic.name] > 0, means[statistic.name], jnp.nan)
        for name, statistic in site_statistics(site, labels).items()
    }
    if captured.pooled is not None:
        return quantize_maps(captured.pooled, levels, statistics, captured.weights, captured.top_weights)
    assert captured.weights is not None
    weights = captured.weights[..., : levels[-1].num_queries, : levels[-1].num_keys]
    if site.name in (labels.gold_alignments or {}):
        statistics[ALIGNMENT_ERROR] = alignment_error(weights, site, labels)
    return quantize_maps(weights, levels, statistics)


def alignment_error(weights: Float[Array, "L B H Q K"], site: Site, labels: AxisLabels) -> Float[Array, "L B H"]:
    """Compute AER = 1 - (|A & S| + |A & P|) / (|A| + |S|) of each head and example (Och and Ney 2003, equation 8).

    A links each query that has a gold alignment with the key of its largest weight; S are the sure links, P the
    possible ones with the sure among them. Queries without a gold alignment are left out.

    Args:
        weights: The weights [layer, example, head, query, key].
        site: The attention module.
        labels: The labels, which must have gold alignments for the module.

    Returns:
        The errors [layer, example, head]; NaN for an example without links.
    """
    assert labels.gold_alignments is not None
    examples, (queries, keys) = labels.gold_alignments[site.name], weights.shape[-2:]
    sure, possible = np.zeros((2, len(examples), queries, keys), bool)
    for example, links in enumerate(examples):
        for query, key, is_sure in links:
            possible[example, query, key] = True
            sure[example, query, key] = is_sure
    strongest_key = jnp.argmax(weights, axis=-1)[..., None]

    def agreed(truth_BxQxK: np.ndarray) -> Array:
        hits = jnp.take_along_axis(jnp.asarray(truth_BxQxK)[None, :, None], strongest_key, axis=-1)
        return jnp.sum(hits, axis=(-2, -1))

    total_B = possible.any(axis=-1).sum(axis=-1) + sure.sum(axis=(-2, -1))
    total_Bx1 = jnp.asarray(total_B)[:, None]
    error = 1 - (agreed(sure) + agreed(possible)) / jnp.maximum(total_Bx1, 1)
    return jnp.where(total_Bx1 > 0, error, jnp.nan)


def _token_counts(axis: str, labels: AxisLabels) -> np.ndarray:
    return np.array([len(tokens) for tokens in labels.tokens[axis]], np.int32)
