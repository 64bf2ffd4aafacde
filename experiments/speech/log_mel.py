"""Audio front end: log-mel features, their normalization over an utterance, and SpecAugment."""

import dataclasses
import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config import Config, NonNegativeInt, PositiveInt, Range, UserError
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import with_logical_constraint

SAMPLE_RATE = 8000
"""Samples a second; audio recorded at another rate must be resampled to it first."""
_FLOOR = 1e-6
"""The least energy of a band: 100 dB beneath that of a full-scale tone, and above what float32 rounds away."""
_VARIANCE = 1e-5
Samples = Annotated[int, Range(1, 2**12)]
"""A number of samples of a window: the matrix of its Fourier transform has its square of entries."""
Masks = Annotated[int, Range(0, 2**10)]
"""A number of masks of one utterance: where each lies is looked up at every frame."""


@dataclasses.dataclass(frozen=True)
class SpecAugmentConfig(Config):
    """SpecAugment's frequency and time masks (Park et al. 2019, section 2); by default there are none.

    Attributes:
        num_frequency_masks: m_F, the frequency masks of an utterance.
        max_frequency_mask_width: F, the most neighboring mel bins that one mask hides.
        num_time_masks: m_T, the time masks of an utterance.
        max_time_mask_width: T, the most neighboring frames that one mask hides.

    Raises:
        UserError: If a number is negative.
    """

    num_frequency_masks: Masks = 0
    max_frequency_mask_width: NonNegativeInt = 8
    num_time_masks: Masks = 0
    max_time_mask_width: NonNegativeInt = 20


