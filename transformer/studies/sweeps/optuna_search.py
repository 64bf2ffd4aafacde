"""Search with Optuna (Akiba et al. 2019): TPE, Gaussian processes, and Hyperband, which stops trials early.

The trial store is the only record. Whenever Optuna is asked, its study is built in memory from the store: the planned
trials in their order, how each ended and, for Hyperband, what each has reported. So a suggestion follows from the store
and the seed alone, and a worker may die at any moment. Only `open_optuna_search` imports Optuna.
"""

import contextlib
import hashlib
import importlib
import itertools
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from transformer.config import UserError
from transformer.runs.jsonl_reading import parse_metric_name, read_records
from transformer.studies.sweeps.search_algorithm import sample_points
from transformer.studies.sweeps.search_space import (
    Chain,
    Integers,
    Overrides,
    Product,
    SearchSpace,
    Uniform,
    merge_overrides,
    to_json,
)
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import Trial, make_trial

_REPEATS = 30  # proposals in a row that were made before, after which a point is drawn at random
_DRAWS = 1000  # of an infinite space, after which it counts as exhausted
_MEMBER = "member"  # the parameter of Optuna that chooses between the members of a chain

Parameters = tuple[SearchSpace, ...]
"""Spaces of which one point each, drawn independently, makes a point of the whole: no products or chains."""


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
) -> "OptunaSearch":
    """Open the Optuna search of a sweep.

    Args:
        engine: "tpe", "gp" or "hyperband".
        trial_store: The trials of the sweep.
        base: The base config.
        space: The search space.
        seed: The seed of the search.
        maximize: Whether the metric is maximized.

    Returns:
        The search.

    Raises:
        UserError: If a package is missing, or trials report nothing that Hyperband could stop them at.
    """
    check_installed(engine)
    # By name: whoever runs a grid does without the package.
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: Any = optuna.pruners.NopPruner()
    if engine == "hyperband":
        pruner = optuna.pruners.HyperbandPruner(**hyperband_resources(base))
    return OptunaSearch(optuna, engine, pruner, trial_store, base, space, seed, maximize)


