"""ConvS2S and ByteNet against NumPy float64: whole and in steps, padding, causality, receptive fields, FLOPs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.models.random_models import whole_and_stepped
from tests.oracles import convolutional as oracle
from tests.oracles import decoding
from tests.oracles.decoding import NextToken
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import SpecialTokens, generate
from transformer.layers.functional_module import Precision
from transformer.models import convs2s
from transformer.models.bytenet import ByteNetConfig
from transformer.models.convs2s import SITE, ConvS2SConfig
from transformer.models.model import Model, Variables
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface

PAD, BEGIN, VOCABULARY = 0, 1, 11
SOURCE = np.array([[3, 4, 5, 6, 2], [7, 8, 2, 0, 0], [0, 0, 0, 0, 0]], np.int32)
TARGET = np.array([[1, 5, 6, 7, 9, 4, 3], [1, 9, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]], np.int32)
BATCH = {"source": SOURCE, "target": TARGET}
INTERFACE = TaskInterface(
    {"source": InputSpec((3, 5)), "target": InputSpec((3, 7))}, {"joint": VOCABULARY}, PAD, BEGIN, 2
)
Config = ConvS2SConfig | ByteNetConfig
CONVS2S = ConvS2SConfig(embedding_width=3, width=4, encoder_layers=2, decoder_layers=3, max_length=8, dropout=0.25)
BYTENET = ByteNetConfig(width=3, encoder_sets=1, decoder_sets=2, max_dilation=2, dropout=0.25)
CONFIGS: dict[str, Config] = {
    "convs2s": CONVS2S,
    "convs2s, even kernel": dataclasses.replace(CONVS2S, kernel_size=2, encoder_layers=1, decoder_layers=1),
    "bytenet": BYTENET,
    # Fewer positions than the source has; that of the other has fewer than its target.
    "bytenet, short": dataclasses.replace(BYTENET, length_factor=0.5, max_dilation=1, kernel_size=2),
}


@functools.cache
def model_of(name: str, precision: str = "float32") -> Model:
    return build(CONFIGS[name], INTERFACE, Precision(precision, precision))


def test_no_two_places_of_convs2s_drop_by_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Any] = []
    monkeypatch.setattr(convs2s, "dropout", lambda x, rate, key: keys.append(key) or x)
    model = model_of("convs2s")
    apply = functools.partial(model.apply, inputs=BATCH, train=True)
    jax.eval_shape(lambda variables, key: apply(variables, key=key)[0], random_variables(model), jax.random.key(1))
    # Of the words of both sides and of the last states, and in the blocks of each side.
    assert len({id(key) for key in keys}) == len(keys) >= 5


def random_variables(model: Model, seed: int = 0) -> Variables:
    """Numbers of both signs for every parameter, in its own type."""
    normal = np.random.default_rng(seed).normal
    shapes = model.functional.shapes()
    return Variables(jax.tree.map(lambda leaf: normal(size=leaf.shape).astype(leaf.dtype), shapes), {})


def answer_of(config: Config, params: Any, source: np.ndarray, target: np.ndarray) -> oracle.Answer:
    if isinstance(config, ConvS2SConfig):
        return oracle.convs2s(params, source, target)
    # Rounded up by whole tenths.
    tenths = round(10 * config.length_factor) * len(source) + 10 * config.length_offset
    return oracle.bytenet(params, source, target, -(-tenths // 10))


def alone() -> list[tuple[int, np.ndarray, np.ndarray]]:
    """The examples that have a source, without their padding."""
    rows = enumerate(zip(SOURCE, TARGET, strict=True))
    found = [(row, s[s != PAD], np.concatenate([t[:1], t[1:][t[1:] != PAD]])) for row, (s, t) in rows]
    return [each for each in found if len(each[1])]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("convs2s", "bytenet") else pytest.mark.slow) for name in CONFIGS]
)
def test_logits_maps_and_steps_are_the_equations(name: str) -> None:
    config = CONFIGS[name]
    with jax.enable_x64(True):
        model = model_of(name, "float64")
        variables, key = random_variables(model), jax.random.key(0)
        capture = Capture((SITE,)) if model.sites else None

        (outputs, aux), (first, logits_TxRxV, maps) = whole_and_stepped(
            model, variables, BATCH, np.repeat(TARGET, 2, axis=0), 2, capture
        )
        dropped, _ = programs.apply(model, variables, BATCH, train=True, key=key)
    assert (first == BEGIN).all()
    assert np.isfinite(outputs).all()
    # Dropout acts in training alone.
    assert np.abs(np.asarray(dropped) - outputs).max() > 0.01
    for row, source, target in alone():
        answer = answer_of(config, variables.params, source, target)
        np.testing.assert_allclose(outputs[row, : len(target)], answer.logits, rtol=1e-9, atol=1e-9)
        for beam in range(2):
            logits = logits_TxRxV[: len(target), 2 * row + beam]
            np.testing.assert_allclose(logits, answer.logits, rtol=1e-9, atol=1e-9)
        if capture is None:
            continue
        whole = np.asarray(aux.maps[SITE].weights)[:, row, 0]
        np.testing.assert_allclose(whole[:, : len(target), : len(source)], answer.weights, rtol=1e-9, atol=1e-9)
        assert (whole[:, len(target) :] == 0).all()
        assert (whole[:, :, len(source) :] == 0).all()
        read_TxLxS = np.asarray(maps[SITE].weights)[: len(target), :, 2 * row + 1, 0, 0, : len(source)]
        np.testing.assert_allclose(read_TxLxS, np.moveaxis(answer.weights, 0, 1), rtol=1e-9, atol=1e-9)


def loss_of(model: Model, batch: dict[str, np.ndarray]) -> Callable[[Any], Any]:
    """A number that every real position's logits have a share in."""
    real = jnp.asarray(batch["target"] != PAD)[..., None]

    def loss(params: Any) -> Any:
        logits = model.apply(Variables(params, {}), batch, train=False)[0]
        return jnp.sum(jnp.where(real, jnp.sin(logits), 0))

    return loss


