"""Pointer network and baselines against their equations in NumPy float64, steps against teacher forcing, and FLOPs."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.pointer_networks.model import (
    ATTENTION_SITE,
    FAMILY,
    SITE,
    DecoderInputKind,
    OutputKind,
    PointerNetworkConfig,
)
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
    output: OutputKind = OutputKind.POINTER

    @property
    def config(self) -> PointerNetworkConfig:
        encoder = RecurrentConfig(self.cell, 3, self.layers, self.direction)
        return PointerNetworkConfig(encoder, self.decoder_layers, self.decoder_input, self.output)


def name_of(case: Case) -> str:
    return "-".join(part.value for part in (case.output, case.decoder_input, case.cell, case.direction))


POINTERS = (
    Case(),
    Case(DecoderInputKind.ENCODED, direction=Direction.BIDIRECTIONAL),
    Case(DecoderInputKind.ENCODED, CellKind.GRU_RESET_AFTER, layers=2, decoder_layers=2),
    Case(cell=CellKind.VANILLA, direction=Direction.BIDIRECTIONAL, layers=2),
)
VOCABULARY = 7  # the end and six points, two more than the batch has
BASELINES = (
    Case(DecoderInputKind.INDEX, output=OutputKind.FIXED_VOCABULARY),
    Case(DecoderInputKind.POINT, CellKind.GRU_RESET_AFTER, layers=2, output=OutputKind.FIXED_VOCABULARY),
    Case(
        DecoderInputKind.INDEX,
        direction=Direction.BIDIRECTIONAL,
        layers=2,
        decoder_layers=2,
        output=OutputKind.FIXED_VOCABULARY_WITH_ATTENTION,
    ),
    Case(
        DecoderInputKind.ENCODED,
        CellKind.GRU_RESET_AFTER,
        layers=2,
        output=OutputKind.FIXED_VOCABULARY_WITH_ATTENTION,
    ),
)
SITES = {
    OutputKind.POINTER: (SITE,),
    OutputKind.FIXED_VOCABULARY: (),
    OutputKind.FIXED_VOCABULARY_WITH_ATTENTION: (ATTENTION_SITE,),
}


def model_of(config: PointerNetworkConfig, precision: str = "float64") -> Model:
    interface = TaskInterface({}, {"target": VOCABULARY}, pad_id=0, bos_id=0)
    return FAMILY.build(config, interface, Precision(precision, precision))


def softmax(logits: Any) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def expected(case: Case, weights: Any, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The logits [step, end and points] and the attention [step, key] of one example, one step after another."""
    points = POINTS[row, : LENGTHS[row]].astype(np.float64)
    of_encoder = oracle.Stack(case.cell.value, case.direction.value, case.layers)
    encoded, carry = oracle.stack(of_encoder, weights["encoder"], points[None], np.array([len(points)]))
    attended = weights.get("pointer", weights.get("attention"))
    keys = [weights["end"], *encoded[0]] if case.output is OutputKind.POINTER else [*encoded[0]]
    match case.decoder_input:
        case DecoderInputKind.POINT:
            following = points
        case DecoderInputKind.ENCODED:
            following = encoded[0]
        case DecoderInputKind.INDEX:
            table = weights["embedding"]["table"]
    states = [of_layer[0] for of_layer in carry[case.layers - case.decoder_layers :]]
    context = np.zeros_like(encoded[0, 0])
    logits, attention = [], []
    for number in TARGET[row, : STEPS[row]]:
        if case.decoder_input is DecoderInputKind.INDEX:
            x = table[number]
        else:
            first = weights["begin" if case.output is OutputKind.POINTER else "first_input"]
            x = following[number - 1] if number else first
        if case.output is OutputKind.FIXED_VOCABULARY_WITH_ATTENTION:
            x = np.concatenate([x, context])
        for layer, state in enumerate(states):
            states[layer] = oracle.step(case.cell.value, weights["decoder"][f"layer_{layer}"]["forward"], x, state)
            x = states[layer].hidden
        scores = []
        if attended is not None:
            matrix = {name: attended["score"][name][0] for name in ("keys", "queries", "vector")}
            hidden = [np.tanh(key @ matrix["keys"] + x @ matrix["queries"]) for key in keys]
            scores = [unit @ matrix["vector"] for unit in hidden]
            attention.append(softmax(scores))
        if case.output is OutputKind.POINTER:
            logits.append(scores)
            continue
        if case.output is OutputKind.FIXED_VOCABULARY_WITH_ATTENTION:
            context = sum(weight * key for weight, key in zip(attention[-1], keys, strict=True))
            x = np.concatenate([x, context])
        # Of the vocabulary, the end and the points that the example has.
        logits.append((x @ weights["output"]["kernel"] + weights["output"]["bias"])[: len(points) + 1])
    return np.array(logits), np.array(attention)


