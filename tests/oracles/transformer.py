"""The Transformer families in NumPy float64, from the equations: one block for every arrangement.

It reads a nested dict of parameters as the package names them, and shares nothing else with it. Attention itself is
that of tests.oracles.attention_equations.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.oracles import attention_equations

Weights = dict[str, Any]
Facts = dict[str, Any]


class Kind(NamedTuple):
    """Which arrangement, by the names and values of the config's fields.

    `text_length`: the length by which rotary positions are scaled; None means that of the text.
    """

    norm_placement: str = "post"
    norm: str = "layer"
    norm_epsilon: float = 1e-6
    activation: str = "relu"
    positions: str = "sinusoidal"
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_scaling: Any = None
    rotary_pattern: tuple[str, ...] = ()
    local_rotary_base: float = 10000.0
    relative_attention_max_distance: int = 128
    attention_windows: tuple[int, ...] = ()
    score: str = "scaled_dot"
    embedding_scale: str = "none"
    logit_scale: str = "none"
    position_offset: int = 0
    side_embeddings: str = "shared"
    query_key_norm: str = "none"
    attention_scale: float | None = None
    attention_softcap: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    text_length: int | None = None
    layers: int = 0
    layer_groups: int | None = None
    pooling: str = "first"
    head_transform: str = "tokens"


class Answer(NamedTuple):
    """Logits `B T V`, and the maps of every site `L B H Q K`."""

    logits: np.ndarray
    maps: dict[str, np.ndarray]


def layer_norm(weights: Weights, x: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Every vector less its mean, over its deviation, scaled and moved."""
    rows = [(row - row.mean()) / np.sqrt(row.var() + epsilon) for row in x.reshape(-1, x.shape[-1])]
    return np.stack(rows).reshape(x.shape) * weights["scale"] + weights.get("bias", 0)


