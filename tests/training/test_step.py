"""The step against NumPy: updates, norms, denominators, who trains what, and the streams of keys."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.models.model import Aux, Variables, leaves_by_path
from transformer.tasks.task import LossAux, Objective, StateView
from transformer.training.initial_state import init_state
from transformer.training.learning_rate import LearningRateSchedule
from transformer.training.optimizer import (
    OptimizerAlgorithm,
    OptimizerConfig,
    hyperparameters,
    make_optimizer,
)
from transformer.training.parameter_averages import AverageKind, ParameterAverage
from transformer.training.state import TrainState, derive_key
from transformer.training.step import StepMetrics, make_train_step

ROWS, LENGTH, WIDTH = 8, 6, 3


class Line:
    """y = x . w + b at every position."""

    sites = ()

    def init(self, key: Any) -> Variables:
        kernel = jax.random.normal(key, (WIDTH,))
        return Variables({"line": {"kernel": kernel, "bias": jnp.float32(0.5)}, "other": jnp.ones(2)}, {})

    def apply(self, variables: Variables, inputs: Mapping[str, Any], **_: Any) -> tuple[Any, Aux]:
        line = variables.params["line"]
        return inputs["x"] @ line["kernel"] + line["bias"], Aux({}, {}, variables.state)


@dataclasses.dataclass(frozen=True)
class Regression:
    """The mean square over the real tokens of the batch; `own_count` plants the fault of a microbatch's own mean."""

    trains: tuple[str, ...] = ("line/*",)
    own_count: bool = False

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (Objective("fit", self.loss, self.trains),)

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {"updates": jnp.int32(0)}

    def prepare_batch(self, view: StateView, batch: Any, key: Any) -> tuple[Any, Any]:
        return batch, view.task_state

    def denominators(self, batch: Any) -> dict[str, Any]:
        return {"tokens": jnp.sum(batch["real"]).astype(jnp.float32)}

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        y, aux = view.model.apply(view.variables, batch, train=view.train)
        count = jnp.sum(batch["real"]) if self.own_count else denominators["tokens"]
        loss = jnp.sum(jnp.where(batch["real"], jnp.square(y - batch["y"]), 0)) / count
        extra = {"updates": view.task_state["updates"] + 1}
        return loss, LossAux(aux.state, extra, {"loss": loss})


def batch_of(seed: int) -> dict[str, np.ndarray]:
    """Rows of very uneven token counts."""
    random = np.random.default_rng(seed)
    lengths = np.array([6, 6, 1, 1, 6, 1, 2, 5])[:, None]
    return {
        "x": random.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32),
        "y": random.normal(size=(ROWS, LENGTH)).astype(np.float32),
        "real": np.arange(LENGTH) < lengths,
    }


def gradient(w: np.ndarray, b: float, batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, float, float]:
    """The gradient and the loss in float64, by hand."""
    x, y, real = (batch[name].astype(np.float64) for name in ("x", "y", "real"))
    residual = (x @ w + b - y) * real
    return (
        2 * np.einsum("bt,bte->e", residual, x) / real.sum(),
        2 * residual.sum() / real.sum(),
        np.square(residual).sum() / real.sum(),
    )


def optimizers(task: Any, config: OptimizerConfig) -> dict[str, Any]:
    return {objective.name: make_optimizer(config, 10) for objective in task.objectives}


SGD = OptimizerConfig(OptimizerAlgorithm.SGD, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0, beta1=0.0)


def steps(
    task: Any,
    batches: list[Any],
    config: OptimizerConfig = SGD,
    num_microbatches: int = 1,
    model: Any = None,
    averages: Mapping[str, ParameterAverage] | None = None,
) -> tuple[TrainState, TrainState, list[StepMetrics]]:
    """The state before and after a step on each batch, and each step's metrics."""
    model, averages = model or Line(), averages or {}
    made = optimizers(task, config)
    start = init_state(model, task, made, averages, dict.fromkeys(made, hyperparameters(config)), jax.random.key(1))
    step = jax.jit(make_train_step(model, task, made, averages, num_microbatches=num_microbatches))
    state, found = start, []
    for batch in batches:
        state, metrics = step(state, batch)
        found.append(metrics)
    return start, state, found


def numpy_line(state: TrainState) -> tuple[np.ndarray, float]:
    line = state.variables.params["line"]
    return np.asarray(line["kernel"], np.float64), float(line["bias"])


def numbers(metrics: StepMetrics) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.values.items()}


