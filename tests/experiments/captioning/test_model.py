"""The captioner against its equations in NumPy float64, its steps against teacher forcing, and what draws learn."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.captioning.model import FAMILY, AttentionKind, CaptionerConfig
from tests.models.random_models import random_variables, whole_and_stepped
from tests.oracles import recurrent as oracle
from tests.oracles.image_features import places, softmax
from transformer.attention import STATISTICS, Capture, normalizers
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.layers.grid_positions import GridPositionEncoding
from transformer.models.model import Model, Variables
from transformer.models.recurrent_attention_decoder_base import SITE
from transformer.models.task_interface import InputSpec, Modality, TaskInterface
from transformer.tasks.hard_attention_reinforce import estimate_reinforce_loss, token_log_likelihood

PAD, BEGIN, WORDS = 0, 1, 7
RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(3, 4, 6, 2)).astype(np.float32)
TARGET = np.int32([[1, 4, 3, 5], [1, 6, 0, 0], [1, 2, 2, 0]])
STEPS = (4, 2, 3)
INPUTS = {"image": IMAGE, "target": TARGET}
INTERFACE = TaskInterface(
    {"image": InputSpec(IMAGE.shape, jnp.float32, Modality.IMAGE), "target": InputSpec(TARGET.shape)},
    {"target": WORDS},
    PAD,
    BEGIN,
    2,
)
SOFT = CaptionerConfig(
    GridEncoderConfig(channels=(3, 4), strides=(2, 1)), width=5, embedding_width=3, doubly_stochastic_weight=0.3
)
CASES = {
    "soft": SOFT,
    "plain": dataclasses.replace(
        SOFT, grid_positions=GridPositionEncoding.NONE, gated=False, doubly_stochastic_weight=0.0
    ),
    "hard": dataclasses.replace(
        SOFT, attention=AttentionKind.HARD, doubly_stochastic_weight=0.0, soft_attention_probability=0.5
    ),
    "none": dataclasses.replace(SOFT, attention=AttentionKind.NONE, doubly_stochastic_weight=0.0),
}


def model_of(config: CaptionerConfig, precision: str = "float64") -> Model:
    return FAMILY.build(config, INTERFACE, Precision(precision, precision))


def linear(weights: Any, x: np.ndarray) -> np.ndarray:
    return x @ weights["kernel"] + weights.get("bias", 0)


def told(
    config: CaptionerConfig, weights: Any, a: np.ndarray, words: np.ndarray, draws: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The logits and the probabilities of the places at every step; hard attention looks at `draws`, or softly."""
    mean = a.mean(0)
    state = oracle.State(np.tanh(linear(weights["first_hidden"], mean)), np.tanh(linear(weights["first_memory"], mean)))
    logits, seen = [], []
    for step, word in enumerate(words):
        h = state.hidden
        if config.attention is AttentionKind.NONE:
            z = mean
        else:
            score = {name: weights["attention"]["score"][name][0] for name in ("keys", "queries", "vector")}
            alpha = softmax(np.array([np.tanh(i @ score["keys"] + h @ score["queries"]) @ score["vector"] for i in a]))
            seen.append(alpha)
            z = a[draws[step]] if draws else alpha @ a
        if config.gated:
            z = z * oracle.logistic(linear(weights["gate"], h))
        y = weights["embedding"]["table"][word].astype(np.float64)
        state = oracle.step("lstm", weights["decoder"]["forward"], np.concatenate([y, z]), state)
        summed = y + state.hidden @ weights["of_state"]["kernel"] + z @ weights["of_context"]["kernel"]
        logits.append(summed @ weights["output"]["kernel"])
    return np.array(logits), np.array(seen)


def likeliest(config: CaptionerConfig, weights: Any, a: np.ndarray, words: np.ndarray) -> tuple[int, ...]:
    """Where hard attention looks when nothing is drawn."""
    draws: tuple[int, ...] = ()
    for step in range(len(words)):
        _, seen = told(config, weights, a, words[: step + 1], (*draws, 0))
        draws = (*draws, int(seen[step].argmax()))
    return draws


