"""SNAIL in float64, place by place (Mishra et al. 2018): weights as nested dicts of arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Weights = Mapping[str, Any]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def dense_block(weights: Weights, x: np.ndarray, dilation: int) -> np.ndarray:
    """Each step with what two gates make of it and of the step `dilation` before it, zeros before the first."""
    of = weights["convolution"]
    outputs = []
    for step in range(x.shape[1]):
        before = x[:, step - dilation] if step >= dilation else np.zeros_like(x[:, 0])
        f, g = (
            before @ of[kernel][0] + x[:, step] @ of[kernel][1] + of[bias]
            for kernel, bias in (("kernel", "bias"), ("gate_kernel", "gate_bias"))
        )
        outputs.append(np.concatenate([x[:, step], np.tanh(f) * sigmoid(g)], axis=-1))
    return np.stack(outputs, axis=1)


def attention_block(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each step with what it reads of the steps up to it, and the map."""
    q, k, v = (x @ weights[name]["kernel"][:, 0] for name in ("query", "key", "value"))
    q, v = q + weights["query"]["bias"][0], v + weights["value"]["bias"][0]
    maps = np.zeros((len(x), x.shape[1], x.shape[1]))
    for row in range(len(x)):
        for step in range(x.shape[1]):
            logits = k[row, : step + 1] @ q[row, step] / np.sqrt(q.shape[-1])
            shares = np.exp(logits - logits.max())
            maps[row, step, : step + 1] = shares / shares.sum()
    return np.concatenate([x, np.einsum("bts,bsv->btv", maps, v)], axis=-1), maps


def embed(weights: Weights, state: Mapping[str, Any], images: np.ndarray) -> np.ndarray:
    """Images [N, Y, X, C] as evaluation embeds them."""
    x, number = images, 0
    while f"convolution_{number}" in weights:
        kernel, norm = weights[f"convolution_{number}"]["kernel"], weights[f"norm_{number}"]
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        y = np.zeros((*x.shape[:3], kernel.shape[-1]))
        for down in range(3):
            for across in range(3):
                y += padded[:, down : down + x.shape[1], across : across + x.shape[2]] @ kernel[down, across]
        mean, variance = state[f"norm_{number}"]
        y = np.maximum((y - mean) / np.sqrt(variance + 1e-5) * norm["scale"] + norm["bias"], 0)
        rows, columns = y.shape[1] // 2, y.shape[2] // 2
        x = np.zeros((len(y), rows, columns, y.shape[-1]))
        for row in range(rows):
            for column in range(columns):
                x[:, row, column] = y[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].max(axis=(1, 2))
        number += 1
    return x.reshape(len(x), -1) @ weights["output"]["kernel"] + weights["output"]["bias"]


def run(weights: Weights, x: np.ndarray, blocks: Sequence[str], dense: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The blocks in their order, of which those of convolutions have so many `dense` ones, and the last map."""
    maps = []
    for number, block in enumerate(blocks):
        own = weights[f"block_{number}"]
        if block == "attention":
            x, shares = attention_block(own, x)
            maps.append(shares)
        else:
            for inner in range(dense):
                x = dense_block(own[f"dense_{inner}"], x, 2**inner)
    return x @ weights["head"]["kernel"] + weights["head"]["bias"], maps
