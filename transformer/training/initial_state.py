"""Initialize the training state."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from transformer.models.model import Model, Variables, leaves_by_path, matches_any_pattern
from transformer.tasks.task import Objective, StateView, Task
from transformer.training.learning_rate import Hyperparameters
from transformer.training.optimizer import Optimizer
from transformer.training.parameter_averages import ParameterAverage, init_average
from transformer.training.state import TrainState, derive_key


def init_state(
    model: Model,
    task: Task,
    optimizers: Mapping[str, Optimizer],
    averages: Mapping[str, ParameterAverage],
    hyper: Mapping[str, Hyperparameters],
    key: Key[Array, ""],
    variables: Variables | None = None,
) -> TrainState:
    """Return the training state before the first step; pure, so that it can run under jit with output shardings.

    Args:
        model: The model.
        task: The task.
        optimizers: The optimizer of each objective, by name.
        averages: The averages of the parameters, by name.
        hyper: The numbers of each objective's optimizer.
        key: The run's PRNG key.
        variables: The initial variables; by default they are drawn with the key.

    Raises:
        UserError: If the task cannot train this model.
        ValueError: If an objective trains no parameter.
    """
    variables = model.init(derive_key(key, 0, "init")) if variables is None else variables
    average_states = {name: init_average(average, variables.params) for name, average in averages.items()}
    view = StateView(model, variables, average_states, {}, jnp.int32(0), train=True)
    return TrainState(
        step=jnp.int32(0),
        key=key,
        variables=variables,
        optimizers={
            objective.name: optimizers[objective.name].init(
                trained_parameters(objective, optimizers[objective.name], variables.params)
            )
            for objective in task.objectives
        },
        averages=average_states,
        task_state=task.init_task_state(view, derive_key(key, 0, "extra")),
        hyperparameters=jax.tree.map(
            jnp.float32, {objective.name: dict(hyper[objective.name]) for objective in task.objectives}
        ),
    )


def trained_parameters(objective: Objective, optimizer: Optimizer, params: Any) -> dict[str, Array]:
    """Return the parameters that an objective trains with its optimizer, by path; without the entries of frozen layers.

    Raises:
        ValueError: If its patterns match no trainable parameter.
    """
    trained = {
        path: _drop_first_entries(leaf, optimizer.num_frozen_entries.get(path, 0))
        for path, leaf in leaves_by_path(params).items()
        if matches_any_pattern(path, objective.trainable) and optimizer.is_trainable(path)
    }
    if not trained:
        raise ValueError(f"objective {objective.name!r} trainable={objective.trainable} matches none of the parameters")
    return trained


def replace_trained(params: Any, trained: Mapping[str, Array]) -> Any:
    """Replace parameters by those of `trained_parameters`; entries of frozen layers stay as they are."""

    def replace(path: Any, leaf: Any) -> Any:
        value = trained.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        if value is None or value.shape == leaf.shape:
            return leaf if value is None else value
        return jnp.concatenate([leaf[: leaf.shape[0] - value.shape[0]], value])

    return jax.tree_util.tree_map_with_path(replace, params)


def _drop_first_entries(leaf: Any, number: int) -> Any:
    if number and isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.update(shape=(leaf.shape[0] - number, *leaf.shape[1:]))
    return leaf[number:] if number else leaf
