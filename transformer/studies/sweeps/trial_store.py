"""The store of a sweep's trials: those planned, which process trains one, and how each ended.

    WORKDIR/
        sweep.json                   what the sweep is: base config, space, engine, seed, metric
        trials.jsonl                 the trials in the order planned, a line each
        planning/lock                held by the process that plans trials
        trials/NAME/                 the run directory of a trial (transformer.runs.run_directory), and in it
        trials/NAME/lock             the run's lock, held by the one process that trains the trial
        trials/NAME/attempts.jsonl   every start of it, and whether its worker stopped or died
        trials/NAME/outcome.json     how it ended; written once

Many processes on many machines coordinate through these files alone. The process that trains a trial holds the lock of
its run directory, which the kernel frees when the process dies (in a bucket it is a lease that expires unless it is
renewed). A trial without an outcome whose lock is free is pending, whatever happened to earlier workers. The outcome is
written while the lock is held, so that it is written once.

This module does not import jax.
"""

import contextlib
import dataclasses
import enum
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from transformer.config import MatchesPattern, Range, UserError
from transformer.runs.jsonl_reading import StepNumber, complete_lines
from transformer.runs.run_directory import RunDirectory, check_regular_files, write_json
from transformer.storage.disk_errors import refuse_unusable_storage
from transformer.storage.json_checksum import add_checksum, has_valid_checksum, strip_checksum
from transformer.storage.json_reading import (
    MAX_BYTES,
    parse_dataclass,
    parse_json,
    read_json_object,
    read_regular_file,
    require_object,
)
from transformer.storage.paths import claim_when_free, parse_path, storage_of
from transformer.storage.storage import DirectoryInUse
from transformer.studies.sweeps.trials import Trial, to_json_values, trial_from_config

_FACTS, _TRIALS, _RUNS = "sweep.json", "trials.jsonl", "trials"
_PLANNING, _LOCK = "planning", "lock"  # the folder whose lock is held to plan, and the lock
_VERSION = 2  # of these files; 1 had attempts, outcomes and locks of their own in a folder trial_status
_NAME = "[0-9a-f]{16}"  # of a trial
_WAIT = 0.02  # seconds between two looks at a lock that others hold for an instant
_SHOWN = 3  # differences of two sweeps
_CORRECTABLE = ("metric", "direction")  # as long as no trial has a value by them


