"""A model whose next token depends on the whole prefix and the example, by a table: nothing to learn or to compute."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.oracles.decoding import NextToken, normalized, with_repetition_penalty
from transformer.decoding.constraints import Prompt
from transformer.decoding.generation import DecodedSequences, SpecialTokens, generate
from transformer.models.model import Aux, Cache

SPECIAL = SpecialTokens(pad_id=0, bos_id=1, eos_id=2)
BUCKETS = 509
# The prefix is kept twice, once in each part of the cache that beams re-order, mixed differently.
LAYER_MIX, ROW_MIX = 31, 17


@dataclasses.dataclass(frozen=True)
class TableModel:
    """logits(prefix) = table[example, hash_1(prefix)] + table[example, hash_2(prefix)]; the tables are the variables.

    `layers` carries hash_1 under a leading axis of two layers, `rows` carries hash_2. The inputs are a `source`, of
    which only the number of rows counts, or a prompt: `tokens` and `lengths`.
    """

    def init_cache(
        self, variables: Any, inputs: Mapping[str, Any], *, num_beams: int, length: int
    ) -> tuple[Cache, Any]:
        if "tokens" in inputs:
            return self.prefill(jnp.asarray(inputs["tokens"]), jnp.asarray(inputs["lengths"]), num_beams)
        examples = inputs["source"].shape[0]
        empty = jnp.zeros(examples * num_beams, jnp.int32)
        layers = jnp.stack([empty, empty])
        return Cache(layers, {"hash": empty}, {"example": jnp.arange(examples)}), empty + SPECIAL.bos_id

    def prefill(self, tokens_BxP: Any, lengths: Any, num_beams: int) -> tuple[Cache, Any]:
        """The hashes of all but each prompt's last token, which is the first step's."""
        examples, width = tokens_BxP.shape
        first = second = jnp.zeros(examples, jnp.int32)
        for place in range(width):
            inside = place < lengths - 1
            first = jnp.where(inside, (first * LAYER_MIX + tokens_BxP[:, place] + 1) % BUCKETS, first)
            second = jnp.where(inside, (second * ROW_MIX + tokens_BxP[:, place] + 1) % BUCKETS, second)
        last = tokens_BxP[jnp.arange(examples), lengths - 1]
        first, second, last = (jnp.repeat(one, num_beams) for one in (first, second, last))
        return Cache(jnp.stack([first, first]), {"hash": second}, {"example": jnp.arange(examples)}), last

    def step(
        self, variables: Any, cache: Cache, tokens_R: Any, *, key: Any = None, capture: Any = None
    ) -> tuple[Any, Cache, Aux]:
        layers = (cache.layers * LAYER_MIX + tokens_R + 1) % BUCKETS
        rows = (cache.rows["hash"] * ROW_MIX + tokens_R + 1) % BUCKETS
        example = jnp.repeat(cache.examples["example"], tokens_R.shape[0] // cache.examples["example"].shape[0])
        logits = variables[example, layers[1]] + variables[example, rows]
        return logits, Cache(layers, {"hash": rows}, cache.examples), Aux({}, {}, {})


def random_table(seed: int, examples: int, vocabulary: int, more_ends: float = 0.0) -> np.ndarray:
    """The model's variables; `more_ends` makes the end token likelier."""
    table = np.random.default_rng(seed).normal(size=(examples, BUCKETS, vocabulary)).astype(np.float32)
    table[..., SPECIAL.eos_id] += more_ends / 2
    return table


def next_token(
    table: np.ndarray,
    example: int,
    *,
    prompt: Sequence[int] = (SPECIAL.bos_id,),
    theta: float = 1.0,
    never: Sequence[int] = (SPECIAL.pad_id, SPECIAL.bos_id),
) -> NextToken:
    """The same model as a function of the prompt and the prefix alone; said tokens are penalized by theta."""

    def log_probability(prefix: tuple[int, ...]) -> np.ndarray:
        first = second = 0
        for token in (*prompt, *prefix):
            first = (first * LAYER_MIX + token + 1) % BUCKETS
            second = (second * ROW_MIX + token + 1) % BUCKETS
        logits = table[example, first] + table[example, second]
        return normalized(with_repetition_penalty(logits, (*prompt, *prefix), theta), never)

    return log_probability


def rollout_of(
    table: np.ndarray,
    strategy: Any,
    length: int,
    *,
    tokens: SpecialTokens = SPECIAL,
    prompt: Prompt | None = None,
    **rest: Any,
) -> DecodedSequences:
    """Decode behind a begin token, or behind the prompts of all examples."""
    inputs = {"source": np.zeros((len(table), 1), np.int32)} if prompt is None else prompt._asdict()
    rollout = decode(
        TOY, jnp.asarray(table), inputs, strategy=strategy, length=length, tokens=tokens, prompt=prompt, **rest
    )
    return jax.tree.map(np.asarray, rollout)


TOY: Any = TableModel()
decode = jax.jit(generate, static_argnames=("model", "strategy", "length", "tokens"))
