"""A task that draws its examples: what the base makes of `draw_batch` and `loss_sums`."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.data.batches import TEST_SEED, VALIDATION_SEED, first_batches
from transformer.models.model import Aux
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.task import StateView


@dataclasses.dataclass(frozen=True)
class NumbersConfig:
    batch_size: int = 4
    num_eval_examples: int = 9
    num_probe_examples: int = 3


class Numbers(GeneratedTask):
    """The model returns its input, and the loss is the sum of the numbers."""

    denominator = "numbers"

    def __init__(self, rows_multiple: int = 1):
        config = NumbersConfig()
        interface = TaskInterface({"x": InputSpec((config.batch_size, 2), jnp.float32)}, {})
        super().__init__(config, interface, "sum", rows_multiple, key_name="older")

    def draw_batch(self, random):
        return {"x": random.integers(0, 9, (4, 2)).astype(np.float32), "labels": np.arange(4)}

    def denominators(self, batch):
        return {"numbers": jnp.float32(np.prod(batch["x"].shape))}

    def loss_sums(self, view, batch, key):
        x, aux = self.apply_model(view, batch, key)
        return {"loss": jnp.sum(x), "count": jnp.float32(len(batch["labels"]))}, aux

    def axis_labels(self, sites):
        return AxisLabels({}, ())


class Identity:
    def apply(self, variables, inputs, *, train, key, capture):
        assert set(inputs) == {"x"}
        return inputs["x"], Aux({}, {}, {})


@pytest.fixture
def view() -> StateView:
    variables = SimpleNamespace()
    return StateView(Identity(), variables, {}, {"kept": 1}, jnp.int32(0), train=True)  # type: ignore[arg-type]


def test_the_loss_and_metrics_are_sums_by_the_denominator(view: StateView) -> None:
    task = Numbers()
    (objective,) = task.objectives
    assert (objective.name, objective.key_name) == ("sum", "older")
    batch = task.training_batches(3)[0]
    loss, aux = objective.loss_fn(view, batch, {"numbers": jnp.float32(16)}, jax.random.key(0))
    assert loss == batch["x"].sum() / 16
    assert aux.metrics == {"loss": loss, "count": 0.25}
    assert aux.task_state == {"kept": 1}


def test_evaluations_are_means_over_held_out_batches(view: StateView) -> None:
    task = Numbers()
    assert [(each.name, each.split, each.at_end) for each in task.evaluations] == [
        ("sum", "validation", False),
        ("sum", "test", True),
    ]
    for evaluation, seed in zip(task.evaluations, (VALIDATION_SEED, TEST_SEED), strict=True):
        held_out = first_batches(task.training_batches(seed), 9, 4)
        assert len(held_out) == len(evaluation.batches) == 3
        np.testing.assert_array_equal([batch["x"] for batch in evaluation.batches], [batch["x"] for batch in held_out])
    sums, rows = evaluation.step(view, held_out[0], jax.random.key(0))
    assert evaluation.finish(sums, rows).scalars == {"loss": sums["loss"] / 8, "count": 0.5}


class Rows(Numbers):
    """One metric is by row, and not by number."""

    metric_denominators = {"largest": "rows"}  # noqa: RUF012

    def denominators(self, batch):
        real_rows = jnp.asarray(batch["labels"]) > 0
        return {**super().denominators(batch), "rows": jnp.sum(real_rows).astype(jnp.float32)}

    def loss_sums(self, view, batch, key):
        sums, aux = super().loss_sums(view, batch, key)
        return {**sums, "largest": jnp.sum(jnp.max(batch["x"], axis=1) * (batch["labels"] > 0))}, aux


def test_a_metric_may_have_a_denominator_of_its_own(view: StateView) -> None:
    task = Rows()
    batch = task.training_batches(3)[0]
    (objective,) = task.objectives
    largest = batch["x"][1:].max(axis=1).sum()
    counts = {"numbers": jnp.float32(16), "rows": jnp.float32(6)}  # of two microbatches
    _, aux = objective.loss_fn(view, batch, counts, jax.random.key(0))
    assert aux.metrics == {"loss": batch["x"].sum() / 16, "count": 0.25, "largest": pytest.approx(largest / 6)}
    empty = {**batch, "labels": np.zeros(4)}
    _, aux = objective.loss_fn(view, empty, {**counts, "rows": jnp.float32(0)}, jax.random.key(0))
    assert aux.metrics["largest"] == 0
    evaluation = task.evaluations[0]
    sums, rows = evaluation.step(view, batch, jax.random.key(0))
    assert evaluation.finish(sums, rows).scalars == {
        "loss": batch["x"].sum() / 8,
        "count": 0.5,
        "largest": pytest.approx(largest / 3),
    }


def test_the_probe_is_the_inputs_of_the_first_examples() -> None:
    task = Numbers()
    assert {name: len(values) for name, values in task.probe_examples.items()} == {"x": 3, "labels": 3}
    assert set(task.probe_batch) == {"x"}


def test_a_batch_that_devices_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=4"):
        Numbers(rows_multiple=3)
