"""The summary of one run for a listing, whatever its files hold: what cannot be read is said and left out."""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError, flatten_config
from transformer.runs.jsonl_reading import MetricName, ReadableRecords, read_readable_records
from transformer.runs.metric_curves import Curve, Direction, curves_of_records, thin_curve
from transformer.runs.run_directory import RunDirectory, RunStart
from transformer.runs.trust import trust_flags
from transformer.storage.json_reading import read_json_object
from transformer.storage.paths import storage_of
from transformer.storage.storage import FolderEntry
from transformer.studies.sweeps.trial_store import TrialState, read_outcome
from transformer.system.terminal import pluralize

LOSS = MetricName("train", "loss")
MAX_JSON_BYTES = 1 << 24  # of a JSON file of a run or a study
_MAX_METRICS_BYTES = 1 << 25  # of metrics.jsonl that are read
_MAX_KEYS = 5000  # of a config
_MAX_METRICS = 2000  # of a run
_PROBLEM_LENGTH = 160  # characters
_DIVERGED = ("TrainingDiverged", "NonFiniteError")
_OUTCOME_STATES = {
    TrialState.DONE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.DIVERGED: "diverged",
    TrialState.FAILED: "failed",
}


class RunState(enum.Enum):
    """The state of a run: `STOPPED` has neither ended nor is a process training it, `UNREADABLE` has no config."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    FAILED = "failed"
    CONVERTED = "converted"
    UNREADABLE = "unreadable"


class RunFiles(NamedTuple):
    """The files of a run as they are at some time: equal ones give equal summaries.

    Attributes:
        name: The path of the run from the listed folder, with slashes; "." for the folder itself.
        path: The run directory.
        entries: Its files and folders by name.
        is_in_use: Whether a process trains it.
        study: The name of the sweep or ablation that it belongs to, "" for none.
    """

    name: str
    path: Path
    entries: Mapping[str, FolderEntry]
    is_in_use: bool
    study: str

    @property
    def modified(self) -> float:
        """When the run was last written to, in seconds since 1970."""
        names = ("metrics.jsonl", "outcome.json", "environment.json", "config.json")
        times = [self.entries[name].modified for name in names if name in self.entries]
        return max(times, default=0.0)

    @property
    def version(self) -> tuple[Any, ...]:
        """What changes whenever the summary may."""
        files = (entry for entry in self.entries.values() if entry.name.endswith((".json", ".jsonl", ".html")))
        return (self.name, self.is_in_use, *files)


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """What a listing says of a run.

    Attributes:
        files: Its name, path and files.
        config_name: The name in its config, "" if there is none.
        state: Its state.
        step: The last step that it logged or saved.
        num_steps: The steps of its config; None if unknown.
        config: The values of its config by dotted key.
        curves: The thinned curve of each metric; the lowest, the highest and the last value are kept.
        num_bytes: The size of its directory on the disk.
        trust_flags: The flags by which a command on it trusts the code that its config names.
        problems: What is wrong with its files or how it failed, in a few words each.
    """

    files: RunFiles
    config_name: str
    state: RunState
    step: int
    num_steps: int | None
    config: Mapping[str, Any]
    curves: Mapping[MetricName, Curve]
    num_bytes: int
    trust_flags: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """The path of the run from the listed folder."""
        return self.files.name

    @property
    def has_report(self) -> bool:
        """Whether its page, report.html, is written."""
        return "report.html" in self.files.entries

    def last(self, metric: MetricName) -> tuple[int, float] | None:
        """Return the last finite value of a metric and its step; None if there is none."""
        return self.curves[metric][-1] if metric in self.curves else None

    def best(self, metric: MetricName, direction: Direction | None) -> tuple[int, float] | None:
        """Return the first step with the best value of a metric; None if there is none or no direction."""
        if direction is None or metric not in self.curves:
            return None
        choose = min if direction == "minimize" else max
        return choose(self.curves[metric], key=lambda point: point[1])


def read_run(files: RunFiles) -> RunSummary:
    """Summarize a run. Nothing in its files raises an error; it is a problem of the summary."""
    reader = _RunReader(files)
    config = reader.read_config()
    starts = reader.read_starts()
    records = reader.read_metrics()
    curves = curves_of_records(records.records)
    if len(curves) > _MAX_METRICS:
        reader.problems.append(f"{len(curves)} metrics: only the first {_MAX_METRICS} are listed")
        curves = dict(list(curves.items())[:_MAX_METRICS])
    steps = config.get("steps")
    num_steps = steps if type(steps) is int and steps > 0 else None
    step = max([record["step"] for record in records.records], default=0)
    step = max([step, *reader.read_saved_steps()])
    state, reason = reader.find_state(config, starts, records, step, num_steps)
    return RunSummary(
        files=files,
        config_name=name if isinstance(name := config.get("name"), str) else "",
        state=state,
        step=step,
        num_steps=num_steps,
        config=config,
        curves={metric: thin_curve(curve) for metric, curve in curves.items()},
        num_bytes=reader.read_size(),
        trust_flags=reader.read_trust_flags(),
        problems=tuple([*([reason] if reason else []), *reader.problems]),
    )


class _RunReader:
    """Reads the files of one run, and collects what is wrong with them."""

    def __init__(self, files: RunFiles):
        self._files, self._run = files, RunDirectory(files.path)
        self._nested_config: dict[str, Any] = {}
        self.problems: list[str] = []

    def read_config(self) -> dict[str, Any]:
        """Return the values of config.json by dotted key; {} if it cannot be read."""
        if "config.json" not in self._files.entries:
            self.problems.append("config.json is missing, or no regular file")
            return {}
        try:
            self._nested_config = read_json_object(self._run.config_file, MAX_JSON_BYTES)
        except (OSError, UserError) as error:
            self._note(error)
            return {}
        config = flatten_config(self._nested_config)
        if len(config) > _MAX_KEYS:
            self.problems.append(f"config.json has {len(config)} keys: only the first {_MAX_KEYS} are read")
        return dict(list(config.items())[:_MAX_KEYS])

    def read_starts(self) -> list[RunStart]:
        """Return the starts in environment.json; [] if it cannot be read."""
        entry = self._files.entries.get("environment.json")
        try:
            if entry is None or entry.num_bytes > MAX_JSON_BYTES:
                return []
            return self._run.starts()
        except (OSError, UserError) as error:
            self._note(error)
            return []

    def read_metrics(self) -> ReadableRecords:
        """Return what can be read of metrics.jsonl."""
        if "metrics.jsonl" not in self._files.entries:
            return ReadableRecords([], 0, 0)
        try:
            records = read_readable_records(self._run.metrics_file, _MAX_METRICS_BYTES)
        except (OSError, UserError) as error:
            self._note(error)
            return ReadableRecords([], 0, 0)
        if records.num_unreadable:
            self.problems.append(f"{pluralize(records.num_unreadable, 'line')} of metrics.jsonl cannot be read")
        if records.num_omitted:
            self.problems.append(
                f"metrics.jsonl is large: {records.num_omitted / 1e6:,.0f} MB in its middle are not read"
            )
        return records

    def read_saved_steps(self) -> list[int]:
        """Return the steps of the checkpoints."""
        entry = self._files.entries.get("checkpoints")
        if entry is None or not entry.is_folder:
            return []
        try:
            listing = storage_of(self._files.path).list_folder(self._run.checkpoints_dir)
        except (OSError, UserError) as error:
            self._note(error)
            return []
        names = [entry.name for entry in listing if entry.is_folder]
        return [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 17]

    def find_state(
        self,
        config: Mapping[str, Any],
        starts: list[RunStart],
        records: ReadableRecords,
        step: int,
        num_steps: int | None,
    ) -> tuple[RunState, str]:
        """Return the state, and why the run failed or diverged, "" if it did not."""
        if "outcome.json" in self._files.entries:
            try:
                outcome = read_outcome(self._run.outcome_file, MAX_JSON_BYTES)
                return RunState(_OUTCOME_STATES[outcome.state]), _shorten(outcome.message)
            except (OSError, UserError) as error:
                self._note(error)
        if self._files.is_in_use:
            return RunState.RUNNING, ""
        if not config:
            return RunState.UNREADABLE, ""
        latest = starts[-1] if starts else RunStart()
        if latest.error is not None:
            has_diverged = latest.error.startswith(_DIVERGED)
            return (RunState.DIVERGED if has_diverged else RunState.FAILED), _shorten(latest.error.partition(": ")[2])
        diverged_at = next((start.diverged_at for start in starts if start.diverged_at is not None), None)
        if diverged_at is not None:
            return RunState.DIVERGED, f"diverged at step {diverged_at}"
        if num_steps is not None and step >= num_steps:
            return RunState.FINISHED, ""
        if any(start.converted is not None for start in starts) and not records.records:
            return RunState.CONVERTED, ""
        losses = [record["loss"] for record in records.records if record["split"] == "train" and "loss" in record]
        if losses and (losses[-1] is None or not math.isfinite(losses[-1])):
            return RunState.DIVERGED, "the last loss is not finite"
        return RunState.STOPPED, ""

    def read_size(self) -> int:
        """Return the size of the directory in bytes."""
        try:
            return storage_of(self._files.path).tree_size(self._files.path)
        except (OSError, UserError) as error:
            self._note(error)
            return 0

    def read_trust_flags(self) -> tuple[str, ...]:
        """Return the flags by which a command trusts the code that the config names."""
        try:
            return tuple(trust_flags(self._nested_config))
        except UserError as error:
            self._note(error)
            return ()

    def _note(self, error: OSError | UserError) -> None:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        file = error.filename if isinstance(error, OSError) else None
        text = text if file is None else f"{str(file).rpartition('/')[2]}: {text}"
        words = text.replace(f"{self._files.path}/", "").partition("; ")[0]
        self.problems.append(_shorten(re.sub(r"(is not JSON): .*", r"\1", words, flags=re.DOTALL)))


def _shorten(text: str) -> str:
    """Return a message as one line of a few words."""
    line = " ".join(text.split())
    return line if len(line) <= _PROBLEM_LENGTH else f"{line[: _PROBLEM_LENGTH - 4]} ..."
