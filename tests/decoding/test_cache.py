"""Decoding over the cache of the encoder-decoder equals its whole forward pass, token for token."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import decoding as oracle
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import SpecialTokens, generate
from transformer.decoding.greedy import GreedySearch
from transformer.layers.functional_module import Precision
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import PositionEncoding
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.model import Model, Variables
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface

SPECIAL = SpecialTokens(pad_id=0, bos_id=1, eos_id=2)
VOCABULARY, LENGTH, LONGEST_SOURCE = 7, 8, 6
SOURCE = np.int32(
    [
        [3, 4, 5, 6, 3, 2],
        [6, 2, 0, 0, 0, 0],
        [5, 5, 3, 2, 0, 0],
        [4, 0, 0, 0, 0, 0],
        [3, 6, 6, 4, 2, 0],
        [6, 4, 3, 5, 6, 2],
    ]
)
decode = jax.jit(generate, static_argnames=("model", "strategy", "length", "tokens"))


class Case(NamedTuple):
    model: Model
    variables: Variables
    forward: Callable[[Any, Any], np.ndarray]  # source, decoder's input -> logits


def lively(model: Model, seed: int) -> Variables:
    """Parameters far from a start at which every source has the same dull translation."""
    normal = np.random.default_rng(seed).normal

    def draw(path: Any, leaf: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        mean, deviation = (1, 0.3) if "scale" in name else (0, 0.25 if "embedding" in name else 0.9)
        return (mean + deviation * normal(size=leaf.shape)).astype(leaf.dtype) * ("bias" not in name)

    return Variables(jax.tree_util.tree_map_with_path(draw, model.functional.shapes()), {})


# Under these seeds some translations end and some do not, and beams change places.
POST_LEARNED = (NormPlacement.POST, PositionEncoding.LEARNED, 7)
PRE_SINUSOIDAL = (NormPlacement.PRE, PositionEncoding.SINUSOIDAL, 1)


@pytest.fixture(scope="module", params=[POST_LEARNED, PRE_SINUSOIDAL], ids=["post_learned", "pre_sinusoidal"])
def case(request: pytest.FixtureRequest) -> Case:
    placement, positions, seed = request.param
    config = EncoderDecoderConfig(
        encoder_layers=2,
        decoder_layers=2,
        width=16,
        heads=2,
        feed_forward=24,
        dropout=0.5,  # which decoding must ignore
        norm_placement=placement,
        positions=positions,
        max_length=LENGTH + 2,
    )
    shape = InputSpec((8, LENGTH))
    interface = TaskInterface({"source": shape, "target": shape}, {"joint": VOCABULARY}, *SPECIAL[:3])
    model = build(config, interface, Precision())
    variables = lively(model, seed)

    @jax.jit
    def logits(source: Any, target: Any) -> Any:
        return model.apply(variables, {"source": source, "target": target}, train=False)[0]

    return Case(model, variables, lambda source, target: np.asarray(logits(jnp.asarray(source), jnp.asarray(target))))


def naive(case: Case, source: np.ndarray) -> oracle.NextToken:
    """The next token's log-probabilities by a whole forward pass over the prefix, behind which stands padding."""
    found: dict[tuple[int, ...], np.ndarray] = {}

    def log_probability(prefix: tuple[int, ...]) -> np.ndarray:
        if prefix not in found:
            # Always as many rows as SOURCE, so that one program serves all.
            target = np.full((len(SOURCE), LENGTH), SPECIAL.pad_id, np.int32)
            target[:, : len(prefix) + 1] = (SPECIAL.bos_id, *prefix)
            logits = case.forward(np.broadcast_to(source, SOURCE.shape), target)[0, len(prefix)]
            found[prefix] = oracle.normalized(logits, SPECIAL[:2])
        return found[prefix]

    return log_probability


