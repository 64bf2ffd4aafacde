"""The parts of an experiment (task, model, optimizers, placement) and the programs made of them."""

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.attention.capture import Capture
from transformer.attention.statistics import STATISTICS
from transformer.config import UserError
from transformer.costs.flops import UncountableError, training_flops
from transformer.logical_axes import Placement
from transformer.models import registry as models
from transformer.models.model import Model, leaves_by_path
from transformer.tasks import registry as tasks
from transformer.tasks.task import Batch, Evaluation, Objective, Task
from transformer.training.config import Experiment
from transformer.training.evaluate import view_of
from transformer.training.initial_state import init_state, trained_parameters
from transformer.training.optimizer import (
    Optimizer,
    OptimizerConfig,
    check_patterns,
    hyperparameters,
    layer_heights,
    make_optimizer,
)
from transformer.training.partitioning import (
    check_positions,
    make_placement,
    state_shardings,
    traced_on,
    with_family_axes,
)
from transformer.training.preflight import check_fit, check_memory, device_memory, shapes_of
from transformer.training.state import TrainState, key_for, sum_type
from transformer.training.step import Step, make_step
from transformer.training.update_guard import initial_norms

_logger = logging.getLogger(__name__)


class Assembly(NamedTuple):
    """The parts of an experiment, before any array but the data's exists.

    `initialize(key)` makes the first state, `initialize(key, variables)` from given instead of drawn variables.
    """

    task: Task
    model: Model
    optimizers: Mapping[str, Optimizer]
    placement: Placement
    initialize: Callable[..., TrainState]
    abstract: TrainState

    @property
    def evaluations(self) -> list[Evaluation]:
        """The task's evaluations that apply to the model."""
        return [each for each in self.task.evaluations if each.applies(self.model.sites)]


def assemble(
    experiment: Experiment, directory: Path, placement: Placement | None = None, *, synthetic: bool = False
) -> Assembly:
    """Open the data, build the model and place its state: by default by the config's `sharding`.

    With `synthetic` no data are read: the task has made-up data of the same shapes, enough to compile its programs.

    Raises:
        UserError: For data that is missing or does not fit the model, and for a mesh that does not fit either.
    """
    placement = make_placement(experiment.sharding) if placement is None else placement
    family = models.FAMILIES[models.name_of(experiment.model)]
    placement = with_family_axes(placement, family.logical_axes)
    parts = placement.parts("batch") * experiment.run.num_microbatches
    if synthetic:
        task = tasks.synthetic(experiment.task, parts)
    else:
        task = tasks.build(experiment.task, directory, parts)
    check_positions(task.interface, placement)
    if family.check_placement is not None:
        family.check_placement(experiment.model, placement)
    model = models.build(experiment.model, task.interface, experiment.precision)
    optimizers = {
        objective.name: _make_objective_optimizer(objective, experiment.optimizer_of(objective.name), experiment, model)
        for objective in task.objectives
    }
    if unknown := sorted(set(experiment.optimizers) - set(optimizers)):
        raise UserError(
            f"config.optimizers.{unknown[0]} is of no objective of this task: it has {', '.join(optimizers)}"
        )

    def make(*given: Any) -> TrainState:
        first = init_state(model, task, optimizers, experiment.averages, *given)
        return first._replace(norms=initial_norms(experiment.update_guard, optimizers))

    hyper = hyperparameters_of(experiment, task)
    abstract = jax.eval_shape(make, hyper, jax.random.key(0))
    shardings = state_shardings(model, abstract, placement, experiment.sharding.max_replicated_mb)
    placed = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        abstract,
        shardings,
    )
    # The numbers are arguments of this program as well: runs that differ in nothing else share it.
    initialize = functools.partial(compile_once(make, placement, shardings), hyper)
    return Assembly(task, model, optimizers, placement, initialize, placed)


def _make_objective_optimizer(
    objective: Objective, config: OptimizerConfig, experiment: Experiment, model: Model
) -> Optimizer:
    """Raise as `check_patterns` and `layer_heights`."""
    check_patterns(config, objective, leaves_by_path(model.functional.shapes()))
    front = models.FAMILIES[models.name_of(experiment.model)].embedding_patterns
    above = None if config.layer_decay == 1 else layer_heights(model, front)
    return make_optimizer(config, experiment.run.steps, above)


