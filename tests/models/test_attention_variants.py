"""Every score and backend inside the encoder-decoder: trained, cached and observed like the plain one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.architecture_variants import lively
from transformer.attention.attention_spec import Backend
from transformer.attention.capture import Capture
from transformer.attention.scores import Score
from transformer.attention.statistics import STATISTICS
from transformer.layers.functional_module import Precision
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.model import Model
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface

PAD, LENGTH = 0, 6
SOURCE = np.int32([[5, 9, 3, 8, 7, 6], [6, 4, 8, PAD, PAD, PAD]])
TARGET = np.int32([[1, 7, 3, 5, 9, 4], [1, 9, 4, 6, PAD, PAD]])
INPUTS = {"source": jnp.asarray(SOURCE), "target": jnp.asarray(TARGET)}
SITES = ("encoder/self", "decoder/self", "decoder/cross")


def make(**changes: Any) -> Model:
    tiny = EncoderDecoderConfig(
        encoder_layers=2, decoder_layers=2, width=16, heads=2, feed_forward=16, max_length=8, **changes
    )
    shape = InputSpec((2, LENGTH))
    return build(tiny, TaskInterface({"source": shape, "target": shape}, {"joint": 10}, PAD, 1, 2), Precision())


# One score with parameters; `make slow` takes the others.
QUICK = (Score.ADDITIVE,)


@pytest.mark.parametrize(
    "score",
    [pytest.param(score, marks=() if score in QUICK else pytest.mark.slow, id=score.value) for score in Score],
)
def test_each_score_trains_all_its_parameters_and_decodes_as_it_was_trained(score: Score) -> None:
    model = make(score=score)
    variables = lively(model)

    @jax.jit
    def gradient(params: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> tuple[Any, Any]:
            logits, _ = model.apply(variables._replace(params=params), INPUTS, train=False)
            return jnp.mean(jnp.where((TARGET != PAD)[..., None], jnp.square(logits), 0)), logits

        return jax.grad(loss, has_aux=True)(params)

    @jax.jit
    def stepwise(params: Any) -> Any:
        trained = variables._replace(params=params)
        cache, _ = model.init_cache(trained, {"source": INPUTS["source"]}, num_beams=1, length=LENGTH)

        def advance(cache: Any, tokens: Any) -> Any:
            logits, cache, _ = model.step(trained, cache, tokens)
            return cache, logits

        return jax.lax.scan(advance, cache, INPUTS["target"].T)[1]

    gradients, logits = gradient(variables.params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), name
        # A score by location reads no key.
        assert (np.abs(leaf).max() > 0) != (score is Score.LOCATION and "['key']" in name), name
    cached = np.moveaxis(np.asarray(stepwise(variables.params)), 0, 1)
    real = TARGET != PAD
    np.testing.assert_allclose(cached[real], np.asarray(logits)[real], rtol=0, atol=1e-5)


def found_by(capture: Capture, **changes: Any) -> Any:
    """Logits and what is captured."""
    model = make(**changes)
    return jax.jit(lambda v: model.apply(v, INPUTS, train=False, capture=capture))(lively(model))


WHOLE = Capture(SITES, statistics=tuple(STATISTICS.values()))


@pytest.fixture(scope="module")
def whole() -> Any:
    return found_by(WHOLE, backend=Backend.EINSUM)


@pytest.mark.slow
def test_backends_agree_on_logits_maps_and_statistics(whole: Any) -> None:
    logits, aux = whole
    for other_logits, other in (found_by(WHOLE, backend=backend) for backend in (Backend.BLOCKWISE, Backend.XLA)):
        np.testing.assert_allclose(other_logits, logits, rtol=0, atol=1e-5)
        for site in SITES:
            np.testing.assert_allclose(other.maps[site].weights, aux.maps[site].weights, rtol=0, atol=1e-5)
            means, expected = other.maps[site].means(), aux.maps[site].means()
            assert set(means) == set(STATISTICS)
            for name in STATISTICS:
                assert means[name].shape == (2, 2)
                np.testing.assert_allclose(means[name], expected[name], rtol=0, atol=1e-5, err_msg=f"{site} {name}")


def test_a_capture_of_chosen_layers_heads_and_rows_is_a_part_of_the_whole(whole: Any) -> None:
    part = Capture(("decoder/cross",), layers=(1,), heads=(1,), rows=(0, 3))
    found = found_by(part, backend=Backend.EINSUM)[1].maps
    assert set(found) == {"decoder/cross"}
    expected = np.asarray(whole[1].maps["decoder/cross"].weights)[1:2][:, :, 1:2][:, :, :, [0, 3]]
    np.testing.assert_array_equal(found["decoder/cross"].weights, expected)


def test_an_unknown_site_is_refused_with_the_known_ones() -> None:
    model = make()
    variables = lively(model)
    with pytest.raises(ValueError, match=r"\['decoder/cros'\].*decoder/cross"):
        model.apply(variables, INPUTS, train=False, capture=Capture(("decoder/cros",)))
