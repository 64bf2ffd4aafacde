"""The key `z_loss` of every task that predicts tokens: a loss of its own beside the task's, and none without it."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.config import UserError
from transformer.tasks.task import StateView
from transformer.training.build import build_components
from transformer.training.config import resolve_config
from transformer.training.partitioning import single_device_placement
from transformer.training.step import make_train_step

SIZES = {"dropout": 0.0, "width": 8, "heads": 2, "feed_forward": 8, "max_length": 32}
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "language_modeling": ({"dataset": "repeated", "context_length": 8, "batch_size": 2}, {"family": "decoder"}),
    "masked_lm": ({"vocab_size": 32, "context_length": 16, "batch_size": 2}, {"family": "encoder"}),
    "permutation_lm": ({"vocab_size": 32, "context_length": 16, "batch_size": 2}, {"family": "xlnet"}),
    "translation": (
        {"vocab_size": 32, "bucket_lengths": (8,), "tokens_per_batch": 16},
        {"family": "encoder_decoder"},
    ),
}


def config(name: str, **task: Any) -> dict[str, Any]:
    values, model = TASKS[name]
    depths = {"encoder_layers": 1, "decoder_layers": 1} if name == "translation" else {"layers": 1}
    return {
        "name": "z",
        "steps": 1,
        "log_every": 1,
        "checkpoint_every": 1,
        "task": {"name": name, **values, **task},
        "model": {**model, **SIZES, **depths},
        "optimizer": {},
    }


@pytest.mark.parametrize("name", TASKS)
def test_a_task_that_predicts_tokens_adds_it_and_logs_it(name: str) -> None:
    experiment = resolve_config(config(name, z_loss=1e-3))
    parts = build_components(experiment, Path(), single_device_placement(), synthetic=True)
    step = make_train_step(parts.model, parts.task, parts.optimizers, {})
    batch = parts.task.training_batches(0)[0]
    _, metrics = jax.eval_shape(step, parts.abstract_state, batch)
    assert metrics.values["auxiliary/z_loss"].shape == ()
    plain = resolve_config(config(name))
    without = build_components(plain, Path(), single_device_placement(), synthetic=True)
    _, metrics = jax.eval_shape(
        make_train_step(without.model, without.task, without.optimizers, {}), parts.abstract_state, batch
    )
    assert "auxiliary/z_loss" not in metrics.values


def test_its_value_is_the_mean_over_predicted_tokens() -> None:
    parts = build_components(
        resolve_config(config("language_modeling", z_loss=1e-3)), Path(), single_device_placement(), synthetic=True
    )
    (objective,) = parts.task.objectives

    @jax.jit
    def compute(key: jax.Array) -> tuple[Any, ...]:
        variables = parts.model.init(key)
        view = StateView(parts.model, variables, {}, {}, jnp.int32(0), train=True)
        batch, _ = parts.task.prepare_batch(view, parts.task.training_batches(0)[0], key)
        logits, _ = parts.model.apply(variables, {"tokens": jnp.asarray(batch["tokens"])}, train=False)
        return *objective.loss_fn(view, batch, parts.task.denominators(batch), key), logits

    loss, aux, logits = compute(jax.random.key(0))
    log_z = np.log(np.exp(np.asarray(logits, np.float64)).sum(-1))
    added = aux.losses["z_loss"]
    assert float(added.weight) == pytest.approx(1e-3)
    assert float(added.total / added.denominator) == pytest.approx(float((log_z**2).mean()), rel=1e-5)
    assert float(aux.metrics["loss"]) == pytest.approx(float(loss))  # that of the task stays comparable


@pytest.mark.parametrize("name", ["classification", "image_classification", "experiments.graphs.task"])
def test_a_task_that_predicts_no_tokens_refuses_it_by_name(name: str) -> None:
    with pytest.raises(UserError, match=r"unknown key config\.task\.z_loss"):
        resolve_config({**config("masked_lm"), "task": {"name": name, "z_loss": 1e-4}})
