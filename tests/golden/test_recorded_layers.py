"""Recurrent layers, convolutions, batch norm and spectral norm with PyTorch's weights give PyTorch's values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.sagan.spectral_norm import SpectralNorm, SpectralState
from transformer.layers.batch_norm import BatchNorm, BatchStatistics
from transformer.layers.convolution import (
    Convolution1D,
    Convolution2D,
    ConvolutionActivation,
    ConvolutionWindow,
    Padding,
)
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.recurrent import CellKind, Direction, RecurrentConfig, RecurrentStack

RENEW = (
    "the values recorded from PyTorch are not reached. Weights and inputs are PyTorch's own, so a change of a layer's "
    "equations is a fault here. Renew the file with tests/golden/make_layers.py only to record other sizes or inputs"
)
Recorded = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Recorded]:
    found: dict[str, Recorded] = {}
    with np.load(Path(__file__).with_name("layers.npz")) as file:
        for name in file.files:
            case, what = name.split("/", 1)
            found.setdefault(case, {})[what] = file[name]
    return found


def close(ours: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=RENEW)


def with_gradient(function: Callable[[jax.Array], Any], weights: Any) -> Callable[[jax.Array], tuple[Any, jax.Array]]:
    """What the function gives, and the gradient of its sum weighted as PyTorch's was."""

    def loss(x: jax.Array) -> tuple[jax.Array, Any]:
        y = function(x)
        return sum(jnp.sum(w * one) for w, one in zip(jax.tree.leaves(weights), jax.tree.leaves(y), strict=True)), y

    def of(x: jax.Array) -> tuple[Any, jax.Array]:
        with jax.default_matmul_precision("highest"):
            gradient, y = jax.grad(loss, has_aux=True)(x)
        return y, gradient

    return jax.jit(of)


def recurrent_weights(case: Recorded, layers: int, orders: tuple[str, ...], gates: int) -> dict[str, Any]:
    """PyTorch's weights by our names: it has a bias for input and for state, whose sum alone matters but in GRUs."""
    found: dict[str, Any] = {}
    for number in range(layers):
        found[f"layer_{number}"] = {}
        for order in orders:
            name = f"l{number}{'_reverse' if order == 'backward' else ''}"
            of_input, of_state = (case[f"weights/{part}_{name}"] for part in ("weight_ih", "weight_hh"))
            biases = [case[f"weights/{part}_{name}"].reshape(gates, -1) for part in ("bias_ih", "bias_hh")]
            bias = biases[0] + biases[1]
            cell = {
                "kernel": np.moveaxis(of_input.reshape(gates, -1, of_input.shape[1]), 2, 0),
                "recurrent_kernel": np.moveaxis(of_state.reshape(gates, -1, of_state.shape[1]), 2, 0),
            }
            if gates == 3:
                bias[2] = biases[0][2]
                cell["candidate_bias"] = biases[1][2]
            found[f"layer_{number}"][order] = cell | {"bias": bias}
    return found


@pytest.mark.parametrize("name", ["vanilla", "gru", "lstm", "gru_deep", "lstm_deep"])
def test_recurrent_layers_are_pytorchs(recorded: dict[str, Recorded], name: str) -> None:
    case, deep = recorded[name], name.endswith("deep")
    cell = {"vanilla": CellKind.VANILLA, "gru": CellKind.GRU_RESET_AFTER, "lstm": CellKind.LSTM}[
        name.removesuffix("_deep")
    ]
    direction = Direction.BIDIRECTIONAL if deep else Direction.FORWARD
    config = RecurrentConfig(cell, case["hidden"].shape[-1], layers=2 if deep else 1, direction=direction)
    functional = FunctionalModule(lambda builder: RecurrentStack(config, case["x"].shape[-1], builder=builder))
    weights = recurrent_weights(case, config.layers, direction.cell_directions(0), len(cell.gates))
    assert jax.tree.map(lambda leaf: leaf.shape, weights) == jax.tree.map(lambda leaf: leaf.shape, functional.shapes())

    def side_by_side(states: np.ndarray) -> list[np.ndarray]:
        """PyTorch has [layer x direction, B, F]."""
        of_layers = states.reshape(config.layers, -1, *states.shape[1:])
        return [np.concatenate(list(of_layer), axis=-1) for of_layer in of_layers]

    def state(prefix: str) -> list[tuple[np.ndarray, ...]]:
        parts = [side_by_side(case[f"{prefix}{part}"]) for part in ("hidden", "memory") if f"{prefix}{part}" in case]
        return list(zip(*parts, strict=True))

    lengths = jnp.asarray(case["lengths"])
    run = with_gradient(lambda x: functional.bind(weights)(x, lengths), (case["of_y"], state("of_")))
    (y, carry), gradient = run(jnp.asarray(case["x"], jnp.float32))
    close(y, case["y"])
    for ours, expected in zip(jax.tree.leaves(carry), jax.tree.leaves(state("")), strict=True):
        close(ours, expected)
    close(gradient, case["gradient"])


