"""An update that would do harm is not made: the state stays as it was to the last bit, and the batch is passed by."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.test_step import Line, Regression, batch_of, optimizers
from transformer.config import UserError
from transformer.models.model import Aux, Variables, leaves_by_path
from transformer.training.initial_state import init_state
from transformer.training.learning_rate import LearningRateSchedule
from transformer.training.optimizer import OptimizerAlgorithm, OptimizerConfig, hyperparameters
from transformer.training.parameter_averages import AverageKind, ParameterAverage
from transformer.training.state import TrainState
from transformer.training.step import make_train_step
from transformer.training.update_guard import (
    ConsecutiveSkips,
    TrainingDiverged,
    UpdateGuardConfig,
    describe_skip,
    init_gradient_norms,
)

ADAM = OptimizerConfig(OptimizerAlgorithm.ADAM, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0)
AVERAGES = {
    "slow": ParameterAverage(AverageKind.EXPONENTIAL, decay=0.5),
    "mean": ParameterAverage(AverageKind.MEAN, start=1, every=2, patterns=("line/kernel",)),
}
Batch = dict[str, np.ndarray]


class Counting(Line):
    """A line whose state is the mean input of the last batch."""

    def init(self, key: Any) -> Variables:
        return Variables(super().init(key).params, {"mean": jnp.float32(0)})

    def apply(self, variables: Variables, inputs: Any, **more: Any) -> tuple[Any, Aux]:
        y, aux = super().apply(variables, inputs, **more)
        return y, aux._replace(state={"mean": jnp.mean(jnp.asarray(inputs["x"]))})


class Trial:
    """Steps of one compiled program from one first state."""

    def __init__(
        self, config: OptimizerConfig = ADAM, update_guard: UpdateGuardConfig | None = None, num_microbatches: int = 1
    ):
        model, task, update_guard = Counting(), Regression(), update_guard or UpdateGuardConfig()
        made = optimizers(task, config)
        hyper = dict.fromkeys(made, hyperparameters(config))
        start = init_state(model, task, made, AVERAGES, hyper, jax.random.key(1))  # type: ignore[arg-type]
        self.state = start._replace(gradient_norms=init_gradient_norms(update_guard, made))
        step = make_train_step(
            model, task, made, AVERAGES, num_microbatches=num_microbatches, update_guard=update_guard
        )  # type: ignore[arg-type]
        self.step = jax.jit(step)

    def __call__(self, batch: Batch) -> dict[str, float]:
        self.state, metrics = self.step(self.state, batch)
        return {name: float(value) for name, value in metrics.values.items()}


MOVES = ("step", "averages/mean/line/kernel")  # in a step that is skipped


def leaves(state: TrainState, *but: str) -> dict[str, bytes]:
    plain = leaves_by_path(state._replace(key=jax.random.key_data(state.key)))
    return {path: np.asarray(leaf).tobytes() for path, leaf in plain.items() if path not in but}


def poisoned(number: float, place: str = "x") -> Batch:
    batch = batch_of(7)
    batch[place][0, 0] = number
    return batch


def hidden(number: float) -> Batch:
    """Padding that no loss sees, but the model's state does."""
    batch = batch_of(7)
    batch["x"][2, 5] = number
    return batch


def empty() -> Batch:
    return {**batch_of(7), "real": np.zeros_like(batch_of(7)["real"])}


def steep() -> Batch:
    """The loss is finite, and the square of the gradient is not."""
    batch = poisoned(1e15, "y")
    batch["x"][0, 0] = 1e8
    return batch


HARMS: dict[str, Callable[[], Batch]] = {
    "nan": lambda: poisoned(np.nan),
    "inf": lambda: poisoned(np.inf, "y"),
    "state": lambda: hidden(np.nan),
    "square": lambda: poisoned(1e30, "y"),  # its square is not finite
    "gradient": steep,
    "empty": empty,
}


@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize("harm", HARMS)
def test_a_harmful_batch_changes_nothing_and_the_next_goes_on_as_if_it_had_not_been(
    harm: str, num_microbatches: int
) -> None:
    trial = Trial(num_microbatches=num_microbatches)
    assert trial(batch_of(1))["skipped_updates"] == trial(batch_of(2))["skipped_updates"] == 0
    before = trial.state
    for count in range(1, 11):
        values = trial(HARMS[harm]())
        assert values["skipped_updates"] == 1
        assert leaves(trial.state, *MOVES) == leaves(before, *MOVES)
        assert int(trial.state.step) == int(before.step) + count
    if harm == "empty":
        assert values["loss"] == values["gradient_norm"] == values["update_norm"] == 0
    trial.state = trial.state._replace(step=before.step, averages=before.averages)
    assert trial(batch_of(3))["skipped_updates"] == 0
    after = trial.state
    trial.state = before
    trial(batch_of(3))
    assert leaves(after) == leaves(trial.state)


def test_an_update_that_is_not_finite_is_not_made_though_the_gradient_is() -> None:
    # Adam without an epsilon divides 0 by 0 where a gradient is exactly zero.
    zero = OptimizerConfig(OptimizerAlgorithm.ADAM, 0.1, LearningRateSchedule.CONSTANT, warmup_steps=0, epsilon=0.0)
    trial = Trial(zero)
    batch = batch_of(1)
    batch["x"][..., 0] = 0
    before = leaves(trial.state, "step")
    values = trial(batch)
    assert np.isfinite(values["gradient_norm"])
    assert values["skipped_updates"] == 1
    assert leaves(trial.state, "step") == before