@pytest.mark.parametrize(
    ("case", "num_beams"),
    [pytest.param(POST_LEARNED, 1, marks=pytest.mark.slow), (PRE_SINUSOIDAL, 2)],
    indirect=["case"],
    ids=["post-1", "pre-2"],
)
def test_each_cached_step_has_the_logits_of_the_whole_forward_pass(case: Case, num_beams: int) -> None:
    rows = len(SOURCE) * num_beams
    targets_RxT = np.random.default_rng(0).integers(SPECIAL.eos_id, VOCABULARY, (rows, LENGTH), np.int32)
    targets_RxT[:, 0] = SPECIAL.bos_id

    @jax.jit
    def stepwise(targets_RxT: Any) -> Any:
        cache, first_R = case.model.init_cache(
            case.variables, {"source": jnp.asarray(SOURCE)}, num_beams=num_beams, length=LENGTH
        )

        def advance(cache: Any, tokens_R: Any) -> Any:
            logits, cache, _ = case.model.step(case.variables, cache, tokens_R)
            return cache, logits

        return first_R, jax.lax.scan(advance, cache, targets_RxT.T)[1]

    first_R, logits_TxRxV = stepwise(targets_RxT)
    np.testing.assert_array_equal(first_R, targets_RxT[:, 0])
    for beam in range(num_beams):
        whole_BxTxV = case.forward(SOURCE, targets_RxT[beam::num_beams])
        cached_BxTxV = np.asarray(logits_TxRxV).transpose(1, 0, 2)[beam::num_beams]
        assert whole_BxTxV.std() > 0.5
        np.testing.assert_allclose(cached_BxTxV, whole_BxTxV, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(cached_BxTxV.argmax(-1), whole_BxTxV.argmax(-1))


@pytest.mark.parametrize(
    "case",
    [pytest.param(POST_LEARNED, marks=pytest.mark.slow), PRE_SINUSOIDAL],
    indirect=True,
    ids=["post_learned", "pre_sinusoidal"],
)
def test_greedy_is_the_uncached_argmax_loop(case: Case) -> None:
    rollout = decode(
        case.model, case.variables, {"source": SOURCE}, strategy=GreedySearch(), length=LENGTH, tokens=SPECIAL
    )
    ended = []
    for source, tokens, score in zip(SOURCE, rollout.tokens[:, 0], rollout.scores[:, 0], strict=True):
        expected = oracle.greedy(naive(case, source), end=SPECIAL.eos_id, length=LENGTH)
        size = len(expected.tokens)
        assert tuple(np.asarray(tokens).tolist()) == (*expected.tokens, *[SPECIAL.pad_id] * (LENGTH - size))
        assert float(score) == pytest.approx(expected.score, abs=1e-4)
        ended.append(SPECIAL.eos_id in expected.tokens)
    # Both ways out of the loop were taken.
    assert any(ended)
    assert not all(ended)
    assert len({tuple(np.asarray(tokens).tolist()) for tokens in rollout.tokens[:, 0]}) > 2


@dataclasses.dataclass(frozen=True)
class KeepsRows(BeamSearch):
    """The fault of a beam that leaves the cache's rows where they were."""

    def choose(self, *arguments: Any) -> Any:
        return *super().choose(*arguments)[:2], None


def best_hypotheses(case: Case, strategy: BeamSearch, source: np.ndarray) -> list[list[tuple[tuple[int, ...], float]]]:
    rollout = decode(case.model, case.variables, {"source": source}, strategy=strategy, length=LENGTH, tokens=SPECIAL)
    return [
        [(tuple(t for t in tokens if t != SPECIAL.pad_id), score) for tokens, score in zip(*num_beams, strict=True)]
        for num_beams in zip(np.asarray(rollout.tokens).tolist(), np.asarray(rollout.scores).tolist(), strict=True)
    ]


def is_the_search_over_lists(case: Case, strategy: BeamSearch, padding: int = 0) -> None:
    """`padding`: more of it behind every source of this search than behind those of the uncached one."""
    wider = np.pad(SOURCE, ((0, 0), (0, padding)), constant_values=SPECIAL.pad_id)
    for source, found in zip(SOURCE, best_hypotheses(case, strategy, wider), strict=True):
        expected = oracle.beam_search(
            naive(case, source),
            others=range(SPECIAL.eos_id + 1, VOCABULARY),
            end=SPECIAL.eos_id,
            length=LENGTH,
            exponent=strategy.length_penalty,
            num_beams=strategy.num_beams,
        )
        assert [tokens for tokens, _ in found] == [one.tokens for one in expected]
        np.testing.assert_allclose([score for _, score in found], [one.score for one in expected], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "padding"),
    [(POST_LEARNED, 2), pytest.param(PRE_SINUSOIDAL, 0, marks=pytest.mark.slow)],
    indirect=["case"],
    ids=["post-padded", "pre"],
)
def test_beam_search_is_the_uncached_search_over_lists_and_padding_of_the_source_changes_nothing(
    case: Case, padding: int
) -> None:
    is_the_search_over_lists(case, BeamSearch(4, 0.6), padding)


@pytest.mark.parametrize("case", [PRE_SINUSOIDAL], indirect=True, ids=["pre_sinusoidal"])
def test_a_cache_that_is_not_re_ordered_is_found(case: Case) -> None:
    with pytest.raises(AssertionError):
        is_the_search_over_lists(case, KeepsRows(4, 0.6))
