"""The reader of text against its equations in NumPy float64, and its steps against teacher forcing."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.scene_text.model import FAMILY, AttentionInput, ShowAttendReadConfig
from tests.layers.test_grid_encoder import convolved, normed
from tests.models.random_models import random_variables, whole_and_stepped
from tests.oracles import recurrent as oracle
from transformer.attention import STATISTICS, AxisKind, Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.models.model import Model
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

PAD, BEGIN, GLYPHS = 0, 1, 7
RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(3, 6, 8, 2)).astype(np.float32)
TARGET = np.int32([[1, 4, 3, 5], [1, 6, 0, 0], [1, 2, 2, 0]])
STEPS = (4, 2, 3)
INPUTS = {"image": IMAGE, "target": TARGET}
INTERFACE = TaskInterface(
    {"image": InputSpec(IMAGE.shape, jnp.float32, Modality.IMAGE), "target": InputSpec(TARGET.shape)},
    {"target": GLYPHS},
    PAD,
    BEGIN,
    2,
)
# A grid of 3 x 4 places.
CONFIG = ShowAttendReadConfig(GridEncoderConfig(channels=(3, 4), strides=(2, 1)), width=5, layers=2)
CASES = {each.value: dataclasses.replace(CONFIG, attention_input=each) for each in AttentionInput}


def model_of(config: ShowAttendReadConfig, precision: str = "float64") -> Model:
    return FAMILY.build(config, INTERFACE, Precision(precision, precision))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


class Lstm:
    """Layers of an LSTM over one sequence."""

    def __init__(self, weights: Any, width: int):
        self.weights = [weights[f"layer_{number}"]["forward"] for number in range(len(weights))]
        self.states = [oracle.State(np.zeros(width), np.zeros(width)) for _ in self.weights]

    def read(self, x: np.ndarray) -> np.ndarray:
        for number, weights in enumerate(self.weights):
            self.states[number] = oracle.step("lstm", weights, x, self.states[number])
            x = self.states[number].hidden
        return x


def told(
    config: ShowAttendReadConfig, weights: Any, image: np.ndarray, glyphs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The logits and the probabilities of the places at every step of one example."""
    v = image.astype(np.float64)
    for number, stride in enumerate(config.image_encoder.strides):
        stage = weights["grid"][f"stage_{number}"]
        v = np.maximum(normed(convolved(v, stage["convolution"]["kernel"], stride), stage["norm"]), 0)
    rows, columns, features = v.shape
    encoder, decoder = Lstm(weights["encoder"], config.width), Lstm(weights["decoder"], config.width)
    pooled = np.zeros((columns, features))
    for column in range(columns):
        pooled[column] = [max(v[row, column, feature] for row in range(rows)) for feature in range(features)]
        holistic = encoder.read(pooled[column])
    decoder.read(holistic @ weights["holistic"]["kernel"])
    if config.attention_input is AttentionInput.COLUMNS:
        v = pooled[None]
        rows = 1
    score = {name: weights["attention"]["score"][name][0] for name in ("keys", "queries", "vector")}
    logits, seen = [], []
    for glyph in glyphs:
        h = decoder.read(weights["embedding"]["table"][glyph].astype(np.float64))
        e = np.zeros((rows, columns))
        for i in range(rows):
            for j in range(columns):
                inner = v[i, j] @ score["keys"] + h @ score["queries"]
                around = [(p, q) for p in (-1, 0, 1) for q in (-1, 0, 1) if (p, q) != (0, 0)]
                for number, (p, q) in enumerate(around):
                    if (
                        config.attention_input is AttentionInput.NEIGHBORS
                        and 0 <= i + p < rows
                        and 0 <= j + q < columns
                    ):
                        inner = inner + v[i + p, j + q] @ weights["neighbors"]["kernel"][:, number]
                e[i, j] = np.tanh(inner) @ score["vector"]
        alpha = softmax(e)
        glimpse = sum(alpha[i, j] * v[i, j] for i in range(rows) for j in range(columns))
        seen.append(alpha.ravel())
        logits.append(np.concatenate([h, glimpse]) @ weights["output"]["kernel"])
    return np.array(logits), np.array(seen)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_maps_are_those_of_the_equations(name: str) -> None:
    config = CASES[name]
    with jax.enable_x64(True):
        model = model_of(config)
        variables = random_variables(model)
        look = jax.jit(lambda given: model.apply(variables, given, train=False, capture=Capture((SITE,))))
        logits, aux = jax.device_get(look(INPUTS))
    for row, steps in enumerate(STEPS):
        expected, seen = told(config, variables.params, IMAGE[row], TARGET[row, :steps])
        np.testing.assert_allclose(logits[row, :steps], expected, rtol=0, atol=1e-11)
        weights = aux.maps[SITE].weights[0, row, 0]
        np.testing.assert_allclose(weights[:steps], seen, rtol=0, atol=1e-11)
        assert (weights[steps:] == 0).all()