WINDOWS = {
    "line": (ConvolutionWindow(3),),
    "line_strided": (ConvolutionWindow(3, stride=2, dilation=2),),
    "line_valid": (ConvolutionWindow(4, stride=2, padding=Padding.VALID),),
    "line_glu": (ConvolutionWindow(3),),
    "grid": (ConvolutionWindow(3, stride=2), ConvolutionWindow(5)),
    "grid_valid": (
        ConvolutionWindow(2, dilation=2, padding=Padding.VALID),
        ConvolutionWindow(3, padding=Padding.VALID),
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_are_pytorchs(recorded: dict[str, Recorded], name: str) -> None:
    case, windows, gated = recorded[name], WINDOWS[name], name.endswith("glu")
    x, y, of_y, expected = (np.moveaxis(case[what], 1, -1) for what in ("x", "y", "of_y", "gradient"))
    activation = ConvolutionActivation.GLU if gated else ConvolutionActivation.NONE
    kind, window = (Convolution1D, windows[0]) if len(windows) == 1 else (Convolution2D, windows)
    made: Any = {"activation": activation}
    functional = FunctionalModule(
        lambda builder: kind(x.shape[-1], ("embed", y.shape[-1]), window, builder=builder, **made)
    )
    kernel, bias = np.moveaxis(case["weights/weight"], (0, 1), (-1, -2)), case["weights/bias"]
    weights = {"kernel": kernel, "bias": bias}
    if gated:
        (first, second), (of_first, of_second) = np.split(kernel, 2, axis=-1), np.split(bias, 2)
        weights = {"kernel": first, "gate_kernel": second, "bias": of_first, "gate_bias": of_second}
    assert jax.tree.map(lambda leaf: leaf.shape, weights) == jax.tree.map(lambda leaf: leaf.shape, functional.shapes())
    found, gradient = with_gradient(lambda x: functional.bind(weights)(x), of_y)(jnp.asarray(x, jnp.float32))
    close(found, y)
    close(gradient, expected)


def test_batch_norm_is_pytorchs(recorded: dict[str, Recorded]) -> None:
    case = recorded["batch_norm"]
    functional = FunctionalModule(lambda builder: BatchNorm(case["x_0"].shape[1], builder=builder))
    norm = functional.bind({"scale": case["weights/weight"], "bias": case["weights/bias"]})
    state = norm.initial_state()
    for step in range(3):

        def train(x: jax.Array, state: BatchStatistics = state) -> Any:
            return norm(x, state, train=True)

        y_and_state, gradient = with_gradient(train, (case[f"of_y_{step}"], (np.zeros(3), np.zeros(3))))(
            jnp.asarray(case[f"x_{step}"], jnp.float32)
        )
        y, state = y_and_state
        close(y, case[f"y_{step}"])
        close(gradient, case[f"gradient_{step}"])
        close(state.mean, case[f"mean_{step}"])
        close(state.variance, case[f"variance_{step}"])
    y, after = norm(jnp.asarray(case["x_eval"], jnp.float32), state, train=False)
    close(y, case["y_eval"])
    assert after is state


def test_spectral_norm_is_pytorchs(recorded: dict[str, Recorded]) -> None:
    case = recorded["spectral_norm"]
    kernel = case["weights/weight"].T  # PyTorch's rows are outputs
    norm = FunctionalModule(lambda builder: SpectralNorm(kernel.shape)).bind({})
    state = SpectralState(jnp.asarray(case["u_0"], jnp.float32))
    for step in range(3):

        def train(kernel: jax.Array, state: SpectralState = state) -> Any:
            return norm(kernel, state, train=True)

        zeros = np.zeros(kernel.shape[1])
        (normed, state), gradient = with_gradient(train, (case[f"of_normed_{step}"].T, zeros))(jnp.asarray(kernel))
        close(normed, case[f"normed_{step}"].T)
        close(gradient, case[f"gradient_{step}"].T)
        close(state.u, case[f"u_{step + 1}"])
