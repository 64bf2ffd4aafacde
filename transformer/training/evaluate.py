"""Compile evaluations, and the capture of attention maps on the probe batch."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.attention.capture import Capture, CapturedAttention
from transformer.logical_axes import Placement
from transformer.maps.capture_plan import CapturePlan, MapsConfig, StoredMaps, Tiers, plan_capture
from transformer.models.model import Model, replace_with_averaged
from transformer.runs.preemption import ProgressMonitor
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, EvaluationStep, StateView, Task
from transformer.training.background_compile import Program, distinct_batch_shapes
from transformer.training.partitioning import example_parallel_placement, shard_batch, with_placement
from transformer.training.state import TrainState, derive_key

CompiledStep = Callable[[TrainState, Batch, jax.Array], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class CompiledEvaluation:
    """An evaluation with its compiled step: a function from the training state to its report.

    Attributes:
        evaluation: The evaluation.
        step: The compiled step.
        placement: The placement of batches on devices.
        monitor: The monitor that is told of each batch.
    """

    evaluation: Evaluation
    step: CompiledStep
    placement: Placement
    monitor: ProgressMonitor = dataclasses.field(default_factory=ProgressMonitor)

    def __call__(self, state: TrainState) -> EvaluationReport:
        """Run the step over all batches.

        Raises:
            RunStopped: If the run is told to stop, between two batches.
        """
        # Optimizers stay out of the compiled program's arguments.
        state, batches = state.without_optimizers(), self.evaluation.batches
        key = derive_key(state.key, state.step, self.evaluation.name)
        results = []
        for number in range(len(batches)):
            self.monitor.begin(f"batch {number} of {self.evaluation.name} on {self.evaluation.split}")
            batch = shard_batch(batches[number], self.placement)
            results.append(jax.device_get(self.step(state, batch, jax.random.fold_in(key, number))))
        sums = jax.tree.map(
            lambda *leaves: np.sum(np.asarray(leaves, np.float64), axis=0), *[sums for sums, _ in results]
        )
        rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[rows for _, rows in results])
        return self.evaluation.finish(sums, rows)

    def programs(self, abstract: TrainState) -> Iterator[Program]:
        """Yield the program of each batch shape, to be compiled in the background.

        Args:
            abstract: The training state as shapes.
        """
        key = jax.eval_shape(lambda: jax.random.key(0))
        for batch in distinct_batch_shapes(self.evaluation.batches, 0, len(self.evaluation.batches), self.placement):
            yield Program(self.step, (abstract.without_optimizers(), batch, key))


def compile_evaluations(
    model: Model, evaluations: Sequence[Evaluation], placement: Placement
) -> list[CompiledEvaluation]:
    """Return a function from the training state to a report for each evaluation.

    Each batch shape is compiled once for all evaluations that share a step.

    Args:
        model: The model.
        evaluations: Evaluations that apply to the model's sites (`Evaluation.applies`).
        placement: The placement of batches on devices.

    Raises:
        ValueError: If an evaluation asks for an average that the run does not keep; raised when it is called.
    """
    compiled: dict[tuple, CompiledStep] = {}
    for evaluation in evaluations:
        key = (evaluation.step, evaluation.parameters)
        compiled[key] = compiled.get(key) or _compile_evaluation(model, placement, *key)
    return [CompiledEvaluation(each, compiled[each.step, each.parameters], placement) for each in evaluations]


def evaluation_view(model: Model, state: TrainState, parameters: str) -> StateView:
    """Return the view of a state outside of training.

    Args:
        model: The model.
        state: The training state.
        parameters: "raw", or the name of an average whose parameters replace the raw ones.
            `ExperimentConfig.eval_parameters` are those by which a run is judged.

    Raises:
        ValueError: If the run does not keep the average.
    """
    variables = state.variables
    if parameters != "raw":
        if parameters not in state.averages:
            raise ValueError(
                f"the average {parameters!r} is asked for; the run keeps {sorted(state.averages) or 'none'}"
            )
        variables = variables._replace(params=replace_with_averaged(variables.params, state.averages[parameters]))
    return StateView(model, variables, state.averages, state.extra, state.step, train=False)


def _compile_evaluation(model: Model, placement: Placement, step: EvaluationStep, parameters: str) -> CompiledStep:
    def measure(state: TrainState, batch: Batch, key: jax.Array) -> tuple[Any, Any]:
        return step(evaluation_view(model, state, parameters), batch, key)

    # Every process reads the complete results.
    return jax.jit(with_placement(placement, measure), out_shardings=NamedSharding(placement.mesh, PartitionSpec()))


class Probe(NamedTuple):
    """The capture of the probe batch's maps.

    Attributes:
        plan: Which maps are stored.
        run: A function from the training state to the maps by site.
    """

    plan: CapturePlan
    run: Callable[[TrainState], dict[str, StoredMaps]]


def compile_probe(
    model: Model,
    task: Task,
    abstract: TrainState,
    placement: Placement,
    *,
    config: MapsConfig,
    times: int,
    parameters: str,
    tiers: Tiers | None = None,
) -> Probe:
    """Compile the capture of the maps and statistics of every head on the probe batch.

    Examples and heads are sharded over the devices if they divide evenly; each device keeps the maps of its own.

    Args:
        model: The model.
        task: The task.
        abstract: The training state as shapes.
        placement: The placement on devices.
        config: The size and the budget of stored maps.
        times: How often maps are stored, which share the budget.
        parameters: "raw", or the name of the average by which the run is judged.
        tiers: The tiers of an existing map store, for a resumed run; None chooses those that `config` affords.
    """

    def look(state: TrainState, capture: Capture) -> Mapping[str, CapturedAttention]:
        return task.probe(
            evaluation_view(model, state, parameters), capture, derive_key(state.key, state.step, "probe")
        ).maps

    abstract = abstract.without_optimizers()
    labels = task.labels(model.sites).completed(model.sites)
    everything = Capture(tuple(site.name for site in model.sites))
    traced = jax.eval_shape(lambda state: look(state, everything), abstract)
    plan = plan_capture(traced, model.sites, labels, config, times, tiers)
    placed = example_parallel_placement(placement)

    def seen(state: TrainState) -> dict[str, StoredMaps]:
        return plan.stored_maps(look(state, plan.request()))

    def lies(kept: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(placed.mesh, placed.even_partition_spec(("batch", None, "heads"), kept.shape[:3]))

    lying = jax.tree.map(lies, jax.eval_shape(seen, abstract))
    if len({device.process_index for device in placed.mesh.devices.flat}) > 1:
        # The first process plots the statistics, for which it needs all examples.
        whole = NamedSharding(placed.mesh, PartitionSpec())
        lying = {site: kept._replace(statistics=dict.fromkeys(kept.statistics, whole)) for site, kept in lying.items()}
    probe = jax.jit(with_placement(placed, seen), out_shardings=lying)
    return Probe(plan, lambda state: probe(state.without_optimizers()))
