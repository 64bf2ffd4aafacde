"""Attention maps as one gray image: a grid of every head."""

import numpy as np
from jaxtyping import Float, UInt8

_CELL = 48  # pixels that the longer side of a small map is scaled up to
_GAP = 2  # pixels between two heads


def render_head_grid(weights_LxHxQxK: Float[np.ndarray, "L H Q K"]) -> UInt8[np.ndarray, "height width"]:
    """Render all heads as a gray image: one row a layer, one column a head, white for 0 and black for 1.

    Args:
        weights_LxHxQxK: The weights [layer, head, query, key] in [0, 1]; NaN is drawn as 0.

    Returns:
        The image [height, width]; small maps are scaled up to about 48 pixels.
    """
    layers, heads, queries, keys = weights_LxHxQxK.shape
    scale = max(1, _CELL // max(queries, keys))
    finite = np.nan_to_num(np.asarray(weights_LxHxQxK, np.float32), nan=0.0, posinf=1.0, neginf=0.0)
    gray = np.round(255 * (1 - np.clip(finite, 0, 1))).astype(np.uint8).repeat(scale, 2).repeat(scale, 3)
    padded = np.pad(gray, ((0, 0), (0, 0), (_GAP, 0), (_GAP, 0)), constant_values=128)
    height, width = padded.shape[2:]
    image = padded.transpose(0, 2, 1, 3).reshape(layers * height, heads * width)
    return np.pad(image, ((0, _GAP), (0, _GAP)), constant_values=128)
