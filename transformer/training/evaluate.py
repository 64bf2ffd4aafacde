"""Evaluations, compiled once and run over all their batches."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer.models.contract import Model
from transformer.tasks.contract import Evaluation, Report, View
from transformer.training.averages import with_average
from transformer.training.state import TrainState, stream

Evaluate = Callable[[TrainState], Report]


def compile_evaluation(model: Model, evaluation: Evaluation) -> Evaluate:
    """A function from the training state to the evaluation's report; each batch shape is compiled once.

    Errors: ValueError when the evaluation wants an average that the run does not keep.
    """

    def view_of(state: TrainState) -> View:
        variables = state.variables
        if evaluation.parameters != "raw":
            if evaluation.parameters not in state.averages:
                raise ValueError(
                    f"evaluation {evaluation.name!r} wants the average {evaluation.parameters!r}; "
                    f"the run keeps {sorted(state.averages) or 'none'}"
                )
            average = state.averages[evaluation.parameters]
            variables = variables._replace(params=with_average(variables.params, average))
        return View(model, variables, state.averages, state.extra, state.step, train=False)

    @jax.jit
    def step(state: TrainState, batch: Any, number: int) -> tuple[Any, Any]:
        key = jax.random.fold_in(stream(state.key, state.step, evaluation.name), number)
        return evaluation.step(view_of(state), batch, key)

    def evaluate(state: TrainState) -> Report:
        # Optimisers stay out of the compiled program's arguments.
        state = state._replace(optimisers={})
        results = [
            jax.device_get(step(state, evaluation.batches[number], number))
            for number in range(len(evaluation.batches))
        ]
        sums = jax.tree.map(
            lambda *leaves: np.sum(np.asarray(leaves, np.float64), axis=0), *[sums for sums, _ in results]
        )
        rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[rows for _, rows in results])
        return evaluation.finish(sums, rows)

    return evaluate