class TrialState(enum.Enum):
    """The state of a trial."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    FAILED = "failed"


Time = Annotated[float, Range(0, 1e12)]
"""Seconds since 1970."""


@dataclasses.dataclass(frozen=True)
class TrialRecord:
    """A line of trials.jsonl: a `Trial`, whose name is the hash of its config."""

    name: Annotated[str, MatchesPattern(_NAME, "16 hexadecimal digits")]
    overrides: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class AttemptRecord:
    """A line of attempts.jsonl: one of a start, that the last start was `left`, or that all are `forgotten`.

    Attributes:
        step: The step that had been reached before the start.
        began: When it began, in seconds since 1970.
        worker: The process and machine.
        left: Whether the last start was stopped in good order.
        forgotten: Whether the starts so far no longer count.
    """

    step: StepNumber | None = None
    began: Time | None = None
    worker: str = ""
    left: bool = False
    forgotten: bool = False

    def __post_init__(self) -> None:
        if (self.step is not None) + self.left + self.forgotten != 1:
            raise ValueError("step: a line says either the step of a start, or that one was left, or all are forgotten")


@dataclasses.dataclass(frozen=True)
class OutcomeRecord:
    """The content of outcome.json: the `TrialOutcome`, and when its attempt began and ended."""

    state: TrialState
    value: float | None
    step: StepNumber
    message: str
    began: Time
    ended: Time

    def __post_init__(self) -> None:
        if self.state in (TrialState.PENDING, TrialState.RUNNING):
            raise ValueError(f"state={self.state.value!r} is no outcome")


class TrialOutcome(NamedTuple):
    """How a trial ended.

    Attributes:
        state: Its final state.
        value: The sweep's metric at the end.
        step: The last step.
        message: Why it failed or diverged, if it did.
    """

    state: TrialState
    value: float | None
    step: int
    message: str


class TrialAttempt(NamedTuple):
    """One start of a trial.

    Attributes:
        step: The step that had been reached before.
        stopped_cleanly: Whether its worker was stopped in good order, rather than died.
    """

    step: int
    stopped_cleanly: bool


class TrialStore:
    """The files of one sweep: `TrialStore.open` creates or continues one, `TrialStore.open_existing` reads one."""

    def __init__(self, path: Path):
        self.path = path
        self._trials: tuple[Trial, ...] = ()
        self._version: Any = None
        self._outcomes: dict[str, OutcomeRecord] = {}  # that are known: they never change

    @classmethod
    def open(cls, path: Path, sweep: Mapping[str, Any]) -> "TrialStore":
        """Open the sweep at `path`, creating it if it is missing.

        A misspelled metric may be corrected as long as no trial has a value of it.

        Args:
            path: The directory of the sweep.
            sweep: The plain values that identify the sweep.

        Returns:
            The store.

        Raises:
            UserError: If the directory holds another sweep or something else.
        """
        path, facts = parse_path(path), to_json_values(sweep)
        trial_store = cls(path)
        with refuse_unusable_storage(path):
            storage_of(path).reach(path)
            check_regular_files(path)
            trial_store._check_directory()  # before the lock: a directory that is refused gets no lock file
            with trial_store._lock_planning():
                recorded = trial_store._check_directory()
                if recorded is not None:
                    free = () if trial_store.has_any_value() else _CORRECTABLE
                    _check_facts(path, {**recorded, **{key: facts[key] for key in free if key in facts}}, facts)
                if recorded != facts:
                    _write_checked_object(path / _FACTS, {"version": _VERSION, **facts})
        return trial_store

    @classmethod
    def open_existing(cls, path: Path) -> "TrialStore":
        """Open the existing sweep at `path`.

        Raises:
            UserError: If there is none, or it is of another version.
        """
        path = parse_path(path)
        trial_store = cls(path)
        with refuse_unusable_storage(path):
            storage_of(path).reach(path)
            check_regular_files(path)
            if not (path / _FACTS).is_file():
                raise UserError(f"--workdir={path} holds no sweep: it has no {_FACTS}")
            trial_store.facts()
        return trial_store

    def facts(self) -> dict[str, Any]:
        """Return the plain values that identify the sweep.

        Raises:
            UserError: If sweep.json is damaged, or of another version.
        """
        facts = _read_checked_object(self.path / _FACTS)
        version = facts.pop("version", 1)
        if version != _VERSION:
            raise UserError(
                f"--workdir={self.path} holds a sweep of version {version!r:.20}, and this code reads version "
                f"{_VERSION}: complete it with the code that began it, or choose another --workdir"
            )
        return facts

    def append_trials(self, trials: Sequence[Trial]) -> None:
        """Append the trials that are not planned yet."""
        if {trial.name for trial in trials} - {trial.name for trial in self.trials()}:
            with self._lock_planning():
                self._append_trials(trials)

    def append_suggested_trial(self, total: int, suggest: Callable[[], Trial | None]) -> bool:
        """Append the trial that `suggest` returns, unless `total` trials are planned.

        One process proposes at a time and sees what all others have planned.

        Args:
            total: The number of trials of the sweep.
            suggest: Returns the next trial; None if there is none.

        Returns:
            False if `suggest` returned None, else True.
        """
        with self._lock_planning():
            if len(self.trials()) >= total:
                return True
            trial = suggest()
            if trial is None:
                return False
            self._append_trials([trial])
        return True

    def trials(self) -> tuple[Trial, ...]:
        """Return all trials, in the order planned.

        Raises:
            UserError: If a line is damaged, or the line of a trial that has begun is missing.
        """
        version = storage_of(self.path).versions(self.path, [_TRIALS])
        if version != self._version:
            started_names = self._started_trial_names()  # before the plan is read: what begins from here on is in it
            content = read_regular_file(self.path / _TRIALS) if version else b""
            # A last line without its end is being written, or was torn by a kill and will be cut off.
            lines = _complete_entries(content).splitlines()
            self._trials = tuple(
                _parse_trial(f"{self.path / _TRIALS}:{number}", line) for number, line in enumerate(lines, 1)
            )
            lost = started_names - {trial.name for trial in self._trials}
            if lost:
                raise UserError(
                    f"{self.path / _TRIALS} is not what the sweep has written: the trial {min(lost)} has begun and is "
                    "not in it; put back a copy of the file, or choose another --workdir"
                )
            self._version = version
        return self._trials

    def state(self, trial: Trial) -> TrialState:
        """Return the state of a trial."""
        outcome = self.outcome(trial)
        if outcome is not None:
            return outcome.state
        return TrialState.RUNNING if self.run_directory(trial).is_in_use() else TrialState.PENDING

    def outcome(self, trial: Trial) -> TrialOutcome | None:
        """Return how a trial ended; None if it has not."""
        ended = self._outcome_record(trial)
        return None if ended is None else TrialOutcome(ended.state, ended.value, ended.step, ended.message)

    def start_and_end_times(self, trial: Trial) -> tuple[float, float] | None:
        """Return when the attempt that ended a trial began and ended, in seconds since 1970; None if none has."""
        ended = self._outcome_record(trial)
        return None if ended is None else (ended.began, ended.ended)

    def has_begun(self, trial: Trial) -> bool:
        """Return whether a trial has an attempt, an outcome or a run."""
        return self.directory(trial).exists()

    def attempt_times(self, trial: Trial) -> list[float | None]:
        """Return when each attempt of a trial began, in seconds since 1970, also of forgotten ones.

        Returns:
            The times; None stands for an attempt without one, and for a line that is not what was written.
        """
        ended = self.start_and_end_times(trial)
        recorded = _read_attempts(self.run_directory(trial))
        times = [
            None if entry is None else entry.began for entry in recorded if entry is None or entry.step is not None
        ]
        return times if ended is None else [*times, ended[0]]

    def directory(self, trial: Trial) -> Path:
        """Return the path of the run directory of a trial."""
        return self.run_directory(trial).path

    def run_directory(self, trial: Trial) -> RunDirectory:
        """Return the run directory of a trial, to read it."""
        return RunDirectory(self.path / _RUNS / trial.name)

    @contextlib.contextmanager
    def hold_trial(self, trial: Trial) -> Iterator["TrialLease"]:
        """Hold a trial for this process alone while the context lasts.

        Raises:
            DirectoryInUse: If another process holds it.
            DirectoryLost: If the lease in a bucket could not be renewed.
        """
        with RunDirectory.lock(self.directory(trial)) as directory:
            yield TrialLease(self, trial, directory, time.time())

    def forget_failed(self) -> int:
        """Make failed trials pending again, keeping their run directories, and return their number."""
        count = 0
        for trial in self.trials():
            outcome = self.outcome(trial)
            if outcome is not None and outcome.state == TrialState.FAILED:
                with contextlib.suppress(DirectoryInUse), self.hold_trial(trial) as lease:
                    # First: killed in between, the trial has failed still.
                    lease.forget_attempts()
                    lease.directory.outcome_file.unlink(missing_ok=True)
                    del self._outcomes[trial.name]
                    count += 1
        return count

    def has_any_value(self) -> bool:
        """Return whether any trial has a value of the metric."""
        outcomes = (self.outcome(trial) for trial in self.trials())
        return any(outcome is not None and outcome.value is not None for outcome in outcomes)

    def _started_trial_names(self) -> set[str]:
        """Return the names of the trials that have a directory."""
        folder = self.path / _RUNS
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        return {name for name in names if re.fullmatch(_NAME, name)}

    def _outcome_record(self, trial: Trial) -> OutcomeRecord | None:
        file = self.run_directory(trial).outcome_file
        if trial.name not in self._outcomes and file.is_file():
            self._outcomes[trial.name] = read_outcome(file)
        return self._outcomes.get(trial.name)

    def _check_directory(self) -> dict[str, Any] | None:
        """Return the facts of the sweep in the directory; None if there is none and one can begin.

        Raises:
            UserError: If there is something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--workdir={self.path} is a file; name a directory")
        if (self.path / _FACTS).is_file():
            return self.facts()
        if self.path.is_dir():
            # A start that was killed before it wrote its facts leaves these behind.
            names = {entry.name for entry in self.path.iterdir()} - {_PLANNING}
            unexpected = {name for name in names if not (name.startswith(_FACTS) and name.endswith(".new"))}
            if unexpected:
                raise UserError(
                    f"--workdir={self.path} holds {min(unexpected)!r} but no {_FACTS}, so it is no sweep; "
                    "name an empty or a new directory"
                )
        return None

    def _lock_planning(self) -> contextlib.AbstractContextManager[None]:
        """Hold the planning lock; another process that plans waits."""
        return claim_when_free(self.path / _PLANNING, _LOCK, _WAIT)

    def _append_trials(self, trials: Sequence[Trial]) -> None:
        planned = {trial.name for trial in self.trials()}
        new = {trial.name: trial for trial in trials if trial.name not in planned}
        if not new:
            return
        file = storage_of(self.path).append_to(self.path / _TRIALS)
        with contextlib.closing(file):
            file.rewrite(_complete_entries)
            file.append(b"".join(_format_line(trial._asdict()) for trial in new.values()))


