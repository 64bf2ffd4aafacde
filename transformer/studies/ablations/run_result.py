"""Cells: one trial of a study each, with all that its analysis reads of the trial's run directory."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Point = tuple[int, float]  # a step, and a value


class RunResult(NamedTuple):
    """One trial of a study: where it stands in the design, how it ended, and what it measured.

    `state` is how the trial ended: "done", "diverged" or "failed", and in a study "stuck" where it finished without
    having learned; other words are of trials that have not ended.
    `chosen` is the last finite value of the metric that chooses among the tuned values, and `reported` the last of the
    one that the verdict is about: None where there is none. `curves` are metrics over steps, by "split/name", and
    `heads` statistics over steps by name and site, means over layers and heads. `flops` are the operations of one step
    by formula. `steps` are those that it was to train for. `command` trains the cell again elsewhere,
    and `trust` are the words by which a command that reads its run is told to trust the code that it names.
    """

    arm: str
    task: str
    seed: int
    tuned: Mapping[str, Any]
    state: str
    chosen: float | None
    reported: float | None
    curves: Mapping[str, tuple[Point, ...]]
    flops: float | None
    heads: Mapping[str, Mapping[str, tuple[Point, ...]]]
    steps: int
    directory: str
    command: str
    trust: str = ""


def describe_run(arm: str, task: str, seed: int, tuned: Mapping[str, Any]) -> str:
    """A place in the design, for messages: "arm 'pre', seed 3, optimizer.learning_rate=0.001"."""
    facts = [f"arm {arm!r}", *([f"task {task!r}"] if task else []), f"seed {seed}"]
    return ", ".join([*facts, *([describe_values(tuned)] if tuned else [])])


def describe_values(tuned: Mapping[str, Any]) -> str:
    """Tuned values, for messages: "optimizer.learning_rate=0.001, optimizer.warmup_steps=100"."""
    return ", ".join(f"{key}={value}" for key, value in tuned.items())
