"""Encode gray images as PNG files without a library."""

import struct
import zlib

import numpy as np
from jaxtyping import UInt8

SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""The first bytes of every PNG file."""


def encode_png(image: UInt8[np.ndarray, "height width"]) -> bytes:
    """Encode a gray image as a PNG file (ISO/IEC 15948) with 8 bits and filter 0."""
    height, width = image.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    rows = np.pad(image, ((0, 0), (1, 0))).tobytes()  # each row starts with the number of its filter
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
