"""The cases of flash-attention's tests against its reference, as calls of `attend`, against their definition."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles.peer_attention import Arrays, Rule, check, random_arrays
from transformer.attention import (
    Alibi,
    AttentionParameters,
    AttentionPosition,
    AttentionSpec,
    Backend,
    Mask,
    Softcap,
    attend,
)

BATCH, HEADS, DEPTH = 2, 4, 8
LENGTHS = ((5, 9), (12, 12), (9, 5), (1, 9), (8, 9))
# (causal, window_size); both are aligned to the last query and the last key.
MASKS: dict[str, tuple[bool, tuple[int, int] | None]] = {
    "plain": (False, None),
    "causal": (True, None),
    "local": (False, (2, 1)),
    "causal local": (True, (3, 0)),
}
EXTRAS = ("none", "alibi", "softcap", "alibi softcap", "sinks")
KEY_HEADS = (2, 4, 1)
CAP = 1.5
CASES = list(itertools.product(LENGTHS, KEY_HEADS, MASKS, EXTRAS, (False, True)))


def lengths_of(padded: bool, queries: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of queries and of keys of each example."""
    if not padded:
        return np.full(BATCH, queries), np.full(BATCH, keys)
    return np.array([queries, max(queries - 2, 1)]), np.array([keys - 1, max(keys - 3, 1)])


BACKENDS = (Backend.EINSUM, Backend.BLOCKWISE)


def table() -> list[Any]:
    """Every case on both backends. Always run: each mask with each extra, full and padded, at one of two lengths."""
    cells = []
    for place, (lengths, groups, masked, extra, padded) in enumerate(CASES):
        row, column = list(MASKS).index(masked), EXTRAS.index(extra)
        for backend in BACKENDS:
            # Shapes that the other tables have too: to compile the operations of another takes seconds.
            common = groups == 2 and lengths == LENGTHS[(row + column + padded) % 2]
            often = common and BACKENDS[(row + column // 2) % 2] is backend
            name = f"{lengths}, {groups}, {masked}, {extra}, {'padded' if padded else 'full'}, {backend.value}"
            cells.append(pytest.param(place, backend, marks=() if often else (pytest.mark.slow,), id=name))
    return cells


@pytest.mark.parametrize(("place", "backend"), table())
def test_it_is_as_flash_attention_defines_it(place: int, backend: Backend) -> None:
    (queries, keys), groups, masked, extra, padded = CASES[place]
    causal, window = MASKS[masked]
    arrays = random_arrays(BATCH, queries, keys, HEADS, groups, DEPTH, DEPTH, seed=place)
    query_lengths, key_lengths = lengths_of(padded, queries, keys)
    if "alibi" in extra:
        arrays["slopes"] = np.random.default_rng(place).uniform(0.1, 0.6, HEADS).astype(np.float32)
    if extra == "sinks":
        arrays["sinks"] = np.random.default_rng(place).normal(size=HEADS).astype(np.float32)

    def from_the_end(b: int, i: int, j: int) -> int:
        """How far the key lies behind the query, when the last ones of both stand side by side."""
        return (j - int(key_lengths[b])) - (i - int(query_lengths[b]))

    def sees(b: int, h: int, i: int, j: int) -> bool:
        distance = from_the_end(b, i, j)
        inside = i < query_lengths[b] and j < key_lengths[b]
        in_window = window is None or -window[0] <= distance <= window[1]
        return bool(inside and in_window and not (causal and distance > 0))

    def logit(score: float, b: int, h: int, i: int, j: int, arrays: Arrays) -> float:
        capped = CAP * np.tanh(score / CAP) if "softcap" in extra else score
        return capped - (arrays["slopes"][h] * abs(from_the_end(b, i, j)) if "alibi" in extra else 0)

    offset = (key_lengths - query_lengths).astype(np.int32)
    mask = Mask(
        causal=causal,
        window=window,
        query_offset=jax.device_put(offset if padded else offset[:1]),
        query_lengths=jax.device_put(np.int32(query_lengths)) if padded else None,
        key_lengths=jax.device_put(np.int32(key_lengths)) if padded else None,
    )
    spec = AttentionSpec(
        position=AttentionPosition.ALIBI if "alibi" in extra else AttentionPosition.NONE,
        logit_modification=Softcap(CAP) if "softcap" in extra else None,
        backend=backend,
    )

    def call(x: Arrays) -> jax.Array:
        params = AttentionParameters(position=Alibi(x["slopes"]) if "slopes" in x else None, sinks_H=x.get("sinks"))
        return attend(x["q"], x["k"], x["v"], spec=spec, mask=mask, params=params)[0]

    with jax.disable_jit():
        check(call, Rule(sees, logit, sinks=extra == "sinks"), arrays)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.value)
def test_a_cache_with_lengths_and_left_padding(backend: Backend) -> None:
    """`flash_attn_with_kvcache`: `cache_seqlens` keys of each example are written, from `cache_leftpad` on."""
    queries, keys = 5, 9
    written, leftpad = np.array([6, 9]), np.array([0, 3])
    arrays = random_arrays(BATCH, queries, keys, HEADS, 2, DEPTH, DEPTH)
    mask = Mask(
        causal=True,
        query_offset=jax.device_put(np.int32(written - queries)),
        function=jax.tree_util.Partial(begins_at, jax.device_put(np.int32(leftpad))),
    )

    def sees(b: int, h: int, i: int, j: int) -> bool:
        return bool(leftpad[b] <= j <= written[b] - queries + i)

    spec = AttentionSpec(backend=backend)
    with jax.disable_jit():
        check(lambda x: attend(x["q"], x["k"], x["v"], spec=spec, mask=mask)[0], Rule(sees), arrays)


def begins_at(first_B: jax.Array, batch: jax.Array, head: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    return key >= first_B[batch]


@pytest.mark.slow
def test_cumulative_lengths_are_segments() -> None:
    """`flash_attn_varlen_func`: `cu_seqlens_q` and `cu_seqlens_k` of queries and keys of different lengths."""
    ends_q, ends_k = np.array([0, 3, 4, 7]), np.array([0, 2, 6, 9])
    segments = tuple(
        jnp.searchsorted(jnp.asarray(ends), jnp.arange(ends[-1]), side="right")[None] for ends in (ends_q, ends_k)
    )
    arrays = random_arrays(1, 7, 9, HEADS, 4, DEPTH, DEPTH)
    rows = [np.repeat(np.arange(3), np.diff(ends)) for ends in (ends_q, ends_k)]
    rule = Rule(sees=lambda b, h, i, j: bool(rows[0][i] == rows[1][j]))
    mask = Mask(segments=(segments[0], segments[1]))
    with jax.disable_jit():
        check(lambda x: attend(x["q"], x["k"], x["v"], mask=mask)[0], rule, arrays)
