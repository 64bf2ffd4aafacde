"""A synthetic speaker of digits: formant synthesis of voiced sounds, fricatives and pauses, with random variation."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.speech.log_mel import SAMPLE_RATE

_STEP = 80  # samples between the places where a sound's frequencies are set
_BANDWIDTHS = (90.0, 120.0, 180.0)


class Phone(NamedTuple):
    """A phone, a piece of a word.

    Attributes:
        formants: The formants in Hz.
        voice_amplitude: The loudness of its voice.
        noise_amplitude: The loudness of its frication.
        noise_band: The band of its frication in Hz.
        seconds: Its duration.
    """

    formants: tuple[float, float, float] = (500.0, 1500.0, 2500.0)
    voice_amplitude: float = 1.0
    noise_amplitude: float = 0.0
    noise_band: tuple[float, float] = (1500.0, 3900.0)
    seconds: float = 0.09


def _vowel(*formants: float, seconds: float = 0.12) -> Phone:
    return Phone((formants[0], formants[1], formants[2]), seconds=seconds)


_PAUSE = Phone(voice_amplitude=0, seconds=0.05)
_S = Phone(voice_amplitude=0, noise_amplitude=0.5, noise_band=(2800.0, 3900.0), seconds=0.11)
_Z = Phone((300.0, 1700.0, 2500.0), 0.35, 0.35, (2700.0, 3900.0))
_F, _TH = (
    Phone(voice_amplitude=0, noise_amplitude=0.12, noise_band=(low, 3900.0), seconds=0.08) for low in (700.0, 1500.0)
)
_V = Phone((250.0, 1100.0, 2300.0), 0.4, 0.06, (700.0, 3900.0), 0.06)
_T = Phone(voice_amplitude=0, noise_amplitude=0.45, noise_band=(2300.0, 3900.0), seconds=0.03)
_K = Phone(voice_amplitude=0, noise_amplitude=0.4, noise_band=(1300.0, 2400.0), seconds=0.03)
_R, _N = Phone((420.0, 1200.0, 1600.0), 0.7, seconds=0.07), Phone((250.0, 1350.0, 2350.0), 0.45, seconds=0.08)
_W = Phone((300.0, 700.0, 2200.0), 0.6, seconds=0.06)

_PHONES: tuple[tuple[Phone, ...], ...] = (
    (_Z, _vowel(310, 2200, 2900), _R, _vowel(500, 900, 2400), _vowel(380, 800, 2300, seconds=0.06)),
    (_W, _vowel(640, 1200, 2400), _N),
    (_PAUSE, _T, _vowel(330, 1100, 2250), _vowel(310, 880, 2250)),
    (_TH, _R, _vowel(280, 2250, 2950, seconds=0.16)),
    (_F, _vowel(560, 840, 2400, seconds=0.15), _R),
    (_F, _vowel(720, 1150, 2450), _vowel(420, 1950, 2600, seconds=0.08), _V),
    (_S, _vowel(400, 1950, 2550, seconds=0.08), _PAUSE, _K, _S),
    (_S, _vowel(550, 1800, 2500, seconds=0.09), _V, _vowel(500, 1400, 2400, seconds=0.05), _N),
    (_vowel(460, 2000, 2600), _vowel(330, 2250, 2850, seconds=0.07), _PAUSE, _T),
    (_N, _vowel(720, 1150, 2450), _vowel(400, 2000, 2600, seconds=0.08), _N),
)


@dataclasses.dataclass(frozen=True)
class Voice:
    """A speaker.

    Attributes:
        pitch: The pitch in Hz.
        formant_scale: The factor of all formants.
        duration_scale: The factor of all durations.
    """

    pitch: float = 120.0
    formant_scale: float = 1.0
    duration_scale: float = 1.0

    @classmethod
    def sample(cls, random: np.random.Generator) -> "Voice":
        """Sample a speaker with a low or high voice."""
        pitch = float(random.uniform(85, 230))
        # Who speaks higher has, as a rule, the shorter throat.
        return cls(pitch, float(0.9 + 0.0011 * (pitch - 85) + random.uniform(-0.05, 0.05)), random.uniform(0.85, 1.2))

    def synthesize(self, digit: int, random: np.random.Generator) -> Float[np.ndarray, " N"]:
        """Synthesize a digit with random pitch, formants and durations; the largest sample is 0.3 to 0.9."""
        phones, scale = _PHONES[digit], self.formant_scale * random.normal(1, 0.02)
        steps = [
            max(2, round(self.duration_scale * p.seconds * random.uniform(0.8, 1.25) * SAMPLE_RATE / _STEP))
            for p in phones
        ]

        def interpolate_phones(values: list[tuple[float, ...]]) -> Float[np.ndarray, "T _"]:
            """A phone's numbers at each of its steps, run into those of its neighbors."""
            repeated = np.repeat(np.array(values, float), steps, axis=0)
            padded = np.pad(repeated, ((1, 1), (0, 0)), mode="edge")
            return (padded[:-2] + 2 * repeated + padded[2:]) / 4

        jittered = [tuple(scale * random.normal(1, 0.03) * f for f in phone.formants) for phone in phones]
        voiced = self._synthesize_voice(
            interpolate_phones(jittered),
            interpolate_phones([(phone.voice_amplitude,) for phone in phones])[:, 0],
            random,
        )
        hissed = np.concatenate(
            [_synthesize_noise(phone, count * _STEP, random) for phone, count in zip(phones, steps, strict=True)]
        )
        sound = voiced / max(np.abs(voiced).max(), 1e-9) + hissed
        return (random.uniform(0.3, 0.9) / np.abs(sound).max() * sound).astype(np.float32)

    def _synthesize_voice(
        self, formants_Tx3: Float[np.ndarray, "T 3"], loud_T: Float[np.ndarray, " T"], random: np.random.Generator
    ) -> Float[np.ndarray, " N"]:
        """Synthesize the harmonics of a wavering pitch, shaped by the formants' resonances."""
        count = len(loud_T)
        wavering = np.cumsum(random.normal(0, 0.006, count)) + np.linspace(0.06, -0.08, count)
        pitch_T = self.pitch * random.normal(1, 0.05) * np.exp(wavering)
        number_H = np.arange(1, int(SAMPLE_RATE / 2 / pitch_T.max()) + 1)
        frequency_TxHx1 = (pitch_T[:, None] * number_H)[..., None]
        peaks_Tx1x3, widths = formants_Tx3[:, None], np.array(_BANDWIDTHS)
        resonance = peaks_Tx1x3**2 / np.sqrt(
            (frequency_TxHx1**2 - peaks_Tx1x3**2) ** 2 + (widths * frequency_TxHx1) ** 2
        )
        loud_TxH = loud_T[:, None] * resonance.prod(axis=-1) / number_H
        at_N, steps = np.arange(count * _STEP), (np.arange(count) + 0.5) * _STEP
        phase_N = 2 * np.pi * np.cumsum(np.interp(at_N, steps, pitch_T)) / SAMPLE_RATE
        sound = np.zeros(len(at_N))
        for number, loud in zip(number_H, loud_TxH.T, strict=True):
            sound += np.interp(at_N, steps, loud) * np.sin(number * phase_N)
        return sound


def _synthesize_noise(phone: Phone, samples: int, random: np.random.Generator) -> Float[np.ndarray, " N"]:
    """Synthesize noise within the phone's band that swells and fades."""
    if not phone.noise_amplitude:
        return np.zeros(samples)
    frequencies = np.fft.rfftfreq(samples, 1 / SAMPLE_RATE)
    low, high = phone.noise_band
    spectrum = np.fft.rfft(random.normal(size=samples)) * ((frequencies >= low) & (frequencies <= high))
    noise = np.fft.irfft(spectrum, samples)
    return phone.noise_amplitude * noise / max(np.abs(noise).max(), 1e-9) * np.sqrt(np.hanning(samples))
