"""Recurrent encoder-decoders against NumPy float64: contexts, orders, readouts, local and sampled attention."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.gradients import check_gradient
from tests.models.random_models import whole_and_stepped
from tests.oracles import attention_equations
from tests.oracles import recurrent as oracle
from transformer.attention import Capture, Normalizer, Score
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.attention_cell import AttentionSpan, KeyValueProjection
from transformer.layers.functional_module import Precision
from transformer.layers.initialization import Initialization
from transformer.layers.recurrent import CellKind, Direction, SkipConnections
from transformer.models.model import Model, Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.recurrent_encoder_decoder import (
    Annotations,
    AttentionQuery,
    ContextVectorKind,
    InitialDecoderState,
    OutputLayerKind,
    RecurrentEncoderDecoderConfig,
)
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface

PAD, BEGIN, VOCABULARY = 0, 1, 11
SOURCE = np.array([[3, 4, 5, 6, 2], [7, 8, 2, 0, 0], [0, 0, 0, 0, 0]], np.int32)
TARGET = np.array([[1, 5, 6, 7], [1, 9, 0, 0], [1, 0, 0, 0]], np.int32)
INTERFACE = TaskInterface(
    {"source": InputSpec((3, 5)), "target": InputSpec((3, 4))}, {"joint": VOCABULARY}, PAD, BEGIN, 2
)
TINY = RecurrentEncoderDecoderConfig(width=4, embedding_width=3)


def tiny(**changes: Any) -> RecurrentEncoderDecoderConfig:
    return dataclasses.replace(TINY, **changes)


LUONG: dict[str, Any] = {
    "attention_query": AttentionQuery.CURRENT,
    "output_layer": OutputLayerKind.TANH,
    "direction": Direction.FORWARD,
}
CONFIGS = {
    "bahdanau": tiny(),
    "bahdanau's appendix": tiny(output_layer=OutputLayerKind.MAXOUT_OF_PREVIOUS_STATE, decoder_layers=2),
    "sutskever": tiny(
        cell=CellKind.LSTM,
        context_vector=ContextVectorKind.NONE,
        attention_query=AttentionQuery.CURRENT,
        output_layer=OutputLayerKind.TANH,
        direction=Direction.BACKWARD,
        initial_decoder_state=InitialDecoderState.COPY,
        encoder_layers=2,
        decoder_layers=2,
    ),
    "cho": tiny(context_vector=ContextVectorKind.LAST),
    "mean": tiny(context_vector=ContextVectorKind.MEAN, attention_query=AttentionQuery.CURRENT),
    "sum": tiny(
        context_vector=ContextVectorKind.SUM, attention_query=AttentionQuery.INPUT_FEEDING, cell=CellKind.VANILLA
    ),
    "over length": tiny(context_vector=ContextVectorKind.ATTENTION_OVER_LENGTH),
    "over length at once": tiny(
        context_vector=ContextVectorKind.ATTENTION_OVER_LENGTH, attention_query=AttentionQuery.CURRENT
    ),
    "luong": tiny(cell=CellKind.LSTM, score=Score.DOT, initial_decoder_state=InitialDecoderState.COPY, **LUONG),
    "luong, input feeding": tiny(
        **LUONG | {"attention_query": AttentionQuery.INPUT_FEEDING},
        score=Score.GENERAL,
        cell=CellKind.LSTM,
        decoder_layers=2,
    ),
    "local-m": tiny(**LUONG, score=Score.GENERAL, attention_span=AttentionSpan.MONOTONIC, half_width=1),
    "local-m in steps": tiny(attention_span=AttentionSpan.MONOTONIC, half_width=1),
    "local-p": tiny(**LUONG, score=Score.GENERAL, attention_span=AttentionSpan.PREDICTIVE, half_width=2),
    "local-p in steps": tiny(attention_span=AttentionSpan.PREDICTIVE, half_width=1),
    "location": tiny(**LUONG, score=Score.LOCATION, max_length=6),
    "mlp": tiny(score=Score.MLP),
    "concat": tiny(score=Score.CONCAT, attention_query=AttentionQuery.INPUT_FEEDING),
    "cosine": tiny(**LUONG, score=Score.COSINE),
    "split heads": tiny(key_value_projection=KeyValueProjection.SPLIT, heads=2, head_dim=3, score=Score.SCALED_DOT),
    "hard": tiny(normalizer=Normalizer.HARD),
    "deep": tiny(
        cell=CellKind.GRU_RESET_AFTER, encoder_layers=3, decoder_layers=3, skip_connections=SkipConnections.GNMT
    ),
    "gnmt": tiny(
        cell=CellKind.LSTM,
        encoder_layers=3,
        decoder_layers=3,
        direction=Direction.BIDIRECTIONAL_BELOW,
        skip_connections=SkipConnections.GNMT,
        attention_query=AttentionQuery.BOTTOM_LAYER,
        output_layer=OutputLayerKind.STATE,
    ),
    "fast forward": tiny(
        cell=CellKind.LSTM, encoder_layers=2, decoder_layers=2, skip_connections=SkipConnections.FAST_FORWARD
    ),
    "deep-att": tiny(
        cell=CellKind.LSTM_PEEPHOLE,
        encoder_layers=2,
        decoder_layers=2,
        direction=Direction.ALTERNATING_COLUMNS,
        skip_connections=SkipConnections.FAST_FORWARD_HALF,
        initial_decoder_state=InitialDecoderState.ZERO,
        annotations=Annotations.FAST_FORWARD,
        attention_query=AttentionQuery.BOTTOM_LAYER_ONLY,
        output_layer=OutputLayerKind.STATE,
    ),
    "fast-forward annotations, summed": tiny(
        annotations=Annotations.FAST_FORWARD, context_vector=ContextVectorKind.SUM, direction=Direction.FORWARD
    ),
}


@functools.cache
def model_of(name: str, precision: str = "float32") -> Model:
    return build(CONFIGS[name], INTERFACE, Precision(precision, precision))


def random_weights(model: Model, scale: float = 1.0) -> Any:
    normal = np.random.default_rng(0).normal
    with jax.enable_x64(True):
        shapes = model.functional.shapes()
    return jax.tree.map(lambda leaf: normal(size=leaf.shape, scale=scale).astype(leaf.dtype), shapes)


def test_no_two_streams_of_random_numbers_share_a_key() -> None:
    model = build(RecurrentEncoderDecoderConfig(width=4, embedding_width=3), INTERFACE, Precision())
    module, key = model.functional.bind(random_weights(model)), jax.random.key(3)
    keys = {tuple(jax.random.key_data(module.random_stream_key(key, name)).tolist()) for name in module.streams}
    assert len(keys) == len(module.streams)


class Expected(NamedTuple):
    """The logits [T, V] of one example, and its attention's weights [H, T, K]."""

    logits: np.ndarray
    weights: np.ndarray


