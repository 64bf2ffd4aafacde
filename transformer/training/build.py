"""Build the components of training (task, model, optimizers, placement) and compile the train step."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
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
from transformer.training.compiled_evaluation import evaluation_view
from transformer.training.config import ExperimentConfig
from transformer.training.initial_state import init_state, trained_parameters
from transformer.training.optimizer import (
    Optimizer,
    OptimizerAlgorithm,
    OptimizerConfig,
    check_trainable_patterns,
    count_frozen_entries,
    count_layers_above,
    hidden_matrices,
    hyperparameters,
    make_optimizer,
    width_rate_factors,
)
from transformer.training.partitioning import (
    add_family_axes,
    check_sequence_divides,
    make_placement,
    state_shardings,
    trace_with_placement,
)
from transformer.training.startup_checks import check_memory, check_task_fits_model, device_array_shapes, device_memory
from transformer.training.state import TrainState, accumulation_dtype, derive_key
from transformer.training.step import TrainStep, check_microbatches, make_train_step
from transformer.training.update_guard import init_gradient_norms

_logger = logging.getLogger(__name__)


class TrainingComponents(NamedTuple):
    """The components of training.

    Attributes:
        task: The task.
        model: The model.
        optimizers: The optimizer of each objective, by name.
        placement: The mesh and the placement of arrays on it.
        init_state: A function of a PRNG key to the initial training state; with variables as a second argument, these
            are taken.
        abstract_state: The training state as shapes with shardings.
    """

    task: Task
    model: Model
    optimizers: Mapping[str, Optimizer]
    placement: Placement
    init_state: Callable[..., TrainState]
    abstract_state: TrainState

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the task's classes; empty if it has none."""
        return self.task.interface.class_names

    @property
    def evaluations(self) -> list[Evaluation]:
        """The task's evaluations that apply to the model."""
        return [evaluation for evaluation in self.task.evaluations if evaluation.applies(self.model.sites)]


def build_components(
    experiment: ExperimentConfig, directory: Path, placement: Placement | None = None, *, synthetic: bool = False
) -> TrainingComponents:
    """Build the task with its data, the model, the optimizers and the placement of their state.

    Args:
        experiment: The checked config.
        directory: The run directory, for the task's files.
        placement: The placement; by default that of `config.sharding`.
        synthetic: Whether to use synthetic data of the same shapes instead of reading data, which suffices to compile.

    Raises:
        UserError: If data are missing or do not fit the model, the mesh fits neither, or microbatches would separate
            rows that an objective compares.
    """
    placement = make_placement(experiment.sharding) if placement is None else placement
    family = models.FAMILIES[models.family_name(experiment.model)]
    placement = add_family_axes(placement, family.logical_axes)
    parts = placement.num_shards("batch") * experiment.run.num_microbatches
    if synthetic:
        task = tasks.build_synthetic_task(experiment.task, parts)
    else:
        task = tasks.build_task(experiment.task, directory, parts)
    check_microbatches(task.objectives, experiment.run.num_microbatches)
    check_sequence_divides(task.interface, placement)
    if family.check_ring_attention_placement is not None:
        family.check_ring_attention_placement(experiment.model, placement)
    model = models.build(experiment.model, task.interface, experiment.precision)
    optimizers = {
        objective.name: _make_objective_optimizer(
            objective, experiment.optimizer_of(objective.name), experiment.run.steps, model, family.embedding_patterns
        )
        for objective in task.objectives
    }
    if unknown := sorted(set(experiment.optimizers) - set(optimizers)):
        raise UserError(
            f"config.optimizers.{unknown[0]} is of no objective of this task: it has {', '.join(optimizers)}"
        )

    def make(*arguments: Any) -> TrainState:
        state = init_state(model, task, optimizers, experiment.parameter_averages, *arguments)
        return state._replace(gradient_norms=init_gradient_norms(experiment.update_guard, optimizers))

    hyper = hyperparameters_by_objective(experiment, task)
    abstract = jax.eval_shape(make, hyper, jax.random.key(0), model.shapes())
    shardings = state_shardings(model, abstract, placement, experiment.sharding.max_replicated_mb)
    placed = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        abstract,
        shardings,
    )
    # Hyperparameters are arguments of this program too, so that runs that differ only in them share it.
    initialize = functools.partial(jit_for_one_call(make, placement, shardings), hyper)
    return TrainingComponents(task, model, optimizers, placement, initialize, placed)


def _make_objective_optimizer(
    objective: Objective, config: OptimizerConfig, steps: int, model: Model, embedding_patterns: Sequence[str]
) -> Optimizer:
    """Build the optimizer of an objective, after checking its patterns.

    Raises:
        UserError: If a pattern matches no parameter or nothing is left to train, `layer_decay` or `frozen_layers` is
            set for a model without such layers, or the maximal update parametrization is trained by SGD or Muon.
    """
    num_frozen_entries = count_frozen_entries(model, embedding_patterns, config.frozen_layers)
    check_trainable_patterns(config, objective, leaves_by_path(model.functional.shapes()), num_frozen_entries)
    layers_above = None if config.layer_decay == 1 else count_layers_above(model, embedding_patterns)
    if model.width_ratio != 1 and config.algorithm in (OptimizerAlgorithm.SGD, OptimizerAlgorithm.MUON):
        raise UserError(
            "config.model.base_width has a rule of learning rates for Adam alone: say config.optimizer.algorithm=adam "
            "or adamw"
        )
    matrices = hidden_matrices(model) if config.algorithm is OptimizerAlgorithm.MUON else None
    return make_optimizer(config, steps, layers_above, width_rate_factors(model), matrices, num_frozen_entries)