def test_one_step_of_gradient_descent_is_numpys() -> None:
    batch = batch_of(0)
    start, state, (metrics,) = steps(Regression(), [batch])
    (w, b), (new_w, new_b) = numpy_line(start), numpy_line(state)
    of_w, of_b, loss = gradient(w, b, batch)
    np.testing.assert_allclose(new_w, w - 0.1 * of_w, atol=1e-6)
    assert new_b == pytest.approx(b - 0.1 * of_b, abs=1e-6)
    norm = np.sqrt(np.square(of_w).sum() + of_b**2)
    expected = {"loss": loss, "gradient_norm": norm, "update_norm": 0.1 * norm, "learning_rate": 0.1}
    assert numbers(metrics) == pytest.approx({**expected, "skipped_updates": 0}, rel=1e-5)
    assert metrics.denominators == {"tokens": batch["real"].sum()}
    assert int(state.step) == 1


def test_three_steps_of_adam_are_numpys() -> None:
    beta1, beta2, epsilon, rate = 0.9, 0.98, 1e-9, 0.01
    config = OptimizerConfig(
        OptimizerAlgorithm.ADAM,
        rate,
        LearningRateSchedule.CONSTANT,
        warmup_steps=0,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
    )
    batches = [batch_of(seed) for seed in range(3)]
    start, state, found = steps(Regression(), batches, config)
    w, b = numpy_line(start)
    parameters, first, second = np.array([*w, b]), np.zeros(WIDTH + 1), np.zeros(WIDTH + 1)
    for t, (batch, metrics) in enumerate(zip(batches, found, strict=True), start=1):
        of_w, of_b, _ = gradient(parameters[:-1], parameters[-1], batch)
        gradients = np.array([*of_w, of_b])
        first = beta1 * first + (1 - beta1) * gradients
        second = beta2 * second + (1 - beta2) * gradients**2
        update = rate * (first / (1 - beta1**t)) / (np.sqrt(second / (1 - beta2**t)) + epsilon)
        parameters = parameters - update
        assert float(metrics.values["update_norm"]) == pytest.approx(np.linalg.norm(update), rel=1e-4)
    new_w, new_b = numpy_line(state)
    np.testing.assert_allclose([*new_w, new_b], parameters, atol=2e-6)


def test_the_reported_learning_rate_is_that_of_the_update() -> None:
    rising = dataclasses.replace(SGD, warmup_steps=4)
    _, _, found = steps(Regression(), [batch_of(0), batch_of(1)], rising)
    for number, values in enumerate(map(numbers, found), start=1):
        assert values["learning_rate"] == pytest.approx(0.1 * number / 4)
        assert values["update_norm"] == pytest.approx(values["learning_rate"] * values["gradient_norm"], rel=1e-5)


def test_microbatches_of_uneven_token_counts_make_the_large_batch() -> None:
    batches = [batch_of(0), batch_of(1)]
    _, large, of_large = steps(Regression(), batches)
    _, cut, of_cut = steps(Regression(), batches, num_microbatches=4)
    for one, other in zip(jax.tree.leaves(large.variables), jax.tree.leaves(cut.variables), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    for one, other in zip(of_large, of_cut, strict=True):
        assert numbers(other) == pytest.approx(numbers(one), rel=1e-5)
        assert other.denominators == one.denominators


class Half(Line):
    """The line through zero, in bfloat16."""

    def init(self, key: Any) -> Variables:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.bfloat16), super().init(key))


def test_gradients_of_bfloat16_parameters_add_up_in_float32() -> None:
    # Of the bias alone: 256 from the first row, 1 from each other, where 256 + 1 is 256 in bfloat16.
    of_rows = np.array([256] + [1] * (ROWS - 1), np.float32)
    y = np.broadcast_to(-of_rows[:, None] * ROWS / 2, (ROWS, LENGTH))
    batch = {"x": np.zeros((ROWS, LENGTH, WIDTH), np.float32), "y": y, "real": np.ones((ROWS, LENGTH), bool)}
    _, state, (metrics,) = steps(Regression(), [batch], num_microbatches=ROWS, model=Half())
    assert float(metrics.values["gradient_norm"]) == of_rows.sum()
    bias = state.variables.params["line"]["bias"]
    assert bias.dtype == jnp.bfloat16
    assert bias == jnp.bfloat16(-0.1 * of_rows.sum())


def test_a_mean_over_each_micro_batch_would_be_seen() -> None:
    batches = [batch_of(0)]
    _, large, _ = steps(Regression(), batches)
    _, cut, _ = steps(Regression(own_count=True), batches, num_microbatches=4)
    assert np.abs(numpy_line(large)[0] - numpy_line(cut)[0]).max() > 1e-2


def test_every_micro_batch_starts_from_the_steps_extra() -> None:
    _, state, _ = steps(Regression(), [batch_of(0), batch_of(1)], num_microbatches=4)
    assert int(state.task_state["updates"]) == 2