def linear(weights: Any, x: np.ndarray) -> np.ndarray:
    return x @ weights["kernel"].astype(np.float64).reshape(len(x), -1) + np.ravel(weights.get("bias", 0))


def expected_of(
    config: RecurrentEncoderDecoderConfig, weights: Any, source: np.ndarray, target: np.ndarray
) -> Expected:
    """One example without its padding, one step after another, from the equations."""
    table = weights["embedding"]["table"].astype(np.float64)
    names = (config.cell.value, config.direction.value, config.encoder_layers, config.skip_connections.value)
    lengths = np.array([len(source)])
    h, ends = oracle.stack(oracle.Stack(*names), weights["encoder"], table[source][None], lengths)
    h, last = h[0], [of_layer[0] for of_layer in ends]
    if config.annotations is Annotations.FAST_FORWARD:
        if config.direction is Direction.ALTERNATING_COLUMNS:
            _, (f,), _ = oracle.two_columns(oracle.Stack(*names), weights["encoder"], table[source][None], lengths)
        else:  # Of one forward layer, whose input is the words.
            f = oracle.projected(weights["encoder"]["layer_0"]["forward"], table[source])
        h = np.concatenate([h, f], -1) @ weights["annotation_projection"]["kernel"].astype(np.float64)

    states = last
    if config.initial_decoder_state is InitialDecoderState.ZERO:
        states = [oracle.zeros(config.cell.value, config.width)] * config.decoder_layers
    if config.initial_decoder_state is InitialDecoderState.TANH:
        hidden = np.split(np.tanh(linear(weights["first_hidden"], last[-1].hidden)), config.decoder_layers)
        states = [oracle.State(each) for each in hidden]
        if config.cell is CellKind.LSTM:
            memory = np.split(linear(weights["first_memory"], last[-1].memory), config.decoder_layers)
            states = [oracle.State(*both) for both in zip(hidden, memory, strict=True)]

    def context_of(query: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        match config.context_vector:
            case ContextVectorKind.NONE:
                return np.zeros(0), np.zeros((0, len(source)))
            case ContextVectorKind.LAST:
                return last[-1].hidden, np.zeros((0, len(source)))
            case ContextVectorKind.SUM | ContextVectorKind.MEAN:
                return h.sum(0) / (len(source) if config.context_vector is ContextVectorKind.MEAN else 1), np.zeros(
                    (0, len(source))
                )
        context, of_heads = attended(config, weights, query, h, step)
        return context / (
            len(source) if config.context_vector is ContextVectorKind.ATTENTION_OVER_LENGTH else 1
        ), of_heads

    kind = oracle.Stack(config.cell.value, layers=config.decoder_layers, links=config.skip_connections.value)
    fed, logits, maps = np.zeros(config.width), [], []
    for step, word in enumerate(table[target]):
        bottom = config.attention_query is AttentionQuery.BOTTOM_LAYER
        lowest = bottom or config.attention_query is AttentionQuery.BOTTOM_LAYER_ONLY
        before_step = lowest or config.attention_query is AttentionQuery.PREVIOUS
        if before_step:
            context, of_heads = context_of(states[0 if lowest else -1].hidden, step)
            entering = np.concatenate([word, context])
        else:
            entering = np.concatenate([word, fed]) if config.attention_query is AttentionQuery.INPUT_FEEDING else word
        if bottom:
            before, (s, states) = states[-1].hidden, gnmt_step(config, weights["decoder"], word, context, states)
        else:
            y, after = oracle.stack(
                kind, weights["decoder"], entering[None, None], np.array([1]), [[s] for s in states]
            )
            before, s, states = states[-1].hidden, y[0, 0], [of_layer[0] for of_layer in after]
        if not before_step:
            context, of_heads = context_of(s, step)
        if config.output_layer is OutputLayerKind.STATE:
            fed = s
        elif config.output_layer is OutputLayerKind.TANH:
            fed = np.tanh(linear(weights["readout"], np.concatenate([context, s])))
        else:
            read = s if config.output_layer is OutputLayerKind.MAXOUT else before
            fed = linear(weights["readout"], np.concatenate([read, word, context])).reshape(-1, 2).max(-1)
        logits.append(fed @ weights["output"]["kernel"].astype(np.float64))
        maps.append(of_heads)
    return Expected(np.array(logits), np.stack(maps, axis=1))


def gnmt_step(
    config: RecurrentEncoderDecoderConfig, weights: Any, word: np.ndarray, context: np.ndarray, states: Any
) -> tuple[np.ndarray, list[Any]]:
    """A step of GNMT's decoder (its figure 1): every layer reads the context; from the third on its input is added."""
    x, after = word, []
    for number, state in enumerate(states):
        alone = {"layer_0": weights[f"layer_{number}"]}
        read = np.concatenate([x, context])
        y, ((ended,),) = oracle.stack(
            oracle.Stack(config.cell.value), alone, read[None, None], np.array([1]), [[state]]
        )
        x = y[0, 0] + x if number >= 2 else y[0, 0]
        after.append(ended)
    return x, after


# The algebra's names of a score's arrays.
NAMES = {
    ("general", "weight"): "weight_HxDxC",
    ("concat", "weight"): "weight_HxIxA",
    ("mlp", "weight"): "weight_HxIxA",
    ("location", "weight"): "weight_HxDxN",
    "keys": "keys_HxCxA",
    "queries": "queries_HxDxA",
    "vector": "score_HxA",
    "bias": "bias_HxA",
}


def attended(
    config: RecurrentEncoderDecoderConfig, weights: Any, query: np.ndarray, h: np.ndarray, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """The context of one query, and the weights [H, K]."""
    attention, heads = weights.get("attention", {}), config.heads

    def in_heads(x: np.ndarray, name: str) -> np.ndarray:
        if config.key_value_projection is KeyValueProjection.SPLIT:
            return np.einsum("ne,ehd->nhd", x, attention[name]["kernel"].astype(np.float64))
        return x.reshape(len(x), heads, -1)

    q = in_heads(query[None], "query")[None]
    arrays = {"q": q, "k": in_heads(h, "key")[None], "v": in_heads(h, "value")[None]}
    for name, array in attention.get("score", {}).items():
        if name == "log_sharpening":
            arrays["score.sharpening"] = np.exp(array.astype(np.float64))[None, :, None]
        else:
            arrays[f"score.{NAMES.get((config.score.value, name)) or NAMES[name]}"] = array.astype(np.float64)
    facts: dict[str, Any] = {}
    seen, factor = np.ones((heads, len(h)), bool), np.ones((heads, len(h)))
    places = np.arange(len(h))
    if config.attention_span is AttentionSpan.MONOTONIC:
        seen[:] = np.abs(places - step) <= config.half_width
    if config.attention_span is AttentionSpan.PREDICTIVE:
        for head in range(heads):
            hidden = np.tanh(q[0, 0, head] @ attention["center"]["weight"][head].astype(np.float64))
            center = (len(h) - 1) * oracle.logistic(hidden @ attention["center"]["score"][head])
            seen[head] = np.abs(places - center) <= config.half_width
            factor[head] = np.exp(-((places - center) ** 2) / (2 * (config.half_width / 2) ** 2))
    facts["allowed"] = seen[None, :, None]
    kind = attention_equations.Kind(config.score.value, "hard" if config.normalizer is Normalizer.HARD else "softmax")
    answer = attention_equations.attention(kind, arrays, facts)
    of_heads = answer.weights[0, :, 0] * factor
    return np.einsum("hk,khd->hd", of_heads, arrays["v"][0]).ravel(), of_heads


# Of each choice its most telling value, and of the rest those that go together with it; `make slow` takes all.
QUICK = (
    "bahdanau",
    "bahdanau's appendix",
    "sutskever",
    "over length at once",
    "luong, input feeding",
    "local-m in steps",
    "local-p in steps",
)
QUICK += ("concat", "split heads", "hard", "gnmt", "deep-att")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS]
)
def test_logits_maps_and_steps_are_the_equations(name: str) -> None:
    config, model = CONFIGS[name], model_of(name, "float64")
    # Linear paths from layer to layer saturate the gates of the upper ones, unless weights are small.
    weights = random_weights(model, 0.5 if config.annotations is Annotations.FAST_FORWARD else 1.0)
    capture = Capture((SITE,)) if model.sites else None
    batch = {"source": SOURCE, "target": TARGET}

    with jax.enable_x64(True):
        (outputs, aux), (first, logits_TxRxV, maps) = whole_and_stepped(
            model, Variables(weights, {}), batch, np.repeat(TARGET, 2, axis=0), 2, capture
        )
    assert (first == BEGIN).all()
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != PAD], np.concatenate([target[:1], target[1:][target[1:] != PAD]])
        if not len(source):
            continue
        answer = expected_of(config, weights, source, target)
        np.testing.assert_allclose(outputs[row, : len(target)], answer.logits, rtol=1e-9, atol=1e-9)
        for place in range(len(target)):
            for beam in (2 * row, 2 * row + 1):
                np.testing.assert_allclose(logits_TxRxV[place, beam], answer.logits[place], rtol=1e-9, atol=1e-9)
                if capture is not None:
                    read = maps[SITE].weights[place, 0, beam, :, 0, : len(source)]
                    np.testing.assert_allclose(read, answer.weights[:, place], rtol=1e-9, atol=1e-9)
        if capture is not None:
            whole = aux.maps[SITE].weights[0, row]
            np.testing.assert_allclose(whole[:, : len(target), : len(source)], answer.weights, rtol=1e-9, atol=1e-9)
            assert (whole[:, len(target) :] == 0).all()
            assert (whole[:, :, len(source) :] == 0).all()
    assert np.isfinite(outputs).all()


