"""The spatial memory against its equations in NumPy float64, on padding, and by its FLOPs."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.visual_question_answering.smem_vqa import FAMILY, SITE, SMemVQAConfig, sample_guide_mask
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
from tests.gradients import check_gradient
from tests.oracles.image_features import places, softmax
from transformer.attention import Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.layers.grid_encoder import GridEncoderConfig
from transformer.layers.grid_positions import GridPositionEncoding
from transformer.layers.image_grid_attention import ImageReadout

CONFIGS = {
    "one hop": SMemVQAConfig(width=4, num_hops=1, image_encoder=SMALL),
    "two hops": SMemVQAConfig(width=4, num_hops=2, image_encoder=SMALL),
    "three hops": SMemVQAConfig(
        width=4, num_hops=3, image_encoder=SMALL, grid_positions=GridPositionEncoding.LEARNED_2D
    ),
    "mean": SMemVQAConfig(width=4, num_hops=2, image_encoder=SMALL, image_readout=ImageReadout.MEAN),
    "nothing": SMemVQAConfig(width=4, image_encoder=SMALL, image_readout=ImageReadout.NOTHING),
}


def first_look(weights: Any, row: int, guides: Iterable[int]) -> np.ndarray:
    """How the first hop weighs the places, guided by some words of a question."""
    words = [weights["embedding"]["table"][TOKENS[row, place]].astype(np.float64) for place in guides]
    seen = places(weights["places"], IMAGES[row], SMALL.strides)
    embedded = [weights["correlated"]["kernel"].T @ s + weights["correlated"]["bias"] for s in seen]
    return softmax(np.array([max(word @ place for word in words) for place in embedded]))


def expected(config: SMemVQAConfig, weights: Any, row: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The logits of one question as if there were no other, and the weights of its hops."""
    words = [weights["embedding"]["table"][token].astype(np.float64) for token in TOKENS[row, : LENGTHS[row]]]
    known = weights["bag_bias"] + sum(weights["bag"][place] * word for place, word in enumerate(words))
    looks = []
    if config.image_readout is not ImageReadout.NOTHING:
        seen = places(weights["places"], IMAGES[row], SMALL.strides)
        evidence: Any = None
        for hop in range(config.num_hops):
            if config.image_readout is ImageReadout.MEAN:
                look = np.full(len(seen), 1 / len(seen))
            elif evidence is None:
                look = first_look(weights, row, range(LENGTHS[row]))
            else:
                look = softmax(np.array([known @ place for place in evidence]))
            matrix = weights[f"evidence_{hop}"]
            evidence = [matrix["kernel"].T @ s + matrix["bias"] for s in seen]
            known = known + sum(weight * place for weight, place in zip(look, evidence, strict=True))
            looks.append(look)
    return np.maximum(known, 0) @ weights["output"]["kernel"] + weights["output"]["bias"], looks


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_maps_are_those_of_the_equations(name: str) -> None:
    config = CONFIGS[name]
    with jax.enable_x64(True):
        model = model_of(FAMILY, config)
        variables = random_variables(model)
        attends = config.image_readout is ImageReadout.ATTENTION
        assert [site.layers for site in model.sites] == [tuple("012"[: config.num_hops])] * attends
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


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.75])
def test_words_left_out_of_the_first_hop_are_as_many_as_the_rate_says_and_never_all(rate: float) -> None:
    """Of T real words the set S is left with probability rate^(T-|S|) (1-rate)^|S|, one alone with rate^T / T more."""
    lengths, draws = np.array([3, 2, 1, 0]), 4000
    real = np.arange(4) < lengths[:, None]
    sample = jax.vmap(lambda key: sample_guide_mask(jnp.asarray(real), rate, key))
    kept = jax.jit(lambda: sample(jax.random.split(jax.random.key(3), draws)))()
    for row, length in enumerate(lengths):
        assert not np.any(kept[:, row, length:])
        numbers = np.asarray(kept[:, row, :length]) @ (2 ** np.arange(length))
        shares = np.bincount(numbers.astype(int), minlength=2**length) / draws
        for number in range(1, 2**length):
            words = number.bit_count()
            expected = rate ** (length - words) * (1 - rate) ** words + (rate**length / length if words == 1 else 0)
            assert abs(shares[number] - expected) < 4 * np.sqrt(0.25 / draws)
        assert shares[0] == (length == 0)