# Muon's matrices are none of this model's parameters, all others of which AdamW trains.
@pytest.mark.parametrize("algorithm", [rule for rule in OptimizerAlgorithm if rule is not OptimizerAlgorithm.MUON])
def test_the_rate_of_an_update_is_the_one_that_is_told_whatever_was_skipped(algorithm: OptimizerAlgorithm) -> None:
    rate, steps = 0.1, 10  # as many as `optimizers` is told
    alone = Trial(OptimizerConfig(algorithm, 1.0, LearningRateSchedule.CONSTANT, warmup_steps=0))(batch_of(1))
    trial = Trial(OptimizerConfig(algorithm, rate, LearningRateSchedule.LINEAR, warmup_steps=0, final_lr_fraction=0.25))
    for _ in range(steps - 1):
        assert trial(poisoned(np.nan))["skipped_updates"] == 1
    values = trial(batch_of(1))
    assert values["learning_rate"] == pytest.approx(0.25 * rate)
    assert values["update_norm"] == pytest.approx(values["learning_rate"] * alone["update_norm"], rel=1e-5)


def test_a_mean_samples_the_parameters_as_a_skipped_step_leaves_them() -> None:
    trial, samples = Trial(), []
    for step in range(1, 10):
        skipped = step in (4, 7)  # of these the seventh is sampled: 3, 5, 7, 9
        assert trial(poisoned(np.nan) if skipped else batch_of(step))["skipped_updates"] == skipped
        kernel = np.asarray(trial.state.variables.params["line"]["kernel"], np.float64)
        samples += [kernel] if step >= 3 and step % 2 else []
        np.testing.assert_allclose(
            trial.state.averages["mean"]["line/kernel"], np.mean(samples or [kernel], axis=0), atol=1e-6
        )


def test_a_spike_is_passed_by_once_enough_updates_are_known() -> None:
    trial = Trial(update_guard=UpdateGuardConfig(spike_factor=5.0, spike_window=3))
    huge = batch_of(9)
    huge["y"] = huge["y"] + np.float32(1000)
    assert trial(huge)["skipped_updates"] == 0  # nothing is known yet
    for seed in (1, 2):
        assert trial(batch_of(seed))["skipped_updates"] == 0
    assert trial(huge)["skipped_updates"] == 1  # one spike among three does not move their median
    assert trial(batch_of(3))["skipped_updates"] == 0
    before = leaves(trial.state, *MOVES)
    assert trial(huge)["skipped_updates"] == 1
    assert leaves(trial.state, *MOVES) == before
    assert trial(batch_of(4))["skipped_updates"] == 0
    assert {path.split("/")[0] for path in leaves(Trial().state)} == {
        "step", "key", "variables", "optimizers", "averages", "task_state", "hyperparameters"
    }  # fmt: skip


def test_the_norms_behind_the_spike_guard_are_those_of_the_last_good_updates() -> None:
    window, norms = 4, []
    trial = Trial(update_guard=UpdateGuardConfig(spike_factor=5.0, spike_window=window))
    for seed in (1, 2, 0, 3, 4, 0, 0, 5, 6):  # 0 is a batch that is skipped
        values = trial(batch_of(seed) if seed else poisoned(np.nan))
        assert values["skipped_updates"] == (not seed)
        norms += [values["gradient_norm"]] if seed else []
        seen = np.asarray(trial.state.gradient_norms["fit"])
        np.testing.assert_array_equal(seen[seen > 0], np.float32(norms[: -window - 1 : -1]))  # the newest first
        if len(norms) == window:  # enough are known, though a step was skipped among them
            before, huge = trial.state, batch_of(9)
            huge["y"] = huge["y"] + np.float32(1000)
            assert trial(huge)["skipped_updates"] == 1
            trial.state = before


def test_patience_ends_with_steps_in_a_row_alone() -> None:
    patience, denominators = ConsecutiveSkips(3), {"tokens": np.float32(5)}

    def check(step: int, skipped: int) -> None:
        patience.check(step, denominators, {"loss": np.float32(np.nan), "skipped_updates": np.float32(skipped)})

    for step, skipped in enumerate((1, 1, 0, 1, 1), start=1):
        check(step, skipped)
    with pytest.raises(TrainingDiverged, match=r"steps 4 to 6, 3 in a row, made no update: loss is nan; lower") as end:
        check(6, 1)
    assert (end.value.first, end.value.step) == (4, 6)


@pytest.mark.parametrize(
    ("tokens", "values", "says"),
    [
        (5, {"loss": np.inf, "gradient_norm": 1.0}, "loss is inf; lower"),
        (5, {"loss": 1.0, "player/gradient_norm": np.nan}, "player/gradient_norm is nan"),
        (0, {"loss": 0.0, "gradient_norm": 0.0}, "all padding: it has no tokens"),
        (
            5,
            {"loss": 1.0, "gradient_norm": 123.456},
            r"gradient_norm is 123\.5, a spike by config\.update_guard\.spike_factor",
        ),
    ],
)
def test_why_a_step_was_skipped_is_told(tokens: int, values: Any, says: str) -> None:
    assert re.search(says, describe_skip({"tokens": np.float32(tokens)}, values))


@pytest.mark.parametrize(
    "wrong", [{"max_consecutive_skips": 0}, {"spike_window": 0}, {"spike_factor": 0.5}, {"spike_factor": -2.0}]
)
def test_numbers_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match=rf"config\.update_guard.*{next(iter(wrong))}"):
        UpdateGuardConfig(**wrong)
