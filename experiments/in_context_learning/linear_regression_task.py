"""In-context linear regression: predict f(x) from examples of f in the prompt, without gradients (Garg et al. 2022)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from experiments.in_context_learning.linear_functions import (
    FunctionBatch,
    interleave_points_and_values,
    least_squares,
    ridge_regression,
    sample_functions,
)
from transformer.attention.sites import Site
from transformer.config import (
    BatchSize,
    Config,
    NonNegativeFloat,
    NumDisplayedExamples,
    NumExamples,
    PositiveInt,
    UserError,
)
from transformer.data.batches import PROBE_SEED, GeneratedBatches, first_batches, random_generator
from transformer.models.model import Aux
from transformer.models.task_interface import VECTOR_REGRESSION, InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.generated_task import GeneratedTask
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, StateView, TaskSpec


@dataclasses.dataclass(frozen=True)
class LinearRegressionConfig(Config, path="config.task"):
    """In-context linear regression: functions with 2 x num_dimensions + 1 points each, shown as x_1, y_1, x_2, ...

    Attributes:
        num_dimensions: The dimensions of x.
        noise: The standard deviation of the noise on the values shown. With 0, least squares makes no errors once there
            are as many examples as dimensions, so that the model cannot be compared with it.
        min_dimensions: If given, training functions use a uniform number of dimensions from it to all.
        batch_size: Functions in a batch.
        num_eval_examples: Functions to evaluate.
        num_probe_examples: Functions whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    num_dimensions: PositiveInt = 8
    noise: NonNegativeFloat = 1.0
    min_dimensions: PositiveInt | None = None
    batch_size: BatchSize = 64
    num_eval_examples: NumExamples = 1024
    num_probe_examples: NumDisplayedExamples = 2

    def _check(self) -> None:
        if self.min_dimensions is not None and self.min_dimensions > self.num_dimensions:
            raise UserError(
                f"config.task.min_dimensions={self.min_dimensions} must be at most num_dimensions={self.num_dimensions}"
            )

    @property
    def num_points(self) -> int:
        """The number of points of a function: each is predicted from 0 to 2 x num_dimensions examples."""
        return 2 * self.num_dimensions + 1

    def sample(self, random: np.random.Generator, min_dimensions: int | None = None) -> FunctionBatch:
        """Sample a batch of functions."""
        return sample_functions(
            random, self.batch_size, self.num_points, self.num_dimensions, self.noise, min_dimensions
        )


class LinearRegression(GeneratedTask):
    """In-context linear regression: implements transformer.tasks.task.Task."""

    denominator = "points"

    def __init__(self, config: LinearRegressionConfig, rows_multiple: int = 1):
        shape = (config.batch_size, 2 * config.num_points, config.num_dimensions + 1)
        inputs = {"vectors": InputSpec(shape, jnp.float32, Modality.POINTS)}
        interface = TaskInterface(inputs, {"numbers": 1}, output=VECTOR_REGRESSION.output)
        super().__init__(config, interface, "next_value", rows_multiple)

    def draw_batch(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Sample functions, whose dimensions differ if `min_dimensions` is given."""
        return make_batch(self.config.sample(random, self.config.min_dimensions))

    def draw_probe_examples(self) -> dict[str, np.ndarray]:
        """Sample functions of all dimensions."""
        functions = self.config.sample(random_generator(PROBE_SEED))
        return {name: rows[: self.config.num_probe_examples] for name, rows in make_batch(functions).items()}

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of predicted points."""
        return {"points": jnp.float32(np.prod(batch["shown"].shape))}

    def _predictions(
        self, view: StateView, batch: Batch, key: Key[Array, ""] | None
    ) -> tuple[Float[Array, "B N"], Aux]:
        """Return the model's prediction at every x, given the examples before it."""
        numbers_BxTx1, aux = self.apply_model(view, batch, key)
        return numbers_BxTx1[:, ::2, 0].astype(jnp.promote_types(numbers_BxTx1.dtype, jnp.float32)), aux

    def loss_sums(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[dict[str, Array], Aux]:
        """Sum the squared errors of the next value, over all points of all functions."""
        predictions_BxN, aux = self._predictions(view, batch, key)
        return {"loss": jnp.sum(jnp.square(predictions_BxN - jnp.asarray(batch["shown"])))}, aux

    def make_evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluation of the errors beside those of least squares, on functions of all dimensions."""
        config = self.config
        source = GeneratedBatches(lambda random: config.sample(random)._asdict(), seed)
        functions = [
            FunctionBatch(**batch) for batch in first_batches(source, config.num_eval_examples, config.batch_size)
        ]

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
            return {}, {"predictions": self._predictions(view, batch, None)[0]}

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            all_functions = FunctionBatch(*map(np.concatenate, zip(*functions, strict=True)))
            return regression_report(all_functions, np.asarray(rows["predictions"], np.float64), config.noise)

        batches = [make_batch(function_batch) for function_batch in functions]
        return (Evaluation("functions", split, batches, step, finish, at_end=split == "test"),)

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the positions x_1, y_1, x_2, y_2, ... of each function."""
        names = tuple(f"{which}{point + 1}" for point in range(self.config.num_points) for which in ("x", "y"))
        count = len(self.probe_batch["vectors"])
        return AxisLabels({"steps": (names,) * count}, tuple(f"function {number + 1}" for number in range(count)))


def make_batch(functions: FunctionBatch) -> dict[str, np.ndarray]:
    """Return the model's inputs, and the value to predict at every x."""
    return {"vectors": interleave_points_and_values(functions), "shown": functions.noisy_values.astype(np.float32)}


def regression_report(
    functions: FunctionBatch, answers_BxN: Float[np.ndarray, "B N"], noise: float
) -> EvaluationReport:
    """Report mean squared errors of f(x) after k examples: the model's, least squares', and the Bayes-optimal one.

    `zero_baseline_error` is the error of always predicting 0. `error_over_least_squares` compares the model with least
    squares at the greatest k, if there is noise.

    Args:
        functions: The functions.
        answers_BxN: The model's prediction at every point.
        noise: The standard deviation of the noise.

    Returns:
        The report.
    """

    def errors(guesses_BxN: np.ndarray) -> np.ndarray:
        return np.square(guesses_BxN - functions.values).mean(axis=0)

    methods = {
        "squared_error": answers_BxN,
        "least_squares_error": least_squares(functions),
        "bayes_optimal_error": ridge_regression(functions, noise),
    }
    errors_by_method = {name: errors(guesses) for name, guesses in methods.items()}
    last, dimensions = answers_BxN.shape[1] - 1, functions.points.shape[-1]
    scalars = {
        f"{name}_{num_examples}": float(errors_N[num_examples])
        for name, errors_N in errors_by_method.items()
        for num_examples in sorted({0, -(-dimensions // 2), dimensions, last})
    }
    scalars["zero_baseline_error"] = float(errors(np.zeros_like(answers_BxN)).mean())
    if noise:
        scalars["error_over_least_squares"] = float(
            errors_by_method["squared_error"][last] / errors_by_method["least_squares_error"][last]
        )
    return EvaluationReport(scalars, note=f"{len(answers_BxN)} functions of {dimensions} dimensions")


TASK = TaskSpec(LinearRegressionConfig, LinearRegression)
