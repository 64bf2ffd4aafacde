"""The page of a listing: one HTML file with all runs in a table and their curves over one another."""

import itertools
import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config import ABSENT, config_text
from transformer.pages.template import AssetFolder, render_scripted_page, with_shared_styles
from transformer.runs.jsonl_reading import MetricName
from transformer.runs.metric_curves import POINTS_PER_CURVE, Curve, thin_curve
from transformer.storage.paths import storage_of
from transformer.studies.run_listing.formatting import to_json
from transformer.studies.run_listing.listing import StudySummary
from transformer.studies.run_listing.run_summary import RunSummary
from transformer.studies.run_listing.selection import ListedRuns, short_keys
from transformer.system.command_invocation import shell_command

NAME = "runs.html"
FOLDER = AssetFolder("studies/web")
STYLES = ("study.css", "runs.css")
ENTRY = "runs.js"
LIVE_RELOAD = "runs_live_reload.js"  # only in a served page
CURVES_BUDGET = 1_400_000  # bytes of the page that curves may take
_BYTES_PER_POINT = 11  # of a curve, about
_MIN_POINTS, _LEAST_POINTS = 32, 8  # of a curve; the second if there are so many runs that one metric does not fit
_MAX_KEYS = 100  # config keys of the page
_MAX_TEXT = 300  # characters of a value of a config


def write_page(listed: ListedRuns, group: Sequence[str] = ()) -> Path:
    """Write the page into the listed folder, and return its path.

    Raises:
        OSError: If the folder cannot be written.
    """
    path = listed.listing.folder / NAME
    storage_of(path).replace(path, render(listed, group).encode())
    return path


def render(listed: ListedRuns, group: Sequence[str] = (), *, version: str | None = None) -> str:
    """Render the page. It requests nothing, except that a served page asks its server for newer versions.

    Args:
        listed: The runs, their metrics and the config keys in which they differ.
        group: The keys, as "config.KEY", by which the page groups the curves when it opens.
        version: The version of a served page; None for a file.
    """
    return render_scripted_page(
        f"{listed.listing.title} · runs",
        FOLDER.read("runs.html"),
        with_shared_styles(FOLDER.join(STYLES)),
        FOLDER.bundle(ENTRY, *([] if version is None else [LIVE_RELOAD])),
        page_data(listed, group, served=version is not None),
        version=version,
    )


def page_data(listed: ListedRuns, group: Sequence[str] = (), *, served: bool = False) -> dict[str, Any]:
    """Return the data of the page as JSON values, typed by RunsPageData in studies/web/types.d.ts."""
    listing = listed.listing
    metrics = list(dict.fromkeys([*listed.metrics, *listing.metrics(listed.runs)]))
    points = _points_per_curve(listed.runs, metrics, len(listed.metrics))
    group_keys = [key.removeprefix("config.") for key in group if key.startswith("config.")]
    keys = list(dict.fromkeys([*group_keys, *listed.keys]))
    tables = _StepTables()
    shown_keys = {key: _ValueTable() for key in keys[:_MAX_KEYS]}
    labels = short_keys(list(shown_keys))
    runs = [_run_data(run, points, shown_keys, tables) for run in listed.runs]
    return {
        "folder": str(listing.folder),
        "title": listing.title,
        "served": served,
        "written": round(1000 * time.time()),
        "maps_command": shlex.join(shell_command("maps")),
        "train_command": shlex.join(shell_command("train")),
        "metrics": [{"name": str(metric), "direction": listing.direction(metric)} for metric in points],
        "num_columns": len(listed.metrics),
        "left_out": [str(metric) for metric in listing.metrics(listed.runs) if metric not in points],
        "num_keys_left_out": len(keys) - len(shown_keys),
        "group": [key for key in group_keys if key in shown_keys],
        "keys": [{"name": key, "label": labels[key], "values": table.values} for key, table in shown_keys.items()],
        "steps": tables.tables,
        "runs": runs,
        "studies": [_study_data(study) for study in listed.studies()],
        "problems": list(listing.problems),
    }


