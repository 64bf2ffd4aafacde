"""A sweep worker: lease a trial, train or resume it, record its outcome; until all trials are finished.

Any number of workers share a `TrialStore`. The lease of a worker that is killed ends, and another worker resumes its
trial from the last checkpoint. A worker that hangs would hold its lease forever, and others cannot tell it from a slow
one, so each worker watches itself: if nothing in its trial's directory has changed for `HANG_TIMEOUT` seconds, it
writes its stack traces to stderr and exits. A trial at which `MAX_ATTEMPTS` workers in a row died without progress has
failed. A worker stops after several failed trials in a row, as on a broken machine.

This module does not import jax: the function that trains is passed to it.
"""

import contextlib
import dataclasses
import faulthandler
import itertools
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from transformer.config import UserError
from transformer.overrides import describe_overrides
from transformer.runs.jsonl_reading import (
    MetricName,
    last_metric,
    last_step,
    list_metrics,
    parse_metric_name,
    read_last_records,
    read_records,
)
from transformer.runs.run_directory import RunDirectory
from transformer.storage.disk_errors import find_disk_error
from transformer.storage.paths import storage_of
from transformer.storage.storage import DirectoryInUse, DirectoryLost
from transformer.studies.sweeps.search_algorithm import SearchAlgorithm
from transformer.studies.sweeps.trial_store import TrialLease, TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import Trial

HANG_TIMEOUT = 3600.0  # seconds: longer than any evaluation or compilation should take
MAX_ATTEMPTS = 5
_FAILURES = 3  # in a row, after which it is this machine or the whole sweep that is not right
_DEATHS = 2  # of workers at a trial, after which it is trained alone: together they may be more than the machine holds
# What changes in a trial's directory while it gets on. A lease is renewed by a thread also of a run that hangs.
PROGRESS = ("*.*", "data", "checkpoints/*", "maps/*")
_LOOKS = 10.0  # seconds between two looks at a trial's directory
_WAITS = (0.1, 5.0)  # seconds between two looks at the trial store where others are at all that is left: from, to

ReportMetrics = Callable[[int, str, Mapping[str, Any]], None]


class TrialPruned(Exception):
    """Raised by a report to stop a trial early."""

    def __init__(self, step: int, value: float):
        super().__init__(f"pruned at step {step}")
        self.step, self.value = step, value


class TooManyFailures(RuntimeError):
    """Raised when several trials in a row failed in this process."""


class _Unknown(UserError):
    """A metric that no trial has."""


class TrialTrainer(Protocol):
    """Trains trials; `transformer.studies.sweeps.model_trainer` has the implementation that trains models."""

    def train(self, trial: Trial, directory: RunDirectory, report: ReportMetrics) -> None:
        """Train a trial to its end, or resume it.

        Args:
            trial: The trial.
            directory: Its run directory, which this process has locked.
            report: Called with the step, split and values of each report.

        Raises:
            FloatingPointError: If training diverges.
            TrialPruned: If `report` raises it.
        """

    def program_key(self, trial: Trial) -> str:
        """Return a key that is equal for trials that can be trained as one program."""

    def train_together(self, trials: Sequence[Trial], directories: Sequence[RunDirectory]) -> list[int | None]:
        """Train trials as one program.

        Args:
            trials: The trials, all with the same `program_key`.
            directories: The run directory of each trial, which this process has locked.

        Returns:
            For each trial the step at which it diverged; None if it did not.
        """


@dataclasses.dataclass(frozen=True)
class _WorkerSettings:
    """The arguments of a worker, and the programs whose trials it failed to train together."""

    trial_store: TrialStore
    search_algorithm: SearchAlgorithm | None
    metric: MetricName
    trainer: TrialTrainer
    patience: float
    vmap: int
    failed_programs: set[str]


def run_worker(
    trial_store: TrialStore,
    search_algorithm: SearchAlgorithm | None,
    *,
    total: int,
    metric: str,
    trainer: TrialTrainer,
    vmap: int = 1,
    patience: float = HANG_TIMEOUT,
) -> None:
    """Work on a sweep until its first `total` trials are finished, by this worker or others.

    Args:
        trial_store: The trials of the sweep.
        search_algorithm: Proposes further trials; None to train only those planned.
        total: The number of trials.
        metric: The sweep's metric, as "split/name".
        trainer: Trains the trials.
        vmap: The number of trials of one program to train together.
        patience: The seconds without progress after which a trial counts as hanging.

    Raises:
        UserError: If no trial reports the metric.
        TooManyFailures: If three trials in a row failed in this worker.
    """
    setting = _WorkerSettings(trial_store, search_algorithm, parse_metric_name(metric), trainer, patience, vmap, set())
    failures, pause, dry = 0, _WAITS[0], False
    while True:
        planned = trial_store.trials()[:total]
        unfinished = [trial for trial in planned if trial_store.outcome(trial) is None]
        # What had nothing more to propose is not asked again and again while others train.
        exhausted = search_algorithm is None or dry or len(planned) >= total
        if not unfinished and exhausted:
            return
        ended = _train_next(setting, unfinished)
        if ended is not None:
            failures = failures + 1 if ended.state == TrialState.FAILED else 0
            if failures == _FAILURES:
                raise TooManyFailures(
                    f"{failures} trials in a row failed in this worker, the last with: {ended.message}"
                )
            pause = _WAITS[0]
        elif search_algorithm is not None and not exhausted:
            dry = not trial_store.append_suggested_trial(total, search_algorithm.suggest)
            pause = _WAITS[0]
        else:
            time.sleep(pause)
            pause = min(2 * pause, _WAITS[1])


