"""Kernel regression: predict a function from noisy values at other points; training leaves out one point at a time."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from experiments.kernel_regression.data import (
    KERNEL_REGRESSION,
    NO_POINT,
    DataSets,
    best_bandwidth,
    gaussian_regression,
    sample_data_sets,
    sample_points,
    target_function,
)
from transformer.attention.sites import Site
from transformer.config import BatchSize, Config, NonNegativeFloat, NumExamples, PositiveInt, Range, Seed
from transformer.data.batches import TEST_SEED, VALIDATION_SEED, BatchSource, GeneratedBatches, random_generator
from transformer.models.model import Aux
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask, check_batch_size
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, LossAux, Objective, StateView, TaskSpec


@dataclasses.dataclass(frozen=True)
class KernelRegressionTaskConfig(Config, path="config.task"):
    """Samples of y = 2 sin(x) + x^0.8 + noise, where x is the first of some features, uniform on [0, 5].

    Attributes:
        num_points: The points of a data set.
        num_features: The features of a point.
        noise: The standard deviation of the noise.
        data_seed: The seed of the data sets.
        batch_size: The number of data sets. Every training step uses all of them.
        num_queries: The points of each data set to evaluate at.

    Raises:
        UserError: If a value is out of range.
    """

    num_points: Annotated[int, Range(2, 2**12, ": a point is predicted from the others")] = 50
    num_features: PositiveInt = 1
    noise: NonNegativeFloat = 0.5
    data_seed: Seed = 1
    batch_size: BatchSize = 1
    num_queries: NumExamples = 50


class KernelRegression(BaseTask):
    """Kernel regression: implements transformer.tasks.task.Task."""

    def __init__(self, config: KernelRegressionTaskConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config = config
        self.data = sample_data_sets(
            np.random.default_rng(config.data_seed),
            config.batch_size,
            config.num_points,
            config.num_features,
            config.noise,
        )
        rows, points, features = self.data.points.shape
        inputs = {
            "queries": InputSpec((rows, points, features), jnp.float32, Modality.POINTS),
            "points": InputSpec((rows, points, features), jnp.float32, Modality.POINTS),
            "values": InputSpec((rows, points), jnp.float32, Modality.POINTS),
            "excluded": InputSpec((rows, points), modality=Modality.POSITIONS),
        }
        self.interface = TaskInterface(inputs, {}, output=KERNEL_REGRESSION.output)
        self.objectives = (Objective("leave_one_out", self._loss),)
        self._validation_queries = self._queries(VALIDATION_SEED)
        self.evaluations = (
            self._evaluation("validation", self._validation_queries),
            self._evaluation("test", self._queries(TEST_SEED)),
        )
        probe = make_batch(self.data, self._validation_queries)
        self.probe_batch = {name: probe[name][:1] for name in KERNEL_REGRESSION.inputs}

    @functools.cached_property
    def _best_bandwidth(self) -> float:
        return best_bandwidth(self.data)

    def _queries(self, seed: int) -> Float[np.ndarray, "B Q D"]:
        rows, _, features = self.data.points.shape
        random = random_generator(seed, self.config.data_seed)
        return sample_points(random, rows, self.config.num_queries, features)

    def training_batches(self, seed: int) -> BatchSource:
        """Return the same batch for every step: each point is to be predicted from all others of its data set."""
        rows, points, _ = self.data.points.shape
        own_BxN = np.broadcast_to(np.arange(points, dtype=np.int32), (rows, points))
        batch = make_batch(self.data, self.data.points) | {
            "excluded": own_BxN,
            "targets": self.data.values.astype(np.float32),
        }
        return GeneratedBatches(lambda random: batch, seed)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of queries."""
        return {"queries": jnp.float32(np.prod(batch["targets"].shape))}

    def _predictions(self, view: StateView, batch: Batch) -> tuple[Float[Array, "B Q"], Aux]:
        inputs = {name: jnp.asarray(batch[name]) for name in KERNEL_REGRESSION.inputs}
        return view.model.apply(view.variables, inputs, train=view.train, capture=view.capture)

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean squared error over the queries."""
        predictions_BxQ, aux = self._predictions(view, batch)
        errors_BxQ = jnp.square(predictions_BxQ - jnp.asarray(batch["targets"])) / denominators["queries"]
        loss = jnp.sum(errors_BxQ)
        # As a mean over queries, so that those of microbatches add up.
        weight = errors_BxQ.size / denominators["queries"]
        bandwidths = {f"bandwidth_{number + 1}": h * weight for number, h in enumerate(aux.extras["bandwidths"])}
        return loss, LossAux.from_aux(aux, view.task_state, {"loss": loss, **bandwidths})

    def _evaluation(self, split: str, queries_BxQxD: Float[np.ndarray, "B Q D"]) -> Evaluation:
        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
            predictions_BxQ, aux = self._predictions(view, batch)
            return {"bandwidths": aux.extras["bandwidths"]}, {"predictions": predictions_BxQ}

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            predictions_BxQ = np.asarray(rows["predictions"], np.float64)
            bandwidths_D = np.asarray(sums["bandwidths"])
            return regression_report(self.data, queries_BxQxD, predictions_BxQ, bandwidths_D, self._best_bandwidth)

        # One batch, so that its sum of bandwidths is the bandwidths.
        batches = [make_batch(self.data, queries_BxQxD)]
        return Evaluation("regression", split, batches, step, finish, at_end=split == "test")

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label queries and points by their features."""
        probe = {name: values[0] for name, values in self.probe_batch.items()}
        names = {
            axis_name: (tuple(", ".join(f"{feature:.2f}" for feature in point) for point in probe[axis_name]),)
            for axis_name in ("queries", "points")
        }
        return AxisLabels(names, (f"{len(probe['points'])} points",))


