"""Plan the runs of an ablation, one for every seed, task, arm and combination of tuned values, and compare the arms."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer.config import ABSENT, UserError, config_differences
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.run_result import describe_run
from transformer.studies.sweeps.trials import Trial, make_trial

# What names a run, and is no part of what it does.
_NAMES = ("name",)


@dataclasses.dataclass(frozen=True)
class ConfigDifference:
    """A key of the config, its value in the reference, and its value in an arm."""

    key: str
    reference: Any
    arm: Any


class PlannedRun(NamedTuple):
    """One run of a study.

    Attributes:
        arm_name: The arm.
        task_name: The task.
        hyperparameters: The tuned values.
        seed: The seed.
        trial: The run's config and name.
    """

    arm_name: str
    task_name: str
    hyperparameters: Mapping[str, Any]
    seed: int
    trial: Trial

    @property
    def values(self) -> dict[str, Any]:
        """The values by which `RunFilter` selects it."""
        return {"arm": self.arm_name, "task": self.task_name, "seed": self.seed, **self.hyperparameters}

    @property
    def description(self) -> str:
        """The run in words, for messages: "arm 'pre', seed 3, optimizer.learning_rate=0.001"."""
        return describe_run(self.arm_name, self.task_name, self.seed, self.hyperparameters)


def plan_runs(spec: Ablation, base: Mapping[str, Any]) -> list[PlannedRun]:
    """Plan every run of a study, seed by seed, so that a study stopped half-way has whole seeds.

    Args:
        spec: The ablation.
        base: The base config.

    Returns:
        The runs.

    Raises:
        UserError: If an override has no key in `base` or an invalid value, or two runs have the same config.
    """
    planned = [
        PlannedRun(
            arm,
            task,
            hyperparameters,
            seed,
            make_trial(base, {**overrides, **spec.arms[arm], **hyperparameters, "seed": seed}),
        )
        for seed in spec.seeds
        for task, overrides in spec.tasks.items()
        for arm in spec.arms
        for hyperparameters in spec.combinations()
    ]
    _check_distinct_runs(planned)
    return planned


def arm_config_differences(planned: Sequence[PlannedRun], reference: str) -> dict[str, list[ConfigDifference]]:
    """Return the keys of the resolved config in which each arm differs from the reference, with both values.

    A key that differs on some task is listed once, with the values of the first such task; None stands for a key
    that a config does not have.

    Args:
        planned: The planned runs.
        reference: The reference arm.

    Returns:
        The differences by arm.
    """
    # Seeds and tuned values are shared by all arms, so that the first run of each arm and task says all.
    first: dict[tuple[str, str], PlannedRun] = {}
    for run in planned:
        first.setdefault((run.arm_name, run.task_name), run)
    differences: dict[str, dict[str, ConfigDifference]] = {arm: {} for arm, _ in first}
    for (arm, task), run in first.items():
        changed = config_differences(first[reference, task].trial.config, run.trial.config)
        for key, values in changed.items():
            if key not in _NAMES:
                base, own = (None if value is ABSENT else value for value in values)
                differences[arm].setdefault(key, ConfigDifference(key, base, own))
    return {arm: list(entries.values()) for arm, entries in differences.items()}


def equal_as_json(first: Any, second: Any) -> bool:
    """Return whether two plain values are equal as JSON, in which 1, 1.0 and true differ."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _check_distinct_runs(planned: Sequence[PlannedRun]) -> None:
    run_by_config: dict[str, PlannedRun] = {}
    for run in planned:
        config = {key: value for key, value in run.trial.config.items() if key not in _NAMES}
        text = json.dumps(config, sort_keys=True)
        earlier = run_by_config.setdefault(text, run)
        if earlier is run:
            continue
        if earlier.arm_name != run.arm_name:
            raise UserError(
                f"ablation.arms: {earlier.arm_name!r} and {run.arm_name!r} resolve to the same config: their overrides "
                "change nothing that the other has not; drop one of them"
            )
        raise UserError(f"two runs of the ablation are the same: {earlier.description} and {run.description}")
