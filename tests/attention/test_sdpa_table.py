"""The cases of torch's tests of scaled_dot_product_attention, as calls of `attend`, against their definition."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from tests.oracles.peer_attention import Arrays, Rule, check, random_arrays
from transformer.attention import AttentionSpec, Backend, Mask, attend

BATCH = 2
# Queries, keys, query heads, key heads, depth of queries and keys, depth of values.
SIZES = {
    "enable_gqa": (12, 12, 4, 2, 8, 8),
    "cross": (5, 9, 4, 2, 8, 8),
    "more queries than keys": (9, 5, 4, 4, 8, 8),
    "one query": (1, 9, 4, 4, 8, 8),
    "a key head for each": (6, 6, 4, 4, 8, 8),
    "one key head": (6, 6, 4, 1, 8, 8),
    "values of another depth": (6, 6, 4, 4, 8, 5),
    "odd depth": (6, 6, 4, 4, 7, 7),
    "no heads": (6, 6, 1, 1, 8, 8),
}
MASKS = (
    "none",
    "is_causal",
    "causal_lower_right",
    "bool L S",
    "bool N 1 L S",
    "bool N H L S",
    "bool with a row of False",
    "bool with an example of False",
    "float L S",
    "float N H L S",
    "float with minus infinity",
    "float of key padding",
)


def booleans(name: str, queries: int, keys: int, heads: int) -> np.ndarray:
    """The boolean `attn_mask` of this name, broadcast against [N, H, L, S]."""
    shape = {
        "bool L S": (1, 1, queries, keys),
        "bool N H L S": (BATCH, heads, queries, keys),
    }.get(name, (BATCH, 1, queries, keys))
    allowed = np.random.default_rng(1).random(shape) < 0.6
    if "row" in name:
        allowed[:, :, queries // 2] = False
    if "example" in name:
        allowed[1] = False
    return allowed


def floats(name: str, queries: int, keys: int, heads: int) -> np.ndarray:
    """The additive `attn_mask` of this name, broadcast against [N, H, L, S]."""
    random = np.random.default_rng(2)
    if name == "float of key padding":
        return np.where(np.arange(keys) < np.array([keys, keys - 2])[:, None], 0, -np.inf)[:, None, None]
    shape = (1, 1, queries, keys) if name == "float L S" else (BATCH, heads, queries, keys)
    added = random.normal(size=shape)
    if "infinity" in name:
        added[random.random(shape) < 0.4] = -np.inf
    return added


BACKENDS = (Backend.EINSUM, Backend.BLOCKWISE)


def table() -> list[Any]:
    """Every cell on both backends. Always run: each mask with the first two sizes, on one of the two."""
    cells = []
    for (row, sizes), (column, masked) in itertools.product(enumerate(SIZES), enumerate(MASKS)):
        for backend in BACKENDS:
            often = row < 2 and BACKENDS[(row + column) % 2] is backend
            marks = () if often else (pytest.mark.slow,)
            cells.append(pytest.param(sizes, masked, backend, marks=marks, id=f"{sizes}, {masked}, {backend.value}"))
    return cells


@pytest.mark.parametrize(("sizes", "masked", "backend"), table())
def test_it_is_as_torch_defines_it(sizes: str, masked: str, backend: Backend) -> None:
    queries, keys, heads, groups, *depths = SIZES[sizes]
    # Half of the masks have `scale=0.3`, on both backends.
    scale = 0.3 if (MASKS.index(masked) // 2 + list(SIZES).index(sizes)) % 2 else None
    spec = AttentionSpec(scale=scale, backend=backend)
    arrays = random_arrays(BATCH, queries, keys, heads, groups, *depths)
    rule, call = Rule(scale=scale), dict[str, Any]()
    if masked == "is_causal":
        call = {"mask": Mask(causal=True)}
        rule = rule._replace(sees=lambda b, h, i, j: j <= i)
    elif masked == "causal_lower_right":
        call = {"mask": Mask(causal=True, query_offset=jax.device_put(np.int32([keys - queries])))}
        rule = rule._replace(sees=lambda b, h, i, j: queries - i <= keys - j)
    elif masked.startswith("bool"):
        allowed = booleans(masked, queries, keys, heads)
        call = {"mask": Mask(allowed=jax.device_put(allowed))}
        full = np.broadcast_to(allowed, (BATCH, heads, queries, keys))
        rule = rule._replace(sees=lambda b, h, i, j: bool(full[b, h, i, j]))
    elif masked.startswith("float"):
        added = floats(masked, queries, keys, heads)
        finite = np.isfinite(added).all()
        if finite:
            arrays["bias"] = added.astype(np.float32)
        else:
            call = {"bias": jax.device_put(added.astype(np.float32))}

        def logit(score: float, b: int, h: int, i: int, j: int, arrays: Arrays) -> float:
            table = np.broadcast_to(arrays["bias"] if finite else added, (BATCH, heads, queries, keys))
            return score + table[b, h, i, j]

        rule = rule._replace(logit=logit)
    with jax.disable_jit():
        check(lambda x: attend(x["q"], x["k"], x["v"], spec=spec, **call, **bias_of(x))[0], rule, arrays)


def bias_of(arrays: Arrays) -> Arrays:
    return {"bias": arrays["bias"]} if "bias" in arrays else {}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.value)
def test_a_jagged_tensor_is_a_row_with_segments(backend: Backend) -> None:
    """Sequences of 3, 1 and 4 tokens in one row, as torch's nested tensors hold them, and as each alone."""
    text = np.repeat([0, 1, 2], [3, 1, 4])
    arrays = random_arrays(1, 8, 8, 2, 2, 8, 8)
    segments = jax.device_put(np.int32(text)[None])
    mask, spec = Mask(causal=True, segments=(segments, segments)), AttentionSpec(backend=backend)
    rule = Rule(sees=lambda b, h, i, j: bool(text[i] == text[j] and j <= i))
    with jax.disable_jit():
        check(lambda x: attend(x["q"], x["k"], x["v"], spec=spec, mask=mask)[0], rule, arrays)
