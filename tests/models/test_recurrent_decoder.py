"""Recurrent language models against NumPy float64: an LSTM's state, and a tape of past states that it attends to."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.gradients import check_gradient
from tests.models.random_models import whole_and_stepped
from tests.oracles import recurrent as oracle
from transformer.attention import Capture
from transformer.attention.statistics import STATISTICS
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.recurrent import CellKind
from transformer.models import recurrent_decoder
from transformer.models.model import Model, Variables
from transformer.models.recurrent_decoder import SITE, RecurrentDecoderConfig, RecurrentMemory
from transformer.models.registry import build
from transformer.models.task_interface import TEXT_CLASSIFICATION, InputSpec, TaskInterface

VOCABULARY = 7
TOKENS = np.array([[3, 4, 5, 6, 2], [1, 2, 5, 0, 0]], np.int32)
LENGTHS = np.array([5, 3], np.int32)
INTERFACE = TaskInterface({"tokens": InputSpec((2, 5))}, {"tokens": VOCABULARY}, 0, 1, 2)
TINY = RecurrentDecoderConfig(width=4, embedding_width=3, layers=2)
CONFIGS = {
    "state": TINY,
    "gru": dataclasses.replace(TINY, cell=CellKind.GRU_RESET_BEFORE),
    "tape": dataclasses.replace(TINY, memory=RecurrentMemory.STATE_HISTORY),
    "narrow score": dataclasses.replace(TINY, memory=RecurrentMemory.STATE_HISTORY, attention_hidden_width=2, layers=1),
}


def made(config: RecurrentDecoderConfig, seed: int = 0) -> tuple[Model, Variables]:
    """A model whose parameters are all random, biases too."""
    model = build(config, INTERFACE, Precision())
    shapes = model.functional.shapes()
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    return model, Variables(params, {})


def tape(layer: Any, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of one row and its weights [query, key], from Cheng et al. 2016, equations 4 to 9."""
    width, steps = layer["cell"]["bias"].shape[1], len(inputs)
    (vector,), (of_key,), (of_query,) = (np.asarray(layer["score"][name]) for name in ("vector", "keys", "queries"))
    h, c, read = np.zeros((steps, width)), np.zeros((steps, width)), np.zeros(width)
    weights = np.zeros((steps, steps))
    for t, x in enumerate(inputs):
        kept = np.zeros(width)
        if t:
            scores = np.array(
                [vector @ np.tanh(h[i] @ of_key + np.concatenate([x, read]) @ of_query) for i in range(t)]
            )
            weights[t, :t] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            read, kept = weights[t] @ h, weights[t] @ c
        h[t], c[t] = oracle.step("lstm", layer["cell"], x, oracle.State(read, kept))
    return h, weights


def expected(config: RecurrentDecoderConfig, params: Any) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Logits of every row's real tokens, and the weights of every layer."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    logits, weights = [], []
    for tokens, length in zip(TOKENS, LENGTHS, strict=True):
        x, of_row = params["embedding"]["table"][tokens[:length]], []
        for number in range(config.layers):
            layer = params[f"layer_{number}"]
            if config.memory is RecurrentMemory.STATE_HISTORY:
                x, seen = tape(layer, x)
                of_row.append(seen)
            else:
                state, outputs = oracle.zeros("lstm", config.width), []
                for each in x:
                    state = oracle.step("lstm", layer["forward"], each, state)
                    outputs.append(state.hidden)
                x = np.array(outputs)
        logits.append(x @ params["output"]["kernel"] + params["output"]["bias"])
        weights.append(of_row)
    return logits, weights


