"""The task of kernel regression: its data, its leave-one-out loss by hand, and its report."""

import dataclasses
import statistics
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments.kernel_regression.data import (
    BANDWIDTHS,
    DataSets,
    best_bandwidth,
    gaussian_regression,
    leave_one_out_error,
    sample_data_sets,
    target_function,
)
from experiments.kernel_regression.model import FAMILY, KernelRegressionConfig
from experiments.kernel_regression.task import KernelRegression, KernelRegressionTaskConfig, regression_report
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.tasks.registry import task_config
from transformer.tasks.task import StateView

SMALL = KernelRegressionTaskConfig(num_points=7, num_features=2, batch_size=3, num_queries=4)


@pytest.fixture(scope="module")
def task() -> KernelRegression:
    return KernelRegression(SMALL)


def density_regression(points: np.ndarray, values: np.ndarray, query: np.ndarray, bandwidth: float) -> float:
    """The estimate at one query from normal densities, a product over features."""
    normal = statistics.NormalDist(0, bandwidth)
    densities = [np.prod([normal.pdf(a - b) for a, b in zip(query, point, strict=True)]) for point in points]
    return sum(d * y for d, y in zip(densities, values, strict=True)) / sum(densities)


def left_out(data: DataSets, bandwidth: float) -> float:
    """The mean squared error of every value, predicted from the other points."""
    errors = []
    for points, values in zip(data.points, data.values, strict=True):
        for number, value in enumerate(values):
            others = np.arange(len(values)) != number
            errors.append((density_regression(points[others], values[others], points[number], bandwidth) - value) ** 2)
    return statistics.fmean(errors)


def test_the_samples_are_of_the_function() -> None:
    data = sample_data_sets(np.random.default_rng(0), 200, 40, 2, 0.5)
    x = data.points[..., 0]
    assert (np.diff(x, axis=1) > 0).all()
    assert np.abs(np.histogram(data.points, bins=5, range=(0, 5))[0] / data.points.size - 0.2).max() < 0.01
    noise = data.values - (2 * np.sin(x) + x**0.8)
    assert (noise.mean(), noise.std()) == (pytest.approx(0, abs=0.02), pytest.approx(0.5, abs=0.01))
    assert np.abs(np.corrcoef(noise.ravel(), data.points[..., 1].ravel())[0, 1]) < 0.03


def test_the_regression_of_the_report_is_that_of_densities(task: KernelRegression) -> None:
    queries = task.probe_batch["queries"].astype(np.float64)
    data = DataSets(*(x[:1] for x in task.data))
    found = gaussian_regression(data, queries, 0.8)
    for number, query in enumerate(queries[0]):
        assert found[0, number] == pytest.approx(density_regression(*(x[0] for x in data), query, 0.8), abs=1e-12)
    assert leave_one_out_error(data, 0.8) == pytest.approx(left_out(data, 0.8), abs=1e-12)
    # With a short bandwidth the nearest point alone counts, where densities would be 0 / 0.
    nearest = np.square(queries[0][:, None] - data.points[0]).sum(-1).argmin(1)
    np.testing.assert_allclose(gaussian_regression(data, queries, 1e-3)[0], data.values[0][nearest], atol=1e-12)


def test_the_best_bandwidth_is_where_the_gradient_of_the_loss_turns(task: KernelRegression) -> None:
    best = best_bandwidth(task.data)
    assert BANDWIDTHS[0] < best < BANDWIDTHS[-1]
    assert left_out(task.data, best) <= min(left_out(task.data, h) for h in (best / 1.1, best / 1.03, best * 1.1))
    model = FAMILY.build(KernelRegressionConfig(), task.interface, Precision())
    batch = task.training_batches(0)[0]

    def loss(log_bandwidth: jax.Array) -> Any:
        variables = Variables({"log_bandwidth": log_bandwidth}, {})
        view = StateView(model, variables, {}, {}, np.int32(0), True)  # type: ignore[arg-type]
        return task.objectives[0].loss_fn(view, batch, task.denominators(batch), jax.random.key(0))

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, below), (_, above) = (run(np.log(np.float32([best * factor]))) for factor in (0.98, 1.02))
    assert float(below[0]) < 0 < float(above[0])
    (found, aux), _ = run(np.log(np.float32([best])))
    assert float(found) == pytest.approx(left_out(task.data, best), rel=1e-5)
    metrics = {name: float(value) for name, value in aux.metrics.items()}
    assert metrics == pytest.approx({"loss": float(found), "bandwidth_1": best, "bandwidth_2": best}, rel=1e-5)


