"""Vmapped training: runs that differ only in seed and hyperparameters train in one vmapped program."""

import contextlib
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.config import UserError, to_config
from transformer.costs.chips import peak_flops
from transformer.data.batches import BatchSource
from transformer.logical_axes import VMAPPED_RUNS, Placement
from transformer.maps.capture_plan import StoredMaps
from transformer.models.model import count_parameters
from transformer.runs.exceptions import NonFiniteError
from transformer.runs.preemption import ProgressMonitor
from transformer.runs.run_directory import flatten_to_json
from transformer.tasks.task import Batch, EvaluationReport
from transformer.training.build import (
    TrainingComponents,
    build_components,
    build_train_step,
    flops_counter,
    hyperparameters_by_objective,
    make_jitted_train_step,
)
from transformer.training.checkpoint_saver import CheckpointSaver
from transformer.training.config import ExperimentConfig, config_hash
from transformer.training.init_from import copy_source_tokenizer, initialize_run
from transformer.training.loop import LoopEvaluation, Reporter, train_loop
from transformer.training.metric_accumulator import MetricAccumulator
from transformer.training.optimizer import OptimizerConfig, hyperparameters
from transformer.training.partitioning import make_placement, shard_host_batches, trace_with_placement
from transformer.training.restore import resume_runs_together
from transformer.training.rollback import explain_divergence, explain_non_finite, training_batches
from transformer.training.run_setup import (
    TrainingRun,
    compile_loop_evaluations,
    compile_run_probe,
    make_cadence,
    set_up_runs,
)
from transformer.training.state import TrainState
from transformer.training.step import StepMetrics, TrainStep
from transformer.training.update_guard import ConsecutiveSkips, TrainingDiverged
from transformer.training.writers.console import ConsoleWriter
from transformer.training.writers.open_writers import close_with_run, open_writers
from transformer.training.writers.vmapped import VmappedWriters
from transformer.training.writers.writer import MultiWriter, Writer

BATCHES_COMPARED = 8  # batches whose shapes are compared before anything compiles


def train_vmapped(
    experiments: Sequence[ExperimentConfig], workdirs: Sequence[Path], also: Sequence[Writer] = ()
) -> list[int | None]:
    """Train several runs in one program, or resume them.

    They resume at the latest step of which all have a checkpoint; later checkpoints are saved again. Runs that are
    complete, or that diverged before, are left as they are.

    Args:
        experiments: The checked config of each run.
        workdirs: The directory of each run.
        also: For each run a writer that is called after its own; none by default.

    Returns:
        The step at which each run diverged; None for a run that is complete.

    Raises:
        UserError: If the experiments need different programs, batches of two seeds differ in shape, there are several
            devices or processes, or a run cannot be trained (`transformer.training.driver.train`).
    """
    _check_one_program(experiments, workdirs)
    # With two checkpoints each, all have one of the same step whenever the process is killed.
    check = functools.partial(_check_batches, experiments)
    with set_up_runs(experiments, workdirs, min_checkpoints=2, check=check) as (components, runs):
        diverged_at: list[int | None] = [run.directory.facts().get("diverged_at") for run in runs]
        complete = [run.latest == run.experiment.run.steps for run in runs]
        unfinished = [n for n, step in enumerate(diverged_at) if step is None and not complete[n]]
        if unfinished:
            writers = [also[number] for number in unfinished] if also else [MultiWriter()] * len(unfinished)
            ends = _train_runs([runs[number] for number in unfinished], components, writers)
            for number, step in zip(unfinished, ends, strict=True):
                diverged_at[number] = step
        for number in set(range(len(runs))) - set(unfinished):
            runs[number].directory.write_config(runs[number].experiment.to_config())
    return diverged_at