@pytest.mark.parametrize(
    "name", ["neighbors", *(pytest.param(each, marks=pytest.mark.slow) for each in ("plain", "columns"))]
)
def test_steps_of_decoding_are_teacher_forcing_for_every_beam(name: str) -> None:
    """Two beams an example that say different things look at the same image."""
    model, num_beams = model_of(CASES[name], "float32"), 2
    variables = random_variables(model)
    said = np.repeat(np.int32([[1, 4, 3, 5], [1, 6, 2, 4], [1, 2, 2, 3]]), num_beams, axis=0)
    said[1::2, 1:] = said[1::2, [2, 1, 3]]
    asked = Capture((SITE,), statistics=(STATISTICS["entropy"],), by_example=True)

    tiled = {"image": np.repeat(IMAGE, num_beams, 0), "target": said}
    (whole, aux), (first, logits_TxRxV, maps) = whole_and_stepped(
        model, variables, INPUTS, said, num_beams, asked, whole_inputs=tiled
    )
    assert (first == BEGIN).all()
    np.testing.assert_allclose(np.moveaxis(logits_TxRxV, 0, 1), whole, rtol=1e-5, atol=1e-5)
    weights = np.moveaxis(maps[SITE].weights[:, 0, :, :, 0], 0, 2)  # [row, head, step, key]
    np.testing.assert_allclose(weights, aux.maps[SITE].weights[0], atol=1e-6)
    entropies = maps[SITE].sums["entropy"][:, 0].sum(0)
    np.testing.assert_allclose(entropies, aux.maps[SITE].sums["entropy"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_flops_are_two_for_each_matrix_element_and_place(name: str) -> None:
    """Counted from the parameters: every matrix is applied once at each place, column or glyph that it reads."""
    config = CASES[name]
    rows, steps, places, columns = len(IMAGE), TARGET.shape[1], 12, 4
    keys = columns if name == "columns" else places
    uses = {"grid": places, "encoder": columns, "holistic": 1, "decoder": 1 + steps, "neighbors": places}
    uses |= {"keys": keys, "vector": steps * keys}
    total = 2 * steps * keys * config.image_encoder.width  # the glimpses, which have no parameters
    for path, leaf in jax.tree_util.tree_leaves_with_path(model_of(config, "float32").functional.shapes()):
        names = [entry.key for entry in path]
        if names[-1] in ("bias", "scale", "table"):
            continue  # biases, and what is looked up
        total += 2 * leaf.size * next((times for use, times in uses.items() if use in names), steps)
    assert forward_flops(model_of(config, "float32"), INPUTS) == rows * total


def test_places_are_a_grid_and_columns_are_not() -> None:
    for name, config in CASES.items():
        (site,) = model_of(config, "float32").sites
        assert site.query.name == "target"
        if name == "columns":
            assert (site.key.name, site.key.kind, site.key.num_positions) == ("columns", AxisKind.STEPS, 4)
        else:
            assert (site.key.name, site.key.shape, site.key.stride) == ("grid", (3, 4), 2.0)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"layers": 0}])
def test_sizes_below_one_are_refused(wrong: dict) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(UserError, match=f"config.model.{name}={value} must be at least 1"):
        dataclasses.replace(CONFIG, **wrong)


def test_images_that_the_strides_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="are not divided by 5"):
        model_of(dataclasses.replace(CONFIG, image_encoder=GridEncoderConfig((4,), (5,))))
