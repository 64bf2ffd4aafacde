"""Cells of the support table: arrays and facts for each combination, and attend() and the oracle called with them."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from docs.backend_support_page import all_variants, table_masks
from tests.oracles import attention_equations
from transformer.attention.api import AttentionAux, attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.backends import BACKENDS, AttentionVariant, unsupported_reason
from transformer.attention.capture import Capture
from transformer.attention.logit_modification import Softcap
from transformer.attention.masks import Mask
from transformer.attention.normalizers import Reweighting
from transformer.attention.positions import SCHEMES, AttentionPosition
from transformer.attention.scores import SCORES, Score
from transformer.attention.statistics import DISTANCE, ENTROPY, FIRST_TOKEN, LARGEST_WEIGHT

LONGEST = 5
# A multiple of the 1 / 65,536 to which a rate is realized.
DROPOUT = 0.375
STATISTICS = (ENTROPY, LARGEST_WEIGHT, FIRST_TOKEN, DISTANCE)


def tilted(logits: Any, batch: Any, head: Any, query: Any, key: Any, /) -> Any:
    """A function of logits and places that no two examples, heads, queries or keys have alike."""
    return logits / (1 + 0.25 * head + 0.1 * batch) + 0.03 * logits * logits - 0.05 * (query - 2 * key)


def leaves_out_fifths(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A function of places that hides some keys of every query, of each example and head others."""
    return (batch + 2 * head + 3 * query + 2 * key) % 5 < 3


STATIC_FACTS = ("causal", "window", "function")
# Of each kind of modification the one that is tried. Many logits are larger than the bound, none so much that two tie.
MODIFICATIONS: dict[str, Any] = {"softcap": Softcap(2.0), "logit_modification": tilted}


class Cell(NamedTuple):
    """One cell of the table."""

    backend: Backend
    combination: AttentionVariant

    def __str__(self) -> str:
        return f"backend={self.backend.value}: {self.combination}"


class Sizes(NamedTuple):
    """Batch, lengths, heads of queries and of keys, and the depth of a head."""

    batch: int = 2
    queries: int = 5
    keys: int = 6
    heads: int = 6
    groups: int = 2
    depth: int = 4


TINY = Sizes()
# Splash works in blocks of 128.
LONG = Sizes(batch=2, queries=128, keys=128, heads=2, groups=1)


def sizes_of(backend: Backend) -> Sizes:
    return LONG if backend is Backend.SPLASH else TINY


@functools.cache
def supported() -> tuple[Cell, ...]:
    """Every cell that some backend takes."""
    every = ((backend, one) for one in all_variants() for backend in BACKENDS)
    return tuple(Cell(*pair) for pair in every if unsupported_reason(*pair) is None)


def arrays_of(combination: AttentionVariant, sizes: Sizes) -> attention_equations.Arrays:
    """All that has a gradient, by name, as float32."""
    random = np.random.default_rng(0)
    batch, queries, keys, heads, groups, depth = sizes
    key_depth, inner, clip = depth, 3, 2
    if combination.score in (Score.GENERAL, Score.ADDITIVE, Score.CONCAT, Score.MLP):
        key_depth = 3
    shapes: dict[str, tuple[int, ...]] = {
        "q": (batch, queries, heads, depth),
        "k": (batch, keys, groups, key_depth),
        "v": (batch, keys, groups, depth),
    }
    shapes |= {
        Score.GENERAL: {"score.weight_HxDxC": (heads, depth, key_depth)},
        Score.ADDITIVE: {
            "score.keys_HxCxA": (heads, key_depth, inner),
            "score.queries_HxDxA": (heads, depth, inner),
            "score.score_HxA": (heads, inner),
        },
        Score.CONCAT: {
            "score.weight_HxIxA": (heads, key_depth + depth, inner),
            "score.score_HxA": (heads, inner),
        },
        Score.MLP: {
            "score.weight_HxIxA": (heads, key_depth + depth, inner),
            "score.bias_HxA": (heads, inner),
            "score.score_HxA": (heads, inner),
        },
        Score.LOCATION: {"score.weight_HxDxN": (heads, depth, keys + 2)},
    }.get(combination.score, {})
    shapes |= {
        AttentionPosition.T5: {"position.table_PxH": (8, heads)},
        AttentionPosition.SHAW: {
            "position.keys_PxD": (2 * clip + 1, depth),
            "position.values_PxD": (2 * clip + 1, depth),
        },
        AttentionPosition.DISENTANGLED: {
            "position.keys_PxGxD": (8, groups, depth),
            "position.queries_PxHxD": (8, heads, depth),
        },
        AttentionPosition.TRANSFORMER_XL: {
            "position.weight_ExHxD": (6, heads, depth),
            "position.content_HxD": (heads, depth),
            "position.position_HxD": (heads, depth),
        },
    }.get(combination.position, {})
    if "bias" in combination.features:
        shapes["bias"] = (1, heads, queries, keys)
    if "sinks" in combination.features:
        shapes["sinks"] = (heads,)
    found = {name: random.normal(size=shape) for name, shape in shapes.items()}
    if combination.score is Score.COSINE:
        found["score.sharpening"] = random.uniform(0.5, 3, (batch, heads, queries))
    if combination.score is Score.SQUARED_DISTANCE:
        found["score.bandwidth"] = random.uniform(1, 3, (batch, heads, queries))
    if "center" in combination.features:
        found["center"] = random.uniform(0, keys - 1, (batch, heads, queries))
    return {name: array.astype(np.float32) for name, array in found.items()}


