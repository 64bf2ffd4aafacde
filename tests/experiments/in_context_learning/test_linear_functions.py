"""Linear functions: how they are drawn, and least squares against NumPy's own."""

import numpy as np
import pytest

from experiments.in_context_learning.linear_functions import (
    FunctionBatch,
    interleave_points_and_values,
    least_squares,
    ridge_regression,
    sample_functions,
)

DRAWN = sample_functions(np.random.default_rng(0), 6, 9, 4, 0.5)


def test_points_weights_and_noise_are_normal() -> None:
    functions = sample_functions(np.random.default_rng(1), 4000, 5, 3, 0.5)
    assert functions.points.std() == pytest.approx(1, abs=0.02)
    error = functions.noisy_values - functions.values
    assert error.std() == pytest.approx(0.5, abs=0.02)
    assert abs(np.corrcoef(error.ravel(), functions.values.ravel())[0, 1]) < 0.03
    # The weights are those that make the values of three points.
    weights = np.linalg.solve(functions.points[:, :3], functions.values[:, :3, None])[..., 0]
    kept = np.abs(np.linalg.det(functions.points[:, :3])) > 0.1
    np.testing.assert_allclose(
        np.einsum("bnd,bd->bn", functions.points, weights)[kept], functions.values[kept], atol=1e-6
    )
    assert np.median(np.abs(weights[kept])) == pytest.approx(0.6745, abs=0.03)


def test_of_some_functions_few_dimensions_are_used() -> None:
    functions = sample_functions(np.random.default_rng(2), 3000, 5, 4, 0.0, min_dimensions=2)
    used = (functions.points != 0).any(axis=1).sum(axis=-1)
    np.testing.assert_allclose(np.bincount(used)[2:] / 3000, 1 / 3, atol=0.03)


def test_vectors_are_points_and_what_is_shown_in_turn() -> None:
    vectors = interleave_points_and_values(DRAWN)
    assert vectors.shape == (6, 18, 5)
    np.testing.assert_allclose(vectors[:, ::2, :4], DRAWN.points, rtol=1e-6)
    np.testing.assert_allclose(vectors[:, 1::2, 4], DRAWN.noisy_values, rtol=1e-6)
    assert not vectors[:, ::2, 4].any()
    assert not vectors[:, 1::2, :4].any()


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_estimates_are_those_of_numpys_least_squares(noise: float) -> None:
    """Ridge is least squares with rows noise e_i for which 0 is shown."""
    for method, more in ((least_squares, 0.0), (lambda functions: ridge_regression(functions, noise), noise)):
        guesses = method(DRAWN)
        for row, (points, shown) in enumerate(zip(DRAWN.points, DRAWN.noisy_values, strict=True)):
            for known in range(9):
                added = more * np.eye(4) if more else np.zeros((0, 4))
                rows = np.concatenate([points[:known], added])
                values = np.concatenate([shown[:known], np.zeros(len(added))])
                weights = np.linalg.lstsq(rows, values)[0] if len(rows) else np.zeros(4)
                assert guesses[row, known] == pytest.approx(points[known] @ weights, abs=1e-8)


def test_the_order_of_examples_changes_no_estimate_of_the_last() -> None:
    order = [*np.random.default_rng(3).permutation(8), 8]
    turned = FunctionBatch(DRAWN.points[:, order], DRAWN.values[:, order], DRAWN.noisy_values[:, order])
    np.testing.assert_allclose(least_squares(turned)[:, 8], least_squares(DRAWN)[:, 8], atol=1e-9)
    # Without noise they are right, wherever there are as many examples as dimensions.
    exact = DRAWN._replace(noisy_values=DRAWN.values)
    np.testing.assert_allclose(least_squares(exact)[:, 4:], DRAWN.values[:, 4:], atol=1e-8)
