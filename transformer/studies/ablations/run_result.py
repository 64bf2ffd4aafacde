"""The result of one run of an ablation, with all that the analysis reads from its run directory."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from transformer.config import UserError, suggest_nearest

Point = tuple[int, float]  # a step, and a value
Hyperparameters = Mapping[str, Any]
"""The tuned values of a run by config key."""

UNKNOWN = "unknown"
"""What a record says of a run whose start, commit or hardware was not recorded."""


class RunResult(NamedTuple):
    """The result of one run of an ablation.

    Attributes:
        arm_name: The arm.
        task_name: The task.
        seed: The seed.
        hyperparameters: The tuned values.
        state: "done", "diverged" or "failed"; "stuck" if it finished without having learned; another word if it has not
            ended.
        selection_value: The last finite value of the selection metric, None without one.
        reported_value: The last value of the reported metric, None without a finite one.
        curves: Points (step, value) of metrics by "split/name".
        flops: The FLOPs of one training step, by formula.
        head_statistics: Points of head statistics by name and attention module, averaged over layers and heads.
        num_steps: The planned training steps.
        directory: The run directory.
        command: The command that trains it again elsewhere.
        trust_flags: The flags with which a command that reads the run trusts the code that its config names.
        started: When it first began, as ISO 8601 in UTC; None if that is not recorded.
        commit: The commits of its starts; None if none is recorded.
        hardware: The hardware of its starts; None if none is recorded.
    """

    arm_name: str
    task_name: str
    seed: int
    hyperparameters: Hyperparameters
    state: str
    selection_value: float | None
    reported_value: float | None
    curves: Mapping[str, tuple[Point, ...]]
    flops: float | None
    head_statistics: Mapping[str, Mapping[str, tuple[Point, ...]]]
    num_steps: int
    directory: str
    command: str
    trust_flags: str = ""
    started: str | None = None
    commit: str | None = None
    hardware: str | None = None


def describe_run(arm: str, task: str, seed: int, hyperparameters: Hyperparameters) -> str:
    """Describe a run, for messages: "arm 'pre', seed 3, optimizer.learning_rate=0.001"."""
    facts = [f"arm {arm!r}", *([f"task {task!r}"] if task else []), f"seed {seed}"]
    return ", ".join([*facts, *([describe_hyperparameters(hyperparameters)] if hyperparameters else [])])


def describe_hyperparameters(hyperparameters: Hyperparameters) -> str:
    """Describe tuned values, for messages: "optimizer.learning_rate=0.001, optimizer.warmup_steps=100"."""
    return ", ".join(f"{key}={value}" for key, value in hyperparameters.items())


class RunFilter(NamedTuple):
    """A choice of runs of a study, as the flag --only names them: "arm=pre; seed=1; optimizer.learning_rate=0.01".

    Attributes:
        values: The text of each named value, by "arm", "task", "seed" or a tuned key.
    """

    values: Mapping[str, str]

    def select[Run](self, runs: Iterable[tuple[Run, Mapping[str, Any]]]) -> list[Run]:
        """Return the runs that have every named value.

        Args:
            runs: Each run with its values by "arm", "task", "seed" and tuned key.

        Raises:
            UserError: If no run has one of the named values, or none has all.
        """
        candidates = list(runs)
        for key, text in self.values.items():
            every = dict.fromkeys(str(values[key]) for _, values in candidates if key in values)
            if not every:
                names = dict.fromkeys(name for _, values in candidates for name in values)
                raise UserError(f"--only: {key!r} is nothing that runs differ in: {suggest_nearest(key, names)}")
            if not any(_is_written_as(values.get(key), text) for _, values in candidates):
                raise UserError(f"--only: no run has {key}={text}: {suggest_nearest(text, every)}")
        selected = [
            run
            for run, values in candidates
            if all(_is_written_as(values.get(key), text) for key, text in self.values.items())
        ]
        if not selected:
            raise UserError("--only: no run has all of these values: " + describe_hyperparameters(self.values))
        return selected


def parse_run_filter(text: str) -> RunFilter:
    """Parse the flag --only.

    Raises:
        UserError: If it is not written as KEY=VALUE; KEY=VALUE, or names a key twice.
    """
    values: dict[str, str] = {}
    for word in text.split(";"):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not key or not equals or not value:
            raise UserError(f"--only={text!r} must be written as --only='arm=pre; task=words; seed=1'")
        if key in values:
            raise UserError(f"--only={text!r} has {key} twice: name it once")
        values[key] = value
    return RunFilter(values)


def _is_written_as(value: Any, text: str) -> bool:
    """Return whether a text writes a value: 1e-2 and 0.01 write the same number."""
    if str(value) == text:
        return True
    try:
        number = json.loads(text)
    except ValueError:
        return False
    return type(value) in (int, float) and type(number) in (int, float) and number == value