@dataclasses.dataclass(frozen=True)
class LogMelConfig(Config):
    """The log-mel spectrogram; the defaults are those of Chan et al. 2016, section 4: 40 mel bins every 10 ms.

    Attributes:
        num_mel_bins: Mel bins of a frame.
        window_length: Samples of a frame's window; the default is 25 ms.
        hop_length: Samples between the beginnings of neighboring windows.
        min_frequency: The lower edge of the lowest bin, in Hz.
        max_frequency: The upper edge of the highest bin, in Hz.
        spec_augment: The masks that training applies.

    Raises:
        UserError: If a size is below 1, or the frequencies are not in order between 0 Hz and half the sample rate.
    """

    num_mel_bins: PositiveInt = 40
    window_length: Samples = 200
    hop_length: Samples = 80
    min_frequency: float = 60.0
    max_frequency: float = 4000.0
    spec_augment: SpecAugmentConfig = dataclasses.field(default_factory=SpecAugmentConfig)

    def _check(self) -> None:
        if not 0 <= self.min_frequency < self.max_frequency <= SAMPLE_RATE / 2:
            raise UserError(
                f"min_frequency={self.min_frequency} and max_frequency={self.max_frequency} must lie, in this order, "
                f"between 0 and {SAMPLE_RATE // 2} Hz, half the sample rate"
            )

    @property
    def fft_length(self) -> int:
        """Points of the Fourier transform: the least power of two that holds a window."""
        return 1 << (self.window_length - 1).bit_length()

    def num_frames(self, samples: int) -> int:
        """Return the number of frames of this many samples."""
        return -(-samples // self.hop_length)


def log_mel_spectrogram(
    audio_BxN: Float[Array, "B N"], lengths_B: Int[Array, " B"], config: LogMelConfig
) -> tuple[Float[Array, "B F M"], Int[Array, " B"]]:
    """Compute the log-mel spectrogram ln max(E, 1e-6), E the energy in a mel bin of a frame, in float32.

    Frame t is a periodic Hann window over samples t hop to t hop + window. Silence follows an example's end, so that n
    samples have ceil(n / hop) frames. E is the sum of |DFT|^2 under a triangle whose corners lie evenly on the mel
    scale 2595 log10(1 + f / 700).

    Args:
        audio_BxN: Samples, [batch, samples].
        lengths_B: Samples of each example; what lies beyond them, NaN included, is never read.
        config: The spectrogram's window, hop and mel bins.

    Returns:
        The spectrogram [batch, frames, mel bins], zero beyond an example's own frames, and the number of frames of
        each example.
    """
    audio_BxN = with_logical_constraint(jnp.asarray(audio_BxN, jnp.float32), "batch", None)
    audio_BxN = jnp.where(real_positions(lengths_B, audio_BxN.shape[1]), audio_BxN, 0)
    windows_BxFxW = _frame_windows(audio_BxN, config)
    cosine_sine, mel = _windowed_dft_matrix(config.window_length, config.fft_length), _mel_filters(config)
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    real_BxFxK, imaginary_BxFxK = jnp.split(product(windows_BxFxW, cosine_sine), 2, axis=-1)
    energy_BxFxM = product(jnp.square(real_BxFxK) + jnp.square(imaginary_BxFxK), mel)
    frames_B = -(-lengths_B // config.hop_length)
    real_BxF = real_positions(frames_B, energy_BxFxM.shape[1])
    return jnp.where(real_BxF[..., None], jnp.log(jnp.maximum(energy_BxFxM, _FLOOR)), 0), frames_B


def normalize_per_utterance(frames_BxFxM: Float[Array, "B F M"], lengths_B: Int[Array, " B"]) -> Float[Array, "B F M"]:
    """Normalize each mel bin to mean 0 and variance 1 over the frames of its utterance; padding stays zero."""
    real_BxFx1 = real_positions(lengths_B, frames_BxFxM.shape[1])[..., None]
    count_Bx1x1 = jnp.maximum(lengths_B, 1).astype(frames_BxFxM.dtype)[:, None, None]
    mean_Bx1xM = jnp.sum(jnp.where(real_BxFx1, frames_BxFxM, 0), axis=1, keepdims=True) / count_Bx1x1
    away_BxFxM = jnp.where(real_BxFx1, frames_BxFxM - mean_Bx1xM, 0)
    variance_Bx1xM = jnp.sum(jnp.square(away_BxFxM), axis=1, keepdims=True) / count_Bx1x1
    return away_BxFxM / jnp.sqrt(variance_Bx1xM + _VARIANCE)


def spec_augment(
    frames_BxFxM: Float[Array, "B F M"], lengths_B: Int[Array, " B"], config: SpecAugmentConfig, key: Key[Array, ""]
) -> Float[Array, "B F M"]:
    """Set masked mel bins and frames to zero, the mean of a normalized spectrogram (Park et al. 2019, section 2).

    Each mask has a uniform width from 0 to its maximum (or to the utterance's frames if they are fewer) and a uniform
    position.

    Args:
        frames_BxFxM: A normalized spectrogram, [batch, frames, mel bins].
        lengths_B: Frames of each utterance.
        config: How many masks, and how wide.
        key: Decides the masks; in training it follows from the run's seed and the step.

    Returns:
        The masked spectrogram, in the same shape.
    """
    rows, count, bands = frames_BxFxM.shape
    band_key, frame_key = jax.random.split(key)
    all_bands = jnp.full(rows, bands)
    band_mask = _random_masks(band_key, all_bands, bands, config.num_frequency_masks, config.max_frequency_mask_width)
    frame_mask = _random_masks(frame_key, lengths_B, count, config.num_time_masks, config.max_time_mask_width)
    return jnp.where(band_mask[:, None] | frame_mask[:, :, None], 0, frames_BxFxM)


def log_mel_features(
    audio_BxN: Float[Array, "B N"],
    lengths_B: Int[Array, " B"],
    config: LogMelConfig,
    *,
    dtype: jax.typing.DTypeLike,
    key: Key[Array, ""] | None,
) -> tuple[Float[Array, "B F M"], Int[Array, " B"]]:
    """Compute the input of a speech model: the normalized log-mel spectrogram, with SpecAugment where a key is given.

    Args:
        audio_BxN: Samples, [batch, samples].
        lengths_B: Samples of each example.
        config: The spectrogram and its augmentation.
        dtype: The result's type.
        key: Decides SpecAugment's masks in training; None applies none.

    Returns:
        The features [batch, frames, mel bins], and the number of frames of each example.
    """
    frames_BxFxM, frames_B = log_mel_spectrogram(audio_BxN, lengths_B, config)
    frames_BxFxM = normalize_per_utterance(frames_BxFxM, frames_B)
    if key is not None:
        frames_BxFxM = spec_augment(frames_BxFxM, frames_B, config.spec_augment, key)
    return frames_BxFxM.astype(dtype), frames_B


def _random_masks(
    key: Key[Array, ""], sizes_B: Int[Array, " B"], count: int, masks: int, widest: int
) -> Bool[Array, "B N"]:
    """Which of `count` positions of every row lie in one of its random masks, all of them within the row's size."""
    if masks == 0:
        return jnp.zeros((len(sizes_B), count), bool)
    width_key, place_key = jax.random.split(key)
    shape, sizes_Bx1 = (len(sizes_B), masks), sizes_B[:, None]
    width_BxA = jax.random.randint(width_key, shape, 0, jnp.minimum(widest, sizes_Bx1) + 1)
    first_BxA = jax.random.randint(place_key, shape, 0, sizes_Bx1 - width_BxA + 1)
    at_N = jnp.arange(count)[None, None]
    within_BxAxN = (at_N >= first_BxA[..., None]) & (at_N < (first_BxA + width_BxA)[..., None])
    return jnp.any(within_BxAxN, axis=1)


def _frame_windows(audio_BxN: Float[Array, "B N"], config: LogMelConfig) -> Float[Array, "B F W"]:
    """The samples under every frame's window, concatenated from pieces of one hop."""
    rows, samples = audio_BxN.shape
    frames, pieces = config.num_frames(samples), -(-config.window_length // config.hop_length)
    padded = jnp.pad(audio_BxN, ((0, 0), (0, (frames + pieces - 1) * config.hop_length - samples)))
    by_hop = padded.reshape(rows, -1, config.hop_length)
    windows = jnp.concatenate([by_hop[:, piece : piece + frames] for piece in range(pieces)], axis=-1)
    return windows[..., : config.window_length]


@functools.cache
def _windowed_dft_matrix(window: int, points: int) -> Float[np.ndarray, "W _"]:
    """The Hann window times the cosines, then the sines, of every frequency from 0 to half the sample rate."""
    hann_W = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    angle_WxK = 2 * np.pi / points * np.outer(np.arange(window), np.arange(points // 2 + 1))
    both = np.concatenate([np.cos(angle_WxK), np.sin(angle_WxK)], axis=1)
    return (hann_W[:, None] * both).astype(np.float32)


@functools.cache
def _mel_filters(config: LogMelConfig) -> Float[np.ndarray, "K M"]:
    """The weight of each frequency in each mel bin: 1 at the bin's center, 0 at the centers of its neighbors."""
    edges = (config.min_frequency, config.max_frequency)
    lowest, highest = (2595 * np.log10(1 + frequency / 700) for frequency in edges)
    corners = 700 * (10 ** (np.linspace(lowest, highest, config.num_mel_bins + 2) / 2595) - 1)
    frequency_Kx1 = np.linspace(0, SAMPLE_RATE / 2, config.fft_length // 2 + 1)[:, None]
    rising = (frequency_Kx1 - corners[:-2]) / np.diff(corners)[:-1]
    falling = (corners[2:] - frequency_Kx1) / np.diff(corners)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
