"""The two heads of an induction circuit are found by knock-out and by patching: weights set by hand, and trained."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer
from experiments.induction_heads.configs import two_layer_transformer
from tests.interpret.induction_circuit import (
    INDUCTION_HEAD,
    NUM_HEADS,
    NUM_LAYERS,
    PREVIOUS_TOKEN_HEAD,
    TOKENS,
    write_induction_model,
)
from transformer.interpret import Edit, LoadedModel, fix_pattern, replace, zero
from transformer.training import build
from transformer.training.partitioning import single_device_placement

OUTPUTS = "decoder/self/head_outputs"
# What followed "d" is the answer; in the corrupted text nothing has followed it.
TEXT, CORRUPTED, ANSWER = "a b c d e f a b c d", "a b c g e f a b c d", "e"
POSITION_AFTER_PAIR = TEXT.split().index(ANSWER)
LAYERS_X, HEADS_X = (jnp.asarray(index.ravel()) for index in np.indices((NUM_LAYERS, NUM_HEADS)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The model with weights set by hand."""
    return transformer.load(write_induction_model(tmp_path_factory.mktemp("circuit") / "induction"))


def answer_log_prob(logits: jax.Array) -> jax.Array:
    """The log-probability of the answer behind the text."""
    return jax.nn.log_softmax(logits[0, -1])[TOKENS.index(ANSWER)]


def effect_of_heads(model: LoadedModel, text: str, make_edit: Callable[[jax.Array, jax.Array], Edit]) -> np.ndarray:
    """The log-probability of the answer with an edit of each head, [layer, head], all in one program."""

    def measure(layer: jax.Array, head: jax.Array) -> jax.Array:
        return answer_log_prob(model.run_with(text, [make_edit(layer, head)]))

    return np.asarray(jax.vmap(measure)(LAYERS_X, HEADS_X)).reshape(NUM_LAYERS, NUM_HEADS)


def is_circuit() -> np.ndarray:
    """Which heads are the circuit, [layer, head]."""
    heads = np.zeros((NUM_LAYERS, NUM_HEADS), bool)
    heads[PREVIOUS_TOKEN_HEAD] = heads[INDUCTION_HEAD] = True
    return heads


def test_the_model_continues_by_induction_alone(model: LoadedModel) -> None:
    assert model.top_tokens(TEXT, 1)[0][0] == f"▁{ANSWER}"
    assert answer_log_prob(model(TEXT)) > -0.01
    assert answer_log_prob(model(CORRUPTED)) < -3


def test_the_maps_show_the_previous_token_and_the_token_behind_its_last_occurrence(model: LoadedModel) -> None:
    weights = np.asarray(model.run_with_cache(TEXT, "decoder/self/weights")[1]["decoder/self/weights"])[:, 0]
    previous, induction = weights[PREVIOUS_TOKEN_HEAD], weights[INDUCTION_HEAD]
    assert np.diagonal(previous, -1).min() > 0.99
    repeated = np.arange(6, 10)
    assert induction[repeated[1:], repeated[1:] - 5].min() > 0.99


def test_knock_out_of_every_head_in_one_program_finds_the_two(model: LoadedModel) -> None:
    log_probs = effect_of_heads(model, TEXT, lambda layer, head: zero(OUTPUTS, layers=layer, heads=head))
    assert log_probs[is_circuit()].max() < -3
    assert log_probs[~is_circuit()].min() > -0.01
    alone = answer_log_prob(model.run_with(TEXT, [zero(OUTPUTS, layers=1, heads=INDUCTION_HEAD[1])]))
    np.testing.assert_allclose(log_probs[INDUCTION_HEAD], alone, atol=1e-5)


def test_patching_of_every_head_in_one_program_finds_the_two_both_ways(model: LoadedModel) -> None:
    clean = model.run_with_cache(TEXT, OUTPUTS)[1][OUTPUTS]
    corrupted = model.run_with_cache(CORRUPTED, OUTPUTS)[1][OUTPUTS]
    unpatched = answer_log_prob(model(CORRUPTED))

    restored = effect_of_heads(model, CORRUPTED, lambda layer, head: replace(OUTPUTS, clean, layers=layer, heads=head))
    assert restored[is_circuit()].min() > -0.01
    np.testing.assert_allclose(restored[~is_circuit()], unpatched, atol=0.3)
    destroyed = effect_of_heads(model, TEXT, lambda layer, head: replace(OUTPUTS, corrupted, layers=layer, heads=head))
    assert destroyed[is_circuit()].max() < -3
    assert destroyed[~is_circuit()].min() > -0.01


def test_patching_of_every_head_and_position_finds_where_the_circuit_writes(model: LoadedModel) -> None:
    clean = model.run_with_cache(TEXT, OUTPUTS)[1][OUTPUTS]
    unpatched = answer_log_prob(model(CORRUPTED))

    def measure(layer: jax.Array, head: jax.Array, position: jax.Array) -> jax.Array:
        edit = replace(OUTPUTS, clean, layers=layer, heads=head, positions=position)
        return answer_log_prob(model.run_with(CORRUPTED, [edit]))

    places = np.indices((NUM_LAYERS, NUM_HEADS, clean.shape[2])).reshape(3, -1)
    restored = np.asarray(jax.vmap(measure)(*map(jnp.asarray, places))) - unpatched
    found = {tuple(place) for place in places.T[restored > 0.5 * -unpatched].tolist()}
    assert found == {(*PREVIOUS_TOKEN_HEAD, POSITION_AFTER_PAIR), (*INDUCTION_HEAD, clean.shape[2] - 1)}
    others = np.array([tuple(place) not in found for place in places.T.tolist()])
    assert np.abs(restored[others]).max() < 0.1 * -unpatched