def run_startup_checks(
    experiment: ExperimentConfig, components: TrainingComponents, memory_bytes: float | None = None
) -> None:
    """Check on abstract shapes that task, model and device memory fit each other.

    Args:
        experiment: The checked config.
        components: The components.
        memory_bytes: The memory of a device; by default that of the devices of the placement.

    Raises:
        UserError: If task and model do not fit each other
            (`transformer.training.startup_checks.check_task_fits_model`), or the state does not fit into the memory of
            a device.
    """
    objectives, params = components.task.objectives, components.abstract_state.variables.params
    gradients = [
        trained_parameters(objective, components.optimizers[objective.name], params) for objective in objectives
    ]
    accumulates = experiment.run.num_microbatches > 1
    if accumulates:  # summed in a wider type than narrow parameters have
        gradients = jax.tree.map(lambda leaf: leaf.update(dtype=accumulation_dtype(leaf.dtype)), gradients)
    clips = any(experiment.optimizer_of(objective.name).clip_norm for objective in objectives)
    if not (accumulates or clips):
        gradients = []  # otherwise they all exist at once, where they are added or where their norm is computed
    device = components.placement.mesh.local_devices[0]
    shared = memory_bytes is None and device.platform == "cpu"
    check_memory(
        components.abstract_state,
        gradients,
        device_memory(device) if memory_bytes is None else memory_bytes,
        shared=shared,
    )
    batch = components.task.training_batches(experiment.run.seed)[0]
    trace_with_placement(components.placement, check_task_fits_model)(
        components.model,
        components.task,
        components.abstract_state,
        batch,
        head_statistics_capture(experiment, components.model),
    )


def hyperparameters_by_objective(experiment: ExperimentConfig, task: Task) -> dict[str, dict[str, np.float32]]:
    """Return the numbers of every objective's optimizer, as the training state holds them."""
    return {objective.name: hyperparameters(experiment.optimizer_of(objective.name)) for objective in task.objectives}


def jit_for_one_call(make: Callable[..., Any], placement: Placement, shardings: Any = None) -> Callable[..., Any]:
    """Jit a function that runs once, such as the initialization of a state.

    On CPUs it is compiled without optimization: optimizing the many small random draws of an initialization takes
    longer than compiling the training step, and saves nothing.

    Args:
        make: The function.
        placement: The placement for which it is traced.
        shardings: The shardings of its outputs.
    """
    on_cpu = placement.mesh.devices.flat[0].platform == "cpu"
    return jax.jit(
        trace_with_placement(placement, make),
        out_shardings=shardings,
        compiler_options={"xla_backend_optimization_level": 0} if on_cpu else None,
    )


def head_statistics_capture(experiment: ExperimentConfig, model: Model) -> Capture | None:
    """Return the capture of all head statistics of the training batches; None if they are not logged."""
    if not experiment.run.head_statistics_every:
        return None
    return Capture(tuple(site.name for site in model.sites), maps=False, statistics=tuple(STATISTICS.values()))


def build_train_step(
    experiment: ExperimentConfig, components: TrainingComponents, capture: Capture | None = None
) -> TrainStep:
    """Build the train step without compiling it.

    Args:
        experiment: The checked config.
        components: The components.
        capture: What to capture of the training batch; by default the statistics of every head, if they are logged. One
            program serves steps with and without them.
    """
    return make_train_step(
        components.model,
        components.task,
        components.optimizers,
        experiment.parameter_averages,
        num_microbatches=experiment.run.num_microbatches,
        capture=capture or head_statistics_capture(experiment, components.model),
        update_guard=experiment.update_guard,
    )


def make_jitted_train_step(
    experiment: ExperimentConfig, components: TrainingComponents, capture: Capture | None = None
) -> TrainStep:
    """Build the train step and jit it; it donates its state.

    Args:
        experiment: The checked config.
        components: The components.
        capture: What to capture of the training batch, as in `build_train_step`.
    """
    step = build_train_step(experiment, components, capture)
    # Explicit shardings: if the compiler placed the new state differently, the next step would recompile.
    shardings = jax.tree.map(lambda leaf: leaf.sharding, components.abstract_state)
    replicated = NamedSharding(components.placement.mesh, PartitionSpec())  # every process reads the metrics
    return jax.jit(
        trace_with_placement(components.placement, step), donate_argnums=0, out_shardings=(shardings, replicated)
    )


def abstract_model_inputs(components: TrainingComponents, batch: Batch) -> Mapping[str, Any]:
    """Return the shapes of the prepared batch, as the losses read it.

    Args:
        components: The components.
        batch: A batch, or its shapes.
    """

    def prepare(state: TrainState, batch: Batch) -> Batch:
        key = derive_key(state.key, state.step, "prepare")
        return components.task.prepare_batch(evaluation_view(components.model, state, "raw"), batch, key)[0]

    return jax.eval_shape(prepare, components.abstract_state, device_array_shapes(batch))


def flops_counter(components: TrainingComponents) -> Callable[[Batch], float | None]:
    """Return a function that counts the FLOPs of a train step over a batch, once for each batch shape.

    It returns None if they cannot be counted (`UncountableError`), which is logged once.
    """
    flops_by_shapes: dict[tuple[Any, ...], float | None] = {}

    def count(batch: Batch) -> float | None:
        shapes = tuple((name, array.shape) for name, array in sorted(batch.items()))
        if shapes not in flops_by_shapes:
            try:
                flops_by_shapes[shapes] = float(
                    training_flops(components.model, abstract_model_inputs(components, batch))
                )
            except UncountableError as error:
                if not flops_by_shapes:
                    _logger.warning(
                        "FLOPs per step and MFU are not logged, because the FLOPs cannot be counted: %s", error
                    )
                flops_by_shapes[shapes] = None
        return flops_by_shapes[shapes]

    return count
