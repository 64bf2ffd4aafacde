"""A model whose next token depends on the whole prefix and the example, by a table: nothing to learn or to compute."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.oracles.decoding import NextToken, normalised
from transformer.decode.generate import Tokens
from transformer.models.contract import Cache

SPECIAL = Tokens(pad=0, begin=1, end=2)
BUCKETS = 509
# The prefix is kept twice, once in each part of the cache that beams re-order, mixed differently.
LAYER_MIX, ROW_MIX = 31, 17


@dataclasses.dataclass(frozen=True)
class TableModel:
    """logits(prefix) = table[example, hash_1(prefix)] + table[example, hash_2(prefix)]; the tables are the variables.

    `layers` carries hash_1 under a leading axis of two layers, `rows` carries hash_2.
    """

    def init_cache(self, variables: Any, inputs: Mapping[str, Any], *, beams: int, length: int) -> tuple[Cache, Any]:
        examples = inputs["source"].shape[0]
        empty = jnp.zeros(examples * beams, jnp.int32)
        layers = jnp.stack([empty, empty])
        return Cache(layers, {"hash": empty}, {"example": jnp.arange(examples)}), empty + SPECIAL.begin

    def step(self, variables: Any, cache: Cache, tokens_R: Any) -> tuple[Any, Cache]:
        layers = (cache.layers * LAYER_MIX + tokens_R + 1) % BUCKETS
        rows = (cache.rows["hash"] * ROW_MIX + tokens_R + 1) % BUCKETS
        example = jnp.repeat(cache.examples["example"], tokens_R.shape[0] // cache.examples["example"].shape[0])
        logits = variables[example, layers[1]] + variables[example, rows]
        return logits, Cache(layers, {"hash": rows}, cache.examples)


def random_table(seed: int, examples: int, vocabulary: int, more_ends: float = 0.0) -> np.ndarray:
    """The model's variables; `more_ends` makes the end token likelier."""
    table = np.random.default_rng(seed).normal(size=(examples, BUCKETS, vocabulary)).astype(np.float32)
    table[..., SPECIAL.end] += more_ends / 2
    return table


def next_token(table: np.ndarray, example: int) -> NextToken:
    """The same model as a function of the prefix alone."""

    def log_probability(prefix: tuple[int, ...]) -> np.ndarray:
        first = second = 0
        for token in (SPECIAL.begin, *prefix):
            first = (first * LAYER_MIX + token + 1) % BUCKETS
            second = (second * ROW_MIX + token + 1) % BUCKETS
        return normalised(table[example, first] + table[example, second], (SPECIAL.pad, SPECIAL.begin))

    return log_probability
