"""Spectral norm: the equations, and a state that is given and returned."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.sagan.spectral_norm import SpectralNorm, SpectralState
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.linear import Linear


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


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
