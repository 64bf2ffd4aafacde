"""Linear functions shown by examples, and what the best methods that know so make of them (Garg et al. 2022)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Functions(NamedTuple):
    """Functions of `rows`, each by as many points: f(x) = w x, and y, what is shown of it."""

    points: Float[np.ndarray, "B N D"]
    values: Float[np.ndarray, "B N"]
    shown: Float[np.ndarray, "B N"]


def draw(
    random: np.random.Generator, rows: int, points: int, dimensions: int, noise: float, fewest: int | None = None
) -> Functions:
    """W ~ N(0, I) and x ~ N(0, I) of so many dimensions, y = w x + e, e ~ N(0, noise^2).

    With `fewest`, x has from so many to all dimensions, all numbers equally likely; the others are 0.
    """
    weights_BxD = random.standard_normal((rows, dimensions))
    points_BxNxD = random.standard_normal((rows, points, dimensions))
    if fewest is not None:
        used_Bx1x1 = random.integers(fewest, dimensions + 1, (rows, 1, 1))
        points_BxNxD *= np.arange(dimensions) < used_Bx1x1
    values_BxN = np.einsum("bnd,bd->bn", points_BxNxD, weights_BxD)
    return Functions(points_BxNxD, values_BxN, values_BxN + noise * random.standard_normal((rows, points)))


def as_vectors(functions: Functions) -> Float[np.ndarray, "B 2N D+1"]:
    """x_1, y_1, x_2, y_2, ... as vectors: (x, 0), then (0, ..., 0, y)."""
    rows, points, dimensions = functions.points.shape
    vectors = np.zeros((rows, points, 2, dimensions + 1), np.float32)
    vectors[:, :, 0, :dimensions] = functions.points
    vectors[:, :, 1, dimensions] = functions.shown
    return vectors.reshape(rows, 2 * points, dimensions + 1)


def least_squares(functions: Functions) -> Float[np.ndarray, "B N"]:
    """What least squares on the k points before each makes of it, k from 0: w = X^+ y, of least norm where k < D."""
    return _by(functions, np.linalg.pinv)


def ridge(functions: Functions, noise: float) -> Float[np.ndarray, "B N"]:
    """The mean of f(x) where all is known but w and the noise, which nothing undercuts: w = (X'X + noise^2)^-1 X'y.

    Without noise it is `least_squares`.
    """
    if not noise:
        return least_squares(functions)
    dimensions = functions.points.shape[-1]

    def solve(known_BxKxD: np.ndarray) -> np.ndarray:
        turned_BxDxK = known_BxKxD.swapaxes(1, 2)
        return np.linalg.solve(turned_BxDxK @ known_BxKxD + noise**2 * np.eye(dimensions), turned_BxDxK)

    return _by(functions, solve)


def _by(functions: Functions, solve: Callable[[np.ndarray], np.ndarray]) -> Float[np.ndarray, "B N"]:
    """x_(k+1) solve(X_k) y_k for every k."""
    points_BxNxD, shown_BxN = functions.points, functions.shown
    guesses = np.zeros_like(shown_BxN)
    for known in range(1, points_BxNxD.shape[1]):
        weights_BxD = np.einsum("bdk,bk->bd", solve(points_BxNxD[:, :known]), shown_BxN[:, :known])
        guesses[:, known] = np.einsum("bd,bd->b", points_BxNxD[:, known], weights_BxD)
    return guesses
