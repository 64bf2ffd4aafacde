"""Convolutions against NumPy float64; causal ones also a position at a time."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.gradients import check_gradient
from tests.oracles import recurrent as oracle
from transformer.layers.convolution import (
    Convolution1D,
    Convolution2D,
    ConvolutionActivation,
    ConvolutionWindow,
    Padding,
)
from transformer.layers.functional_module import FunctionalModule
from transformer.logical_axes import RULES, partition_spec

B, T, INPUTS, OUTPUTS = 3, 7, 2, 3
LENGTHS = np.int32([7, 4, 0])


@functools.cache
def line_of(window: ConvolutionWindow, activation: ConvolutionActivation, bias: bool = True) -> FunctionalModule:
    made = {"activation": activation, "bias": bias}
    return FunctionalModule(lambda builder: Convolution1D(INPUTS, ("embed", OUTPUTS), window, builder=builder, **made))


def random_weights(functional: FunctionalModule) -> dict[str, Any]:
    normal = np.random.default_rng(0).normal
    return jax.tree.map(lambda leaf: normal(size=leaf.shape).astype(leaf.dtype), functional.shapes())


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape)


def line(window: ConvolutionWindow) -> oracle.Line:
    return oracle.Line(window.size, window.stride, window.dilation, window.padding.value)


LINES = [
    (ConvolutionWindow(3), ConvolutionActivation.RELU),
    (ConvolutionWindow(4, stride=2, dilation=2), ConvolutionActivation.GTU),
    (ConvolutionWindow(2, stride=3, padding=Padding.SAME), ConvolutionActivation.NONE),
    (ConvolutionWindow(3, dilation=2, padding=Padding.CAUSAL), ConvolutionActivation.GLU),
    (ConvolutionWindow(2, stride=2, padding=Padding.CAUSAL), ConvolutionActivation.NONE),
    (ConvolutionWindow(3, stride=2, padding=Padding.VALID), ConvolutionActivation.GLU),
]


@pytest.mark.parametrize(("window", "activation"), LINES)
def test_a_convolution_over_rows_of_any_length_is_the_oracles(
    window: ConvolutionWindow, activation: ConvolutionActivation
) -> None:
    functional = line_of(window, activation)
    weights, x = random_weights(functional), random(B, T, INPUTS)
    real = np.arange(T)[None, :, None] < LENGTHS[:, None, None]
    padded = np.where(real, x, np.nan)
    assert ("gate_kernel" in weights) == ("gate_bias" in weights) == activation.gated

    def of(x: Any) -> Any:
        y = functional.bind(weights)(x, jnp.asarray(LENGTHS))
        return jnp.sum(jnp.square(y)), y

    with jax.enable_x64(True):
        (gradient, y), counts = jax.device_get(
            jax.jit(lambda x: (jax.grad(of, has_aux=True)(x), window.num_outputs(jnp.asarray(LENGTHS))))(padded)
        )
    assert y.shape == (B, line(window).outputs(T), OUTPUTS)
    for row, length in enumerate(LENGTHS):
        assert counts[row] == line(window).outputs(int(length))
        # A row as it would be alone: what stands behind it changes nothing.
        expected = oracle.convolution((line(window),), activation.value, weights, x[row, :length])
        np.testing.assert_allclose(y[row, : counts[row]], expected, rtol=0, atol=1e-12)
        assert (np.asarray(y)[row, counts[row] :] == 0).all()
    assert (np.asarray(gradient)[~np.broadcast_to(real, x.shape)] == 0).all()
    assert np.isfinite(gradient).all()


def test_gradients_are_right() -> None:
    functional = line_of(*LINES[3])
    with jax.enable_x64(True):
        check_gradient(
            lambda weights, x: functional.bind(weights)(x, jnp.asarray(LENGTHS)),
            (random_weights(functional), random(B, T, INPUTS)),
            atol=1e-6,
            rtol=1e-6,
        )


def test_a_causal_convolution_a_position_at_a_time_is_the_whole_one_and_reads_nothing_later() -> None:
    window, activation = LINES[3]
    functional = line_of(window, activation)
    weights, x = random_weights(functional), random(B, T, INPUTS)
    convolution = functional.bind(weights)
    with jax.enable_x64(True):
        whole = np.asarray(jax.jit(convolution)(x))
        past = convolution.initial(B, jnp.float64)
        assert past.shape == (B, window.receptive_span - 1, INPUTS)
        step = jax.jit(convolution.step)
        for place in range(T):
            y, past = step(x[:, place], past)
            np.testing.assert_allclose(y, whole[:, place], rtol=0, atol=1e-12)
        for row in range(B):
            expected = oracle.convolution((line(window),), activation.value, weights, x[row])
            np.testing.assert_allclose(whole[row], expected, rtol=0, atol=1e-12)
    jacobian = jax.jit(jax.jacrev(lambda x: jnp.sum(convolution(x[None])[0], axis=-1)))(jnp.float32(x[0]))
    reads = np.abs(np.asarray(jacobian)).max(-1) != 0
    distance = np.arange(T)[:, None] - np.arange(T)
    np.testing.assert_array_equal(reads, (distance >= 0) & (distance <= 4) & (distance % 2 == 0))


GRIDS = [
    ((ConvolutionWindow(3, stride=2), ConvolutionWindow(2, dilation=2)), ConvolutionActivation.GLU),
    (
        (ConvolutionWindow(2, padding=Padding.VALID), ConvolutionWindow(3, stride=2, padding=Padding.VALID)),
        ConvolutionActivation.RELU,
    ),
]


@pytest.mark.parametrize(("windows", "activation"), GRIDS)
def test_a_convolution_over_grids_is_the_oracles(
    windows: tuple[ConvolutionWindow, ConvolutionWindow], activation: ConvolutionActivation
) -> None:
    made = {"activation": activation, "bias": False}
    functional = FunctionalModule(
        lambda builder: Convolution2D(INPUTS, ("embed", OUTPUTS), windows, builder=builder, **made)
    )
    weights, x = random_weights(functional), random(2, 4, 5, INPUTS)
    assert set(weights) == {"kernel"} | ({"gate_kernel"} if activation.gated else set())
    with jax.enable_x64(True):
        y = jax.jit(lambda x: functional.bind(weights)(x))(jnp.asarray(x))
    lines = tuple(line(window) for window in windows)
    for row in range(2):
        expected = oracle.convolution(lines, activation.value, weights, x[row])
        np.testing.assert_allclose(y[row], expected, rtol=0, atol=1e-12)


def test_weights_begin_by_the_numbers_that_come_in_and_go_out_of_a_window() -> None:
    functional = line_of(ConvolutionWindow(3), ConvolutionActivation.GLU)
    fresh = functional.init(jax.random.key(0))
    bound = np.sqrt(6 / (3 * INPUTS + 3 * OUTPUTS))
    for name in ("kernel", "gate_kernel"):
        assert 0.8 * bound < np.abs(fresh[name]).max() <= bound
    assert (np.asarray(fresh["kernel"]) != np.asarray(fresh["gate_kernel"])).all()
    assert not np.asarray(fresh["bias"]).any()
    for names in jax.tree.leaves(functional.axes(), is_leaf=lambda leaf: isinstance(leaf, tuple)):
        for rules in RULES.values():
            partition_spec(names, rules)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="dilation=0 of a convolution's window must be at least 1"):
        ConvolutionWindow(3, dilation=0)
    with pytest.raises(ValueError, match="padding=causal is of sequences"):
        FunctionalModule(
            lambda builder: Convolution2D(
                1, ("embed", 1), (ConvolutionWindow(1), ConvolutionWindow(1, padding=Padding.CAUSAL)), builder=builder
            )
        )
    functional = line_of(ConvolutionWindow(3), ConvolutionActivation.RELU)
    convolution = functional.bind(random_weights(functional))
    with pytest.raises(ValueError, match="padding=same with stride=1 has no output for each new position"):
        convolution.step(jnp.ones((B, INPUTS)), convolution.initial(B, jnp.float32))
