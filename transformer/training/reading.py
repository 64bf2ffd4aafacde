"""Reading a trained run: its experiment, its checkpoints, and its state at one of them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError
from transformer.named import check_trusted
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.directory import RunDirectory
from transformer.training.assembly import Assembly, assemble
from transformer.training.experiment import Experiment, resolve
from transformer.training.mesh import one_device
from transformer.training.state import TrainState


class RecordedRun(NamedTuple):
    """A run directory and the experiment that its config.json describes."""

    directory: RunDirectory
    experiment: Experiment

    def checkpoint(self, step: int | None = None) -> tuple[Checkpoints, int]:
        """The run's checkpoints, for reading, and the step to read: by default the latest.

        Errors: UserError for a run without a checkpoint.
        """
        checkpoints = Checkpoints.reading(self.directory.checkpoints)
        step = checkpoints.latest() if step is None else step
        if step is None:
            path = self.directory.path
            raise UserError(f"{path} has no checkpoint yet; train it with python -m launch.train --workdir={path}")
        return checkpoints, step


def open_run(
    workdir: str | Path, trusted: Collection[str] = (), task_changes: Mapping[str, Any] | None = None
) -> RecordedRun:
    """A recorded run; `trusted` are the dotted paths of code that its config may name.

    `task_changes` replaces fields of the task's config, such as how it decodes.

    Errors: UserError for a directory that is no run, and for code that is not trusted.
    """
    directory = RunDirectory.open(workdir)
    config = directory.config()
    config["task"] |= dict(task_changes or {})
    check_trusted(config, trusted)
    return RecordedRun(directory, resolve(config))


def load(
    workdir: str | Path,
    step: int | None = None,
    task_changes: Mapping[str, Any] | None = None,
    trusted: Collection[str] = (),
) -> tuple[Experiment, Assembly, TrainState]:
    """A trained run, ready to be evaluated: its experiment, and its state at a checkpoint without optimisers.

    Errors: as `open_run`; UserError for a run without a checkpoint, or without one of the step.
    """
    run = open_run(workdir, trusted, task_changes)
    checkpoints, step = run.checkpoint(step)
    assembly = assemble(run.experiment, run.directory.path, one_device())
    parts = {
        name: checkpoints.restore_part(step, getattr(assembly.abstract, name), (name,))
        for name in TrainState._fields
        if name not in ("optimisers", "hyper")
    }
    return run.experiment, assembly, TrainState(**parts, optimisers={}, hyper={})
