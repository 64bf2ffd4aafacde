"""The whole algebra of attention in NumPy float64, from the equations: every score, normalizer, position and mask.

Arrays come by name: q, k, v, bias, center, and the parameters of the score and of the positions by the names that
their papers' letters got, such as "score.weight_HxDxC" (q' W k) or "position.table_PxH".
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]


class Kind(NamedTuple):
    """Which attention. `noise`: of a sampler in training, `B H Q K`; without it the likeliest key is taken.

    `kept`: which weights dropout at the rate `dropout` leaves in training, `B H Q K`; without it all.
    `bidirectional` and `max_distance` are of T5's buckets. `softcap`: the bound c of c tanh(score / c).
    `modification`: another function of each score, its example, its head and the positions of its query and key.
    """

    score: str
    normalizer: str = "softmax"
    position: str = "none"
    gaussian: bool = False
    scale: float | None = None
    temperature: float = 1.0
    bidirectional: bool = True
    max_distance: int = 128
    in_buckets: bool = True
    noise: np.ndarray | None = None
    dropout: float = 0.0
    kept: np.ndarray | None = None
    softcap: float | None = None
    modification: Callable[..., np.ndarray] | None = None


class Answer(NamedTuple):
    """Logits, whether each key is seen, probabilities (before a draw) and weights (before dropout) `B H Q K`.

    The output: `B Q H D`.

    `log_prob`: of the key that a sampler chose, `B H Q`.
    """

    logits: np.ndarray
    seen: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray
    output: np.ndarray
    log_prob: np.ndarray


def attention(kind: Kind, arrays: Arrays, facts: Facts) -> Answer:
    """normalize((score + bias) / temperature) v over the keys that are seen; a row that sees none is zero."""
    arrays = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    position_BxQ = positions(facts, *arrays["q"].shape[:2])
    logits = scores(kind, arrays, position_BxQ)
    if kind.softcap is not None:
        logits = kind.softcap * np.tanh(logits / kind.softcap)
    if kind.modification is not None:
        changed = np.empty_like(logits)
        for b, h, q, k in np.ndindex(logits.shape):
            changed[b, h, q, k] = kind.modification(logits[b, h, q, k], b, h, position_BxQ[b, q], k)
        logits = changed
    logits = logits + relative_bias(kind, arrays, position_BxQ) + arrays.get("bias", 0.0)
    logits = logits / kind.temperature
    seen = np.broadcast_to(visible(facts, arrays, position_BxQ), logits.shape)
    probabilities, weights, log_prob = normalize(kind, logits, seen, arrays.get("sinks"))
    if kind.gaussian:
        # D of Luong et al. 2015: half of what the window spans.
        half_width = sum(facts["window"]) / 2
        distance = np.arange(logits.shape[-1]) - arrays["center"][..., None]
        weights = weights * np.exp(-(distance**2) / (2 * (half_width / 2) ** 2))
    output = read(arrays, dropped(kind, weights), position_BxQ)
    return Answer(logits, seen, probabilities, weights, output, log_prob)


def dropped(kind: Kind, weights: np.ndarray) -> np.ndarray:
    """W / (1 - p) where a weight is kept, else 0."""
    return weights if kind.kept is None else np.where(kind.kept, weights / (1 - kind.dropout), 0)


def loss(
    kind: Kind, arrays: Arrays, facts: Facts, output_weight: np.ndarray, log_prob_weight: np.ndarray
) -> Callable[[Arrays], float]:
    """Sum of the weighted output and log-probabilities as a function of arrays, to be differentiated at `arrays`.

    Straight-through: the sample stays as it was at `arrays`, and the probabilities move it.
    """
    here = attention(kind, arrays, facts)

    def at(moved: Arrays) -> float:
        answer = attention(kind, moved, facts)
        output = answer.output
        if kind.normalizer == "straight_through":
            weights = here.weights + answer.probabilities - here.probabilities
            output = read(moved, dropped(kind, weights), positions(facts, *output.shape[:2]))
        return float(np.sum(output_weight * output) + np.sum(log_prob_weight * answer.log_prob))

    return at


def positions(facts: Facts, batch: int, queries: int) -> np.ndarray:
    """The position of each query, `B Q`: its index behind the example's offset."""
    offset_B = facts.get("query_offset", np.zeros(batch, int))
    return np.asarray(offset_B)[:, None] + np.arange(queries)


