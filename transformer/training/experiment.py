"""An experiment: from checked configs to task, model, state and loop."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.attention.capture import Capture
from transformer.attention.statistics import STATISTICS
from transformer.axes import Placement
from transformer.config import RunConfig, UserError, from_config, hash_of, to_config
from transformer.costs.chips import peak_flops
from transformer.costs.flops import training_flops
from transformer.maps.store import MapStore
from transformer.maps.tiers import MapsConfig
from transformer.models import registry as models
from transformer.models.contract import Model, Precision, count_parameters
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.directory import RunDirectory
from transformer.runs.processes import claimed, in_turn, primary
from transformer.storage import storage_of
from transformer.tasks import registry as tasks
from transformer.tasks.contract import Batch, Task
from transformer.training.averages import Average
from transformer.training.divided_positions import check_divided_positions
from transformer.training.evaluate import compile_evaluations
from transformer.training.initialise_from import InitialiseFrom, begin, bring_tokenizer, prepare
from transformer.training.loop import Cadence, Measured, run
from transformer.training.optimizer import Optimizer, OptimizerConfig, Schedule, hyper_of, make_optimizer
from transformer.training.preflight import check_fit, left_out
from transformer.training.probe import compile_probe
from transformer.training.profile import Profiled
from transformer.training.records import open_records
from transformer.training.sharding import (
    ShardingConfig,
    make_placement,
    shard_batch,
    state_shardings,
    traced_on,
    with_axes,
)
from transformer.training.sinks import Console, Sinks
from transformer.training.sinks.contract import Sink
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step, init_state, make_step


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Every section of a config, checked and with its defaults filled in."""

    run: RunConfig
    task: Any
    model: Any
    optimizer: OptimizerConfig
    optimizers: Mapping[str, OptimizerConfig]
    averages: Mapping[str, Average]
    precision: Precision
    maps: MapsConfig
    sharding: ShardingConfig
    initialise_from: InitialiseFrom = dataclasses.field(default_factory=InitialiseFrom)

    def to_config(self) -> dict[str, Any]:
        """The resolved config as plain values: what `config.json` holds."""
        return {
            **to_config(self.run),
            "task": {"name": tasks.name_of(self.task), **to_config(self.task)},
            "model": {"family": models.name_of(self.model), **to_config(self.model)},
            "optimizer": to_config(self.optimizer),
            "optimizers": to_config(self.optimizers),
            "averages": to_config(self.averages),
            "precision": to_config(self.precision),
            "maps": to_config(self.maps),
            "sharding": to_config(self.sharding),
            "initialise_from": to_config(self.initialise_from),
        }

    def optimizer_of(self, objective: str) -> OptimizerConfig:
        """The optimiser of one of the task's objectives."""
        return self.optimizers.get(objective, self.optimizer)


def resolve(values: Mapping[str, Any]) -> Experiment:
    """Check a nested config and fill in its defaults.

    A family or task by a dotted path is code, which is imported: see `transformer.named.check_trusted` for configs that
    a run recorded.

    Errors: UserError naming the first unknown key, missing key, or value that cannot be.
    """
    run = from_config(RunConfig, values)
    optimizers = {
        name: from_config(OptimizerConfig, {**run.optimizer, **section}, f"config.optimizers.{name}")
        for name, section in run.optimizers.items()
    }
    averages = {
        name: from_config(Average, section, f"config.averages.{name}") for name, section in run.averages.items()
    }
    experiment = Experiment(
        run=run,
        task=tasks.task_config(run.task),
        model=models.model_config(run.model),
        optimizer=from_config(OptimizerConfig, run.optimizer, "config.optimizer"),
        optimizers=optimizers,
        averages=averages,
        precision=from_config(Precision, run.precision, "config.precision"),
        maps=from_config(MapsConfig, run.maps, "config.maps"),
        sharding=from_config(ShardingConfig, run.sharding, "config.sharding"),
        initialise_from=from_config(InitialiseFrom, run.initialise_from, "config.initialise_from"),
    )
    wanted = getattr(experiment.task, "evaluated_parameters", "raw")
    if wanted != "raw" and wanted not in averages:
        raise UserError(
            f"config.task.evaluated_parameters={wanted!r} is no average of this run; say raw"
            + "".join(f" or {name}" for name in averages)
        )
    return experiment


class Setting(NamedTuple):
    """What an experiment is made of, before any array exists but the data's.

    `initialise` makes the first state of a key, and with variables that are given rather than drawn.
    """

    task: Task
    model: Model
    optimisers: Mapping[str, Optimizer]
    placement: Placement
    initialise: Callable[..., TrainState]
    abstract: TrainState


