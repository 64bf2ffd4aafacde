"""Runs opened for training: claimed, assembled and checked before anything compiles, and closed when they end."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.config import UserError
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.directory import RunDirectory
from transformer.runs.processes import claimed, in_turn, primary
from transformer.tasks import registry as tasks
from transformer.training.assembly import Assembly, assemble, preflight
from transformer.training.experiment import Experiment, changeable
from transformer.training.initialise_from import bring_tokenizer, prepare


class OpenRun(NamedTuple):
    """A run that this process trains, with its directory and checkpoints."""

    experiment: Experiment
    directory: RunDirectory
    checkpoints: Checkpoints

    @property
    def latest(self) -> int | None:
        """The step of the latest checkpoint, or None.

        Errors: UserError where it is beyond the last step.
        """
        latest, steps = self.checkpoints.latest(), self.experiment.run.steps
        if latest is not None and latest > steps:
            raise UserError(
                f"config.steps={steps} is behind the run's checkpoint of step {latest}: say {latest} or more, or "
                "another --workdir"
            )
        return latest


@contextlib.contextmanager
def opened(
    experiments: Sequence[Experiment],
    workdirs: Sequence[Path],
    *,
    keep: int = 1,
    check: Callable[[Assembly], None] = lambda assembly: None,
) -> Iterator[tuple[Assembly, list[OpenRun]]]:
    """The runs in their directories, and their assembly, that of the first experiment for all.

    Each keeps at least `keep` checkpoints. `check` may refuse the assembly. A run refused before training leaves
    no files in a directory that was empty.

    Errors: UserError for anything that the user can correct, before anything compiles.
    """
    with contextlib.ExitStack() as stack:
        directories: list[RunDirectory] = []
        try:
            for experiment, workdir in zip(experiments, workdirs, strict=True):
                claim = claimed(workdir, experiment.to_config(), may_change=changeable(experiment))
                directories.append(stack.enter_context(claim))
            # The first process prepares a tokenizer or a data set, which the others read.
            assembly = in_turn(lambda: _assembled(experiments, directories))
            check(assembly)
            preflight(experiments[0], assembly)
            for experiment, directory in zip(experiments, directories, strict=True):
                if directory.fresh and experiment.initialise_from.run:
                    prepare(experiment.initialise_from, assembly.model, assembly.abstract.variables, directory.path)
        except UserError:
            for directory in directories:
                if directory.fresh and primary():
                    directory.abandon()
            raise
        runs = []
        for experiment, directory in zip(experiments, directories, strict=True):
            if primary():
                stack.enter_context(directory.log_to_file())
            checkpoints = Checkpoints(directory.checkpoints, max(experiment.run.keep, keep))
            runs.append(OpenRun(experiment, directory, stack.enter_context(contextlib.closing(checkpoints))))
        yield assembly, runs


def _assembled(experiments: Sequence[Experiment], directories: Sequence[RunDirectory]) -> Assembly:
    """The assembly of all runs, whose task writes its files into each directory."""
    for experiment, directory in zip(experiments, directories, strict=True):
        bring_tokenizer(experiment.initialise_from, directory.path)
    assembly = assemble(experiments[0], directories[0].path)
    for experiment, directory in zip(experiments[1:], directories[1:], strict=True):
        tasks.build(experiment.task, directory.path, experiment.run.accumulate)
    return assembly