class Averaging(Regression):
    """The regression with a mean over the real tokens in its extra, which are unevenly many in microbatches."""

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {**super().init_task_state(view, key), "mean": jnp.float32(2)}

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        loss, aux = super().loss(view, batch, denominators, key)
        count = jnp.sum(batch["real"])
        mean = jnp.sum(jnp.where(batch["real"], batch["y"], 0)) / jnp.maximum(count, 1)
        extra = {**aux.task_state, "mean": 0.9 * view.task_state["mean"] + 0.1 * mean}
        return loss, aux._replace(task_state=extra, task_state_weight=count)


@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_a_mean_in_the_extra_is_that_of_the_large_batch(num_microbatches: int) -> None:
    batch = batch_of(0)
    _, state, _ = steps(Averaging(), [batch], num_microbatches=num_microbatches)
    expected = 0.9 * 2 + 0.1 * batch["y"][batch["real"]].mean(dtype=np.float64)
    assert float(state.task_state["mean"]) == pytest.approx(expected, rel=1e-6)
    nothing = {**batch, "real": np.zeros_like(batch["real"])}
    _, state, _ = steps(Averaging(), [nothing], num_microbatches=num_microbatches)
    assert float(state.task_state["mean"]) in (2, pytest.approx(0.9 * 2))  # the guard skips an empty batch


class Replaying(Regression):
    """The regression with whole numbers in its extra that float32 does not have."""

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {**super().init_task_state(view, key), "seeds": jnp.array([2**32 - 5, 2**24 + 1], jnp.uint32)}

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        loss, aux = super().loss(view, batch, denominators, key)
        return loss, aux._replace(task_state={**aux.task_state, "seeds": view.task_state["seeds"]})


def test_whole_numbers_of_the_extra_pass_through_microbatches_to_the_last_bit() -> None:
    _, state, _ = steps(Replaying(), [batch_of(0)], num_microbatches=4)
    np.testing.assert_array_equal(state.task_state["seeds"], np.array([2**32 - 5, 2**24 + 1], np.uint32))
    assert int(state.task_state["updates"]) == 1


class Drawing(Regression):
    """The regression with a draw by the loss's key, and its square, so that sums of them tell equal draws."""

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        loss, aux = super().loss(view, batch, denominators, key)
        draw = jax.random.uniform(key)
        return loss, aux._replace(metrics={**aux.metrics, "draw": draw, "square": jnp.square(draw)})


def test_every_micro_batch_draws_by_a_key_of_its_own() -> None:
    _, _, (metrics,) = steps(Drawing(), [batch_of(0)], num_microbatches=4)
    sums = numbers(metrics)
    # Of four equal draws the two would be one number.
    assert 4 * sums["square"] > 1.01 * sums["draw"] ** 2


