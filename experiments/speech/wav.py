"""Read and write WAV files without a library, as one channel at the common sample rate."""

import io
import math
import wave

import numpy as np
from jaxtyping import Float

from experiments.speech.log_mel import SAMPLE_RATE
from transformer.config import UserError

MAX_SECONDS = 600
_LARGEST = 2**15 - 1
# A program that writes to a pipe does not know the length: its header has a number from here on.
_UNKNOWN_BYTES = 0x7FFFF000
# The resampling filter has about twenty times as many values as the larger number of the ratio.
_GREATEST_RATIO = 2**16


def decode_wav(content: bytes, name: str) -> Float[np.ndarray, " N"]:
    """Decode the samples of a WAV file.

    Channels are averaged, and other rates are resampled. If the header was written before the length was known, as by
    ffmpeg into a pipe, the sound lasts until the end of the file.

    Args:
        content: The content of the file.
        name: The name of the file, for messages.

    Returns:
        The samples, from -1 to 1, at `SAMPLE_RATE`.

    Raises:
        UserError: If the file is not PCM of 8, 16, 24 or 32 bits, is empty, cut short or too long, or its rate cannot
            be resampled.
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, size, rate, count = (
                file.getnchannels(),
                file.getsampwidth(),
                file.getframerate(),
                file.getnframes(),
            )
            if size > 4:
                raise UserError(f"{name} has {8 * size} bits a sample: give one of 8, 16, 24 or 32")
            frames = file.readframes(count)
    except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError, without a word, for a chunk beyond the end
        raise UserError(f"{name} is no WAV file of whole numbers (PCM): {error}") from None
    frame = size * channels
    num_frames = len(frames) // frame
    frames = frames[: num_frames * frame]
    if not frames:
        raise UserError(f"{name} has no samples: give a sound that lasts")
    if num_frames < count and count * frame < _UNKNOWN_BYTES - frame:
        raise UserError(f"{name} is cut short: its header says {count:,} samples, the file holds {num_frames:,}")
    divisor = math.gcd(rate, SAMPLE_RATE)
    if rate < 1 or max(rate, SAMPLE_RATE) // divisor > _GREATEST_RATIO:
        raise UserError(
            f"{name} has a rate of {rate:,} Hz, which is not resampled to {SAMPLE_RATE:,}: give another rate"
        )
    if num_frames > MAX_SECONDS * rate:
        raise UserError(f"{name} lasts longer than {MAX_SECONDS} seconds: cut it")
    if size == 1:  # 8-bit samples are unsigned
        samples = np.frombuffer(frames, np.uint8).astype(np.float64) - 128
    else:
        padded = np.zeros((len(frames) // size, 4), np.uint8)
        padded[:, 4 - size :] = np.frombuffer(frames, np.uint8).reshape(-1, size)
        samples = padded.view("<i4")[:, 0] / 2.0 ** (32 - 8 * size)
    mono = samples.reshape(-1, channels).mean(axis=1) / 2.0 ** (8 * size - 1)
    if rate != SAMPLE_RATE:
        from scipy.signal import resample_poly  # a second to import, and most recordings have the models' rate

        mono = resample_poly(mono, SAMPLE_RATE // divisor, rate // divisor)
    return mono.astype(np.float32)


def encode_wav(samples: Float[np.ndarray, " N"]) -> bytes:
    """Encode samples as a WAV file of 16 bits; values beyond -1 and 1 are clipped."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.rint(_LARGEST * np.clip(samples, -1, 1)).astype("<i2").tobytes())
    return buffer.getvalue()
