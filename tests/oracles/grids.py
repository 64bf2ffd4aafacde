"""Convolutional networks over grids in NumPy float64, from the equations: residual stages, self-attention, SAGAN.

Weights are nested dicts as the package names them; nothing else is shared with it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.oracles.transformer import layer_norm

Weights = Mapping[str, Any]


def convolve(kernel: np.ndarray, x: np.ndarray, stride: int = 1) -> np.ndarray:
    """A grid [Y, X, I] under a kernel [V, W, I, F]: output (y, x) reads the window that begins at stride (y, x) - 1."""
    width = len(kernel)
    padded = np.pad(x, ((1, width // 2), (1, width // 2), (0, 0)))
    rows, columns = (-(-size // stride) for size in x.shape[:2])
    made = np.zeros((rows, columns, kernel.shape[-1]))
    for row, column in np.ndindex(rows, columns):
        window = padded[row * stride : row * stride + width, column * stride : column * stride + width]
        made[row, column] = np.tensordot(window, kernel, 3)
    return made


def rectified(x: np.ndarray, slope: float = 0.0) -> np.ndarray:
    """X where it is positive, and slope x elsewhere."""
    return np.where(x > 0, x, slope * x)


def residual_stage(weights: Weights, x: np.ndarray, stride: int) -> np.ndarray:
    """relu(norm(conv(x))), then x + conv(relu(norm(conv(relu(norm(x)))))) of every block."""
    y = rectified(layer_norm(weights["norm"], convolve(weights["convolution"]["kernel"], x, stride)))
    for name in sorted(weights.keys() - {"norm", "convolution"}):
        block = weights[name]
        z = convolve(block["first"]["kernel"], rectified(layer_norm(block["first_norm"], y))) + block["first"]["bias"]
        y = (
            y
            + convolve(block["second"]["kernel"], rectified(layer_norm(block["second_norm"], z)))
            + block["second"]["bias"]
        )
    return y


def grid_attention(kernels: Weights, gamma: float, x: np.ndarray) -> np.ndarray:
    """Gamma o_j + x_j, o_j = W_v sum_i softmax_i((W_f x_i)' W_g x_j) W_h x_i (Zhang et al. 2019, equations 1 to 3)."""
    flat = x.reshape(-1, x.shape[-1])
    q, k, v = (flat @ kernels[name].reshape(x.shape[-1], -1) for name in ("query", "key", "value"))
    made = np.zeros_like(flat)
    for place in range(len(flat)):
        shares = np.exp(k @ q[place] - (k @ q[place]).max())
        made[place] = (shares / shares.sum()) @ v @ kernels["output"].reshape(-1, x.shape[-1])
    return (gamma * made + flat).reshape(x.shape)


def spectrally_normed(kernel: np.ndarray, u: np.ndarray) -> np.ndarray:
    """W / sigma after one power iteration from u (Miyato et al. 2018, algorithm 1)."""
    matrix = kernel.reshape(-1, len(u))
    v = matrix @ u / np.linalg.norm(matrix @ u)
    following = matrix.T @ v / np.linalg.norm(matrix.T @ v)
    return kernel / (v @ matrix @ following)


def normed_kernels(weights: Weights, states: Weights) -> dict[str, np.ndarray]:
    """Every kernel of a player under its name, divided by its largest singular value as it is estimated."""
    found = {}
    for name, u in states.items():
        parts = name.rsplit("_", 1) if name.startswith("attention") else (name,)
        layer = weights[parts[0]][parts[1]] if len(parts) == 2 else weights[name]
        found[name] = spectrally_normed(layer["kernel"], u)
    return found


def attended(weights: Weights, kernels: Weights, x: np.ndarray) -> np.ndarray:
    """A player's attention in the grid of so many rows, if it has one."""
    name = f"attention_{len(x)}"
    if name not in weights:
        return x
    parts = {part: kernels[f"{name}_{part}"] for part in ("query", "key", "value", "output")}
    return grid_attention(parts, weights[name]["gamma"][0], x)


def discriminator(weights: Weights, states: Weights, image: np.ndarray) -> float:
    """The score of one image."""
    kernels, x = normed_kernels(weights, states), image
    for level in range(sum(name.startswith("stage") for name in weights)):
        name = f"stage_{level}"
        x = convolve(kernels[name], x, 2 if level else 1) + weights[name]["bias"]
        x = rectified(attended(weights, kernels, x), 0.1)
    return float((x.sum((0, 1)) @ kernels["last"] + weights["last"]["bias"])[0])


def generator(weights: Weights, states: Weights, noise: np.ndarray, smallest: tuple[int, int, int]) -> np.ndarray:
    """The images [B, Y, X, C] of a batch of noise, normed by the batch's own means and variances."""
    kernels = normed_kernels(weights, states)

    def batch_normed(norm: Weights, grids: np.ndarray) -> np.ndarray:
        mean, variance = grids.mean((0, 1, 2)), grids.var((0, 1, 2))
        return (grids - mean) / np.sqrt(variance + 1e-5) * norm["scale"] + norm["bias"]

    def finished(grids: np.ndarray) -> np.ndarray:
        return rectified(np.stack([attended(weights, kernels, x) for x in grids]))

    grids = finished(batch_normed(weights["first_norm"], (noise @ kernels["first"]).reshape(-1, *smallest)))
    for level in reversed(range(sum(name.startswith("stage") for name in weights))):
        doubled = grids.repeat(2, axis=1).repeat(2, axis=2)
        convolved = np.stack([convolve(kernels[f"stage_{level}"], x) for x in doubled])
        grids = finished(batch_normed(weights[f"norm_{level}"], convolved))
    return np.tanh(np.stack([convolve(kernels["last"], x) for x in grids]) + weights["last"]["bias"])