class Multiplying(Regression):
    """The regression with the product of the first and the last row's number, which tells who shares a microbatch."""

    def loss(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        loss, aux = super().loss(view, batch, denominators, key)
        return loss, aux._replace(metrics={**aux.metrics, "product": batch["number"][0] * batch["number"][-1]})


def test_every_micro_batch_has_rows_of_every_part_of_the_batch() -> None:
    batch = {**batch_of(0), "number": np.arange(ROWS, dtype=np.float32)}
    _, _, (metrics,) = steps(Multiplying(), [batch], num_microbatches=4)
    # Rows 0 and 4, 1 and 5 ...: of two devices with half of the rows each, both have one of every microbatch.
    assert numbers(metrics)["product"] == sum(row * (row + 4) for row in range(4))


def test_a_batch_that_cannot_be_cut_says_so() -> None:
    with pytest.raises(ValueError, match="8 rows cannot be cut into num_microbatches=3"):
        steps(Regression(), [batch_of(0)], num_microbatches=3)


class KeyedLine(Line):
    """The line, whose state is the key that it was drawn by."""

    def init(self, key: Any) -> Variables:
        return super().init(key)._replace(state={"key": jax.random.key_data(key)})


class KeyedRegression(Regression):
    """The regression, whose extra is the key that it may be drawn by."""

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {"key": jax.random.key_data(key)}


def test_the_first_task_state_is_drawn_by_another_key_than_the_parameters() -> None:
    made = optimizers(KeyedRegression(), SGD)
    hyper = dict.fromkeys(made, hyperparameters(SGD))
    state = init_state(KeyedLine(), KeyedRegression(), made, {}, hyper, jax.random.key(1))  # type: ignore[arg-type]
    assert (state.variables.state["key"] != state.task_state["key"]).any()


def test_what_no_objective_trains_keeps_its_bits() -> None:
    start, state, _ = steps(
        Regression(trains=("line/kernel",)), [batch_of(0)], averages={"mean": ParameterAverage(AverageKind.MEAN)}
    )
    before, after = leaves_by_path(start.variables.params), leaves_by_path(state.variables.params)
    changed = {path for path in before if np.asarray(before[path]).tobytes() != np.asarray(after[path]).tobytes()}
    assert changed == {"line/kernel"}
    assert set(leaves_by_path(state.optimizers)) == set(leaves_by_path(start.optimizers))
    assert not any("bias" in path or "other" in path for path in leaves_by_path(state.optimizers))
    assert {path: np.asarray(leaf).tobytes() for path, leaf in state.averages["mean"].items()} == {
        path: np.asarray(leaf).tobytes() for path, leaf in after.items()
    }


def test_a_pattern_that_matches_no_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'fit' trainable=\('lines/\*',\) matches none"):
        steps(Regression(trains=("lines/*",)), [])


class Pair:
    """Two numbers and a state that counts the losses that were taken."""

    sites = ()

    def init(self, key: Any) -> Variables:
        return Variables({"a": {"x": jnp.float32(1)}, "b": {"x": jnp.float32(2)}}, {"losses": jnp.int32(0)})


class Chase:
    """The first objective pulls a toward 10, the second b toward a; both read the prepared extra."""

    def __init__(self) -> None:
        self.objectives = (Objective("first", self.first, ("a/*",)), Objective("second", self.second, ("b/*",)))

    def init_task_state(self, view: StateView, key: Any) -> dict[str, Any]:
        return {"prepared": jnp.int32(0), "losses": jnp.int32(0)}

    def prepare_batch(self, view: StateView, batch: Any, key: Any) -> tuple[Any, Any]:
        extra = {**view.task_state, "prepared": view.task_state["prepared"] + 1}
        return {"target": batch["target"] * 10, "draw": jax.random.uniform(key, batch["target"].shape)}, extra

    def denominators(self, batch: Any) -> dict[str, Any]:
        return {"weight": jnp.sum(batch["target"])}

    def first(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        loss = jnp.sum(0.5 * jnp.square(view.variables.params["a"]["x"] - batch["target"])) / len(batch["target"])
        return loss, self.aux(view, {"loss": loss, "draw": batch["draw"][0]})

    def second(self, view: StateView, batch: Any, denominators: Any, key: Any) -> tuple[Any, LossAux]:
        a, b = view.variables.params["a"]["x"], view.variables.params["b"]["x"]
        loss = 0.5 * jnp.square(b - a)
        return loss, self.aux(view, {"loss": loss, "draw": jax.random.uniform(key)})

    def aux(self, view: StateView, metrics: Any) -> LossAux:
        state = {"losses": view.variables.state["losses"] + 1}
        return LossAux(state, {**view.task_state, "losses": view.task_state["losses"] + 1}, metrics)


def test_objectives_take_turns_each_on_what_the_one_before_left() -> None:
    _, state, (metrics,) = steps(Chase(), [{"target": jnp.ones(4)}], model=Pair())
    params = state.variables.params
    assert float(params["a"]["x"]) == pytest.approx(1 + 0.1 * 9)
    # b = 2 is pulled toward the new a = 1.9, not the old 1.
    assert float(params["b"]["x"]) == pytest.approx(2 + 0.1 * (1.9 - 2))
    assert int(state.variables.state["losses"]) == 2
    assert {name: int(value) for name, value in state.task_state.items()} == {"prepared": 1, "losses": 2}
    assert float(metrics.denominators["weight"]) == 40  # of the prepared batch
    names = {"loss", "draw", "gradient_norm", "update_norm", "learning_rate"}
    own = {f"{objective}/{name}" for objective in ("first", "second") for name in names}
    assert set(metrics.values) == {*own, "skipped_updates"}


def test_each_purpose_and_step_has_its_own_key() -> None:
    key = jax.random.key(3)
    drawn = {
        (step, name): jax.random.key_data(derive_key(key, step, name)).tobytes()
        for step in (0, 1, 2)
        for name in ("prepare", "first", "second")
    }
    assert len(set(drawn.values())) == 9
    again = jax.jit(lambda step: derive_key(key, step, "first"))(1)  # a traced step gives the same key
    assert jax.random.key_data(again).tobytes() == drawn[1, "first"]
    assert jax.random.key_data(derive_key(jax.random.key(4), 1, "first")).tobytes() != drawn[1, "first"]


def test_a_steps_draws_depend_on_the_step_and_the_purpose_alone() -> None:
    batch = {"target": jnp.ones(4)}
    start, _, found = steps(Chase(), [batch, batch], model=Pair())
    draws = [float(metrics.values[f"{name}/draw"]) for metrics in found for name in ("first", "second")]
    assert len(set(draws)) == 4
    for step, metrics in enumerate(found):
        key = derive_key(start.key, step, "second")
        assert float(metrics.values["second/draw"]) == pytest.approx(float(jax.random.uniform(key)))
        # What is drawn for the data tells nothing of what a loss draws.
        prepared = jax.random.uniform(derive_key(start.key, step, "prepare"), batch["target"].shape)
        assert float(metrics.values["first/draw"]) == pytest.approx(float(prepared[0]))