@pytest.mark.parametrize("name", [pytest.param("luong, input feeding", marks=pytest.mark.slow), "local-p"])
def test_gradients_are_right(name: str) -> None:
    model = model_of(name, "float64")
    # Small ones, so that windows do not jump between the two sides of a difference.
    weights = jax.tree.map(lambda leaf: 0.3 * leaf, random_weights(model))
    batch = {"source": SOURCE[:2], "target": TARGET[:2]}

    def loss(weights: Any) -> Any:
        return jnp.sum(jnp.sin(model.apply(Variables(weights, {}), batch, train=False)[0]))

    with jax.enable_x64(True):
        check_gradient(loss, (weights,), atol=1e-5, rtol=1e-5, eps=1e-6)


def test_identity_projections_are_the_plain_score() -> None:
    """Keys, values and queries by matrices that change nothing read as the annotations themselves do."""
    plain = tiny(direction=Direction.FORWARD, score=Score.SCALED_DOT)
    split = dataclasses.replace(plain, key_value_projection=KeyValueProjection.SPLIT)
    models = [build(config, INTERFACE, Precision()) for config in (plain, split)]
    weights = random_weights(models[1])
    identity = np.eye(plain.width, dtype=np.float32)[:, None]
    weights["attention"] |= {name: {"kernel": identity} for name in ("query", "key", "value")}
    without = {name: of_part for name, of_part in weights.items() if name != "attention"}
    batch = {"source": SOURCE, "target": TARGET}
    found = []
    for model, params in zip(models, (without, weights), strict=True):
        variables = Variables(params, {})
        shapes = [jax.tree.structure(tree) for tree in (model.functional.shapes(), params)]
        assert shapes[0] == shapes[1]
        found.append(programs.apply(model, variables, batch, train=False)[0])
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_attention_begins_uniform_as_bahdanau_begins_it() -> None:
    model = build(tiny(initialization=Initialization.BAHDANAU), INTERFACE, Precision())
    variables = jax.jit(model.init)(jax.random.key(3))
    batch = {"source": SOURCE, "target": TARGET}
    _, aux = programs.apply(model, variables, batch, train=False, capture=Capture((SITE,)))
    weights = np.asarray(aux.maps[SITE].weights)[0]
    np.testing.assert_allclose(weights[0, 0], np.full((4, 5), 1 / 5), rtol=1e-6)
    np.testing.assert_allclose(weights[1, 0, :2, :3], np.full((2, 3), 1 / 3), rtol=1e-6)
    score = variables.params["attention"]["score"]
    assert (score["vector"] == 0).all()
    assert 0 < np.std(score["keys"]) < 0.003
    assert 0.005 < np.std(variables.params["readout"]["kernel"]) < 0.02


