"""Vmapped training: runs that differ only in seed and hyperparameters train in one vmapped program."""

import contextlib
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.config import ABSENT, UserError, config_differences, config_text, flatten_config, to_config
from transformer.data.batches import BatchSource
from transformer.logical_axes import VMAPPED_RUNS, Placement
from transformer.models.model import count_parameters
from transformer.runs.exceptions import NonFiniteError
from transformer.runs.run_directory import RunDirectory
from transformer.tasks.task import Batch, EvaluationReport
from transformer.training.background_compile import Program
from transformer.training.build import (
    TrainingComponents,
    build_train_step,
    flops_counter,
    hyperparameters_by_objective,
)
from transformer.training.checkpoint_saver import CheckpointSaver
from transformer.training.compiled_evaluation import CompiledEvaluation
from transformer.training.compiled_probe import Probe
from transformer.training.config import ExperimentConfig
from transformer.training.driver import train_runs
from transformer.training.init_from import initialize_run
from transformer.training.optimizer import OptimizerConfig, hyperparameters
from transformer.training.partitioning import make_placement, trace_with_placement
from transformer.training.restore import ResumePoint, resume_runs_together
from transformer.training.rollback import explain_divergence, explain_non_finite, training_batches
from transformer.training.run_setup import (
    TrainingRun,
    set_up_runs,
)
from transformer.training.state import TrainState
from transformer.training.step import StepMetrics, TrainStep
from transformer.training.update_guard import ConsecutiveSkips, TrainingDiverged
from transformer.training.writers.open_writers import RunWriters
from transformer.training.writers.vmapped import VmappedWriters
from transformer.training.writers.writer import MultiWriter, Writer

BATCHES_COMPARED = 8  # batches whose shapes are compared before anything compiles


def train_vmapped(
    experiments: Sequence[ExperimentConfig], workdirs: Sequence[Path | RunDirectory], also: Sequence[Writer] = ()
) -> list[int | None]:
    """Train several runs in one program, or resume them.

    They resume at the latest step of which all have a checkpoint; later checkpoints are saved again. Runs that are
    complete, or that diverged before, are left as they are.

    Args:
        experiments: The checked config of each run.
        workdirs: The directory of each run: its path, or the directory that this process has locked.
        also: For each run a writer that is called after its own; none by default.

    Returns:
        The step at which each run diverged; None for a run that is complete.

    Raises:
        UserError: If the experiments need different programs, batches of two seeds differ in shape, there are several
            devices or processes, or a run cannot be trained (`transformer.training.driver.train`).
    """
    _check_one_program(experiments, [RunDirectory.at(workdir).path for workdir in workdirs])
    # With two checkpoints each, all have one of the same step whenever the process is killed.
    check = functools.partial(_check_batches, experiments)
    with set_up_runs(experiments, workdirs, min_checkpoints=2, check=check) as (components, runs):
        diverged_at: list[int | None] = [run.directory.facts().get("diverged_at") for run in runs]
        complete = [run.latest == run.experiment.run.steps for run in runs]
        unfinished = [n for n, step in enumerate(diverged_at) if step is None and not complete[n]]
        group = VmappedRuns([runs[number] for number in unfinished], components)
        points = _resume_or_initialize(group.runs, components) if unfinished else []
        for run in runs:
            run.directory.write_config(run.experiment.to_config())
        if unfinished:
            _print_run_summary(group.runs, components, points[0].step)
            train_runs(group, points, [also[number] for number in unfinished] if also else ())
            for number, step in zip(unfinished, group.diverged_at, strict=True):
                diverged_at[number] = step
    return diverged_at


class StackedBatches:
    """The batches of several sources, stacked along a new leading axis."""

    def __init__(self, sources: Sequence[BatchSource]):
        self._sources = sources

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """Return the stacked batches of one step.

        Raises:
            UserError: If their shapes differ.
        """
        batches = [source[step] for source in self._sources]
        for batch in batches:
            for name, array in batch.items():
                shape, first = np.shape(array), np.shape(batches[0][name])
                if shape != first:
                    raise UserError(
                        f"the batches of two seeds differ in shape at step {step + 1}: {name!r} is {shape} and "
                        f"{first}, which one program cannot train; give config.task.bucket_lengths a single length, "
                        "or train "
                        "one by one"
                    )
        return {name: np.stack([np.asarray(batch[name]) for batch in batches]) for name in batches[0]}


def stacked_sharding(placement: Placement) -> NamedSharding:
    """Return the sharding of stacked arrays: on one device."""
    return NamedSharding(placement.mesh, PartitionSpec())


def stack_states(states: Sequence[TrainState], placement: Placement) -> TrainState:
    """Stack training states along a new leading axis."""

    def stack(*states: TrainState) -> TrainState:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    return jax.jit(stack, out_shardings=stacked_sharding(placement))(*states)


@jax.jit
def take_run(state: TrainState, run: int) -> TrainState:
    """Take the state of one run out of a stacked state."""
    return jax.tree.map(lambda leaf: leaf[run], state)


