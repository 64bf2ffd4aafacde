"""Gates of heads and of a branch: their gradient against NumPy. The training step's is in tests/training."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.capture import Capture, CapturedAttention, add_importance, fill_importance
from transformer.attention.importance import ImportanceGates, OutputGates, gate_bias, gate_input

ROWS, LENGTH, HEADS, DEPTH, WIDTH = 3, 4, 2, 5, 6
normal = np.random.default_rng(0).normal
X, KERNEL, BIAS = normal(size=(ROWS, LENGTH, HEADS, DEPTH)), normal(size=(HEADS, DEPTH, WIDTH)), normal(size=WIDTH)
WEIGHTS = normal(size=(ROWS, LENGTH, WIDTH))
REAL = (np.arange(LENGTH) < np.array([[4], [1], [2]]))[..., None]


def gradient(x: np.ndarray, observe: Any = None, *, flat: bool = False) -> tuple[OutputGates, Any]:
    """The gradient of a loss over the real positions with respect to the gates, and to x."""

    def loss(heads: Any, branch: Any, x: Any) -> Any:
        gates = OutputGates(heads, branch, observe)
        gated, zeros_B = gate_input(x.reshape(-1, HEADS * DEPTH) if flat else x, x.shape, gates)
        y = jnp.einsum("bthd,hde->bte", gated.reshape(x.shape), KERNEL.astype(np.float32)) + BIAS.astype(np.float32)
        y = gate_bias(y, jnp.asarray(BIAS, jnp.float32), zeros_B, gates)
        return jnp.sum(jnp.square(jnp.where(REAL, y, 0)) * WEIGHTS)

    heads, branch, of_x = jax.grad(loss, argnums=(0, 1, 2))(jnp.zeros(HEADS), jnp.zeros(1), jnp.asarray(x, jnp.float32))
    return OutputGates(heads, branch), of_x


def expected() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same in NumPy: sum_b |dL/dg_b| of each head and of the whole output, and dL/dx."""
    y = np.einsum("bthd,hde->bte", X, KERNEL) + BIAS
    of_y = 2 * y * WEIGHTS * REAL
    of_x = np.einsum("bte,hde->bthd", of_y, KERNEL)
    return np.abs((of_x * X).sum((1, 3))).sum(0), np.abs((of_y * y).sum((1, 2))).sum(), of_x


@pytest.mark.parametrize("flat", [False, True])
def test_the_gates_gradient_is_the_sum_of_absolute_values_over_examples(flat: bool) -> None:
    gates, of_x = gradient(X, flat=flat)
    heads, branch, expected_of_x = expected()
    np.testing.assert_allclose(gates.heads, heads, rtol=1e-5)
    np.testing.assert_allclose(gates.branch, [branch], rtol=1e-5)
    np.testing.assert_allclose(of_x, expected_of_x, rtol=1e-4, atol=1e-5)


def test_gates_that_are_not_observed_have_no_gradient() -> None:
    gates, of_x = gradient(X, jnp.asarray(False))
    np.testing.assert_array_equal(gates.heads, np.zeros(HEADS))
    np.testing.assert_array_equal(gates.branch, [0])
    np.testing.assert_array_equal(of_x, gradient(X)[1])


def test_padding_counts_nothing_whatever_stands_in_it() -> None:
    plain, padded = gradient(X)[0], gradient(np.where(REAL[..., None], X, np.nan))[0]
    np.testing.assert_array_equal(padded.heads, plain.heads)
    np.testing.assert_array_equal(padded.branch, plain.branch)


def test_importance_is_the_gradient_whatever_the_number_of_examples() -> None:
    gates = ImportanceGates(jnp.zeros(HEADS), jnp.zeros(1), None)
    captured = add_importance(CapturedAttention(None, {}, {}), gates, Capture(("here",)), ROWS)
    assert captured is not None
    assert set(captured.sums) == {"importance", "branch_importance"}
    gradients = ImportanceGates(jnp.array([0.5, 2.0]), jnp.array([3.0]), None)
    filled = fill_importance({"here": captured, "there": captured}, {"here": gradients})
    np.testing.assert_array_equal(filled["here"].means()["importance"], [0.5, 2.0])
    np.testing.assert_array_equal(filled["here"].means()["branch_importance"], [3.0])
    np.testing.assert_array_equal(filled["here"].counts["importance"], [ROWS, ROWS])
    np.testing.assert_array_equal(filled["there"].means()["importance"], [0, 0])