class _ValueTable:
    """The different values of a key, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._indices: dict[str, int] = {}

    def index(self, value: Any) -> int:
        """Return the index of a value, -1 for an absent one."""
        if value is ABSENT:
            return -1
        text = config_text(value)
        if text not in self._indices:
            self._indices[text] = len(self.values)
            is_plain = value is None or isinstance(value, bool | int | float)
            plain_value = to_json(value) if is_plain else value if isinstance(value, str) else text
            self.values.append(plain_value[:_MAX_TEXT] if isinstance(plain_value, str) else plain_value)
        return self._indices[text]


class _StepTables:
    """The steps of curves, each different list once: the first step, then the differences."""

    def __init__(self) -> None:
        self.tables: list[list[int]] = []
        self._indices: dict[tuple[int, ...], int] = {}

    def index(self, curve: Curve) -> int:
        """Return the index of the steps of a curve."""
        steps = tuple(step for step, _ in curve)
        if steps not in self._indices:
            self._indices[steps] = len(self.tables)
            differences = [later - earlier for earlier, later in itertools.pairwise(steps)]
            self.tables.append([steps[0], *differences])
        return self._indices[steps]


def _points_per_curve(
    runs: Sequence[RunSummary], metrics: Sequence[MetricName], num_main: int
) -> dict[MetricName, int]:
    """Return how many points a curve of each metric may have; metrics that do not fit the budget are left out.

    The first `num_main` metrics share two thirds of the budget, if they need as much.
    """
    budget = CURVES_BUDGET // _BYTES_PER_POINT
    lengths = {metric: [len(run.curves[metric]) for run in runs if metric in run.curves] for metric in metrics}

    def cost(metric: MetricName, limit: int) -> int:
        return sum(min(length, limit) + 2 for length in lengths[metric])

    def largest_limit(chosen_metrics: Sequence[MetricName], room: int) -> int:
        limit = POINTS_PER_CURVE
        while limit > _LEAST_POINTS and sum(cost(metric, limit) for metric in chosen_metrics) > room:
            limit = max(_LEAST_POINTS, limit * 9 // 10)
        return limit

    main, minor_metrics = list(metrics[:num_main]), [metric for metric in metrics[num_main:] if lengths[metric]]
    room = budget if not minor_metrics else budget * 2 // 3
    limit = largest_limit(main, room)
    room = budget - sum(cost(metric, limit) for metric in main)
    fitting: list[MetricName] = []
    for metric in minor_metrics:
        if sum(cost(fitted, _MIN_POINTS) for fitted in fitting) + cost(metric, _MIN_POINTS) > room:
            break
        fitting.append(metric)
    return dict.fromkeys(main, limit) | dict.fromkeys(fitting, largest_limit(fitting, room))


def _run_data(
    run: RunSummary, points: dict[MetricName, int], keys: dict[str, _ValueTable], steps: _StepTables
) -> dict[str, Any]:
    curves: list[Any] = []
    for metric, limit in points.items():
        curve = thin_curve(run.curves[metric], limit) if metric in run.curves else []
        curves.append([steps.index(curve), [_round(value) for _, value in curve]] if curve else 0)
    return {
        "name": run.name,
        "config": run.config_name[:_MAX_TEXT],
        "state": run.state.value,
        "step": run.step,
        "steps": run.num_steps,
        "modified": round(1000 * run.files.modified),
        "bytes": run.num_bytes,
        "report": run.has_report,
        "study": run.files.study,
        "trust": shlex.join(run.trust_flags),
        "problems": list(run.problems),
        "values": [table.index(run.config.get(key, ABSENT)) for key, table in keys.items()],
        "curves": curves,
    }


def _round(value: float) -> float:
    """Round to five digits; a whole number is written without a decimal point."""
    rounded = float(f"{value:.5g}")
    if not math.isfinite(rounded):  # beyond the largest number
        return value
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _study_data(study: StudySummary) -> dict[str, Any]:
    return {
        "name": study.name,
        "kind": study.kind,
        "state": study.state.value,
        "counts": study.counts,
        "modified": round(1000 * study.modified),
        "bytes": study.num_bytes,
        "page": study.page,
        "problems": list(study.problems),
    }