def stack_reports(reports: Sequence[EvaluationReport | None]) -> EvaluationReport:
    """Combine the reports of several runs.

    Args:
        reports: The report of each run; None for a run that has none.

    Returns:
        A report whose scalars and samples are sequences over the runs, with None, or no samples, for a run without
        them.
    """
    present = [report for report in reports if report is not None]
    names = dict.fromkeys(name for report in present for name in report.scalars)
    scalars: dict[str, Any] = {
        name: tuple(None if report is None else report.scalars.get(name) for report in reports) for name in names
    }
    samples: Any = tuple(() if report is None else report.samples for report in reports)
    return EvaluationReport(scalars, samples if any(samples) else ())


def vmap_step(step: TrainStep) -> TrainStep:
    """Vmap a train step over runs: every leaf of state, batch and metrics has a leading axis of runs.

    Runs differ in their states, including keys and hyperparameters, and in their batches; `observe` holds for all.
    """

    def vmapped(state: TrainState, batch: Mapping[str, Any], observe: bool = False) -> tuple[TrainState, StepMetrics]:
        return jax.vmap(step, in_axes=(0, 0, None), axis_name=VMAPPED_RUNS)(state, batch, observe)

    return vmapped


def program_key(experiment: ExperimentConfig) -> str:
    """Return the config as text without the keys in which vmapped runs may differ.

    Experiments with equal keys share a program.
    """
    config = experiment.to_config()
    config |= {"seed": None, "name": None, "optimizer": _without_hyperparameters(experiment.optimizer)}
    config["update_guard"] |= {"max_consecutive_skips": None}
    config["optimizers"] = {name: _without_hyperparameters(section) for name, section in experiment.optimizers.items()}
    return json.dumps(config, sort_keys=True)


def _without_hyperparameters(optimizer: OptimizerConfig) -> dict[str, Any]:
    return to_config(optimizer) | dict.fromkeys(hyperparameters(optimizer))


def _check_one_program(experiments: Sequence[ExperimentConfig], workdirs: Sequence[Path]) -> None:
    """Check that these experiments can be vmapped on this machine.

    Raises:
        UserError: If they cannot.
    """
    devices = make_placement(experiments[0].sharding).mesh.size
    if jax.process_count() > 1 or devices > 1:
        raise UserError(
            f"vmapped runs are trained by one process on one device, not by {jax.process_count()} on {devices}: "
            "leave one device visible, or train them one by one"
        )
    if len({workdir.resolve() for workdir in workdirs}) < len(workdirs):
        raise UserError("every run needs a run directory of its own, and two have the same")
    first = experiments[0]
    for experiment, workdir in zip(experiments, workdirs, strict=True):
        for key in config_differences(json.loads(program_key(first)), json.loads(program_key(experiment))):
            values = (flatten_config(config.to_config()).get(key, ABSENT) for config in (experiment, first))
            value, value_of_first = map(config_text, values)
            raise UserError(
                f"config.{key}={value} of {workdir} and {value_of_first} of {workdirs[0]} make two programs: vmapped "
                "runs differ in config.seed, config.name and the numbers of config.optimizer alone; a clip_norm, "
                "weight_decay or momentum of zero is another program"
            )


def _check_batches(experiments: Sequence[ExperimentConfig], components: TrainingComponents) -> None:
    """Check that the first batches of all seeds have the same shapes; a later one is refused when it comes.

    Raises:
        UserError: If shapes differ.
    """
    batches = StackedBatches([components.task.training_batches(experiment.run.seed) for experiment in experiments])
    for number in range(min(BATCHES_COMPARED, experiments[0].run.steps)):
        batches[number]


def _with_hyperparameters(
    state: TrainState, experiment: ExperimentConfig, components: TrainingComponents
) -> TrainState:
    """Return the state with the run's own hyperparameters; those of the components are the first run's."""
    numbers = jax.device_put(hyperparameters_by_objective(experiment, components.task), state.step.sharding)
    return state._replace(hyperparameters=numbers)


def _compile_vmapped_step(experiment: ExperimentConfig, components: TrainingComponents) -> TrainStep:
    step = vmap_step(build_train_step(experiment, components))
    return jax.jit(
        trace_with_placement(components.placement, step),
        donate_argnums=0,
        out_shardings=stacked_sharding(components.placement),
    )


