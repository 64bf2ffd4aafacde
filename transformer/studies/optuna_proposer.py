"""Proposals by Optuna (Akiba et al. 2019): TPE, Gaussian processes, and Hyperband, which stops trials early.

What Optuna knows follows from the ledger: before it is asked for a trial it is told how those ended that it proposed
before, so that a worker may die at any moment. Only `connect` imports it.
"""

import contextlib
import fcntl
import hashlib
import importlib
import os
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.studies.ledger import Ledger, Outcome, State
from transformer.studies.proposers import drawn
from transformer.studies.space import Space
from transformer.studies.trials import Trial, make_trial

_NAME = "trial"  # the attribute of an Optuna trial that names ours
_DOUBLES = 30  # proposals in a row that were made before


def check_installed(engine: str) -> None:
    """Return if what an engine needs is installed.

    Errors: UserError that names the extra.
    """
    if find_spec("optuna") is None:
        raise UserError(
            f"--engine={engine} needs Optuna, which is not installed: pip install optuna, or say "
            "--engine=random or grid"
        )
    if engine == "gp" and find_spec("torch") is None:
        raise UserError(
            "--engine=gp needs PyTorch as well, in which Optuna's Gaussian process is written: pip install torch (its "
            "CPU build is enough), or say --engine=tpe"
        )


def resources(base: Mapping[str, Any]) -> dict[str, int]:
    """The steps of Hyperband's shortest rung and of its longest.

    Errors: UserError where no trial reports before its last step.
    """
    from transformer.training.experiment import resolve

    run = resolve(base).run
    if not 0 < run.eval_every < run.steps:
        raise UserError(
            f"--engine=hyperband stops trials at their validation reports, and config.eval_every={run.eval_every} "
            f"makes none before step {run.steps}: say a number from 1 to {run.steps - 1}, or --engine=tpe"
        )
    return {"min_resource": run.eval_every, "max_resource": run.steps}


def connect(
    engine: str,
    ledger: Ledger,
    base: Mapping[str, Any],
    space: Space,
    *,
    seed: int,
    maximise: bool,
    url: str | None = None,
) -> "OptunaProposer":
    """The proposer of a sweep: its study is a journal beside the ledger, or in the database at `url`.

    Errors: UserError where something is not installed, the database cannot be reached, or Hyperband has no reports
    before the last step to stop a trial at.
    """
    check_installed(engine)
    # By name: whoever runs a grid does without the package.
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: Any = optuna.pruners.NopPruner()
    if engine == "hyperband":
        pruner = optuna.pruners.HyperbandPruner(**resources(base))
    storage = _database(optuna, url) if url else _journal(optuna, ledger.path / "optuna.journal")
    study = optuna.create_study(
        storage=storage,
        pruner=pruner,
        # Another sweep in the same database is another study.
        study_name=f"headwise-{hashlib.sha256(repr(ledger.facts()).encode()).hexdigest()[:16]}",
        direction="maximize" if maximise else "minimize",
        load_if_exists=True,
    )
    return OptunaProposer(optuna, study, storage, engine, base, space, seed)