@pytest.mark.parametrize("name", CASES)
def test_logits_and_maps_are_those_of_the_equations(name: str) -> None:
    config = CASES[name]
    with jax.enable_x64(True):
        model = model_of(config)
        variables = random_variables(model)
        asked = Capture((SITE,)) if model.sites else None
        found = jax.jit(lambda given: model.apply(variables, given, train=False, capture=asked))(INPUTS)
        logits, aux = jax.device_get(found)
    penalty = 0.0
    for row, steps in enumerate(STEPS):
        a, words = places(variables.params["places"], IMAGE[row], config.image_encoder.strides), TARGET[row, :steps]
        draws = likeliest(config, variables.params, a, words) if name == "hard" else ()
        expected, seen = told(config, variables.params, a, words, draws)
        np.testing.assert_allclose(logits[row, :steps], expected, rtol=0, atol=1e-11)
        if name == "none":
            continue
        wanted = np.eye(len(a))[list(draws)] if draws else seen
        weights = aux.maps[SITE].weights[0, row, 0]
        np.testing.assert_allclose(weights[:steps], wanted, rtol=0, atol=1e-11)
        assert (weights[steps:] == 0).all()
        penalty += sum((1 - sum(seen[step][place] for step in range(steps))) ** 2 for place in range(len(a)))
    assert set(aux.losses) == ({"doubly_stochastic"} if config.attention is AttentionKind.SOFT else set())
    if aux.losses:
        total, denominator, weight = aux.losses["doubly_stochastic"]
        assert float(total) == pytest.approx(penalty, rel=1e-12)
        assert (denominator, weight) == (len(IMAGE), config.doubly_stochastic_weight)


@pytest.mark.parametrize("name", ["soft", "hard", pytest.param("none", marks=pytest.mark.slow)])
def test_steps_of_decoding_are_teacher_forcing_for_every_beam(name: str) -> None:
    """Two beams an example that say different things look at the same image."""
    model, num_beams = model_of(CASES[name], "float32"), 2
    variables = random_variables(model)
    said = np.repeat(np.int32([[1, 4, 3, 5], [1, 6, 2, 4], [1, 2, 2, 3]]), num_beams, axis=0)
    said[1::2, 1:] = said[1::2, [2, 1, 3]]
    statistics = (STATISTICS["entropy"],)
    asked = Capture((SITE,), statistics=statistics, by_example=True) if model.sites else None

    tiled = {"image": np.repeat(IMAGE, num_beams, 0), "target": said}
    (whole, aux), (first, logits_TxRxV, maps) = whole_and_stepped(
        model, variables, INPUTS, said, num_beams, asked, whole_inputs=tiled
    )
    assert (first == BEGIN).all()
    np.testing.assert_allclose(np.moveaxis(logits_TxRxV, 0, 1), whole, rtol=1e-5, atol=1e-5)
    if model.sites:
        weights = np.moveaxis(maps[SITE].weights[:, 0, :, :, 0], 0, 2)  # [row, head, step, key]
        np.testing.assert_allclose(weights, aux.maps[SITE].weights[0], atol=1e-6)
        entropies = maps[SITE].sums["entropy"][:, 0].sum(0)
        np.testing.assert_allclose(entropies, aux.maps[SITE].sums["entropy"][0], rtol=1e-5, atol=1e-5)


# Two places and two words: four ways to look.
TINY = dataclasses.replace(
    CASES["hard"], image_encoder=GridEncoderConfig(channels=(3,), strides=(3,)), width=3, soft_attention_probability=0.0
)
SAID, LABELS, WAYS = np.int32([1, 4]), np.int32([4, 2]), tuple(itertools.product(range(2), repeat=2))


def expected_loss(weights: Any, image: np.ndarray) -> tuple[float, np.ndarray]:
    """-E[sum_t log p(y_t)] over all draws, and how probable each of `WAYS` is."""
    a = places(weights["places"], image, TINY.image_encoder.strides)
    worth, shares = np.zeros((2, len(WAYS)))
    for way, draws in enumerate(WAYS):
        logits, seen = told(TINY, weights, a, SAID, draws)
        worth[way] = sum(np.log(softmax(row)[label]) for row, label in zip(logits, LABELS, strict=True))
        shares[way] = np.prod([seen[step][draw] for step, draw in enumerate(draws)])
    return -float(worth @ shares), shares


def directions(params: Any) -> Iterator[Any]:
    """Changes of what decides where to look, and of all parameters."""
    normal = np.random.default_rng(3).normal
    for only in ("attention", "places", ""):
        yield {
            name: jax.tree.map(lambda leaf, on=not only or name == only: on * normal(size=leaf.shape), part)
            for name, part in params.items()
        }