@pytest.mark.parametrize("name", ["state", "tape", pytest.param("narrow score", marks=pytest.mark.slow)])
def test_logits_and_maps_are_those_of_the_equations(name: str) -> None:
    config = CONFIGS[name]
    model, variables = made(config)
    capture = Capture((SITE,)) if config.memory is RecurrentMemory.STATE_HISTORY else None
    inputs = {"tokens": TOKENS, "lengths": LENGTHS}
    found, aux = programs.apply(model, variables, inputs, train=False, capture=capture)
    logits, weights = expected(config, variables.params)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(found[row, :length], logits[row], atol=2e-5)
        for layer, seen in enumerate(weights[row]):
            of_layer = np.asarray(aux.maps[SITE].weights)[layer, row, 0]
            np.testing.assert_allclose(of_layer[:length, :length], seen, atol=1e-5)
            assert (of_layer[length:] == 0).all()
            assert (of_layer[:, length:] == 0).all()
    # Padding, whatever stands in it, changes nothing.
    padded = {"tokens": np.where(TOKENS == 0, 6, TOKENS), "lengths": LENGTHS}
    other, _ = programs.apply(model, variables, padded, train=False, capture=capture)
    np.testing.assert_array_equal(other[1, :3], found[1, :3])


def test_classes_are_read_behind_the_last_real_token() -> None:
    sizes = {"tokens": VOCABULARY, "classes": 3}
    inputs = {"tokens": InputSpec((2, 5)), "lengths": InputSpec((2,))}
    model = build(TINY, TaskInterface(inputs, sizes, 0, 1, 2, output=TEXT_CLASSIFICATION.output), Precision())
    rng = np.random.default_rng(3)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), model.functional.shapes())
    batch = {"tokens": TOKENS, "lengths": LENGTHS}
    run = functools.partial(model.apply, Variables(params, {}), batch, train=False)
    (found, _), (hidden, _) = jax.jit(lambda: (run(), run(method="hidden")))()
    states = np.stack([hidden[0, 4], hidden[1, 2]])
    np.testing.assert_allclose(found, states @ params["classes"]["output"]["kernel"], atol=1e-5)


def test_classes_and_next_tokens_are_both_counted() -> None:
    def counted(**vocabularies: int) -> int:
        interface = TaskInterface({}, {"tokens": VOCABULARY, **vocabularies}, 0, 1, 2)
        return forward_flops(build(TINY, interface, Precision()), {"tokens": TOKENS, "lengths": LENGTHS})

    both = counted(classes=3, **{"next tokens": VOCABULARY})
    assert both - counted(classes=3) == 2 * 2 * 5 * TINY.width * VOCABULARY
    assert both - counted() == 2 * 2 * TINY.width * 3


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=() if name in ("gru", "tape") else pytest.mark.slow)
        for name, config in CONFIGS.items()
    ],
)
def test_steps_behind_prompts_of_unequal_lengths_are_the_forward_pass(config: RecurrentDecoderConfig) -> None:
    model, variables = made(config)
    prompts = {"tokens": TOKENS[:, :3], "lengths": np.array([3, 1], np.int32)}
    said = np.array([[5, 6, 2], [1, 2, 5]], np.int32)  # behind 3, 4 and behind nothing
    capture = Capture((SITE,)) if model.sites else None
    (whole, aux), (tokens, logits, maps) = whole_and_stepped(
        model,
        variables,
        prompts,
        np.repeat(said, 2, axis=0),
        2,
        capture,
        whole_inputs={"tokens": np.array([[3, 4, 5, 6, 2], [1, 2, 5, 0, 0]], np.int32), "lengths": LENGTHS},
    )
    assert tokens.tolist() == [5, 5, 1, 1]
    for place in range(3):
        for row, first in enumerate((2, 0)):
            for beam in range(2):
                np.testing.assert_allclose(logits[place, 2 * row + beam], whole[row, first + place], atol=2e-5)
            if model.sites:
                slots = first + place
                seen = maps[SITE].weights[place, :, 2 * row, 0, 0]
                wanted = aux.maps[SITE].weights[:, row, 0, slots]
                np.testing.assert_allclose(seen[:, :slots], wanted[:, :slots], atol=1e-5)
                assert (seen[:, slots:] == 0).all()


