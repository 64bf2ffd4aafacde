"""The Neural Turing Machine in NumPy float64, one row, step and slot after another, from the paper's equations.

Graves et al. 2014, section 3. Weights are nested dicts as the package names them; nothing else is shared with it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from tests.oracles import recurrent

Weights = dict[str, Any]


class Machine(NamedTuple):
    """Which machine, by the names and values of the config's fields."""

    controller: str
    read_heads: int
    write_heads: int
    shift_range: int


class Trace(NamedTuple):
    """All steps of one row: logits, the weightings of all heads (reading first), what was read, the memory behind."""

    logits: np.ndarray
    weights: np.ndarray
    reads: np.ndarray
    memory: np.ndarray


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max())
    return exponentials / exponentials.sum()


def weighting(memory: np.ndarray, emitted: np.ndarray, before: np.ndarray, shift_range: int) -> np.ndarray:
    """Equations 5 to 9 for one head, from what the controller emitted for it."""
    slots, width = memory.shape
    key = np.tanh(emitted[:width])
    strength, gate = softplus(emitted[width]), 1 / (1 + math.exp(-emitted[width + 1]))
    sharpening = 1 + softplus(emitted[width + 2])
    moves = softmax(emitted[width + 3 :])
    alike = [key @ slot / (np.linalg.norm(key) * np.linalg.norm(slot)) for slot in memory]
    gated = gate * softmax(strength * np.array(alike)) + (1 - gate) * before
    shifted = np.zeros(slots)
    for to in range(slots):
        for origin in range(slots):
            for tap, probability in enumerate(moves):
                if (to - origin - (tap - shift_range)) % slots == 0:
                    shifted[to] += gated[origin] * probability
    powers = shifted**sharpening
    return powers / powers.sum()


def run(kind: Machine, weights: Weights, x_TxI: np.ndarray) -> Trace:
    """One sequence, all of whose steps are real."""
    w = {name: value for name, value in weights.items()}
    memory = w["memory"].astype(np.float64)
    slots, width = memory.shape
    heads = kind.read_heads + kind.write_heads
    befores = [softmax(row.astype(np.float64)) for row in w["weights"]]
    reads = [row.astype(np.float64) for row in w["reads"]]
    state = recurrent.State(*w["state"].astype(np.float64)) if kind.controller == "lstm" else None
    size, found = width + 3 + 2 * kind.shift_range + 1, []

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[name]["kernel"].astype(np.float64) + w[name]["bias"]

    for x in np.asarray(x_TxI, np.float64):
        seen = np.concatenate([x, *reads])
        if state is not None:
            state = recurrent.step("lstm", w["cell"], seen, state)
            hidden = state.hidden
        else:
            hidden = np.tanh(linear("hidden", seen))
        emitted = linear("heads", hidden)
        befores = [
            weighting(memory, emitted[head * size : (head + 1) * size], befores[head], kind.shift_range)
            for head in range(heads)
        ]
        reads = [
            sum(weight * slot for weight, slot in zip(befores[head], memory, strict=True))
            for head in range(kind.read_heads)
        ]
        changes = emitted[heads * size :].reshape(kind.write_heads, 2 * width)
        after = memory.copy()
        for slot in range(slots):
            for head in range(kind.write_heads):
                erase = 1 / (1 + np.exp(-changes[head, :width]))
                after[slot] *= 1 - befores[kind.read_heads + head][slot] * erase
            for head in range(kind.write_heads):
                after[slot] += befores[kind.read_heads + head][slot] * np.tanh(changes[head, width:])
        memory = after
        found.append((linear("output", np.concatenate([hidden, *reads])), np.array(befores), np.array(reads), memory))
    return Trace(*(np.array(part) for part in zip(*found, strict=True)))