class VmappedRuns:
    """Runs that are trained in one vmapped program.

    A run that diverges is stopped, and this is recorded in its directory; the others go on.

    Args:
        runs: The runs.
        components: The components of the first run, which serve all.
    """

    def __init__(self, runs: Sequence[TrainingRun], components: TrainingComponents):
        self.runs, self.components = runs, components
        self.diverged_at: list[int | None] = [None] * len(runs)
        self._skipped_updates = [ConsecutiveSkips(run.experiment.update_guard.max_consecutive_skips) for run in runs]
        self._writers: VmappedWriters
        self._savers: Sequence[CheckpointSaver]

    def jit_step(self) -> TrainStep:
        return _compile_vmapped_step(self.runs[0].experiment, self.components)

    def training_batches(self) -> BatchSource:
        return StackedBatches([training_batches(run, self.components) for run in self.runs])

    def stack_states(self, states: Sequence[TrainState]) -> TrainState:
        return stack_states(states, self.components.placement)

    def flops_counter(self) -> Callable[[Batch], float | None]:
        flops = flops_counter(self.components)
        return lambda batch: flops({name: array[0] for name, array in batch.items()})

    def programs_to_compile(
        self, step: TrainStep, evaluations: Sequence[CompiledEvaluation], start: int
    ) -> Sequence[Program]:
        return ()  # all batches have one shape, so that the first step compiles the only program

    def connect(
        self,
        records: Sequence[RunWriters],
        savers: Sequence[CheckpointSaver],
        console: Writer,
        writers: Sequence[Writer],
    ) -> Writer:
        self._savers = savers
        per_run = [MultiWriter(*pair) for pair in zip(records, writers, strict=True)] if writers else records
        self._writers = VmappedWriters(per_run, console, not_finite=self._stop_diverged)
        return self._writers

    def check(self, step: int, denominators: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        for number in self._writers.active_runs:
            run_totals = {name: total[number] for name, total in denominators.items()}
            run_values = {name: value[number] for name, value in values.items()}
            try:
                self._skipped_updates[number].check(step, run_totals, run_values)
            except TrainingDiverged as diverged:
                self._stop_diverged(number, diverged)

    def evaluate(self, evaluation: CompiledEvaluation, state: TrainState) -> EvaluationReport:
        """Evaluate every unfinished run, one after the other with one compiled program."""
        state, active_runs = state.without_optimizers(), self._writers.active_runs
        return stack_reports(
            [evaluation(take_run(state, number)) if number in active_runs else None for number in range(len(self.runs))]
        )

    def capture_maps(self, probe: Probe, state: TrainState) -> Mapping[str, Any]:
        """Return the maps of every unfinished run, by site and run."""
        state = state.without_optimizers()
        maps_by_run = {number: probe.run(take_run(state, number)) for number in self._writers.active_runs}
        sites = next(iter(maps_by_run.values()))
        return {site: {number: maps[site] for number, maps in maps_by_run.items()} for site in sites}

    def save(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """Save the state of each run, and stop those whose state is not finite."""
        active_runs = self._writers.active_runs
        for number in active_runs:
            self._savers[number].wait()  # so that no run saves the next one before all have this one
        for number in active_runs:
            try:
                self._savers[number](take_run(state, number), {})
            except NonFiniteError as error:
                self._stop_diverged(number, error)

    def explain_errors(self) -> AbstractContextManager[None]:
        # Only the last run raises its error; each has recorded and explained its own.
        return contextlib.suppress(TrainingDiverged, NonFiniteError)

    def _stop_diverged(self, number: int, error: TrainingDiverged | NonFiniteError) -> None:
        """Stop a run, record that it diverged, and print how to continue it alone; the last one raises the error."""
        run = self.runs[number]
        self.diverged_at[number] = error.step
        # Otherwise a restart would return the other runs to its last checkpoint, and it would diverge again.
        run.directory.record(diverged_at=error.step)
        explained = (
            explain_divergence(error, run, training_batches(run, self.components))
            if isinstance(error, TrainingDiverged)
            else explain_non_finite(error, run)
        )
        print(f"{run.directory.path}: {explained}", flush=True)
        self._writers.stop(number)
        if not self._writers.active_runs:
            raise error


def _resume_or_initialize(runs: Sequence[TrainingRun], components: TrainingComponents) -> list[ResumePoint]:
    """Restore the latest common checkpoint of the runs, or initialize their states."""
    if points := resume_runs_together(runs, components):
        # A log interval that a stop has interrupted is not continued: vmapped runs are not told to stop.
        return [point._replace(progress={}, reported=True) for point in points]
    states = [_initialize(run, components, aloud=run is runs[0]) for run in runs]
    return [ResumePoint(step=0, state=state, records={}, progress={}) for state in states]


def _initialize(run: TrainingRun, components: TrainingComponents, *, aloud: bool) -> TrainState:
    experiment = run.experiment
    key = jax.random.key(experiment.run.seed)
    state = initialize_run(experiment.initialize_from, components, key, run.directory, aloud=aloud)
    return _with_hyperparameters(state, experiment, components)


def _print_run_summary(runs: Sequence[TrainingRun], components: TrainingComponents, start: int) -> None:
    parameters = count_parameters(components.abstract_state.variables.params)
    kind = components.placement.mesh.devices.flat[0].device_kind
    steps = runs[0].experiment.run.steps
    progress = f"resuming from step {start} to step {steps}" if start else f"training to step {steps}"
    print(
        f"{len(runs)} vmapped runs of {parameters:,} parameters on 1 x {kind}, {progress}; run directories", flush=True
    )
    for line in components.task.data_summary:
        print(f"  {line}", flush=True)
    for run in runs:
        run.directory.record(parameters=parameters)
        print(f"  {run.directory.path}: {run.experiment.run.name}", flush=True)