def check_before_compiling(experiment: Experiment, assembly: Assembly) -> None:
    """Check on abstract shapes that task and model fit each other, before anything is computed.

    Raises:
        UserError: As `transformer.training.preflight.check_fit`
        UserError: For a state that no device here has room for.
    """
    objectives, params = assembly.task.objectives, assembly.abstract.variables.params
    gradients = [trained_parameters(objective, assembly.optimizers[objective.name], params) for objective in objectives]
    accumulates = experiment.run.num_microbatches > 1
    if accumulates:  # summed in a wider type than narrow parameters have
        gradients = jax.tree.map(lambda leaf: leaf.update(dtype=sum_type(leaf.dtype)), gradients)
    clips = any(experiment.optimizer_of(objective.name).clip_norm for objective in objectives)
    if not (accumulates or clips):
        gradients = []  # else all exist at one time: where they are added up, and where their norm is taken
    device = assembly.placement.mesh.local_devices[0]
    check_memory(assembly.abstract, gradients, device_memory(device))
    batch = assembly.task.source(experiment.run.seed)[0]
    traced_on(assembly.placement, check_fit)(
        assembly.model, assembly.task, assembly.abstract, batch, head_statistics_request(experiment, assembly.model)
    )


def hyperparameters_of(experiment: Experiment, task: Task) -> dict[str, dict[str, np.float32]]:
    """The numbers of every objective's optimizer, as the training state holds them."""
    return {objective.name: hyperparameters(experiment.optimizer_of(objective.name)) for objective in task.objectives}


def compile_once(make: Callable[..., Any], placement: Placement, shardings: Any = None) -> Callable[..., Any]:
    """A jitted function for a program that runs a single time, such as the making of a state.

    On CPUs without compiler optimization: that of the many small random draws of an initialization takes longer than
    compiling the training step, and saves nothing.
    """
    on_cpu = placement.mesh.devices.flat[0].platform == "cpu"
    return jax.jit(
        traced_on(placement, make),
        out_shardings=shardings,
        compiler_options={"xla_backend_optimization_level": 0} if on_cpu else None,
    )


def head_statistics_request(experiment: Experiment, model: Model) -> Capture | None:
    """All statistics of every head of the training batches; None where `head_statistics_every` is 0."""
    if not experiment.run.head_statistics_every:
        return None
    return Capture(tuple(site.name for site in model.sites), maps=False, statistics=tuple(STATISTICS.values()))


def training_step(experiment: Experiment, assembly: Assembly, capture: Capture | None = None) -> Step:
    """The training step, not compiled.

    Where the run observes its heads, one program serves steps with and without; `capture` replaces the default, the
    statistics of every head.
    """
    return make_step(
        assembly.model,
        assembly.task,
        assembly.optimizers,
        experiment.averages,
        num_microbatches=experiment.run.num_microbatches,
        capture=capture or head_statistics_request(experiment, assembly.model),
        update_guard=experiment.update_guard,
    )


def compile_step(experiment: Experiment, assembly: Assembly, capture: Capture | None = None) -> Step:
    """The jitted `training_step`, which takes host batches and consumes its state."""
    step = training_step(experiment, assembly, capture)
    # Explicit: were the compiler free to place the new state otherwise, the next step would compile again.
    placed = jax.tree.map(lambda leaf: leaf.sharding, assembly.abstract)
    whole = NamedSharding(assembly.placement.mesh, PartitionSpec())  # every process reads the metrics
    return jax.jit(traced_on(assembly.placement, step), donate_argnums=0, out_shardings=(placed, whole))


def model_inputs(assembly: Assembly, batch: Batch) -> Mapping[str, Any]:
    """The shapes of what the losses give the model of a batch, or of its shapes: what the task prepares of it."""

    def prepare(state: TrainState, batch: Batch) -> Batch:
        key = key_for(state.key, state.step, "prepare")
        return assembly.task.prepare(view_of(assembly.model, state, "raw"), batch, key)[0]

    return jax.eval_shape(prepare, assembly.abstract, shapes_of(batch))


def flops_counter(assembly: Assembly) -> Callable[[Batch], float | None]:
    """A function that counts the FLOPs of a training step over a batch or its shapes, once for each of these.

    None where they cannot be counted (`UncountableError`), which is logged once.
    """
    known: dict[tuple[Any, ...], float | None] = {}

    def count(batch: Batch) -> float | None:
        shapes = tuple((name, array.shape) for name, array in sorted(batch.items()))
        if shapes not in known:
            try:
                known[shapes] = float(training_flops(assembly.model, model_inputs(assembly, batch)))
            except UncountableError as error:
                if not known:
                    _logger.warning("the FLOPs of a step, and so its utilization, are not known: %s", error)
                known[shapes] = None
        return known[shapes]

    return count
