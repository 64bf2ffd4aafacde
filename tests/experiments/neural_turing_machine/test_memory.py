"""Addressing a memory of slots: sharpening at its limits, moving around the ring, writing by several heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.neural_turing_machine.memory import (
    WriteParameters,
    content_addressing,
    sharpen_weightings,
    shift_weightings,
    write_slots,
)

SLOTS = 16


def weightings() -> np.ndarray:
    """Rows that sum to one: uniform, one-hot, two equal peaks, drawn, and all but one-hot."""
    drawn = np.random.default_rng(0).dirichlet(np.full(SLOTS, 0.3))
    rows = [np.full(SLOTS, 1 / SLOTS), np.eye(SLOTS)[3], (np.eye(SLOTS)[3] + np.eye(SLOTS)[7]) / 2, drawn]
    almost = np.full(SLOTS, 1e-30)
    almost[5] = 1
    return np.array([*rows, almost])


def sharpen(weights: jax.Array, powers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum of one slot's weights, and all of them."""
    sharp = sharpen_weightings(weights, powers)
    return jnp.sum(sharp[..., 3]), sharp


# The gradients of that sum, and the weights.
SHARPENED = jax.jit(jax.grad(sharpen, argnums=(0, 1), has_aux=True))


@pytest.mark.parametrize("power", [1.0, 2.5, 20.0, 100.0])
def test_sharpening_neither_overflows_nor_gives_nan(power: float) -> None:
    weights_HxN = weightings()
    given = weights_HxN[None].astype(np.float32)
    powers = np.full((1, len(weights_HxN)), power, np.float32)
    gradients, sharp = SHARPENED(given, powers)
    sharp = np.asarray(sharp)[0]
    np.testing.assert_allclose(sharp.sum(-1), 1, atol=1e-5)
    # Divided by the largest first, so that float64 holds every power of what float32 can tell from nothing.
    scaled = (weights_HxN / weights_HxN.max(axis=-1, keepdims=True)) ** power
    np.testing.assert_allclose(sharp, scaled / scaled.sum(axis=-1, keepdims=True), rtol=2e-3, atol=1e-6)
    for gradient in gradients:
        assert np.isfinite(gradient).all()


def test_the_derivative_of_sharpening_at_zero_weight_is_that_of_the_quotient() -> None:
    """With gamma = 1, w / sum w: a slot of weight zero still has a derivative."""
    one_hot = np.eye(4, dtype=np.float32)[None, None, 1]
    jacobian = jax.jit(jax.jacobian(lambda w: sharpen_weightings(w, jnp.ones((1, 1)))))(one_hot)[0, 0, :, 0, 0]
    np.testing.assert_allclose(jacobian, np.eye(4) - np.eye(4)[1][:, None], atol=1e-6)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_a_shift_moves_around_the_ring(reach: int) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3))
    shift = jax.jit(shift_weightings)
    for place in range(2 * reach + 1):
        moves = np.broadcast_to(np.eye(2 * reach + 1)[place], (2, 3, 2 * reach + 1))
        moved = shift(weights, moves)
        expected = np.zeros_like(weights)
        for slot in range(5):
            expected[..., (slot + place - reach) % 5] += weights[..., slot]
        np.testing.assert_allclose(moved, expected, atol=1e-6)


def test_content_finds_the_likest_slot_whatever_its_length_and_zero_slots_are_like_nothing() -> None:
    memory = np.array([[[1.0, 0.0], [0.0, 0.1], [0.0, 0.0], [-30.0, 0.0]]], np.float32)
    key = np.array([[[2.0, 0.0]]], np.float32)
    weights = jax.jit(content_addressing)(key, np.full((1, 1), 3.0, np.float32), memory)
    expected = np.exp(3 * np.array([1, 0, 0, -1]))
    np.testing.assert_allclose(weights[0, 0], expected / expected.sum(), rtol=1e-5)


def test_all_heads_erase_before_any_adds() -> None:
    memory = np.ones((1, 2, 1), np.float32)
    weights = np.float32([[[1.0, 0.0], [1.0, 0.5]]])
    change = WriteParameters(np.float32([[[0.5], [1.0]]]), np.float32([[[3.0], [4.0]]]))  # type: ignore[arg-type]
    np.testing.assert_allclose(jax.jit(write_slots)(memory, weights, change)[0, :, 0], [7.0, 0.5 + 2.0])
