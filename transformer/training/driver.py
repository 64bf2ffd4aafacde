"""Train a run, or several vmapped ones, from their configs to their last checkpoints."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from transformer.costs.chips import peak_flops
from transformer.data.batches import BatchSource
from transformer.runs.distributed import is_primary
from transformer.runs.exceptions import NonFiniteError
from transformer.runs.preemption import ProgressMonitor
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import storage_of
from transformer.tasks.task import Batch, EvaluationReport
from transformer.training.background_compile import Program, compile_in_background
from transformer.training.build import TrainingComponents, flops_counter, make_jitted_train_step
from transformer.training.checked_batches import InvalidBatch
from transformer.training.checkpoint_saver import CheckpointSaver, SaveWaitingWriter
from transformer.training.compiled_evaluation import CompiledEvaluation, compile_evaluations
from transformer.training.compiled_probe import Probe
from transformer.training.config import ExperimentConfig, config_hash
from transformer.training.init_from import initialize_run
from transformer.training.loop import Reporter, train_loop
from transformer.training.metric_accumulator import MetricAccumulator
from transformer.training.partitioning import shard_host_batches
from transformer.training.restore import ResumePoint, record_reported_checkpoint, resume_run
from transformer.training.rollback import (
    RollbackRequest,
    check_parameters_finite,
    explain_divergence,
    explain_invalid_batch,
    explain_non_finite,
    roll_back,
    training_batches,
)
from transformer.training.run_setup import (
    TrainingRun,
    compile_run_probe,
    print_run_summary,
    programs_to_compile,
    set_up_runs,
)
from transformer.training.sharded_batches import place_rows_ahead
from transformer.training.state import TrainState
from transformer.training.step import StepMetrics, TrainStep
from transformer.training.update_guard import ConsecutiveSkips, TrainingDiverged
from transformer.training.writers.console import ConsoleWriter
from transformer.training.writers.open_writers import RunWriters, close_with_run, open_writers
from transformer.training.writers.writer import MultiWriter, Writer


def train(
    experiment: ExperimentConfig,
    workdir: Path | RunDirectory,
    *,
    profile: bool = False,
    writer: Writer | None = None,
    monitor: ProgressMonitor | None = None,
    rewind: RollbackRequest | None = None,
) -> RunDirectory:
    """Train a run in its directory, or resume it, until all steps and evaluations are done.

    Args:
        experiment: The checked config.
        workdir: The run directory: its path, or the directory that this process has locked (`RunDirectory.lock`). If
            it holds the run already, the run is resumed from its newest valid checkpoint.
        profile: Whether to record a profiler trace of a few steps in `workdir/profile`.
        writer: A writer that is called after the run's own. An error of it ends the run, whose metrics are written by
            then.
        monitor: A monitor through which the run can be told to stop.
        rewind: A rollback to make before training: a checkpoint to return to, and batches to skip.

    Returns:
        The run directory.

    Raises:
        UserError: If config, data, directory or device memory do not allow the run, before anything is compiled; or if
            a training batch has a token outside of the vocabulary.
        RunStopped: If the monitor is told to stop; the state has been saved.
        RunFailed: If training diverges, or a state or checkpoint is not valid.

    Example:
        ```python
        from pathlib import Path
        from transformer.training.config import resolve_config
        from transformer.training.driver import train

        config = {
            "name": "small",
            "steps": 2,
            "checkpoint_every": 2,
            "log_every": 1,
            "task": {"name": "language_modeling", "dataset": "repeated", "context_length": 16, "probe_length": 8},
            "model": {"family": "decoder", "layers": 1, "width": 16, "heads": 2, "feed_forward": 16},
            "optimizer": {"learning_rate": 1e-3},
        }
        directory = train(resolve_config(config), Path("runs/small"))
        directory.metrics_file  # runs/small/metrics.jsonl
        ```
    """
    with set_up_runs([experiment], [workdir]) as (components, (run,)):
        roll_back(run, rewind)
        resumed = resume_run(run, components)
        if resumed is None:
            key = jax.random.key(experiment.run.seed)
            state = initialize_run(experiment.initialize_from, components, key, run.directory)
            resumed = ResumePoint(step=0, state=state, records={}, progress={})
        latest = run.latest
        if is_primary():
            run.directory.write_config(experiment.to_config())
        check_parameters_finite(resumed.state, run, latest)
        complete = latest == experiment.run.steps and resumed.reported
        if is_primary():
            print_run_summary(components, run, latest, complete)
        if not complete:
            writers = () if writer is None else (writer,)
            with run.directory.record_error() if is_primary() else contextlib.nullcontext():
                train_runs(SingleRun(run, components), [resumed], writers, monitor=monitor, profile=profile)
    return run.directory


class RunGroup(Protocol):
    """The runs that one loop trains, and what differs between one run and several in one vmapped program.

    Attributes:
        runs: The runs, whose configs have the same steps and intervals.
        components: The components of the first run, which serve all.
    """

    runs: Sequence[TrainingRun]
    components: TrainingComponents

    def jit_step(self) -> TrainStep:
        """Build and jit the train step of all runs."""

    def training_batches(self) -> BatchSource:
        """Return the batches of that step."""

    def stack_states(self, states: Sequence[TrainState]) -> TrainState:
        """Return the state of that step from those of the runs."""

    def flops_counter(self) -> Callable[[Batch], float | None]:
        """Return a function that counts the FLOPs of one run in a step over a batch."""

    def programs_to_compile(
        self, step: TrainStep, evaluations: Sequence[CompiledEvaluation], start: int
    ) -> Iterable[Program]:
        """Return the programs to compile in the background."""

    def connect(
        self,
        records: Sequence[RunWriters],
        savers: Sequence[CheckpointSaver],
        console: Writer,
        writers: Sequence[Writer],
    ) -> Writer:
        """Return the writer of all reports, and save by `savers` from now on.

        Args:
            records: The writers of each run's records.
            savers: The saver of each run.
            console: The writer to the console.
            writers: For each run a further writer; none at all if empty.
        """

    def check(self, step: int, denominators: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        """Check the metrics of a step for divergence."""

    def evaluate(self, evaluation: CompiledEvaluation, state: TrainState) -> EvaluationReport:
        """Run an evaluation on each run."""

    def capture_maps(self, probe: Probe, state: TrainState) -> Mapping[str, Any]:
        """Return the maps of the probe batch by site."""

    def save(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """Save the state of each run (transformer.training.loop.train_loop)."""

    def explain_errors(self) -> AbstractContextManager[None]:
        """Handle what ends training, with the commands by which a run goes on."""


class SingleRun:
    """One run, trained in its own program."""

    def __init__(self, run: TrainingRun, components: TrainingComponents):
        self.runs: Sequence[TrainingRun] = (run,)
        self.components = components
        self._run = run
        self._skipped_updates = ConsecutiveSkips(run.experiment.update_guard.max_consecutive_skips)
        self._saver: CheckpointSaver

    def jit_step(self) -> TrainStep:
        return make_jitted_train_step(self._run.experiment, self.components)

    def training_batches(self) -> BatchSource:
        return place_rows_ahead(training_batches(self._run, self.components), self.components.placement)

    def stack_states(self, states: Sequence[TrainState]) -> TrainState:
        (state,) = states
        return state

    def flops_counter(self) -> Callable[[Batch], float | None]:
        return flops_counter(self.components)

    def programs_to_compile(
        self, step: TrainStep, evaluations: Sequence[CompiledEvaluation], start: int
    ) -> Iterable[Program]:
        # A separate source: a source caches the plan of its epoch, which two threads must not share.
        source = training_batches(self._run, self.components)
        return programs_to_compile(self._run.experiment, self.components, step, evaluations, start, source)

    def connect(
        self,
        records: Sequence[RunWriters],
        savers: Sequence[CheckpointSaver],
        console: Writer,
        writers: Sequence[Writer],
    ) -> Writer:
        (self._saver,) = savers
        return MultiWriter(
            *records, console, *writers, SaveWaitingWriter(self._saver, self._run.experiment.run.checkpoint_every)
        )

    def check(self, step: int, denominators: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        self._skipped_updates.check(step, denominators, values)

    def evaluate(self, evaluation: CompiledEvaluation, state: TrainState) -> EvaluationReport:
        return evaluation(state)

    def capture_maps(self, probe: Probe, state: TrainState) -> Mapping[str, Any]:
        return probe.run(state)

    def save(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        self._saver(state, progress)

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        try:
            yield
        except TrainingDiverged as diverged:
            batches = training_batches(self._run, self.components)
            raise explain_divergence(diverged, self._run, batches) from diverged
        except InvalidBatch as invalid:
            raise explain_invalid_batch(invalid, self._run) from invalid
        except NonFiniteError as error:
            raise explain_non_finite(error, self._run) from error


def train_runs(
    group: RunGroup,
    points: Sequence[ResumePoint],
    writers: Sequence[Writer] = (),
    *,
    monitor: ProgressMonitor | None = None,
    profile: bool = False,
) -> None:
    """Train runs together, from the points at which they resume to the last step.

    Args:
        group: The runs.
        points: The point of each run, all of one step.
        writers: For each run a writer that is called after its own; none by default.
        monitor: A monitor through which the runs can be told to stop.
        profile: Whether to record a profiler trace of a few steps in the first run's directory.
    """
    runs, components, placement = group.runs, group.components, group.components.placement
    config, start, reported = runs[0].experiment.run, points[0].step, points[0].reported
    monitor = ProgressMonitor() if monitor is None else monitor

    probe = compile_run_probe(components, runs[0])
    records = [
        open_writers(
            run.directory,
            probe.capture_plan,
            config_hash(run.experiment),
            steps=config.steps,
            start=start,
            extents=point.records,
            reported=reported,
        )
        for run, point in zip(runs, points, strict=True)
    ]
    savers = [CheckpointSaver(run, files) for run, files in zip(runs, records, strict=True)]
    console = ConsoleWriter(config.steps, sys.stdout) if is_primary() else MultiWriter()
    writer = group.connect(records, savers, console, writers if is_primary() else ())

    state = group.stack_states([point.state for point in points])
    # The step as the loop calls it: rows on their devices, then the compiled program of `make_train_step` or, for
    # vmapped runs, of `vmap_step` around it.
    jitted_step = group.jit_step()
    step = shard_host_batches(jitted_step, placement)
    evaluations = compile_evaluations(components.model, components.evaluations, placement, monitor)
    accumulator = MetricAccumulator(
        check=group.check,
        flops=group.flops_counter(),
        # On a CPU it is measured, and so before background compilation starts.
        peak_flops=peak_flops(list(placement.mesh.devices.flat)),
    )
    accumulator.restore_window(**points[0].progress.get("window", {"steps": 0, "sums": {}}))

    traces = contextlib.ExitStack()
    if profile:
        # The profiler can only write to a local disk.
        folder = runs[0].directory.path / "profile"
        step = ProfiledTrainStep(step, traces.enter_context(storage_of(folder).stage(folder)))

    programs = group.programs_to_compile(jitted_step, evaluations, start)
    reporter = Reporter(
        config, evaluations, group.evaluate, lambda state: group.capture_maps(probe, state), writer, monitor
    )
    with close_with_run(traces), close_with_run(writer), compile_in_background(programs):
        if not reported:
            reporter(start, state, last=start == config.steps)
            writer.flush()
            for run, files in zip(runs, records, strict=True):
                record_reported_checkpoint(run.directory, start, files.extents())
        with group.explain_errors():
            train_loop(
                state, step, group.training_batches(), reporter=reporter, save=group.save, accumulator=accumulator
            )


class ProfiledTrainStep:
    """A train step that records a profiler trace of a few of its calls, for Perfetto or XProf.

    Args:
        step: The train step.
        directory: The folder of the trace.
        first: The number of the first call that is traced, from 1. The calls before it compile.
        count: The number of calls that are traced.
    """

    def __init__(self, step: TrainStep, directory: Path, *, first: int = 10, count: int = 5):
        self._step, self._directory = step, directory
        self._first, self._last = first, first + count - 1
        self._calls = 0

    def __call__(self, state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, StepMetrics]:
        """Run the step, traced if it is one of the chosen calls."""
        self._calls += 1
        if self._calls == self._first:
            jax.profiler.start_trace(str(self._directory), create_perfetto_trace=True)
        state, metrics = self._step(state, batch, observe)
        if self._calls == self._last:
            jax.block_until_ready(metrics)
            jax.profiler.stop_trace()
        return state, metrics
