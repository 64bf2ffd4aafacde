"""Eight bits a weight: how far a row may be from what it was, in float64, and that devices agree with the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.maps.quantize import quantize


def restored(weights: np.ndarray) -> np.ndarray:
    """By the equation that the store states, in float64."""
    codes, scale, root = (np.asarray(part, np.float64) for part in quantize(weights))
    return scale[..., None] * (codes / 255) ** root[..., None]


def row_errors(weights: np.ndarray) -> np.ndarray:
    return np.abs(restored(weights) - weights).sum(axis=-1)


def limit(keys: int) -> float:
    return 0.01 if keys <= 128 else 0.02


@pytest.mark.parametrize("keys", [1, 2, 14, 64, 128, 2048])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 2.0, 4.0, 20.0])
def test_softmax_rows_stay_within_a_hundredth_or_two(keys, spread):
    logits = np.random.default_rng(1).normal(size=(100, keys)) * spread
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    assert row_errors(weights / weights.sum(axis=-1, keepdims=True)).max() <= limit(keys)


@pytest.mark.parametrize("keys", [2, 26, 64, 128, 512, 2048])
@pytest.mark.parametrize("sinks", [1, 2, 8])
@pytest.mark.parametrize("floor", ["flat", "two heights", "noise"])
def test_so_do_rows_with_sinks_where_a_square_root_alone_fails(keys, sinks, floor):
    rng = np.random.default_rng(2)
    rows = []
    for sunk in np.linspace(0, 0.99, 67):
        rest = np.ones(max(keys - sinks, 1))
        if floor == "two heights":
            rest[: len(rest) // 2] *= rng.uniform(1, 30)
        if floor == "noise":
            rest = np.exp(rng.normal(size=len(rest)))
        heights = np.linspace(0.8, 1.2, min(sinks, keys - 1))
        rows.append(np.concatenate([sunk * heights / heights.sum(), (1 - sunk) * rest / rest.sum()])[:keys])
    assert row_errors(np.array(rows)).max() <= limit(keys)


@pytest.mark.parametrize(("keys", "sunk"), [(64, 0.2885), (128, 0.1625), (2047, 0.1425), (2048, 0.1425)])
def test_so_does_the_worst_sink_that_was_found(keys, sunk):
    row = np.full((1, keys), (1 - sunk) / (keys - 1))
    row[0, 0] = sunk
    assert row_errors(row).max() <= limit(keys)


def test_the_root_is_the_square_root_unless_that_fails():
    ordinary = np.random.default_rng(3).dirichlet(np.ones(24), size=200)
    assert (quantize(ordinary).root == 2).mean() > 0.95
    sink = np.concatenate([[0.5], np.full(2047, 0.5 / 2047)])
    assert quantize(sink[None]).root > 2
    squared = np.rint(255 * np.sqrt(sink / 0.5))
    assert np.abs(0.5 * (squared / 255) ** 2 - sink).sum() > 0.02


def test_the_largest_weight_of_a_row_is_exact_and_nothing_stays_nothing():
    weights = np.random.default_rng(2).dirichlet(np.ones(9), size=50).astype(np.float32)
    weights[7] = 0
    np.testing.assert_array_equal(restored(weights).max(axis=-1), weights.max(axis=-1).astype(np.float64))
    np.testing.assert_array_equal(restored(weights)[7], 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1])
def test_a_row_of_what_is_no_weight_is_marked(value):
    scale = quantize(np.array([[0.5, value], [0.5, 0.5]])).scale
    assert np.isnan(scale[0])
    assert scale[1] == 0.5


def test_devices_give_the_codes_of_the_host():
    weights = np.random.default_rng(4).dirichlet(np.full(200, 0.1), size=(3, 40)).astype(np.float32)
    host, device = quantize(weights), jax.jit(quantize)(jnp.asarray(weights))
    np.testing.assert_array_equal(device.scale, host.scale)
    assert (np.asarray(device.codes) != host.codes).mean() < 0.001
    np.testing.assert_allclose(device.weights(), weights, atol=0.003)