def test_the_lectures_context_is_smaller_by_the_length_of_the_source() -> None:
    """Weights that sum to one need no 1/N: with it, logits of a linear readout differ by that factor."""
    at = {name: model_of(name) for name in ("bahdanau", "over length")}
    weights = random_weights(at["bahdanau"])
    # The readout hears the context alone, and the state hears nothing of it: all else is equal.
    readout = np.zeros_like(weights["readout"]["kernel"])
    readout[TINY.width + TINY.embedding_width :] = 1
    weights["readout"] = {"kernel": readout, "bias": np.zeros_like(weights["readout"]["bias"])}
    weights["decoder"]["layer_0"]["forward"]["kernel"][TINY.embedding_width :] = 0
    found = {}
    for name, model in at.items():
        variables = Variables(weights, {})
        found[name] = programs.apply(model, variables, {"source": SOURCE, "target": TARGET}, train=False)[0]
    np.testing.assert_allclose(found["bahdanau"][0], 5 * found["over length"][0], rtol=1e-5)
    np.testing.assert_allclose(found["bahdanau"][1, :2], 3 * found["over length"][1, :2], rtol=1e-5)


@pytest.mark.slow
def test_local_attention_that_sees_all_is_global() -> None:
    wide = build(dataclasses.replace(CONFIGS["local-m"], half_width=9), INTERFACE, Precision())
    whole = build(dataclasses.replace(CONFIGS["local-m"], attention_span=AttentionSpan.GLOBAL), INTERFACE, Precision())
    variables = programs.initial(whole.init, 1)
    batch = {"source": SOURCE, "target": TARGET}
    np.testing.assert_array_equal(
        programs.apply(wide, variables, batch, train=False)[0], programs.apply(whole, variables, batch, train=False)[0]
    )