def measure_vmap_speedup(
    experiments: Sequence[ExperimentConfig], folder: Path, *, steps: int = 5, repeats: int = 5
) -> float:
    """Measure the speedup of training experiments vmapped instead of one after the other, of their steps alone.

    Args:
        experiments: The checked configs.
        folder: A folder for the data.
        steps: Steps in a repeat.
        repeats: Repeats of both, taken in turn.

    Returns:
        The median over the repeats of the ratio of seconds.

    Raises:
        UserError: If the experiments cannot be vmapped.
    """
    _check_one_program(experiments, [folder / str(number) for number in range(len(experiments))])
    copy_source_tokenizer(experiments[0].initialize_from, folder)
    components = build_components(experiments[0], folder)
    _check_batches(experiments, components)
    compiled = make_jitted_train_step(experiments[0], components), _compile_vmapped_step(experiments[0], components)
    alone, together = (shard_host_batches(each, components.placement) for each in compiled)
    sources = [components.task.training_batches(each.run.seed) for each in experiments]
    stacked = StackedBatches(sources)
    batches = [stacked[number] for number in range(steps)]

    def seconds(step: TrainStep, state: TrainState, batches: Sequence[Batch]) -> float:
        jax.block_until_ready(state)
        began = time.perf_counter()
        for batch in batches:
            state, _ = step(state, batch)
        jax.block_until_ready(state)
        return time.perf_counter() - began

    ratios = []
    for repeat in range(repeats + 1):
        states = [_first_state(each, components) for each in experiments]
        vectorized = seconds(together, stack_states(states, components.placement), batches)
        single = sum(
            seconds(alone, state, [source[number] for number in range(steps)])
            for state, source in zip(states, sources, strict=True)
        )
        if repeat:  # the first compiles
            ratios.append(single / vectorized)
    return statistics.median(ratios)


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
    if len({workdir.resolve() for workdir in map(Path, workdirs)}) < len(workdirs):
        raise UserError("every run needs a run directory of its own, and two have the same")
    programs = [flatten_to_json(json.loads(program_key(each))) for each in experiments]
    configs = [flatten_to_json(each.to_config()) for each in experiments]
    for program, config, workdir in zip(programs, configs, workdirs, strict=True):
        for key in programs[0] | program:
            if program.get(key) != programs[0].get(key):
                given, first = config.get(key, "absent"), configs[0].get(key, "absent")
                raise UserError(
                    f"config.{key}={given} of {workdir} and {first} of {workdirs[0]} make two programs: vmapped runs "
                    "differ in config.seed, config.name and the numbers of config.optimizer alone; a clip_norm, "
                    "weight_decay or momentum of zero is another program"
                )


def _check_batches(experiments: Sequence[ExperimentConfig], components: TrainingComponents) -> None:
    """Check that the first batches of all seeds have the same shapes; a later one is refused when it comes.

    Raises:
        UserError: If shapes differ.
    """
    batches = StackedBatches([components.task.training_batches(each.run.seed) for each in experiments])
    for number in range(min(BATCHES_COMPARED, experiments[0].run.steps)):
        batches[number]


def _first_state(experiment: ExperimentConfig, components: TrainingComponents) -> TrainState:
    return _with_hyperparameters(components.init_state(jax.random.key(experiment.run.seed)), experiment, components)


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


