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
from transformer.training.greeting import greet
from transformer.training.initialise_from import begin
from transformer.training.loop import run
from transformer.training.meter import Meter
from transformer.training.opened import OpenRun, opened
from transformer.training.profile import Profiled
from transformer.training.programs import cadence_of, measured, peak_flops_of, probe_of, programs_to_compile
from transformer.training.resuming import Resumed, resume
from transformer.training.saving import SavedInTime, Saver
from transformer.training.sharding import on_host_batches
from transformer.training.sinks import Console, Sinks
from transformer.training.sinks.contract import Sink
from transformer.training.sinks.files import closed_with_the_run, open_sinks


def train(experiment: Experiment, workdir: Path, *, profile: bool = False, sink: Sink | None = None) -> RunDirectory:
    """Train in a run directory, or resume its run; return when all steps and evaluations are done.

    `sink` is fed after the run's own sinks; an error of it ends the run, whose metrics are written by then.

    Errors: UserError for anything that the user can correct, before anything compiles.
    """
    with opened([experiment], [workdir]) as (assembly, (opened_run,)):
        directory, resumed = opened_run.directory, resume(opened_run, assembly)
        if resumed is None:
            state = begin(experiment.initialise_from, assembly, jax.random.key(experiment.run.seed), directory)
            resumed = Resumed(0, state, {})
        latest = opened_run.latest
        if primary():
            directory.record(parameters=count_parameters(assembly.abstract.variables.params))
            greet(assembly, opened_run, latest)
        if latest != experiment.run.steps:
            _train(assembly, opened_run, resumed, profile, sink)
    return directory


def _train(assembly: Assembly, opened_run: OpenRun, resumed: Resumed, profile: bool, also: Sink | None) -> None:
    experiment, directory = opened_run.experiment, opened_run.directory
    config = experiment.run
    start, (plan, probe) = resumed.step, probe_of(assembly, opened_run)
    records = open_sinks(
        directory, plan, config_hash(experiment), steps=config.steps, start=start, extents=resumed.records
    )
    sink: Sink = records
    save = Saver(opened_run, assembly.placement, records)
    if primary():
        sink = Sinks(records, Console(config.steps, sys.stdout), *(() if also is None else (also,)))
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
            resumed.state,
            step,
            assembly.task.source(config.seed),
            steps=config.steps,
            cadence=cadence_of(config),
            evaluations=evaluations,
            probe=probe,
            save=save,
            sink=Sinks(sink, SavedInTime(save, config.checkpoint_every)),
            meter=meter,
        )