def test_gradients_of_the_encoder_are_divided_by_twice_the_attentions_but_not_those_of_its_words() -> None:
    """Against differences: those of what only the encoder reads are 1/(2 x 3 layers) of what they would be."""
    with jax.enable_x64(True):
        model = model_of("convs2s", "float64")
        whole, along = random_variables(model).params, random_variables(model, 1).params
        loss = jax.jit(jax.value_and_grad(loss_of(model, {name: values[:2] for name, values in BATCH.items()})))
        # Of an encoder that gives the same whatever it reads: a word reaches the values alone.
        closed = {**whole, "leave_encoder": {**whole["leave_encoder"], "length": np.zeros(3)}}
        parts = [(whole, name, 1 / 6) for name in ("enter_encoder", "encoder", "leave_encoder")]
        parts += [(whole, "enter_decoder", 1), (whole, "decoder", 1), (closed, "source_positions", 1)]
        for params, part, factor in parts:
            moved = [
                loss({**params, part: jax.tree.map(lambda x, d, step=step: x + step * d, params[part], along[part])})[0]
                for step in (1e-6, -1e-6)
            ]
            found = sum(jax.tree.leaves(jax.tree.map(np.vdot, loss(params)[1][part], along[part])))
            np.testing.assert_allclose(found, factor * (moved[0] - moved[1]) / 2e-6, rtol=1e-5, err_msg=part)


@pytest.mark.parametrize("name", [pytest.param("convs2s", marks=pytest.mark.slow), "bytenet"])
def test_padding_has_no_effect_whatever_stands_there(name: str) -> None:
    """NaN in the padding's row of the table, and in the positions that padding alone has, changes no number."""
    model = model_of(name)
    params = random_variables(model).params
    batch = {"source": np.pad(SOURCE, ((0, 0), (0, 2))), "target": np.pad(TARGET, ((0, 0), (0, 1)))}

    def fill(table: np.ndarray, places: Any) -> dict[str, np.ndarray]:
        filled = table.copy()
        filled[places] = np.nan
        return {"table": filled}

    filled = {**params, "embedding": fill(params["embedding"]["table"], PAD)}
    if name == "convs2s":
        for side, count in (("source_positions", 5), ("target_positions", 7)):
            filled[side] = fill(params[side]["table"], slice(count, None))

    def loss(params: Any) -> Any:
        logits = model.apply(Variables(params, {}), batch, train=False)[0]
        kept = jnp.where((batch["target"] != PAD)[:2, :, None], logits[:2], 0)
        return jnp.sum(jnp.sin(kept)), kept

    run = jax.jit(jax.grad(loss, has_aux=True))
    (gradient, logits), (of_filled, logits_of_filled) = run(params), run(filled)
    np.testing.assert_array_equal(logits_of_filled, logits)
    assert np.isfinite(logits).all()
    for (path, leaf), other in zip(jax.tree.leaves_with_path(gradient), jax.tree.leaves(of_filled), strict=True):
        np.testing.assert_array_equal(other, leaf, err_msg=str(path))
    assert (gradient["embedding"]["table"][PAD] == 0).all()


