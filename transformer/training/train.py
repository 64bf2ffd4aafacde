"""One run, from its config to its last checkpoint."""

import contextlib
import sys
from pathlib import Path

import jax

from transformer.models.contract import count_parameters
from transformer.runs.directory import RunDirectory
from transformer.runs.processes import primary
from transformer.storage import storage_of
from transformer.training.ahead import compiled_ahead
from transformer.training.assembly import Assembly, compile_step, count_flops
from transformer.training.experiment import Experiment, config_hash
from transformer.training.initialise_from import begin
from transformer.training.loop import run
from transformer.training.meter import Meter
from transformer.training.opened import OpenRun, opened
from transformer.training.preflight import left_out
from transformer.training.profile import Profiled
from transformer.training.programs import cadence_of, measured, peak_flops_of, probe_of, programs_to_compile
from transformer.training.sharding import on_host_batches
from transformer.training.sinks import Console, Sinks
from transformer.training.sinks.contract import Sink
from transformer.training.sinks.files import closed_with_the_run, open_sinks
from transformer.training.state import TrainState


def train(experiment: Experiment, workdir: Path, *, profile: bool = False, sink: Sink | None = None) -> RunDirectory:
    """Train in a run directory, or resume its run; return when all steps and evaluations are done.

    `sink` is fed after the run's own sinks; an error of it ends the run, whose metrics are written by then.

    Errors: UserError for anything that the user can correct, before anything compiles.
    """
    with opened([experiment], [workdir]) as (assembly, (opened_run,)):
        directory, latest = opened_run.directory, opened_run.latest
        if latest is None:
            state = begin(experiment.initialise_from, assembly, jax.random.key(experiment.run.seed), directory)
        else:
            state, _ = opened_run.checkpoints.restore(latest, assembly.abstract)
        if primary():
            directory.record(parameters=count_parameters(assembly.abstract.variables.params))
            _greet(assembly, opened_run, latest)
        if latest != experiment.run.steps:
            _train(assembly, opened_run, state, profile, sink)
    return directory


def _train(assembly: Assembly, opened_run: OpenRun, state: TrainState, profile: bool, also: Sink | None) -> None:
    experiment, directory, checkpoints = opened_run
    config = experiment.run
    start, (plan, probe) = int(state.step), probe_of(assembly, opened_run)
    sink = open_sinks(directory, plan, config_hash(experiment), steps=config.steps, start=start)
    if primary():
        sink = Sinks(sink, Console(config.steps, sys.stdout), *(() if also is None else (also,)))
    compiled, evaluations = compile_step(experiment, assembly), measured(assembly)
    step = on_host_batches(compiled, assembly.placement)
    # Measured on a CPU, and so before anything compiles beside it.
    meter = Meter(flops=count_flops(experiment, assembly), peak_flops=peak_flops_of(assembly))
    traces = contextlib.ExitStack()
    if profile:
        # Traces are written to a disk alone.
        folder = directory.path / "profile"
        step = Profiled(step, traces.enter_context(storage_of(folder).stage(folder)))
    programs = programs_to_compile(experiment, assembly, compiled, evaluations, start)
    with closed_with_the_run(traces), closed_with_the_run(sink), compiled_ahead(programs):
        run(
            state,
            step,
            assembly.task.source(config.seed),
            steps=config.steps,
            cadence=cadence_of(config),
            evaluations=evaluations,
            probe=probe,
            save=lambda state: checkpoints.save(int(state.step), state, {}),
            sink=sink,
            meter=meter,
        )


def _greet(assembly: Assembly, opened_run: OpenRun, latest: int | None) -> None:
    experiment = opened_run.experiment
    parameters = count_parameters(assembly.abstract.variables.params)
    mesh = assembly.placement.mesh
    match latest:
        case None:
            what = f"training to step {experiment.run.steps}"
        case experiment.run.steps:
            what = f"complete at step {latest}: nothing to train"
        case _:
            what = f"resuming from step {latest} to step {experiment.run.steps}"
    several = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(
        f"{experiment.run.name}: {parameters:,} parameters on {mesh.size} x {mesh.devices.flat[0].device_kind}"
        f"{several}, {what}; run directory {opened_run.directory.path}",
        *left_out(assembly.model, assembly.task.evaluations),
        sep="\n",
        flush=True,
    )
