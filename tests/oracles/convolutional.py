"""ConvS2S and ByteNet in NumPy float64, one example without its padding, from the papers' equations."""

import math
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.recurrent import Line, convolution, logistic

Weights = Any


def wide(weights: Weights) -> Weights:
    """The same tree in float64."""
    if isinstance(weights, dict):
        return {name: wide(each) for name, each in weights.items()}
    return np.asarray(weights, np.float64)


def layer(weights: Weights, number: int) -> Weights:
    """The weights of one of several stacked layers."""
    if isinstance(weights, dict):
        return {name: layer(each, number) for name, each in weights.items()}
    return weights[number]


class Answer(NamedTuple):
    """The logits [T, V] of one example, and the weights [L, T, S] of every layer's attention."""

    logits: np.ndarray
    weights: np.ndarray


def normed(weights: Weights) -> Weights:
    """The kernel g v / ||v|| of every output (Salimans and Kingma 2016, equation 2), and the bias."""
    v, g = weights["layer"]["kernel"], weights["length"]
    kernel = np.zeros_like(v)
    for output in range(v.shape[-1]):
        kernel[..., output] = g[output] * v[..., output] / math.sqrt((v[..., output] ** 2).sum())
    return {"kernel": kernel, "bias": weights["layer"]["bias"]}


def linear(weights: Weights, x: np.ndarray) -> np.ndarray:
    """The product W x + b."""
    return x @ weights["kernel"] + weights["bias"]


def gated(weights: Weights, h: np.ndarray, padding: str) -> np.ndarray:
    """sqrt(0.5) (v(conv(h)) + h) (Gehring et al. 2017, section 3.2)."""
    kernel = normed(weights)
    sums = convolution((Line(len(kernel["kernel"]), padding=padding),), "none", kernel, h)
    a, b = sums[:, : h.shape[1]], sums[:, h.shape[1] :]
    return math.sqrt(0.5) * (a * logistic(b) + h)


def convs2s(weights: Weights, source: np.ndarray, target: np.ndarray) -> Answer:
    """Gehring et al. 2017, sections 3.1 to 3.4."""
    weights, table = wide(weights), wide(weights["embedding"]["table"])
    e = table[source] + weights["source_positions"]["table"][: len(source)]
    h = linear(normed(weights["enter_encoder"]), e)
    for number in range(len(weights["encoder"]["convolution"]["length"])):
        h = gated(layer(weights["encoder"], number)["convolution"], h, "same")
    z = linear(normed(weights["leave_encoder"]), h)

    g = table[target] + weights["target_positions"]["table"][: len(target)]
    h = linear(normed(weights["enter_decoder"]), g)
    maps = []
    for number in range(len(weights["decoder"]["query"]["length"])):
        of_layer = layer(weights["decoder"], number)
        h = gated(of_layer["convolution"]["convolution"], h, "causal")
        d = linear(normed(of_layer["query"]), h) + g
        a, c = np.zeros((len(target), len(source))), np.zeros((len(target), z.shape[1]))
        for i in range(len(target)):
            scores = np.array([d[i] @ z[j] for j in range(len(source))])
            a[i] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            for j in range(len(source)):
                c[i] += a[i, j] * (z[j] + e[j])
        m = len(source)
        h = math.sqrt(0.5) * (h + linear(normed(of_layer["context"]), m * math.sqrt(1 / m) * c))
        maps.append(a)
    logits = linear(normed(weights["output"]), linear(normed(weights["leave_decoder"]), h))
    return Answer(logits, np.array(maps))


def rectified(weights: Weights, x: np.ndarray) -> np.ndarray:
    """ReLU of LayerNorm."""
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    return np.maximum((x - mean) / np.sqrt(variance + 1e-6) * weights["scale"] + weights["bias"], 0)


def residual_set(weights: Weights, x: np.ndarray, padding: str) -> np.ndarray:
    """Blocks of dilation 1, 2, 4 ... (Kalchbrenner et al. 2016, figure 3)."""
    for name in sorted(weights, key=lambda name: int(name.removeprefix("dilation_"))):
        of_block, dilation = weights[name], int(name.removeprefix("dilation_"))
        inner = rectified(of_block["second_norm"], linear(of_block["contract"], rectified(of_block["first_norm"], x)))
        line = Line(len(of_block["convolution"]["kernel"]), dilation=dilation, padding=padding)
        inner = convolution((line,), "none", of_block["convolution"], inner)
        x = x + linear(of_block["expand"], rectified(of_block["third_norm"], inner))
    return x


def bytenet(weights: Weights, source: np.ndarray, target: np.ndarray, unfolded: int) -> Answer:
    """Kalchbrenner et al. 2016, sections 3.1 to 3.6; the encoder's representation has `unfolded` positions."""
    weights, table = wide(weights), wide(weights["embedding"]["table"])

    def sets(side: str, x: np.ndarray, padding: str) -> np.ndarray:
        for number in range(len(weights[side]["dilation_1"]["contract"]["bias"])):
            x = residual_set(layer(weights[side], number), x, padding)
        return x

    read = np.zeros((max(unfolded, len(source)), table.shape[1]))
    read[: len(source)] = table[source]
    representation = sets("encoder", read, "same")[:unfolded]
    x = table[target]
    for place in range(min(len(target), unfolded)):
        x[place] += representation[place]
    hidden = np.maximum(linear(weights["readout"], sets("decoder", x, "causal")), 0)
    return Answer(linear(weights["output"], hidden), np.zeros((0, len(target), len(source))))


def bytenet_decoder(weights: Weights, tokens: np.ndarray) -> np.ndarray:
    """The logits [T, V] of its decoder alone, which reads nothing but the tokens."""
    weights = wide(weights)
    x = weights["embedding"]["table"][tokens]
    for number in range(len(weights["decoder"]["dilation_1"]["contract"]["bias"])):
        x = residual_set(layer(weights["decoder"], number), x, "causal")
    return linear(weights["output"], np.maximum(linear(weights["readout"], x), 0))