@dataclasses.dataclass(frozen=True)
class TrialLease:
    """A trial that this process holds.

    Attributes:
        trial_store: The store.
        trial: The trial.
        directory: Its run directory, which is locked.
        lease_start_time: When it was taken, in seconds since 1970.
    """

    trial_store: TrialStore
    trial: Trial
    directory: RunDirectory
    lease_start_time: float

    def attempts(self) -> list[TrialAttempt]:
        """Return the starts so far that are not forgotten."""
        attempts: list[TrialAttempt] = []
        for number, entry in enumerate(_read_attempts(self.directory), 1):
            if entry is None:  # a start is counted too few
                line = f"{self.directory.attempts_file}:{number}"
                print(f"{line} is not what was written: left out", file=sys.stderr)
            elif entry.step is not None:
                attempts.append(TrialAttempt(entry.step, stopped_cleanly=False))
            elif entry.forgotten:
                attempts.clear()
            elif attempts:
                attempts[-1] = attempts[-1]._replace(stopped_cleanly=True)
        return attempts

    def record_start(self, step: int) -> None:
        """Record this start, after `step` steps of earlier ones."""
        self._append_entry(
            {"step": step, "began": self.lease_start_time, "worker": f"process {os.getpid()} on {socket.gethostname()}"}
        )

    def record_orderly_stop(self) -> None:
        """Record that this start ends in good order without an outcome."""
        self._append_entry({"left": True})

    def forget_attempts(self) -> None:
        """Record that the starts so far do not count."""
        self._append_entry({"forgotten": True})

    def record_outcome(self, outcome: TrialOutcome) -> None:
        """Write how the trial ended.

        Raises:
            RuntimeError: If it already has an outcome.
        """
        if self.trial_store.outcome(self.trial) is not None:
            raise RuntimeError(f"trial {self.trial.name} has an outcome already")
        times = {"began": self.lease_start_time, "ended": time.time()}
        _write_checked_object(self.directory.outcome_file, {**outcome._asdict(), "state": outcome.state.value, **times})

    def _append_entry(self, entry: Mapping[str, Any]) -> None:
        file = storage_of(self.directory.path).append_to(self.directory.attempts_file)
        with contextlib.closing(file):
            file.rewrite(_complete_entries)
            file.append(_format_line(entry))