def facts_of(combination: AttentionVariant, sizes: Sizes) -> attention_equations.Facts:
    """What the mask says, but for the center, of two examples that differ; some rows see no key."""
    random = np.random.default_rng(1)
    batch, queries, keys, heads, *_ = sizes
    query, key = np.arange(queries), np.arange(keys)
    order = np.stack([random.permutation(max(queries, keys)) for _ in range(batch)])
    allowed = random.random((batch, 1, queries, keys)) < 0.6
    allowed[0, :, 1] = False
    facts = {
        "causal": True,
        "window": (2, 1),
        "head_windows": (np.arange(heads) % 4, np.arange(heads) % 3),
        "query_offset": np.array([1, 3]),
        "query_lengths": np.array([queries, queries // 2]),
        "key_lengths": np.array([keys - 1, keys // 3]),
        "prefix": np.array([keys - 2, 0]),
        # Three segments of queries, two of keys; the other example the other way round.
        "segments": (
            np.stack([query * 3 // queries, query * 2 // queries]),
            np.stack([key * 2 // keys, key * 3 // keys]),
        ),
        "order": (order[:, :queries], order[:, :keys]),
        "allowed": allowed,
        "function": leaves_out_fifths,
    }
    return {name: fact for name, fact in facts.items() if name in combination.features}


def last_query(
    arrays: attention_equations.Arrays, facts: attention_equations.Facts
) -> tuple[attention_equations.Arrays, attention_equations.Facts]:
    """The same attention for the last query alone, as a decoder with a cache asks for it."""
    batch, queries = arrays["q"].shape[:2]
    arrays, facts = dict(arrays), dict(facts)
    facts["query_offset"] = facts.get("query_offset", np.zeros(batch, int)) + queries - 1
    arrays["q"] = arrays["q"][:, -1:]
    for name in ("bias", "score.sharpening", "score.bandwidth"):
        if name in arrays:
            arrays[name] = arrays[name][:, :, -1:]
    if "segments" in facts:
        of_query, of_key = facts["segments"]
        facts["segments"] = (of_query[:, -1:], of_key)
    return arrays, facts


def kind_of(combination: AttentionVariant) -> attention_equations.Kind:
    """The combination in the oracle's words, in evaluation."""
    spec = spec_of(Cell(Backend.EINSUM, combination))
    return attention_equations.Kind(
        combination.score.value,
        combination.normalizer.value,
        combination.position.value,
        gaussian=combination.reweighting is Reweighting.GAUSSIAN,
        scale=spec.scale,
        temperature=spec.temperature,
        bidirectional="causal" not in combination.features,
        max_distance=LONGEST,
        dropout=spec.dropout,
        softcap=MODIFICATIONS["softcap"].cap if "softcap" in combination.features else None,
        modification=tilted if "logit_modification" in combination.features else None,
    )


def spec_of(cell: Cell) -> AttentionSpec:
    """Every second mask goes with a scale and a temperature that are not the defaults."""
    combination = cell.combination
    plain = table_masks().index(combination.features) % 2 == 0
    return AttentionSpec(
        combination.score,
        combination.normalizer,
        combination.reweighting,
        combination.position,
        cell.backend,
        scale=None if plain or combination.score is not Score.SCALED_DOT else 0.7,
        temperature=1.0 if plain else 0.8,
        logit_modification=next((MODIFICATIONS[name] for name in MODIFICATIONS.keys() & combination.features), None),
        dropout=DROPOUT if "dropout" in combination.features else 0.0,
    )


def parameters_of(combination: AttentionVariant, arrays: attention_equations.Arrays) -> AttentionParameters:
    def of(role: str) -> dict[str, Any]:
        return {name.removeprefix(role): array for name, array in arrays.items() if name.startswith(role)}

    of_score, of_position = of("score."), of("position.")
    if combination.position is AttentionPosition.T5:
        of_position |= {"bidirectional": "causal" not in combination.features, "max_distance": LONGEST}
    if combination.position is AttentionPosition.DISENTANGLED:
        of_position |= {"max_distance": LONGEST}
    return AttentionParameters(
        SCORES[combination.score](**of_score) if of_score else None,
        SCHEMES[combination.position](**of_position) if of_position else None,
        arrays.get("sinks"),
    )


def mask_of(facts: attention_equations.Facts) -> Mask:
    # Not jnp.asarray, which compiles a program for each shape and type.
    arrays = {name: jax.device_put(fact) for name, fact in facts.items() if name not in STATIC_FACTS}
    return Mask(causal="causal" in facts, window=facts.get("window"), function=facts.get("function"), **arrays)


def call(cell: Cell, arrays: Any, mask: Mask, **options: Any) -> tuple[jax.Array, AttentionAux]:
    """The cell by attend()."""
    if "center" in arrays:
        mask = dataclasses.replace(mask, center=arrays["center"])
    return attend(
        *(arrays[name] for name in ("q", "k", "v")),
        spec=spec_of(cell),
        mask=mask,
        bias=arrays.get("bias"),
        params=parameters_of(cell.combination, arrays),
        **options,
    )


def request(sizes: Sizes) -> Capture:
    """Some rows of some heads, and statistics of all."""
    return Capture(("here",), heads=(0, sizes.heads - 1), rows=(sizes.queries - 1, 1), statistics=STATISTICS)
