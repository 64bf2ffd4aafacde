"""Attention weights in eight bits: square-root quantization, scaled by each row's largest weight."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, UInt8

LEVELS = 255
ROOTS = tuple(range(2, 11))
TOLERANCE = 0.005  # the L1 error of a row's weights up to which it keeps the square root

AnyArray = Array | np.ndarray


class Quantized(NamedTuple):
    """Rows of weights as codes: weight = scale (code / 255)^root.

    Attributes:
        codes: The codes [..., key], 0 to 255.
        scale: The largest weight of each row.
        root: The root of each row, 2 to 10.
    """

    codes: UInt8[AnyArray, "*rows K"]
    scale: Float[AnyArray, "*rows"]
    root: UInt8[AnyArray, "*rows"]

    def weights(self) -> Float[AnyArray, "*rows K"]:
        """Return the weights [..., key] that the codes stand for, in float32."""
        xp: Any = self.codes.__array_namespace__()
        ratio = self.codes.astype(xp.float32) / LEVELS
        return self.scale.astype(xp.float32)[..., None] * ratio ** self.root.astype(xp.float32)[..., None]


def quantize(weights: Float[AnyArray, "*rows K"]) -> Quantized:
    """Quantize each row of weights: scale = max_k w, code = round(255 (w / scale)^(1/root)).

    The root is 2, whose codes are spaced evenly in sqrt(w), so that small weights keep their share of the levels and
    the largest weight of a row is exact. Rows with a few large weights over a wide floor, as an attention sink has
    them, need finer levels near zero: where the square root's error is above `TOLERANCE`, the root from 2 to 10 with
    the smallest error is taken. So the L1 error of a row that sums to one stays below 0.01 for up to 128 keys and below
    0.02 for up to 2,048.

    Args:
        weights: The weights [..., key], a NumPy or JAX array.

    Returns:
        The codes, and the scale and root of each row. A row with a negative or non-finite weight has the scale NaN.
    """
    xp: Any = weights.__array_namespace__()
    largest = xp.max(weights, axis=-1)
    is_valid = xp.isfinite(largest) & (xp.min(weights, axis=-1) >= 0)
    # A row that attends to nothing has scale 0 and stays exactly zero.
    scale = xp.where(is_valid, largest, 0)
    ratio = xp.where(is_valid[..., None], weights, 0) / xp.where(scale > 0, scale, 1.0)[..., None]

    def quantize_with_root(root: int) -> tuple[Any, Any]:
        codes = xp.round(LEVELS * ratio ** (1 / root))
        return codes, scale * xp.sum(xp.abs((codes / LEVELS) ** root - ratio), axis=-1)

    codes, error = quantize_with_root(ROOTS[0])
    root = xp.full(largest.shape, ROOTS[0])
    error = xp.where(error <= TOLERANCE, 0.0, error)
    for candidate in ROOTS[1:]:
        candidate_codes, candidate_error = quantize_with_root(candidate)
        better = candidate_error < error
        codes = xp.where(better[..., None], candidate_codes, codes)
        root, error = xp.where(better, candidate, root), xp.where(better, candidate_error, error)
    return Quantized(
        codes.astype(xp.uint8), xp.where(is_valid, largest, xp.nan).astype(xp.float32), root.astype(xp.uint8)
    )
