"""Listen, Attend and Spell against its equations in NumPy float64, and its steps against teacher forcing."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speech.listen_attend_spell import FAMILY, ListenAttendSpellConfig, stack_neighbors
from experiments.speech.log_mel import LogMelConfig, log_mel_features
from tests.models.random_models import random_variables, whole_and_stepped
from tests.oracles import recurrent as oracle
from transformer.attention import AxisKind, Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.models.model import Model
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

PAD, BEGIN, CHARACTERS = 0, 1, 6
LENGTHS = np.int32([560, 390])  # 7 and 5 frames, of which two make 4 and 3 positions
SOUND = np.random.default_rng(0).normal(size=(2, 560)).astype(np.float32)
TARGET = np.int32([[1, 4, 3, 5], [1, 5, 0, 0]])
STEPS = (4, 2)
INPUTS = {"sound": SOUND, "lengths": LENGTHS, "target": TARGET}
INTERFACE = TaskInterface(
    {
        "sound": InputSpec(SOUND.shape, jnp.float32, Modality.AUDIO),
        "lengths": InputSpec(LENGTHS.shape),
        "target": InputSpec(TARGET.shape),
    },
    {"joint": CHARACTERS},
    PAD,
    BEGIN,
    2,
)
CONFIG = ListenAttendSpellConfig(
    LogMelConfig(num_mel_bins=3),
    listener_width=2,
    pyramid=(2,),
    speller_width=4,
    speller_layers=2,
    embedding_width=3,
    attention_width=5,
)


def model_of(config: ListenAttendSpellConfig, precision: str = "float32") -> Model:
    return FAMILY.build(config, INTERFACE, Precision(precision, precision))


def layer(weights: Any, x: np.ndarray, width: int) -> np.ndarray:
    """A bidirectional LSTM over one utterance."""
    outputs = np.zeros((len(x), 2 * width))
    for side, order in enumerate(("forward", "backward")):
        state = oracle.State(np.zeros(width), np.zeros(width))
        for at in range(len(x)) if order == "forward" else reversed(range(len(x))):
            state = oracle.step("lstm", weights[order], x[at], state)
            outputs[at, side * width : (side + 1) * width] = state.hidden
    return outputs


def told(config: ListenAttendSpellConfig, weights: Any, frames: np.ndarray, said: np.ndarray) -> tuple[Any, Any]:
    """The logits and the weights of every position at every step of one example."""

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return weights[name]["kernel"].T.astype(np.float64) @ x + weights[name]["bias"]

    h = layer(weights["listener"]["layer_0"], frames, config.listener_width)
    for number, factor in enumerate(config.pyramid, 1):
        rows = [h[at : at + factor].ravel() for at in range(0, len(h), factor)]
        rows = [np.concatenate([row, np.zeros(factor * h.shape[1] - len(row))]) for row in rows]
        h = layer(weights["listener"][f"layer_{number}"], np.array(rows), config.listener_width)
    states = [
        oracle.State(np.zeros(config.speller_width), np.zeros(config.speller_width))
        for _ in range(config.speller_layers)
    ]
    context, logits, seen = np.zeros(h.shape[1]), [], []
    for character in said:
        x = np.concatenate([weights["embedding"]["table"][character].astype(np.float64), context])
        for number in range(config.speller_layers):
            states[number] = oracle.step("lstm", weights["speller"][f"layer_{number}"]["forward"], x, states[number])
            x = states[number].hidden
        e = np.array([np.tanh(dense("phi", x)) @ np.tanh(dense("psi", one)) for one in h])
        alpha = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        context = alpha @ h
        logits.append(dense("output", np.tanh(dense("hidden_layer", np.concatenate([x, context])))))
        seen.append(alpha)
    return np.array(logits), np.array(seen)


def test_logits_and_maps_are_those_of_the_equations() -> None:
    with jax.enable_x64(True):
        model = model_of(CONFIG, "float64")
        variables = random_variables(model)

        @jax.jit
        def look(given: Any) -> Any:
            frames, _ = log_mel_features(
                given["sound"], given["lengths"], CONFIG.audio_frontend, dtype="float64", key=None
            )
            return frames, model.apply(variables, given, train=False, capture=Capture((SITE,)))

        # What stands behind the end of a sound is never read.
        behind = np.where(np.arange(560) < LENGTHS[:, None], SOUND, np.nan)
        frames, (logits, aux) = jax.device_get(
            look({name: jnp.asarray(x) for name, x in INPUTS.items()} | {"sound": behind})
        )
    for row, (steps, count) in enumerate(zip(STEPS, (7, 5), strict=True)):
        expected, seen = told(CONFIG, variables.params, frames[row, :count], TARGET[row, :steps])
        np.testing.assert_allclose(logits[row, :steps], expected, rtol=0, atol=1e-11)
        weights = aux.maps[SITE].weights[0, row, 0]
        positions = -(-count // 2)
        np.testing.assert_allclose(weights[:steps, :positions], seen, rtol=0, atol=1e-11)
        assert (weights[steps:] == 0).all()
        assert (weights[:, positions:] == 0).all()


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_neighbors_stand_beside_one_another_and_padding_is_zero(factor: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 7, 3)).astype(np.float32)
    x[1, 4:] = np.nan
    found = np.asarray(stack_neighbors(jnp.asarray(x), jnp.array([7, 4]), factor))
    if factor == 1:
        np.testing.assert_array_equal(found, x)  # a layer of its own leaves padding out
        return
    assert found.shape == (2, -(-7 // factor), 3 * factor)
    expected = np.zeros((2, found.shape[1] * factor, 3))
    expected[0, :7], expected[1, :4] = x[0], x[1, :4]
    np.testing.assert_array_equal(found.reshape(2, -1, 3), expected)


def test_a_position_lasts_as_long_as_the_frames_that_it_is_made_of() -> None:
    for pyramid, seconds in (((2, 2, 2), 0.08), ((1, 1, 1), 0.01), ((3, 2), 0.06)):
        (site,) = model_of(dataclasses.replace(CONFIG, pyramid=pyramid)).sites
        assert (site.query.name, site.key.name, site.key.kind) == ("target", "frames", AxisKind.FRAMES)
        assert site.key.stride == pytest.approx(seconds)


@pytest.mark.slow
def test_steps_of_decoding_are_teacher_forcing_for_every_beam() -> None:
    """Two beams an example that say different things listen to the same sound."""
    model, num_beams = model_of(CONFIG), 2
    variables = random_variables(model)
    said = np.repeat(np.int32([[1, 4, 3, 5], [1, 5, 2, 4]]), num_beams, axis=0)
    said[1::2, 1:] = said[1::2, [2, 1, 3]]
    asked = Capture((SITE,))

    tiled = {"sound": np.repeat(SOUND, num_beams, 0), "lengths": np.repeat(LENGTHS, num_beams), "target": said}
    (whole, aux), (first, logits_TxRxV, maps) = whole_and_stepped(
        model, variables, INPUTS, said, num_beams, asked, whole_inputs=tiled
    )
    assert (first == BEGIN).all()
    np.testing.assert_allclose(np.moveaxis(logits_TxRxV, 0, 1), whole, rtol=1e-5, atol=1e-5)
    weights = np.moveaxis(maps[SITE].weights[:, 0, :, :, 0], 0, 2)  # [row, head, step, key]
    np.testing.assert_allclose(weights, aux.maps[SITE].weights[0], atol=1e-6)


@pytest.mark.slow
def test_in_training_the_speller_reads_its_own_draws_as_often_as_the_config_says() -> None:
    """With all of them its own, what it should have read has no effect; with none, what it drew has none."""

    def logits(scheduled_sampling: float, target: np.ndarray, key: int) -> np.ndarray:
        model = model_of(dataclasses.replace(CONFIG, scheduled_sampling=scheduled_sampling))
        options = {"train": True, "key": jax.random.key(key)}
        given = INPUTS | {"target": target}
        return np.asarray(jax.jit(lambda given: model.apply(random_variables(model), given, **options)[0])(given))

    other = np.where(TARGET == 4, 2, np.where(TARGET == 3, 5, TARGET))
    np.testing.assert_array_equal(logits(0.999999, TARGET, 0), logits(0.999999, other, 0))
    assert (logits(0.999999, TARGET, 0)[0, 1:] != logits(0.999999, TARGET, 1)[0, 1:]).any()
    assert (logits(0.0, TARGET, 0)[0, 1:] != logits(0.0, other, 0)[0, 1:]).any()
    np.testing.assert_array_equal(logits(0.0, TARGET, 0), logits(0.0, TARGET, 1))


def test_the_flops_are_two_for_each_matrix_element_and_place() -> None:
    """Counted from the parameters: every matrix is applied once at each frame, position or character."""
    rows, steps = TARGET.shape
    uses = {"layer_0": 7, "layer_1": 4, "psi": 4}
    total = 7 * 2 * 129 * (2 * 200 + 3) + 2 * steps * 4 * (5 + 4)  # the spectrogram, and the scores and contexts
    for path, leaf in jax.tree_util.tree_leaves_with_path(model_of(CONFIG).functional.shapes()):
        names = [entry.key for entry in path]
        if names[-1] in ("bias", "table"):
            continue
        of_speller = "speller" in names
        total += 2 * leaf.size * next((n for use, n in uses.items() if use in names and not of_speller), steps)
    assert forward_flops(model_of(CONFIG), INPUTS) == rows * total


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"listener_width": 0}, "listener_width=0 must be at least 1"),
        ({"pyramid": (2, 0)}, r"pyramid\[1\]=0 must be at least 1"),
        ({"scheduled_sampling": 1.5}, "scheduled_sampling"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises((UserError, ValueError), match=said):
        dataclasses.replace(CONFIG, **wrong)
