"""Search with Optuna (Akiba et al. 2019): TPE, Gaussian processes, and Hyperband, which stops trials early.

Optuna's knowledge follows from the trial store: before each suggestion Optuna is told of trials that it does not
know and of the outcomes of those that it proposed, so that a worker may die at any moment. Its study is a journal of
lines with checksums; if it is damaged, or contradicts the trial store, it is rebuilt from the trial store. Only
`open_optuna_search` imports Optuna.
"""

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.runs.jsonl_reading import parse_metric_name, read_records
from transformer.runs.run_directory import RunDirectory
from transformer.storage.disk import break_hard_links
from transformer.storage.json_checksum import add_checksum, has_valid_checksum
from transformer.studies.sweeps.search_algorithm import sample_points
from transformer.studies.sweeps.search_space import SampledValues, SearchSpace
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import Trial, make_trial

_NAME = "trial"  # the attribute of an Optuna trial that names ours
_DOUBLES = 30  # proposals in a row that were made before


def check_installed(engine: str) -> None:
    """Check that the packages that a search algorithm needs are installed.

    Raises:
        UserError: If one is missing.
    """
    if find_spec("optuna") is None:
        raise UserError(
            f"--search_algorithm={engine} needs Optuna, which is not installed: pip install optuna, or say "
            "--search_algorithm=random or grid"
        )
    if engine == "gp" and find_spec("torch") is None:
        raise UserError(
            "--search_algorithm=gp needs PyTorch for Optuna's Gaussian process: pip install torch (the "
            "CPU build is enough), or pass --search_algorithm=tpe"
        )


def hyperband_resources(base: Mapping[str, Any]) -> dict[str, int]:
    """Return the steps of Hyperband's shortest and longest rungs.

    Raises:
        UserError: If trials do not report before their last step.
    """
    from transformer.training.config import resolve_config

    run = resolve_config(base).run
    if not 0 < run.eval_every < run.steps:
        raise UserError(
            "--search_algorithm=hyperband prunes trials at their validation reports, and "
            f"config.eval_every={run.eval_every} gives none before step {run.steps}: set it to a number from 1 to "
            f"{run.steps - 1}, or pass --search_algorithm=tpe"
        )
    return {"min_resource": run.eval_every, "max_resource": run.steps}


def open_optuna_search(
    engine: str,
    trial_store: TrialStore,
    base: Mapping[str, Any],
    space: SearchSpace,
    *,
    seed: int,
    maximize: bool,
    url: str | None = None,
) -> "OptunaSearch":
    """Open the Optuna search of a sweep, with its study in a journal next to the trial store or in a database.

    Args:
        engine: "tpe", "gp" or "hyperband".
        trial_store: The trials of the sweep.
        base: The base config.
        space: The search space.
        seed: The seed of the search.
        maximize: Whether the metric is maximized.
        url: The URL of a database for the study, by default a journal in the sweep's directory.

    Returns:
        The search.

    Raises:
        UserError: If a package is missing, the database cannot be reached, or trials report nothing that Hyperband
            could stop them at.
    """
    check_installed(engine)
    # By name: whoever runs a grid does without the package.
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: Any = optuna.pruners.NopPruner()
    if engine == "hyperband":
        pruner = optuna.pruners.HyperbandPruner(**hyperband_resources(base))
    # Another sweep in the same database is another study, also if only its directory is another. A journal moves with
    # its sweep.
    place = os.fspath(trial_store.path.absolute()) if url else ""
    sweep = f"{place}{trial_store.facts()!r}"
    name = f"headwise-{hashlib.sha256(sweep.encode()).hexdigest()[:16]}"

    def study_in(storage: Any) -> Any:
        return optuna.create_study(
            storage=storage,
            pruner=pruner,
            study_name=name,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )

    return OptunaSearch(optuna, study_in, url, engine, trial_store, base, space, seed)