def rms_norm(weights: Weights, x: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    """Every vector over the root of its mean square, scaled."""
    rows = [row / np.sqrt(row @ row / row.size + epsilon) for row in x.reshape(-1, x.shape[-1])]
    return np.stack(rows).reshape(x.shape) * weights["scale"]


def normed(kind: Kind, weights: Weights, x: np.ndarray) -> np.ndarray:
    """The norm of this kind over the last axis; a zero-centered scale is one less than the factor."""
    if kind.norm == "layer":
        return layer_norm(weights, x, kind.norm_epsilon)
    centered = {"scale": weights["scale"] + (1 if kind.norm == "rms_zero_centered" else 0)}
    return rms_norm(centered, x, kind.norm_epsilon)


def activated(name: str, x: np.ndarray) -> np.ndarray:
    """relu, gelu (x Phi(x), and its approximation), silu; of a gated kind the function of its gate."""
    match name:
        case "relu":
            return np.where(x > 0, x, 0)
        case "silu" | "swiglu":
            return x / (1 + np.exp(-x))
        case "quick_gelu":
            return x / (1 + np.exp(-1.702 * x))
        case "swiglu_clamped":
            bounded = np.where(x < 7, x, 7)
            return bounded / (1 + np.exp(-1.702 * bounded))
        case "gelu" | "geglu":
            return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        case "gelu_tanh" | "geglu_tanh":
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    raise KeyError(name)


def affine(weights: Weights, x: np.ndarray) -> np.ndarray:
    """The map x W + b, b where there is one."""
    return x @ weights["kernel"] + weights.get("bias", 0)


def feed_forward(weights: Weights, x: np.ndarray, activation: str = "relu") -> np.ndarray:
    """f(x W_1 + b_1) W_2 + b_2, or with a gate (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2.

    Of swiglu_clamped, x W_1 + b_1 is between -7 and 7, and one is added.
    """
    if activation == "swiglu_clamped":
        linear = 1 + np.minimum(np.maximum(affine(weights["expand"], x), -7), 7)
        return affine(weights["contract"], activated(activation, affine(weights["gate"], x)) * linear)
    if activation in ("swiglu", "geglu", "geglu_tanh"):
        return affine(
            weights["contract"], activated(activation, affine(weights["gate"], x)) * affine(weights["expand"], x)
        )
    return affine(weights["contract"], activated(activation, affine(weights["expand"], x)))


def waves(length: int, width: int, kind: str = "sinusoidal") -> np.ndarray:
    """Sines in the even columns, cosines in the odd ones; or all sines, then all cosines."""
    table = np.zeros((length, width))
    for position in range(length):
        for pair in range(width // 2):
            # The code of tensor2tensor reaches the last wavelength, the paper's equation does not.
            last = width // 2 - 1 if kind == "sinusoidal_tensor2tensor" else width / 2
            angle = position / 10000 ** (pair / last)
            columns = (2 * pair, 2 * pair + 1) if kind == "sinusoidal" else (pair, pair + width // 2)
            table[position, columns[0]], table[position, columns[1]] = np.sin(angle), np.cos(angle)
    return table


RELATIVE = ("alibi", "t5", "shaw", "transformer_xl", "disentangled")


def multi_head(
    weights: Weights,
    x: np.ndarray,
    memory: np.ndarray,
    facts: Facts,
    kind: Kind | None = None,
    table: np.ndarray | None = None,
    bidirectional: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Concat(heads) W_O of `B Q E` over a memory `B K E`, and its map `B H Q K`."""
    kind = Kind(positions="none") if kind is None else kind

    def projected(name: str, y: np.ndarray) -> np.ndarray:
        return np.einsum("bte,ehd->bthd", y, weights[name]["kernel"]) + weights[name].get("bias", 0)

    arrays = {"q": projected("query", x), "k": projected("key", memory), "v": projected("value", memory)}
    for name, norm in (("q", "query_norm"), ("k", "key_norm")):
        if kind.query_key_norm == "head":
            arrays[name] = normed(kind, weights[norm], arrays[name])
        elif kind.query_key_norm == "width":
            flat = arrays[name].reshape(*arrays[name].shape[:2], -1)
            arrays[name] = normed(kind, weights[norm]["norm"], flat).reshape(arrays[name].shape)
    if "sinks" in weights:
        arrays["sinks"] = weights["sinks"]
    position = kind.positions if kind.positions in RELATIVE else "none"
    if kind.positions in ("rotary", "rotary_halves"):
        for name in ("q", "k"):
            arrays[name] = turned(kind, arrays[name])
    relative, names = weights.get("relative", {}), {}
    if position == "t5":
        assert table is not None
        arrays["position.table_PxH"] = table
    elif position == "disentangled":
        assert table is not None
        arrays["position.keys_PxGxD"] = projected("key", table[None])[0]
        arrays["position.queries_PxHxD"] = projected("query", table[None])[0]
    elif position == "shaw":
        names = {"keys": "keys_PxD", "values": "values_PxD"}
    elif position == "transformer_xl":
        names = {"weight": "weight_ExHxD", "content": "content_HxD", "position": "position_HxD"}
    arrays |= {f"position.{name}": relative[ours] for ours, name in names.items()}
    if kind.score == "cosine":
        arrays["score.sharpening"] = np.exp(weights["score"]["log_sharpening"])[None, :, None]
    which = attention_equations.Kind(
        kind.score,
        position=position,
        scale=kind.attention_scale,
        bidirectional=bidirectional,
        max_distance=kind.relative_attention_max_distance,
        softcap=kind.attention_softcap,
    )
    answer = attention_equations.attention(which, arrays, facts)
    mixed = np.einsum("bqhd,hde->bqe", answer.output, weights["output"]["kernel"])
    return mixed + weights["output"].get("bias", 0), answer.weights


def turned(kind: Kind, x_BxTxHxD: np.ndarray) -> np.ndarray:
    """Queries or keys with rotary positions: the first features turn, the others stay."""
    length, depth = x_BxTxHxD.shape[1], x_BxTxHxD.shape[3]
    turning = round(depth * kind.rotary_fraction)
    frequencies = np.array([kind.rotary_base ** (-2 * pair / turning) for pair in range(turning // 2)])
    factor = 1.0
    if kind.rotary_scaling is not None:
        frequencies, factor = scaled_frequencies(
            kind.rotary_scaling, frequencies, kind.rotary_base, kind.text_length or length
        )
    place_Tx1 = np.arange(length)[:, None]
    moved = attention_equations.rotated(
        x_BxTxHxD[..., :turning], place_Tx1, kind.positions == "rotary_halves", frequencies=frequencies
    )
    return np.concatenate([factor * moved, x_BxTxHxD[..., turning:]], axis=-1)


def scaled_frequencies(scaling: Any, frequencies: np.ndarray, base: float, length: int) -> tuple[np.ndarray, float]:
    """The frequencies for longer contexts, one after the other, and the factor on what is turned."""
    context, factor, pairs = scaling.original_max_length, scaling.factor, len(frequencies)
    scaled, magnitude = np.array(frequencies), 1.0
    kind = scaling.kind.value
    stretched = base
    if kind == "dynamic" and length > context:
        stretched = base * (factor * length / context - (factor - 1)) ** (pairs / (pairs - 1))
    # The pair, counted from 0 and not whole, that turns so many times in the context of pre-training.
    fast, slow = (
        pairs * math.log(context / (2 * math.pi * turns)) / math.log(base) if context else 0.0
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, 2 * pairs - 1)
    for pair, frequency in enumerate(frequencies):
        wavelength = 2 * math.pi / frequency
        if kind == "linear":
            scaled[pair] = frequency / factor
        if kind == "dynamic":
            scaled[pair] = stretched ** (-pair / pairs)
        if kind == "llama3":
            if wavelength > context / scaling.low_frequency_factor:
                scaled[pair] = frequency / factor
            elif wavelength >= context / scaling.high_frequency_factor:
                smooth = context / wavelength - scaling.low_frequency_factor
                smooth /= scaling.high_frequency_factor - scaling.low_frequency_factor
                scaled[pair] = (1 - smooth) * frequency / factor + smooth * frequency
        if kind == "yarn":
            divided = min(max((pair - fast) / (slow - fast), 0), 1)
            scaled[pair] = divided * frequency / factor + (1 - divided) * frequency
        if kind == "longrope":
            scaled[pair] = frequency / (scaling.long_factors if length > context else scaling.short_factors)[pair]
    if kind == "yarn":
        magnitude = 0.1 * math.log(factor) + 1
    if kind == "longrope":
        magnitude = math.sqrt(1 + math.log(factor) / math.log(context))
    if kind in ("yarn", "longrope") and scaling.attention_factor is not None:
        magnitude = scaling.attention_factor
    return scaled, magnitude


class Stack(NamedTuple):
    """The blocks of one side of a model; `alpha` is deepnorm's."""

    kind: Kind
    causal: bool
    alpha: float
    table: np.ndarray | None

    def norm(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        """The norm of this kind."""
        return normed(self.kind, weights, x)

    def arranged(
        self,
        block: Weights,
        x: np.ndarray,
        sublayers: dict[str, Callable[[np.ndarray], tuple[np.ndarray, Any]]],
        index: int,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The sub-layers of block `index`, with norms and additions where the placement says."""
        found: dict[str, Any] = {}
        scales = {
            name: block.get(f"{name}_residual", {}).get("layer_scale", {"scale": 1})["scale"] for name in sublayers
        }
        factors = {name: self.kind.residual_multiplier * scale for name, scale in scales.items()}
        if self.kind.norm_placement.startswith("parallel"):
            first = x
            for name, function in sublayers.items():
                of = name if self.kind.norm_placement == "parallel_norms" else "attention"
                y, found[name] = function(self.norm(block[f"{of}_residual"]["norm"], first))
                x = x + factors[name] * y
            return x, found
        for name, function in sublayers.items():
            norms, times = block[f"{name}_residual"], factors[name]
            match self.kind.norm_placement:
                case "post":
                    y, found[name] = function(x)
                    x = self.norm(norms["norm"], x + times * y)
                case "deepnorm":
                    y, found[name] = function(x)
                    x = self.norm(norms["norm"], self.alpha * x + times * y)
                case "pre_normed_input" if index == 0 and name == "attention":
                    normed_input = self.norm(norms["norm"], x)
                    y, found[name] = function(normed_input)
                    x = normed_input + times * y
                case "pre" | "pre_normed_input":
                    y, found[name] = function(self.norm(norms["norm"], x))
                    x = x + times * y
                case "sandwich":
                    y, found[name] = function(self.norm(norms["norm"], x))
                    x = x + times * self.norm(norms["output_norm"], y)
                case "output":
                    y, found[name] = function(x)
                    x = x + times * self.norm(norms["norm"], y)
                case other:
                    raise KeyError(other)
        return x, found

    def run(
        self, stacked: Weights, x: np.ndarray, facts: Facts, memory: tuple[np.ndarray, Facts] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """All layers, and the maps of self-attention and of attention over the memory."""
        maps: dict[str, list[np.ndarray]] = {"attention": [], "cross": []}
        windows, plain = self.kind.attention_windows or (0,), self.kind._replace(positions="none")
        turns = {
            "global": self.kind,
            "local": self.kind._replace(rotary_base=self.kind.local_rotary_base, rotary_scaling=None),
            "none": plain,
        }
        pattern = self.kind.rotary_pattern or ("global",)
        blocks = layers_of(stacked)
        if self.kind.layer_groups is not None:
            # Layers one after the other are the same block.
            blocks = [blocks[index * len(blocks) // self.kind.layers] for index in range(self.kind.layers)]
        for index, block in enumerate(blocks):
            window, of_layer = windows[index % len(windows)], turns[pattern[index % len(pattern)]]
            here = facts | ({"causal": True} if self.causal else {})
            here |= {"window": (window, 0 if self.causal else window)} if window else {}
            sublayers = {
                "attention": lambda y, block=block, here=here, of_layer=of_layer: multi_head(
                    block["attention"], y, y, here, of_layer, self.table, not self.causal
                )
            }
            if memory is not None:
                sublayers["cross"] = lambda y, block=block: multi_head(block["cross"], y, memory[0], memory[1], plain)
            sublayers["feed_forward"] = lambda y, block=block: (
                feed_forward(block["feed_forward"], y, self.kind.activation),
                None,
            )
            x, found = self.arranged(block, x, sublayers, index)
            for name, seen in maps.items():
                if name in found:
                    seen.append(found[name])
        return x, {name: np.stack(found) for name, found in maps.items() if found}


def layers_of(stacked: Weights) -> list[Weights]:
    """One tree a layer from a tree whose arrays have a leading layer axis."""

    def count(tree: Any) -> int | None:
        if not isinstance(tree, dict):
            return len(tree)
        return next((found for item in tree.values() if (found := count(item)) is not None), None)

    def at(tree: Any, index: int) -> Any:
        return {name: at(item, index) for name, item in tree.items()} if isinstance(tree, dict) else tree[index]

    return [at(stacked, index) for index in range(count(stacked) or 0)]


def embedded(
    kind: Kind,
    weights: Weights,
    tokens: np.ndarray,
    places: np.ndarray,
    types: np.ndarray | None = None,
    side: str = "",
) -> np.ndarray:
    """Tokens, positions and types, and the norm behind them where there is one; of a side, if it has its own."""
    side = side if kind.side_embeddings == "separate" else ""
    places = places + kind.position_offset
    table = weights["embedding"]["table"]
    width = table.shape[1]
    x = table[tokens] * (math.sqrt(width) if kind.embedding_scale == "sqrt_width" else 1) * kind.embedding_multiplier
    place = None
    if kind.positions == "learned":
        place = weights[f"{side}positions"]["table"][places]
    if kind.positions.startswith("sinusoidal"):
        place = waves(int(places.max()) + 1, width, kind.positions)[places]
    if place is not None and "join" in weights:
        # One matrix for the token, one for its place.
        of_token, of_place = weights["join"]["kernel"][:width], weights["join"]["kernel"][width:]
        x = x @ of_token + place @ of_place
    elif place is not None:
        x = x + place
    if "types" in weights:
        x = x + weights["types"]["table"][np.zeros_like(tokens) if types is None else types]
    norm = f"{side}embedding_norm"
    x = normed(kind, weights[norm], x) if norm in weights else x
    return affine(weights["embedding_projection"], x) if "embedding_projection" in weights else x


def scored(kind: Kind, weights: Weights, x: np.ndarray) -> np.ndarray:
    """The logits of states."""
    matrix = weights["unembedding"]["kernel"] if "unembedding" in weights else weights["embedding"]["table"].T
    factor = 1 / math.sqrt(len(matrix)) if kind.logit_scale == "inverse_sqrt_width" else 1
    logits = kind.logit_multiplier * (x * factor @ matrix + weights.get("output_bias", {}).get("bias", 0))
    return logits if kind.logit_softcap is None else kind.logit_softcap * np.tanh(logits / kind.logit_softcap)


def closed(kind: Kind, weights: Weights, name: str, stack: Stack, x: np.ndarray) -> np.ndarray:
    """The states with the norm behind the last block, where the placement has one."""
    return x if kind.norm_placement in ("post", "deepnorm") else stack.norm(weights[name], x)


def _places(tokens: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)


def decoder(
    kind: Kind,
    weights: Weights,
    tokens: np.ndarray,
    *,
    lengths: np.ndarray | None = None,
    segments: np.ndarray | None = None,
    places: np.ndarray | None = None,
) -> Answer:
    """The decoder-only model."""
    lengths = np.full(len(tokens), tokens.shape[1]) if lengths is None else lengths
    facts = {"query_lengths": lengths, "key_lengths": lengths}
    facts |= {} if segments is None else {"segments": (segments, segments)}
    depth = len(layers_of(weights["layers"]))
    stack = Stack(kind, True, (2 * depth) ** (1 / 4), weights.get("relative", {}).get("table"))
    x = embedded(kind, weights, tokens, _places(tokens) if places is None else places)
    x, maps = stack.run(weights["layers"], x, facts)
    return Answer(scored(kind, weights, closed(kind, weights, "norm", stack, x)), {"decoder/self": maps["attention"]})


def encoder(
    kind: Kind, weights: Weights, tokens: np.ndarray, *, lengths: np.ndarray, types: np.ndarray | None = None
) -> tuple[Answer, np.ndarray, np.ndarray | None]:
    """The encoder-only model; its states behind the last block; and what its pooler gives."""
    depth = kind.layers
    stack = Stack(kind, False, (2 * depth) ** (1 / 4), weights.get("relative", {}).get("table"))
    x = embedded(kind, weights, tokens, _places(tokens), types)
    x, maps = stack.run(weights["layers"], x, {"query_lengths": lengths, "key_lengths": lengths})
    x = closed(kind, weights, "norm", stack, x)
    states, pooled = x, None
    of_text = x[:, 0]
    if kind.pooling == "mean":
        of_text = np.stack([row[:length].mean(0) for row, length in zip(x, lengths, strict=True)])

    def transformed(y: np.ndarray) -> np.ndarray:
        head = weights["head"]
        return stack.norm(head["norm"], activated(kind.activation, affine(head["transform"], y)))

    if "pooler" in weights:
        pooled = np.tanh(affine(weights["pooler"], of_text))
    elif kind.head_transform == "every":
        pooled = transformed(of_text)
    if "classes" in weights:
        x = transformed(x) if kind.head_transform == "every" else x
        x = affine(weights["classes"], x)
    elif "head" in weights:
        x = scored(kind, weights, transformed(x))
    return Answer(x, {"encoder/self": maps["attention"]}), states, pooled


def encoder_decoder(kind: Kind, weights: Weights, source: np.ndarray, target: np.ndarray, *, pad: int) -> Answer:
    """The encoder-decoder; padded places see nothing, and the first token of a target is never padding."""
    lengths = (source != pad).sum(1)
    target_lengths = 1 + (target[:, 1:] != pad).sum(1)
    encoders, decoders = len(layers_of(weights["encoder"])), len(layers_of(weights["decoder"]))
    reading = Stack(
        kind, False, 0.81 * (encoders**4 * decoders) ** (1 / 16), weights.get("encoder_relative", {}).get("table")
    )
    writing = Stack(kind, True, (3 * decoders) ** (1 / 4), weights.get("decoder_relative", {}).get("table"))
    memory = embedded(kind, weights, source, _places(source), side="source_")
    memory, read = reading.run(weights["encoder"], memory, {"query_lengths": lengths, "key_lengths": lengths})
    memory = closed(kind, weights, "encoder_norm", reading, memory)
    x = embedded(kind, weights, target, _places(target))
    x, written = writing.run(
        weights["decoder"],
        x,
        {"query_lengths": target_lengths, "key_lengths": target_lengths},
        (memory, {"query_lengths": target_lengths, "key_lengths": lengths}),
    )
    x = closed(kind, weights, "decoder_norm", writing, x)
    maps = {
        "encoder/self": read["attention"],
        "decoder/self": written["attention"],
        "decoder/cross": written["cross"],
    }
    return Answer(scored(kind, weights, x), maps)
