"""Replay a recorded run in memory: its training state at any step, and whether it is bit for bit what ran.

A run is a function of config, seed and step: batches, random keys and dropout derive from them. So the state of a step
that no checkpoint has is trained again from the nearest checkpoint before it, by the loop, the step and the batches of
the run itself. Nothing is written into the run directory.
"""

import contextlib
import dataclasses
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.config import UserError
from transformer.data.datasets.tfds_preparation import restrict_downloads
from transformer.maps.capture_plan import StoredMaps
from transformer.runs.checkpoint import Checkpoints, DamagedCheckpoint, StoredCheckpoint
from transformer.runs.jsonl_reading import last_step, read_records
from transformer.runs.preemption import ProgressMonitor
from transformer.runs.run_directory import RunDirectory
from transformer.runs.trust import trust_flags
from transformer.system.command_invocation import shell_command
from transformer.tasks.task import Batch, EvaluationReport
from transformer.training.build import TrainingComponents, build_components
from transformer.training.checkpoint_metadata import (
    check_metadata,
    collect_metadata,
    describe_config_change,
    describe_data_change,
    describe_tokenizer_change,
    refuse_change,
)
from transformer.training.compiled_evaluation import CompiledEvaluation
from transformer.training.compiled_probe import Probe
from transformer.training.driver import SingleRun
from transformer.training.init_from import build_initial_state
from transformer.training.loop import Reporter, train_loop
from transformer.training.metric_accumulator import MetricAccumulator, depends_on_speed
from transformer.training.partitioning import shard_batch, shard_host_batches
from transformer.training.restore import restore_state
from transformer.training.rollback import (
    describe_no_longer_skipped,
    kept_batch_steps,
    skipped_batches,
    training_batches,
)
from transformer.training.run_loading import open_run
from transformer.training.run_setup import TrainingRun, compile_run_probe
from transformer.training.state import TrainState
from transformer.training.step import StepMetrics
from transformer.training.writers.writer import MultiWriter, Writer


class ReplayedSteps(NamedTuple):
    """What a pass over some steps has kept.

    Attributes:
        first: The step that the pass started from.
        state: The state after the last step.
        states: Copies of the states of the chosen steps.
        metrics: The metrics of each chosen step alone.
    """

    first: int
    state: TrainState
    states: Mapping[int, TrainState]
    metrics: Mapping[int, Mapping[str, float]]


class StartingPoint(NamedTuple):
    """A state to replay from.

    Attributes:
        step: Its step.
        state: The state.
        window: The sums of training metrics since the last log (`MetricAccumulator.window`).
    """

    step: int
    state: TrainState
    window: Mapping[str, Any] = {"steps": 0, "sums": {}}


