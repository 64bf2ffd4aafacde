"""Read the results of an ablation's runs from their run directories."""

import datetime
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from transformer.attention.statistics import ENTROPY, FIRST_TOKEN
from transformer.config import UserError
from transformer.maps.store import MapStore
from transformer.runs.jsonl_reading import read_records
from transformer.runs.run_directory import RunDirectory, RunStart, parse_time
from transformer.runs.trust import trust_flags
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.run_plan import PlannedRun
from transformer.studies.ablations.run_result import Point, RunResult

# What the page calls a statistic, and what the maps store does: the sink is the mass on a sequence's first token
# (Xiao et al. 2023).
HEAD_STATISTICS = {"entropy": ENTROPY.name, "sink": FIRST_TOKEN.name}

Record = Mapping[str, Any]


class Provenance(TypedDict):
    """The hardware, commit and versions of packages of some runs; if they differ, all of them are listed."""

    hardware: str | None
    commit: str | None
    versions: dict[str, str | None]


class EndedRun(NamedTuple):
    """A run of a study that has ended.

    Attributes:
        planned: The planned run.
        state: "done", "diverged" or "failed".
        path: The run directory.
        directory: The run directory, as shown.
        command: The command that trains it again.
        attempt_times: When its attempts began, in seconds since 1970; None for an unreadable one.
    """

    planned: PlannedRun
    state: str
    path: Path
    directory: str
    command: str
    attempt_times: Sequence[float | None] = ()


def collect_results(spec: Ablation, ended: Sequence[EndedRun]) -> list[RunResult]:
    """Read the result of every run that has ended.

    Args:
        spec: The ablation.
        ended: The runs.

    Returns:
        The results, in the order of the runs.

    Raises:
        UserError: If a finished run has not reported one of the study's metrics.
    """
    return [_collect_run(spec, ended_run) for ended_run in ended]


def metric_curve(records: Sequence[Record], metric: str) -> tuple[Point, ...]:
    """Return the values of a metric over training, without those that were not finite.

    Args:
        records: The lines of a run's metrics.jsonl.
        metric: The metric, as "split/name".

    Returns:
        Pairs (step, value).
    """
    return tuple((step, value) for step, value in _reported_values(records, metric) if value is not None)


def last_value(records: Sequence[Record], metric: str) -> float | None:
    """Return the last reported value of a metric.

    Args:
        records: The lines of a run's metrics.jsonl.
        metric: The metric, as "split/name".

    Returns:
        The value; None if it was not finite or never reported.
    """
    reports = _reported_values(records, metric)
    return reports[-1][1] if reports else None


def head_statistics_over_training(maps: Path) -> dict[str, dict[str, tuple[Point, ...]]]:
    """Read the `HEAD_STATISTICS` of each attention module over training: means over layers, heads and probe examples.

    Examples for which a statistic is undefined are left out.

    Args:
        maps: The map store of a run.

    Returns:
        Points (step, value) by statistic and module; empty for a run without maps.
    """
    if not (maps / "zarr.json").exists():
        return {}
    store = MapStore.open_existing(maps)
    curves: dict[str, dict[str, tuple[Point, ...]]] = {}
    for site in store.sites:
        statistics = store.statistics(site.name)
        for name, stored in HEAD_STATISTICS.items():
            if stored not in statistics.names or not store.steps:
                continue
            values_SxBxLxH = statistics.values[..., statistics.names.index(stored)].astype(np.float64)
            with warnings.catch_warnings():
                # Of a step without a single value there is no mean.
                warnings.simplefilter("ignore", RuntimeWarning)
                means_S = np.nanmean(values_SxBxLxH, axis=(1, 2, 3))
            points = tuple(
                (step, float(mean)) for step, mean in zip(store.steps, means_S, strict=True) if np.isfinite(mean)
            )
            if points:
                curves.setdefault(name, {})[site.name] = points
    return curves