class OptunaProposer:
    """Proposes what a sampler asks for next."""

    def __init__(
        self, optuna: Any, study: Any, storage: Any, engine: str, base: Mapping[str, Any], space: Space, seed: int
    ):
        self._optuna, self._study, self._storage = optuna, study, storage
        self._engine, self._base, self._space, self._seed = engine, base, space, seed

    def propose(self, ledger: Ledger) -> Trial | None:
        """The sampler's next; where it only repeats itself and the space is finite, a point that was not tried.

        Errors: UserError where no config that it proposed can be.
        """
        self._tell(ledger)
        planned = {trial.name: trial for trial in ledger.trials()}
        mistakes: list[UserError] = []
        for _ in range(_DOUBLES):
            number = len(self._study.get_trials(deepcopy=False))
            # Each worker has a sampler of its own: with one seed they would all begin with the same proposals.
            self._study.sampler = self._sampler(_mixed(self._seed, number))
            asked = self._study.ask()
            try:
                trial = make_trial(self._base, self._space.draw(_Suggested(asked)))
            except UserError as error:
                self._study.tell(asked.number, state=self._optuna.trial.TrialState.FAIL)
                mistakes.append(error)
                continue
            asked.set_user_attr(_NAME, trial.name)
            if trial.name not in planned:
                return trial
            self._end(asked.number, ledger.outcome(planned[trial.name]), ())
        other = None if self._space.size is None else self._untried(planned)
        if other is None and len(mistakes) == _DOUBLES and (self._space.size is None or not planned):
            raise mistakes[-1]
        return other

    def prune(self, trial: Trial, step: int, value: float) -> bool:
        if self._engine != "hyperband":
            return False
        running = self._running().get(trial.name)
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

    def _untried(self, planned: Mapping[str, Trial]) -> Trial | None:
        for overrides in drawn(self._space, self._seed):
            with contextlib.suppress(UserError):
                trial = make_trial(self._base, overrides)
                if trial.name not in planned:
                    return trial
        return None

    def _running(self) -> dict[str, Any]:
        state = self._optuna.trial.TrialState.RUNNING
        running = self._study.get_trials(deepcopy=False, states=(state,))
        return {trial.user_attrs.get(_NAME, ""): trial for trial in running}

    def _tell(self, ledger: Ledger) -> None:
        """Tell Optuna how trials ended; a proposal whose worker died before it was planned has failed."""
        planned = {trial.name: trial for trial in ledger.trials()}
        outcomes = {name: ledger.outcome(trial) for name, trial in planned.items()}
        values = tuple(each.value for each in outcomes.values() if each is not None and each.value is not None)
        state = self._optuna.trial.TrialState.RUNNING
        for asked in self._study.get_trials(deepcopy=False, states=(state,)):
            name = asked.user_attrs.get(_NAME)
            if name not in planned or outcomes[name] is not None:
                self._end(asked.number, outcomes.get(name), values)

    def _end(self, number: int, outcome: Outcome | None, values: tuple[float, ...]) -> None:
        states = self._optuna.trial.TrialState
        if outcome is None or outcome.state == State.FAILED:
            self._study.tell(number, state=states.FAIL)
        elif outcome.state == State.DONE:
            self._study.tell(number, outcome.value)
        elif self._engine == "gp" and values:
            # A Gaussian process is fitted to values alone, and must learn that this one was bad.
            maximise = self._study.direction == self._optuna.study.StudyDirection.MAXIMIZE
            self._study.tell(number, min(values) if maximise else max(values))
        else:
            # To TPE these are worse than all that were trained to their end.
            self._study.tell(number, state=states.PRUNED)

    def _sampler(self, seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._engine == "gp":
                return self._optuna.samplers.GPSampler(seed=seed)
            return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)


class _Suggested:
    """Draws what an Optuna trial suggests."""

    def __init__(self, trial: Any):
        self._trial = trial

    def index(self, name: str, labels: tuple[str, ...]) -> int:
        return labels.index(self._trial.suggest_categorical(name, labels))

    def number(self, name: str, low: float, high: float, log: bool) -> float:
        return float(self._trial.suggest_float(name, low, high, log=log))

    def integer(self, name: str, low: int, high: int) -> int:
        return int(self._trial.suggest_int(name, low, high))


def _mixed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4])


def _database(optuna: Any, url: str) -> Any:
    try:
        return optuna.storages.get_storage(url)
    except Exception as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"--storage cannot be used: {said[0]}") from error


def _journal(optuna: Any, path: Path) -> Any:
    journal = optuna.storages.journal
    return optuna.storages.JournalStorage(journal.JournalFileBackend(os.fspath(path), lock_obj=_KernelLock(path)))


class _KernelLock:
    """A lock that the kernel frees when its worker dies; with Optuna's own, the others would wait for it."""

    def __init__(self, path: Path):
        self._path, self._descriptor = path, -1

    def acquire(self) -> bool:
        """Wait for the lock; cut off the line that a kill tore."""
        self._descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        _cut_torn_line(self._path)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


def _cut_torn_line(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        length = file.seek(0, os.SEEK_END)
        if length:
            file.seek(length - 1)
            if file.read(1) != b"\n":
                content = path.read_bytes()
                file.truncate(content.rfind(b"\n") + 1)
