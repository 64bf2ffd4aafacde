"""The translator with a batch norm: what training carries is what decoding reads, and a step that drops it is seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.contracts.alone import Alone
from tests.contracts.bahdanau import SITE
from tests.contracts.conftest import MakeAlone
from transformer.attention import Capture
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.layers.batch_norm import BatchStatistics
from transformer.models.model import Cache, Model, Variables

PAD, BEGIN, END = 0, 1, 2
SOURCE = np.int32([[5, 6, 7, 3, 2], [4, 2, 0, 0, 0], [7, 3, 2, 0, 0], [6, 6, 2, 0, 0]])
TARGET = np.int32([[1, 3, 4, 5], [1, 6, 0, 0], [1, 7, 7, 0], [1, 4, 3, 0]])


@pytest.fixture(scope="module")
def one(alone: MakeAlone) -> Alone:
    return alone("normed_translator")


@pytest.fixture(scope="module")
def model(one: Alone) -> Model:
    return one.setting.model


@pytest.fixture(scope="module")
def drawn(one: Alone) -> Variables:
    """Drawn parameters, and the statistics that training begins with."""
    return one.initial(one.experiment).variables


@pytest.fixture(scope="module")
def given(drawn: Variables) -> Variables:
    """Drawn parameters, and statistics that are far from those that training begins with."""
    normal, features = np.random.default_rng(0).normal, drawn.state["norm"].mean.size
    mean, variance = (np.float32(x) for x in (normal(size=features), normal(size=features) ** 2 + 0.1))
    return drawn._replace(state={"norm": BatchStatistics(jnp.asarray(mean), jnp.asarray(variance))})


@pytest.mark.slow
def test_steps_are_the_pass_over_known_targets_with_the_running_statistics(
    model: Model, drawn: Variables, given: Variables
) -> None:
    inputs = {"source": SOURCE, "target": TARGET}
    look = jax.jit(lambda given: model.apply(given, inputs, train=False, capture=Capture((SITE,))))
    step = jax.jit(lambda cache, token: model.step(given, cache, token, capture=Capture((SITE,))))
    whole, aux = look(given)
    again, _ = look(drawn)
    assert np.abs(np.asarray(whole - again)).max() > 0.1
    cache, first = programs.init_cache(model, given, {"source": SOURCE}, num_beams=1, length=4)
    np.testing.assert_array_equal(first, TARGET[:, 0])
    for place in range(4):
        logits, cache, seen = step(cache, jnp.asarray(TARGET[:, place]))
        real = (TARGET[:, place] != PAD) if place else np.ones(4, bool)
        np.testing.assert_allclose(np.asarray(logits)[real], np.asarray(whole)[real, place], atol=1e-5)
        at = np.asarray(aux.maps[SITE].weights)[:, real, :, place]
        np.testing.assert_allclose(np.asarray(seen.maps[SITE].weights)[:, real, :, 0], at, atol=1e-6)


@pytest.mark.slow
def test_one_beam_without_a_penalty_finds_no_more_than_greedy_and_three_no_less(model: Model, given: Variables) -> None:
    tokens = SpecialTokens(PAD, BEGIN, END)
    scores = {}
    for strategy in (GreedySearch(), BeamSearch(3, 0.0)):
        rollout = generate(model, given, {"source": jnp.asarray(SOURCE)}, strategy=strategy, length=3, tokens=tokens)
        scores[strategy.num_beams] = np.asarray(rollout.scores[:, 0])
    assert (scores[3] >= scores[1] - 1e-5).all()


def test_the_cache_can_be_reordered_and_its_examples_are_not_tiled(model: Model, given: Variables) -> None:
    cache, first = jax.eval_shape(lambda: model.init_cache(given, {"source": SOURCE}, num_beams=3, length=4))
    assert isinstance(cache, Cache)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(cache.rows)} == {12} == {len(first)}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(cache.examples)} == {4}


@pytest.mark.slow
@pytest.mark.parametrize("drops", [False, True])
def test_a_run_that_drops_the_next_state_is_caught(one: Alone, drops: bool) -> None:
    state, source = one.initial(one.experiment), one.setting.task.training_batches(5)
    for number in range(one.case.steps):
        before = jax.device_get(state.variables.state)  # a step consumes its state
        state, _ = one.step(state, source[number], False)
        if drops:  # the planted fault
            kept = jax.device_put(before, jax.devices()[0])
            state = state._replace(variables=state.variables._replace(state=kept))
    if drops:
        with pytest.raises(AssertionError):
            one.case.holds(state)
    else:
        one.case.holds(state)
    assert one.step._cache_size() == 1
