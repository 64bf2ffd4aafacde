"""Log-mel features against values of another implementation, the norm and SpecAugment against their definitions."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speech.log_mel import (
    LogMelConfig,
    SpecAugmentConfig,
    log_mel_features,
    log_mel_spectrogram,
    normalize_per_utterance,
    spec_augment,
)
from transformer.config import UserError, from_config

RENEW = (
    "the spectrograms recorded from transformers are not reached: a change of the features' definition is a fault. "
    "Renew the file with tests/golden/make_sound.py only to record other sounds or settings"
)
FILE = Path(__file__).parents[2] / "golden" / "sound.npz"
NAMES = ("vowel", "chirp", "whispers")


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        return dict(file)


def together(sounds: list[np.ndarray], behind: float) -> tuple[jax.Array, jax.Array]:
    """Sounds of unlike lengths in one array, with a value behind their ends."""
    rows = np.full((len(sounds), max(map(len, sounds)) + 33), behind, np.float32)
    for row, sound in zip(rows, sounds, strict=True):
        row[: len(sound)] = sound
    return jnp.asarray(rows), jnp.asarray(list(map(len, sounds)))


@pytest.mark.parametrize("case", ["default", "coarse"])
def test_features_are_those_of_another_implementation(case: str, recorded: dict[str, np.ndarray]) -> None:
    bands, window, hop, lowest, highest = recorded[f"{case}/settings"]
    config = LogMelConfig(int(bands), int(window), int(hop), float(lowest), float(highest))
    # What stands behind an end is never read.
    sounds, lengths = together([recorded[f"sound/{name}"] for name in NAMES], np.nan)
    features, frames = jax.device_get(jax.jit(log_mel_spectrogram, static_argnums=2)(sounds, lengths, config))
    for row, name in enumerate(NAMES):
        expected = recorded[f"{case}/{name}"]
        assert frames[row] == len(expected) == config.num_frames(int(lengths[row]))
        np.testing.assert_allclose(features[row, : frames[row]], expected, rtol=0, atol=1e-4, err_msg=RENEW)
        assert (features[row, frames[row] :] == 0).all()


def test_a_tone_is_loudest_in_its_band() -> None:
    """The middles of bands, by hand: 2595 log10(1 + f / 700) of 60 Hz is 93.4, of 4000 Hz 2146.1."""
    config = LogMelConfig(num_mel_bins=19)
    tone = np.sin(2 * np.pi * 1000 * np.arange(2000, dtype=np.float32) / 8000)[None]
    features = np.asarray(jax.jit(log_mel_spectrogram, static_argnums=2)(tone, np.array([2000]), config)[0])[0, 10]
    mels = 2595 * np.log10(1 + np.array([60, 1000, 4000]) / 700)
    assert features.argmax() == round((mels[1] - mels[0]) / (mels[2] - mels[0]) * 20) - 1


def test_every_band_of_an_utterance_is_normed_over_its_own_frames() -> None:
    frames = np.random.default_rng(0).normal(3, 2, (2, 7, 4)).astype(np.float32)
    frames[1, 5:] = np.nan
    found = np.asarray(jax.jit(normalize_per_utterance)(frames, np.array([7, 5])))
    for row, count in enumerate((7, 5)):
        own = frames[row, :count]
        np.testing.assert_allclose(found[row, :count], (own - own.mean(0)) / np.sqrt(own.var(0) + 1e-5), atol=2e-5)
    assert (found[1, 5:] == 0).all()


def test_what_spec_augment_hides_is_a_function_of_the_key_within_its_bounds() -> None:
    config = SpecAugmentConfig(
        num_frequency_masks=1, max_frequency_mask_width=3, num_time_masks=1, max_time_mask_width=5
    )
    ones, lengths = jnp.ones((400, 12, 8)), jnp.repeat(jnp.array([12, 4]), 200)
    key = jax.random.fold_in(jax.random.key(1), 7)
    hide = jax.jit(lambda key: spec_augment(ones, lengths, config, key))
    found = np.asarray(hide(key))
    np.testing.assert_array_equal(found, hide(key))
    assert (found != hide(jax.random.fold_in(jax.random.key(1), 8))).any()
    assert set(np.unique(found)) == {0, 1}
    # A mask is one stretch over all of the other axis: its width and its place are read off the row and column that
    # the other kind of mask leaves alone.
    for hidden, sizes, widest in (((found == 0).all(axis=2), lengths, 5), ((found == 0).all(axis=1), [8] * 400, 3)):
        whole = (found == 0).all(axis=(1, 2))
        for row, size in zip(hidden[~whole], np.asarray(sizes)[~whole], strict=True):
            places = np.flatnonzero(row)
            assert len(places) <= min(widest, size)
            assert len(places) == 0 or places[-1] - places[0] == len(places) - 1 < size
            assert len(places) == 0 or places[-1] < size
        counts = np.bincount(hidden[~whole & (np.asarray(sizes) > 4)].sum(axis=1), minlength=widest + 1)
        assert (counts > 0.5 * counts.sum() / (widest + 1)).all()  # every width is as likely


def test_nothing_is_hidden_without_masks_or_without_a_key() -> None:
    sound, lengths = jax.random.normal(jax.random.key(0), (2, 800)), jnp.array([800, 500])
    masks = LogMelConfig(
        num_mel_bins=5, spec_augment=SpecAugmentConfig(num_frequency_masks=2, max_frequency_mask_width=4)
    )
    key = jax.random.key(0)

    @jax.jit
    def look(key: jax.Array) -> tuple:
        unmasked, frames = log_mel_features(sound, lengths, LogMelConfig(num_mel_bins=5), dtype="float32", key=key)
        return (
            frames,
            unmasked,
            *(log_mel_features(sound, lengths, masks, dtype="float32", key=k)[0] for k in (None, key)),
        )

    frames, plain, without_key, hidden = jax.device_get(look(key))
    assert frames.tolist() == [10, 7]
    np.testing.assert_array_equal(without_key, plain)
    assert (hidden != plain).any()


@pytest.mark.parametrize(
    "key", ["window_length", "hop_length", "spec_augment.num_frequency_masks", "spec_augment.num_time_masks"]
)
def test_spectrograms_beyond_any_memory_are_refused(key: str) -> None:
    group, _, name = key.rpartition(".")
    values = {group: {name: 10**9}} if group else {name: 10**9}
    with pytest.raises(UserError, match=rf"config\.model\.audio_frontend\.{re.escape(key)}=1000000000 must be at most"):
        from_config(LogMelConfig, values, "config.model.audio_frontend")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_mel_bins": 0}, "num_mel_bins=0 must be at least 1"),
        ({"max_frequency": 4100.0}, "max_frequency=4100.0 .* between 0 and 4000 Hz"),
        ({"min_frequency": 4000.0}, "min_frequency=4000.0 and max_frequency=4000.0"),
    ],
)
def test_what_no_sound_has_is_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        LogMelConfig(**wrong)
    with pytest.raises(UserError, match="max_time_mask_width=-1 must be at least 0"):
        SpecAugmentConfig(max_time_mask_width=-1)
