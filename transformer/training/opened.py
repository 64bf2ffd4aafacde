"""Runs opened for training: claimed, assembled and checked before anything compiles, and closed when they end."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError
from transformer.runs.checkpoint import Checkpoints, saved_last
from transformer.runs.directory import RunDirectory
from transformer.runs.processes import claimed, decided, in_turn, primary
from transformer.runs.records import last_step, read_records
from transformer.tasks import registry as tasks
from transformer.training.assembly import Assembly, assemble, preflight
from transformer.training.experiment import Experiment, changeable
from transformer.training.initialise_from import bring_tokenizer, check_scale, prepare
from transformer.training.provenance import provenance


class OpenRun(NamedTuple):
    """A run that this process trains, with its directory and checkpoints."""

    experiment: Experiment
    directory: RunDirectory
    checkpoints: Checkpoints
    presumed: Mapping[str, Any]  # by its checkpoints (transformer.training.provenance)

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

    Errors: UserError for anything that the user can correct, before anything compiles; Failed at the end where the last
    checkpoint could not be verified.
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
                    variables = assembly.abstract.variables
                    prepared = prepare(experiment.initialise_from, assembly.model, variables, directory.path)
                    check_scale(prepared, getattr(experiment.model, "lora", None))
        except UserError:
            for directory in directories:
                if directory.fresh and primary():
                    directory.abandon()
            raise
        runs = []
        for experiment, directory in zip(experiments, directories, strict=True):
            if primary():
                stack.enter_context(directory.log_to_file())
            decided(functools.partial(refuse_lost, directory))
            config = experiment.run
            checkpoints = stack.enter_context(
                Checkpoints(directory.checkpoints, max(config.keep, keep), config.milestone_every)
            )
            runs.append(OpenRun(experiment, directory, checkpoints, provenance(experiment, assembly, directory)))
        yield assembly, runs


def _assembled(experiments: Sequence[Experiment], directories: Sequence[RunDirectory]) -> Assembly:
    """The assembly of all runs, whose task writes its files into each directory."""
    for experiment, directory in zip(experiments, directories, strict=True):
        bring_tokenizer(experiment.initialise_from, directory.path)
    assembly = assemble(experiments[0], directories[0].path)
    for experiment, directory in zip(experiments[1:], directories[1:], strict=True):
        tasks.build(experiment.task, directory.path, experiment.run.accumulate)
    return assembly


def refuse_lost(directory: RunDirectory) -> None:
    """Refuse to begin a run from the start again that has trained, or was converted, and has no checkpoint.

    A run that was killed before its first save has the folder of its checkpoints, on a disk, and has noted no save.

    Errors: UserError.
    """
    path = directory.checkpoints
    if directory.fresh or (path.is_dir() and any(entry.name.isdecimal() for entry in path.iterdir())):
        return
    last, what = saved_last(path), None
    if last is not None:
        what = f"it has saved the checkpoint of step {last}"
    elif "converted" in directory.facts():
        what = "it was converted, and its parameters were in its checkpoint"
    elif isinstance(path, Path) and not path.is_dir() and (reached := last_step(read_records(directory.metrics_file))):
        what = f"its metrics reach step {reached}"
    if what is not None:
        raise UserError(
            f"--workdir={directory.path} has lost its checkpoints: {what}, but {path} holds none; put them back, or "
            "choose another --workdir to begin again; nothing was overwritten"
        )
