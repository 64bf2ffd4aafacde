"""The pointer network against its equations in NumPy float64, its steps against teacher forcing, and its FLOPs."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.pointer_networks.model import FAMILY, SITE, DecoderInputKind, PointerNetworkConfig
from tests import programs
from tests.models.random_models import random_variables, whole_and_stepped
from tests.oracles import recurrent as oracle
from transformer.attention import STATISTICS, Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.recurrent import CellKind, Direction, RecurrentConfig
from transformer.models.model import Model, Variables
from transformer.models.task_interface import TaskInterface

POINTS = np.random.default_rng(0).random((3, 4, 2)).astype(np.float32)
LENGTHS = np.int32([4, 3, 1])
# Behind the first number, which begins: points by number, 0 behind the last one. A hull, and what is none.
TARGET = np.int32([[0, 2, 1, 4, 0], [0, 3, 3, 1, 2], [0, 1, 0, 0, 0]])
STEPS = np.int32([4, 5, 2])
INPUTS = {"points": POINTS, "lengths": LENGTHS, "target": TARGET}


class Case(NamedTuple):
    """A config, with the words that the oracle knows it by."""

    decoder_input: DecoderInputKind = DecoderInputKind.POINT
    cell: CellKind = CellKind.LSTM
    direction: Direction = Direction.FORWARD
    layers: int = 1
    decoder_layers: int = 1

    @property
    def config(self) -> PointerNetworkConfig:
        encoder = RecurrentConfig(self.cell, 3, self.layers, self.direction)
        return PointerNetworkConfig(encoder, self.decoder_layers, self.decoder_input)


CASES = (
    Case(),
    Case(DecoderInputKind.ENCODED, direction=Direction.BIDIRECTIONAL),
    Case(DecoderInputKind.ENCODED, CellKind.GRU_RESET_AFTER, layers=2, decoder_layers=2),
    Case(cell=CellKind.VANILLA, direction=Direction.BIDIRECTIONAL, layers=2),
)


def model_of(config: PointerNetworkConfig, precision: str = "float64") -> Model:
    return FAMILY.build(config, TaskInterface({}, {}), Precision(precision, precision))


def expected(case: Case, weights: Any, row: int) -> np.ndarray:
    """The logits [step, end and points] of one example, one step and one key after another."""
    points = POINTS[row, : LENGTHS[row]].astype(np.float64)
    of_encoder = oracle.Stack(case.cell.value, case.direction.value, case.layers)
    encoded, carry = oracle.stack(of_encoder, weights["encoder"], points[None], np.array([len(points)]))
    keys = [weights["end"], *encoded[0]]
    decoder_input = [weights["begin"], *(points if case.decoder_input is DecoderInputKind.POINT else encoded[0])]
    states = [of_layer[0] for of_layer in carry[case.layers - case.decoder_layers :]]
    matrix = {name: weights["pointer"]["score"][name][0] for name in ("keys", "queries", "vector")}
    logits = []
    for number in TARGET[row, : STEPS[row]]:
        x = decoder_input[number]
        for layer, state in enumerate(states):
            states[layer] = oracle.step(case.cell.value, weights["decoder"][f"layer_{layer}"]["forward"], x, state)
            x = states[layer].hidden
        hidden = [np.tanh(key @ matrix["keys"] + x @ matrix["queries"]) for key in keys]
        logits.append([unit @ matrix["vector"] for unit in hidden])
    return np.array(logits)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.decoder_input.value}-{case.cell.value}-{case.direction.value}"
)
def test_the_logits_are_those_of_the_equations_and_the_map_is_their_softmax(case: Case) -> None:
    with jax.enable_x64(True):
        model = model_of(case.config)
        variables = random_variables(model)
        logits, aux = programs.apply(model, variables, INPUTS, train=False, capture=Capture((SITE,)))
        logits, weights = np.asarray(logits), np.asarray(aux.maps[SITE].weights)
    assert weights.shape == (1, 3, 1, 5, 5)
    for row, (points, steps) in enumerate(zip(LENGTHS, STEPS, strict=True)):
        found = expected(case, variables.params, row)
        np.testing.assert_allclose(logits[row, :steps, : points + 1], found, rtol=0, atol=1e-11)
        assert (logits[row, :, points + 1 :] < -1e8).all()
        softmax = np.exp(found) / np.exp(found).sum(-1, keepdims=True)
        np.testing.assert_allclose(weights[0, row, 0, :steps, : points + 1], softmax, rtol=0, atol=1e-11)
        assert (weights[0, row, 0, :, points + 1 :] == 0).all()


def test_what_stands_behind_the_points_has_no_effect_on_logits_or_gradients() -> None:
    with jax.enable_x64(True):
        model = model_of(CASES[1].config)
        variables = random_variables(model)
        padding = np.arange(4) >= LENGTHS[:, None]

        def scored(params: Any, points: Any) -> Any:
            logits, _ = model.apply(Variables(params, {}), {**INPUTS, "points": points}, train=True)
            real = (np.arange(5) < STEPS[:, None])[..., None] & (np.arange(5) <= LENGTHS[:, None])[:, None]
            return jnp.sum(jnp.where(real, jnp.sin(logits), 0)), logits

        slopes = jax.jit(jax.value_and_grad(scored, (0, 1), has_aux=True))

        def found(filling: float) -> Any:
            points = np.where(padding[..., None], np.float32(filling), POINTS)
            (_, logits), gradients = slopes(variables.params, points)
            return jax.device_get((logits, gradients))

        zeros, nans = found(0.0), found(np.nan)
        jax.tree.map(np.testing.assert_array_equal, nans, zeros)
        assert (zeros[1][1][padding] == 0).all()
        assert (zeros[1][1][~padding] != 0).any()


@pytest.mark.parametrize(
    "decoder_input", [pytest.param(DecoderInputKind.POINT, marks=pytest.mark.slow), DecoderInputKind.ENCODED]
)
def test_steps_of_decoding_are_teacher_forcing_for_every_beam(decoder_input: DecoderInputKind) -> None:
    """Two beams an example that say different things read the same points."""
    model = model_of(
        Case(decoder_input, direction=Direction.BIDIRECTIONAL, layers=2, decoder_layers=2).config, "float32"
    )
    variables, num_beams = random_variables(model), 2
    said = np.repeat(TARGET, num_beams, axis=0)
    said[1::2, 1:] = said[1::2, [2, 1, 4, 3]]
    said = np.minimum(said, np.repeat(LENGTHS, num_beams)[:, None])
    said[:, 1:] = np.maximum(said[:, 1:], 1)  # all steps are real
    capture = Capture((SITE,), statistics=(STATISTICS["entropy"],), by_example=True)

    tiled = {"points": np.repeat(POINTS, num_beams, 0), "lengths": np.repeat(LENGTHS, num_beams), "target": said}
    (whole, aux), (first, logits_TxRxK, maps) = whole_and_stepped(
        model, variables, INPUTS, said, num_beams, capture, whole_inputs=tiled
    )
    assert (first == said[:, 0]).all()
    captured = maps[SITE]
    np.testing.assert_allclose(np.moveaxis(logits_TxRxK, 0, 1), whole, rtol=1e-5, atol=1e-5)
    weights = np.moveaxis(captured.weights[:, 0, :, :, 0], 0, 2)  # [row, head, step, key]
    np.testing.assert_allclose(weights, aux.maps[SITE].weights[0], atol=1e-6)
    entropies = captured.sums["entropy"][:, 0].sum(0)
    np.testing.assert_allclose(entropies, aux.maps[SITE].sums["entropy"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_dropout_acts_in_training_alone_and_by_its_key() -> None:
    config = dataclasses.replace(CASES[2].config.encoder, dropout=0.5)
    model = model_of(PointerNetworkConfig(config, decoder_layers=2), "float32")
    variables = random_variables(model)

    def logits(train: bool, key: int) -> np.ndarray:
        return np.asarray(programs.apply(model, variables, INPUTS, train=train, key=jax.random.key(key))[0])

    np.testing.assert_array_equal(logits(False, 1), logits(False, 2))
    np.testing.assert_array_equal(logits(True, 1), logits(True, 1))
    assert (logits(True, 1) != logits(True, 2)).any()


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.decoder_input.value}-{case.cell.value}-{case.direction.value}"
)
def test_the_flops_are_two_for_each_matrix_element_and_position(case: Case) -> None:
    """Counted from the parameters: every matrix is applied once at each position that it reads."""
    model = model_of(case.config, "float32")
    rows, points, steps = POINTS.shape[0], POINTS.shape[1], TARGET.shape[1]
    uses = {"encoder": points, "decoder": steps, "keys": points + 1, "queries": steps, "vector": steps * (points + 1)}
    total = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.functional.shapes()):
        names = [entry.key for entry in path]
        if "bias" in names[-1] or len(names) == 1:
            continue  # biases, and what begins and ends
        total += 2 * leaf.size * next(times for name, times in uses.items() if name in names)
    assert forward_flops(model, INPUTS) == rows * total


@pytest.mark.parametrize(("layers", "said"), [(0, "at least 1"), (3, "1 to 2, config.model.encoder.layers")])
def test_decoder_layers_without_a_state_to_begin_with_are_refused(layers: int, said: str) -> None:
    with pytest.raises(UserError, match=f"config.model.decoder_layers={layers} must be {said}"):
        PointerNetworkConfig(RecurrentConfig(layers=2), layers)


def test_decoder_layers_that_begin_with_a_state_of_another_width_are_refused() -> None:
    """Of a stack that is bidirectional below, the lowest layer has twice the features of the others."""
    encoder = RecurrentConfig(width=8, layers=2, direction=Direction.BIDIRECTIONAL_BELOW)
    with pytest.raises(UserError, match=r"decoder_layers=2 .* 16 features .* 8: say config.model.decoder_layers=1"):
        PointerNetworkConfig(encoder, 2)
    for allowed in (PointerNetworkConfig(encoder, 1), PointerNetworkConfig(dataclasses.replace(encoder, layers=1), 1)):
        model = model_of(allowed, "float32")
        outputs = jax.eval_shape(lambda model=model: model.apply(model.init(jax.random.key(0)), INPUTS, train=False))
        assert outputs[0].shape == (3, 5, 5)