def first_start_of_run(path: Path, attempt_times: Sequence[float | None]) -> datetime.datetime | None:
    """Return when a run first began, by its own starts and by the trial store, in UTC.

    Args:
        path: The run directory.
        attempt_times: When its attempts began, in seconds since 1970, by the trial store; None for an unreadable one.

    Returns:
        The earliest time; None if there is none, or one of them is not readable and might be earlier.
    """
    times = [parse_time(start.started) for start in RunDirectory(path).starts()]
    times += [None if seconds is None else _utc_time(seconds) for seconds in attempt_times]
    readable_times = [time for time in times if time is not None]
    return min(readable_times) if readable_times and len(readable_times) == len(times) else None


def _utc_time(seconds: float) -> datetime.datetime | None:
    """Return the time of some seconds since 1970; None beyond the year 9999."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError):
        return None


def collect_provenance(directories: Sequence[Path]) -> Provenance:
    """Collect where the results of some runs come from."""
    starts = [start for directory in directories for start in RunDirectory(directory).starts()]
    names = dict.fromkeys(name for start in starts for name in start.packages)
    packages = {name: _join_distinct(start.packages.get(name) for start in starts) for name in names}
    return {
        "hardware": _join_distinct(_describe_hardware(start) for start in starts),
        "commit": _join_distinct(start.commit for start in starts),
        "versions": {"python": _join_distinct(start.python for start in starts), **packages} if starts else {},
    }


def _collect_run(spec: Ablation, ended: EndedRun) -> RunResult:
    run, planned = RunDirectory(ended.path), ended.planned
    records = read_records(run.metrics_file)
    if ended.state == "done":
        _check_reported(spec, records, planned)
    selection_curve = metric_curve(records, spec.selection_metric)
    provenance, started = collect_provenance([ended.path]), first_start_of_run(ended.path, ended.attempt_times)
    flops = [value for _, value in metric_curve(records, "train/flops_per_step")]
    return RunResult(
        arm_name=planned.arm_name,
        task_name=planned.task_name,
        seed=planned.seed,
        hyperparameters=dict(planned.hyperparameters),
        state=ended.state,
        selection_value=selection_curve[-1][1] if selection_curve else None,
        reported_value=last_value(records, spec.reported_metric),
        curves={metric: metric_curve(records, metric) for metric in spec.curves},
        flops=float(np.mean(flops)) if flops else None,
        head_statistics=head_statistics_over_training(run.maps_dir),
        num_steps=planned.trial.config["steps"],
        directory=ended.directory,
        command=ended.command,
        trust_flags=shlex.join(trust_flags(planned.trial.config)),
        started=None if started is None else started.isoformat(timespec="seconds"),
        commit=provenance["commit"],
        hardware=provenance["hardware"],
    )


def _reported_values(records: Sequence[Record], metric: str) -> list[tuple[int, float | None]]:
    split, _, name = metric.partition("/")
    values = [(record["step"], record[name]) for record in records if record["split"] == split and name in record]
    return [(step, None if value is None else float(value)) for step, value in values]


def _check_reported(spec: Ablation, records: Sequence[Record], planned: PlannedRun) -> None:
    reported_metrics = {
        f"{record['split']}/{name}" for record in records for name in record if name not in ("step", "split")
    }
    for metric in spec.metrics:
        if metric not in reported_metrics:
            raise UserError(
                f"ablation: metric {metric!r} is not reported by the runs ({planned.description}); they report "
                f"{', '.join(sorted(reported_metrics))}. What is trained stays: correct the name and start the command "
                "again"
            )


def _describe_hardware(start: RunStart) -> str | None:
    if start.devices is None:
        return None
    cores = "1 CPU core" if start.cpus == 1 else f"{start.cpus} CPU cores"
    processor = f" of {start.processor}" if start.processor else ""
    return f"{start.devices.count} x {start.devices.kind}, {cores}{processor} a run, {start.platform}"


def _join_distinct(facts: Iterable[str | None]) -> str | None:
    """Join the distinct values of a fact that several starts record."""
    return ", ".join(dict.fromkeys(fact for fact in facts if fact is not None)) or None
