"""The page's data of heads over training: their statistics at every step, roles and change points."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.attention.sites import Site
from transformer.maps.curves import evenly
from transformer.maps.distance import PIXELS, named_in_pixels
from transformer.maps.encode import pack
from transformer.maps.page_payload import Block
from transformer.maps.store import MapStore
from transformer.maps.timelines import change_points, describe, head_roles
from transformer.runs.directory import RunDirectory
from transformer.runs.records import HEADS, read_records

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
}


class Table(NamedTuple):
    """A statistic of every head at every step from one source, [statistic, layer, head, step]; NaN where undefined."""

    source: str
    names: tuple[str, ...]
    steps: tuple[int, ...]
    values_NxLxHxS: Float[np.ndarray, "N L H S"]


def history(
    store: MapStore, run: RunDirectory, budget: int, other: MapStore | None = None
) -> tuple[dict[str, Any], list[Block]]:
    """Facts and blocks of the page: for every site its tables, the roles of its heads, and their change points.

    Sources are "mean" (over the probe examples), an example's number, "training" (batches, of `heads.jsonl`) and
    "against" (the mean of the `other` run). Tables of single examples are left out where they would take more than
    `SHARE` of `budget` bytes.
    """
    heads = read_heads(run.heads_file)
    sites: list[dict[str, Any]] = []
    blocks: list[Block] = []
    single: list[tuple[int, Table]] = []
    for number, site in enumerate(store.sites):
        mean, *examples = probe_tables(store, site.name)
        tables = [mean]
        if site.name in heads:
            tables += training_table(heads[site.name], site)
        if other is not None:
            tables.append(probe_tables(other, site.name)[0]._replace(source="against"))
        # The mean of a single example is that example.
        single += [(number, table) for table in examples if len(examples) > 1]
        sites.append({"tables": [], "changes": _changes(mean)})
        for table in tables:
            _add(number, table, sites, blocks)
    their_blocks: list[Block] = []
    theirs: list[dict[str, Any]] = [{"tables": []} for _ in sites]
    for number, table in single:
        _add(number, table, theirs, their_blocks)
    if sum(block.size for block in their_blocks) <= SHARE * budget:
        blocks += their_blocks
        for entry, more in zip(sites, theirs, strict=True):
            entry["tables"] += more["tables"]
    return {"codes": CODES, "scales": _scales(sites), "sites": sites, "roles": _roles(store)}, blocks


def probe_tables(store: MapStore, site: str) -> list[Table]:
    """The mean over the probe's examples, then each example; at most `COLUMNS` steps, evenly spaced.

    Distances on a picture are in pixels.
    """
    names, values_SxBxLxHxN = named_in_pixels(store.statistics(site), store.site(site))
    kept = evenly(len(store.steps), min(COLUMNS, len(store.steps)))
    steps = tuple(store.steps[index] for index in kept)
    values_BxNxLxHxS = np.transpose(np.asarray(values_SxBxLxHxN, np.float32)[kept], (1, 4, 2, 3, 0))
    with warnings.catch_warnings():
        # A mean over no defined example is NaN, without a warning.
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(values_BxNxLxHxS, axis=0)
    tables = [Table("mean", names, steps, mean)]
    tables += [Table(str(example), names, steps, values) for example, values in enumerate(values_BxNxLxHxS)]
    return [_defined(table) for table in tables]


def read_heads(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """The records of a `heads.jsonl` by site and step; a step that was written twice counts with its last record.

    Errors: as `transformer.runs.records.read_records`.
    """
    heads: dict[str, dict[int, dict[str, Any]]] = {}
    for record in read_records(path, HEADS):
        heads.setdefault(record.pop("site"), {})[int(record.pop("step"))] = record
    return heads


def training_table(records: Mapping[int, Mapping[str, Any]], site: Site) -> list[Table]:
    """The statistics of training batches as a table; None where the records do not match this site's heads."""
    steps = sorted(records)
    steps = [steps[index] for index in evenly(len(steps), min(COLUMNS, len(steps)))]
    names = tuple(dict.fromkeys(name for step in steps for name in records[step]))
    shape = (len(site.layers), len(site.heads))
    values = np.full((len(names), *shape, len(steps)), np.nan, np.float32)
    for column, step in enumerate(steps):
        for row, name in enumerate(names):
            measured = np.array(records[step].get(name, np.full(shape, np.nan)), dtype=np.float32)
            if measured.shape != shape:
                return []
            values[row, :, :, column] = measured
    return [_defined(Table("training", names, tuple(steps), values))]


def encode_table(table: Table) -> tuple[dict[str, Any], str]:
    """A table's facts, and its values as text: value = low + (high - low) code / CODES, a range for each statistic.

    The text holds the high bytes of all codes, then the low ones, [statistic, layer, head, step].
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
    return facts, pack(planes.tobytes())


def _defined(table: Table) -> Table:
    """The table without statistics that are undefined everywhere."""
    kept = np.flatnonzero(np.isfinite(table.values_NxLxHxS).any(axis=(1, 2, 3)))
    return table._replace(names=tuple(table.names[row] for row in kept), values_NxLxHxS=table.values_NxLxHxS[kept])


def _add(number: int, table: Table, sites: Sequence[dict[str, Any]], blocks: list[Block]) -> None:
    if table.names:
        facts, text = encode_table(table)
        sites[number]["tables"].append(facts)
        blocks.append(Block(f"history-{number}-{table.source}", text))


def _changes(table: Table) -> list[tuple[str, int, int, list[int]]]:
    """Statistic, layer, head and steps of every change of level in a table, heads without one left out."""
    changes = []
    for row, name in enumerate(table.names):
        for layer, head in np.ndindex(table.values_NxLxHxS.shape[1:3]):
            points = change_points(table.steps, table.values_NxLxHxS[row, layer, head])
            if points:
                changes.append((name, layer, head, [int(point.step) for point in points]))
    return changes


def _scales(sites: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The words and the scale of each statistic."""
    names = {name for site in sites for table in site["tables"] for name in table["names"]}
    scales = {}
    for name in sorted(names):
        words, unit, low, high = SCALES.get(name, (name.replace("_", " "), "", None, None))
        scales[name] = {"words": words, "unit": unit, "low": low, "high": high}
    return scales


def _roles(store: MapStore) -> list[dict[str, Any]]:
    numbers = {site.name: number for number, site in enumerate(store.sites)}
    return [
        {
            "site": numbers[role.site],
            "layer": role.layer,
            "head": role.head,
            "role": role.role.value,
            "score": float(f"{role.score:.4g}"),
            "onset": int(role.onset),
            "said": describe(role, store),
        }
        for role in head_roles(store)
    ]
