"""The walker against its equations in NumPy float64, and its steps of decoding against teacher forcing."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.instruction_following.model import FAMILY, AlignerKind, ListenAttendWalkConfig
from tests.models.random_models import random_variables, stepped
from tests.oracles import recurrent as oracle
from transformer.attention import STATISTICS, Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.recurrent import Direction
from transformer.models.model import Model
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.task_interface import InputSpec, Modality, TaskInterface

PAD, BEGIN, WORDS, ACTIONS, POSES, NUM_OBSERVATION_FEATURES = 0, 1, 9, 6, 8, 5
RNG = np.random.default_rng(0)
SOURCE = np.array([[3, 5, 8, 2], [4, 1, 0, 0], [7, 7, 6, 0]], np.int32)
TARGET = np.array([[1, 4, 3, 5, 3], [1, 5, 0, 0, 0], [1, 3, 3, 4, 0]], np.int32)
READ, STEPS = (4, 2, 3), (5, 2, 4)
OBSERVATIONS = RNG.integers(0, 2, (3, POSES, NUM_OBSERVATION_FEATURES)).astype(np.uint8)
TRANSITIONS = RNG.integers(0, POSES, (3, POSES, ACTIONS)).astype(np.int32)
TRANSITIONS[:, :, :3] = np.arange(POSES)[:, None]
START = np.array([1, 7, 4], np.int32)
INPUTS = {"source": SOURCE, "target": TARGET, "observations": OBSERVATIONS, "transitions": TRANSITIONS, "start": START}
INTERFACE = TaskInterface(
    {
        "source": InputSpec(SOURCE.shape),
        "target": InputSpec(TARGET.shape),
        "observations": InputSpec(OBSERVATIONS.shape, jnp.uint8, Modality.POINTS),
        "transitions": InputSpec(TRANSITIONS.shape, jnp.int32, Modality.ACTIONS),
        "start": InputSpec(START.shape),
    },
    {"source": WORDS, "target": ACTIONS},
    PAD,
    BEGIN,
    2,
)
FULL = ListenAttendWalkConfig(width=5, embedding_width=3, vocab_size=11)
CASES = {
    "full": FULL,
    **{
        aligner.value: dataclasses.replace(FULL, aligner=aligner)
        for aligner in AlignerKind
        if aligner.value != "multi_level"
    },
    "one_direction": dataclasses.replace(FULL, direction=Direction.FORWARD),
}


def model_of(config: ListenAttendWalkConfig, precision: str = "float64") -> Model:
    return FAMILY.build(config, INTERFACE, Precision(precision, precision))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def told(config: ListenAttendWalkConfig, weights: Any, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The logits of every action of a row, and the weights of its words, one number after another."""
    x = weights["embedding"]["table"][SOURCE[row, : READ[row]]].astype(np.float64)
    h, ends = [], []
    for order in ("forward", "backward") if config.direction is Direction.BIDIRECTIONAL else ("forward",):
        of_order, end = oracle.one_way(
            "lstm", weights["encoder"][order], x, oracle.zeros("lstm", 5), order == "backward"
        )
        h.append(of_order)
        ends.append(end.hidden)
    states = np.concatenate(h, axis=-1)
    both = np.concatenate([x, states], axis=-1)
    memory = both if config.aligner in (AlignerKind.MULTI_LEVEL, AlignerKind.MEAN) else states
    pose, state, logits, seen = START[row], oracle.zeros("lstm", 5), [], []
    for action in TARGET[row, : STEPS[row]]:
        pose = TRANSITIONS[row, pose, action]
        if config.aligner is AlignerKind.LAST:
            z = np.concatenate(ends)
        elif config.aligner is AlignerKind.MEAN:
            z = memory.mean(axis=0)
        else:
            score = {name: weights["aligner"]["score"][name][0] for name in ("keys", "queries", "vector")}
            # Of [x_j ; h_j] the first rows are U, the others V; of h_j alone all of them are V.
            beta = [
                np.tanh(state.hidden @ score["queries"] + word @ score["keys"]) @ score["vector"] for word in memory
            ]
            seen.append(softmax(np.array(beta)))
            z = seen[-1] @ memory
        y = OBSERVATIONS[row, pose].astype(np.float64) @ weights["sight"]["kernel"]
        state = oracle.step("lstm", weights["decoder"]["forward"], np.concatenate([y, z]), state)
        summed = y + state.hidden @ weights["of_state"]["kernel"] + z @ weights["of_context"]["kernel"]
        logits.append(summed @ weights["output"]["kernel"])
    return np.array(logits), np.array(seen)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "full" else pytest.mark.slow) for name in CASES]
)
def test_logits_and_maps_are_those_of_the_equations(name: str) -> None:
    config = CASES[name]
    with jax.enable_x64(True):
        model = model_of(config)
        variables = random_variables(model)
        asked = Capture((SITE,)) if model.sites else None
        found = jax.jit(lambda given: model.apply(variables, given, train=False, capture=asked))(INPUTS)
        logits, aux = jax.device_get(found)
    assert bool(model.sites) == config.aligner.attends
    for row, (words, steps) in enumerate(zip(READ, STEPS, strict=True)):
        expected, seen = told(config, variables.params, row)
        np.testing.assert_allclose(logits[row, :steps], expected, rtol=0, atol=1e-11)
        if model.sites:
            weights = aux.maps[SITE].weights[0, row, 0]
            np.testing.assert_allclose(weights[:steps, :words], seen, rtol=0, atol=1e-11)
            assert (weights[steps:] == 0).all()
            assert (weights[:, words:] == 0).all()


