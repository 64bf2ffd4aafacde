"""Batch norm: the equations, what counts, and a state that is given and returned."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.gradients import check_gradient
from tests.oracles import recurrent as oracle
from transformer.layers.batch_norm import BatchNorm, BatchStatistics
from transformer.layers.functional_module import FunctionalModule

WIDTH = 3
NORM = FunctionalModule(lambda builder: BatchNorm(WIDTH, momentum=0.3, epsilon=1e-3, builder=builder))
WEIGHTS = {"scale": np.float32([0.5, 2, -1]), "bias": np.float32([1, 0, 3])}


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def state() -> BatchStatistics:
    return BatchStatistics(jnp.asarray(random(WIDTH, seed=5)), jnp.asarray(random(WIDTH, seed=6) ** 2))


def test_batch_norm_is_the_equation_over_what_counts() -> None:
    x, counts = random(2, 5, WIDTH) * 3 + 50, np.arange(5) < np.array([[5], [3]])
    norm = jax.jit(functools.partial(NORM.bind(WEIGHTS), train=True))
    with jax.enable_x64(True):
        before = state()
        for mask in (None, counts):
            rows = x.reshape(-1, WIDTH) if mask is None else x[mask]
            y, after = norm(x if mask is None else np.where(mask[..., None], x, np.nan), before, mask=mask)
            expected, mean, variance = oracle.batch_norm(WEIGHTS, rows, *before, momentum=0.3, epsilon=1e-3)
            of_rows = np.asarray(y).reshape(-1, WIDTH) if mask is None else np.asarray(y)[mask]
            np.testing.assert_allclose(of_rows, expected, rtol=0, atol=1e-11)
            np.testing.assert_allclose(after.mean, mean, rtol=0, atol=1e-12)
            np.testing.assert_allclose(after.variance, variance, rtol=0, atol=1e-12)
        assert (np.asarray(y)[~counts] == 0).all()


def test_batch_norm_in_evaluation_reads_the_running_statistics_and_leaves_them() -> None:
    x = random(4, WIDTH)
    with jax.enable_x64(True):
        before = state()
        y, after = NORM.bind(WEIGHTS)(jnp.asarray(x), before, train=False)
        assert after is before
        mean, variance = (np.asarray(statistic) for statistic in before)
    expected = (x - mean) / np.sqrt(variance + 1e-3) * WEIGHTS["scale"] + WEIGHTS["bias"]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


def test_gradients_of_batch_norm_reach_only_what_counts() -> None:
    x, counts = random(5, WIDTH), np.array([True, True, False, True, True])
    with jax.enable_x64(True):
        before = state()

        def of(weights: Any, x: Any) -> Any:
            return NORM.bind(weights)(x, before, train=True, mask=jnp.asarray(counts))[0]

        check_gradient(of, (WEIGHTS, x), atol=1e-6, rtol=1e-6)
        cotangent = random(5, WIDTH, seed=9)
        hidden = np.where(counts[:, None], x, np.nan)
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(of(WEIGHTS, x) * cotangent)))(hidden)
    assert (np.asarray(gradient)[2] == 0).all()
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0.1


def test_a_batch_without_a_row_that_counts_changes_nothing() -> None:
    norm = NORM.bind(WEIGHTS)
    before = BatchStatistics(jnp.asarray(np.float32([1, 2, 3])), jnp.asarray(np.float32([4, 5, 6])))
    nothing = np.full((2, WIDTH), np.nan, np.float32), before
    y, after = jax.jit(functools.partial(norm, train=True))(*nothing, mask=np.zeros(2, bool))
    assert (np.asarray(y) == 0).all()
    jax.tree.map(np.testing.assert_array_equal, after, before)
    initial = norm.initial_state()
    np.testing.assert_array_equal(initial.mean, np.zeros(WIDTH))
    np.testing.assert_array_equal(initial.variance, np.ones(WIDTH))
    with pytest.raises(ValueError, match=r"momentum=0\.0 must be above 0 and at most 1"):
        FunctionalModule(lambda builder: BatchNorm(WIDTH, momentum=0.0, builder=builder))


def test_batch_norm_of_bfloat16_has_float32_statistics() -> None:
    x = jnp.asarray(random(64, WIDTH) + 30, jnp.bfloat16)
    norm = FunctionalModule(lambda builder: BatchNorm(WIDTH, builder=builder))

    @jax.jit
    def normalized(x: Any) -> Any:
        before = BatchNorm.initial_state(norm.bind(WEIGHTS))
        return norm.bind(norm.init(jax.random.key(0)))(x, before, train=True)

    y, after = normalized(x)
    assert y.dtype == jnp.bfloat16
    assert after.mean.dtype == after.variance.dtype == jnp.float32
    wide = np.asarray(x, np.float64)
    np.testing.assert_allclose(after.variance, 0.9 + 0.1 * wide.var(0, ddof=1), rtol=1e-5)
