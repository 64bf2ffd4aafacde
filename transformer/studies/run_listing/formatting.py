"""A listing as text: a table for a terminal, tab-separated lines for other programs, and JSON."""

import datetime
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import rich.box
import rich.style
import rich.table
import rich.text

from transformer.config import ABSENT, config_text
from transformer.runs.jsonl_reading import MetricName
from transformer.studies.run_listing.listing import Listing, StudySummary
from transformer.studies.run_listing.run_summary import RunState, RunSummary
from transformer.studies.run_listing.selection import ListedRuns, RunGroup, metric_value, short_keys
from transformer.system.terminal import escape_control_characters, format_size, pluralize

_STYLES = {
    RunState.RUNNING: "cyan",
    RunState.FINISHED: "green",
    RunState.DIVERGED: "yellow",
    RunState.FAILED: "red",
    RunState.UNREADABLE: "red",
}
_CELL_LENGTH = 40  # characters of a value in the table
_PADDING = 3  # characters between two columns: rich adds a space on both sides and a divider
_RUN_WIDTH = 36  # characters of the names of runs that the other columns leave at least
_LAST_TIME = 253402300799.0  # the end of the year 9999, in seconds since 1970


def format_age(modified: float) -> str:
    """Return how long ago a time is, as 12s, 5m, 3h or 9d."""
    seconds = max(0.0, time.time() - modified)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def format_step(run: RunSummary) -> str:
    """Return the step of a run and the steps of its config, as 400/1500."""
    return str(run.step) if run.num_steps is None else f"{run.step}/{run.num_steps}"


def format_number(value: float | None) -> str:
    """Return a number in five digits, "" for none."""
    return "" if value is None else f"{value:.5g}"


def format_value(value: Any) -> str:
    """Return a value of a config: texts as they are, "" for none."""
    return "" if value is ABSENT else value if isinstance(value, str) else config_text(value)


class _Column(NamedTuple):
    """A column of the table of runs."""

    heading: str
    cells: Sequence[rich.text.Text]
    justify: Literal["left", "right"] = "right"

    @property
    def width(self) -> int:
        """Its width with the room between two columns."""
        return max(*map(len, self.heading.split("\n")), *(cell.cell_len for cell in self.cells), 1) + _PADDING


def runs_table(listed: ListedRuns, width: int) -> rich.table.Table:
    """Build the table of runs for a terminal of a width. What does not fit is left out, and the caption counts it."""
    runs, names = listed.runs, short_keys(["name", *listed.table_keys])
    run_column = _Column("run", [_name_cell(run) for run in runs], "left")
    columns = [
        _Column("state", [rich.text.Text(run.state.value, _STYLES.get(run.state, "")) for run in runs], "left"),
        _Column("step", [_cell(format_step(run)) for run in runs]),
    ]
    end = [
        _Column("age", [_cell(format_age(run.files.modified)) for run in runs]),
        _Column("size", [_cell(format_size(run.num_bytes)) for run in runs]),
    ]
    room = width - min(run_column.width, _RUN_WIDTH) - sum(column.width for column in [*columns, *end])
    # On a narrow terminal the names of the runs take more lines, so that no number is cut.
    run_width = max(min(run_column.width, _RUN_WIDTH) + min(room, 0), _PADDING + 1)
    num_omitted_metrics, shown_keys = 0, set[str]()
    for metric in listed.metrics:
        direction = listed.listing.direction(metric)
        metric_columns = [
            _Column(str(metric).replace("/", "/\n", 1), [_point_cell(run.last(metric)) for run in runs]),
            *(
                []
                if direction is None
                else [_Column("best", [_point_cell(run.best(metric, direction)) for run in runs])]
            ),
        ]
        if sum(column.width for column in metric_columns) > room:
            del metric_columns[1:]
        if metric_columns[0].width > room:
            num_omitted_metrics += 1
            continue
        columns += metric_columns
        room -= sum(column.width for column in metric_columns)
    for key in listed.table_keys:
        column = _Column(names[key], [_cell(format_value(run.config.get(key, ABSENT))) for run in runs])
        if column.width > room:
            continue
        shown_keys.add(key)
        columns.append(column)
        room -= column.width
    num_omitted_keys = len({*listed.keys, *listed.table_keys} - shown_keys)
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("run", overflow="fold", min_width=run_width - _PADDING)
    for column in [*columns, *end]:
        heading = escape_control_characters(column.heading, "\n")
        table.add_column(rich.text.Text(heading), justify=column.justify, no_wrap=True)
    for cells in zip(run_column.cells, *(column.cells for column in [*columns, *end]), strict=True):
        table.add_row(*cells)
    omitted = [
        *([pluralize(num_omitted_metrics, "metric")] if num_omitted_metrics else []),
        *([f"{pluralize(num_omitted_keys, 'config key')} in which the runs differ"] if num_omitted_keys else []),
    ]
    if omitted:
        table.caption = f"without {' and '.join(omitted)}: see the page, or use a wider terminal"
        table.caption_justify = "left"
    return table