def assemble(
    experiment: Experiment, directory: Path, placement: Placement | None = None, *, rehearse: bool = False
) -> Setting:
    """Open the data, build the model and say where its state will lie: by default as the config's `sharding` says.

    To `rehearse` reads no data: the task is one of the same shapes, which is enough to compile its programs.

    Errors: UserError for data that is missing or does not fit the model, and for a mesh that does not fit either.
    """
    placement = make_placement(experiment.sharding) if placement is None else placement
    placement = with_axes(placement, models.FAMILIES[models.name_of(experiment.model)].logical_axes)
    parts = placement.parts("batch") * experiment.run.accumulate
    if rehearse:
        task = tasks.rehearse(experiment.task, parts)
    else:
        task = tasks.build(experiment.task, directory, parts)
    check_divided_positions(experiment.model, task.interface, placement)
    model = models.build(experiment.model, task.interface, experiment.precision)
    optimisers = {
        objective.name: make_optimizer(experiment.optimizer_of(objective.name), experiment.run.steps)
        for objective in task.objectives
    }
    if unknown := sorted(set(experiment.optimizers) - set(optimisers)):
        raise UserError(
            f"config.optimizers.{unknown[0]} is of no objective of this task: it has {', '.join(optimisers)}"
        )
    make = functools.partial(init_state, model, task, optimisers, experiment.averages)
    hyper = numbers_of(experiment, task)
    abstract = jax.eval_shape(make, hyper, jax.random.key(0))
    shardings = state_shardings(model, abstract, placement, experiment.sharding.largest_whole)
    placed = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        abstract,
        shardings,
    )
    # The numbers are arguments of this program as well: runs that differ in nothing else share it.
    initialise = functools.partial(compile_once(make, placement, shardings), hyper)
    return Setting(task, model, optimisers, placement, initialise, placed)


def preflight(experiment: Experiment, setting: Setting) -> None:
    """Hold task and model against each other on abstract shapes, before anything is computed.

    Errors: as `transformer.training.preflight.check_fit`.
    """
    batch = setting.task.source(experiment.run.seed)[0]
    traced_on(setting.placement, check_fit)(
        setting.model, setting.task, setting.abstract, batch, observation(experiment, setting.model)
    )


def numbers_of(experiment: Experiment, task: Task) -> dict[str, dict[str, np.float32]]:
    """The numbers of every objective's optimiser, as the training state carries them."""
    return {objective.name: hyper_of(experiment.optimizer_of(objective.name)) for objective in task.objectives}


def compile_once(make: Callable[..., Any], placement: Placement, shardings: Any = None) -> Callable[..., Any]:
    """A jitted function for a program that runs a single time, such as the making of a state.

    On CPUs, optimising the many small random draws of an initialisation takes longer than compiling the training
    step and saves nothing, so there it is left out.
    """
    on_cpu = placement.mesh.devices.flat[0].platform == "cpu"
    return jax.jit(
        traced_on(placement, make),
        out_shardings=shardings,
        compiler_options={"xla_backend_optimization_level": 0} if on_cpu else None,
    )


def train(experiment: Experiment, workdir: Path, *, profile: bool = False, sink: Sink | None = None) -> RunDirectory:
    """Train in a run directory, or resume there; return when all steps and evaluations are done.

    `sink` is fed after the run's own; what it raises ends the run, whose metrics are written by then.

    Errors: UserError for whatever the person can put right, before anything compiles.
    """
    config = experiment.to_config()
    with claimed(workdir, config, may_change=changeable(experiment)) as directory:
        try:
            # What the first process prepares (a tokenizer, a data set) the others find.
            in_turn(lambda: bring_tokenizer(experiment.initialise_from, directory.path))
            setting = in_turn(lambda: assemble(experiment, directory.path))
            preflight(experiment, setting)
            if directory.fresh and experiment.initialise_from.run:
                prepare(experiment.initialise_from, setting.model, setting.abstract.variables, directory.path)
        except UserError:
            if directory.fresh and primary():
                directory.abandon()
            raise
        with (
            directory.log_to_file() if primary() else contextlib.nullcontext(),
            contextlib.closing(Checkpoints(directory.checkpoints, experiment.run.keep)) as checkpoints,
        ):
            latest = latest_step(experiment, checkpoints)
            if latest is None:
                state = begin(experiment.initialise_from, setting, jax.random.key(experiment.run.seed), directory)
            else:
                state, _ = checkpoints.restore(latest, setting.abstract)
            if primary():
                directory.record(parameters=count_parameters(setting.abstract.variables.params))
                _greet(experiment, setting, directory, latest)
            if latest != experiment.run.steps:
                _train(experiment, setting, directory, checkpoints, state, profile, sink)
    return directory


def latest_step(experiment: Experiment, checkpoints: Checkpoints) -> int | None:
    """The step of the run's latest checkpoint, None where there is none.

    Errors: UserError where it is beyond the last step.
    """
    latest = checkpoints.latest()
    if latest is not None and latest > experiment.run.steps:
        raise UserError(
            f"config.steps={experiment.run.steps} is behind the run's checkpoint of step {latest}: say "
            f"{latest} or more, or another --workdir"
        )
    return latest


def changeable(experiment: Experiment) -> tuple[str, ...]:
    """The keys that may differ when a run is resumed: where it is computed and what is looked at, not what it is."""
    keys = ("log_every", "eval_every", "maps_every", "checkpoint_every", "keep", "task.data_dir", "sharding", "pod")
    lasting = experiment.optimizer.schedule in (Schedule.CONSTANT, Schedule.INVERSE_SQUARE_ROOT)
    return (*keys, "steps") if lasting else keys