def test_no_token_sees_a_later_one_and_gradients_are_right() -> None:
    config = dataclasses.replace(CONFIGS["tape"], layers=1)
    model, variables = made(config)

    @jax.jit
    @jax.grad
    def gradient_at(table: jax.Array, place: int) -> jax.Array:
        params = {**variables.params, "embedding": {"table": table}}
        return jnp.sum(model.apply(Variables(params, {}), {"tokens": TOKENS[:1]}, train=False)[0][0, place])

    for place, before in ((0, [3]), (2, [3, 4, 5])):
        gradient = np.asarray(gradient_at(variables.params["embedding"]["table"], place))
        assert {token for token in range(VOCABULARY) if (gradient[token] != 0).any()} == set(before)
    with jax.enable_x64(True):
        model = build(config, INTERFACE, Precision("float64", "float64"))
        check_gradient(
            lambda params: model.apply(Variables(params, {}), {"tokens": TOKENS[:1, :3]}, train=False)[0],
            (variables.params,),
        )


def test_dropout_acts_in_training_alone() -> None:
    model, variables = made(dataclasses.replace(TINY, dropout=0.5))
    inputs = {"tokens": TOKENS, "lengths": LENGTHS}
    run = lambda **how: np.asarray(programs.apply(model, variables, inputs, **how)[0])  # noqa: E731
    key = jax.random.key(1)
    np.testing.assert_array_equal(run(train=False), run(train=False, key=key))
    assert (run(train=True, key=key) != run(train=False)).any()
    np.testing.assert_array_equal(run(train=True, key=key), run(train=True, key=key))


def test_each_layer_drops_by_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Any] = []
    monkeypatch.setattr(recurrent_decoder, "dropout", lambda x, rate, key: keys.append(key) or x)
    model, variables = made(dataclasses.replace(TINY, dropout=0.5))
    inputs = {"tokens": TOKENS, "lengths": LENGTHS}
    jax.eval_shape(lambda key: model.apply(variables, inputs, train=True, key=key)[0], jax.random.key(1))
    assert len({id(key) for key in keys}) == len(keys) == 3


# What formulas gave for these configs, of 3 rows of 6 tokens.
FLOPS = {"state": 9_648, "gru": 7_488, "tape": 18_144, "narrow score": 7_992}


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_are_those_of_its_formula(name: str) -> None:
    model = build(CONFIGS[name], INTERFACE, Precision())
    assert forward_flops(model, {"tokens": jax.ShapeDtypeStruct((3, 6), jnp.int32)}) == FLOPS[name]


def test_head_statistics_are_taken_of_the_tape() -> None:
    model, variables = made(CONFIGS["tape"])
    capture = Capture((SITE,), maps=False, statistics=(STATISTICS["entropy"],))
    _, aux = programs.apply(model, variables, {"tokens": TOKENS, "lengths": LENGTHS}, train=False, capture=capture)
    _, weights = expected(CONFIGS["tape"], variables.params)
    of_layers = [
        sum(-(w[w > 0] * np.log(w[w > 0])).sum() for w in (row[layer] for row in weights)) for layer in range(2)
    ]
    np.testing.assert_allclose(aux.maps[SITE].sums["entropy"].ravel(), of_layers, rtol=1e-4)


def test_what_cannot_be_built_is_refused() -> None:
    for changes, says in (
        ({"width": 0}, "width=0"),
        ({"attention_hidden_width": -1}, "attention_hidden_width=-1"),
        (
            {"memory": RecurrentMemory.STATE_HISTORY, "cell": CellKind.GRU_RESET_AFTER},
            "memory=state_history keeps the memory cells of an LSTM",
        ),
    ):
        with pytest.raises(UserError, match=says):
            RecurrentDecoderConfig(**changes)
    model, variables = made(TINY)
    packed = {"tokens": TOKENS, "segments": np.ones_like(TOKENS), "positions": TOKENS}
    with pytest.raises(UserError, match="batching=packed"):
        model.apply(variables, packed, train=False)