def _train_runs(
    runs: Sequence[TrainingRun], components: TrainingComponents, also: Sequence[Writer]
) -> list[int | None]:
    first = runs[0].experiment
    steps = first.run.steps
    start, resumed = resume_runs_together(runs, components)
    for run in runs:
        run.directory.write_config(run.experiment.to_config())
    jitted_step = _compile_vmapped_step(first, components)
    batches = StackedBatches([training_batches(run, components) for run in runs])
    plan, probe = compile_run_probe(components, runs[0])
    if resumed:
        states = [point.state for point in resumed]
        extents = [point.records for point in resumed]
    else:
        states = [_begin_run(run, components, aloud=run is runs[0]) for run in runs]
        extents = [{} for _ in runs]
    state = stack_states(states, components.placement)
    _print_run_summary(runs, components, start)
    records = [
        open_writers(run.directory, plan, config_hash(run.experiment), steps=steps, start=start, extents=run_extents)
        for run, run_extents in zip(runs, extents, strict=True)
    ]
    savers = [CheckpointSaver(run, components.placement, files) for run, files in zip(runs, records, strict=True)]
    diverged_at: list[int | None] = [None] * len(runs)

    def end(number: int, why: TrainingDiverged | NonFiniteError) -> None:
        diverged_at[number] = why.step
        _record_divergence(runs[number], why, components)
        writers.stop(number)
        if not writers.active_runs:
            raise why

    writers_of_runs = [MultiWriter(*writers_of_run) for writers_of_run in zip(records, also, strict=True)]
    writers = VmappedWriters(writers_of_runs, ConsoleWriter(steps, sys.stdout), not_finite=end)
    skipped_steps = [ConsecutiveSkips(run.experiment.update_guard.max_consecutive_skips) for run in runs]

    def check(step: int, denominators: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
        for number in writers.active_runs:
            run_totals = {name: total[number] for name, total in denominators.items()}
            run_values = {name: value[number] for name, value in values.items()}
            try:
                skipped_steps[number].check(step, run_totals, run_values)
            except TrainingDiverged as diverged:
                end(number, diverged)

    monitor = ProgressMonitor()
    evaluations = [
        _evaluate_each_run(evaluation, writers, len(runs))
        for evaluation in compile_loop_evaluations(components, monitor)
    ]

    # Only the last run raises its error; each has recorded its own.
    with close_with_run(writers), contextlib.suppress(TrainingDiverged, NonFiniteError):
        train_loop(
            state,
            shard_host_batches(jitted_step, components.placement),
            batches,
            steps=steps,
            reporter=Reporter(
                make_cadence(first.run),
                evaluations=evaluations,
                probe=lambda state: _probe_each_run(state, probe, writers),
                writer=writers,
                monitor=monitor,
            ),
            save=lambda state, progress: _save_runs(
                state, {number: savers[number] for number in writers.active_runs}, end
            ),
            accumulator=MetricAccumulator(
                check,
                _flops_of_one_run(components),
                peak_flops(list(components.placement.mesh.devices.flat)),
            ),
        )
    return diverged_at


def _begin_run(run: TrainingRun, components: TrainingComponents, *, aloud: bool) -> TrainState:
    experiment = run.experiment
    key = jax.random.key(experiment.run.seed)
    state = initialize_run(experiment.initialize_from, components, key, run.directory, aloud=aloud)
    return _with_hyperparameters(state, experiment, components)


def _save_runs(
    state: TrainState, going: Mapping[int, CheckpointSaver], end: Callable[[int, NonFiniteError], None]
) -> None:
    """Save the state of each run, and end those whose state is not finite."""
    for saver in going.values():
        saver.wait()  # so that no run saves the next one before all have this one
    for number, saver in going.items():
        try:
            saver(take_run(state, number), {})
        except NonFiniteError as found:
            end(number, found)


def _record_divergence(
    each: TrainingRun, why: TrainingDiverged | NonFiniteError, components: TrainingComponents
) -> None:
    """Record that a run has ended, and print how to continue it by itself."""
    # Otherwise a restart would return the other runs to its last checkpoint, and it would diverge again.
    each.directory.record(diverged_at=why.step)
    said = (
        explain_divergence(why, each, training_batches(each, components))
        if isinstance(why, TrainingDiverged)
        else explain_non_finite(why, each)
    )
    print(f"{each.directory.path}: {said}", flush=True)


def _evaluate_each_run(evaluation: LoopEvaluation, writers: VmappedWriters, count: int) -> LoopEvaluation:
    """Evaluate every unfinished run, one after the other with one compiled program."""

    def evaluate(state: TrainState) -> EvaluationReport:
        seen = state.without_optimizers()
        going = writers.active_runs
        return stack_reports([evaluation.evaluate(take_run(seen, n)) if n in going else None for n in range(count)])

    return dataclasses.replace(evaluation, evaluate=evaluate)


def _probe_each_run(
    state: TrainState, probe: Callable[[TrainState], Mapping[str, StoredMaps]], writers: VmappedWriters
) -> dict[str, Any]:
    """Return the maps of every unfinished run, by site and run."""
    seen = state.without_optimizers()
    maps_by_run = {number: probe(take_run(seen, number)) for number in writers.active_runs}
    sites = next(iter(maps_by_run.values()))
    return {site: {number: maps[site] for number, maps in maps_by_run.items()} for site in sites}


def _flops_of_one_run(components: TrainingComponents) -> Callable[[Batch], float | None]:
    """Return a function that counts the FLOPs of one run in a step of stacked batches."""
    flops = flops_counter(components)
    return lambda batch: flops({name: array[0] for name, array in batch.items()})


def _print_run_summary(runs: Sequence[TrainingRun], components: TrainingComponents, start: int) -> None:
    parameters = count_parameters(components.abstract_state.variables.params)
    kind = components.placement.mesh.devices.flat[0].device_kind
    steps = runs[0].experiment.run.steps
    what = f"resuming from step {start} to step {steps}" if start else f"training to step {steps}"
    print(f"{len(runs)} vmapped runs of {parameters:,} parameters on 1 x {kind}, {what}; run directories", flush=True)
    for line in components.task.data_summary:
        print(f"  {line}", flush=True)
    for each in runs:
        each.directory.record(parameters=parameters)
        print(f"  {each.directory.path}: {each.experiment.run.name}", flush=True)
