"""What is not finite in a step is named: a parameter, an activation with its layer, a loss or a gradient."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import small_run
from transformer.interpret.non_finite_step import explain_non_finite_step
from transformer.tasks.task import LossAux, Objective
from transformer.training import build, partitioning
from transformer.training.build import TrainingComponents, build_components
from transformer.training.config import resolve_config
from transformer.training.state import TrainState


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingComponents]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: partitioning.single_device_placement())
        yield build_components(resolve_config({**small_run.CONFIG, "name": "planted"}), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def state(components: TrainingComponents) -> TrainState:
    return components.init_state(jax.random.key(0))


@pytest.fixture(scope="module")
def batch(components: TrainingComponents) -> Any:
    return components.task.training_batches(0)[0]


def planted(state: TrainState, path: tuple[Any, ...], entry: tuple[int, ...], value: float) -> TrainState:
    """A state with one entry of a parameter set."""
    params = jax.tree.map(np.array, state.variables.params)
    leaf = params
    for name in path:
        leaf = leaf[name]
    leaf[entry] = value
    return state._replace(variables=state.variables._replace(params=params))


def with_loss(components: TrainingComponents, loss: Any) -> TrainingComponents:
    """The components with a task that has another loss of the same model and batch."""
    task = components.task
    (objective,) = task.objectives

    def loss_fn(view: Any, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        value, aux = objective.loss_fn(view, batch, denominators, key)
        return loss(value, view.variables.params), aux

    changed = SimpleNamespace(
        objectives=(Objective(objective.name, loss_fn, objective.trainable, objective.key_name),),
        prepare_batch=task.prepare_batch,
        denominators=task.denominators,
    )
    return components._replace(task=changed)  # type: ignore[arg-type]


def test_a_step_that_is_finite_has_no_explanation(
    components: TrainingComponents, state: TrainState, batch: Any
) -> None:
    assert explain_non_finite_step(components, state, batch) is None


def test_a_parameter_is_named_before_all(components: TrainingComponents, state: TrainState, batch: Any) -> None:
    bad = planted(state, ("layers", "feed_forward", "contract", "kernel"), (0, 0, 0), np.nan)
    found = explain_non_finite_step(components, bad, batch)
    assert found == "the parameter layers/feed_forward/contract/kernel is not finite before the step"


def test_an_overflow_is_named_with_its_layer(components: TrainingComponents, state: TrainState, batch: Any) -> None:
    last = len(state.variables.params["layers"]["attention"]["query"]["kernel"]) - 1
    bad = planted(state, ("layers", "attention", "query", "kernel"), (last, 0, 0, 0), 3e38)
    bad = planted(bad, ("layers", "attention", "query", "kernel"), (last, 1, 0, 0), -3e38)
    found = explain_non_finite_step(components, bad, batch)
    assert found is not None
    assert found.startswith(f"the first activation that is not finite is decoder/self/queries, layer {last} (example ")


def test_a_loss_and_a_gradient_are_told_apart(components: TrainingComponents, state: TrainState, batch: Any) -> None:
    def zero_of(params: Any) -> Any:
        return 0 * params["embedding"]["table"][0, 0]

    no_number = with_loss(components, lambda value, params: value + jnp.log(zero_of(params) - 1))
    assert "all named activations are finite, and the loss" in str(explain_non_finite_step(no_number, state, batch))
    no_slope = with_loss(components, lambda value, params: value + jnp.sqrt(zero_of(params)))
    found = explain_non_finite_step(no_slope, state, batch)
    assert found == "the pass and its loss are finite, and the gradient of embedding/table is not"