def _format_line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(add_checksum(json.loads(json.dumps(entry)))).encode() + b"\n"


def _parse_entry(line: bytes) -> dict[str, Any] | None:
    """Parse a line, returning None if it is not what was written."""
    try:
        entry = parse_json(line, "it")
    except UserError:
        return None
    return strip_checksum(entry) if has_valid_checksum(entry) else None


def _read_attempts(directory: RunDirectory) -> list[AttemptRecord | None]:
    """Return the lines of a trial's attempts.jsonl, None for one that is not what was written."""
    file = directory.attempts_file
    try:
        content = read_regular_file(file)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    return [_parse_attempt(line) for line in _complete_entries(content).splitlines()]


def _parse_attempt(line: bytes) -> AttemptRecord | None:
    """Parse a line of attempts.jsonl, returning None if it is not what was written."""
    try:
        return parse_dataclass(AttemptRecord, _parse_entry(line), "it")
    except UserError:
        return None


def read_outcome(file: Path, max_bytes: int = MAX_BYTES) -> OutcomeRecord:
    """Read the outcome.json of a trial.

    Raises:
        UserError: If the file is not what a sweep writes.
    """
    try:
        return parse_dataclass(OutcomeRecord, _read_checked_object(file, max_bytes), str(file))
    except UserError as error:
        raise UserError(f"{error}; put back a copy of it, or remove it and the trial is trained again") from error