@pytest.mark.parametrize("baseline", [pytest.param(0.0, marks=pytest.mark.slow), -1.0])
def test_the_mean_gradient_of_hard_attention_is_that_of_the_expectation_over_all_draws(
    baseline: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to look is taken once, and its gradient counted as often as it is drawn."""
    image, key = 2 * np.random.default_rng(4).normal(size=(3, 6, 2)), jax.random.key(0)
    inputs = {"image": image[None], "target": SAID[None]}
    shapes = {"image": InputSpec((1, 3, 6, 2), jnp.float32, Modality.IMAGE), "target": InputSpec((1, 2))}
    of_steps = jax.random.split(jax.random.split(key)[1], len(SAID))
    with jax.enable_x64(True):
        model = FAMILY.build(TINY, dataclasses.replace(INTERFACE, inputs=shapes), Precision("float64", "float64"))
        params = random_variables(model).params

        def loss(params: Any, way: Any) -> Any:
            # In the place of noise: the draw of the step whose key this is.
            def forced(draw: Any, key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
                chosen = way[jnp.argmax(of_steps == key)]
                return 1e6 * jnp.broadcast_to(jax.nn.one_hot(chosen, shape[-1], dtype=dtype), shape)

            monkeypatch.setattr(normalizers, "draw_array", forced)
            logits, aux = model.apply(Variables(params, {}), inputs, train=True, key=key)
            told = token_log_likelihood(logits, jnp.asarray(LABELS[None]))
            estimate = estimate_reinforce_loss(told, jnp.ones((1, 2), bool), aux.extras, jnp.asarray(baseline), 0.0)
            return estimate.loss - jnp.sum(told)

        gradient = jax.jit(jax.grad(loss))
        found = [jax.device_get(gradient(params, jnp.asarray(way))) for way in WAYS]
    _, shares = expected_loss(params, image)
    assert shares.sum() == pytest.approx(1)
    assert shares.min() > 0.01
    for along in directions(params):
        slopes = [
            sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(each), jax.tree.leaves(along), strict=True))
            for each in found
        ]
        up, down = (
            expected_loss(jax.tree.map(lambda p, d, by=by: p + by * d, params, along), image)[0] for by in (1e-5, -1e-5)
        )
        assert shares @ slopes == pytest.approx((up - down) / 2e-5, abs=1e-7)
        assert np.std(slopes) > 1e-3


def test_an_example_that_is_read_softly_is_read_as_by_soft_attention() -> None:
    hard = model_of(dataclasses.replace(CASES["hard"], soft_attention_probability=0.999999), "float32")
    soft = model_of(dataclasses.replace(SOFT, doubly_stochastic_weight=0.0), "float32")
    variables, key = random_variables(hard), jax.random.key(0)
    read, aux = jax.jit(lambda: hard.apply(variables, INPUTS, train=True, key=key))()
    wanted, _ = jax.jit(lambda: soft.apply(variables, INPUTS, train=True, key=key))()
    np.testing.assert_allclose(read, wanted, rtol=1e-5, atol=1e-6)
    assert (np.asarray(aux.extras["attention_log_prob"]) == 0).all()
    assert (np.asarray(aux.extras["attention_entropy"])[:, :2] > 0.1).all()


@pytest.mark.parametrize("name", CASES)
def test_the_flops_are_two_for_each_matrix_element_and_place(name: str) -> None:
    """Counted from the parameters: every matrix is applied once at each place or word that it reads."""
    config = CASES[name]
    rows, steps, grid = len(IMAGE), TARGET.shape[1], 6
    uses = {"encoder": grid, "first_hidden": 1, "first_memory": 1, "keys": grid, "vector": steps * grid}
    # The sum over places has no parameters.
    total = 0 if config.attention is AttentionKind.NONE else 2 * steps * grid * config.image_encoder.width
    for path, leaf in jax.tree_util.tree_leaves_with_path(model_of(config, "float32").functional.shapes()):
        names = [entry.key for entry in path]
        if names[-1] in ("bias", "scale", "table"):
            continue  # biases, and what is looked up
        total += 2 * leaf.size * next((times for use, times in uses.items() if use in names), steps)
    assert forward_flops(model_of(config, "float32"), INPUTS) == rows * total


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"width": 0}, "width=0 must be at least 1"),
        (
            {"soft_attention_probability": 0.5},
            "soft_attention_probability=0.5 is for an attention that draws: say attention=hard",
        ),
        ({"attention": AttentionKind.HARD}, "doubly_stochastic_weight=0.3 is for soft attention"),
        ({"doubly_stochastic_weight": -1.0}, "doubly_stochastic_weight=-1.0 must be at least 0"),
    ],
)
def test_choices_that_exclude_each_other_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        dataclasses.replace(SOFT, **wrong)
