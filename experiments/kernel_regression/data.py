"""Noisy samples of a function, and Gaussian kernel regression in NumPy to compare the model with."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer.models.task_interface import signature

# `queries` [B, Q, D] are points at which to predict the value, from `points` [B, N, D] and their `values` [B, N]. A
# query does not see the point of index `excluded` [B, Q], which is none of 0 ... N - 1 if it sees all. Output: [B, Q].
KERNEL_REGRESSION = signature("queries", "points", "values", "excluded", output="values of the queries")
# What a query that sees all points excludes.
NO_POINT = -1
# Candidates of the bandwidth, each 1% larger than the one before it.
BANDWIDTHS = 0.02 * 1.01 ** np.arange(700)


class DataSets(NamedTuple):
    """Data sets of one function, each with its own points and noise.

    Attributes:
        points: The points x_i, in the order of their first feature.
        values: The values y_i = f(x_i) + noise.
    """

    points: Float[np.ndarray, "B N D"]
    values: Float[np.ndarray, "B N"]


def target_function(points: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N"]:
    """The function f(x) = 2 sin(x) + x^0.8 of the first feature; the others have no effect on it."""
    x = points[..., 0]
    return 2 * np.sin(x) + x**0.8


def sample_points(random: np.random.Generator, rows: int, count: int, features: int) -> Float[np.ndarray, "B N D"]:
    """Sample points uniformly from [0, 5]^D, sorted by their first feature."""
    points_BxNxD = random.uniform(0, 5, (rows, count, features))
    order_BxN = np.argsort(points_BxNxD[..., 0], axis=1)
    return np.take_along_axis(points_BxNxD, order_BxN[..., None], axis=1)


def sample_data_sets(random: np.random.Generator, rows: int, count: int, features: int, noise: float) -> DataSets:
    """Sample data sets.

    Args:
        random: The random generator.
        rows: The number of data sets.
        count: The number of points of each.
        features: The number of features of a point.
        noise: The standard deviation of the noise on the values.

    Returns:
        The data sets.
    """
    points_BxNxD = sample_points(random, rows, count, features)
    return DataSets(points_BxNxD, target_function(points_BxNxD) + noise * random.standard_normal((rows, count)))


def gaussian_regression(
    data: DataSets,
    queries_BxQxD: Float[np.ndarray, "B Q D"],
    bandwidth: float,
    excluded_BxQ: Int[np.ndarray, "B Q"] | None = None,
) -> Float[np.ndarray, "B Q"]:
    """Predict sum_i w_i y_i with w_i proportional to exp(-|x - x_i|^2 / (2 h^2)) (Nadaraya 1964; Watson 1964).

    Args:
        data: The data sets.
        queries_BxQxD: The points x.
        bandwidth: h.
        excluded_BxQ: The index of a point that each query does not see.

    Returns:
        The prediction at each query.
    """
    squares_BxQxN = np.square(queries_BxQxD[:, :, None] - data.points[:, None]).sum(axis=-1)
    if excluded_BxQ is not None:
        hidden = np.arange(data.points.shape[1]) == excluded_BxQ[..., None]
        squares_BxQxN = np.where(hidden, np.inf, squares_BxQxN)
    # The nearest point has the weight 1 before the division, however short the bandwidth.
    excess_BxQxN = squares_BxQxN - squares_BxQxN.min(axis=-1, keepdims=True)
    weights_BxQxN = np.exp(-excess_BxQxN / (2 * bandwidth**2))
    return (weights_BxQxN * data.values[:, None]).sum(axis=-1) / weights_BxQxN.sum(axis=-1)


def leave_one_out_error(data: DataSets, bandwidth: float) -> float:
    """The mean squared error of every y_i, predicted from the other points of its data set."""
    own_BxN = np.broadcast_to(np.arange(data.points.shape[1]), data.values.shape)
    return float(np.square(gaussian_regression(data, data.points, bandwidth, own_BxN) - data.values).mean())


def best_bandwidth(data: DataSets) -> float:
    """The bandwidth of least leave-one-out error, of all that `BANDWIDTHS` has."""
    return float(min(BANDWIDTHS, key=lambda bandwidth: leave_one_out_error(data, bandwidth)))
