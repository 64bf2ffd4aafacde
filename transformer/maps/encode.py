"""Maps as text in the page: codes of at most eight bits, deflated, in base64."""

import base64
import zlib

import numpy as np
from jaxtyping import Float, Int, UInt8

from transformer.maps.quantise import LEVELS, Quantised

COARSE_LEVELS = 127
WITHIN = 0.0095  # of what is stored, that a weight drawn from coarse codes stays
_MANTISSA = 11  # stored bits of a scale: half precision, with the range of a float32


def recode(maps: Quantised, levels: int) -> Quantised:
    """The same weights in codes up to `levels`, scales rounded to half precision.

    With fewer levels than the store's, code' = round(levels (code / 255)^(root / root')). A code then stands for
    weights root' scale / (2 levels) around its own at most: root' is the stored root, or less where that is
    more than `WITHIN` of it, and 2 at least (scale / 127 for a scale up to one).
    """
    codes, root = np.asarray(maps.codes), np.asarray(maps.root)
    scale = np.asarray(maps.scale, np.float32)
    if levels != LEVELS:
        widest = np.floor(WITHIN * 2 * levels / np.maximum(scale, 1e-9))
        kept = np.clip(widest, 2, root).astype(np.uint8)
        # Rows that keep their root are rounded from their codes directly, others through the power root / root'.
        table = np.rint(levels * (np.arange(LEVELS + 1) / LEVELS)).astype(np.uint8)
        fewer = table[codes]
        changed = kept != root
        power = (root[changed] / kept[changed]).astype(np.float32)[:, None]
        fewer[changed] = np.rint(levels * (codes[changed] / np.float32(LEVELS)) ** power).astype(np.uint8)
        codes, root = fewer, kept
    return Quantised(codes, _round_mantissa(scale), root)


def encode_rows(maps: Quantised, triangular: bool = False) -> str:
    """Rows of any leading axes as text: the bytes of the scales in four planes, then roots, then codes.

    Of a triangular map, [..., q, q], row i is given by its first i + 1 codes.
    """
    scale = np.ascontiguousarray(maps.scale, dtype="<f4").reshape(-1)
    planes = scale.view(np.uint8).reshape(-1, 4).T
    codes = maps.codes[..., *np.tril_indices(maps.codes.shape[-1])] if triangular else maps.codes
    return pack(planes.tobytes() + np.ascontiguousarray(maps.root).tobytes() + np.ascontiguousarray(codes).tobytes())


def encode_top(keys: Int[np.ndarray, "*rows k"], weights: Quantised) -> str:
    """The largest weights of rows as text: high bytes of the keys, low bytes, then the weights as rows."""
    planes = np.ascontiguousarray(keys, dtype=">u2").view(np.uint8).reshape(-1, 2).T
    scale = np.ascontiguousarray(weights.scale, dtype="<f4").reshape(-1).view(np.uint8).reshape(-1, 4).T
    rows = (planes, scale, np.ascontiguousarray(weights.root), np.ascontiguousarray(weights.codes))
    return pack(b"".join(part.tobytes() for part in rows))


def pack(data: bytes) -> str:
    """Base64 of gzip, without a time stamp: the same run gives the same page, byte for byte."""
    # Weights look like noise: they pack smaller without a search for chance repeats.
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS, 9, zlib.Z_FILTERED)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")


def shrink(picture: UInt8[np.ndarray, "height width 3"], side: int) -> UInt8[np.ndarray, "rows columns 3"]:
    """The mean over square blocks, the smallest that bring both sides down to `side` pixels."""
    block = -(-max(picture.shape[:2]) // side)
    rows, columns = (-(-size // block) for size in picture.shape[:2])
    padding = [(0, rows * block - picture.shape[0]), (0, columns * block - picture.shape[1]), (0, 0)]
    blocks = np.pad(picture, padding, mode="edge").reshape(rows, block, columns, block, 3)
    return np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)


def grey(spectrogram: Float[np.ndarray, "bins time"]) -> UInt8[np.ndarray, "bins time"]:
    """Log magnitudes as bytes from the least to the greatest that is finite."""
    finite = np.isfinite(spectrogram)
    low, high = (spectrogram[finite].min(), spectrogram[finite].max()) if finite.any() else (0.0, 0.0)
    spread = np.where(finite, spectrogram - low, 0.0) / max(high - low, 1e-9)
    return np.rint(255 * np.clip(spread, 0, 1)).astype(np.uint8)


def _round_mantissa(scale: Float[np.ndarray, "*rows"]) -> Float[np.ndarray, "*rows"]:
    dropped = 23 - _MANTISSA
    bits = np.ascontiguousarray(scale).view(np.uint32)
    rounded = (bits + np.uint32(1 << (dropped - 1))) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return np.where(np.isfinite(scale), rounded.view(np.float32), scale)