def test_the_first_hop_is_guided_by_the_words_that_are_left_in_training_and_by_all_beyond() -> None:
    config = dataclasses.replace(CONFIGS["one hop"], word_dropout=0.6)
    inputs = {"image": IMAGES, "tokens": TOKENS, "lengths": LENGTHS}
    with jax.enable_x64(True):
        model = model_of(FAMILY, config)
        variables = random_variables(model)

        def looked(number: int, *, train: bool) -> Any:
            key = jax.random.key(number)
            _, aux = model.apply(variables, inputs, train=train, key=key, capture=Capture((SITE,)))
            return aux.maps[SITE].weights[0, :, 0, 0]

        trained = jax.jit(jax.vmap(functools.partial(looked, train=True)))(np.arange(40))
        evaluated = jax.jit(functools.partial(looked, train=False))(0)
    for row, length in enumerate(LENGTHS):
        subsets = [left for count in range(length) for left in itertools.combinations(range(length), count + 1)]
        possible = np.array([first_look(variables.params, row, left) for left in subsets])
        distance = np.max(np.abs(np.asarray(trained)[:, row, None] - possible), axis=-1)
        assert np.max(np.min(distance, axis=1)) < 1e-10
        assert len(set(np.argmin(distance, axis=1))) > 1 or length == 1
        np.testing.assert_allclose(evaluated[row], possible[-1], rtol=0, atol=1e-10)


def test_padding_has_no_effect_on_logits_or_gradients() -> None:
    without_padding(FAMILY, CONFIGS["two hops"])


def test_gradients_are_those_of_differences() -> None:
    with jax.enable_x64(True):
        model = model_of(FAMILY, CONFIGS["two hops"])
        variables = random_variables(model)
        inputs = {"image": IMAGES, "tokens": TOKENS, "lengths": LENGTHS}

        def loss(params: Any) -> Any:
            logits, _ = model.apply(variables._replace(params=params), inputs, train=True)
            return jnp.sum(jax.nn.log_softmax(logits)[:, 0])

        check_gradient(loss, (variables.params,))


def test_a_model_that_looks_at_nothing_has_no_parameters_of_images_and_reads_none() -> None:
    model = FAMILY.build(CONFIGS["nothing"], INTERFACE, Precision())
    shapes = model.functional.shapes()
    assert sorted(shapes) == ["bag", "bag_bias", "embedding", "output"]
    variables = random_variables(model)
    inputs = {"image": np.full_like(IMAGES, np.nan), "tokens": TOKENS, "lengths": LENGTHS}
    assert np.isfinite(model.apply(variables, inputs, train=False)[0]).all()


def test_flops_are_counted_by_hand() -> None:
    """Two stages of 3 x 3 over 8 x 8 pixels make 2 x 2 places of 6 features; three words of 4, six classes."""
    shapes: dict[str, Any] = {"image": (2, 8, 8, 3), "tokens": (2, 3), "lengths": (2,)}
    batch = {name: np.zeros(shape, np.float32 if name == "image" else np.int32) for name, shape in shapes.items()}
    convolutions = 2 * (16 * 27 * 4 + 4 * 36 * 6)
    words, classes = 2 * 3 * 4, 2 * 4 * 6
    embedded = 2 * 4 * 6 * 4  # one matrix at every place
    hops = 3 * embedded + 2 * 4 * 4 * (3 + 1) + 2 * (2 * 4 * 4)

    def counted(name: str) -> int:
        return forward_flops(FAMILY.build(CONFIGS[name], INTERFACE, Precision()), batch)

    assert counted("two hops") == 2 * (convolutions + words + hops + classes)
    assert counted("nothing") == 2 * (words + classes)
    means = 2 * embedded + 2 * (2 * 4 * 4)
    assert counted("mean") == 2 * (convolutions + words + means + classes)


def test_images_that_the_strides_do_not_divide_are_refused() -> None:
    config = SMemVQAConfig(image_encoder=GridEncoderConfig((4,), (3,)))
    with pytest.raises(UserError, match="8 x 8 pixels are not divided by 3"):
        FAMILY.build(config, INTERFACE, Precision())
