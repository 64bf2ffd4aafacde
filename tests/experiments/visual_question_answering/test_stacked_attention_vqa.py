"""Stacked glimpses against their equations in NumPy float64, on padding, and by their FLOPs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.visual_question_answering.stacked_attention_vqa import (
    FAMILY,
    SITE,
    QuestionState,
    StackedAttentionConfig,
    WordActivation,
    normalize_to_unit_length,
)
from tests.experiments.visual_question_answering.questions import (
    IMAGES,
    INTERFACE,
    LENGTHS,
    SMALL,
    TOKENS,
    model_of,
    random_variables,
    without_padding,
)
from tests.oracles import recurrent as oracle
from tests.oracles.image_features import places, softmax
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.image_grid_attention import ImageReadout
from transformer.layers.recurrent import CellKind, RecurrentConfig


def config_of(look: ImageReadout = ImageReadout.ATTENTION, **values: Any) -> StackedAttentionConfig:
    return StackedAttentionConfig(4, RecurrentConfig(width=3), 2, 6, SMALL, image_readout=look, **values)


def expected(config: StackedAttentionConfig, weights: Any, row: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The logits of one question as if there were no other, and the weights of its glimpses."""
    words = np.stack([weights["embedding"]["table"][token] for token in TOKENS[row, : LENGTHS[row]]])
    if config.word_activation is WordActivation.TANH:
        words = np.tanh(words)
    _, carry = oracle.stack(oracle.Stack("lstm"), weights["encoder"], words[None], np.array([len(words)]))
    last = carry[-1][0]
    state = last.hidden if config.question_state is QuestionState.HIDDEN else last.memory
    seen, looks = [], []
    if config.image_readout is not ImageReadout.NOTHING:
        phi = [place / np.sqrt(place @ place) for place in places(weights["places"], IMAGES[row], SMALL.strides)]
        if config.image_readout is ImageReadout.MEAN:
            seen = [sum(phi) / len(phi)]
        else:
            first = np.concatenate([weights["of_place"]["kernel"], weights["of_question"]["kernel"]])
            bias, second = weights["of_place"]["bias"], weights["glimpse"]["kernel"]
            joined = [np.maximum(np.concatenate([place, state]) @ first + bias, 0) for place in phi]
            logits = np.array([inner @ second for inner in joined])
            looks = [softmax(logits[:, number]) for number in range(config.num_glimpses)]
            seen = [sum(weight * place for weight, place in zip(look, phi, strict=True)) for look in looks]
    read = np.concatenate([*seen, state])
    hidden = np.maximum(read @ weights["classify"]["kernel"] + weights["classify"]["bias"], 0)
    return hidden @ weights["output"]["kernel"] + weights["output"]["bias"], looks


PUBLIC = {"word_activation": WordActivation.TANH, "question_state": QuestionState.MEMORY}


@pytest.mark.parametrize(
    ("look", "values"),
    [*((look, {}) for look in ImageReadout), pytest.param(ImageReadout.NOTHING, PUBLIC, id="public port")],
)
def test_logits_and_maps_are_those_of_the_equations(look: ImageReadout, values: dict[str, Any]) -> None:
    config, attends = config_of(look, **values), look is ImageReadout.ATTENTION
    with jax.enable_x64(True):
        model = model_of(FAMILY, config)
        variables = random_variables(model)
        assert [site.layers for site in model.sites] == [("0", "1")] * attends
        capture = Capture((SITE,)) if attends else None
        inputs = {"image": IMAGES, "tokens": TOKENS, "lengths": LENGTHS}
        answered = jax.jit(lambda variables: model.apply(variables, inputs, train=False, capture=capture))
        logits, aux = jax.device_get(answered(variables))
    for row in range(len(LENGTHS)):
        found, looks = expected(config, variables.params, row)
        np.testing.assert_allclose(logits[row], found, rtol=0, atol=1e-10)
        if attends:
            np.testing.assert_allclose(aux.maps[SITE].weights[:, row, 0, 0], looks, rtol=0, atol=1e-10)
    assert (SITE in aux.maps) == attends


def test_a_memory_is_that_of_an_lstm() -> None:
    with pytest.raises(
        UserError, match=r"question_state=memory is that of an LSTM, and .*cell=gru_reset_after has none"
    ):
        StackedAttentionConfig(
            question_encoder=RecurrentConfig(cell=CellKind.GRU_RESET_AFTER), question_state=QuestionState.MEMORY
        )


def test_padding_has_no_effect_on_logits_or_gradients() -> None:
    without_padding(FAMILY, config_of())


def test_a_place_without_features_has_length_zero_and_finite_gradients() -> None:
    x = jnp.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(normalize_to_unit_length(x), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    assert np.isfinite(jax.grad(lambda x: normalize_to_unit_length(x)[:, 0].sum())(x)).all()


@pytest.mark.slow
def test_dropout_acts_in_training_alone_and_by_its_key() -> None:
    model = FAMILY.build(config_of(dropout=0.5), INTERFACE, Precision())
    variables = jax.tree.map(jnp.asarray, random_variables(model))
    inputs = {"image": IMAGES, "tokens": TOKENS, "lengths": LENGTHS}
    trained = jax.jit(lambda key: model.apply(variables, inputs, train=True, key=key)[0])
    first, again, other = (np.asarray(trained(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4
    answered = jax.jit(lambda key: model.apply(variables, inputs, train=False, key=key)[0])
    np.testing.assert_array_equal(answered(jax.random.key(0)), answered(jax.random.key(1)))


def test_flops_are_counted_by_hand() -> None:
    """Four places of 6 features, a state of 3, two glimpses by way of 6 features; three words of 4, six classes."""
    shapes: dict[str, Any] = {"image": (2, 8, 8, 3), "tokens": (2, 3), "lengths": (2,)}
    batch = {name: np.zeros(shape, np.float32 if name == "image" else np.int32) for name, shape in shapes.items()}
    convolutions, recurrent = 2 * (16 * 27 * 4 + 4 * 36 * 6), 3 * 2 * 4 * 3 * (4 + 3)
    weighing = 2 * (4 * (6 * 6 + 2 * 6) + 3 * 6)
    sums, classes = 2 * 2 * 4 * 6, 2 * 6 * 6
    found = forward_flops(FAMILY.build(config_of(), INTERFACE, Precision()), batch)
    assert found == 2 * (convolutions + recurrent + weighing + sums + 2 * (2 * 6 + 3) * 6 + classes)
    found = forward_flops(FAMILY.build(config_of(ImageReadout.NOTHING), INTERFACE, Precision()), batch)
    assert found == 2 * (recurrent + 2 * 3 * 6 + classes)