def test_every_step_has_the_same_batch_which_hides_each_point_from_itself(task: KernelRegression) -> None:
    batch, later = task.training_batches(0)[0], task.training_batches(4)[9]
    assert all((later[name] == values).all() for name, values in batch.items())
    np.testing.assert_array_equal(batch["queries"], batch["points"])
    np.testing.assert_array_equal(batch["excluded"], np.tile(np.arange(7), (3, 1)))
    np.testing.assert_array_equal(batch["targets"], batch["values"])
    for name, given in task.interface.inputs.items():
        assert (batch[name].shape, batch[name].dtype) == (given.shape, given.dtype)
    validation, test = (evaluation.batches[0] for evaluation in task.evaluations)
    assert not np.isin(validation["queries"], np.concatenate([batch["points"], test["queries"]], axis=1)).any()
    assert (validation["excluded"] == -1).all()
    np.testing.assert_allclose(validation["targets"], target_function(validation["queries"]), rtol=1e-6)
    other = KernelRegression(dataclasses.replace(SMALL, data_seed=2))
    assert (other.data.values != task.data.values).all()


def test_queries_and_points_are_labeled_by_their_features(task: KernelRegression) -> None:
    labels = task.axis_labels(())
    assert {axis: len(names) for axis, (names,) in labels.tokens.items()} == {"queries": 4, "points": 7}
    assert labels.tokens["points"][0][2] == "{:.2f}, {:.2f}".format(*task.data.points[0, 2])


def test_a_report_by_hand() -> None:
    data = DataSets(np.array([[[0.0], [1.0]]]), np.array([[1.0, 3.0]]))
    queries, predictions = np.array([[[0.0], [1.0]]]), np.array([[0.5, 2.0]])
    scalars = regression_report(data, queries, predictions, np.array([0.7]), 1e-3).scalars
    second = 2 * np.sin(1.0) + 1
    assert scalars == pytest.approx(
        {
            "squared_error": (0.5**2 + (2 - second) ** 2) / 2,
            "uniform_error": (2**2 + (2 - second) ** 2) / 2,
            "leave_one_out_error": (1 + (3 - second) ** 2) / 2,
            "leave_one_out_bandwidth": 1e-3,
            "bandwidth_1": 0.7,
        }
    )


def test_the_evaluation_reports_what_the_model_predicts(task: KernelRegression) -> None:
    aux = SimpleNamespace(extras={"bandwidths": np.float32([0.5, 2])})
    model: Any = SimpleNamespace(apply=lambda variables, inputs, **options: (inputs["queries"][..., 0], aux))
    view = StateView(model, None, {}, {}, np.int32(0), False)  # type: ignore[arg-type]
    evaluation = task.evaluations[1]
    assert [(each.split, each.at_end) for each in task.evaluations] == [("validation", False), ("test", True)]
    sums, rows = evaluation.step(view, evaluation.batches[0], jax.random.key(0))
    scalars = evaluation.finish(sums, rows).scalars
    x = evaluation.batches[0]["queries"][..., 0].astype(np.float64)
    assert scalars["squared_error"] == pytest.approx(np.mean((x - 2 * np.sin(x) - x**0.8) ** 2), rel=1e-5)
    assert (scalars["bandwidth_1"], scalars["bandwidth_2"]) == (0.5, 2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"num_points": 1}, "num_points=1 must be at least 2: a point is predicted from the others"),
        ({"num_features": 0}, "num_features=0 must be at least 1"),
        ({"noise": -0.5}, r"noise=-0\.5 must be at least 0"),
        ({"data_seed": -1}, "data_seed=-1 must be at least 0"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"num_queries": 0}, "num_queries=0 must be at least 1"),
        ({"num_point": 9}, "did you mean 'num_points'"),
    ],
)
def test_unfit_values_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        task_config({"name": "experiments.kernel_regression.task", **wrong})
    assert "\n" not in str(refused.value)
