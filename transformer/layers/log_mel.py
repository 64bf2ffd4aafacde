"""Sound as models hear it: log-mel features, their norm over an utterance, and SpecAugment."""

import dataclasses
import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer.config import Config, Count, Positive, Range, UserError
from transformer.layers.sequence_lengths import real_positions
from transformer.logical_axes import place

RATE = 8000
"""Samples a second of all sound here; what was recorded at another rate is read at this one."""
_FLOOR = 1e-6
"""The least energy of a band: 100 dB beneath that of a full-scale tone, and above what float32 rounds away."""
_VARIANCE = 1e-5
Samples = Annotated[int, Range(1, 2**12)]
"""A number of samples of a window: the matrix of its Fourier transform has its square of entries."""
Masks = Annotated[int, Range(0, 2**10)]
"""A number of masks of one utterance: where each lies is looked up at every frame."""


@dataclasses.dataclass(frozen=True)
class SpecAugmentConfig(Config):
    """What training hides of an utterance (Park et al. 2019, section 2); the default hides nothing.

    `band_masks` times 0 to `bands` neighboring bands, and `frame_masks` times 0 to `frames` neighboring frames.

    Raises:
        UserError: For negative numbers.
    """

    band_masks: Masks = 0
    bands: Count = 8
    frame_masks: Masks = 0
    frames: Count = 20


