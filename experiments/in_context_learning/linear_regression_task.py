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
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    random_generator,
)
from transformer.models.task_interface import VECTOR_REGRESSION, InputSpec, Modality, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import BaseTask, check_batch_size
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, LossAux, Objective, StateView, TaskSpec


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


class LinearRegression(BaseTask):
    """In-context linear regression: implements transformer.tasks.task.Task."""

    def __init__(self, config: LinearRegressionConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config = config
        shape = (config.batch_size, 2 * config.num_points, config.num_dimensions + 1)
        inputs = {"vectors": InputSpec(shape, jnp.float32, Modality.POINTS)}
        self.interface = TaskInterface(inputs, {"numbers": 1}, output=VECTOR_REGRESSION.output)
        self.objectives = (Objective("next_value", self._loss),)
        self.evaluations = (self._evaluation("validation", VALIDATION_SEED), self._evaluation("test", TEST_SEED))
        shown = interleave_points_and_values(config.sample(random_generator(PROBE_SEED)))
        self.probe_batch = {"vectors": shown[: config.num_probe_examples]}

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of functions that are sampled anew at every step."""
        return GeneratedBatches(lambda random: make_batch(self.config.sample(random, self.config.min_dimensions)), seed)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Return the number of predicted points."""
        return {"points": jnp.float32(np.prod(batch["shown"].shape))}

    def _answers(self, view: StateView, batch: Batch, key: Key[Array, ""] | None) -> tuple[Float[Array, "B N"], Any]:
        """Return the model's prediction at every x, given the examples before it."""
        inputs = {"vectors": jnp.asarray(batch["vectors"])}
        numbers_BxTx1, aux = view.model.apply(view.variables, inputs, train=view.train, key=key, capture=view.capture)
        return numbers_BxTx1[:, ::2, 0].astype(jnp.promote_types(numbers_BxTx1.dtype, jnp.float32)), aux

    def _loss(
        self, view: StateView, batch: Batch, denominators: Mapping[str, Array], key: Key[Array, ""]
    ) -> tuple[Array, LossAux]:
        """Return the mean squared error of the next value, over all points of all functions."""
        answers_BxN, aux = self._answers(view, batch, key)
        loss = jnp.sum(jnp.square(answers_BxN - jnp.asarray(batch["shown"]))) / denominators["points"]
        return loss, LossAux.from_aux(aux, view.task_state, {"loss": loss})

    def _evaluation(self, split: str, seed: int) -> Evaluation:
        drawn = GeneratedBatches(lambda random: self.config.sample(random)._asdict(), seed)
        functions = [
            FunctionBatch(**drawn[number])
            for number in range(-(-self.config.num_eval_examples // self.config.batch_size))
        ]

        def step(view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
            return {}, {"answers": self._answers(view, batch, None)[0]}

        def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            whole = FunctionBatch(*map(np.concatenate, zip(*functions, strict=True)))
            return regression_report(whole, np.asarray(rows["answers"], np.float64), self.config.noise)

        batches = [make_batch(each) for each in functions]
        return Evaluation("functions", split, batches, step, finish, at_end=split == "test")

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
    of_methods = {name: errors(guesses) for name, guesses in methods.items()}
    last, dimensions = answers_BxN.shape[1] - 1, functions.points.shape[-1]
    scalars = {
        f"{name}_{known}": float(errors_N[known])
        for name, errors_N in of_methods.items()
        for known in sorted({0, -(-dimensions // 2), dimensions, last})
    }
    scalars["zero_baseline_error"] = float(errors(np.zeros_like(answers_BxN)).mean())
    if noise:
        scalars["error_over_least_squares"] = float(
            of_methods["squared_error"][last] / of_methods["least_squares_error"][last]
        )
    return EvaluationReport(scalars, note=f"{len(answers_BxN)} functions of {dimensions} dimensions")


TASK = TaskSpec(LinearRegressionConfig, LinearRegression)
