"""The pointer-generator against its equations in NumPy float64, its steps against teacher forcing, and its counts."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.summarization.model import FAMILY, NO_WORD, SWITCH, PointerGeneratorConfig
from experiments.summarization.signature import TRANSLATION_WITH_COPYING
from tests.oracles import recurrent as oracle
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.decoding.beam import BeamSearch
from transformer.decoding.generation import SpecialTokens, generate
from transformer.layers.functional_module import Precision
from transformer.models.model import Model, Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.task_interface import TRANSLATION, InputSpec, TaskInterface

PAD, BEGIN, END, UNKNOWN, WORDS, BEYOND = 0, 1, 2, 3, 7, 2
# The first article says one unknown word twice and another once, the second says known words alone, one of them twice.
SOURCE = np.int32([[3, 5, 3, 3, 6], [4, 5, 4, 0, 0]])
COPIED = np.int32([[7, 5, 8, 7, 6], [4, 5, 4, 0, 0]])
TARGET = np.int32([[1, 8, 4, 7], [1, 4, 0, 0]])
STEPS, LENGTHS = (4, 2), (5, 3)
COVERING = PointerGeneratorConfig(width=4, embedding_width=3, coverage_loss_weight=0.7)
POINTING = dataclasses.replace(COVERING, coverage_loss_weight=None)


class Case(NamedTuple):
    config: PointerGeneratorConfig
    copies: bool

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        known = np.where(TARGET < WORDS, TARGET, UNKNOWN)
        copied = {"copied": COPIED} if self.copies else {}
        return {"source": SOURCE, **copied, "target": TARGET if self.copies else known}

    def model(self, precision: str = "float64") -> Model:
        vocabularies = {"source": WORDS, "joint": WORDS + BEYOND} if self.copies else {"joint": WORDS}
        shapes = {name: InputSpec(values.shape) for name, values in self.inputs.items()}
        interface = TaskInterface(shapes, vocabularies, PAD, BEGIN, END)
        return FAMILY.build(self.config, interface, Precision(precision, precision))


CASES = {"coverage": Case(COVERING, True), "pointer": Case(POINTING, True), "plain": Case(POINTING, False)}
SLOW = ("pointer", "plain")


def random_variables(model: Model) -> Variables:
    normal = np.random.default_rng(1).normal
    return Variables(
        jax.tree.map(lambda leaf: 0.9 * normal(size=leaf.shape).astype(leaf.dtype), model.functional.shapes()), {}
    )


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def linear(weights: Any, x: np.ndarray) -> np.ndarray:
    return x @ weights["kernel"] + weights["bias"]


class FactTemplate(NamedTuple):
    scores: np.ndarray
    attention: np.ndarray
    p_gen: np.ndarray
    again: float


def told(case: Case, weights: Any, row: int) -> FactTemplate:
    """One article and its summary, word by word from the equations."""
    words = weights["embedding"]["table"][SOURCE[row, : LENGTHS[row]]].astype(np.float64)
    zero = np.zeros(case.config.width)
    runs: dict[str, list[oracle.State]] = {}
    for order in ("forward", "backward"):
        states = [oracle.State(zero, zero)]
        for word in words if order == "forward" else words[::-1]:
            states.append(oracle.step("lstm", weights["encoder"][order], word, states[-1]))
        runs[order] = states
    h = np.array(
        [
            np.concatenate([f.hidden, b.hidden])
            for f, b in zip(runs["forward"][1:], runs["backward"][:0:-1], strict=True)
        ]
    )
    ends = [runs[order][-1] for order in ("forward", "backward")]
    state = oracle.State(
        np.tanh(linear(weights["first_hidden"], np.concatenate([end.hidden for end in ends]))),
        np.tanh(linear(weights["first_memory"], np.concatenate([end.memory for end in ends]))),
    )
    score = {name: weights["attention"]["score"][name][0] for name in ("keys", "queries", "vector")}
    context, coverage = np.zeros(h.shape[1]), np.zeros(len(h))
    found: list[tuple[np.ndarray, np.ndarray, float]] = []
    again = 0.0
    for token in TARGET[row, : STEPS[row]]:
        x = weights["embedding"]["table"][token if token < WORDS else UNKNOWN].astype(np.float64)
        state = oracle.step("lstm", weights["decoder"]["forward"], np.concatenate([x, context]), state)
        sums = h @ score["keys"] + state.hidden @ score["queries"]
        if case.config.coverage_loss_weight is not None:
            sums = sums + coverage[:, None] * weights["covered"]["weight"][0]
        a = softmax(np.tanh(sums) @ score["vector"])
        context = a @ h
        if case.config.coverage_loss_weight is not None:
            again += np.minimum(a, coverage).sum()
        coverage = coverage + a
        logits = linear(weights["output"], linear(weights["readout"], np.concatenate([state.hidden, context])))
        if not case.copies:
            found.append((logits, a, 1.0))
            continue
        p_gen = float(oracle.logistic(linear(weights["switch"], np.concatenate([context, state.hidden, x]))[0]))
        p = np.concatenate([p_gen * softmax(logits), np.zeros(BEYOND)])
        for place, weight in enumerate(a):
            p[COPIED[row, place]] += (1 - p_gen) * weight
        found.append((np.log(p, where=p > 0, out=np.full(len(p), NO_WORD)), a, p_gen))
    scores, attention, p_gens = zip(*found, strict=True)
    return FactTemplate(np.array(scores), np.array(attention), np.array(p_gens), again)


@pytest.mark.parametrize("name", ["coverage", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_scores_maps_and_the_loss_are_those_of_the_equations(name: str) -> None:
    case = CASES[name]
    with jax.enable_x64(True):
        model = case.model()
        variables = random_variables(model)
        asked = Capture(tuple(site.name for site in model.sites))
        found = jax.jit(lambda given: model.apply(variables, given, train=False, capture=asked))(case.inputs)
        scores, aux = jax.device_get(found)
    again = 0.0
    for row, (steps, length) in enumerate(zip(STEPS, LENGTHS, strict=True)):
        wanted = told(case, variables.params, row)
        # How small the logarithm of nothing is has no meaning.
        found, expected = (np.maximum(each, NO_WORD / 2) for each in (scores[row, :steps], wanted.scores))
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
        weights = aux.maps[SITE].weights[0, row, 0]
        np.testing.assert_allclose(weights[:steps, :length], wanted.attention, atol=1e-11)
        assert (weights[steps:] == 0).all()
        assert (weights[:, length:] == 0).all()
        if case.copies:
            np.testing.assert_allclose(np.exp(scores[row, :steps]).sum(axis=-1), 1, rtol=1e-12)
            np.testing.assert_allclose(aux.extras["p_gen"][row, :steps], wanted.p_gen, atol=1e-11)
            origins = aux.maps[SWITCH].weights[0, row, 0]
            expected = np.stack([wanted.p_gen, 1 - wanted.p_gen], axis=-1)
            np.testing.assert_allclose(origins[:steps], expected, atol=1e-11)
            assert (origins[steps:] == 0).all()
        again += wanted.again
    assert set(aux.losses) == ({"coverage"} if name == "coverage" else set())
    if aux.losses:
        total, denominator, weight = aux.losses["coverage"]
        assert float(total) == pytest.approx(again, rel=1e-11)
        assert again > 0.1
        assert (denominator, weight) == (sum(STEPS), 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coverage", "plain"])
def test_steps_of_decoding_are_teacher_forcing_for_every_beam(name: str) -> None:
    """Two beams an example that say different words, copies among them, cover the article each for itself."""
    case, num_beams = CASES[name], 2
    model = case.model("float32")
    variables = random_variables(model)
    said = np.repeat(case.inputs["target"], num_beams, axis=0)
    said[1::2, 1:] = [[5, 3, 2], [5, 6, 5]]
    said[2, 2:] = [5, 3]
    asked = Capture(tuple(site.name for site in model.sites))

    @jax.jit
    def stepped() -> Any:
        cache, first = model.init_cache(variables, case.inputs, num_beams=num_beams, length=4)

        def advance(cache: Any, tokens: Any) -> Any:
            logits, cache, aux = model.step(variables, cache, tokens, capture=asked)
            return cache, (logits, {site: captured.weights for site, captured in aux.maps.items()})

        return first, jax.lax.scan(advance, cache, jnp.asarray(said.T))[1]

    first, (scores_TxRxV, maps) = jax.device_get(stepped())
    assert (first == BEGIN).all()
    tiled = {name: np.repeat(values, num_beams, 0) for name, values in case.inputs.items()} | {"target": said}
    whole, aux = jax.jit(lambda given: model.apply(variables, given, train=False, capture=asked))(tiled)
    np.testing.assert_allclose(np.moveaxis(scores_TxRxV, 0, 1), whole, rtol=1e-5, atol=1e-5)
    for site, weights in maps.items():
        found = np.moveaxis(weights[:, 0, :, :, 0], 0, 2)  # [row, head, step, key]
        np.testing.assert_allclose(found, aux.maps[site].weights[0], atol=1e-6)


@pytest.mark.slow
def test_a_beam_search_over_copies_scores_them_as_teacher_forcing_does() -> None:
    """Its best hypotheses, some of whose words no vocabulary has, are as probable as it says."""
    case = CASES["coverage"]
    model = case.model("float32")
    variables = random_variables(model)
    variables.params["switch"]["bias"] -= 6.0  # most words are copied
    source = {name: case.inputs[name] for name in ("source", "copied")}
    found = jax.jit(
        lambda: generate(
            model,
            variables,
            source,
            strategy=BeamSearch(3, length_penalty=0.0),
            length=4,
            tokens=SpecialTokens(PAD, BEGIN, END),
        )
    )()
    tokens, lengths = np.asarray(found.tokens), np.asarray(found.lengths)
    assert (tokens >= WORDS).any()
    for rank in range(3):
        target = np.concatenate([np.full((2, 1), BEGIN), tokens[:, rank, :-1]], axis=1).astype(np.int32)
        scores, _ = model.apply(variables, {**source, "target": target}, train=False)
        allowed = jax.nn.log_softmax(scores.at[..., jnp.array([PAD, BEGIN])].set(-jnp.inf))
        chosen = np.take_along_axis(np.asarray(allowed), tokens[:, rank, :, None], axis=-1)[..., 0]
        for row in range(2):
            total = chosen[row, : lengths[row, rank]].sum()
            assert total == pytest.approx(float(found.scores[row, rank]), abs=1e-4)


@pytest.mark.slow
def test_no_gradient_is_lost_or_infinite_where_a_word_cannot_be_copied() -> None:
    """Words that no article has, and one that the vocabulary has not, so that it can only be copied."""
    case = CASES["coverage"]
    model = case.model("float32")
    variables = random_variables(model)
    labels = np.int32([[8, 4, 7, 2], [4, 2, 0, 0]])

    def loss(params: Any) -> Any:
        scores, _ = model.apply(Variables(params, {}), case.inputs, train=False)
        return -jnp.sum(jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0] * (labels > 0))

    gradient = jax.device_get(jax.jit(jax.grad(loss))(variables.params))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 1e-6, path


@pytest.mark.parametrize("name", CASES)
def test_the_flops_are_two_for_each_matrix_element_and_place(name: str) -> None:
    """Counted from the parameters: every matrix is applied once at each place or word that it reads."""
    case = CASES[name]
    (rows, places), steps = SOURCE.shape, TARGET.shape[1]
    uses = {"encoder": places, "first_hidden": 1, "first_memory": 1, "keys": places}
    uses["vector"] = steps * places
    total = 2 * steps * places * 2 * case.config.width  # the sum over places, which has no parameters
    for path, leaf in jax.tree_util.tree_leaves_with_path(case.model("float32").functional.shapes()):
        names = [entry.key for entry in path]
        # Coverage is a multiple of one vector: no product of matrices.
        if names[-1] not in ("bias", "table") and "covered" not in names:
            total += 2 * leaf.size * next((times for use, times in uses.items() if use in names), steps)
    assert forward_flops(case.model("float32"), case.inputs) == rows * total


def test_what_it_serves_and_what_it_refuses() -> None:
    assert FAMILY.signatures == {TRANSLATION_WITH_COPYING, TRANSLATION}
    case = CASES["pointer"]
    model = case.model("float32")
    with pytest.raises(ValueError, match="call forward"):
        model.apply(random_variables(model), case.inputs, method="hidden", train=False)
    for wrong, said in (
        ({"width": 0}, "width=0 must be at least 1"),
        ({"coverage_loss_weight": -1.0}, "coverage_loss_weight=-1.0 must be"),
    ):
        with pytest.raises(UserError, match=said):
            dataclasses.replace(COVERING, **wrong)
