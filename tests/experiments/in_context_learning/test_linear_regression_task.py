"""The task of linear functions: what is fed and asked, its loss by hand, its report beside least squares."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments.in_context_learning.linear_functions import FunctionBatch, least_squares, sample_functions
from experiments.in_context_learning.linear_regression_task import (
    LinearRegression,
    LinearRegressionConfig,
    regression_report,
)
from transformer.config import UserError
from transformer.tasks.task import StateView


@pytest.fixture(scope="module")
def task() -> LinearRegression:
    return LinearRegression(
        LinearRegressionConfig(num_dimensions=3, batch_size=8, num_eval_examples=24, min_dimensions=1)
    )


def of_model(answers: Any) -> StateView:
    """A view of a model that answers this, whatever it reads but not ahead."""
    aux = SimpleNamespace(state={}, maps={}, losses={})
    model: Any = SimpleNamespace(apply=lambda variables, inputs, **options: (answers(inputs["vectors"]), aux))
    return StateView(model, None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]


def test_batches_are_of_seed_and_step_and_show_points_and_values_in_turn(task: LinearRegression) -> None:
    batch, again = task.training_batches(3)[7], task.training_batches(3)[7]
    np.testing.assert_array_equal(batch["vectors"], again["vectors"])
    assert all(
        (other["vectors"] != batch["vectors"]).any()
        for other in (task.training_batches(3)[8], task.training_batches(4)[7])
    )
    given = task.interface.inputs["vectors"]
    assert (batch["vectors"].shape, batch["vectors"].dtype) == (given.shape, given.dtype) == ((8, 14, 4), np.float32)
    np.testing.assert_array_equal(batch["vectors"][:, 1::2, 3], batch["shown"])
    # What is asked at x_k is nowhere in the prompt up to it.
    for point in range(7):
        assert not np.isin(batch["shown"][:, point], batch["vectors"][:, : 2 * point + 1]).any()
    labels = task.axis_labels(())
    assert [len(names) for names in labels.tokens["steps"]] == [14, 14]
    assert labels.tokens["steps"][0][:3] == ("x1", "y1", "x2")


def test_the_loss_is_the_mean_squared_error_of_the_next_value(task: LinearRegression) -> None:
    batch = task.training_batches(0)[0]
    view = of_model(lambda vectors: vectors[..., :1] * 2)
    loss, aux = jax.jit(lambda: task.objectives[0].loss_fn(view, batch, task.denominators(batch), None))()
    expected = np.mean((2 * batch["vectors"][:, ::2, 0] - batch["shown"]) ** 2)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(aux.metrics["loss"]) == pytest.approx(expected, rel=1e-5)


def test_evaluations_are_of_all_dimensions_and_measure_what_is_answered(task: LinearRegression) -> None:
    evaluation = task.evaluations[0]
    assert [(each.name, each.split, each.at_end) for each in task.evaluations] == [
        ("functions", "validation", False),
        ("functions", "test", True),
    ]
    assert all((batch["vectors"][:, ::2, :3] != 0).all() for batch in evaluation.batches)
    view = of_model(lambda vectors: vectors[..., :1] * 0)
    answers = jax.jit(lambda batch: evaluation.step(view, batch, None)[1]["predictions"])
    rows = [np.asarray(answers(batch)) for batch in evaluation.batches]
    scalars = evaluation.finish({}, {"predictions": np.concatenate(rows)}).scalars
    assert set(scalars) == {
        *(
            f"{name}_{known}"
            for name in ("squared_error", "least_squares_error", "bayes_optimal_error")
            for known in (0, 2, 3, 6)
        ),
        "zero_baseline_error",
        "error_over_least_squares",
    }
    # To say 0 is all that can be done behind no example.
    assert scalars["squared_error_0"] == scalars["least_squares_error_0"] == scalars["bayes_optimal_error_0"]
    assert scalars["bayes_optimal_error_6"] < scalars["least_squares_error_6"] < scalars["zero_baseline_error"]


def test_a_report_by_hand() -> None:
    functions = FunctionBatch(np.ones((2, 3, 1)), np.array([[2.0] * 3, [4.0] * 3]), np.array([[2.0, 4, 0], [4, 4, 0]]))
    answers = np.array([[1.0, 2, 2], [1, 2, 5]])
    scalars = regression_report(functions, answers, noise=1.0).scalars
    assert [scalars[f"squared_error_{known}"] for known in (0, 1, 2)] == [(1 + 9) / 2, (0 + 4) / 2, (0 + 1) / 2]
    # Means of what was shown: 3 and 4 behind two examples; ridge divides their sums by one more.
    assert scalars["least_squares_error_2"] == pytest.approx((1 + 0) / 2)
    assert scalars["bayes_optimal_error_2"] == pytest.approx((0 + (4 - 8 / 3) ** 2) / 2)
    assert scalars["zero_baseline_error"] == (4 + 16) / 2
    assert scalars["error_over_least_squares"] == pytest.approx(1)


def test_nothing_is_compared_with_least_squares_that_is_without_fault() -> None:
    functions = sample_functions(np.random.default_rng(0), 4, 7, 3, 0.0)
    scalars = regression_report(functions, functions.values * 1.01, 0.0).scalars
    assert scalars["least_squares_error_6"] < 1e-20
    assert "error_over_least_squares" not in scalars


def test_no_method_undercuts_the_least_error_on_the_whole() -> None:
    functions = sample_functions(np.random.default_rng(0), 3000, 7, 3, 1.0)
    scalars = regression_report(functions, least_squares(functions), 1.0).scalars
    assert scalars["error_over_least_squares"] == 1
    assert scalars["bayes_optimal_error_6"] < 0.9 * scalars["least_squares_error_6"]
    # The excess of least squares behind k examples of d dimensions is d / (k - d - 1).
    assert scalars["least_squares_error_6"] == pytest.approx(3 / (6 - 3 - 1), rel=0.15)


@pytest.mark.parametrize(
    "wrong",
    [{"num_dimensions": 0}, {"noise": -1.0}, {"min_dimensions": 9}, {"batch_size": 0}, {"num_eval_examples": 0}],
)
def test_unfit_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        LinearRegressionConfig(**wrong)