@pytest.mark.parametrize("name", ["full", pytest.param("last", marks=pytest.mark.slow)])
def test_steps_of_decoding_are_teacher_forcing_for_every_beam(name: str) -> None:
    """Two beams of an example that act differently walk apart in one maze_tables."""
    model, num_beams = model_of(CASES[name], "float32"), 2
    variables = random_variables(model)
    said = np.repeat(np.array([[1, 4, 3, 5], [1, 3, 3, 4], [1, 5, 5, 3]], np.int32), num_beams, axis=0)
    said[1::2, 1:] = said[1::2, [2, 1, 3]]
    asked = Capture((SITE,), statistics=(STATISTICS["entropy"],), by_example=True) if model.sites else None

    first, logits_TxRxV, maps = stepped(model, variables, INPUTS, said, num_beams, asked)
    assert (first == BEGIN).all()
    tiled = {name: np.repeat(values, num_beams, axis=0) for name, values in INPUTS.items()} | {"target": said}
    whole, aux = jax.jit(lambda given: model.apply(variables, given, train=False, capture=asked))(tiled)
    np.testing.assert_allclose(np.moveaxis(logits_TxRxV, 0, 1), whole, rtol=1e-5, atol=1e-5)
    if model.sites:
        weights = np.moveaxis(maps[SITE].weights[:, 0, :, :, 0], 0, 2)  # [row, head, step, key]
        np.testing.assert_allclose(weights, aux.maps[SITE].weights[0], atol=1e-6)
        entropies = maps[SITE].sums["entropy"][:, 0].sum(0)
        np.testing.assert_allclose(entropies, aux.maps[SITE].sums["entropy"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_flops_are_two_for_each_matrix_element_and_place(name: str) -> None:
    """Counted from the parameters: every matrix is applied once at each word or action that it reads."""
    config = CASES[name]
    rows, steps, words = len(SOURCE), TARGET.shape[1], SOURCE.shape[1]
    # The sum over words has no parameters.
    total = 2 * steps * words * config.context_width * config.aligner.attends
    uses = {"encoder": words, "keys": words, "vector": steps * words}
    for path, leaf in jax.tree_util.tree_leaves_with_path(model_of(config, "float32").functional.shapes()):
        names = [entry.key for entry in path]
        if names[-1] in ("bias", "table"):
            continue  # added, and looked up
        total += 2 * leaf.size * next((times for use, times in uses.items() if use in names), steps)
    assert forward_flops(model_of(config, "float32"), INPUTS) == rows * total


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(UserError, match=r"config\.model\.embedding_width=0 must be at least 1"):
        dataclasses.replace(FULL, embedding_width=0)
