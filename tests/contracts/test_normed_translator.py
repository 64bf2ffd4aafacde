"""The translator with a batch norm: what training carries is what decoding reads, and a step that drops it is seen."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contracts.bahdanau import SITE
from tests.contracts.cases import CASES
from tests.contracts.normed_translator import NormedConfig, build
from tests.contracts.sorting import Sorting, SortingConfig
from transformer.attention import Capture
from transformer.decode.beam import Beam
from transformer.decode.generate import Tokens, generate
from transformer.decode.greedy import Greedy
from transformer.layers.module import Precision
from transformer.layers.stateful_norm import BatchStatistics
from transformer.models.contract import Cache, Model, Variables
from transformer.models.interface import TRANSLATION, Input, Interface
from transformer.training.initial_state import init_state
from transformer.training.optimizer import OptimizerConfig, Schedule, hyper_of, make_optimizer
from transformer.training.state import TrainState
from transformer.training.step import make_step

PAD, BEGIN, END, VOCABULARY, WIDTH, STEPS = 0, 1, 2, 8, 4, 12
SIDES = {"source": Input((4, 5)), "target": Input((4, 4))}
MODEL = build(
    NormedConfig(width=WIDTH),
    Interface(SIDES, {"joint": VOCABULARY}, PAD, BEGIN, END, output=TRANSLATION.output),
    Precision(),
)
SOURCE = np.int32([[5, 6, 7, 3, 2], [4, 2, 0, 0, 0], [7, 3, 2, 0, 0], [6, 6, 2, 0, 0]])
TARGET = np.int32([[1, 3, 4, 5], [1, 6, 0, 0], [1, 7, 7, 0], [1, 4, 3, 0]])
(CASE,) = (case for case in CASES if case.name == "normed_translator")


@dataclasses.dataclass(frozen=True)
class Dropping(Model):
    """The planted fault, where the batch says so: the next state is the one that was given."""

    def apply(self, variables: Variables, inputs: Any, **request: Any) -> Any:
        outputs, aux = super().apply(variables, inputs, **request)
        kept = [
            jnp.where(inputs["drops"], old, new)
            for old, new in zip(variables.state["norm"], aux.state["norm"], strict=True)
        ]
        return outputs, aux._replace(state={"norm": BatchStatistics(*kept)})


def variables() -> Variables:
    """Drawn parameters, and statistics that are far from those that training begins with."""
    drawn = MODEL.init(jax.random.key(1))
    normal = np.random.default_rng(0).normal
    statistics = BatchStatistics(
        jnp.asarray(normal(size=4 * WIDTH), jnp.float32), jnp.asarray(normal(size=4 * WIDTH) ** 2 + 0.1, jnp.float32)
    )
    return drawn._replace(state={"norm": statistics})


def test_steps_are_the_pass_over_known_targets_with_the_running_statistics() -> None:
    given, inputs = variables(), {"source": SOURCE, "target": TARGET}
    look = jax.jit(lambda given: MODEL.apply(given, inputs, train=False, capture=Capture((SITE,))))
    step = jax.jit(lambda cache, token: MODEL.step(given, cache, token, capture=Capture((SITE,))))
    whole, aux = look(given)
    again, _ = look(MODEL.init(jax.random.key(1)))
    assert np.abs(np.asarray(whole - again)).max() > 0.1
    cache, first = MODEL.init_cache(given, {"source": SOURCE}, beams=1, length=4)
    np.testing.assert_array_equal(first, TARGET[:, 0])
    for place in range(4):
        logits, cache, seen = step(cache, jnp.asarray(TARGET[:, place]))
        real = (TARGET[:, place] != PAD) if place else np.ones(4, bool)
        np.testing.assert_allclose(np.asarray(logits)[real], np.asarray(whole)[real, place], atol=1e-5)
        at = np.asarray(aux.maps[SITE].weights)[:, real, :, place]
        np.testing.assert_allclose(np.asarray(seen.maps[SITE].weights)[:, real, :, 0], at, atol=1e-6)


@pytest.mark.slow
def test_one_beam_without_a_penalty_finds_no_more_than_greedy_and_three_no_less() -> None:
    tokens, given = Tokens(PAD, BEGIN, END), variables()
    scores = {}
    for chooser in (Greedy(), Beam(3, 0.0)):
        rollout = generate(MODEL, given, {"source": jnp.asarray(SOURCE)}, chooser=chooser, length=3, tokens=tokens)
        scores[chooser.beams] = np.asarray(rollout.scores[:, 0])
    assert (scores[3] >= scores[1] - 1e-5).all()


def test_the_cache_can_be_reordered_and_its_examples_are_not_tiled() -> None:
    cache, first = MODEL.init_cache(variables(), {"source": SOURCE}, beams=3, length=4)
    assert isinstance(cache, Cache)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(cache.rows)} == {12} == {len(first)}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(cache.examples)} == {4}


@pytest.fixture(scope="module")
def trained() -> Callable[[bool], TrainState]:
    """Some steps of the step itself, on the page's own task; one program for the sound and the faulty."""
    task = Sorting(SortingConfig(rows=8, length=4), 1)
    model = build(NormedConfig(width=WIDTH), task.interface, Precision())
    model = Dropping(model.functional, model.sites)
    config = OptimizerConfig(schedule=Schedule.CONSTANT, warmup=0)
    optimisers = {"sorting": make_optimizer(config, STEPS)}
    make = functools.partial(init_state, model, task, optimisers, {}, {"sorting": hyper_of(config)})
    initialise, step = jax.jit(make), jax.jit(make_step(model, task, optimisers, {}))

    def train(drops: bool) -> TrainState:
        state = initialise(jax.random.key(0))
        for number in range(STEPS):
            state, _ = step(state, {**task.source(0)[number], "drops": np.bool_(drops)})
        return state

    return train


@pytest.mark.parametrize("drops", [False, True])
def test_a_step_that_drops_the_next_state_is_caught(trained: Callable[[bool], TrainState], drops: bool) -> None:
    state = trained(drops)
    if drops:
        with pytest.raises(AssertionError):
            CASE.holds(state)
    else:
        CASE.holds(state)
