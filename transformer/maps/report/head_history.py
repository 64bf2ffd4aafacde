"""Heads over training: their statistics at every step, change points, and the onset of their roles."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.attention.importance import BRANCH_IMPORTANCE, FEED_FORWARD_IMPORTANCE, IMPORTANCE
from transformer.attention.sites import Site
from transformer.maps.attention_distance import PIXELS, distances_in_pixels
from transformer.maps.head_roles import heads_with_role
from transformer.maps.report.payload import DataBlock, compress_to_base64
from transformer.maps.report.role_descriptions import read_sample_rows
from transformer.maps.report.run_data import evenly_spaced_indices
from transformer.maps.role_rules import (
    MIN_ROLE_SCORE,
    Role,
    chance_scores,
    score_above_chance,
    statistics_of_roles,
)
from transformer.maps.store import MapStore, Statistics
from transformer.runs.jsonl_reading import HEAD_RECORDS, read_records
from transformer.runs.run_directory import RunDirectory
from transformer.tasks.axis_labels import AxisLabels

# A change must lower the sum of squares, in units of the noise's variance, by PENALTY log n. Its position and
# its level are two parameters, for which Schwarz's criterion asks 2 log n; the rest covers noise estimated from few
# points, and correlated neighbors, as steps of training are.
PENALTY = 6.0
# The least noise, as a share of the curve's range, assumed even for a curve without noise.
LEAST_NOISE = 0.05
MOST_CHANGES = 4
COLUMNS = 400  # steps of a heat map at most: more would be less than a pixel each
CODES = 65_534  # the code after the last one stands for what is not defined
SHARE = 0.1  # the largest share of a page's bytes for statistics of single examples

# A statistic's words, its unit, and the fixed ends of its scale, if any.
SCALES: dict[str, tuple[str, str, float | None, float | None]] = {
    "entropy": ("entropy", "nats", 0, None),
    "largest_weight": ("largest weight of a row", "", 0, 1),
    "largest_logit": ("largest logit", "", None, None),
    "distance": ("distance", "positions", 0, None),
    PIXELS: ("attention distance", "pixels", 0, None),
    "spread": ("spread", "positions", 0, None),
    "key_position": ("position of the key", "positions", 0, None),
    "first_token": ("weight on the first token", "", 0, 1),
    "previous_token": ("weight on the previous token", "", 0, 1),
    "diagonal": ("weight on the diagonal", "", 0, 1),
    "diagonality": ("diagonality", "", 0, 1),
    "induction": ("induction score", "", 0, 1),
    "alignment_error": ("alignment error", "", 0, 1),
    IMPORTANCE: ("importance of the head", "", 0, None),
    BRANCH_IMPORTANCE: ("importance of the layer's attention", "", 0, None),
    FEED_FORWARD_IMPORTANCE: ("importance of the layer's feed-forward network", "", 0, None),
}
# Statistics of a layer, which its heads share.
OF_LAYERS = (BRANCH_IMPORTANCE, FEED_FORWARD_IMPORTANCE)


class ChangePoint(NamedTuple):
    """A change of a curve's level.

    Attributes:
        step: The first stored step on the new level.
        before: The level before it.
        after: The level from it on.
    """

    step: int
    before: float
    after: float


class HeadRole(NamedTuple):
    """A role that a head plays at the last step.

    Attributes:
        site: The name of the attention module.
        layer: The index of the layer.
        head: The index of the head.
        role: The role.
        score: The mean weight on the keys of the role; 1 - alignment error for alignment.
        onset_step: The step since which the head plays the role.
    """

    site: str
    layer: int
    head: int
    role: Role
    score: float
    onset_step: int


class StatisticsTable(NamedTuple):
    """Statistics of every head at every step, from one source.

    Attributes:
        source: "mean" over the probe examples, the number of an example, "training" or "other".
        names: The names of the statistics.
        steps: The training steps.
        values_NxLxHxS: The values [statistic, layer, head, step]; NaN where undefined.
    """

    source: str
    names: tuple[str, ...]
    steps: tuple[int, ...]
    values_NxLxHxS: Float[np.ndarray, "N L H S"]


def history_payload(
    store: MapStore, run: RunDirectory, budget: int, other: MapStore | None = None
) -> tuple[dict[str, Any], list[DataBlock]]:
    """Return the page's data of head histories: statistics, roles and change points of every module.

    Args:
        store: The maps of the run.
        run: The run directory, whose `heads.jsonl` has the statistics of training batches.
        budget: The largest size of the page in bytes. Tables of single examples are left out if they would take more
            than the fraction `SHARE` of it.
        other: The maps of another run to compare with; its mean is the source "other".

    Returns:
        The facts and the blocks.
    """
    heads = read_head_statistics(run.heads_file)
    sites: list[dict[str, Any]] = []
    blocks: list[DataBlock] = []
    single: list[tuple[int, StatisticsTable]] = []
    for number, site in enumerate(store.sites):
        mean, *examples = probe_tables(store, site.name)
        tables = [mean]
        if site.name in heads:
            tables += training_table(heads[site.name], site)
        if other is not None:
            tables.append(probe_tables(other, site.name)[0]._replace(source="other"))
        # The mean of a single example is that example.
        single += [(number, table) for table in examples if len(examples) > 1]
        sites.append({"tables": [], "changes": _change_steps(mean)})
        for table in tables:
            _add_table(number, table, sites, blocks)
    their_blocks: list[DataBlock] = []
    theirs: list[dict[str, Any]] = [{"tables": []} for _ in sites]
    for number, table in single:
        _add_table(number, table, theirs, their_blocks)
    if sum(block.num_bytes for block in their_blocks) <= SHARE * budget:
        blocks += their_blocks
        for entry, more in zip(sites, theirs, strict=True):
            entry["tables"] += more["tables"]
    return {"codes": CODES, "scales": _statistic_scales(sites), "sites": sites, "roles": _roles_payload(store)}, blocks


def last_step_roles(store: MapStore) -> tuple[HeadRole, ...]:
    """Return every role that a head plays at the last stored step, the highest score first; see `find_site_roles`.

    A head counts as an induction head only if no simpler rule explains its maps
    (`transformer.maps.head_roles.heads_with_role`): on a text with a single period a head that attends at a fixed
    distance has the same induction score.
    """
    if not store.steps:
        return ()
    roles_of_sites = (_roles_at_last_step(store, site) for site in store.sites)
    return tuple(sorted(itertools.chain(*roles_of_sites), key=lambda role: -role.score))


def _roles_at_last_step(store: MapStore, site: Site) -> tuple[HeadRole, ...]:
    roles = find_site_roles(store.steps, site, store.labels, store.statistics(site.name))
    if all(role.role is not Role.INDUCTION for role in roles):
        return roles
    copying = heads_with_role(Role.INDUCTION, read_sample_rows(store, site, store.steps[-1]), site, store.labels)
    return tuple(role for role in roles if role.role is not Role.INDUCTION or (role.layer, role.head) in copying)


def find_site_roles(
    steps: Sequence[int], site: Site, labels: AxisLabels, statistics: Statistics
) -> tuple[HeadRole, ...]:
    """Find every role that a head of one module plays at the last step; a head may play several.

    The score m is the mean weight on the keys that define the role (for alignment, 1 - alignment error) over examples,
    and c that of an untrained head (`transformer.maps.role_rules.chance_scores`). The head plays the role if
    (m - c) / (1 - c) is at least `transformer.maps.role_rules.MIN_ROLE_SCORE`: Cohen's kappa (1960). So short causal
    rows, whose weight must lie on the first tokens or the diagonal, give no head a role.

    The onset is the last change point at which the level rises across `MIN_ROLE_SCORE`. Without one, as in a head that
    plays the role from the beginning, it is the step t that maximizes sum_(s >= t) (kappa_s - MIN_ROLE_SCORE), after
    the cumulative sums of Page (1954).

    Args:
        steps: The stored steps.
        site: The attention module.
        labels: The labels of the probe batch.
        statistics: The statistics of the module's heads at these steps.

    Returns:
        The roles.
    """
    roles = []
    for role, name in statistics_of_roles(site, labels).items():
        if name not in statistics.names:
            continue
        values_SxBxLxH = statistics.values[..., statistics.names.index(name)].astype(np.float64)
        if role is Role.ALIGNMENT:
            values_SxBxLxH = 1 - values_SxBxLxH
        scores_SxLxH, kappa_SxLxH = _normalize_by_chance(values_SxBxLxH, chance_scores(role, site, labels))
        for layer, head in np.argwhere(kappa_SxLxH[-1] >= MIN_ROLE_SCORE).tolist():
            score, onset = float(scores_SxLxH[-1, layer, head]), _onset_step(steps, kappa_SxLxH[:, layer, head])
            roles.append(HeadRole(site.name, layer, head, role, score, onset))
    return tuple(roles)


def describe_role(role: HeadRole, store: MapStore) -> str:
    """Describe a role: "head 1.3 of decoder/self became an induction head at step 450 (score 0.83)"."""
    site = store.site(role.site)
    head = f"head {site.layers[role.layer]}.{site.heads[role.head]} of {role.site}"
    name = f"{'an' if role.role.value[0] in 'ai' else 'a'} {role.role.value} head"
    if role.role is Role.ALIGNMENT and store.labels.gold_key_description is not None:
        name = f"a head that reads {store.labels.gold_key_description}"
    if role.onset_step == store.steps[0]:
        return f"{head} is {name} since the first stored step, {role.onset_step} (score {role.score:.2f})"
    return f"{head} became {name} at step {role.onset_step} (score {role.score:.2f})"


def change_points(steps: Sequence[int], values: Sequence[float] | Float[np.ndarray, " S"]) -> tuple[ChangePoint, ...]:
    """Find where a curve changes its level, at most `MOST_CHANGES` times.

    The curve is cut into the constant pieces that minimize sum (value - mean of its piece)^2 / noise^2 + penalty per
    change, by exact dynamic programming (Jackson et al. 2005; Killick et al. 2012, equation 2). The noise is estimated
    from the median absolute difference of neighbors, as the standard deviation of a normal distribution, and is at
    least `LEAST_NOISE` of the range. Pieces that the curve only passes through on its way up or down are no levels:
    their changes count as one, where the curve crosses the middle between the levels at both ends. Values that are not
    finite are left out, and running medians remove single outliers. Points count equally, whatever the spacing of their
    steps.

    Args:
        steps: The steps.
        values: The value at each step.

    Returns:
        The changes, in the order of their steps.

    Raises:
        ValueError: If the numbers of steps and values differ.
    """
    if len(steps) != len(values):
        raise ValueError(f"got {len(steps)} steps and {len(values)} values: give one value a step")
    curve = np.asarray(values, np.float64)
    defined = np.flatnonzero(np.isfinite(curve))
    curve = curve[defined]
    # Statistics are stored in float32: changes below its rounding do not count.
    if len(curve) < 2 or np.ptp(curve) <= 1e-6 * np.abs(curve).max():
        return ()
    # A median of few differences underestimates the noise.
    deviation = np.median(np.abs(np.diff(curve))) / 0.6745 / np.sqrt(2) * (1 + 2 / len(curve))
    noise = max(deviation, LEAST_NOISE * np.ptp(curve))
    penalty = PENALTY * np.log(len(curve)) * noise**2
    curve = _running_medians(curve)
    while True:
        changes = _join_transitions(curve, _segment(curve, penalty), deviation)
        if len(changes) <= MOST_CHANGES:
            return tuple(ChangePoint(int(steps[defined[at]]), before, after) for at, before, after in changes)
        penalty *= 2


def _running_medians(curve: np.ndarray) -> np.ndarray:
    """Compute running medians of three (Tukey 1977): they remove single outliers and keep rises as steep as they are.

    The first point, the state before training, stays; the last is corrected by those before it.
    """
    if len(curve) < 3:
        return curve
    inner = np.median([curve[:-2], curve[1:-1], curve[2:]], axis=0)
    before = curve[-2] if len(curve) < 4 else inner[-2]
    last = np.median([inner[-1], curve[-1], 3 * inner[-1] - 2 * before])
    return np.concatenate([curve[:1], inner, [last]])


def _segment(curve: np.ndarray, penalty: float) -> list[int]:
    """Return the bounds of the best constant pieces, including 0 and the end."""
    points = len(curve)
    centered = curve - curve.mean()
    sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (centered, centered**2))
    best, last = np.full(points + 1, np.inf), np.zeros(points + 1, int)
    best[0] = -penalty
    for end in range(1, points + 1):
        starts = np.arange(end)
        cost = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        totals = best[starts] + cost + penalty
        best_start = int(totals.argmin())
        best[end], last[end] = totals[best_start], starts[best_start]
    bounds = [points]
    while bounds[-1]:
        bounds.append(int(last[bounds[-1]]))
    return bounds[::-1]


def _join_transitions(curve: np.ndarray, bounds: list[int], deviation: float) -> list[tuple[int, float, float]]:
    """Return the changes between levels: (index of the first point after it, level before, level after)."""
    pieces = [curve[start:end] for start, end in itertools.pairwise(bounds)]
    means = [float(piece.mean()) for piece in pieces]
    levels = [0]
    for piece in range(1, len(pieces)):
        if piece == len(pieces) - 1 or not _is_transition(pieces[piece], deviation, *means[piece - 1 : piece + 2]):
            levels.append(piece)
    changes = []
    for level, next_level in itertools.pairwise(levels):
        start, end = bounds[level], bounds[next_level + 1]
        # The cut that fits the two levels best, which noise moves less than the largest difference.
        cut_costs = np.cumsum((curve[start:end] - means[level]) ** 2 - (curve[start:end] - means[next_level]) ** 2)
        changes.append((start + 1 + int(cut_costs[:-1].argmin()), means[level], means[next_level]))
    return changes


def _is_transition(piece: np.ndarray, deviation: float, before: float, mean: float, after: float) -> bool:
    """Return whether a piece continues the direction of the changes at its sides, instead of staying at its mean."""
    if (mean - before) * (after - mean) <= 0:
        return False
    if len(piece) < 3:
        return True
    places = np.arange(len(piece)) - (len(piece) - 1) / 2
    spread = np.square(places).sum()
    rise = np.sign(after - before) * (places @ piece) / spread * (len(piece) - 1)
    doubt = 2 * deviation / np.sqrt(spread) * (len(piece) - 1)
    return bool(rise + doubt >= 0.5 * min(abs(mean - before), abs(after - mean)))


def _onset_step(steps: Sequence[int], kappa_S: np.ndarray) -> int:
    changes = change_points(steps, kappa_S)
    crossings = [change.step for change in changes if change.before < MIN_ROLE_SCORE <= change.after]
    if crossings and changes[-1].after >= MIN_ROLE_SCORE:
        return crossings[-1]
    since_S = np.cumsum(np.nan_to_num(kappa_S)[::-1] - MIN_ROLE_SCORE)[::-1]
    return int(steps[int(since_S.argmax())])


def _normalize_by_chance(values_SxBxLxH: np.ndarray, chance_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over examples, and how far it has come from chance to 1; NaN where no example defines it."""
    chance_Bx1x1 = chance_B[:, None, None]
    defined = np.isfinite(values_SxBxLxH) & np.isfinite(chance_Bx1x1)
    count = defined.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(defined, values_SxBxLxH, 0).sum(axis=1) / count
        expected = np.where(defined, chance_Bx1x1, 0).sum(axis=1) / count
        return mean, np.where(expected < 1, score_above_chance(mean, expected), np.nan)