def test_the_induction_head_reads_the_previous_token_head_by_its_keys(model: LoadedModel) -> None:
    """The keys of the induction head alone carry what is patched; its queries and values do not."""
    names = [f"decoder/self/{name}" for name in ("queries", "keys", "values")]
    _, clean = model.run_with_cache(TEXT, names)
    layer, head = INDUCTION_HEAD
    restored = {
        name: float(answer_log_prob(model.run_with(CORRUPTED, [replace(name, clean[name], layers=layer, heads=head)])))
        for name in names
    }
    assert restored["decoder/self/keys"] > -0.01
    assert max(restored["decoder/self/queries"], restored["decoder/self/values"]) < -3


def test_a_fixed_pattern_takes_the_place_of_the_previous_token_head(model: LoadedModel) -> None:
    """The induction head with its pattern of the clean text answers although the layer below does not find the pair."""
    name = "decoder/self/weights"
    _, clean = model.run_with_cache(TEXT, name)
    layer, head = INDUCTION_HEAD
    edits = [fix_pattern("decoder/self", clean[name], layers=layer, heads=head)]
    assert answer_log_prob(model.run_with(CORRUPTED, edits)) > -0.01


class RepeatedTexts(NamedTuple):
    """Segments that begin to repeat, and the same without the pair that tells how the repetition continues.

    Attributes:
        texts: A segment and its beginning up to `last`.
        corrupted: Another symbol stands at `last` of the segment.
        answers: The symbols that follow.
        period: The length of a segment.
        last: The place in the segment of the last symbol.
    """

    texts: list[str]
    corrupted: list[str]
    answers: list[str]
    period: int
    last: int


def draw_texts(period: int = 16, last: int = 10, count: int = 32) -> RepeatedTexts:
    """Random texts of the symbols of the data set."""
    random, symbols = np.random.default_rng(0), list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
    drawn = ["".join(random.choice(symbols, period + 1, replace=False)) for _ in range(count)]
    texts = [row[:period] + row[: last + 1] for row in drawn]
    corrupted = [row[:last] + row[period] + row[last + 1 : period] + row[: last + 1] for row in drawn]
    return RepeatedTexts(texts, corrupted, [row[last + 1] for row in drawn], period, last)


@pytest.fixture(scope="module")
def trained_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The decoder of experiments/induction_heads, trained by its config."""
    config = two_layer_transformer.get_config()
    config.update({"maps_every": 500, "eval_every": 500, "log_every": 500})
    run = tmp_path_factory.mktemp("trained") / "induction"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_placement", lambda config: single_device_placement())
        transformer.train(config, run)
    return transformer.load(run)


@pytest.mark.slow
def test_in_a_trained_model_a_previous_token_head_feeds_the_induction_heads(trained_model: LoadedModel) -> None:
    model, data = trained_model, draw_texts()
    length = len(data.texts[0])
    answers = jnp.array([row[0] for row in model.tokenizer.encode(data.answers)])

    def score(logits: jax.Array) -> jax.Array:
        log_probs = jax.nn.log_softmax(logits[:, length - 1])
        return jnp.take_along_axis(log_probs, answers[:, None], axis=1).mean()

    def every_head(texts: list[str], make_edit: Callable[[jax.Array, jax.Array], Edit]) -> np.ndarray:
        def measure(layer: jax.Array, head: jax.Array) -> jax.Array:
            return score(model.run_with(texts, [make_edit(layer, head)]))

        return np.asarray(jax.vmap(measure)(LAYERS_X, HEADS_X)).reshape(NUM_LAYERS, NUM_HEADS)

    logits, cache = model.run_with_cache(data.texts, ["decoder/self/weights", OUTPUTS])
    weights = np.asarray(cache["decoder/self/weights"])
    after, repeated = np.arange(1, length), np.arange(data.period, length)
    previous = weights[:, :, :, after, after - 1].mean(axis=(1, 3))
    induction = weights[:, :, :, repeated, repeated - data.period + 1].mean(axis=(1, 3))
    previous_layer, previous_head = map(int, np.unravel_index(previous.argmax(), previous.shape))
    assert previous_layer == 0
    assert previous.max() > 0.4
    assert induction[0].max() < 0.1
    assert induction[1].max() > 0.6

    intact, unpatched = float(score(logits)), float(score(model(data.corrupted)))
    assert intact > -0.3
    assert unpatched < -2
    knocked_out = every_head(data.texts, lambda layer, head: zero(OUTPUTS, layers=layer, heads=head))
    assert knocked_out[0].argmin() == previous_head
    assert knocked_out[0].min() < intact - 1
    assert knocked_out[1].min() < intact - 1

    def patch_head(layer: jax.Array, head: jax.Array) -> Edit:
        return replace(OUTPUTS, cache[OUTPUTS], layers=layer, heads=head)

    restored = (every_head(data.corrupted, patch_head) - unpatched) / (intact - unpatched)
    assert restored[0].argmax() == previous_head
    assert restored[0].max() > 0.6
    assert restored[1].max() > 0.3

    def patch_position(position: jax.Array) -> jax.Array:
        edit = replace(OUTPUTS, cache[OUTPUTS], layers=0, heads=previous_head, positions=position)
        return score(model.run_with(data.corrupted, [edit]))

    by_position = (np.asarray(jax.vmap(patch_position)(jnp.arange(length))) - unpatched) / (intact - unpatched)
    assert by_position.argmax() == data.last + 1
    assert by_position.max() > 0.6
    assert np.delete(by_position, data.last + 1).max() < 0.3