def make_batch(data: DataSets, queries_BxQxD: Float[np.ndarray, "B Q D"]) -> dict[str, np.ndarray]:
    """Return the model's inputs for queries that see all points, and the function's value at each as its target."""
    return {
        "queries": queries_BxQxD.astype(np.float32),
        "points": data.points.astype(np.float32),
        "values": data.values.astype(np.float32),
        "excluded": np.full(queries_BxQxD.shape[:2], NO_POINT, np.int32),
        "targets": target_function(queries_BxQxD).astype(np.float32),
    }


def regression_report(
    data: DataSets,
    queries_BxQxD: Float[np.ndarray, "B Q D"],
    predictions_BxQ: Float[np.ndarray, "B Q"],
    bandwidths_D: Float[np.ndarray, " D"],
    bandwidth: float,
) -> EvaluationReport:
    """Report mean squared errors from the function without noise: the model's, and those of two baselines.

    `uniform_error` is the error of the mean of all values, `leave_one_out_error` that of a Gaussian kernel with
    `leave_one_out_bandwidth`.

    Args:
        data: The data sets.
        queries_BxQxD: The points to predict the function at.
        predictions_BxQ: The model's predictions.
        bandwidths_D: The model's bandwidths.
        bandwidth: The bandwidth that predicts each value best from the others.

    Returns:
        The report.
    """
    truth_BxQ = target_function(queries_BxQxD)

    def error(guesses_BxQ: np.ndarray) -> float:
        return float(np.square(guesses_BxQ - truth_BxQ).mean())

    return EvaluationReport(
        {
            "squared_error": error(predictions_BxQ),
            "uniform_error": error(np.broadcast_to(data.values.mean(axis=1, keepdims=True), truth_BxQ.shape)),
            "leave_one_out_error": error(gaussian_regression(data, queries_BxQxD, bandwidth)),
            "leave_one_out_bandwidth": bandwidth,
            **{f"bandwidth_{number + 1}": float(h) for number, h in enumerate(bandwidths_D)},
        },
        note=f"{truth_BxQ.size} queries",
    )


TASK = TaskSpec(KernelRegressionTaskConfig, KernelRegression)