@pytest.mark.slow
def test_the_mean_gradient_of_reinforce_is_that_of_the_expectation() -> None:
    """E[f(k)] over the drawn key: the mean of f log p's gradient over many draws, against the sum over all keys."""
    model = model_of("hard")
    variables = programs.initial(model.init, 5)
    batch = {"source": SOURCE[:1], "target": TARGET[:1, :1]}
    score = {"score": variables.params["attention"]["score"]}

    def drawn(score: Any, key: Any) -> tuple[Any, Any]:
        params = variables.params | {"attention": score}
        outputs, aux = model.apply(variables._replace(params=params), batch, train=True, key=key)
        log_probability = aux.extras["attention_log_prob"][0, 0, 0]
        return jax.lax.stop_gradient(outputs[0, 0, 3]) * log_probability, (log_probability, outputs[0, 0, 3])

    keys = jax.random.split(jax.random.key(0), 4000)
    gradients, (log_probability, values) = jax.jit(jax.vmap(jax.grad(drawn, has_aux=True), (None, 0)))(score, keys)
    # The draws show every key's probability and value, so that the exact expectation is a sum over the keys.
    probabilities, first = np.unique(np.asarray(log_probability).round(5), return_index=True)
    assert len(first) == 5
    assert np.exp(probabilities).sum() == pytest.approx(1, abs=1e-3)
    exact = jax.tree.map(
        lambda leaf: sum(math.exp(p) * leaf[at] for p, at in zip(probabilities, first, strict=True)), gradients
    )
    for mean, wanted, each in zip(*map(jax.tree.leaves, (gradients, exact, gradients)), strict=True):
        error = np.std(each, axis=0) / math.sqrt(len(keys))
        assert (np.abs(np.mean(mean, axis=0) - wanted) <= 5 * error + 1e-7).all()
    assert np.std(values) > 0