def _cell(text: str) -> rich.text.Text:
    """Return foreign text as a cell: no control characters, and not read as rich's own marks."""
    text = escape_control_characters(text)
    return rich.text.Text(text if len(text) <= _CELL_LENGTH else f"{text[: _CELL_LENGTH - 1]}…")


def _name_cell(run: RunSummary) -> rich.text.Text:
    """Return the name of a run, with a link to its page if that is written, and the name of its config."""
    name = rich.text.Text(escape_control_characters(run.name))
    if run.has_report and isinstance(run.files.path, Path):
        name.stylize(rich.style.Style(link=(run.files.path.resolve() / "report.html").as_uri()))
    if run.config_name and run.config_name != run.name.rpartition("/")[2]:
        name.append(f" {escape_control_characters(run.config_name)[:_CELL_LENGTH]}", "dim")
    return name


def _point_cell(point: tuple[int, float] | None) -> rich.text.Text:
    return rich.text.Text("" if point is None else format_number(point[1]))


def problem_lines(listed: ListedRuns) -> list[str]:
    """Return a line for each run and study of which something is wrong, and for what could not be searched."""
    lines = [f"{run.name}: {'; '.join(run.problems)}" for run in listed.runs if run.problems]
    lines += [f"{study.name}: {'; '.join(study.problems)}" for study in listed.studies() if study.problems]
    return [escape_control_characters(line) for line in [*lines, *listed.listing.problems]]


def studies_table(studies: Sequence[StudySummary]) -> rich.table.Table:
    """Build the table of sweeps and ablations for a terminal."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("study", "kind", "state", "runs", "age", "size", "page"):
        table.add_column(heading, justify="right" if heading in ("age", "size") else "left", overflow="fold")
    for study in studies:
        cells = [
            _cell(study.name),
            _cell(study.kind),
            rich.text.Text(study.state.value, _STYLES.get(study.state, "")),
            _cell(study.counts),
            _cell(format_age(study.modified)),
            _cell(format_size(study.num_bytes)),
            _cell("" if study.page is None else f"{study.name}/{study.page}"),
        ]
        table.add_row(*cells)
    return table


def groups_table(listed: ListedRuns, groups: Sequence[RunGroup], keys: Sequence[str]) -> rich.table.Table:
    """Build the table of groups: the mean and spread of each metric's best value."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in (*keys, "runs", *map(str, listed.metrics)):
        table.add_column(escape_control_characters(heading), justify="right", overflow="fold")
    for group in groups:
        means = [_format_mean(group_values(listed.listing, group, metric)) for metric in listed.metrics]
        cells = [*map(format_value, group.values), str(len(group.runs)), *means]
        table.add_row(*map(_cell, cells))
    return table


def group_values(listing: Listing, group: RunGroup, metric: MetricName) -> list[float]:
    """Return the best value of a metric of each run that has one."""
    values = [metric_value(listing, run, metric) for run in group.runs]
    return [value for value in values if value is not ABSENT]


