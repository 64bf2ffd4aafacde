"""Record log-mel spectrograms of transformers' own NumPy code, which its feature extractors for speech use.

Run with any Python that has transformers (recorded with 5.23.0) and numpy, from the root of the checkout:

    python tests/golden/make_sound.py

It writes tests/golden/sound.npz. The tests read that file and never run this script. The sounds are made here of tones
and noise, exact in float32; `whispers` is quiet, and `chirp` loud.
"""

from pathlib import Path

import numpy as np
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

RATE, FLOOR = 8000, 1e-6
CASES = {"default": (40, 200, 80, 60.0, 4000.0), "coarse": (23, 256, 100, 0.0, 3500.0)}


def sounds() -> dict[str, np.ndarray]:
    """Sounds of unlike lengths, none of which ends with a whole hop."""
    random, time = np.random.default_rng(0), np.arange(3210) / RATE
    vowel = sum(np.sin(2 * np.pi * 130 * n * time) / n for n in range(1, 25)) * np.hanning(len(time))
    chirp = np.sin(2 * np.pi * (200 + 2200 * time) * time)
    return {
        "vowel": (0.3 * vowel + 1e-3 * random.normal(size=len(time))).astype(np.float32),
        "chirp": (0.9 * chirp + 5e-3 * random.normal(size=len(time)))[:2077].astype(np.float32),
        "whispers": (1e-2 * random.normal(size=1555)).astype(np.float32),
    }


def recorded(sound: np.ndarray, bands: int, window: int, hop: int, lowest: float, highest: float) -> np.ndarray:
    """The natural logarithm of every band of every frame, silence behind the end."""
    frames, points = -(-len(sound) // hop), 1 << (window - 1).bit_length()
    padded = np.pad(sound.astype(np.float64), (0, (frames - 1) * hop + window - len(sound)))
    filters = mel_filter_bank(points // 2 + 1, bands, lowest, highest, RATE, norm=None, mel_scale="htk")
    made = spectrogram(
        padded,
        window_function(window, "hann", periodic=True),
        window,
        hop,
        fft_length=points,
        power=2.0,
        center=False,
        mel_filters=filters,
        mel_floor=FLOOR,
        log_mel="log",
        dtype=np.float64,
    )
    return made.T


if __name__ == "__main__":
    arrays = {f"sound/{name}": sound for name, sound in sounds().items()}
    for case, settings in CASES.items():
        arrays[f"{case}/settings"] = np.array(settings)
        for name, sound in sounds().items():
            arrays[f"{case}/{name}"] = recorded(sound, *settings)
    np.savez_compressed(Path(__file__).with_name("sound.npz"), **arrays)