def reads(name: str, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which output reads which word of the target, and of the source, by the exact zeros of the Jacobian."""
    words = np.arange(2, 26, dtype=np.int32)
    # An example for each side: the other side has one word alone, so that a row of the table is one place.
    batch = {"target": np.stack([words, np.ones_like(words)]), "source": np.stack([np.ones_like(words), words])}
    inputs = {side: InputSpec(tokens.shape) for side, tokens in batch.items()}
    model = build(
        dataclasses.replace(CONFIGS[name], **changes), TaskInterface(inputs, {"joint": 26}, PAD, BEGIN, 2), Precision()
    )
    params = jax.tree.map(jnp.asarray, random_variables(model, 3).params)

    def sums(table: Any) -> Any:
        given = {**params, "embedding": {"table": table}}
        return jnp.sum(model.apply(Variables(given, {}), batch, train=False)[0], axis=-1)

    jacobian = np.asarray(jax.jit(jax.jacrev(sums))(params["embedding"]["table"]))
    target, source = np.abs(jacobian).max(-1)[:, :, 2:] != 0
    return target, source


# The place that is read, from the one that reads.
AHEAD = np.arange(24)[None] - np.arange(24)[:, None]


def test_bytenet_reads_as_far_as_its_dilations_reach() -> None:
    """Of the target 2 x (1 + 2) x 2 words back, of the source besides 1 + 2 to either side."""
    target, source = reads("bytenet", width=8)
    np.testing.assert_array_equal(target, (AHEAD <= 0) & (AHEAD >= -12))
    np.testing.assert_array_equal(source, (AHEAD <= 3) & (AHEAD >= -15))


def test_convs2s_reads_no_later_word_and_every_word_of_the_source() -> None:
    """Three layers of kernel 3 read six words back; their attention reaches all of the source at once."""
    target, source = reads("convs2s", embedding_width=8, width=8, max_length=24)
    np.testing.assert_array_equal(target, (AHEAD <= 0) & (AHEAD >= -6))
    assert source.all()


# What formulas of each family gave for these configs.
FLOPS = {"convs2s": 27_774, "convs2s, even kernel": 9_990, "bytenet": 19_404, "bytenet, short": 10_440}


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_are_those_of_its_formula(name: str) -> None:
    batch = {name: jax.ShapeDtypeStruct(values.shape, jnp.int32) for name, values in BATCH.items()}
    assert forward_flops(model_of(name), batch) == FLOPS[name]


@pytest.mark.slow
def test_a_fresh_convs2s_begins_as_its_paper_says() -> None:
    """N(0, sqrt(4p/n)) before gates and N(0, sqrt(p/n)) behind dropout, else N(0, sqrt(1/n)); tables N(0, 0.1)."""
    config = ConvS2SConfig(
        embedding_width=24, width=40, encoder_layers=2, decoder_layers=2, max_length=64, dropout=0.25
    )
    interface = dataclasses.replace(INTERFACE, vocabularies={"joint": 80})
    params = programs.initial(build(config, interface, Precision()).init).params
    kept, k = 0.75, 3
    expected = {
        "enter_encoder": (kept / 24) ** 0.5,
        "enter_decoder": (kept / 24) ** 0.5,
        "leave_encoder": (1 / 40) ** 0.5,
        "leave_decoder": (1 / 40) ** 0.5,
        "output": (kept / 24) ** 0.5,
    }
    kernels = {name: params[name] for name in expected}
    kernels |= {"encoder": params["encoder"]["convolution"], "decoder": params["decoder"]["convolution"]["convolution"]}
    kernels |= {name: params["decoder"][name] for name in ("query", "context")}
    expected |= dict.fromkeys(("encoder", "decoder"), (4 * kept / (40 * k)) ** 0.5)
    expected |= {"query": (1 / 40) ** 0.5, "context": (1 / 24) ** 0.5}
    for name, weights in kernels.items():
        kernel = np.asarray(weights["layer"]["kernel"], np.float64)
        assert kernel.std() == pytest.approx(expected[name], rel=5 / np.sqrt(2 * kernel.size)), name
        assert not weights["layer"]["bias"].any()
        # g begins as ||v||, so that w begins as v.
        axes = tuple(range(kernel.ndim - 2, 0, -1)) if name in ("encoder", "decoder") else (kernel.ndim - 2,)
        np.testing.assert_allclose(weights["length"], np.sqrt((kernel**2).sum(axes)), rtol=1e-6)
    for name in ("embedding", "source_positions", "target_positions"):
        table = np.asarray(params[name]["table"])
        assert table.std() == pytest.approx(0.1, rel=5 / np.sqrt(2 * table.size))


@pytest.mark.parametrize(
    ("config", "changes", "told"),
    [
        (CONVS2S, {"kernel_size": 0}, "config.model.kernel_size=0 must be at least 1"),
        (CONVS2S, {"dropout": 1.0}, "dropout=1.0 must be at least 0 and below 1"),
        (BYTENET, {"decoder_sets": 0}, "config.model.decoder_sets=0 must be at least 1"),
        (BYTENET, {"max_dilation": 12}, "config.model.max_dilation=12 must be a power of two"),
        (BYTENET, {"length_factor": -1.0}, "config.model.length_factor=-1.0 must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(config: Config, changes: dict[str, Any], told: str) -> None:
    with pytest.raises((UserError, ValueError), match=told):
        dataclasses.replace(config, **changes)


def test_more_positions_than_are_learned_are_refused_and_bytenet_has_no_limit() -> None:
    with pytest.raises(UserError, match=r"longest target has 7 positions, more than config\.model\.max_length=6"):
        build(dataclasses.replace(CONVS2S, max_length=6), INTERFACE, Precision())
    assert (model_of("convs2s").max_length, model_of("bytenet").max_length) == (8, None)


def test_a_source_unfolds_to_whole_positions() -> None:
    assert [ByteNetConfig().unfolded_length(length) for length in (0, 1, 5, 6, 10, 15)] == [0, 2, 6, 8, 12, 18]
    assert ByteNetConfig(length_factor=1.1).unfolded_length(50) == 55
    assert ByteNetConfig().dilations == (1, 2, 4, 8, 16)
    assert model_of("bytenet").sites == ()


def oracle_next(name: str, params: Any, source: np.ndarray) -> NextToken:
    """The log-probabilities of the next token behind a prefix, from the equations."""

    def log_probability(prefix: tuple[int, ...]) -> np.ndarray:
        answer = answer_of(CONFIGS[name], params, source, np.array((BEGIN, *prefix)))
        return decoding.normalized(answer.logits[-1], (PAD, BEGIN))

    return log_probability


@pytest.mark.parametrize("name", [pytest.param("convs2s", marks=pytest.mark.slow), "bytenet"])
def test_beams_are_those_of_the_equations(name: str) -> None:
    model = model_of(name)
    variables = random_variables(model)
    params, tokens, num_beams, length = variables.params, SpecialTokens(PAD, BEGIN, 2), 3, 4
    # Less sure of itself than random numbers are, so that beams differ.
    if name == "convs2s":
        params["output"] |= {"length": 0.7 * params["output"]["length"]}
    else:
        params["output"] = jax.tree.map(lambda leaf: 0.2 * leaf, params["output"])
    decode = jax.jit(generate, static_argnames=("model", "strategy", "length", "tokens"))
    given = {"source": SOURCE}
    rollout = decode(model, variables, given, strategy=BeamSearch(num_beams, 1.0), length=length, tokens=tokens)
    for row, source, _ in alone():
        expected = decoding.beam_search(
            oracle_next(name, params, source),
            others=range(3, VOCABULARY),
            end=2,
            length=length,
            exponent=1.0,
            num_beams=num_beams,
        )
        for found, wanted in zip(np.asarray(rollout.tokens[row]), expected, strict=True):
            assert tuple(found[: len(wanted.tokens)]) == wanted.tokens
            assert (found[len(wanted.tokens) :] == PAD).all()
