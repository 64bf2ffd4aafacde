"""Sparse normalizers behind a score, at the compiler's lowest level, at which the tests compile, and at the users'.

At the lowest level the gradient of 1.5-entmax was wrong for all of 40 seeds: the support was found by comparing a logit
with a copy of itself, which the compiler had computed and rounded in another way.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention import Additive, AttentionParameters, AttentionSpec, Normalizer, Score, attend

SEEDS = 40
B, Q, K, D, A = 2, 5, 9, 4, 6
LEVELS = {"lowest": 0, "users": 3}
Arrays = tuple[np.ndarray, ...]


def arrays(seed: int) -> Arrays:
    """Queries, keys, values, the matrices of keys and queries and the vector of an additive score."""
    random = np.random.default_rng(seed)
    shapes = ((B, Q, 1, D), (B, K, 1, D), (B, K, 1, D), (1, D, A), (1, D, A), (1, A))
    return tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)


def entmax15(logits: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of 1.5-entmax by bisection, and the gradient of their product with `change` (Peters et al. 2019)."""
    half = logits / 2
    low, high = np.max(half, -1, keepdims=True) - 1, np.max(half, -1, keepdims=True)
    for _ in range(100):
        middle = (low + high) / 2
        many = np.sum(np.maximum(half - middle, 0) ** 2, -1, keepdims=True) > 1
        low, high = np.where(many, middle, low), np.where(many, high, middle)
    root = np.maximum(half - low, 0)
    mean = np.sum(root * change, -1, keepdims=True) / np.sum(root, -1, keepdims=True)
    return root**2, root * (change - mean)


def sparsemax(logits: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of sparsemax by bisection, and the gradient of their product with `change`."""
    low, high = np.max(logits, -1, keepdims=True) - 1, np.max(logits, -1, keepdims=True)
    for _ in range(100):
        middle = (low + high) / 2
        many = np.sum(np.maximum(logits - middle, 0), -1, keepdims=True) > 1
        low, high = np.where(many, middle, low), np.where(many, high, middle)
    weights = np.maximum(logits - low, 0)
    support = weights > 0
    mean = np.sum(support * change, -1, keepdims=True) / np.sum(support, -1, keepdims=True)
    return weights, support * (change - mean)


def expected(kind: Callable[..., Any], given: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The output, and the gradients of queries and keys, in float64."""
    q, k, v, of_keys, of_queries, vector = (each.astype(np.float64) for each in given)
    hidden = np.tanh((q[:, :, 0] @ of_queries[0])[:, :, None] + (k[:, :, 0] @ of_keys[0])[:, None])
    weights, _ = kind(hidden @ vector[0], np.zeros(1))
    output = weights @ v[:, :, 0]
    _, of_logits = kind(hidden @ vector[0], np.cos(output) @ np.swapaxes(v[:, :, 0], 1, 2))
    of_hidden = of_logits[..., None] * vector[0] * (1 - hidden**2)
    return output, of_hidden.sum(2) @ of_queries[0].T, of_hidden.sum(1) @ of_keys[0].T


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kind", "truth"), [(Normalizer.ENTMAX15, entmax15), (Normalizer.SPARSEMAX, sparsemax)])
def test_no_seed_has_a_wrong_gradient(kind: Normalizer, truth: Callable[..., Any], level: str) -> None:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array, *parts: jax.Array) -> tuple[jax.Array, jax.Array]:
        spec = AttentionSpec(Score.ADDITIVE, kind)
        output, _ = attend(q, k, v, spec=spec, params=AttentionParameters(Additive(*parts)))
        return jnp.sum(jnp.sin(output)), output

    compiled = (
        jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
        .lower(*arrays(0))
        .compile(compiler_options={"xla_backend_optimization_level": LEVELS[level]})
    )
    wrong = []
    for seed in range(SEEDS):
        (_, output), gradients = compiled(*arrays(seed))
        for name, one, other in zip("oqk", (output, *gradients), expected(truth, arrays(seed)), strict=True):
            if np.max(np.abs(one[:, :, 0] - other)) > (1e-5 if name == "o" else 2e-3 * np.max(np.abs(other))):
                wrong.append((seed, name))
    assert wrong == []