class OptunaSearch:
    """A search algorithm that asks an Optuna sampler for trials."""

    def __init__(
        self,
        optuna: Any,
        engine: str,
        pruner: Any,
        trial_store: TrialStore,
        base: Mapping[str, Any],
        space: SearchSpace,
        seed: int,
        maximize: bool,
    ):
        self._optuna, self._engine, self._pruner, self._trial_store = optuna, engine, pruner, trial_store
        self._base, self._space, self._seed, self._maximize = base, space, seed, maximize
        self._members = independent_parameters(space)
        # Hyperband chooses the bracket of a trial by this name and the trial's number.
        self._facts = trial_store.facts()
        self._study_name = f"headwise-{hashlib.sha256(repr(self._facts).encode()).hexdigest()[:16]}"
        self._ended_trials: dict[str, Any] = {}  # Hyperband's, by the name of ours: each has read its reports

    def suggest(self) -> Trial | None:
        """Return the sampler's next trial, or a random one that is untried if the sampler only repeats itself.

        Raises:
            UserError: If no proposal has a valid config.
        """
        planned = {trial.name: trial for trial in self._trial_store.trials()}
        study = self.build_study()
        mistakes: list[UserError] = []
        for _ in range(_REPEATS):
            number = len(study.get_trials(deepcopy=False))
            # One seed for all would begin each study with the same proposals.
            study.sampler = self._make_sampler(_derive_seed(self._seed, number))
            optuna_trial = study.ask()
            try:
                trial = make_trial(self._base, suggest_point(optuna_trial, self._members))
            except UserError as error:
                study.tell(number, state=self._optuna.trial.TrialState.FAIL)
                mistakes.append(error)
                continue
            if trial.name not in planned:
                return trial
            state, value = self._translate_outcome(self._trial_store.outcome(planned[trial.name]), None)
            if state == self._optuna.trial.TrialState.RUNNING:
                state = self._optuna.trial.TrialState.FAIL  # it runs once
            study.tell(number, value, state=state)
        untried = self._find_untried(planned)
        if untried is None and len(mistakes) == _REPEATS and (self._space.num_points is None or not planned):
            raise mistakes[-1]
        return untried

    def should_prune(self, trial: Trial, step: int, value: float) -> bool:
        if self._engine != "hyperband" or step >= trial.config["steps"]:
            return False  # stopping at the last step saves nothing
        study = self.build_study({trial.name: step})
        number = [planned.name for planned in self._trial_store.trials()].index(trial.name)
        return self._report(study, number, step, value)

    def build_study(self, ends: Mapping[str, int] = MappingProxyType({})) -> Any:
        """Build Optuna's study of the trials in the store, numbered as they are planned.

        Args:
            ends: The step, by the name of a trial, from which on its reports are left out; its last step by default.

        Returns:
            The study.

        Raises:
            UserError: If a trial is not a point of the search space.
        """
        study = self._optuna.create_study(
            storage=self._optuna.storages.InMemoryStorage(),
            pruner=self._pruner,
            study_name=self._study_name,
            direction="maximize" if self._maximize else "minimize",
        )
        trials = self._trial_store.trials()
        outcomes = [self._trial_store.outcome(trial) for trial in trials]
        values = [outcome.value for outcome in outcomes if outcome is not None and outcome.value is not None]
        worst = (min if self._maximize else max)(values, default=None)
        for trial, outcome in zip(trials, outcomes, strict=True):
            if self._engine != "hyperband":
                study.add_trial(self._create_trial(trial, *self._translate_outcome(outcome, worst)))
            elif trial.name in self._ended_trials:
                study.add_trial(self._ended_trials[trial.name])
            else:
                self._replay_trial(study, trial, outcome, ends.get(trial.name, trial.config["steps"]))
        return study

    def _create_trial(self, trial: Trial, state: Any, value: float | None) -> Any:
        parameters = find_parameters(self._members, trial.overrides)
        if parameters is None:
            raise UserError(f"{self._trial_store.path}: the trial {trial.name} is not a point of the search space")
        fixed_trial = self._optuna.trial.FixedTrial(parameters)
        suggest_point(fixed_trial, self._members)
        return self._optuna.trial.create_trial(
            state=state, value=value, params=parameters, distributions=fixed_trial.distributions
        )

    def _replay_trial(self, study: Any, trial: Trial, outcome: TrialOutcome | None, end: int) -> None:
        """Tell Hyperband of the reports of a trial before the step `end`, and of its outcome."""
        number = len(study.get_trials(deepcopy=False))
        study.add_trial(self._create_trial(trial, self._optuna.trial.TrialState.RUNNING, None))
        metric = parse_metric_name(self._facts["metric"])
        for record in read_records(self._trial_store.run_directory(trial).metrics_file):
            value = record.get(metric.name)
            if record["split"] == metric.split and record["step"] < end and isinstance(value, int | float):
                self._report(study, number, record["step"], value)
        if outcome is not None:
            state, value = self._translate_outcome(outcome, None)
            study.tell(number, value, state=state)
            self._ended_trials[trial.name] = study.get_trials(deepcopy=False)[number]

    def _report(self, study: Any, number: int, step: int, value: float) -> bool:
        """Tell Hyperband of a report, and return whether it stops the trial there."""
        storage = study._storage
        identity = study.get_trials(deepcopy=False)[number]._trial_id
        storage.set_trial_intermediate_value(identity, step, value)
        return bool(study.pruner.prune(study, storage.get_trial(identity)))

    def _find_untried(self, planned: Mapping[str, Trial]) -> Trial | None:
        points = sample_points(self._space, self._seed)
        for overrides in points if self._space.num_points is not None else itertools.islice(points, _DRAWS):
            with contextlib.suppress(UserError):
                trial = make_trial(self._base, overrides)
                if trial.name not in planned:
                    return trial
        return None

    def _translate_outcome(self, outcome: TrialOutcome | None, worst: float | None) -> tuple[Any, float | None]:
        """Return Optuna's state and value of a trial with this outcome, where `worst` is the worst value of all."""
        states = self._optuna.trial.TrialState
        if outcome is None:
            return states.RUNNING, None
        if outcome.state == TrialState.FAILED:
            return states.FAIL, None
        if outcome.state == TrialState.DONE:
            return states.COMPLETE, outcome.value
        if self._engine == "gp" and worst is not None:
            # A Gaussian process is fitted to values alone, and must learn that this one was bad.
            return states.COMPLETE, worst
        # To TPE these are worse than all that were trained to their end.
        return states.PRUNED, None

    def _make_sampler(self, seed: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._engine == "gp":
                return self._optuna.samplers.GPSampler(seed=seed)
            return self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def independent_parameters(space: SearchSpace) -> list[Parameters]:
    """Return the independent parameters of a space, for a chain those of each member; chains come out of products."""
    match space:
        case Chain():
            return [parameters for member in space.spaces for parameters in independent_parameters(member)]
        case Product():
            combinations = itertools.product(*map(independent_parameters, space.spaces))
            return [tuple(itertools.chain.from_iterable(combination)) for combination in combinations]
    return [(space,)]


def suggest_point(optuna_trial: Any, members: Sequence[Parameters]) -> Overrides:
    """Return the point that an Optuna trial suggests: numbers of a range themselves, other points by their numbers."""
    member = optuna_trial.suggest_categorical(_MEMBER, range(len(members))) if len(members) > 1 else 0
    return merge_overrides(_suggest_parameter(optuna_trial, parameter) for parameter in members[member])


def find_parameters(members: Sequence[Parameters], overrides: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the values of Optuna's parameters with which `suggest_point` gives these overrides; None if none do."""
    for member, parameters in enumerate(members):
        found = {_name_parameter(parameter): _find_value(parameter, overrides) for parameter in parameters}
        values = {name: value for name, value in found.items() if value is not None}
        keys = {key for parameter in parameters for key in parameter.keys}
        if keys == set(overrides) and len(values) == len(found):
            return {_MEMBER: member, **values} if len(members) > 1 else values
    return None


def _suggest_parameter(optuna_trial: Any, parameter: SearchSpace) -> Overrides:
    name = _name_parameter(parameter)
    match parameter:
        case Uniform():
            value = optuna_trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)
            return {parameter.key: min(max(float(value), parameter.low), parameter.high)}  # never outside by rounding
        case Integers():
            return {parameter.key: int(optuna_trial.suggest_int(name, parameter.low, parameter.high))}
    assert parameter.num_points is not None
    return parameter.get_point(optuna_trial.suggest_categorical(name, range(parameter.num_points)))


def _find_value(parameter: SearchSpace, overrides: Mapping[str, Any]) -> float | None:
    """Return the value of a parameter that gives its part of these overrides; None if none does."""
    match parameter:
        case Uniform():
            number = overrides.get(parameter.key)
            return number if isinstance(number, float) and parameter.low <= number <= parameter.high else None
        case Integers():
            number = overrides.get(parameter.key)
            return number if type(number) is int and parameter.low <= number <= parameter.high else None
    assert parameter.num_points is not None
    part = to_json({key: overrides[key] for key in parameter.keys if key in overrides})
    points = (to_json(parameter.get_point(number)) for number in range(parameter.num_points))
    return next((number for number, point in enumerate(points) if point == part), None)


def _name_parameter(parameter: SearchSpace) -> str:
    # Not by its key alone: members of a chain may give it other values, and a name has one distribution in Optuna.
    return f"{'+'.join(parameter.keys)} {to_json(parameter.describe())}"


def _derive_seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4])
