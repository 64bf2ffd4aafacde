"""Batch norm and spectral norm: the equations, what counts, and a state that is given and returned."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.gradients import check_gradient
from tests.oracles import recurrent as oracle
from transformer.layers.batch_and_spectral_norm import BatchNorm, BatchStatistics, SpectralNorm, SpectralState
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.linear import Linear

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


def spectral(shape: tuple[int, ...], **options: Any) -> Any:
    return FunctionalModule(lambda builder: SpectralNorm(shape, **options)).bind({})


def test_spectral_norm_is_algorithm_1_and_its_state_moves_only_in_training() -> None:
    kernel = random(2, 3, 5)
    norm, matrix = spectral((2, 3, 5), iterations=2), kernel.reshape(6, 5)
    with jax.enable_x64(True):
        before = SpectralState(jnp.asarray(random(5, seed=3) / np.linalg.norm(random(5, seed=3))))
        normed, after = jax.jit(functools.partial(norm, train=True))(kernel, before)
        again, kept = norm(jnp.asarray(kernel), before, train=False)
        assert kept is before
    u = np.asarray(before.u)
    for _ in range(2):
        v = matrix @ u / np.linalg.norm(matrix @ u)
        u = matrix.T @ v / np.linalg.norm(matrix.T @ v)
    np.testing.assert_allclose(normed, kernel / (v @ matrix @ u), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(again, normed)
    np.testing.assert_allclose(after.u, u, rtol=0, atol=1e-12)


def test_spectral_norm_finds_the_largest_singular_value() -> None:
    kernel = jnp.asarray(random(4, 2, 3), jnp.float32)
    norm = spectral((4, 2, 3), outputs=2)
    found = norm.initial_state(jax.random.key(0))
    assert found.u.shape == (6,)
    assert np.linalg.norm(found.u) == pytest.approx(1)
    step = jax.jit(lambda found: norm(kernel, found, train=True))
    for _ in range(200):
        normed, found = step(found)
    assert np.linalg.svd(np.asarray(normed).reshape(4, 6))[1][0] == pytest.approx(1, abs=1e-5)


def test_no_gradient_passes_through_the_directions() -> None:
    kernel = random(3, 4)
    norm = spectral((3, 4))
    u = np.ones(4) / 2
    v = kernel @ u / np.linalg.norm(kernel @ u)
    u = kernel.T @ v / np.linalg.norm(kernel.T @ v)
    sigma, cotangent = v @ kernel @ u, random(3, 4, seed=4)
    with jax.enable_x64(True):
        gradient = jax.jit(
            jax.grad(lambda kernel: jnp.sum(norm(kernel, SpectralState(jnp.ones(4) / 2), train=True)[0] * cotangent))
        )(kernel)
    # Miyato et al. 2018, equation 9.
    expected = cotangent / sigma - np.sum(cotangent * kernel) / sigma**2 * np.outer(v, u)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="iterations=0 of a spectral norm must be at least 1"):
        spectral((3, 4), iterations=0)


def test_a_linear_map_takes_a_normed_kernel_for_its_own() -> None:
    functional = FunctionalModule(lambda builder: Linear((("embed", 4),), (("embed", 3),), bias=True, builder=builder))
    linear = functional.bind({"kernel": np.ones((4, 3), np.float32), "bias": np.float32([1, 2, 3])})
    kernel = jnp.asarray(random(4, 3), jnp.float32)
    np.testing.assert_allclose(linear(jnp.ones((2, 4)), kernel)[0], kernel.sum(0) + np.arange(1, 4), rtol=1e-6)
