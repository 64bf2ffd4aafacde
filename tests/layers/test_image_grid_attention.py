"""SAGAN's block of self-attention against its equations in NumPy, and as it begins."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests import programs
from transformer.attention import Capture
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.image_grid_attention import GridSelfAttention

CHANNELS, ROWS, COLUMNS = 8, 3, 2


def block() -> tuple[FunctionalModule, dict, np.ndarray]:
    functional = FunctionalModule(lambda builder: GridSelfAttention(CHANNELS, reduction=4, builder=builder))
    x = np.random.default_rng(0).normal(size=(2, ROWS, COLUMNS, CHANNELS)).astype(np.float32)
    return functional, programs.initial(functional.init), x


def test_it_begins_as_the_identity_with_a_gradient_of_gamma() -> None:
    functional, params, x = block()

    def loss(params: Any) -> Any:
        y, _ = functional.bind(params)(jnp.asarray(x))
        return jnp.sum(y**2), y

    gradient, y = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_array_equal(y, x)
    assert np.abs(gradient["gamma"]).max() > 1e-3
    assert np.abs(gradient["query"]["kernel"]).max() == 0


def test_it_is_the_papers_equations() -> None:
    functional, params, x = block()
    params = jax.device_get(params) | {"gamma": np.full((1,), 0.7, np.float32)}
    rng = np.random.default_rng(1)
    normed = {name: 2 * params[name]["kernel"] + rng.normal(size=1).astype(np.float32) for name in ("query", "output")}
    read = jax.jit(
        lambda params, x, kernels: functional.bind(params)(x, kernels=kernels, capture=Capture(sites=("any",)))
    )
    for kernels in ({}, normed):
        y, captured = read(params, x, kernels)
        w = {name: np.asarray(params[name]["kernel"], np.float64) for name in ("query", "key", "value", "output")}
        w |= {name: np.asarray(kernel, np.float64) for name, kernel in kernels.items()}
        for number, image in enumerate(x.astype(np.float64)):
            places = image.reshape(-1, CHANNELS)
            g, f, h = (places @ w[name].reshape(CHANNELS, 2) for name in ("query", "key", "value"))
            s = f @ g.T  # s_ij = f(x_i)' g(x_j)
            beta = np.exp(s) / np.exp(s).sum(0)
            o = np.einsum("ij,id->jd", beta, h) @ w["output"].reshape(2, CHANNELS)
            np.testing.assert_allclose(y[number].reshape(-1, CHANNELS), 0.7 * o + places, atol=1e-5)
            assert captured is not None
            np.testing.assert_allclose(captured.weights[number, 0], beta.T, atol=1e-6)