def _parse_trial(what: str, line: bytes) -> Trial:
    """Parse a line of trials.jsonl; the name is used as a folder, so it must be the hash of the config.

    Raises:
        UserError: If the line is damaged, or the name is not the hash of the config.
    """
    record = require_object(parse_json(line, what), what)
    if not has_valid_checksum(record):
        raise UserError(
            f"{what} is not what the sweep has written; put back a copy of the file, or choose another --workdir"
        )
    planned = parse_dataclass(TrialRecord, strip_checksum(record), what)
    trial = trial_from_config(planned.overrides, planned.config)
    if planned.name != trial.name:
        raise UserError(f"{what}: name={planned.name!r} is not the hash of the trial's config: name another --workdir")
    return trial


def _complete_entries(content: bytes) -> bytes:
    return complete_lines(content, lambda line: _parse_entry(line) is not None)


def _write_checked_object(path: Path, value: Mapping[str, Any]) -> None:
    write_json(path, add_checksum(value))


def _read_checked_object(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read what `_write_checked_object` wrote.

    Raises:
        UserError: If it is something else.
    """
    try:
        value = read_json_object(path, max_bytes)
    except UserError as error:
        raise UserError(f"{error}: that is not what a sweep writes; repair it or choose another --workdir") from error
    if not has_valid_checksum(value):
        raise UserError(f"{path} is not what the sweep has written; put back a copy of it, or choose another --workdir")
    return strip_checksum(value)


def _check_facts(path: Path, recorded: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    new, old = _flatten(expected), _flatten(recorded)
    different = [key for key in new | old if new.get(key) != old.get(key)]
    if different:
        differences = [f"{key}={old.get(key, 'absent')}, not {new.get(key, 'absent')}" for key in different[:_SHOWN]]
        more = f" (and {len(different) - _SHOWN} more)" if len(different) > _SHOWN else ""
        raise UserError(
            f"--workdir={path} holds another sweep: {'; '.join(differences)}{more}; choose another --workdir, "
            "or go back to the recorded values to complete it"
        )


def _flatten(value: Any, key: str = "") -> dict[str, str]:
    """Return the values as JSON text by dotted key, including those inside lists."""
    entries: dict[str, Any] = {}
    if isinstance(value, Mapping):
        entries = {str(name): item for name, item in value.items()}
    elif isinstance(value, list):
        entries = {str(number): item for number, item in enumerate(value)}
    if not entries:
        return {key: json.dumps(value, sort_keys=True, ensure_ascii=False)}
    flat: dict[str, str] = {}
    for name, item in entries.items():
        flat |= _flatten(item, f"{key}.{name}" if key else name)
    return flat