@pytest.mark.slow
def test_scheduled_sampling_reads_the_models_own_words() -> None:
    """At a share of one from the first step, what stands in the target behind the begin token has no effect."""
    config = tiny(scheduled_sampling=0.999999, scheduled_sampling_steps=1, attention_query=AttentionQuery.CURRENT)
    model = build(config, INTERFACE, Precision())
    variables = programs.initial(model.init)
    assert variables.state == {"steps": 0}
    other = np.where(TARGET > 2, 12 - TARGET, TARGET)
    run = jax.jit(
        lambda variables, target, train: model.apply(
            variables, {"source": SOURCE, "target": target}, train=train, key=jax.random.key(7)
        ),
        static_argnums=2,
    )
    outputs, aux = run(variables, TARGET, True)
    # At step 0 the share is still zero: the reference's words are read.
    assert (np.asarray(outputs[0, 1]) != np.asarray(run(variables, other, True)[0][0, 1])).any()
    assert int(aux.state["steps"]) == 1
    later = variables._replace(state=aux.state)
    np.testing.assert_array_equal(run(later, TARGET, True)[0], run(later, other, True)[0])
    evaluated, after = run(later, TARGET, False)
    assert int(after.state["steps"]) == 1
    np.testing.assert_array_equal(evaluated, run(variables, TARGET, False)[0])