@dataclasses.dataclass(frozen=True)
class HearingConfig(Config):
    """`bands` mel bands from `lowest` to `highest` Hz, of windows of `window` samples that begin `hop` samples apart.

    The defaults are those of Chan et al. 2016 (section 4): 40 bands every 10 ms, here of windows of 25 ms.

    Raises:
        UserError: For sizes below 1, and for bands that are no part of what 8000 samples a second hold.
    """

    bands: Positive = 40
    window: Samples = 200
    hop: Samples = 80
    lowest: float = 60.0
    highest: float = 4000.0
    augment: SpecAugmentConfig = dataclasses.field(default_factory=SpecAugmentConfig)

    def _check(self) -> None:
        if not 0 <= self.lowest < self.highest <= RATE / 2:
            raise UserError(
                f"lowest={self.lowest} and highest={self.highest} of a spectrogram must lie, in this order, between 0 "
                f"and {RATE // 2} Hz, half the rate of the sound"
            )

    @property
    def transform(self) -> int:
        """The points of the Fourier transform: the power of two that holds a window."""
        return 1 << (self.window - 1).bit_length()

    def frames(self, samples: int) -> int:
        """The frames of so many samples."""
        return -(-samples // self.hop)


def log_mel(
    sound_BxN: Float[Array, "B N"], lengths_B: Int[Array, " B"], config: HearingConfig
) -> tuple[Float[Array, "B F M"], Int[Array, " B"]]:
    """Ln max(E, 1e-6) of the energy E in each mel band of every frame, float32, and the frames of every example.

    Frame t is the Hann window's (periodic) over samples t hop to t hop + window; behind an example's end there is
    silence, so that n samples have ceil(n / hop) frames. E is the sum of |DFT|^2 under a triangle whose corners lie
    evenly on the mel scale 2595 log10(1 + f / 700). Samples at or beyond a length, NaN included, are never read;
    frames behind an example's own are zero.
    """
    sound_BxN = place(jnp.asarray(sound_BxN, jnp.float32), "batch", None)
    sound_BxN = jnp.where(real_positions(lengths_B, sound_BxN.shape[1]), sound_BxN, 0)
    windows_BxFxW = _windows(sound_BxN, config)
    cosine_sine, mel = _fourier(config.window, config.transform), _triangles(config)
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    real_BxFxK, imaginary_BxFxK = jnp.split(product(windows_BxFxW, cosine_sine), 2, axis=-1)
    energy_BxFxM = product(jnp.square(real_BxFxK) + jnp.square(imaginary_BxFxK), mel)
    frames_B = -(-lengths_B // config.hop)
    real_BxF = real_positions(frames_B, energy_BxFxM.shape[1])
    return jnp.where(real_BxF[..., None], jnp.log(jnp.maximum(energy_BxFxM, _FLOOR)), 0), frames_B


def normed(frames_BxFxM: Float[Array, "B F M"], lengths_B: Int[Array, " B"]) -> Float[Array, "B F M"]:
    """Every band with the mean 0 and the variance 1 over the frames of its utterance; padding stays zero."""
    real_BxFx1 = real_positions(lengths_B, frames_BxFxM.shape[1])[..., None]
    count_Bx1x1 = jnp.maximum(lengths_B, 1).astype(frames_BxFxM.dtype)[:, None, None]
    mean_Bx1xM = jnp.sum(jnp.where(real_BxFx1, frames_BxFxM, 0), axis=1, keepdims=True) / count_Bx1x1
    away_BxFxM = jnp.where(real_BxFx1, frames_BxFxM - mean_Bx1xM, 0)
    variance_Bx1xM = jnp.sum(jnp.square(away_BxFxM), axis=1, keepdims=True) / count_Bx1x1
    return away_BxFxM / jnp.sqrt(variance_Bx1xM + _VARIANCE)


def spec_augment(
    frames_BxFxM: Float[Array, "B F M"], lengths_B: Int[Array, " B"], config: SpecAugmentConfig, key: Key[Array, ""]
) -> Float[Array, "B F M"]:
    """Bands and frames of each utterance set to zero, the mean of what is `normed` (Park et al. 2019, section 2).

    A mask is of uniform width from 0 to the greatest, as many frames as there are at most, and of uniform place. What
    is hidden is a function of the key alone, which in training is one of the run's seed and the step.
    """
    rows, count, bands = frames_BxFxM.shape
    band_key, frame_key = jax.random.split(key)
    all_bands = jnp.full(rows, bands)
    of_bands = _hidden(band_key, all_bands, bands, config.band_masks, config.bands)
    of_frames = _hidden(frame_key, lengths_B, count, config.frame_masks, config.frames)
    return jnp.where(of_bands[:, None] | of_frames[:, :, None], 0, frames_BxFxM)


def heard(
    sound_BxN: Float[Array, "B N"],
    lengths_B: Int[Array, " B"],
    config: HearingConfig,
    *,
    dtype: jax.typing.DTypeLike,
    key: Key[Array, ""] | None,
) -> tuple[Float[Array, "B F M"], Int[Array, " B"]]:
    """What a model reads of sounds: `log_mel`, `normed`, with a key through `spec_augment`; and every row's frames."""
    frames_BxFxM, frames_B = log_mel(sound_BxN, lengths_B, config)
    frames_BxFxM = normed(frames_BxFxM, frames_B)
    if key is not None:
        frames_BxFxM = spec_augment(frames_BxFxM, frames_B, config.augment, key)
    return frames_BxFxM.astype(dtype), frames_B


def _hidden(key: Key[Array, ""], sizes_B: Int[Array, " B"], count: int, masks: int, widest: int) -> Bool[Array, "B N"]:
    """Which of `count` places of every row lie in one of its masks, all within its size."""
    if masks == 0:
        return jnp.zeros((len(sizes_B), count), bool)
    width_key, place_key = jax.random.split(key)
    shape, sizes_Bx1 = (len(sizes_B), masks), sizes_B[:, None]
    width_BxA = jax.random.randint(width_key, shape, 0, jnp.minimum(widest, sizes_Bx1) + 1)
    first_BxA = jax.random.randint(place_key, shape, 0, sizes_Bx1 - width_BxA + 1)
    at_N = jnp.arange(count)[None, None]
    within_BxAxN = (at_N >= first_BxA[..., None]) & (at_N < (first_BxA + width_BxA)[..., None])
    return jnp.any(within_BxAxN, axis=1)


def _windows(sound_BxN: Float[Array, "B N"], config: HearingConfig) -> Float[Array, "B F W"]:
    """The samples under every frame's window, from pieces of one hop that stand beside one another."""
    rows, samples = sound_BxN.shape
    frames, pieces = config.frames(samples), -(-config.window // config.hop)
    padded = jnp.pad(sound_BxN, ((0, 0), (0, (frames + pieces - 1) * config.hop - samples)))
    by_hop = padded.reshape(rows, -1, config.hop)
    beside = jnp.concatenate([by_hop[:, piece : piece + frames] for piece in range(pieces)], axis=-1)
    return beside[..., : config.window]


@functools.cache
def _fourier(window: int, points: int) -> Float[np.ndarray, "W _"]:
    """The Hann window times the cosines, and beside them the sines, of every frequency from 0 to half the rate."""
    hann_W = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    angle_WxK = 2 * np.pi / points * np.outer(np.arange(window), np.arange(points // 2 + 1))
    both = np.concatenate([np.cos(angle_WxK), np.sin(angle_WxK)], axis=1)
    return (hann_W[:, None] * both).astype(np.float32)


@functools.cache
def _triangles(config: HearingConfig) -> Float[np.ndarray, "K M"]:
    """How much of each frequency every band has: 1 at its middle, 0 at the middles of its neighbors."""
    lowest, highest = (2595 * np.log10(1 + frequency / 700) for frequency in (config.lowest, config.highest))
    corners = 700 * (10 ** (np.linspace(lowest, highest, config.bands + 2) / 2595) - 1)
    frequency_Kx1 = np.linspace(0, RATE / 2, config.transform // 2 + 1)[:, None]
    rising = (frequency_Kx1 - corners[:-2]) / np.diff(corners)[:-1]
    falling = (corners[2:] - frequency_Kx1) / np.diff(corners)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
