"""A mixture of experts in NumPy float64, one position and expert after another, from the paper's equations.

Shazeer et al. 2017, sections 2 to 4 and appendix A; without noise Jiang et al. 2024, section 2.1, and Fedus et al.
2022, section 2. Weights are nested dicts as the package names them; nothing else is
shared with it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Weights = dict[str, Any]


class Mixed(NamedTuple):
    """The outputs [B, T, E], the gates [B, T, X], both sums over positions [X], and their squared variations."""

    outputs: np.ndarray
    gates: np.ndarray
    importance: np.ndarray
    load: np.ndarray
    importance_loss: float
    load_loss: float


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def cumulative(z: float) -> float:
    """The standard normal distribution's."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def kth_excluding(values: list[float], k: int, excluded: int) -> float:
    """The k-th highest component, leaving one out."""
    return sorted((value for index, value in enumerate(values) if index != excluded), reverse=True)[k - 1]


def gates_of(h: list[float], k: int) -> np.ndarray:
    """Equations 3 and 5: the k highest, of equal ones the first, through a softmax; zero elsewhere."""
    kept = sorted(range(len(h)), key=lambda index: (-h[index], index))[:k]
    exponentials = {index: math.exp(h[index] - h[kept[0]]) for index in kept}
    total = sum(exponentials.values())
    return np.array([exponentials.get(index, 0.0) / total for index in range(len(h))])


def squared_variation(x: np.ndarray) -> float:
    mean = sum(x) / len(x)
    return sum((each - mean) ** 2 for each in x) / len(x) / mean**2


def network(weights: Weights, expert: int, x: np.ndarray, activation: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """One expert: a feed-forward network, gated where it has a gate."""

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        bias = weights[name].get("bias")
        return x @ weights[name]["kernel"][expert] + (0 if bias is None else bias[expert])

    hidden = (
        activation(linear("gate", x)) * linear("expand", x) if "gate" in weights else activation(linear("expand", x))
    )
    return linear("contract", hidden)


def mixture(
    weights: Weights,
    x_BxTxE: np.ndarray,
    k: int,
    activation: Callable[[np.ndarray], np.ndarray],
    noise_BxTxX: np.ndarray | None = None,
    lengths_B: np.ndarray | None = None,
) -> Mixed:
    batch, length, _ = x_BxTxE.shape
    count = weights["router"]["kernel"].shape[1]
    outputs, gates = np.zeros_like(x_BxTxE), np.zeros((batch, length, count))
    importance, load = np.zeros(count), np.zeros(count)
    for b in range(batch):
        for t in range(length if lengths_B is None else int(lengths_B[b])):
            x = x_BxTxE[b, t]
            clean = [float(x @ weights["router"]["kernel"][:, i]) for i in range(count)]
            deviation = [softplus(float(x @ weights["noise"]["kernel"][:, i])) for i in range(count)]
            drawn = np.zeros(count) if noise_BxTxX is None else noise_BxTxX[b, t]
            h = [clean[i] + float(drawn[i]) * deviation[i] for i in range(count)]
            gates[b, t] = gates_of(h, k)
            for i in range(count):
                importance[i] += gates[b, t, i]
                load[i] += cumulative((clean[i] - kth_excluding(h, k, i)) / deviation[i])
                if gates[b, t, i] > 0:
                    outputs[b, t] += gates[b, t, i] * network(weights["networks"], i, x, activation)
    return Mixed(outputs, gates, importance, load, squared_variation(importance), squared_variation(load))


class Routed(NamedTuple):
    """The outputs [B, T, E], the gates [B, T, X], and the balance loss of all positions."""

    outputs: np.ndarray
    gates: np.ndarray
    balance_loss: float


def mixture_without_noise(
    weights: Weights,
    x_BxTxE: np.ndarray,
    k: int,
    activation: Callable[[np.ndarray], np.ndarray],
    *,
    renormalized: bool,
    lengths_B: np.ndarray,
) -> Routed:
    """Of the softmax over all experts the k largest, divided by their sum or as they are."""
    router = weights["router"]
    count = router["kernel"].shape[1]
    outputs, gates = np.zeros_like(x_BxTxE), np.zeros((*x_BxTxE.shape[:2], count))
    chosen, probability, positions = np.zeros(count), np.zeros(count), 0
    for b, length in enumerate(lengths_B):
        for t in range(length):
            x = x_BxTxE[b, t]
            logits = np.array([float(x @ router["kernel"][:, i]) for i in range(count)]) + router.get("bias", 0)
            p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            kept = sorted(range(count), key=lambda i, p=p: (-p[i], i))[:k]
            total = sum(p[i] for i in kept) if renormalized else 1.0
            for i in kept:
                gates[b, t, i] = p[i] / total
                outputs[b, t] += gates[b, t, i] * network(weights["networks"], i, x, activation)
                chosen[i] += 1
            probability += p
            positions += 1
    return Routed(outputs, gates, count * sum(chosen / positions * probability / positions))
