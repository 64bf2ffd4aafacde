"""One training step (losses, gradients, updates and averages), the same for every model and task."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from transformer.attention.capture import NOTHING_CAPTURED, Capture, CapturedAttention, fill_importance
from transformer.attention.importance import ImportanceGates, initial_gates
from transformer.config import UserError
from transformer.models.model import Model, Variables, leaves_by_path
from transformer.tasks.task import Batch, LossAux, Objective, StateView, Task
from transformer.training.initial_state import replace_trained, trained_parameters
from transformer.training.optimizer import LAYERS, Optimizer
from transformer.training.parameter_averages import ParameterAverage, update_average
from transformer.training.state import TrainState, cast_to_accumulation_dtype, derive_key
from transformer.training.update_guard import UpdateGuardConfig, guard_update

# The gradient of a loss with respect to the trained parameters, and to the gates of heads and branches.
Gradients = tuple[dict[str, Array], dict[str, ImportanceGates]]
# The denominator of each auxiliary loss: the number of examples, tokens ... that it is a mean over.
Counts = Mapping[str, Array]


class StepMetrics(NamedTuple):
    """The metrics of one step.

    Attributes:
        denominators: The counts of its batch (`Task.denominators`).
        values: Metrics that are means already.
        maps: The captured head statistics, by site.
    """

    denominators: dict[str, Array]
    values: dict[str, Array]
    maps: Mapping[str, CapturedAttention] = NOTHING_CAPTURED


class TrainStep(Protocol):
    """A function that makes one update."""

    def __call__(self, state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, StepMetrics]:
        """Make one update.

        Args:
            state: The training state; a jitted step donates it.
            batch: The training batch.
            observe: Whether to compute head statistics; may be traced.

        Returns:
            The next state, and the metrics of the step.
        """


def make_train_step(
    model: Model,
    task: Task,
    optimizers: Mapping[str, Optimizer],
    averages: Mapping[str, ParameterAverage],
    *,
    num_microbatches: int = 1,
    capture: Capture | None = None,
    update_guard: UpdateGuardConfig = UpdateGuardConfig(),  # noqa: B008 (frozen)
) -> TrainStep:
    """Return the step of a task on a model, to be jitted.

    Objectives are applied in turn, each to the parameters that the one before it has updated. With n microbatches the
    batch is split and the gradients of its parts are added. Each part reads the state and the `task_state` of the
    step's start, and every loss is divided by the totals of the whole batch, so that the result is that of the large
    batch. The model's auxiliary losses (`Aux.losses`) are added, each divided by its count over the whole batch.

    Args:
        model: The model.
        task: The task.
        optimizers: The optimizer of each objective, by name.
        averages: The averages of the parameters, by name.
        num_microbatches: The number of microbatches n.
        capture: The statistics of the training batch's own attention, computed in steps that observe, with the
            importance of its heads and branches; None for none.
        update_guard: Which updates are skipped.

    Returns:
        The step: (state, batch, observe) to (state, metrics).

    Raises:
        UserError: If a batch whose rows an objective compares would be split.
    """
    check_microbatches(task.objectives, num_microbatches)

    def step(state: TrainState, batch: Batch, observe: bool = False) -> tuple[TrainState, StepMetrics]:
        def key(name: str) -> Key[Array, ""]:
            return derive_key(state.key, state.step, name)

        observed = None if capture is None else dataclasses.replace(capture, observe=jnp.asarray(observe))
        view = StateView(
            model, state.variables, state.averages, state.task_state, state.step, train=True, capture=observed
        )
        batch, extra = task.prepare_batch(view, batch, key("prepare"))
        denominators = task.denominators(batch)
        view = view._replace(task_state=extra)
        optimizer_states: dict[str, Any] = {}
        values: dict[str, Array] = {}
        maps: dict[str, CapturedAttention] = {}
        for objective in task.objectives:
            optimizer = optimizers[objective.name]
            trained = trained_parameters(objective, optimizer, view.variables.params)
            gates = {} if capture is None else gates_of_objective(model, capture, trained)
            (gradients, gate_gradients), aux = _accumulate_gradients(
                view, objective, trained, gates, batch, denominators, key(objective.key_name), num_microbatches
            )
            hyper = state.hyperparameters[objective.name]
            updates, optimizer_states[objective.name] = optimizer.update(
                gradients, state.optimizers[objective.name], trained, state.step, hyper
            )
            params = replace_trained(view.variables.params, optax.apply_updates(trained, updates))
            view = view._replace(variables=Variables(params, aux.state), task_state=aux.task_state)
            prefix = "" if len(task.objectives) == 1 else f"{objective.name}/"
            metrics = {
                **aux.metrics,
                "learning_rate": optimizer.learning_rate(state.step, hyper),
                "gradient_norm": optax.tree.norm(gradients),
                "update_norm": optax.tree.norm(updates),
            }
            values |= {prefix + name: value for name, value in metrics.items()}
            captured = fill_importance(aux.maps, gate_gradients)
            maps |= {prefix + site: statistics for site, statistics in captured.items()}
        updated_state = state._replace(
            step=state.step + 1, variables=view.variables, optimizers=optimizer_states, task_state=view.task_state
        )
        state, values = guard_update(update_guard, state, updated_state, denominators, values)
        updated = values["skipped_updates"] == 0
        updated_averages = {
            name: update_average(average, state.averages[name], state.variables.params, state.step, updated)
            for name, average in averages.items()
        }
        return state._replace(averages=updated_averages), StepMetrics(dict(denominators), values, maps)

    return step


def check_microbatches(objectives: Sequence[Objective], num_microbatches: int) -> None:
    """Check that the losses of a task are sums over rows if its batches are to be split.

    Raises:
        UserError: If one is not: a microbatch would have another loss.
    """
    for objective in objectives:
        if num_microbatches > 1 and objective.compares_rows:
            raise UserError(
                f"config.num_microbatches={num_microbatches} would change the loss {objective.name!r}: "
                f"{objective.compares_rows}. Say config.num_microbatches=1; a smaller batch, more devices or "
                "config.model.remat save memory"
            )


def gates_of_objective(model: Model, capture: Capture, trained: Mapping[str, Array]) -> dict[str, ImportanceGates]:
    """Return the gates of the captured sites, or {} if the objective trains nothing in a stack of layers.

    Its backward pass would end above the layers, and the gates' gradient would need all of it.
    """
    axes = leaves_by_path(model.functional.axes(), lambda leaf: isinstance(leaf, tuple))
    if not any(LAYERS in axes[path] for path in trained):
        return {}
    return initial_gates(site for site in model.sites if site.name in capture.sites)


def _accumulate_gradients(
    view: StateView,
    objective: Objective,
    trained: dict[str, Array],
    gates: dict[str, ImportanceGates],
    batch: Batch,
    denominators: Mapping[str, Array],
    key: Key[Array, ""],
    num_microbatches: int,
) -> tuple[Gradients, LossAux]:
    """Compute the gradient of one objective over the whole batch, with respect to its parameters and the gates."""

    def gradient(batch: Batch, key: Key[Array, ""], counts: Counts | None) -> tuple[Gradients, LossAux]:
        def loss(trained: dict[str, Array], gates: dict[str, ImportanceGates]) -> tuple[Array, LossAux]:
            params = replace_trained(view.variables.params, trained)
            loss_view = view._replace(variables=view.variables._replace(params=params))
            if gates and view.capture is not None:
                loss_view = loss_view._replace(capture=dataclasses.replace(view.capture, gates=gates))
            return _add_auxiliary_losses(*objective.loss_fn(loss_view, batch, denominators, key), counts)

        gradients, aux = jax.grad(loss, argnums=(0, 1), has_aux=True)(trained, gates)
        return cast_to_accumulation_dtype(gradients), aux  # cast before microbatches are added and norms computed

    if num_microbatches == 1:
        return gradient(batch, key, None)

    def auxiliary_counts(batch: Batch, key: Key[Array, ""]) -> Counts:
        # The compiler removes everything in this pass that the counts do not need.
        _, aux = objective.loss_fn(view, batch, denominators, key)
        return {name: jnp.asarray(term.denominator, jnp.float32) for name, term in aux.losses.items()}

    microbatches = jax.tree.map(lambda x: split_microbatches(x, num_microbatches), dict(batch))
    keys = jax.random.split(key, num_microbatches)
    shapes, aux = jax.eval_shape(lambda: gradient(jax.tree.map(lambda x: x[0], microbatches), keys[0], None))
    counts: Counts = {}
    if aux.losses:
        counts_of_each = jax.lax.map(lambda micro: auxiliary_counts(*micro), (microbatches, keys))
        counts = jax.tree.map(jnp.sum, counts_of_each)

    def add(carry: Any, micro: tuple[Batch, Key[Array, ""]]) -> tuple[Any, Any]:
        microbatch, micro_key = micro
        gradients, aux = gradient(microbatch, micro_key, counts)
        added = jax.tree.map(jnp.add, carry, (gradients, aux.metrics, aux.maps))
        return added, (aux.state, aux.task_state, aux.task_state_weight)

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (shapes, aux.metrics, aux.maps))
    (gradients, metrics, maps), (states, task_states, weights) = jax.lax.scan(add, zeros, (microbatches, keys))
    # Every microbatch starts from the same state; the large batch's new state is the mean of theirs.
    return gradients, LossAux(_mean_of_states(states), _mean_of_states(task_states, weights), metrics, maps)


def _mean_of_states(states: Any, weights: Array | None = None) -> Any:
    """Return the mean over microbatches, in front, weighted by `weights` unless all are 0."""

    def mean(x: Array) -> Array:
        # Integers, such as a replayed seed, are not averaged: as floats they would lose their last digits.
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x[0]
        if weights is None:
            return jnp.mean(x, axis=0)
        shares = jnp.where(jnp.sum(weights) > 0, weights, 1).astype(x.dtype)
        return jnp.tensordot(shares, x, axes=1) / jnp.sum(shares)

    return jax.tree.map(mean, states)


def _add_auxiliary_losses(value: Array, aux: LossAux, counts: Counts | None) -> tuple[Array, LossAux]:
    """Add the model's auxiliary losses to the loss; for a microbatch, each divided by its entry of `counts`."""
    metrics = dict(aux.metrics)
    for name, term in aux.losses.items():
        mean = term.total / jnp.maximum(term.denominator if counts is None else counts[name], 1)
        value = value + term.weight * mean
        metrics[f"auxiliary/{name}"] = mean
    return value, aux._replace(metrics=metrics)


def split_microbatches(x: Array, parts: int) -> Array:
    """Cut an array of a batch into equal parts, [rows, ...] to [parts, rows / parts, ...].

    Raises:
        ValueError: If the rows do not divide evenly.
    """
    if x.shape[0] % parts:
        raise ValueError(f"a batch of {x.shape[0]} rows cannot be cut into num_microbatches={parts} equal parts")
    # Strided, so that each microbatch has rows of every device.
    return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)
