"""What a step adds and who descends by what: a model's own losses, and an optimizer for each objective."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contracts import memory
from tests.contracts.toy_cases import toy
from transformer.config import UserError
from transformer.models.model import leaves_by_path
from transformer.tasks.task import StateView
from transformer.training.build import TrainingComponents, build_components, hyperparameters_by_objective
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.initial_state import init_state
from transformer.training.partitioning import single_device_placement
from transformer.training.state import TrainState
from transformer.training.step import make_train_step

RATE = 0.5


def experiment_of(config: dict[str, Any], **optimizers: dict[str, Any]) -> ExperimentConfig:
    plain = {"algorithm": "sgd", "beta1": 0.0, "learning_rate": RATE, "schedule": "constant", "warmup_steps": 0}
    return resolve_config({"name": "losses", "steps": 2, **config, "optimizer": plain, "optimizers": optimizers})


def first_state(experiment: ExperimentConfig, setting: TrainingComponents) -> TrainState:
    numbers = hyperparameters_by_objective(experiment, setting.task)
    make = functools.partial(init_state, setting.model, setting.task, setting.optimizers, {}, numbers)
    return jax.jit(make)(jax.random.key(3))


def moved(before: TrainState, after: TrainState) -> dict[str, np.ndarray]:
    old, new = leaves_by_path(before.variables.params), leaves_by_path(after.variables.params)
    return {path: np.asarray(new[path]) - np.asarray(old[path]) for path in old}


@pytest.mark.parametrize("num_microbatches", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_models_own_loss_is_a_mean_over_the_whole_update(num_microbatches: int, tmp_path: Path) -> None:
    """Micro-batches hold unlike numbers of real tokens: means of their own means would be another number."""
    experiment = experiment_of(toy("memory"))
    setting = build_components(experiment, tmp_path, single_device_placement())
    state, batch = first_state(experiment, setting), setting.task.training_batches(0)[0]
    real = (batch["symbols"] != memory.PAD).reshape(-1, 4, memory.LENGTH).sum((0, 2))
    assert len(set(real.tolist())) > 1

    def whole(params: Any) -> Any:
        view = StateView(setting.model, state.variables._replace(params=params), {}, {}, state.step, train=True)
        value, aux = setting.task.objectives[0].loss_fn(
            view, batch, setting.task.denominators(batch), jax.random.key(0)
        )
        return value + memory.WEIGHT * aux.losses["sharpness"].total / real.sum()

    gradients = leaves_by_path(jax.jit(jax.grad(whole))(state.variables.params))
    step = make_train_step(setting.model, setting.task, setting.optimizers, {}, num_microbatches=num_microbatches)
    after, metrics = jax.jit(step)(state, batch)
    for path, change in moved(state, after).items():
        np.testing.assert_allclose(change, -RATE * gradients[path], rtol=1e-4, atol=1e-7, err_msg=path)
    # Reported unweighted, beside the task's own loss.
    assert float(metrics.values["auxiliary/sharpness"]) == pytest.approx(np.log(memory.SLOTS), rel=0.5)


def test_each_objective_descends_by_its_own_optimizer(tmp_path: Path) -> None:
    experiment = experiment_of(toy("two_players", "players"), critic={"learning_rate": 0.01, "clip_norm": 0.1})
    assert experiment.optimizer_of("generator").learning_rate == RATE
    assert experiment.to_config()["optimizers"]["critic"]["learning_rate"] == 0.01
    setting = build_components(experiment, tmp_path, single_device_placement())
    state = first_state(experiment, setting)
    assert set(state.hyperparameters) == {"critic", "generator"}
    step = jax.jit(make_train_step(setting.model, setting.task, setting.optimizers, {}))
    after, metrics = step(state, setting.task.training_batches(0)[0])
    values = {name: float(value) for name, value in metrics.values.items()}
    assert values["critic/learning_rate"] == pytest.approx(0.01)
    assert values["generator/learning_rate"] == pytest.approx(RATE)
    changes = moved(state, after)
    for player, rate, clip in (("critic", 0.01, 0.1), ("generator", RATE, np.inf)):
        found = np.sqrt(sum(np.sum(change**2) for path, change in changes.items() if path.startswith(player)))
        assert found == pytest.approx(rate * min(values[f"{player}/gradient_norm"], clip), rel=1e-4)
    # The numbers are the state's: another rate of one player is no other program.
    hyper = {**state.hyperparameters, "critic": {**state.hyperparameters["critic"], "learning_rate": jnp.float32(0.02)}}
    _, quicker = step(state._replace(hyperparameters=hyper), setting.task.training_batches(0)[0])
    assert float(quicker.values["critic/learning_rate"]) == pytest.approx(0.02)
    assert step._cache_size() == 1


def test_an_optimizer_of_no_objective_is_refused(tmp_path: Path) -> None:
    experiment = experiment_of(toy("two_players", "players"), critics={"learning_rate": 0.01})
    with pytest.raises(UserError, match=r"config\.optimizers\.critics is of no objective of this task: it has crit"):
        build_components(experiment, tmp_path, single_device_placement())
    with pytest.raises(UserError, match=r"unknown key config\.optimizers\.critic\.rate"):
        experiment_of(toy("two_players", "players"), critic={"rate": 0.01})