def _train_next(setting: _WorkerSettings, unfinished: Sequence[Trial]) -> TrialOutcome | None:
    """Train the first trial that no process holds; None if there is none."""
    for trial in unfinished:
        # Somebody else is at the trial, a worker or a training by hand, or has taken it over from this worker.
        with contextlib.suppress(DirectoryInUse, DirectoryLost), setting.trial_store.hold_trial(trial) as lease:
            if setting.trial_store.outcome(trial) is None:
                return _train_together(setting, lease, unfinished) or _train_trial(setting, lease)
    return None


def _train_trial(setting: _WorkerSettings, lease: TrialLease) -> TrialOutcome:
    """Train a leased trial and record how it ended."""
    trial, directory = lease.trial, lease.directory
    step = _last_reported_step(directory)
    if _is_stuck(lease, step):
        outcome = TrialOutcome(
            TrialState.FAILED,
            None,
            step,
            f"{MAX_ATTEMPTS} workers in a row died at it, none past step {step}: see what they said last",
        )
        lease.record_outcome(outcome)
        return outcome
    _print_line(
        f"{trial.name}: {describe_overrides(trial.overrides)}" + (f" (from step {step} or before)" if step else "")
    )
    with _record_attempts([lease], [step]), _exit_if_hung([directory], setting.patience):
        outcome = _run_trial(setting, trial, directory)
    lease.record_outcome(outcome)
    value = "" if outcome.value is None else f"  {setting.metric} {outcome.value:.4g}"
    _print_line(f"{trial.name}: {outcome.state.value}{value}  {outcome.message}".rstrip())
    return outcome


def _run_trial(setting: _WorkerSettings, trial: Trial, directory: RunDirectory) -> TrialOutcome:
    def report(step: int, split: str, values: Mapping[str, Any]) -> None:
        value = float(values.get(setting.metric.name, math.nan)) if split == setting.metric.split else math.nan
        if (
            setting.search_algorithm is not None
            and math.isfinite(value)
            and setting.search_algorithm.should_prune(trial, step, value)
        ):
            raise TrialPruned(step, value)

    try:
        setting.trainer.train(trial, directory, report)
    except TrialPruned as pruned:
        return TrialOutcome(TrialState.PRUNED, pruned.value, pruned.step, "")
    except FloatingPointError as error:
        step = getattr(error, "step", _last_reported_step(directory))
        return TrialOutcome(TrialState.DIVERGED, None, step, _one_line(error))
    except (DirectoryInUse, DirectoryLost):
        raise
    except UserError as error:
        return TrialOutcome(TrialState.FAILED, None, _last_reported_step(directory), _one_line(error))
    except Exception as error:
        if find_disk_error(error) is not None:
            raise  # no fault of the trial's, which goes on once the disk is mended
        traceback.print_exc()
        step = _last_reported_step(directory)
        return TrialOutcome(TrialState.FAILED, None, step, f"{type(error).__name__}: {_one_line(error)}")
    return _read_result(setting, directory)


def _read_result(setting: _WorkerSettings, directory: RunDirectory) -> TrialOutcome:
    """Return how a trial that was trained to its end ended.

    Raises:
        UserError: If neither it nor any trial before it has the metric.
    """
    records = read_records(directory.metrics_file)
    last = last_metric(records, setting.metric)
    if last is None:
        metrics = ", ".join(list_metrics(records)) or "nothing"
        if setting.trial_store.has_any_value():
            message = f"it does not report {setting.metric}; it reports {metrics}"
            return TrialOutcome(TrialState.FAILED, None, last_step(records), message)
        raise _Unknown(f"metric {setting.metric} is unknown to the first trial that finished; it reports {metrics}")
    if last.value is None:
        return TrialOutcome(TrialState.DIVERGED, None, last.step, f"{setting.metric} is not finite")
    return TrialOutcome(TrialState.DONE, last.value, last.step, "")