def _format_mean(values: Sequence[float]) -> str:
    """Return "mean ± standard deviation" over runs."""
    if not values:
        return ""
    mean = format_number(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def plain_lines(listed: ListedRuns) -> list[str]:
    """Return the runs as lines of tab-separated cells, the first line naming the columns."""
    listing = listed.listing
    heading = ["run", "config", "state", "step", "steps"]
    for metric in listed.metrics:
        best = [] if listing.direction(metric) is None else [f"best {metric}"]
        heading += [str(metric), *best]
    heading += [*(f"config.{key}" for key in listed.table_keys), "age", "size", "report", "problems"]
    lines = [heading]
    for run in listed.runs:
        cells = [run.name, run.config_name, run.state.value, str(run.step), format_value(run.num_steps or ABSENT)]
        for metric in listed.metrics:
            direction = listing.direction(metric)
            points = [run.last(metric), *([] if direction is None else [run.best(metric, direction)])]
            cells += ["" if point is None else repr(point[1]) for point in points]
        cells += [format_value(run.config.get(key, ABSENT)) for key in listed.table_keys]
        report = str(run.files.path / "report.html") if run.has_report else ""
        lines.append(
            [*cells, format_age(run.files.modified), str(run.num_bytes), report, "; ".join(run.problems)],
        )
    return ["\t".join(map(escape_control_characters, line)) for line in lines]


def plain_study_lines(studies: Sequence[StudySummary]) -> list[str]:
    """Return the sweeps and ablations as lines of tab-separated cells, the first line naming the columns."""
    lines = [["study", "kind", "state", "runs", "age", "size", "page"]]
    for study in studies:
        page = "" if study.page is None else str(study.path / study.page)
        age = format_age(study.modified)
        lines.append([study.name, study.kind, study.state.value, study.counts, age, str(study.num_bytes), page])
    return ["\t".join(map(escape_control_characters, line)) for line in lines]


def plain_group_lines(listed: ListedRuns, groups: Sequence[RunGroup], keys: Sequence[str]) -> list[str]:
    """Return the groups as lines of tab-separated cells, the first line naming the columns."""
    lines = [[*keys, "runs", *map(str, listed.metrics)]]
    for group in groups:
        means = [_format_mean(group_values(listed.listing, group, metric)) for metric in listed.metrics]
        lines.append([*map(format_value, group.values), str(len(group.runs)), *means])
    return ["\t".join(map(escape_control_characters, line)) for line in lines]


def format_json(listed: ListedRuns, groups: Sequence[RunGroup], keys: Sequence[str]) -> str:
    """Return everything that is known of the runs except their curves, and the groups, as JSON."""
    listing = listed.listing
    values = {
        "folder": str(listing.folder),
        "runs": [_run_as_json(listed, run) for run in listed.runs],
        "studies": [
            {
                **{name: getattr(study, name) for name in ("name", "kind", "counts", "num_bytes", "direction")},
                "path": str(study.path),
                "state": study.state.value,
                "modified": _format_time(study.modified),
                "page": None if study.page is None else str(study.path / study.page),
                "metric": None if study.metric is None else str(study.metric),
                "problems": list(study.problems),
            }
            for study in listed.studies()
        ],
        "groups": [
            {
                "values": {key: to_json(value) for key, value in zip(keys, group.values, strict=True)},
                "runs": [run.name for run in group.runs],
                "metrics": {str(metric): group_values(listing, group, metric) for metric in listed.metrics},
            }
            for group in groups
        ],
        "problems": list(listing.problems),
    }
    return json.dumps(values, indent=1, allow_nan=False)


def _run_as_json(listed: ListedRuns, run: RunSummary) -> dict[str, Any]:
    listing = listed.listing
    metrics: dict[str, Mapping[str, Any]] = {}
    for metric in run.curves:
        points = {"last": run.last(metric), "best": run.best(metric, listing.direction(metric))}
        metrics[str(metric)] = {
            name: None if point is None else {"step": point[0], "value": point[1]} for name, point in points.items()
        }
    return {
        "name": run.name,
        "path": str(run.files.path),
        "config_name": run.config_name,
        "study": run.files.study,
        "state": run.state.value,
        "step": run.step,
        "steps": run.num_steps,
        "modified": _format_time(run.files.modified),
        "num_bytes": run.num_bytes,
        "report": str(run.files.path / "report.html") if run.has_report else None,
        "differences": {key: to_json(run.config[key]) for key in listed.keys if key in run.config},
        "metrics": metrics,
        "problems": list(run.problems),
    }


def to_json(value: Any) -> Any:
    """Return a value that JSON can hold: what is not finite as text, and None for an absent one."""
    if value is ABSENT:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return {key: to_json(item) for key, item in value.items()} if isinstance(value, dict) else value


def _format_time(seconds: float) -> str:
    bounded = min(max(seconds, 0.0), _LAST_TIME)
    return datetime.datetime.fromtimestamp(bounded, datetime.UTC).isoformat(timespec="seconds")