# What formulas gave for these configs, of 3 rows of 5 and 4 tokens.
FLOPS = {
    "bahdanau": 16_272,
    "luong, input feeding": 14_304,
    "local-p": 8_376,
    "split heads": 17_424,
    "location": 7_416,
    "cho": 13_488,
    "fast forward": 71_424,
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops_are_those_of_its_formula(name: str) -> None:
    batch = {"source": jax.ShapeDtypeStruct((3, 5), jnp.int32), "target": jax.ShapeDtypeStruct((3, 4), jnp.int32)}
    assert forward_flops(model_of(name), batch) == FLOPS[name]


@pytest.mark.slow
def test_a_soft_share_reads_by_the_probabilities() -> None:
    hard = build(tiny(normalizer=Normalizer.HARD, soft_attention_probability=0.999999), INTERFACE, Precision())
    soft = model_of("bahdanau")
    variables, batch = programs.initial(soft.init, 2), {"source": SOURCE, "target": TARGET}
    outputs, aux = programs.apply(hard, variables, batch, train=True, key=jax.random.key(0))
    expected, _ = programs.apply(soft, variables, batch, train=False)
    np.testing.assert_allclose(outputs[:2], expected[:2], rtol=1e-5, atol=1e-6)
    assert (aux.extras["attention_log_prob"] == 0).all()
    assert (aux.extras["attention_entropy"][0] > 0).all()
    # Without a share, and in evaluation, each query reads one key.
    drawn = build(tiny(normalizer=Normalizer.HARD), INTERFACE, Precision())
    capture = Capture((SITE,))
    for train in (True, False):
        _, aux = programs.apply(drawn, variables, batch, train=train, key=jax.random.key(0), capture=capture)
        weights = np.asarray(aux.maps[SITE].weights)[0, 0, 0]
        assert set(np.unique(weights)) == {0, 1}
    with pytest.raises(UserError, match=r"soft_attention_probability=0\.5 is for an attention that draws"):
        tiny(soft_attention_probability=0.5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"width": 0}, "config.model.width=0 must be at least 1"),
        ({"score": Score.DOT}, "config.model.score=dot compares states of 4 features with annotations of 8"),
        ({"heads": 3}, "config.model.heads=3 do not divide the 4 features of width"),
        (
            {"initial_decoder_state": InitialDecoderState.COPY},
            "config.model.initial_decoder_state=copy needs as many decoder layers",
        ),
        (
            {"context_vector": ContextVectorKind.NONE, "attention_query": AttentionQuery.INPUT_FEEDING},
            "config.model.attention_query=input_feeding needs a context vector",
        ),
        (
            {
                "output_layer": OutputLayerKind.MAXOUT_OF_PREVIOUS_STATE,
                "attention_query": AttentionQuery.CURRENT,
            },
            "config.model.output_layer=maxout_of_previous_state reads the state that attends, and "
            "config.model.attention_query=current attends with the next one",
        ),
        (
            {"annotations": Annotations.FAST_FORWARD, "context_vector": ContextVectorKind.LAST},
            "config.model.context_vector=last reads no annotations, which config.model.annotations=fast_forward "
            "projects: say annotations=state",
        ),
        (
            {"initial_decoder_state": InitialDecoderState.ZERO, "context_vector": ContextVectorKind.NONE},
            "initial_decoder_state=zero and config.model.context_vector=none tell the decoder nothing",
        ),
        (
            {"skip_connections": SkipConnections.FAST_FORWARD_HALF},
            "fast_forward_half passes on two of the four gates of an LSTM, and cell=gru_reset_before is none: say",
        ),
        ({"score": Score.LOCATION}, "max_length=0 must be at least 1"),
        (
            {"attention_span": AttentionSpan.PREDICTIVE, "normalizer": Normalizer.HARD},
            "config.model.attention_span=predictive .* of which config.model.normalizer=hard leaves one: "
            "say attention_span=monotonic",
        ),
        (
            {"attention_span": AttentionSpan.PREDICTIVE, "normalizer": Normalizer.STRAIGHT_THROUGH},
            "config.model.normalizer=straight_through leaves one",
        ),
        ({"scheduled_sampling": 1.5}, "scheduled_sampling=1.5"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises((UserError, ValueError), match=told):
        tiny(**changes)
