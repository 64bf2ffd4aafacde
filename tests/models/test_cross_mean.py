"""A decoder without attention: it reads the mean of its source, of every real place alike."""

import jax
import numpy as np
import pytest

from tests.models.architecture_variants import lively
from transformer.attention.capture import Capture
from transformer.attention.scores import Score
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.layers.transformer_config import CrossAttentionKind, PositionEncoding
from transformer.models.encoder_decoder import DECODER, EncoderDecoderConfig
from transformer.models.model import Model
from transformer.models.registry import build
from transformer.models.task_interface import InputSpec, TaskInterface

PAD, LENGTH = 0, 6
SOURCE = np.array([[5, 6, 7, 2, PAD, PAD], [9, 4, 8, 3, 5, 2]], np.int32)
TARGET = np.array([[1, 8, 4, 9, PAD, PAD], [1, 3, 7, 5, 6, 4]], np.int32)


def make(**changes: object) -> Model:
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "width": 16, "heads": 2, "feed_forward": 16, "max_length": 8}
    config = EncoderDecoderConfig(**sizes, dropout=0.0, **changes)  # type: ignore[arg-type]
    shape = InputSpec((2, LENGTH))
    return build(config, TaskInterface({"source": shape, "target": shape}, {"joint": 10}, PAD, 1, 2), Precision())


@pytest.mark.parametrize("score", [Score.SCALED_DOT, pytest.param(Score.COSINE, marks=pytest.mark.slow)])
def test_every_real_place_of_the_source_has_the_same_weight(score: Score) -> None:
    model = make(cross=CrossAttentionKind.MEAN, score=score)
    variables = lively(model)
    inputs = {"source": SOURCE, "target": TARGET}
    _, aux = jax.jit(lambda v: model.apply(v, inputs, train=False, capture=Capture((f"{DECODER}/cross",))))(variables)
    weights_LxBxHxTxS = np.asarray(aux.maps[f"{DECODER}/cross"].weights)
    real = SOURCE != PAD
    for row, targets in enumerate(np.sum(TARGET != PAD, axis=1)):
        expected = np.broadcast_to(real[row] / real[row].sum(), weights_LxBxHxTxS[:, row, :, :targets].shape)
        np.testing.assert_allclose(weights_LxBxHxTxS[:, row, :, :targets], expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_what_the_mean_is_of_may_come_in_any_order() -> None:
    order = [[2, 0, 1, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    shuffled = np.take_along_axis(SOURCE, np.array(order), axis=1)
    gaps = {}
    for cross in CrossAttentionKind:
        # Without positions the encoder's outputs are permuted as its inputs are.
        model = make(cross=cross, positions=PositionEncoding.NONE)
        variables = lively(model)
        read = jax.jit(lambda v, inputs, model=model: model.apply(v, inputs, train=False)[0])
        here, there, swapped = (
            np.asarray(read(variables, {"source": source, "target": TARGET}))
            for source in (SOURCE, shuffled, SOURCE[::-1])
        )
        np.testing.assert_allclose(here[TARGET != PAD], there[TARGET != PAD], rtol=0, atol=1e-5)
        gaps[cross] = float(np.abs(here - swapped)[:, 1:4].max())
    # The source is read, by either.
    assert min(gaps.values()) > 1e-3


@pytest.mark.parametrize("score", [Score.ADDITIVE, Score.CONCAT, Score.MLP, Score.SQUARED_DISTANCE])
def test_a_score_that_zeros_do_not_silence_is_refused(score: Score) -> None:
    with pytest.raises(UserError, match=f"cross=mean and config.model.score={score.value}"):
        make(cross=CrossAttentionKind.MEAN, score=score)