def _train_together(setting: _WorkerSettings, first: TrialLease, unfinished: Sequence[Trial]) -> TrialOutcome | None:
    """Train a leased trial together with others of its program; None if there are none, or together they fail."""
    trial_store = setting.trial_store
    if setting.vmap == 1 or _count_deaths(first) >= _DEATHS:
        return None
    companions = _find_companions(setting, first.trial, unfinished)
    if not companions:
        return None
    with contextlib.ExitStack() as stack:
        leases = [first]
        for trial in companions:
            with contextlib.suppress(DirectoryInUse), contextlib.ExitStack() as lease_stack:
                lease = lease_stack.enter_context(trial_store.hold_trial(trial))
                if trial_store.outcome(trial) is None and _count_deaths(lease) < _DEATHS:
                    leases.append(lease)
                    stack.enter_context(lease_stack.pop_all())
        trials = [lease.trial for lease in leases]
        directories = [lease.directory for lease in leases]
        steps = [_last_reported_step(directory) for directory in directories]
        if len(leases) == 1:
            return None
        _print_line(f"{len(leases)} trials as one program: {', '.join(trial.name for trial in trials)}")
        try:
            with _record_attempts(leases, steps), _exit_if_hung(directories, setting.patience):
                diverged = setting.trainer.train_together(trials, directories)
                outcomes = [
                    _read_result(setting, directory)
                    if step is None
                    else TrialOutcome(
                        TrialState.DIVERGED, None, step, f"a loss, the maps or the state was not finite at step {step}"
                    )
                    for directory, step in zip(directories, diverged, strict=True)
                ]
        except (DirectoryInUse, DirectoryLost, _Unknown):
            raise
        except Exception as error:
            if find_disk_error(error) is not None:
                raise
            # One at a time they may well fit, and whose mistake it is shows then.
            setting.failed_programs.add(setting.trainer.program_key(first.trial))
            _print_line(f"{len(leases)} trials as one program: {_one_line(error)}")
            return None
        for lease, outcome in zip(leases, outcomes, strict=True):
            lease.record_outcome(outcome)
            _print_line(f"{lease.trial.name}: {outcome.state.value}")
        return outcomes[0]


def _find_companions(setting: _WorkerSettings, trial: Trial, unfinished: Sequence[Trial]) -> list[Trial]:
    """Return the trials to vmap with one: pending ones of its program that have reached its step."""
    program = setting.trainer.program_key(trial)
    if program in setting.failed_programs:
        return []
    step = _last_reported_step(setting.trial_store.run_directory(trial))
    companions = (
        candidate
        for candidate in unfinished
        if candidate.name != trial.name
        and setting.trainer.program_key(candidate) == program
        and setting.trial_store.state(candidate) == TrialState.PENDING
        and _last_reported_step(setting.trial_store.run_directory(candidate)) == step
    )
    return list(itertools.islice(companions, setting.vmap - 1))


def _count_deaths(lease: TrialLease) -> int:
    """Return how many workers died at a trial."""
    return sum(not attempt.stopped_cleanly for attempt in lease.attempts())


def _is_stuck(lease: TrialLease, step: int) -> bool:
    """Return whether the last attempts all died without getting past the step where the first of them began."""
    died = [attempt for attempt in lease.attempts() if not attempt.stopped_cleanly][-MAX_ATTEMPTS:]
    return len(died) == MAX_ATTEMPTS and step <= died[0].step


@contextlib.contextmanager
def _record_attempts(leases: Sequence[TrialLease], steps: Sequence[int]) -> Iterator[None]:
    """Record a start and, if it is interrupted, that it was left in good order."""
    for lease, step in zip(leases, steps, strict=True):
        lease.record_start(step)
    try:
        yield
    except BaseException:
        for lease in leases:
            with contextlib.suppress(DirectoryLost, OSError):
                lease.record_orderly_stop()
        raise


@contextlib.contextmanager
def _exit_if_hung(directories: Sequence[RunDirectory], patience: float) -> Iterator[None]:
    """Exit this process with a stack trace if nothing in the directories changes for `patience` seconds."""
    ended = threading.Event()

    def watch() -> None:
        last_versions: Any = None
        while True:
            try:
                current_versions: Any = [storage_of(run.path).versions(run.path, PROGRESS) for run in directories]
            except OSError:
                current_versions = object()  # of what cannot be seen nobody can say that it stands still
            if current_versions != last_versions:
                # The timer is in C: it fires also where Python itself does not get on.
                faulthandler.dump_traceback_later(patience, exit=True, file=sys.__stderr__ or sys.stderr)
                last_versions = current_versions
            if ended.wait(min(_LOOKS, patience / 4)):
                return

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()


def _last_reported_step(directory: RunDirectory) -> int:
    """Return the last step that a trial's run has reported."""
    return last_step(read_last_records(directory.metrics_file))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


def _print_line(text: str) -> None:
    print(text, flush=True)
