"""The coverage penalty against its equation, and a search that is wide enough against all sequences."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.tasks.test_translation import CONFIG, PAIRS
from transformer.attention import Capture
from transformer.attention.capture import CapturedAttention
from transformer.config import UserError
from transformer.data.tokenizers.train_tokenizer import train_bpe
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import MIN_COVERAGE, CoveragePenalty, SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.layers.functional_module import Precision
from transformer.models.model import Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.recurrent_encoder_decoder import ContextVectorKind, RecurrentEncoderDecoderConfig
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.task import StateView
from transformer.tasks.translation_data import TranslationConfig
from transformer.tasks.translation_decoding import make_coverage_penalty

PAD, BEGIN, END, VOCABULARY = 0, 1, 2, 5
SOURCE = np.array([[3, 4, 4, 2], [4, 3, 2, 0]], np.int32)
REAL = SOURCE != PAD


def test_the_penalty_is_that_of_the_equation() -> None:
    """Of two examples with two beams each, one with padding; the sums of several steps, heads and layers."""
    rng = np.random.default_rng(0)
    steps = [{"one": rng.random((2, 4, 3, 1, 4)), "two": rng.random((1, 4, 1, 1, 4))} for _ in range(3)]
    coverage = CoveragePenalty(0.2, ("one", "two"), jnp.asarray(REAL))
    step = jax.jit(
        lambda maps: coverage.step_attention({name: CapturedAttention(each, {}, {}) for name, each in maps.items()})
    )
    penalty = jax.jit(coverage.penalty)
    attended = np.asarray(coverage.initial(2))
    expected = np.zeros((4, 4))
    for maps in steps:
        attended = attended + np.asarray(step(maps))
        expected += (maps["one"][..., 0, :].mean((0, 2)) + maps["two"][..., 0, :].mean((0, 2))) / 2
    np.testing.assert_allclose(attended, expected, rtol=1e-5)
    penalties = [
        0.2 * sum(math.log(min(expected[row, i], 1)) for i in range(4) if REAL[row // 2, i]) for row in range(4)
    ]
    np.testing.assert_allclose(penalty(attended), penalties, rtol=1e-5)
    # GNMT's own words: what was read as often as it should costs nothing, and nothing read costs what is finite.
    assert penalty(np.full((4, 4), 1.5, np.float32)).tolist() == [0, 0, 0, 0]
    assert float(penalty(np.zeros((4, 4), np.float32))[2]) == pytest.approx(0.2 * 3 * math.log(MIN_COVERAGE))


def made(**changes: Any) -> tuple[Any, Variables]:
    interface = TaskInterface(
        {"source": InputSpec((2, 4)), "target": InputSpec((2, 3))},
        {"joint": VOCABULARY},
        PAD,
        BEGIN,
        END,
        "target tokens",
    )
    model = build(RecurrentEncoderDecoderConfig(width=4, embedding_width=3, **changes), interface, Precision())
    shapes, rng = model.functional.shapes(), np.random.default_rng(3)
    return model, Variables(jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes), {})


@pytest.mark.parametrize(
    ("weight", "exponent"),
    [pytest.param(0.0, 0.6, marks=pytest.mark.slow), (0.7, 0.6), pytest.param(3.0, 0.0, marks=pytest.mark.slow)],
)
def test_a_beam_wide_enough_finds_the_best_of_all_sequences(weight: float, exponent: float) -> None:
    model, variables = made()
    length = 4
    coverage = CoveragePenalty(weight, (SITE,), jnp.asarray(REAL))
    decode = jax.jit(
        lambda: generate(
            model,
            variables,
            {"source": SOURCE},
            strategy=BeamSearch(32, exponent),
            length=length,
            tokens=SpecialTokens(PAD, BEGIN, END),
            coverage=coverage if weight else None,
        )
    )
    rollout = jax.device_get(decode())
    ended = [(*words, END) for size in range(length) for words in itertools.product((3, 4), repeat=size)]
    cut_off = list(itertools.product((3, 4), repeat=length))
    # All of them in one batch: what stands behind a sequence's end says nothing of it.
    sequences = [*ended, *cut_off]
    targets = np.array([[BEGIN, *said[:-1], *[PAD] * (length - len(said))] for said in sequences], np.int32)
    for example in range(2):
        scored = []
        inputs = {"source": SOURCE[[example] * len(sequences)], "target": targets}
        of_all, aux = programs.apply(model, variables, inputs, train=False, capture=Capture((SITE,)))
        weights = np.asarray(aux.maps[SITE].weights)[0, :, 0]
        for number, said in enumerate(sequences):
            logits = np.asarray(of_all[number], np.float64)
            logits[:, [PAD, BEGIN]] = -np.inf
            log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            total = sum(log_p[place, token] for place, token in enumerate(said))
            attended = weights[number, : len(said)].sum(0)[REAL[example]]
            penalty = weight * np.log(np.minimum(attended, 1)).sum()
            scored.append((total / ((5 + len(said)) / 6) ** exponent + penalty, total, said))
        # Those that were cut off follow by their probability alone.
        ranked = sorted(scored[: len(ended)], reverse=True) + sorted(scored[len(ended) :], key=lambda one: -one[1])
        for place, (score, _, said) in enumerate(ranked):
            assert rollout.tokens[example, place, : len(said)].tolist() == list(said)
            assert float(rollout.scores[example, place]) == pytest.approx(score, abs=1e-4)


def test_greedy_decoding_ranks_nothing() -> None:
    model, variables = made()
    with pytest.raises(ValueError, match="coverage needs a strategy that ranks hypotheses"):
        jax.eval_shape(
            lambda: generate(
                model,
                variables,
                {"source": SOURCE},
                strategy=GreedySearch(),
                length=2,
                tokens=SpecialTokens(PAD, BEGIN, END),
                coverage=CoveragePenalty(0.2, (SITE,), jnp.asarray(REAL)),
            )
        )


def test_options_that_do_not_fit_are_refused() -> None:
    for given in ({"coverage_penalty": -0.1, "num_beams": 4}, {"coverage_penalty": 0.2}):
        with pytest.raises(UserError, match="coverage_penalty"):
            DecodingConfig(**given)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"config\.task\.coverage_penalty"):
            TranslationConfig(**{"num_beams": 1, **given})  # type: ignore[arg-type]
    # A task's own penalty goes with its own beams.
    assert DecodingConfig.with_request({"temperature": 1.0}, num_beams=4, coverage_penalty=0.2).coverage_penalty == 0
    assert DecodingConfig.with_request({"num_beams": 1}, num_beams=4, coverage_penalty=0.2).coverage_penalty == 0
    assert DecodingConfig.with_request({"num_beams": 2}, num_beams=4, coverage_penalty=0.2).coverage_penalty == 0.2
    model, variables = made(context_vector=ContextVectorKind.LAST)
    view = StateView(model, variables, {}, {}, jnp.int32(0), train=False)
    tokenizer = train_bpe([text for pair in PAIRS for text in (pair.source, pair.target)], CONFIG.vocab_size)
    assert make_coverage_penalty(view, jnp.asarray(SOURCE), tokenizer, 0.0) is None
    with pytest.raises(UserError, match="attention of target over source, which this model has not"):
        make_coverage_penalty(view, jnp.asarray(SOURCE), tokenizer, 0.2)