@pytest.mark.parametrize("case", [*POINTERS, *BASELINES], ids=name_of)
def test_logits_and_maps_are_those_of_the_equations(case: Case) -> None:
    with jax.enable_x64(True):
        model = model_of(case.config)
        variables = random_variables(model)
        sites = SITES[case.output]
        assert tuple(site.name for site in model.sites) == sites
        logits, aux = programs.apply(model, variables, INPUTS, train=False, capture=Capture(sites))
        logits, maps = np.asarray(logits), {name: np.asarray(found.weights) for name, found in aux.maps.items()}
    assert tuple(maps) == sites
    for row, (points, steps) in enumerate(zip(LENGTHS, STEPS, strict=True)):
        found, attention = expected(case, variables.params, row)
        np.testing.assert_allclose(logits[row, :steps, : points + 1], found, rtol=0, atol=1e-11)
        assert (logits[row, :, points + 1 :] < -1e8).all()
        for weights in maps.values():
            keys = attention.shape[-1]
            assert weights.shape == (1, 3, 1, 5, POINTS.shape[1] + keys - points)
            np.testing.assert_allclose(weights[0, row, 0, :steps, :keys], attention, rtol=0, atol=1e-11)
            assert (weights[0, row, 0, :, keys:] == 0).all()
        if case.output is OutputKind.POINTER:
            np.testing.assert_allclose(attention, softmax(found), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "case", [POINTERS[1], pytest.param(BASELINES[2], marks=pytest.mark.slow)], ids=lambda case: case.output.value
)
def test_what_stands_behind_the_points_has_no_effect_on_logits_or_gradients(case: Case) -> None:
    with jax.enable_x64(True):
        model = model_of(case.config)
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
    ("decoder_input", "output"),
    [
        pytest.param(DecoderInputKind.POINT, OutputKind.POINTER, marks=pytest.mark.slow),
        (DecoderInputKind.ENCODED, OutputKind.POINTER),
        pytest.param(DecoderInputKind.INDEX, OutputKind.FIXED_VOCABULARY, marks=pytest.mark.slow),
        (DecoderInputKind.INDEX, OutputKind.FIXED_VOCABULARY_WITH_ATTENTION),
    ],
    ids=lambda kind: kind.value,
)
def test_steps_of_decoding_are_teacher_forcing_for_every_beam(
    decoder_input: DecoderInputKind, output: OutputKind
) -> None:
    """Two beams an example that say different things read the same points."""
    model = model_of(
        Case(decoder_input, direction=Direction.BIDIRECTIONAL, layers=2, decoder_layers=2, output=output).config,
        "float32",
    )
    variables, num_beams = random_variables(model), 2
    said = np.repeat(TARGET, num_beams, axis=0)
    said[1::2, 1:] = said[1::2, [2, 1, 4, 3]]
    said = np.minimum(said, np.repeat(LENGTHS, num_beams)[:, None])
    said[:, 1:] = np.maximum(said[:, 1:], 1)  # all steps are real
    capture = Capture(SITES[output], statistics=(STATISTICS["entropy"],), by_example=True)

    tiled = {"points": np.repeat(POINTS, num_beams, 0), "lengths": np.repeat(LENGTHS, num_beams), "target": said}
    (whole, aux), (first, logits_TxRxK, maps) = whole_and_stepped(
        model, variables, INPUTS, said, num_beams, capture, whole_inputs=tiled
    )
    assert (first == said[:, 0]).all()
    np.testing.assert_allclose(np.moveaxis(logits_TxRxK, 0, 1), whole, rtol=1e-5, atol=1e-5)
    for site in SITES[output]:
        captured = maps[site]
        weights = np.moveaxis(captured.weights[:, 0, :, :, 0], 0, 2)  # [row, head, step, key]
        np.testing.assert_allclose(weights, aux.maps[site].weights[0], atol=1e-6)
        entropies = captured.sums["entropy"][:, 0].sum(0)
        np.testing.assert_allclose(entropies, aux.maps[site].sums["entropy"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", [POINTERS[2], BASELINES[2]], ids=lambda case: case.output.value)
def test_dropout_acts_in_training_alone_and_by_its_key(case: Case) -> None:
    encoder = dataclasses.replace(case.config.encoder, dropout=0.5)
    model = model_of(dataclasses.replace(case.config, encoder=encoder), "float32")
    variables = random_variables(model)

    def logits(train: bool, key: int) -> np.ndarray:
        return np.asarray(programs.apply(model, variables, INPUTS, train=train, key=jax.random.key(key))[0])

    np.testing.assert_array_equal(logits(False, 1), logits(False, 2))
    np.testing.assert_array_equal(logits(True, 1), logits(True, 1))
    assert (logits(True, 1) != logits(True, 2)).any()


@pytest.mark.parametrize("case", [*POINTERS, *BASELINES], ids=name_of)
def test_the_flops_are_two_for_each_matrix_element_and_position(case: Case) -> None:
    """Counted from the parameters: every matrix is applied once at each position that it reads."""
    model = model_of(case.config, "float32")
    rows, points, steps = POINTS.shape[0], POINTS.shape[1], TARGET.shape[1]
    keys = points + 1 if case.output is OutputKind.POINTER else points
    uses = {
        "encoder": points,
        "decoder": steps,
        "embedding": 0,  # it is looked up
        "keys": keys,
        "queries": steps,
        "vector": steps * keys,
        "output": steps,
    }
    attends = case.output is OutputKind.FIXED_VOCABULARY_WITH_ATTENTION
    total = 2 * steps * points * case.config.encoder.output_width if attends else 0  # the weighted sums
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.functional.shapes()):
        names = [entry.key for entry in path]
        if "bias" in names[-1] or len(names) == 1:
            continue  # biases, and what begins and ends
        total += 2 * leaf.size * next(times for name, times in uses.items() if name in names)
    assert forward_flops(model, INPUTS) == rows * total


def test_more_points_than_the_vocabulary_has_are_refused() -> None:
    model = model_of(BASELINES[2].config, "float32")
    fitting, larger = (
        {"points": np.zeros((2, count, 2), np.float32), "lengths": np.int32([count] * 2)} for count in (6, 7)
    )
    cache, _ = jax.eval_shape(lambda: model.init_cache(random_variables(model), fitting, num_beams=1, length=8))
    assert cache.examples.decoder_inputs.shape == (2, 7, 6)
    with pytest.raises(UserError, match=r"7 points are more than the 6 .*eval_sizes.*max_points.*output=pointer"):
        jax.eval_shape(lambda: model.init_cache(random_variables(model), larger, num_beams=1, length=8))


def test_a_pointer_network_has_no_indices_to_read() -> None:
    with pytest.raises(UserError, match=r"decoder_input=index .* config.model.output=pointer does not have: say"):
        PointerNetworkConfig(decoder_input=DecoderInputKind.INDEX)


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