def visible(facts: Facts, arrays: Arrays, position_BxQ: np.ndarray) -> np.ndarray:
    """Whether each query sees each key, `B 1 Q K` or `B H Q K`: all facts must admit it."""
    batch, queries = position_BxQ.shape
    query = np.arange(queries)[None, None, :, None]
    key = np.arange(arrays["k"].shape[1])[None, None, None, :]
    position = position_BxQ[:, None, :, None]

    def of_example(name: str) -> np.ndarray:
        return np.asarray(facts[name]).reshape(batch, 1, 1, 1)

    def of_both_sides(name: str) -> tuple[np.ndarray, np.ndarray]:
        of_query_BxQ, of_key_BxK = facts[name]
        return np.asarray(of_query_BxQ)[:, None, :, None], np.asarray(of_key_BxK)[:, None, None, :]

    seen = np.ones((batch, 1, queries, key.size), bool)
    if "causal" in facts:
        below_prefix = key < of_example("prefix") if "prefix" in facts else np.array(False)
        seen = seen & ((key <= position) | below_prefix)
    if "window" in facts:
        before, after = facts["window"]
        center = arrays["center"][..., None] if "center" in arrays else position
        seen = seen & (center - before <= key) & (key <= center + after)
    if "head_windows" in facts:
        before, after = (np.asarray(sizes)[None, :, None, None] for sizes in facts["head_windows"])
        seen = seen & (position - before <= key) & (key <= position + after)
    if "query_lengths" in facts:
        seen = seen & (query < of_example("query_lengths"))
    if "key_lengths" in facts:
        seen = seen & (key < of_example("key_lengths"))
    if "segments" in facts:
        of_query, of_key = of_both_sides("segments")
        seen = seen & (of_query == of_key)
    if "order" in facts:
        of_query, of_key = of_both_sides("order")
        seen = seen & (of_key < of_query)
    if "allowed" in facts:
        seen = seen & np.asarray(facts["allowed"])
    if "function" in facts:
        heads = arrays["q"].shape[2]
        seen = seen & facts["function"](
            np.arange(batch)[:, None, None, None], np.arange(heads)[None, :, None, None], position, key
        )
    return seen


def scores(kind: Kind, arrays: Arrays, position_BxQ: np.ndarray) -> np.ndarray:
    """How well each query fits each key, `B H Q K`, with what relative position adds to the product."""
    q_BxHxQxD = np.moveaxis(arrays["q"], 2, 1)
    heads, keys = q_BxHxQxD.shape[1], arrays["k"].shape[1]
    k_BxHxKxC = np.moveaxis(of_query_heads(arrays["k"], heads), 2, 1)
    if kind.position in ("rotary", "rotary_halves"):
        halves = kind.position == "rotary_halves"
        q_BxHxQxD = rotated(q_BxHxQxD, position_BxQ[:, None], halves)
        k_BxHxKxC = rotated(k_BxHxKxC, np.arange(keys)[None, None], halves)
    match kind.score:
        case "dot" | "scaled_dot":
            products = np.einsum("bhqd,bhkd->bhqk", q_BxHxQxD, k_BxHxKxC)
            products = products + relative_products(kind, arrays, q_BxHxQxD, k_BxHxKxC, position_BxQ)
            if kind.score == "dot":
                return products
            summed = 3 if kind.position == "disentangled" else 1
            return products * (1 / np.sqrt(summed * q_BxHxQxD.shape[-1]) if kind.scale is None else kind.scale)
        case "cosine":
            lengths = np.linalg.norm(q_BxHxQxD, axis=-1)[..., None] * np.linalg.norm(k_BxHxKxC, axis=-1)[:, :, None]
            cosine = np.einsum("bhqd,bhkd->bhqk", q_BxHxQxD, k_BxHxKxC) / lengths
            return arrays["score.sharpening"][..., None] * cosine
        case "squared_distance":
            squares = np.sum(q_BxHxQxD**2, axis=-1)[..., None] + np.sum(k_BxHxKxC**2, axis=-1)[:, :, None]
            distances = squares - 2 * np.einsum("bhqd,bhkd->bhqk", q_BxHxQxD, k_BxHxKxC)
            return -distances / (2 * arrays["score.bandwidth"][..., None] ** 2)
        case "general":
            return np.einsum("bhqd,hdc,bhkc->bhqk", q_BxHxQxD, arrays["score.weight_HxDxC"], k_BxHxKxC)
        case "additive":
            of_key = np.einsum("bhkc,hca->bhka", k_BxHxKxC, arrays["score.keys_HxCxA"])
            of_query = np.einsum("bhqd,hda->bhqa", q_BxHxQxD, arrays["score.queries_HxDxA"])
            hidden = np.tanh(of_key[:, :, None] + of_query[:, :, :, None])
            return np.einsum("bhqka,ha->bhqk", hidden, arrays["score.score_HxA"])
        case "concat" | "mlp":
            shape = (*q_BxHxQxD.shape[:3], keys)
            both_BxHxQxKxI = np.concatenate(
                [
                    np.broadcast_to(k_BxHxKxC[:, :, None], (*shape, k_BxHxKxC.shape[-1])),
                    np.broadcast_to(q_BxHxQxD[:, :, :, None], (*shape, q_BxHxQxD.shape[-1])),
                ],
                axis=-1,
            )
            hidden = np.einsum("bhqki,hia->bhqka", both_BxHxQxKxI, arrays["score.weight_HxIxA"])
            if kind.score == "concat":
                hidden = np.tanh(hidden)
            else:
                hidden = np.maximum(hidden + arrays["score.bias_HxA"][:, None, None], 0)
            return np.einsum("bhqka,ha->bhqk", hidden, arrays["score.score_HxA"])
        case "location":
            return np.einsum("bhqd,hdk->bhqk", q_BxHxQxD, arrays["score.weight_HxDxN"][:, :, :keys])
    raise KeyError(kind.score)


