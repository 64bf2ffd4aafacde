"""Gradients against finite differences."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def check_gradient(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    atol: float = 1e-5,
    rtol: float = 1e-5,
    eps: float = 1e-4,
) -> None:
    """Compare a reverse-mode gradient in float64 with central differences in one random direction.

    It checks what `jax.test_util.check_grads(order=1, modes=["rev"])` does, in two programs: the arithmetic around them
    is NumPy's, where JAX would compile an operation for the shape of every leaf.

    Args:
        function: The function, whose result is a tree of float64 arrays. It is compiled here.
        arguments: Where the gradient is checked: trees of arrays.
        atol: Absolute tolerance.
        rtol: Relative tolerance.
        eps: The length of the step to either side.
    """
    arguments = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arguments)
    rng = np.random.default_rng(0)
    compiled = jax.jit(function)

    @jax.jit
    def transposed(arguments: Any, cotangents: Any) -> Any:
        outputs, pull = jax.vjp(function, *arguments)
        return outputs, pull(cotangents)

    def random_like(tree: Any) -> Any:
        assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(tree))
        return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), tree)

    def moved(distance: float) -> Any:
        there = jax.tree.map(lambda x, tangent: x + distance * tangent, arguments, tangents)
        return jax.device_get(compiled(*there))

    def inner_product(left: Any, right: Any) -> Any:
        return sum(np.vdot(*both) for both in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))

    expected = jax.device_get(compiled(*arguments))
    tangents, cotangents = random_like(arguments), random_like(expected)
    outputs, gradients = jax.device_get(transposed(arguments, cotangents))
    jax.tree.map(lambda *both: np.testing.assert_allclose(*both, rtol=rtol, atol=atol), outputs, expected)
    differences = jax.tree.map(lambda after, before: (after - before) / (2 * eps), moved(eps), moved(-eps))
    np.testing.assert_allclose(
        inner_product(tangents, gradients), inner_product(differences, cotangents), rtol=rtol, atol=atol
    )