def probe_tables(store: MapStore, site: str) -> list[StatisticsTable]:
    """Return tables of a module's statistics on the probe batch: the mean over its examples, then each example.

    Distances on an image are in pixels.

    Args:
        store: The maps of a run.
        site: The name of the attention module.

    Returns:
        The tables, at no more than `COLUMNS` evenly spaced steps.
    """
    names, values_SxBxLxHxN = distances_in_pixels(store.statistics(site), store.site(site))
    selected = evenly_spaced_indices(len(store.steps), min(COLUMNS, len(store.steps)))
    steps = tuple(store.steps[index] for index in selected)
    values_BxNxLxHxS = np.transpose(np.asarray(values_SxBxLxHxN, np.float32)[selected], (1, 4, 2, 3, 0))
    with warnings.catch_warnings():
        # A mean over no defined example is NaN, without a warning.
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(values_BxNxLxHxS, axis=0)
    tables = [StatisticsTable("mean", names, steps, mean)]
    tables += [StatisticsTable(str(example), names, steps, values) for example, values in enumerate(values_BxNxLxHxS)]
    return [_drop_undefined_statistics(table) for table in tables]


def read_head_statistics(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Read the records of a `heads.jsonl` by module and step; if a step was written twice, its last record counts.

    Raises:
        UserError: If the file cannot be parsed.
    """
    heads: dict[str, dict[int, dict[str, Any]]] = {}
    for record in read_records(path, HEAD_RECORDS):
        heads.setdefault(record.pop("site"), {})[int(record.pop("step"))] = record
    return heads


def training_table(records: Mapping[int, Mapping[str, Any]], site: Site) -> list[StatisticsTable]:
    """Return the statistics of training batches as a table.

    Args:
        records: The records of one module by step.
        site: The attention module.

    Returns:
        A list of one table; empty if the records do not match the module's heads.
    """
    steps = sorted(records)
    steps = [steps[index] for index in evenly_spaced_indices(len(steps), min(COLUMNS, len(steps)))]
    names = tuple(dict.fromkeys(name for step in steps for name in records[step]))
    shape = (len(site.layers), len(site.heads))
    values = np.full((len(names), *shape, len(steps)), np.nan, np.float32)
    for column, step in enumerate(steps):
        for row, name in enumerate(names):
            measured = np.array(records[step].get(name, np.full(shape, np.nan)), dtype=np.float32)
            if name in OF_LAYERS and measured.shape == (shape[0], 1):
                measured = np.broadcast_to(measured, shape)
            if measured.shape != shape:
                return []
            values[row, :, :, column] = measured
    return [_drop_undefined_statistics(StatisticsTable("training", names, tuple(steps), values))]


def encode_table(table: StatisticsTable) -> tuple[dict[str, Any], str]:
    """Encode a table for the page: value = low + (high - low) code / CODES, with a range for each statistic.

    Returns:
        The table's facts, and its values as text: the high bytes of all codes, then the low ones,
        [statistic, layer, head, step].
    """
    finite = np.isfinite(table.values_NxLxHxS)
    low, high = (
        reduce(table.values_NxLxHxS, axis=(1, 2, 3), where=finite, initial=start).astype(np.float64)
        for reduce, start in ((np.min, np.inf), (np.max, -np.inf))
    )
    span = np.where(high > low, high - low, 1.0)[:, None, None, None]
    share = np.where(finite, (table.values_NxLxHxS - low[:, None, None, None]) / span, 0)
    codes = np.where(finite, np.rint(CODES * share), CODES + 1).astype(">u2")
    planes = codes.reshape(-1, 1).view(np.uint8).T
    ranges = [[float(f"{a:.7g}"), float(f"{b:.7g}")] for a, b in zip(low, high, strict=True)]
    facts = {"source": table.source, "names": table.names, "steps": table.steps, "ranges": ranges}
    return facts, compress_to_base64(planes.tobytes())


def _drop_undefined_statistics(table: StatisticsTable) -> StatisticsTable:
    """Drop the statistics that are undefined everywhere."""
    defined_rows = np.flatnonzero(np.isfinite(table.values_NxLxHxS).any(axis=(1, 2, 3)))
    return table._replace(
        names=tuple(table.names[row] for row in defined_rows), values_NxLxHxS=table.values_NxLxHxS[defined_rows]
    )


def _add_table(number: int, table: StatisticsTable, sites: Sequence[dict[str, Any]], blocks: list[DataBlock]) -> None:
    if table.names:
        facts, text = encode_table(table)
        sites[number]["tables"].append(facts)
        blocks.append(DataBlock(f"history-{number}-{table.source}", text))


def _change_steps(table: StatisticsTable) -> list[tuple[str, int, int, list[int]]]:
    """Return (statistic, layer, head, steps) of every change of level in a table, without heads that have none."""
    changes = []
    for row, name in enumerate(table.names):
        for layer, head in np.ndindex(table.values_NxLxHxS.shape[1:3]):
            points = change_points(table.steps, table.values_NxLxHxS[row, layer, head])
            if points:
                changes.append((name, layer, head, [int(point.step) for point in points]))
    return changes


def _statistic_scales(sites: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the name, unit and scale of each statistic."""
    names = {name for site in sites for table in site["tables"] for name in table["names"]}
    scales = {}
    for name in sorted(names):
        words, unit, low, high = SCALES.get(name, (name.replace("_", " "), "", None, None))
        scales[name] = {"words": words, "unit": unit, "low": low, "high": high}
    return scales


def _roles_payload(store: MapStore) -> list[dict[str, Any]]:
    numbers = {site.name: number for number, site in enumerate(store.sites)}
    return [
        {
            "site": numbers[role.site],
            "layer": role.layer,
            "head": role.head,
            "role": role.role.value,
            "score": float(f"{role.score:.4g}"),
            "onset": int(role.onset_step),
            "sentence": describe_role(role, store),
        }
        for role in last_step_roles(store)
    ]