class OptunaSearch:
    """A search algorithm that asks an Optuna sampler for trials."""

    def __init__(
        self,
        optuna: Any,
        study_in: Callable[[Any], Any],
        url: str | None,
        engine: str,
        trial_store: TrialStore,
        base: Mapping[str, Any],
        space: SearchSpace,
        seed: int,
    ):
        self._optuna, self._study_in, self._trial_store = optuna, study_in, trial_store
        self._engine, self._base, self._space, self._seed = engine, base, space, seed
        self._journal = None if url else trial_store.path / "optuna.journal"
        if url:
            self._storage = _open_database(optuna, url)
            self._study = study_in(self._storage)
        else:
            self._run_with_repaired_journal(self._open_storage)

    def suggest(self, trial_store: TrialStore) -> Trial | None:
        """Return the sampler's next trial; if it only repeats itself and the space is finite, an untried point.

        Raises:
            UserError: If no proposal has a valid config.
        """
        return self._run_with_repaired_journal(lambda: self._suggest(trial_store))

    def should_prune(self, trial: Trial, step: int, value: float) -> bool:
        return self._engine == "hyperband" and self._run_with_repaired_journal(lambda: self._prune(trial, step, value))

    def _run_with_repaired_journal(self, action: Callable[[], Any]) -> Any:
        """Run `action`, rebuilding the journal first if it is damaged."""
        try:
            return action()
        except DamagedJournal as damage:
            assert self._journal is not None
            with _lock_journal(self._journal):
                if damage.by_trial_store or not _is_intact(self._journal):
                    print(f"{self._journal}: {damage}; it is made anew from the trial store", file=sys.stderr)
                    self._rebuild(self._journal)
                # Else another process has done so.
            self._open_storage()
        return action()

    def _open_storage(self) -> None:
        assert self._journal is not None
        self._storage = self._optuna.storages.JournalStorage(_Journal(self._journal))
        self._study = self._study_in(self._storage)

    def _rebuild(self, journal: Path) -> None:
        """Write a journal of what the trial store knows."""
        draft = journal.with_name(f"{journal.name}.new")
        draft.unlink(missing_ok=True)
        self._storage = self._optuna.storages.JournalStorage(_Journal(draft))
        self._study = self._study_in(self._storage)
        self._tell_outcomes(self._trial_store)
        draft.replace(journal)
        draft.with_name(f"{draft.name}.lock").unlink(missing_ok=True)

    def _suggest(self, trial_store: TrialStore) -> Trial | None:
        self._tell_outcomes(trial_store)
        planned = {trial.name: trial for trial in trial_store.trials()}
        mistakes: list[UserError] = []
        for _ in range(_DOUBLES):
            number = len(self._study.get_trials(deepcopy=False))
            # Each worker has a sampler of its own: with one seed they would all begin with the same proposals.
            self._study.sampler = self._make_sampler(_derive_seed(self._seed, number))
            optuna_trial = self._study.ask()
            try:
                trial = make_trial(self._base, self._space.draw(_OptunaSampler(optuna_trial)))
            except UserError as error:
                self._study.tell(optuna_trial.number, state=self._optuna.trial.TrialState.FAIL)
                mistakes.append(error)
                continue
            optuna_trial.set_user_attr(_NAME, trial.name)
            if trial.name not in planned:
                return trial
            self._end_trial(optuna_trial.number, trial_store.outcome(planned[trial.name]), ())
        untried = None if self._space.num_points is None else self._find_untried(planned)
        if untried is None and len(mistakes) == _DOUBLES and (self._space.num_points is None or not planned):
            raise mistakes[-1]
        return untried

    def _prune(self, trial: Trial, step: int, value: float) -> bool:
        """Record what a trial has reported, and return whether Hyperband stops it there."""
        running = self._running_trials().get(trial.name)
        if running is None:
            return False
        study = self._storage.get_study_id_from_name(self._study.study_name)
        identity = self._storage.get_trial_id_from_study_id_trial_number(study, running.number)
        # A trial that was resumed comes to some steps again: the first report counts.
        if step not in running.intermediate_values:
            self._storage.set_trial_intermediate_value(identity, step, value)
        if step >= trial.config["steps"]:
            return False  # stopping at the last step saves nothing
        return bool(self._study.pruner.prune(self._study, self._storage.get_trial(identity)))

    def _find_untried(self, planned: Mapping[str, Trial]) -> Trial | None:
        for overrides in sample_points(self._space, self._seed):
            with contextlib.suppress(UserError):
                trial = make_trial(self._base, overrides)
                if trial.name not in planned:
                    return trial
        return None

    def _running_trials(self) -> dict[str, Any]:
        state = self._optuna.trial.TrialState.RUNNING
        running = self._study.get_trials(deepcopy=False, states=(state,))
        return {trial.user_attrs.get(_NAME, ""): trial for trial in running}

    def _tell_outcomes(self, trial_store: TrialStore) -> None:
        """Tell Optuna of trials and their outcomes; a proposal whose worker died before it was planned has failed.

        Raises:
            DamagedJournal: If the study contradicts the trial store.
        """
        planned = {trial.name: trial for trial in trial_store.trials()}
        outcomes = {name: trial_store.outcome(trial) for name, trial in planned.items()}
        self._check_values(outcomes)
        known_names = {optuna_trial.user_attrs.get(_NAME) for optuna_trial in self._study.get_trials(deepcopy=False)}
        for name, trial in planned.items():
            if name not in known_names:
                self._add_trial(trial)
        values = tuple(
            outcome.value for outcome in outcomes.values() if outcome is not None and outcome.value is not None
        )
        state = self._optuna.trial.TrialState.RUNNING
        for optuna_trial in self._study.get_trials(deepcopy=False, states=(state,)):
            name = optuna_trial.user_attrs.get(_NAME)
            if name not in planned or outcomes[name] is not None:
                self._end_trial(optuna_trial.number, outcomes.get(name), values)

    def _check_values(self, outcomes: Mapping[str, TrialOutcome | None]) -> None:
        """Compare the study's values with the trial store's; a database may be shared, and is not checked."""
        if self._journal is None:
            return
        state = self._optuna.trial.TrialState.COMPLETE
        for optuna_trial in self._study.get_trials(deepcopy=False, states=(state,)):
            outcome = outcomes.get(optuna_trial.user_attrs.get(_NAME, ""))
            # A trial that was told once and failed since is trained again.
            if outcome is None or (outcome.state == TrialState.DONE and outcome.value != optuna_trial.value):
                raise DamagedJournal("it knows values that the trial store does not", by_trial_store=True)

    def _add_trial(self, trial: Trial) -> None:
        """Tell Optuna of a trial in the trial store, as if Optuna had proposed it and it were training."""
        answers = self._space.values_that_draw(trial.overrides)
        if answers is None:
            return
        recorder = _DistributionRecorder(self._optuna, answers)
        self._space.draw(recorder)
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=self._optuna.trial.TrialState.RUNNING,
                params=answers,
                distributions=recorder.distributions,
                user_attrs={_NAME: trial.name},
            )
        )
        metric = self._trial_store.facts().get("metric")
        if self._engine == "hyperband" and metric:
            split, name = parse_metric_name(metric)
            records = read_records(RunDirectory(self._trial_store.directory(trial)).metrics_file)
            for record in records:
                if record["split"] == split and isinstance(record.get(name), int | float):
                    self._prune(trial, record["step"], record[name])

    def _end_trial(self, number: int, outcome: TrialOutcome | None, values: tuple[float, ...]) -> None:
        states = self._optuna.trial.TrialState
        if outcome is None or outcome.state == TrialState.FAILED:
            self._study.tell(number, state=states.FAIL)
        elif outcome.state == TrialState.DONE:
            self._study.tell(number, outcome.value)
        elif self._engine == "gp" and values:
            # A Gaussian process is fitted to values alone, and must learn that this one was bad.
            maximize = self._study.direction == self._optuna.study.StudyDirection.MAXIMIZE
            self._study.tell(number, min(values) if maximize else max(values))
        else:
            # To TPE these are worse than all that were trained to their end.
            self._study.tell(number, state=states.PRUNED)

    def _make_sampler(self, seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._engine == "gp":
                return self._optuna.samplers.GPSampler(seed=seed)
            return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)