def observation(experiment: Experiment, model: Model) -> Capture | None:
    """What a run asks of the heads of its training batches: all statistics of every head; None where it never looks."""
    if not experiment.run.heads_every:
        return None
    return Capture(tuple(site.name for site in model.sites), maps=False, statistics=tuple(STATISTICS.values()))


def training_step(experiment: Experiment, setting: Setting, capture: Capture | None = None) -> Step:
    """The training step, not compiled.

    Where the run observes its heads, one program serves the steps that do and those that do not; `capture` observes
    something else than the statistics of every head.
    """
    return make_step(
        setting.model,
        setting.task,
        setting.optimisers,
        experiment.averages,
        accumulate=experiment.run.accumulate,
        capture=capture or observation(experiment, setting.model),
    )


def compile_step(experiment: Experiment, setting: Setting, capture: Capture | None = None) -> Step:
    """The jitted `training_step`, which takes host batches and consumes its state."""
    step = training_step(experiment, setting, capture)
    # Said, not left to the compiler: a state that came back placed otherwise would compile every step again.
    placed = jax.tree.map(lambda leaf: leaf.sharding, setting.abstract)
    whole = NamedSharding(setting.placement.mesh, PartitionSpec())  # every process reads what was seen
    return jax.jit(traced_on(setting.placement, step), donate_argnums=0, out_shardings=(placed, whole))


def count_flops(experiment: Experiment, setting: Setting) -> Callable[[Batch], float] | None:
    """The formula for a training step's operations, where the family has one."""
    vocabularies = setting.task.interface.vocabularies
    if models.FAMILIES[models.name_of(experiment.model)].operations is None:
        return None
    return lambda batch: training_flops(experiment.model, batch, vocabularies) or 0.0


def cadence_of(config: RunConfig) -> Cadence:
    """How often a run does what."""
    return Cadence(
        log=config.log_every,
        evaluate=config.eval_every,
        maps=config.maps_every,
        checkpoint=config.checkpoint_every,
        heads=config.heads_every,
    )


def measured(setting: Setting) -> list[Measured]:
    """The task's evaluations that apply to the model, compiled."""
    evaluations = [each for each in setting.task.evaluations if each.applies(setting.model.sites)]
    compiled = compile_evaluations(setting.model, evaluations, setting.placement)
    return [Measured(each.name, each.split, each.at_end, run) for each, run in zip(evaluations, compiled, strict=True)]


def _train(
    experiment: Experiment,
    setting: Setting,
    directory: RunDirectory,
    checkpoints: Checkpoints,
    state: TrainState,
    profile: bool,
    also: Sink | None,
) -> None:
    config = experiment.run
    plan, probe = compile_probe(
        setting.model,
        setting.task,
        setting.abstract,
        setting.placement,
        config=experiment.maps,
        times=config.looks,
        # A run goes on as it began, also where it now looks more often or trains for longer.
        tiers=MapStore.tiers_at(directory.maps),
    )
    sink = open_records(directory, plan, config_hash(experiment), steps=config.steps, start=int(state.step))
    if primary():
        sink = Sinks(sink, Console(config.steps, sys.stdout), *(() if also is None else (also,)))
    compiled = compile_step(experiment, setting)

    def sharded(state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, Metrics]:
        return compiled(state, shard_batch(batch, setting.placement), observe)

    stack = contextlib.ExitStack()
    step: Step = sharded
    if profile:
        # Traces are written to a disk alone.
        folder = directory.path / "profile"
        step = Profiled(sharded, stack.enter_context(storage_of(folder).stage(folder)))
    try:
        run(
            state,
            step,
            setting.task.source(config.seed),
            steps=config.steps,
            cadence=cadence_of(config),
            evaluations=measured(setting),
            probe=probe,
            save=lambda state: checkpoints.save(int(state.step), state, {}),
            sink=sink,
            flops=count_flops(experiment, setting),
            peak_flops=peak_flops(list(setting.placement.mesh.devices.flat)),
        )
    except BaseException:
        # What stopped the run is what is told, not what of its maps could then no longer be written.
        with contextlib.suppress(Exception), stack:
            sink.close()
        raise
    with stack:
        sink.close()


def config_hash(experiment: Experiment) -> str:
    """The SHA-256 of the resolved config."""
    return hash_of(experiment.to_config())


def _greet(experiment: Experiment, setting: Setting, directory: RunDirectory, latest: int | None) -> None:
    parameters = count_parameters(setting.abstract.variables.params)
    mesh = setting.placement.mesh
    devices = mesh.devices.flat
    match latest:
        case None:
            what = f"training to step {experiment.run.steps}"
        case experiment.run.steps:
            what = f"complete at step {latest}: nothing to train"
        case _:
            what = f"resuming from step {latest} to step {experiment.run.steps}"
    several = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    print(
        f"{experiment.run.name}: {parameters:,} parameters on {mesh.size} x {devices[0].device_kind}{several}, {what}; "
        f"run directory {directory.path}",
        *left_out(setting.model, setting.task.evaluations),
        sep="\n",
        flush=True,
    )
