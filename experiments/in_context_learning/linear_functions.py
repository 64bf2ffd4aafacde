"""Linear functions shown by examples, with least-squares and ridge-regression baselines (Garg et al. 2022)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class FunctionBatch(NamedTuple):
    """Linear functions f(x) = w x at some points.

    Attributes:
        points: The points x [function, point, dimension].
        values: The values f(x).
        noisy_values: The values with noise, which are shown.
    """

    points: Float[np.ndarray, "B N D"]
    values: Float[np.ndarray, "B N"]
    noisy_values: Float[np.ndarray, "B N"]


def sample_functions(
    random: np.random.Generator,
    rows: int,
    points: int,
    dimensions: int,
    noise: float,
    min_dimensions: int | None = None,
) -> FunctionBatch:
    """Sample w ~ N(0, I), x ~ N(0, I) and y = w x + e, e ~ N(0, noise^2).

    Args:
        random: The random generator.
        rows: The number of functions.
        points: The number of points of each.
        dimensions: The number of dimensions of x.
        noise: The standard deviation of the noise.
        min_dimensions: If given, each function uses a uniform number of dimensions from it to all; the others are 0.

    Returns:
        The functions.
    """
    weights_BxD = random.standard_normal((rows, dimensions))
    points_BxNxD = random.standard_normal((rows, points, dimensions))
    if min_dimensions is not None:
        used_Bx1x1 = random.integers(min_dimensions, dimensions + 1, (rows, 1, 1))
        points_BxNxD *= np.arange(dimensions) < used_Bx1x1
    values_BxN = np.einsum("bnd,bd->bn", points_BxNxD, weights_BxD)
    return FunctionBatch(points_BxNxD, values_BxN, values_BxN + noise * random.standard_normal((rows, points)))


def interleave_points_and_values(functions: FunctionBatch) -> Float[np.ndarray, "B 2N D+1"]:
    """Return x_1, y_1, x_2, y_2, ... as vectors: (x, 0), then (0, ..., 0, y)."""
    rows, points, dimensions = functions.points.shape
    vectors = np.zeros((rows, points, 2, dimensions + 1), np.float32)
    vectors[:, :, 0, :dimensions] = functions.points
    vectors[:, :, 1, dimensions] = functions.noisy_values
    return vectors.reshape(rows, 2 * points, dimensions + 1)


def least_squares(functions: FunctionBatch) -> Float[np.ndarray, "B N"]:
    """Predict every value by least squares on the k points before it: w = X^+ y, the minimum-norm solution if k < D."""
    return _predict_incrementally(functions, np.linalg.pinv)


def ridge_regression(functions: FunctionBatch, noise: float) -> Float[np.ndarray, "B N"]:
    """Predict every value by the posterior mean, which is Bayes optimal: w = (X'X + noise^2)^-1 X'y.

    Args:
        functions: The functions, whose weights have a standard normal prior.
        noise: The standard deviation of the noise on the values; 0 for `least_squares`.

    Returns:
        The prediction of each point's value from the points before it.
    """
    if not noise:
        return least_squares(functions)
    dimensions = functions.points.shape[-1]

    def solve(known_BxKxD: np.ndarray) -> np.ndarray:
        turned_BxDxK = known_BxKxD.swapaxes(1, 2)
        return np.linalg.solve(turned_BxDxK @ known_BxKxD + noise**2 * np.eye(dimensions), turned_BxDxK)

    return _predict_incrementally(functions, solve)


def _predict_incrementally(
    functions: FunctionBatch, solve: Callable[[np.ndarray], np.ndarray]
) -> Float[np.ndarray, "B N"]:
    """Return x_(k+1) solve(X_k) y_k for every k."""
    points_BxNxD, values_BxN = functions.points, functions.noisy_values
    guesses = np.zeros_like(values_BxN)
    for num_examples in range(1, points_BxNxD.shape[1]):
        weights_BxD = np.einsum("bdk,bk->bd", solve(points_BxNxD[:, :num_examples]), values_BxN[:, :num_examples])
        guesses[:, num_examples] = np.einsum("bd,bd->b", points_BxNxD[:, num_examples], weights_BxD)
    return guesses
