"""Sinusoidal positions against their equation in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.positions import sinusoidal

POSITIONS = np.arange(256)


def wave(position: int, column: int, width: int) -> float:
    """PE(p, 2i) = sin(p / 10000^(2i / width)); PE(p, 2i + 1) is the cosine of the same angle."""
    angle = position / 10000 ** ((column - column % 2) / width)
    return np.cos(angle) if column % 2 else np.sin(angle)


@pytest.mark.parametrize("width", [2, 8, 128])
def test_every_entry_is_the_equations(width: int) -> None:
    ours = np.asarray(sinusoidal(jnp.asarray(POSITIONS), width))
    expected = np.array([[wave(p, column, width) for column in range(width)] for p in POSITIONS])
    # A float32 angle of a far position is only known to its own rounding.
    assert (np.abs(ours - expected) <= 1e-6 + 1.2e-7 * POSITIONS[:, None]).all()
    assert ours.dtype == np.float32


def test_any_shape_of_positions_is_encoded_entry_by_entry() -> None:
    table = np.asarray(sinusoidal(jnp.asarray(POSITIONS), 8))
    positions = np.array([[3, 0, 7], [255, 1, 1]])
    np.testing.assert_allclose(sinusoidal(jnp.asarray(positions), 8), table[positions], atol=1e-6)


@pytest.mark.parametrize("shift", [1, 5, 100])
def test_a_shift_is_one_rotation_for_all_positions(shift: int) -> None:
    """PE(p + shift) = R PE(p), where R turns each pair of columns by shift / 10000^(2i / width)."""
    width = 64
    rotation = np.zeros((width, width))
    for pair in range(width // 2):
        angle = shift / 10000 ** (2 * pair / width)
        block = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
    here, there = (np.asarray(sinusoidal(jnp.asarray(POSITIONS + move), width)) for move in (0, shift))
    np.testing.assert_allclose(there, here @ rotation.T, rtol=0, atol=1e-4)
    np.testing.assert_allclose(np.sum(here**2, axis=1), width / 2, rtol=1e-5)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="width=7 is odd"):
        sinusoidal(jnp.arange(3), 7)
