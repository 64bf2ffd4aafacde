"""The Transformer over sound: its convolutions by hand, what it leaves of padding, and its steps."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speech.log_mel import LogMelConfig, log_mel_features
from experiments.speech.speech_transformer import FAMILY, SpeechTransformerConfig
from tests.experiments.speech.test_listen_attend_spell import (
    INPUTS,
    INTERFACE,
    LENGTHS,
    SOUND,
    TARGET,
    random_variables,
)
from transformer.attention import AxisKind, Capture
from transformer.config import UserError
from transformer.costs.flops import forward_flops
from transformer.layers.functional_module import Precision
from transformer.models.model import Model

CONFIG = SpeechTransformerConfig(
    encoder_layers=1,
    decoder_layers=1,
    width=4,
    heads=2,
    feed_forward=6,
    dropout=0.0,
    max_length=8,
    audio_frontend=LogMelConfig(num_mel_bins=3),
    kernel_size=3,
    channels=5,
)


def model_of(config: SpeechTransformerConfig = CONFIG) -> Model:
    return FAMILY.build(config, INTERFACE, Precision())


def gated(x: np.ndarray, weights: Any) -> np.ndarray:
    """(x W + b) sigmoid(x V + c) over windows of three positions, two apart, zeros beyond the ends."""
    padded = np.concatenate([np.zeros((1, x.shape[1])), x, np.zeros((2, x.shape[1]))])
    rows = []
    for at in range(0, len(x), 2):
        window = padded[at : at + 3].ravel()
        a, b = (
            window @ weights[kernel].reshape(len(window), -1).astype(np.float64) + weights[bias]
            for kernel, bias in (("kernel", "bias"), ("gate_kernel", "gate_bias"))
        )
        rows.append(a / (1 + np.exp(-b)))
    return np.array(rows)


def test_the_encoder_reads_two_gated_convolutions() -> None:
    model = model_of()
    variables = random_variables(model)

    @jax.jit
    def look(given: Any) -> Any:
        frames, _ = log_mel_features(given["sound"], given["lengths"], CONFIG.audio_frontend, dtype="float32", key=None)
        return frames, model.functional.bind(variables.params).convolved_frames(given, None)

    frames, (read, lengths) = jax.device_get(look(INPUTS))
    assert lengths.tolist() == [2, 2]
    for row, (count, positions) in enumerate(((7, 2), (5, 2))):
        expected = frames[row, :count].astype(np.float64)
        for name in ("first", "second"):
            expected = gated(expected, variables.params[name])
        assert len(expected) == positions
        np.testing.assert_allclose(read[row, :positions], expected, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_nothing_of_padding_is_heard_and_positions_are_told_apart() -> None:
    model = model_of()
    variables = random_variables(model)
    asked = Capture(tuple(site.name for site in model.sites))
    look = jax.jit(lambda given: model.apply(variables, given, train=False, capture=asked))
    logits, aux = look(INPUTS)
    behind = np.where(np.arange(560) < LENGTHS[:, None], SOUND, np.nan)
    np.testing.assert_array_equal(look(INPUTS | {"sound": behind})[0], logits)
    cross = np.asarray(aux.maps["decoder/cross"].weights)
    np.testing.assert_allclose(cross[0, 0].sum(-1), 1, atol=1e-5)
    # Of silence all positions sound alike: what tells their keys apart is where they stand.
    quiet = look(INPUTS | {"sound": np.zeros_like(SOUND)})[1].maps["encoder/self"].weights
    assert np.abs(np.diff(np.asarray(quiet)[0, 0], axis=-1)).max() > 1e-3


def test_a_position_of_the_encoder_is_four_frames() -> None:
    axes = {site.name: (site.query.name, site.key.name) for site in model_of().sites}
    assert axes == {
        "encoder/self": ("frames", "frames"),
        "decoder/self": ("target", "target_input"),
        "decoder/cross": ("target", "frames"),
    }
    frames = model_of().sites[0].key
    assert (frames.kind, frames.stride) == (AxisKind.FRAMES, pytest.approx(0.04))


def test_sounds_and_targets_of_more_positions_than_the_model_has_are_refused() -> None:
    for longest, said in ((1, "longest sound has 2 positions"), (3, "longest target has 4 positions")):
        with pytest.raises(UserError, match=f"{said}, more than config.model.max_length={longest}"):
            model_of(dataclasses.replace(CONFIG, max_length=longest))


def test_the_flops_of_the_convolutions_are_added() -> None:
    count = [forward_flops(model_of(dataclasses.replace(CONFIG, channels=n)), INPUTS) for n in (5, 6)]
    # Of a further channel: two kernels of 3 x 3 at 4 positions, and two that give 4 features at 2, for both rows.
    assert count[1] - count[0] == 2 * 2 * 2 * (4 * 3 * 3 + 2 * 3 * 4)


@pytest.mark.slow
def test_steps_of_decoding_are_teacher_forcing() -> None:
    model = model_of()
    variables = random_variables(model)
    said = np.int32([[1, 4, 3, 5], [1, 5, 2, 4]])

    @jax.jit
    def stepped() -> Any:
        cache, _ = model.init_cache(variables, INPUTS, num_beams=1, length=4)
        return jax.lax.scan(lambda cache, at: model.step(variables, cache, at)[1::-1], cache, jnp.asarray(said.T))[1]

    whole, _ = jax.jit(lambda given: model.apply(variables, given, train=False))(INPUTS | {"target": said})
    np.testing.assert_allclose(np.moveaxis(stepped(), 0, 1), whole, rtol=1e-5, atol=1e-5)
    assert TARGET.shape == said.shape
