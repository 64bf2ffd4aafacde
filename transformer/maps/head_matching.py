"""Match the heads of two runs: the heads of a layer have no order, so two seeds permute them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.maps.store import MapStore, Statistics

Similarity = Float[np.ndarray, "L H G"]


class HeadMatch(NamedTuple):
    """A head and the most similar head of the other run; layers and heads are indices.

    Attributes:
        site: The name of the attention module.
        layer: The layer.
        head: The head.
        other_layer: The layer in the other run.
        other_head: The head in the other run.
        similarity: Their similarity in [0, 1].
    """

    site: str
    layer: int
    head: int
    other_layer: int
    other_head: int
    similarity: float


def match_heads(store: MapStore, other: MapStore) -> tuple[HeadMatch, ...]:
    """Match each head of one run with a head of another, at the last stored step of each.

    The pairs of a layer maximize the sum of their similarities (the assignment problem of Kuhn 1955). Heads are matched
    within their layer only. The similarity is `statistics_similarity`; if both runs probed the same examples and store
    them at the same coarsest level, it is the mean of that and `maps_similarity`. It is in [0, 1], and 1 only for heads
    that agree in everything.

    Args:
        store: The maps of one run.
        other: The maps of the other run.

    Returns:
        The pairs, module by module and layer by layer.

    Raises:
        UserError: If a run has no maps yet, or their modules differ in name, layers or heads, or share no statistic.
    """
    _check_comparable(store, other)
    matches = []
    for site in store.sites:
        similarity = _site_similarity(store, other, site)
        for layer, layer_similarity in enumerate(similarity):
            matches += [
                HeadMatch(site.name, layer, h, layer, g, float(layer_similarity[h, g]))
                for h, g in assign_heads(layer_similarity)
            ]
    return tuple(matches)


def assign_heads(similarity_HxG: Float[np.ndarray, "H H"]) -> list[tuple[int, int]]:
    """Return the pairs (row, column), each row and column once, with the largest sum of similarities."""
    from scipy.optimize import linear_sum_assignment  # as slow to import as jax, for two runs that are compared

    rows, columns = linear_sum_assignment(similarity_HxG, maximize=True)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]


def statistics_similarity(
    signature_LxHxN: Float[np.ndarray, "L H N"], other_LxGxN: Float[np.ndarray, "L G N"]
) -> Similarity:
    """Compute exp(-d^2 / 2) between the heads of each layer of two runs.

    d is the root mean square, over the statistics, of their differences in units of their standard deviation over
    all heads of both runs. Statistics that do not vary, or that are undefined for some head, are left out.

    Args:
        signature_LxHxN: The statistics [layer, head, statistic] of one run.
        other_LxGxN: Those of the other run.

    Returns:
        The similarities [layer, head, other head].

    Raises:
        UserError: If no statistic is defined for every head.
    """
    pooled = np.concatenate([part.reshape(-1, part.shape[-1]) for part in (signature_LxHxN, other_LxGxN)])
    is_defined = np.isfinite(pooled).all(axis=0)
    if not is_defined.any():
        raise UserError("no statistic is defined for every head of both runs, so their heads cannot be matched")
    spread = pooled.std(axis=0)
    # Divided by a spread of mere rounding errors, equal heads would seem far apart.
    varies = is_defined & (spread > 1e-6 * np.abs(pooled).max(axis=0))
    difference = (signature_LxHxN[:, :, None, varies] - other_LxGxN[:, None, :, varies]) / spread[varies]
    return np.exp(-np.square(difference).sum(axis=-1) / max(np.count_nonzero(varies), 1) / 2)


def maps_similarity(
    weights_BxLxHxQxK: Float[np.ndarray, "B L H Q K"], other_BxLxGxQxK: Float[np.ndarray, "B L G Q K"]
) -> Similarity:
    """Compute sum_k sqrt(w_qk v_qk) between the heads of each layer (Bhattacharyya 1943), averaged over all rows.

    Rows are normalized to sum to 1, since those of pooled maps do not; a row that is empty in some head of either run
    is left out.

    Args:
        weights_BxLxHxQxK: The weights [example, layer, head, query, key] of one run.
        other_BxLxGxQxK: Those of the other run.

    Returns:
        The similarities [layer, head, other head].
    """
    roots, other_roots = (_sqrt_normalized_rows(weights) for weights in (weights_BxLxHxQxK, other_BxLxGxQxK))
    full = [part.any(axis=-1).all(axis=(1, 2)) for part in (roots, other_roots)]
    rows_BxQ = full[0] & full[1]
    roots = roots * rows_BxQ[:, None, None, :, None]
    layers = [
        # One matrix product a layer: the concatenated rows of every head with those of the other run.
        np.moveaxis(roots[:, layer], 1, 0).reshape(roots.shape[2], -1)
        @ np.moveaxis(other_roots[:, layer], 1, 0).reshape(other_roots.shape[2], -1).T
        for layer in range(roots.shape[1])
    ]
    return np.clip(np.stack(layers) / max(np.count_nonzero(rows_BxQ), 1), 0, 1)


def _sqrt_normalized_rows(weights: np.ndarray) -> np.ndarray:
    total = weights.sum(axis=-1, keepdims=True, dtype=np.float64)
    return np.sqrt(weights / np.where(total > 0, total, 1))


def _site_similarity(store: MapStore, other: MapStore, site: Site) -> Similarity:
    mine, theirs = (_mean_statistics(run.statistics(site.name)) for run in (store, other))
    names = [name for name in mine if name in theirs]
    if not names:
        raise UserError(
            f"site {site.name!r} has no statistic in both runs ({', '.join(mine)} and {', '.join(theirs)}): "
            "match runs whose statistics were taken alike"
        )
    similarity = statistics_similarity(
        *(np.stack([statistics[name] for name in names], -1) for statistics in (mine, theirs))
    )
    level = store.levels(site.name)[0]
    if level != other.levels(site.name)[0] or not _same_examples(store, other, site):
        return similarity
    maps = (run.read(site.name, run.steps[-1], level.name) for run in (store, other))
    return (similarity + maps_similarity(*maps)) / 2


def _mean_statistics(statistics: Statistics) -> dict[str, np.ndarray]:
    """Return each statistic [layer, head] at the last step, averaged over the examples for which it is defined."""
    values_BxLxHxN = statistics.values[-1].astype(np.float64)
    defined_BxLxHxN = np.isfinite(values_BxLxHxN)
    total = np.where(defined_BxLxHxN, values_BxLxHxN, 0).sum(axis=0)
    count = defined_BxLxHxN.sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    defined = count.any(axis=(0, 1))
    return {name: mean[..., index] for index, name in enumerate(statistics.names) if defined[index]}


def _same_examples(store: MapStore, other: MapStore, site: Site) -> bool:
    return all(store.labels.tokens[axis.name] == other.labels.tokens[axis.name] for axis in (site.query, site.key))


def _check_comparable(store: MapStore, other: MapStore) -> None:
    for run in (store, other):
        if not run.steps:
            raise UserError(f"the map store {run.path} holds no step yet: let the run write its first maps")
    mine, theirs = ({site.name: site for site in run.sites} for run in (store, other))
    if set(mine) != set(theirs):
        raise UserError(
            f"the runs have other sites, {', '.join(sorted(mine))} and {', '.join(sorted(theirs))}: "
            "heads can be matched between runs of one model"
        )
    for name in mine:
        sides = [_describe_layout(sites[name]) for sites in (mine, theirs)]
        if sides[0] != sides[1]:
            raise UserError(
                f"site {name!r} has {sides[0]} in one run and {sides[1]} in the other: "
                "heads can be matched between runs of one shape"
            )


def _describe_layout(site: Site) -> str:
    return f"{len(site.layers)} layers of {len(site.heads)} heads from {site.query.name} to {site.key.name}"