class _OptunaSampler:
    """Takes values from an Optuna trial's suggestions."""

    def __init__(self, trial: Any):
        self._trial = trial

    def draw_index(self, name: str, labels: tuple[str, ...]) -> int:
        return labels.index(self._trial.suggest_categorical(name, labels))

    def draw_number(self, name: str, low: float, high: float, log: bool) -> float:
        return float(self._trial.suggest_float(name, low, high, log=log))

    def draw_integer(self, name: str, low: int, high: int) -> int:
        return int(self._trial.suggest_int(name, low, high))


def _derive_seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4])


def _open_database(optuna: Any, url: str) -> Any:
    try:
        return optuna.storages.get_storage(url)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"--storage cannot be used: {lines[0]}") from error


class _DistributionRecorder:
    """Repeats known answers, and records the distributions that Optuna would have drawn them from."""

    def __init__(self, optuna: Any, answers: SampledValues):
        self._distributions, self._answers = optuna.distributions, answers
        self.distributions: dict[str, Any] = {}

    def draw_index(self, name: str, labels: tuple[str, ...]) -> int:
        self.distributions[name] = self._distributions.CategoricalDistribution(labels)
        return labels.index(self._answers[name])

    def draw_number(self, name: str, low: float, high: float, log: bool) -> float:
        self.distributions[name] = self._distributions.FloatDistribution(low, high, log=log)
        return float(self._answers[name])

    def draw_integer(self, name: str, low: int, high: int) -> int:
        self.distributions[name] = self._distributions.IntDistribution(low, high)
        return int(self._answers[name])


