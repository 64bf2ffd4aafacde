"""The places of an image in NumPy float64, one after another from the equations: convolutions, norms, a vector.

Weights are nested dicts as the package names them; nothing else is shared with it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.oracles.grids import residual_stage


def places(weights: dict[str, Any], image: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """The features [L, C] of all places of one image, row by row, of stages without residual blocks."""
    x = image.astype(np.float64)
    for number, stride in enumerate(strides):
        x = residual_stage(weights["encoder"][f"stage_{number}"], x, stride)
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
