"""Setting a run up: claimed, assembled and checked before anything compiles, its programs, and what it says first."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer.config import RunConfig, UserError
from transformer.costs.chips import peak_flops
from transformer.data.batches import Source
from transformer.maps.store import MapStore
from transformer.models.contract import by_path, count_parameters
from transformer.runs.checkpoint import Checkpoints, saved_last
from transformer.runs.directory import RunDirectory
from transformer.runs.distributed import claimed, decided, in_turn, primary
from transformer.runs.preemption import Pulse
from transformer.runs.records import last_step, read_records
from transformer.tasks import registry as tasks
from transformer.training.background_compile import Program, shapes_of
from transformer.training.build import Assembly, assemble, preflight
from transformer.training.config import Experiment, changeable
from transformer.training.evaluate import CompiledEvaluation, Probe, compile_evaluations, compile_probe
from transformer.training.init_from import bring_tokenizer, check_scale, prepare
from transformer.training.loop import Cadence, Measured
from transformer.training.optimizer import lines_of
from transformer.training.preflight import left_out
from transformer.training.provenance import provenance
from transformer.training.step import Step


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


_logger = logging.getLogger(__name__)


def greet(assembly: Assembly, opened_run: OpenRun, latest: int | None, complete: bool) -> None:
    """Print its size, its devices, where it goes on from, its data, what cannot be measured, and what it waits for."""
    experiment = opened_run.experiment
    parameters = count_parameters(assembly.abstract.variables.params)
    opened_run.directory.record(parameters=parameters)
    said = assembly.task.said
    sizes = {path: leaf.size for path, leaf in by_path(assembly.abstract.variables.params).items()}
    for line in said:
        _logger.info("%s", line)
    mesh = assembly.placement.mesh
    if latest is None:
        what = f"training to step {experiment.run.steps}"
    elif complete:
        what = f"complete at step {latest}: nothing to train"
    else:
        what = f"resuming from step {latest} to step {experiment.run.steps}"
    several = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(
        f"{experiment.run.name}: {parameters:,} parameters on {mesh.size} x {mesh.devices.flat[0].device_kind}"
        f"{several}, {what}; run directory {opened_run.directory.path}",
        *said,
        *(
            line
            for each in assembly.task.objectives
            for line in lines_of(experiment.optimizer_of(each.name), each, sizes)
        ),
        *_warmup_notes(experiment, assembly),
        *left_out(assembly.model, assembly.task.evaluations),
        # The longest silence of a run: whoever waits knows for what.
        *([] if complete else ["compiling the training step; its first figures come behind that"]),
        sep="\n",
        flush=True,
    )


def _warmup_notes(experiment: Experiment, assembly: Assembly) -> list[str]:
    """What is told of an optimizer whose learning rate still rises when the run ends."""
    steps = experiment.run.steps
    warmups = {experiment.optimizer_of(each.name).warmup for each in assembly.task.objectives}
    return [
        f"config.optimizer.warmup={warmup} is beyond config.steps={steps}: the learning rate never reaches its peak"
        for warmup in sorted(warmups)
        if warmup > steps
    ]


def cadence_of(config: RunConfig) -> Cadence:
    """The cadence of a run's config."""
    return Cadence(
        log=config.log_every,
        evaluate=config.eval_every,
        maps=config.maps_every,
        checkpoint=config.checkpoint_every,
        heads=config.head_statistics_every,
    )


def measured(assembly: Assembly, pulse: Pulse) -> list[Measured]:
    """The evaluations that apply to the model, compiled."""
    chosen = assembly.evaluations
    compiled = compile_evaluations(assembly.model, chosen, assembly.placement)
    with_pulse = [replace(run, pulse=pulse) if isinstance(run, CompiledEvaluation) else run for run in compiled]
    return [Measured(each.name, each.split, each.at_end, run) for each, run in zip(chosen, with_pulse, strict=True)]


def programs_to_compile(
    experiment: Experiment, assembly: Assembly, step: Step, evaluations: Sequence[Measured], start: int, source: Source
) -> Iterator[Program]:
    """The jitted `step` for each batch shape of the steps behind `start`, and that of each evaluation.

    `source` is of this call alone: one keeps its epoch's plan, which two threads must not share.
    """
    batches = shapes_of(source, start, experiment.run.steps, assembly.placement)
    yield from (Program(step, (assembly.abstract, batch, False)) for batch in batches)
    for each in evaluations:
        if isinstance(each.run, CompiledEvaluation):
            yield from each.run.programs(assembly.abstract)


def probe_of(assembly: Assembly, opened_run: OpenRun) -> Probe:
    """The compiled probe; a resumed run keeps the tiers of its store, also with another `maps_every` or `steps`."""
    return compile_probe(
        assembly.model,
        assembly.task,
        assembly.abstract,
        assembly.placement,
        config=opened_run.experiment.maps,
        times=opened_run.experiment.run.probe_count,
        parameters=opened_run.experiment.evaluated_parameters,
        tiers=MapStore.tiers_at(opened_run.directory.maps),
    )


def peak_flops_of(assembly: Assembly) -> float:
    """The peak operations a second of the mesh's devices, by their data sheets."""
    return peak_flops(list(assembly.placement.mesh.devices.flat))