def of_query_heads(x_BxKxGxD: np.ndarray, heads: int) -> np.ndarray:
    """The key or value head that each query head reads: neighbors share one."""
    groups = x_BxKxGxD.shape[2]
    return np.stack([x_BxKxGxD[:, :, head * groups // heads] for head in range(heads)], axis=2)


def rotated(
    x: np.ndarray, position: np.ndarray, halves: bool, base: float = 10000.0, frequencies: np.ndarray | None = None
) -> np.ndarray:
    """Pair i of the features as a complex number times e^(i p base^(-2i / D)); pairs are neighbors or halves apart.

    With `frequencies` e^(i p f_i) instead.
    """
    depth = x.shape[-1]
    if frequencies is None:
        frequencies = base ** (-np.arange(0, depth, 2) / depth)
    turn = np.exp(1j * position[..., None] * frequencies)
    if halves:
        turned = (x[..., : depth // 2] + 1j * x[..., depth // 2 :]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def distances(position_BxQ: np.ndarray, keys: int) -> np.ndarray:
    """Key position minus query position, `B Q K`."""
    return np.arange(keys) - position_BxQ[..., None]


def relative_products(
    kind: Kind, arrays: Arrays, q_BxHxQxD: np.ndarray, k_BxHxKxD: np.ndarray, position_BxQ: np.ndarray
) -> np.ndarray | float:
    """What is added to q . k before it is scaled.

    Shaw: q_i . a_(clip(j - i)). Transformer-XL: q_i . W R_(i - j) + u . k_j + v . W R_(i - j).
    Disentangled: q_i . r_(i - j) + k_j . s_(i - j).
    """
    distance_BxQxK = distances(position_BxQ, k_BxHxKxD.shape[2])
    if kind.position == "shaw":
        embedded = of_distance(arrays["position.keys_PxD"], distance_BxQxK)
        return np.einsum("bhqd,bqkd->bhqk", q_BxHxQxD, embedded)
    if kind.position == "transformer_xl":
        weight_ExHxD = arrays["position.weight_ExHxD"]
        width = weight_ExHxD.shape[0]
        angle = -distance_BxQxK[..., None] * 10000.0 ** (-np.arange(0, width, 2) / width)
        wave_BxQxKxE = np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)
        projected = np.einsum("bqke,ehd->bhqkd", wave_BxQxKxE, weight_ExHxD)
        by_position = np.einsum("bhqd,bhqkd->bhqk", q_BxHxQxD, projected)
        of_content = np.einsum("hd,bhkd->bhk", arrays["position.content_HxD"], k_BxHxKxD)[:, :, None]
        return by_position + of_content + np.einsum("hd,bhqkd->bhqk", arrays["position.position_HxD"], projected)
    if kind.position == "disentangled":
        keys_PxHxD, queries_PxHxD = (arrays[f"position.{name}"] for name in ("keys_PxGxD", "queries_PxHxD"))
        keys_PxHxD = np.repeat(keys_PxHxD, q_BxHxQxD.shape[1] // keys_PxHxD.shape[1], axis=1)
        span = len(keys_PxHxD) // 2
        row_BxQxK = np.zeros_like(distance_BxQxK)
        for distance in np.unique(distance_BxQxK):
            bucket = deberta_bucket(-int(distance), span, kind.max_distance) if kind.in_buckets else -int(distance)
            row_BxQxK[distance_BxQxK == distance] = min(max(bucket, -span), span - 1) + span
        of_keys = np.einsum("bhqd,bqkhd->bhqk", q_BxHxQxD, keys_PxHxD[row_BxQxK])
        return of_keys + np.einsum("bhkd,bqkhd->bhqk", k_BxHxKxD, queries_PxHxD[row_BxQxK])
    return 0.0


def of_distance(table_PxD: np.ndarray, distance_BxQxK: np.ndarray) -> np.ndarray:
    """The embedding of each distance, those beyond -C ... C counting as the last of their side."""
    clip = table_PxD.shape[0] // 2
    return table_PxD[np.clip(distance_BxQxK, -clip, clip) + clip]


def relative_bias(kind: Kind, arrays: Arrays, position_BxQ: np.ndarray) -> np.ndarray | float:
    """What the positions alone add, `B H Q K`. ALiBi: -m_h |i - j|. T5: the table's entry of the bucket of j - i."""
    heads = arrays["q"].shape[2]
    distance_BxQxK = distances(position_BxQ, arrays["k"].shape[1])
    if kind.position == "alibi":
        return -np.array(slopes(heads))[:, None, None] * np.abs(distance_BxQxK)[:, None]
    if kind.position == "t5":
        table_PxH = arrays["position.table_PxH"]
        bucket_BxQxK = np.zeros_like(distance_BxQxK)
        for distance in np.unique(distance_BxQxK):
            bucket_BxQxK[distance_BxQxK == distance] = t5_bucket(int(distance), table_PxH.shape[0], kind)
        return np.moveaxis(table_PxH[bucket_BxQxK], -1, 1)
    return 0.0


def slopes(heads: int) -> list[float]:
    """ALiBi's: 2^(-8/H), 2^(-16/H) ...; between powers of two, as its authors' code fills up from the next power."""
    power = 2 ** int(np.log2(heads))
    if power == heads:
        return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]
    return slopes(power) + slopes(2 * power)[0::2][: heads - power]


def deberta_bucket(distance: int, buckets: int, max_distance: int) -> int:
    """DeBERTa's: the first half of a side hold one distance each, and those of the rest grow by a constant factor.

    The bucket m + n has the distances up to m ((M - 1) / m)^(n / (m - 1)), compared in whole numbers: by their power of
    m - 1.
    """
    middle, away = buckets // 2, abs(distance)
    if away <= middle:
        return distance
    power = middle - 1
    steps = next(n for n in itertools.count(1) if away**power * middle**n <= (max_distance - 1) ** n * middle**power)
    return (middle + steps) * (1 if distance > 0 else -1)


def t5_bucket(distance: int, buckets: int, kind: Kind) -> int:
    """T5's: in both directions half of the buckets are for keys behind the query, else such keys are at distance 0.

    Of a direction's buckets the first half hold one distance each. The edges of the others are
    exact (max_distance / exact)^(j / grown), compared in whole numbers: by their power of `grown`.
    """
    away, first = max(-distance, 0), 0
    if kind.bidirectional:
        buckets //= 2
        away, first = abs(distance), buckets if distance > 0 else 0
    exact = buckets // 2
    if away < exact:
        return first + away
    grown = buckets - exact
    passed = [away**grown >= exact ** (grown - j) * kind.max_distance**j for j in range(1, grown)]
    return first + exact + sum(passed)


def normalize(
    kind: Kind, logits: np.ndarray, seen: np.ndarray, sinks_H: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, weights and the log-probability of what a sampler chose."""
    log_prob = np.zeros(logits.shape[:-1])
    match kind.normalizer:
        case "softmax":
            weights = softmax(logits, seen, sinks_H)
            return weights, weights, log_prob
        case "sparsemax":
            weights = entmax(logits, seen, 2.0)
            return weights, weights, log_prob
        case "entmax15":
            weights = entmax(logits, seen, 1.5)
            return weights, weights, log_prob
    probabilities, weights = softmax(logits, seen), np.zeros_like(logits)
    noisy = np.where(seen, logits if kind.noise is None else logits + kind.noise, -np.inf)
    for row in zip(*np.nonzero(seen.any(axis=-1)), strict=True):
        chosen = np.argmax(noisy[row])
        weights[row][chosen] = 1
        log_prob[row] = np.log(probabilities[row][chosen])
    return probabilities, weights, log_prob


def softmax(logits: np.ndarray, seen: np.ndarray, sinks_H: np.ndarray | None = None) -> np.ndarray:
    """exp(s_k) / sum_j exp(s_j) over the keys that are seen and, where heads have one, the sink."""
    if sinks_H is not None:
        sink = np.broadcast_to(sinks_H[None, :, None, None], (*logits.shape[:3], 1))
        seen = np.concatenate([seen, seen.any(axis=-1, keepdims=True)], axis=-1)
        return softmax(np.concatenate([logits, sink], axis=-1), seen)[..., :-1]
    largest = np.where(seen, logits, logits.min()).max(axis=-1, keepdims=True)
    powers = np.exp(np.where(seen, logits - largest, -np.inf))
    return powers / np.where(seen.any(axis=-1), powers.sum(axis=-1), 1)[..., None]


def entmax(logits: np.ndarray, seen: np.ndarray, alpha: float) -> np.ndarray:
    """The weights max((alpha - 1) s - tau, 0)^(1 / (alpha - 1)), tau searched by bisection so that a row sums to one.

    alpha = 2 is sparsemax (Martins & Astudillo 2016), alpha = 1.5 1.5-entmax (Peters et al. 2019, equation 10).
    """
    some = seen.any(axis=-1, keepdims=True)
    scaled = (alpha - 1) * np.where(seen, logits, -np.inf)
    high = np.where(some, scaled.max(axis=-1, keepdims=True), 0)
    low = high - 1
    for _ in range(60):
        middle = (low + high) / 2
        total = np.sum(np.maximum(scaled - middle, 0) ** (1 / (alpha - 1)), axis=-1, keepdims=True)
        low, high = np.where(total >= 1, middle, low), np.where(total >= 1, high, middle)
    return np.maximum(scaled - low, 0) ** (1 / (alpha - 1))


def read(arrays: Arrays, weights: np.ndarray, position_BxQ: np.ndarray) -> np.ndarray:
    """o_i = sum_j w_ij v_j, with Shaw's table of values sum_j w_ij (v_j + a_(clip(j - i)))."""
    output = np.einsum("bhqk,bkhd->bqhd", weights, of_query_heads(arrays["v"], weights.shape[1]))
    if "position.values_PxD" in arrays:
        distance_BxQxK = distances(position_BxQ, weights.shape[-1])
        output = output + np.einsum(
            "bhqk,bqkd->bqhd", weights, of_distance(arrays["position.values_PxD"], distance_BxQxK)
        )
    return output


def statistics(answer: Answer, facts: Facts) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each statistic's mean `H` over the rows that count, and how many those are: rows that see the key in question."""
    weights = answer.weights
    batch, heads, queries, keys = weights.shape
    position_BxQ = positions(facts, batch, queries)
    first_BxQ = np.zeros((batch, queries), int)
    if "segments" in facts:
        of_query_BxQ, of_key_BxK = (np.asarray(part) for part in facts["segments"])
        first_BxQ = np.argmax(of_query_BxQ[:, :, None] == of_key_BxK[:, None], axis=-1)
    found = {name: np.zeros((batch, heads, queries)) for name in ("entropy", "largest_weight", "distance")}
    first_token, sees_first = np.zeros((batch, heads, queries)), np.zeros((batch, heads, queries), bool)
    for b, h, q in np.ndindex(batch, heads, queries):
        row = weights[b, h, q]
        found["entropy"][b, h, q] = -sum(weight * np.log(weight) for weight in row if weight > 0)
        found["largest_weight"][b, h, q] = row.max()
        found["distance"][b, h, q] = sum(row * np.abs(np.arange(keys) - position_BxQ[b, q]))
        first_token[b, h, q] = row[first_BxQ[b, q]]
        sees_first[b, h, q] = answer.seen[b, h, q, first_BxQ[b, q]]
    some = answer.seen.any(axis=-1)
    counted = {name: (value, some) for name, value in found.items()} | {"first_token": (first_token, sees_first)}
    return {
        name: (np.sum(value * rows, axis=(0, 2)) / np.maximum(rows.sum(axis=(0, 2)), 1), rows.sum(axis=(0, 2)))
        for name, (value, rows) in counted.items()
    }
