"""Explain a training step whose loss or gradient is not finite: the activation or gradient where that begins."""

from typing import Any

import jax

from transformer.models.model import leaves_by_path
from transformer.models.non_finite_values import first_non_finite_value
from transformer.tasks.task import Batch, Objective, StateView
from transformer.training.build import TrainingComponents
from transformer.training.finite_checks import find_non_finite
from transformer.training.initial_state import replace_trained, trained_parameters
from transformer.training.partitioning import trace_with_placement
from transformer.training.state import TrainState, derive_key


def explain_non_finite_step(components: TrainingComponents, state: TrainState, batch: Batch) -> str | None:
    """Return in one line where a training step is not finite first; None if its losses and gradients are finite.

    The losses are those of the step, dropout included, over the whole batch and with the parameters before the step.

    Args:
        components: The components of the run.
        state: The state with which the step began.
        batch: The batch.
    """
    if (name := find_non_finite(leaves_by_path(state.variables.params))) is not None:
        return f"the parameter {name} is not finite before the step"
    task = components.task

    def loss(objective: Objective, params: Any, state: TrainState, batch: Batch) -> jax.Array:
        variables = state.variables._replace(params=replace_trained(state.variables.params, params))
        view = StateView(
            components.model, variables, state.averages, state.task_state, state.step, train=True, capture=None
        )
        prepared, task_state = task.prepare_batch(view, batch, derive_key(state.key, state.step, "prepare"))
        key = derive_key(state.key, state.step, objective.key_name)
        return objective.loss_fn(view._replace(task_state=task_state), prepared, task.denominators(prepared), key)[0]

    for objective in task.objectives:
        trained = trained_parameters(objective, components.optimizers[objective.name], state.variables.params)
        own_loss = trace_with_placement(components.placement, lambda *args, own=objective: loss(own, *args))
        if (value := first_non_finite_value(own_loss, trained, state, batch)) is not None:
            return f"the first activation that is not finite is {value}"
        total, gradients = jax.jit(jax.value_and_grad(own_loss))(trained, state, batch)
        if find_non_finite({"loss": total}) is not None:
            return f"all named activations are finite, and the loss {objective.name!r} of them is not"
        if (path := find_non_finite(gradients)) is not None:
            return f"the pass and its loss are finite, and the gradient of {path} is not"
    return None
