"""The encoder-decoder Transformer of Vaswani et al. 2017 in NumPy float64, one example and one head at a time.

It reads a nested dict of parameters as the package names them, and shares nothing else with it.
"""

from typing import Any, NamedTuple

import numpy as np

Weights = dict[str, Any]


class Answer(NamedTuple):
    """Logits `B T V`, and the maps of every site `L B H Q K`."""

    logits: np.ndarray
    maps: dict[str, np.ndarray]


def layer_norm(weights: Weights, x: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Every vector less its mean, over its deviation, scaled and moved."""
    rows = [(row - row.mean()) / np.sqrt(row.var() + epsilon) for row in x.reshape(-1, x.shape[-1])]
    return np.stack(rows).reshape(x.shape) * weights["scale"] + weights["bias"]


def feed_forward(weights: Weights, x: np.ndarray) -> np.ndarray:
    """max(0, x W_1 + b_1) W_2 + b_2."""
    hidden = x @ weights["expand"]["kernel"] + weights["expand"]["bias"]
    return np.where(hidden > 0, hidden, 0) @ weights["contract"]["kernel"] + weights["contract"]["bias"]


def multi_head(
    weights: Weights, x: np.ndarray, memory: np.ndarray, seen_QxK: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Concat(heads) W_O of one example `Q E`, and its map `H Q K`."""
    heads, depth, width = weights["output"]["kernel"].shape

    def projected(name: str, y: np.ndarray, head: int) -> np.ndarray:
        bias = weights[name]["bias"][head] if "bias" in weights[name] else 0
        return y @ weights[name]["kernel"][:, head] + bias

    outputs, maps = [], []
    for head in range(heads):
        scores = projected("query", x, head) @ projected("key", memory, head).T / np.sqrt(depth)
        powers = np.where(seen_QxK, np.exp(scores - scores.max()), 0)
        total = powers.sum(axis=1, keepdims=True)
        maps.append(np.where(total > 0, powers / np.where(total > 0, total, 1), 0))
        outputs.append(maps[-1] @ projected("value", memory, head))
    mixed = np.concatenate(outputs, axis=1) @ weights["output"]["kernel"].reshape(heads * depth, width)
    return mixed + weights["output"].get("bias", 0), np.stack(maps)


def waves(length: int, width: int) -> np.ndarray:
    """Sines in the even columns, cosines in the odd ones."""
    table = np.zeros((length, width))
    for position in range(length):
        for pair in range(width // 2):
            angle = position / 10000 ** (2 * pair / width)
            table[position, 2 * pair : 2 * pair + 2] = np.sin(angle), np.cos(angle)
    return table


class _Layers:
    """The sub-layers of one example, with the norm after the addition or before the sub-layer."""

    def __init__(self, pre: bool):
        self.pre = pre

    def residual(self, norm: Weights, x: np.ndarray, function: Any) -> tuple[np.ndarray, Any]:
        if self.pre:
            y, extra = function(layer_norm(norm, x))
            return x + y, extra
        y, extra = function(x)
        return layer_norm(norm, x + y), extra

    def encoder(self, block: Weights, x: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, found = self.residual(
            block["attention_residual"]["norm"], x, lambda y: multi_head(block["attention"], y, y, seen)
        )
        x, _ = self.residual(
            block["feed_forward_residual"]["norm"], x, lambda y: (feed_forward(block["feed_forward"], y), None)
        )
        return x, found

    def decoder(
        self, block: Weights, x: np.ndarray, memory: np.ndarray, real: np.ndarray, real_memory: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        past = np.tril(real[:, None] & real[None, :])
        x, of_self = self.residual(
            block["attention_residual"]["norm"], x, lambda y: multi_head(block["attention"], y, y, past)
        )
        x, of_cross = self.residual(
            block["cross_residual"]["norm"],
            x,
            lambda y: multi_head(block["cross"], y, memory, real[:, None] & real_memory),
        )
        x, _ = self.residual(
            block["feed_forward_residual"]["norm"], x, lambda y: (feed_forward(block["feed_forward"], y), None)
        )
        return x, of_self, of_cross


def layers_of(stacked: Weights) -> list[Weights]:
    """One tree a layer from a tree whose arrays have a leading layer axis."""
    first = stacked
    while isinstance(first, dict):
        first = next(iter(first.values()))

    def at(tree: Any, index: int) -> Any:
        return {name: at(item, index) for name, item in tree.items()} if isinstance(tree, dict) else tree[index]

    return [at(stacked, index) for index in range(len(first))]


def encoder_decoder(weights: Weights, source: np.ndarray, target: np.ndarray, *, pad: int, pre: bool) -> Answer:
    """The whole model, with the waves unless there is a table of positions; padded places see nothing."""
    table, layers = weights["embedding"]["table"], _Layers(pre)
    width = table.shape[1]
    longest = max(source.shape[1], target.shape[1])
    positions = weights["positions"]["table"] if "positions" in weights else waves(longest, width)
    logits: list[np.ndarray] = []
    maps: dict[str, list] = {"encoder/self": [], "decoder/self": [], "decoder/cross": []}
    for one_source, one_target in zip(source, target, strict=True):
        real, real_target = one_source != pad, one_target != pad
        memory = table[one_source] * np.sqrt(width) + positions[: len(one_source)]
        found: dict[str, list] = {site: [] for site in maps}
        for block in layers_of(weights["encoder"]):
            memory, of_encoder = layers.encoder(block, memory, real[:, None] & real[None, :])
            found["encoder/self"].append(of_encoder)
        if pre:
            memory = layer_norm(weights["encoder_norm"], memory)
        x = table[one_target] * np.sqrt(width) + positions[: len(one_target)]
        for block in layers_of(weights["decoder"]):
            x, of_self, of_cross = layers.decoder(block, x, memory, real_target, real)
            found["decoder/self"].append(of_self)
            found["decoder/cross"].append(of_cross)
        if pre:
            x = layer_norm(weights["decoder_norm"], x)
        logits.append(x @ table.T)
        for site in maps:
            maps[site].append(np.stack(found[site]))
    return Answer(np.stack(logits), {site: np.stack(found, axis=1) for site, found in maps.items()})