@dataclasses.dataclass(frozen=True)
class _StateKeeper(Reporter):
    """A reporter that evaluates and maps nothing, and keeps the states and metrics of chosen steps.

    Attributes:
        chosen_steps: The steps.
        states: Where their states are put.
        metrics: Where their metrics are put.
        last_metrics: The metrics of the last step, as its only element.
    """

    chosen_steps: Collection[int] = ()
    states: dict[int, TrainState] = dataclasses.field(default_factory=dict)
    metrics: dict[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    last_metrics: list[StepMetrics] = dataclasses.field(default_factory=list)

    def __call__(self, number: int, state: TrainState, last: bool) -> None:
        if number in self.chosen_steps:
            self.states[number] = copy_state(state)
            alone = MetricAccumulator()
            alone.start_clock()
            alone.add_step(self.last_metrics[-1], number)
            values = alone.compute_and_reset()
            self.metrics[number] = {name: float(values[name]) for name in values if not depends_on_speed(name)}


class Replay:
    """A recorded run whose states are computed again; `open_replay` makes it.

    Attributes:
        directory: The run directory, which is only read.
        experiment: The config of the run.
        components: Its components.
        steps: The steps of its checkpoints.
        last_step: The last step that the run is known to have reached.
    """

    def __init__(self, run: TrainingRun, components: TrainingComponents, monitor: ProgressMonitor):
        self.directory, self.experiment, self.components = run.directory, run.experiment, components
        self._run, self._monitor = run, monitor
        self._group = SingleRun(run, components)
        self._step: Any = None
        self.steps = run.checkpoints.steps() if run.directory.checkpoints_dir.is_dir() else []
        reached = last_step(read_records(self.directory.metrics_file))
        # A run that diverges ends at a step that it has seldom logged.
        self.last_step = max([reached, *self.steps, *kept_batch_steps(self.directory)])

    @property
    def first_step(self) -> int:
        """The first step of which a state can be had: 0, or that of the first checkpoint where no state came before."""
        return 0 if self._origin is None else min(self.steps, default=0)

    @property
    def _origin(self) -> str | None:
        """Where a run comes from that did not begin with the initial state of its own config; None if it did."""
        facts = self.directory.facts()
        origins = {"branched_from": "was branched off another run", "converted": "was converted"}
        return next((origin for fact, origin in origins.items() if facts.get(fact) is not None), None)

    def check_step(self, step: int) -> None:
        """Refuse a step that the run has not made.

        Raises:
            UserError: If the step is negative or beyond the run.
        """
        if not 0 <= step <= self.last_step:
            raise UserError(
                f"--step={step} is not a step of {self.directory.path}, which has made steps 0 to {self.last_step}"
            )

    def start_before(self, step: int) -> StartingPoint:
        """Restore the newest valid checkpoint at or before a step, or make the state before training.

        Raises:
            UserError: If there is no such checkpoint and the run did not begin with its own initial state, the
                checkpoint is of another config or other data, or the step is not one of the run.
        """
        self.check_step(step)
        for saved in sorted((saved for saved in self.steps if saved <= step), reverse=True):
            try:
                checkpoint = self._run.checkpoints.read(saved)
                self._check_unchanged(checkpoint)
                state, metadata = restore_state(checkpoint, self.components)
            except DamagedCheckpoint as error:
                print(f"{error}; an earlier one is used instead", flush=True)
                continue
            window = (metadata.get("progress") or {}).get("window")
            return StartingPoint(saved, state, *([window] if window else []))
        if self._origin is not None:
            raise UserError(
                f"--step={step}: {self.directory.path} {self._origin} and has no checkpoint at or before this step"
                + (f"; its first is of step {self.steps[0]}" if self.steps else "")
            )
        key = jax.random.key(self.experiment.run.seed)
        state, _ = build_initial_state(self.experiment.initialize_from, self.components, key, self.directory.path)
        return StartingPoint(0, state)

    def read_checkpoint(self, step: int) -> StoredCheckpoint:
        """Read the manifest of a checkpoint of the run."""
        return self._run.checkpoints.read(step)

    def train_on(
        self, start: StartingPoint, until: int, keep: Collection[int] = (), writer: Writer | None = None
    ) -> ReplayedSteps:
        """Train in memory from a state, which is used up, to a later step.

        Args:
            start: The state.
            until: The last step.
            keep: The steps whose states and metrics are kept, `start.step` included.
            writer: A writer of the training metrics and head statistics, as the run logged them.

        Raises:
            UserError: If a batch is not valid.
            RunFailed: If training diverges.
            RunStopped: If the monitor is told to stop.
        """
        states = {start.step: copy_state(start.state)} if start.step in keep else {}
        if until == start.step:
            return ReplayedSteps(start.step, start.state, states, {})
        config = dataclasses.replace(
            self.experiment.run,
            steps=until,
            eval_every=0,
            maps_every=0,
            checkpoint_every=0,
            permanent_checkpoint_every=0,
        )
        keeper = _StateKeeper(
            config, (), _evaluate_nothing, _map_nothing, writer or MultiWriter(), self._monitor, keep, states
        )
        accumulator = MetricAccumulator()  # without the check that ends a run: a replay goes where its run went
        accumulator.restore_window(**start.window)
        state = train_loop(
            start.state,
            self._observed_step(keeper),
            self._group.training_batches(),
            reporter=keeper,
            save=lambda state, progress: None,
            accumulator=accumulator,
        )
        return ReplayedSteps(start.step, state, states, keeper.metrics)

    def batch_of_step(self, step: int) -> Batch:
        """Return the batch that a step, counted from 1, was trained on; all of its rows."""
        return shard_batch(training_batches(self._run, self.components)[step - 1], self.components.placement)

    def compile_probe(self) -> Probe:
        """Compile the probe of the run, with the resolutions of its map store."""
        return compile_run_probe(self.components, self._run)

    def _observed_step(self, keeper: _StateKeeper) -> Any:
        """Return the run's compiled step, which leaves its metrics with the keeper."""
        if self._step is None:
            self._step = shard_host_batches(self._group.jit_step(), self.components.placement)

        def step(state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, StepMetrics]:
            state, metrics = self._step(state, batch, observe)
            keeper.last_metrics[:] = [metrics]
            return state, metrics

        return step

    def _check_unchanged(self, checkpoint: StoredCheckpoint) -> None:
        """Refuse a checkpoint that was trained with another config, tokenizer, or other data than are there now."""
        path, metadata, step = self.directory.path, checkpoint.metadata, checkpoint.step
        check_metadata(metadata, path, step)
        refuse_change(
            path,
            describe_config_change(metadata, self.experiment.to_config(), step)
            or describe_tokenizer_change(metadata, path, step)
            or describe_data_change(metadata, self._run.checkpoint_metadata, step)
            or describe_no_longer_skipped(metadata, skipped_batches(self.directory), step),
        )


@contextlib.contextmanager
def open_replay(
    workdir: str | Path,
    trusted: Collection[str] = (),
    data_dir: str | None = None,
    monitor: ProgressMonitor | None = None,
) -> Iterator[Replay]:
    """Open a recorded run to replay it.

    Args:
        workdir: The run directory.
        trusted: Dotted paths of code, and names of files outside of the run, that its config may name.
        data_dir: The folder of the data; by default the config's.
        monitor: A monitor through which the replay can be told to stop.

    Raises:
        UserError: If the directory is not a run, another process trains it, or its data are missing.
    """
    recorded = open_run(workdir, trusted, {} if data_dir is None else {"data_dir": data_dir})
    directory, experiment = recorded
    refuse_live_run(directory)
    with restrict_downloads(trusted), contextlib.ExitStack() as stack:
        components = build_components(experiment, directory.path)
        checkpoints: Any = None
        if directory.checkpoints_dir.is_dir():
            checkpoints = stack.enter_context(Checkpoints.open_read_only(directory.checkpoints_dir))
        metadata = collect_metadata(experiment, components, directory)
        run = TrainingRun(experiment, directory, checkpoints, metadata)
        yield Replay(run, components, monitor or ProgressMonitor())


def refuse_live_run(directory: RunDirectory) -> None:
    """Refuse a run that another process trains: its checkpoints and records change while they are read.

    Raises:
        UserError: If it is in use.
    """
    if directory.is_in_use():
        run = [f"--workdir={directory.path}", *trust_flags(directory.config())]
        raise UserError(
            f"--workdir={directory.path} is being trained by another process: stop that first, or wait for its end; "
            f"{shlex.join([*shell_command('train'), *run])} resumes it later"
        )


def copy_state(state: TrainState) -> TrainState:
    """Copy a state, since a training step uses its argument up."""
    return jax.tree.map(jnp.copy, state)


def _evaluate_nothing(compiled: CompiledEvaluation, state: TrainState) -> EvaluationReport:
    raise AssertionError(f"a replay does not run the evaluation {compiled.evaluation.name}")


def _map_nothing(state: TrainState) -> Mapping[str, StoredMaps]:
    raise AssertionError("a replay maps the states that it keeps")
