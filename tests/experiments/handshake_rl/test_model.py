"""The network of an agent that attends to regions, against NumPy float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.handshake_rl.model import FAMILY, SITE, RecurrentQNetworkConfig, RegionPooling
from tests import programs
from tests.oracles import recurrent as oracle
from transformer.attention.capture import Capture
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.models.model import Model, Variables
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

ROWS, STEPS, SIDE, ACTIONS, WIDTH = 2, 3, 6, 4, 5
LENGTHS = np.array([3, 2], np.int32)
DRAWN = np.random.default_rng(0).uniform(-1, 1, (2, ROWS, STEPS, SIDE, SIDE, 1))
BEFORE = np.array([[0, 2, 4], [0, 1, 3]], np.int32)
INPUTS = {"gray": DRAWN[0], "depth": DRAWN[1], "actions": BEFORE, "lengths": LENGTHS}


def config_of(region_pooling: RegionPooling) -> RecurrentQNetworkConfig:
    return RecurrentQNetworkConfig(GridEncoderConfig((3, 2), (3, 1)), region_pooling, WIDTH)


def model_of(region_pooling: RegionPooling) -> Model:
    image = InputSpec((ROWS, STEPS, SIDE, SIDE, 1), jnp.float32, Modality.IMAGE)
    interface = TaskInterface({"gray": image, "depth": image}, {"actions": ACTIONS})
    return FAMILY.build(config_of(region_pooling), interface, Precision("float64", "float64"))


def variables_of(model: Model) -> Variables:
    normal = np.random.default_rng(1).normal
    shapes = model.functional.shapes()
    return Variables(jax.tree.map(lambda leaf: 0.7 * normal(size=leaf.shape), shapes), {})


def grid(weights: Any, image: np.ndarray) -> np.ndarray:
    """Two stages of relu(norm(convolution)), place by place."""
    x = image
    for stage, stride in ((weights["stage_0"], 3), (weights["stage_1"], 1)):
        kernel, side = stage["convolution"]["kernel"], x.shape[0] // stride
        padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        out = np.zeros((side, side, kernel.shape[-1]))
        for row, column in np.ndindex(side, side):
            seen = padded[row * stride : row * stride + 3, column * stride : column * stride + 3]
            sums = np.einsum("vwi,vwif->f", seen, kernel)
            normed = (sums - sums.mean()) / np.sqrt(sums.var() + 1e-6)
            out[row, column] = np.maximum(normed * stage["norm"]["scale"] + stage["norm"]["bias"], 0)
        x = out
    return x.reshape(-1, x.shape[-1])


def expected(weights: Any, region_pooling: RegionPooling, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The values of every real step, and the attention."""
    state, values, maps = oracle.zeros("lstm", WIDTH), [], []
    for t in range(LENGTHS[row]):
        streams = [grid(weights[name], INPUTS[name][row, t]) for name in ("gray", "depth")]
        regions = np.concatenate(streams, axis=1)
        match region_pooling:
            case RegionPooling.ATTENTION:
                score = {name: value[0] for name, value in weights["attention"]["score"].items()}
                logits = np.tanh(regions @ score["keys"] + state.hidden @ score["queries"]) @ score["vector"]
                attention = np.exp(logits) / np.exp(logits).sum()
                maps.append(attention)
                read = attention @ regions
            case RegionPooling.MEAN:
                read = regions.mean(axis=0)
            case RegionPooling.CONCATENATE:
                read = regions.reshape(-1)
        before = np.eye(ACTIONS + 1)[BEFORE[row, t]][1:]
        state = oracle.step("lstm", weights["recurrent"]["forward"], np.concatenate([read, before]), state)
        values.append(state.hidden @ weights["values"]["kernel"] + weights["values"]["bias"])
    return np.array(values), np.array(maps)


@pytest.mark.parametrize("region_pooling", RegionPooling)
def test_values_and_maps_are_those_of_the_equations_and_a_step_alone_gives_the_same(
    region_pooling: RegionPooling,
) -> None:
    with jax.enable_x64(True):
        model = model_of(region_pooling)
        variables = variables_of(model)
        attends = region_pooling is RegionPooling.ATTENTION
        capture = Capture((SITE,)) if attends else None
        values, aux = programs.apply(model, variables, INPUTS, train=False, capture=capture)
        state, _ = programs.apply(model, variables, {"actions": BEFORE[:, 0]}, method="begin", train=False)
        alone = []
        for t in range(STEPS):
            now = {name: value[:, t] for name, value in INPUTS.items() if name != "lengths"}
            (of_step, state), _ = programs.apply(model, variables, {**now, "state": state}, method="act", train=False)
            alone.append(of_step)
        alone = np.stack(alone, axis=1)
    assert bool(model.sites) == attends
    for row, length in enumerate(LENGTHS):
        found, maps = expected(variables.params, region_pooling, row)
        np.testing.assert_allclose(values[row, :length], found, rtol=0, atol=1e-11)
        np.testing.assert_allclose(alone[row, :length], found, rtol=0, atol=1e-11)
        if attends:
            assert aux.maps[SITE].weights.shape == (1, ROWS, 1, STEPS, 4)
            np.testing.assert_allclose(aux.maps[SITE].weights[0, row, 0, :length], maps, rtol=0, atol=1e-11)
