"""The places of an image in NumPy float64, one after another from the equations: convolutions, norms, a vector.

Weights are nested dicts as the package names them; nothing else is shared with it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def places(weights: dict[str, Any], image: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """The features [L, C] of all places of one image, row by row, of stages without residual blocks."""
    x = image.astype(np.float64)
    for number, stride in enumerate(strides):
        stage = weights["encoder"][f"stage_{number}"]
        padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        rows, columns = (-(-size // stride) for size in x.shape[:2])
        made = np.zeros((rows, columns, stage["convolution"]["kernel"].shape[-1]))
        for row in range(rows):
            for column in range(columns):
                window = padded[row * stride : row * stride + 3, column * stride : column * stride + 3]
                sums = np.tensordot(window, stage["convolution"]["kernel"], 3)
                normed = (sums - sums.mean()) / np.sqrt(sums.var() + 1e-6)
                made[row, column] = np.maximum(normed * stage["norm"]["scale"] + stage["norm"]["bias"], 0)
        x = made
    told = weights.get("positions", {})
    for row, column in np.ndindex(*x.shape[:2]):
        if "table" in told:
            x[row, column] += told["table"][row * x.shape[1] + column]
        elif "rows" in told:
            x[row, column] += np.concatenate([told["rows"][row], told["columns"][column]])
    return x.reshape(-1, x.shape[-1])


def softmax(logits: np.ndarray) -> np.ndarray:
    """Of one row."""
    exponentials = np.exp(logits - np.max(logits))
    return exponentials / exponentials.sum()
