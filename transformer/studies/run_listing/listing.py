"""Find every run, sweep and ablation under a folder, and read what changed since the last look."""

import contextlib
import os
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError, suggest_nearest
from transformer.runs.jsonl_reading import MetricName, parse_metric_name
from transformer.runs.metric_curves import Direction, metric_direction
from transformer.runs.run_directory import RunDirectory
from transformer.storage.json_reading import read_json_object
from transformer.storage.paths import parse_path, storage_of
from transformer.storage.storage import FolderEntry
from transformer.studies.run_listing.run_summary import MAX_JSON_BYTES, RunFiles, RunState, RunSummary, read_run

_MAX_DEPTH = 8  # of folders below the listed one
_MAX_FOLDERS = 100_000
_RUN_FILES = {"metrics.jsonl", "outcome.json", "attempts.jsonl", "environment.json", "checkpoints", "lock"}
_FOLDERS_OF_RUNS = {"checkpoints", "maps", "tensorboard", "samples", "looks", "profile"}
_OPEN_STATES = (RunState.RUNNING, RunState.STOPPED, RunState.UNREADABLE)


class StudyFiles(NamedTuple):
    """The files of a sweep or an ablation: its name and path, as those of `RunFiles`, and its files by name."""

    name: str
    path: Path
    entries: Mapping[str, FolderEntry]


class FolderScan(NamedTuple):
    """What a folder holds at some time.

    Attributes:
        runs: The files of the runs, by name.
        studies: The files of the sweeps and ablations, by name.
        problems: The folders that cannot be read, in a few words each.
    """

    runs: Sequence[RunFiles]
    studies: Sequence[StudyFiles]
    problems: Sequence[str]

    @property
    def version(self) -> tuple[Any, ...]:
        """What changes whenever the listing may."""
        studies = [(study.name, study.entries.get("trials.jsonl"), sorted(study.entries)) for study in self.studies]
        return (*(run.version for run in self.runs), *studies, *self.problems)


class StudySummary(NamedTuple):
    """What a listing says of a sweep or an ablation.

    Attributes:
        name: Its path from the listed folder.
        path: Its directory.
        kind: "sweep" or "ablation".
        state: `RUNNING`, `FINISHED` or `STOPPED`.
        counts: How many of its planned runs have ended, and how.
        modified: When one of its runs was last written to, in seconds since 1970.
        num_bytes: The size of its runs.
        page: The name of its page, None if it has none.
        metric: The metric by which it compares, None if unknown.
        direction: Whether that is better low or high.
        problems: What is wrong with its files.
    """

    name: str
    path: Path
    kind: str
    state: RunState
    counts: str
    modified: float
    num_bytes: int
    page: str | None
    metric: MetricName | None
    direction: Direction | None
    problems: tuple[str, ...]


