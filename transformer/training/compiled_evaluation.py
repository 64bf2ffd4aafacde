"""Compile evaluations: functions from the training state to their reports."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.logical_axes import Placement
from transformer.models.model import Model, replace_with_averaged
from transformer.runs.preemption import ProgressMonitor
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, EvaluationStep, StateView
from transformer.training.background_compile import Program, distinct_batch_shapes
from transformer.training.partitioning import shard_batch, trace_with_placement
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
    monitor: ProgressMonitor

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
            self.monitor.begin_unit(f"batch {number} of {self.evaluation.name} on {self.evaluation.split}")
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
        for batch in distinct_batch_shapes(self.evaluation.batches, 0, len(self.evaluation.batches), self.placement):
            # The state's key has the sharding of the evaluation's: a call with that finds the program already traced.
            yield Program(self.step, (abstract.without_optimizers(), batch, abstract.key))


def compile_evaluations(
    model: Model, evaluations: Sequence[Evaluation], placement: Placement, monitor: ProgressMonitor | None = None
) -> list[CompiledEvaluation]:
    """Return a function from the training state to a report for each evaluation.

    Each batch shape is compiled once for all evaluations that share a step.

    Args:
        model: The model.
        evaluations: Evaluations that apply to the model's sites (`Evaluation.applies`).
        placement: The placement of batches on devices.
        monitor: The monitor that is told of each batch; by default one that nobody asks to stop.

    Raises:
        ValueError: If an evaluation asks for an average that the run does not keep; raised when it is called.
    """
    monitor = ProgressMonitor() if monitor is None else monitor
    steps: dict[tuple, CompiledStep] = {}
    compiled = []
    for evaluation in evaluations:
        key = (evaluation.step, evaluation.parameters)
        steps[key] = steps.get(key) or _compile_evaluation(model, placement, *key)
        compiled.append(CompiledEvaluation(evaluation, steps[key], placement, monitor))
    return compiled


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
    return StateView(model, variables, state.averages, state.task_state, state.step, train=False)


def _compile_evaluation(model: Model, placement: Placement, step: EvaluationStep, parameters: str) -> CompiledStep:
    def measure(state: TrainState, batch: Batch, key: jax.Array) -> tuple[Any, Any]:
        return step(evaluation_view(model, state, parameters), batch, key)

    # Every process reads the complete results.
    return jax.jit(
        trace_with_placement(placement, measure), out_shardings=NamedSharding(placement.mesh, PartitionSpec())
    )