class DamagedJournal(Exception):
    """Raised when a journal is not what the sweep has written, or contradicts the trial store."""

    def __init__(self, message: str, *, by_trial_store: bool = False):
        super().__init__(message)
        self.by_trial_store = by_trial_store


class _Journal:
    """A storage backend of Optuna's operations, one line each with a checksum that also covers the line before.

    Every method raises DamagedJournal if the file is not what was written, except for a last line torn by a kill.
    """

    def __init__(self, path: Path):
        self._path = path
        self._operations: list[dict[str, Any]] = []
        self._length = 0  # of the file, as far as it was read
        self._last = ""  # the seal of the last line

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """Return the operations from this number on."""
        self._read_new_lines()
        return self._operations[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append operations after those that others have written."""
        with _lock_journal(self._path):
            break_hard_links(self._path)
            self._read_new_lines()
            lines, last = [], self._last
            for operation in logs:
                line = add_checksum({"after": last, "operation": operation})
                lines.append(json.dumps(line).encode() + b"\n")
                last = line["sha256"]
            with self._path.open("r+b" if self._path.exists() else "wb") as file:
                file.seek(self._length)
                file.truncate()  # a line that a kill tore
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())

    def _read_new_lines(self) -> None:
        size, content = 0, b""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(self._length)
            content = file.read()
        if size < self._length:
            raise DamagedJournal("it is shorter than what was read of it")
        *lines, _ = content.split(b"\n")
        for line in lines:
            entry = _parse_entry(line)
            if entry is None or entry.get("after") != self._last:
                raise DamagedJournal(f"line {len(self._operations) + 1} is not what was written")
            self._operations.append(entry["operation"])
            self._last = entry["sha256"]
            self._length += len(line) + 1


def _parse_entry(line: bytes) -> dict[str, Any] | None:
    """Parse a line, returning None if it is not what was written."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if has_valid_checksum(entry) and isinstance(entry.get("operation"), dict) else None


def _is_intact(journal: Path) -> bool:
    try:
        _Journal(journal).read_logs(0)
    except DamagedJournal:
        return False
    return True


@contextlib.contextmanager
def _lock_journal(path: Path) -> Iterator[None]:
    """Hold the lock of a journal, which the kernel frees when its process dies."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
