"""Train one run, from its config to its last checkpoint."""

import contextlib
import sys
from pathlib import Path

import jax

from transformer.costs.chips import peak_flops
from transformer.runs.distributed import is_primary
from transformer.runs.exceptions import NonFiniteError
from transformer.runs.preemption import ProgressMonitor
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import storage_of
from transformer.tasks.task import Batch
from transformer.training.background_compile import compile_in_background
from transformer.training.build import TrainingComponents, flops_counter, make_jitted_train_step
from transformer.training.checked_batches import InvalidBatch
from transformer.training.checkpoint_saver import CheckpointSaver, SaveWaitingWriter
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
    compile_loop_evaluations,
    compile_run_probe,
    make_cadence,
    print_run_summary,
    programs_to_compile,
    set_up_runs,
)
from transformer.training.sharded_batches import place_rows_ahead
from transformer.training.state import TrainState
from transformer.training.step import StepMetrics, TrainStep
from transformer.training.update_guard import ConsecutiveSkips, TrainingDiverged
from transformer.training.writers.console import ConsoleWriter
from transformer.training.writers.open_writers import close_with_run, open_writers
from transformer.training.writers.writer import MultiWriter, Writer


def train(
    experiment: ExperimentConfig,
    workdir: Path,
    *,
    profile: bool = False,
    writer: Writer | None = None,
    monitor: ProgressMonitor | None = None,
    rewind: RollbackRequest | None = None,
) -> RunDirectory:
    """Train a run in its directory, or resume it, until all steps and evaluations are done.

    Args:
        experiment: The checked config.
        workdir: The run directory. If it holds the run already, the run is resumed from its newest valid checkpoint.
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
            _train_from(resumed, run, components, profile, writer, monitor or ProgressMonitor())
    return run.directory


def _train_from(
    resumed: ResumePoint,
    run: TrainingRun,
    components: TrainingComponents,
    profile: bool,
    extra_writer: Writer | None,
    monitor: ProgressMonitor,
) -> None:
    """Train from a resumed state to the last step."""
    experiment, directory = run.experiment, run.directory
    config, start = experiment.run, resumed.step

    plan, probe = compile_run_probe(components, run)
    records = open_writers(
        directory,
        plan,
        config_hash(experiment),
        steps=config.steps,
        start=start,
        extents=resumed.records,
        reported=resumed.reported,
    )
    save = CheckpointSaver(run, components.placement, records)
    writer: Writer = records
    if is_primary():
        console = ConsoleWriter(config.steps, sys.stdout)
        writer = MultiWriter(records, console, *(() if extra_writer is None else (extra_writer,)))

    jitted_step = make_jitted_train_step(experiment, components)
    step = shard_host_batches(jitted_step, components.placement)
    evaluations = compile_loop_evaluations(components, monitor)
    batches = training_batches(run, components)
    accumulator = MetricAccumulator(
        check=ConsecutiveSkips(experiment.update_guard.max_consecutive_skips).check,
        flops=flops_counter(components),
        # On a CPU it is measured, and so before background compilation starts.
        peak_flops=peak_flops(list(components.placement.mesh.devices.flat)),
    )
    accumulator.restore_window(**resumed.progress.get("window", {"steps": 0, "sums": {}}))

    traces = contextlib.ExitStack()
    if profile:
        # The profiler can only write to a local disk.
        folder = directory.path / "profile"
        step = ProfiledTrainStep(step, traces.enter_context(storage_of(folder).stage(folder)))

    # A separate source: a source caches the plan of its epoch, which two threads must not share.
    batches_ahead = training_batches(run, components)
    programs = programs_to_compile(experiment, components, jitted_step, evaluations, start, batches_ahead)
    waits_for_saves = SaveWaitingWriter(save, config.checkpoint_every)
    reporter = Reporter(make_cadence(config), evaluations, probe, MultiWriter(writer, waits_for_saves), monitor)
    with close_with_run(traces), close_with_run(writer), compile_in_background(programs):
        if not resumed.reported:
            reporter(start, resumed.state, last=start == config.steps)
            writer.flush()
            record_reported_checkpoint(directory, start, records.extents())
        try:
            train_loop(
                resumed.state,
                step,
                place_rows_ahead(batches, components.placement),
                steps=config.steps,
                reporter=reporter,
                save=save,
                accumulator=accumulator,
            )
        except TrainingDiverged as diverged:
            raise explain_divergence(diverged, run, batches) from diverged
        except InvalidBatch as bad:
            raise explain_invalid_batch(bad, run) from bad
        except NonFiniteError as found:
            raise explain_non_finite(found, run) from found


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
        self._first, self._last = first, first + count
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
