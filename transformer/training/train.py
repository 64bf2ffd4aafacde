"""One run, from its config to its last checkpoint."""

import contextlib
import sys
from pathlib import Path

import jax

from transformer.runs.directory import RunDirectory
from transformer.runs.distributed import primary
from transformer.runs.exit_codes import NotFinite
from transformer.runs.preemption import Pulse
from transformer.storage.locate import storage_of
from transformer.tasks.contract import Batch
from transformer.training.background_compile import compiled_ahead
from transformer.training.batches import BadBatch
from transformer.training.build import Assembly, compile_step, count_flops
from transformer.training.checkpointing import Resumed, SavedInTime, Saver, note_reported, resume
from transformer.training.config import Experiment, config_hash
from transformer.training.init_from import begin
from transformer.training.loop import Look, run
from transformer.training.meter import Meter
from transformer.training.partitioning import on_host_batches
from transformer.training.rollback import Rewind, batches_of, check_finite, explained, leads_past, passable, rewound
from transformer.training.run_setup import (
    OpenRun,
    cadence_of,
    greet,
    measured,
    opened,
    peak_flops_of,
    probe_of,
    programs_to_compile,
)
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step
from transformer.training.update_guard import Diverged, Patience
from transformer.training.writers.console import Console
from transformer.training.writers.contract import Sink, Sinks
from transformer.training.writers.open_writers import closed_with_the_run, open_sinks


class Profiled:
    """A step that traces its calls `first` to `first` + `count` - 1 into a directory for Perfetto or XProf.

    The first calls are left out: they compile.
    """

    def __init__(self, step: Step, directory: Path, *, first: int = 10, count: int = 5):
        self._step, self._directory = step, directory
        self._first, self._last = first, first + count
        self._calls = 0

    def __call__(self, state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, Metrics]:
        """The step, traced if it is one of the chosen calls."""
        self._calls += 1
        if self._calls == self._first:
            jax.profiler.start_trace(str(self._directory), create_perfetto_trace=True)
        state, metrics = self._step(state, batch, observe)
        if self._calls == self._last:
            jax.block_until_ready(metrics)
            jax.profiler.stop_trace()
        return state, metrics


def train(
    experiment: Experiment,
    workdir: Path,
    *,
    profile: bool = False,
    sink: Sink | None = None,
    pulse: Pulse | None = None,
    rewind: Rewind | None = None,
) -> RunDirectory:
    """Train in a run directory, or resume its run; return when all steps and evaluations are done.

    `sink` is fed after the run's own sinks; an error of it ends the run, whose metrics are written by then. `pulse` can
    be told to stop; `rewind` first goes back.

    Errors: UserError for anything that the user can correct, before anything compiles; Stopped; Failed.
    """
    with opened([experiment], [workdir]) as (assembly, (opened_run,)):
        directory = opened_run.directory
        rewound(opened_run, rewind)
        resumed = resume(opened_run, assembly)
        if resumed is None:
            state = begin(experiment.initialise_from, assembly, jax.random.key(experiment.run.seed), directory)
            resumed = Resumed(0, state, {}, {})
        latest = opened_run.latest
        check_finite(resumed.state, opened_run, latest)
        complete = latest == experiment.run.steps and resumed.looked
        if primary():
            greet(assembly, opened_run, latest, complete)
        if not complete:
            _train(assembly, opened_run, resumed, profile, sink, pulse or Pulse())
    return directory


def _train(
    assembly: Assembly,
    opened_run: OpenRun,
    resumed: Resumed,
    profile: bool,
    also: Sink | None,
    pulse: Pulse,
) -> None:
    experiment, directory = opened_run.experiment, opened_run.directory
    config, start = experiment.run, resumed.step
    plan, probe = probe_of(assembly, opened_run)
    hashed = config_hash(experiment)
    records = open_sinks(
        directory, plan, hashed, steps=config.steps, start=start, extents=resumed.records, looked=resumed.looked
    )
    sink: Sink = records
    save = Saver(opened_run, assembly.placement, records)
    if primary():
        sink = Sinks(records, Console(config.steps, sys.stdout), *(() if also is None else (also,)))
    compiled, evaluations = compile_step(experiment, assembly), measured(assembly, pulse)
    step, batches = on_host_batches(compiled, assembly.placement), batches_of(opened_run, assembly)
    # Measured on a CPU, and so before anything compiles beside it.
    meter = Meter(
        Patience(experiment.faults.stop_after).check,
        flops=count_flops(experiment, assembly),
        peak_flops=peak_flops_of(assembly),
    )
    meter.go_on(**resumed.progress.get("window", {"steps": 0, "sums": {}}))
    traces = contextlib.ExitStack()
    if profile:
        # Traces are written to a disk alone.
        folder = directory.path / "profile"
        step = Profiled(step, traces.enter_context(storage_of(folder).stage(folder)))
    ahead = programs_to_compile(experiment, assembly, compiled, evaluations, start, batches_of(opened_run, assembly))
    look = Look(cadence_of(config), evaluations, probe, Sinks(sink, SavedInTime(save, config.checkpoint_every)), pulse)
    with closed_with_the_run(traces), closed_with_the_run(sink), compiled_ahead(ahead):
        if not resumed.looked:
            look(start, resumed.state, last=start == config.steps)
            sink.flush()
            note_reported(directory, start, records.extents())
        try:
            run(resumed.state, step, batches, steps=config.steps, look=look, save=save, meter=meter)
        except Diverged as diverged:
            raise explained(diverged, opened_run, batches) from diverged
        except BadBatch as bad:
            raise passable(bad, opened_run) from bad
        except NotFinite as found:
            raise leads_past(found, opened_run) from found