class Listing(NamedTuple):
    """All runs and studies under a folder.

    Attributes:
        folder: The folder.
        runs: The runs.
        studies: The sweeps and ablations.
        problems: What could not be searched.
        directions: Whether metrics are better low or high, where somebody has said so.
    """

    folder: Path
    runs: Sequence[RunSummary]
    studies: Sequence[StudySummary]
    problems: Sequence[str]
    directions: Mapping[MetricName, Direction] = types.MappingProxyType({})

    @property
    def title(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name or str(self.folder)

    def metrics(self, runs: Sequence[RunSummary] | None = None) -> list[MetricName]:
        """Return the metrics of all runs or of these: those of validation, others, those of training; losses first."""
        counts = Counter(metric for run in (self.runs if runs is None else runs) for metric in run.curves)
        order = {"validation": 0, "train": 2}

        def rank(metric: MetricName) -> tuple[int, bool, int, MetricName]:
            return order.get(metric.split, 1), metric.name != "loss", -counts[metric], metric

        return sorted(counts, key=rank)

    def direction(self, metric: MetricName) -> Direction | None:
        """Return whether a metric is better low or high: as somebody or its studies say, else as its name says."""
        if metric in self.directions:
            return self.directions[metric]
        directions = {study.direction for study in self.studies if study.metric == metric and study.direction}
        return directions.pop() if len(directions) == 1 else metric_direction(metric)

    def with_directions(self, directions: Mapping[MetricName, Direction]) -> "Listing":
        """Return the listing with what is better of these metrics."""
        return self._replace(directions={**self.directions, **directions})

    def check_metric(self, metric: MetricName) -> None:
        """Check that a run has logged a metric.

        Raises:
            UserError: If none has; the message names those that there are.
        """
        known_metrics = list(map(str, self.metrics()))
        if str(metric) not in known_metrics:
            nearest = suggest_nearest(str(metric), known_metrics)
            raise UserError(f"--metric={metric}: no run has logged it: {nearest}")

    def main_metrics(self) -> list[MetricName]:
        """Return the metrics that a short listing shows: a held-out loss, and what is better high in most runs."""
        metrics = self.metrics()
        losses = [metric for metric in metrics if self.direction(metric) == "minimize"]
        scores = [
            metric
            for metric in metrics
            if self.direction(metric) == "maximize" and metric.split != "train" and "/" not in metric.name
        ]
        loss = next((metric for metric in losses if str(metric) == "validation/loss"), None)
        loss = loss or next((metric for metric in losses if metric.name == "loss"), None)
        return [*([loss] if loss else losses[:1]), *scores[:1]] or metrics[:1]


class RunIndex:
    """The runs and studies under a folder. A run whose files are as they were is not read again.

    Raises:
        UserError: If there is no such folder.
    """

    def __init__(self, folder: str | Path):
        self.folder = parse_path(folder)
        self._summaries: dict[tuple[Any, ...], RunSummary] = {}
        storage_of(self.folder).reach(self.folder)
        if not self.folder.is_dir():
            what = "is a file" if self.folder.exists() else "is missing"
            raise UserError(f"--workdir={folder} {what}: name a folder with runs")

    def scan(self) -> FolderScan:
        """Return the files of all runs and studies, without reading them."""
        search = _FolderSearch()
        search.visit(self.folder, "", "", 0)
        return FolderScan(
            sorted(search.runs, key=lambda run: run.name),
            sorted(search.studies, key=lambda study: study.name),
            search.problems,
        )

    def read(self, scan: FolderScan | None = None) -> Listing:
        """Return the listing of a scan, of a new one by default."""
        scan = self.scan() if scan is None else scan
        self._summaries = {files.version: self._summaries.get(files.version) or read_run(files) for files in scan.runs}
        runs = list(self._summaries.values())
        return Listing(self.folder, runs, [_read_study(study, runs) for study in scan.studies], scan.problems)


class _FolderSearch:
    """A search for runs and studies, from folder to folder; links are not followed."""

    def __init__(self) -> None:
        self.runs: list[RunFiles] = []
        self.studies: list[StudyFiles] = []
        self.problems: list[str] = []
        self._num_folders = 0

    def visit(self, path: Path, name: str, study: str, depth: int) -> None:
        """Search a folder and those below it."""
        self._num_folders += 1
        if self._num_folders == _MAX_FOLDERS:
            self.problems.append(f"only the first {_MAX_FOLDERS:,} folders were searched")
        if self._num_folders >= _MAX_FOLDERS:
            return
        try:
            entries = {entry.name: entry for entry in storage_of(path).list_folder(path)}
        except FileNotFoundError:  # removed in the meantime
            return
        except (OSError, UserError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.problems.append(f"{name or '.'} cannot be searched: {reason}")
            return
        is_study = "sweep.json" in entries
        is_run = not is_study and _is_run(path, entries)
        if is_study:
            study = name or "."
            self.studies.append(StudyFiles(study, path, entries))
        elif is_run:
            self.runs.append(RunFiles(name or ".", path, entries, _is_in_use(path, entries), study))
        if depth == _MAX_DEPTH:
            return
        for entry in entries.values():
            is_hidden = entry.name.startswith(".") or entry.name.endswith(".removed") or entry.name == "__pycache__"
            if entry.is_folder and not is_hidden and not (is_run and entry.name in _FOLDERS_OF_RUNS):
                self.visit(path / entry.name, f"{name}/{_as_text(entry.name)}".lstrip("/"), study, depth + 1)


def _as_text(name: str) -> str:
    """Return the name of a file as text; bytes that are not UTF-8 become the replacement character."""
    return os.fsencode(name).decode("utf-8", "replace")


def _is_run(path: Path, entries: Mapping[str, FolderEntry]) -> bool:
    """Whether a folder is that of a run; a config.json alone may be of published weights or of anything else."""
    if "metrics.jsonl" in entries or "outcome.json" in entries:
        return True
    if "config.json" not in entries:
        return False
    if any(name in entries for name in _RUN_FILES):
        return True
    with contextlib.suppress(OSError, UserError):
        return "task" in read_json_object(path / "config.json", MAX_JSON_BYTES)
    return True


def _is_in_use(path: Path, entries: Mapping[str, FolderEntry]) -> bool:
    if "lock" not in entries:
        return False
    try:
        return RunDirectory(path).is_in_use()
    except (OSError, UserError):  # a lock of others that may not be read
        return False


def _read_study(study: StudyFiles, runs: Sequence[RunSummary]) -> StudySummary:
    own_runs = [run for run in runs if run.files.study == study.name]
    facts, problems = _read_study_facts(study)
    num_planned = max(_count_lines(study), len(own_runs))
    counts = Counter(run.state for run in own_runs if run.state not in _OPEN_STATES)
    num_ended = sum(counts.values())
    is_running = any(run.state is RunState.RUNNING for run in own_runs)
    is_finished = 0 < num_planned <= num_ended
    overall_state = RunState.RUNNING if is_running else RunState.FINISHED if is_finished else RunState.STOPPED
    early_ends = ", ".join(
        f"{counts[state]} {state.value}" for state in RunState if counts[state] and state is not RunState.FINISHED
    )
    kind = "ablation" if "ablation" in facts else "sweep"
    metric, direction = None, facts.get("direction")
    with contextlib.suppress(UserError):
        metric = parse_metric_name(str(facts.get("metric")))
    return StudySummary(
        name=study.name,
        path=study.path,
        kind=kind,
        state=overall_state,
        counts=f"{num_ended} of {num_planned} ended" + (f": {early_ends}" if early_ends else ""),
        modified=max((run.files.modified for run in own_runs), default=study.entries["sweep.json"].modified),
        num_bytes=sum(run.num_bytes for run in own_runs),
        page=f"{kind}.html" if f"{kind}.html" in study.entries else None,
        metric=metric,
        direction=direction if direction in ("minimize", "maximize") else None,
        problems=problems,
    )


def _read_study_facts(study: StudyFiles) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        return read_json_object(study.path / "sweep.json", MAX_JSON_BYTES), ()
    except (OSError, UserError) as error:
        return {}, (f"sweep.json cannot be read: {' '.join(str(error).split())[-100:]}",)


def _count_lines(study: StudyFiles) -> int:
    """Return the number of planned trials, a line each."""
    entry = study.entries.get("trials.jsonl")
    if entry is None or entry.is_folder:
        return 0
    with contextlib.suppress(OSError, UserError):
        path = study.path / "trials.jsonl"
        return storage_of(path).read_range(path, 0, min(entry.num_bytes, MAX_JSON_BYTES)).count(b"\n")
    return 0
