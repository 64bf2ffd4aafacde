"""The result of one run of an ablation, with all that the analysis reads from its run directory."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Point = tuple[int, float]  # a step, and a value


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
    """

    arm_name: str
    task_name: str
    seed: int
    hyperparameters: Mapping[str, Any]
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


def describe_run(arm: str, task: str, seed: int, hyperparameters: Mapping[str, Any]) -> str:
    """Describe a run, for messages: "arm 'pre', seed 3, optimizer.learning_rate=0.001"."""
    facts = [f"arm {arm!r}", *([f"task {task!r}"] if task else []), f"seed {seed}"]
    return ", ".join([*facts, *([describe_hyperparameters(hyperparameters)] if hyperparameters else [])])


def describe_hyperparameters(hyperparameters: Mapping[str, Any]) -> str:
    """Describe tuned values, for messages: "optimizer.learning_rate=0.001, optimizer.warmup_steps=100"."""
    return ", ".join(f"{key}={value}" for key, value in hyperparameters.items())
