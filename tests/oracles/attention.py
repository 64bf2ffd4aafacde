"""Attention in NumPy float64, from the equations: what transformer.attention is compared with."""

from typing import NamedTuple

import numpy as np


class Answer(NamedTuple):
    """Everything about one attention: logits and weights `B H Q K`, output `B Q H D`."""

    logits: np.ndarray
    weights: np.ndarray
    output: np.ndarray


def visible(
    batch: int,
    queries: int,
    keys: int,
    *,
    causal: bool = False,
    query_offset: np.ndarray | None = None,
    key_lengths: np.ndarray | None = None,
) -> np.ndarray:
    """Which key each query may see, `B Q K`, decided one place at a time."""
    seen = np.ones((batch, queries, keys), bool)
    for b, q, k in np.ndindex(seen.shape):
        position = q if query_offset is None else q + query_offset[b]
        if causal and k > position:
            seen[b, q, k] = False
        if key_lengths is not None and k >= key_lengths[b]:
            seen[b, q, k] = False
    return seen


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scaled: bool,
    seen_BxQxK: np.ndarray,
    bias: np.ndarray | float = 0.0,
    temperature: float = 1.0,
) -> Answer:
    """softmax((q k^T + bias) / temperature) v over the visible keys; no visible key gives zeros.

    The products are divided by sqrt(D) if `scaled`.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    logits = np.einsum("bqhd,bkhd->bhqk", q, k)
    if scaled:
        logits = logits / np.sqrt(q.shape[-1])
    logits = (logits + bias) / temperature
    weights = np.zeros_like(logits)
    for b, h, i in np.ndindex(logits.shape[:3]):
        seen = seen_BxQxK[b, i]
        if seen.any():
            powers = np.exp(logits[b, h, i, seen] - logits[b, h, i, seen].max())
            weights[b, h, i, seen] = powers / powers.sum()
    return Answer(logits, weights, np.einsum("bhqk,bkhd->bqhd", weights, v))


def gradients(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cotangent: np.ndarray,
    *,
    scaled: bool,
    seen_BxQxK: np.ndarray,
    bias: np.ndarray | float = 0.0,
    temperature: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of sum(cotangent * output) with respect to q, k and v.

    By hand: dV = W^T dO, dW = dO V^T, dS = W (dW - rowsum(W dW)) / temperature, dQ = dS K, dK = dS^T Q.
    """
    q, k, v, cotangent = (np.asarray(x, np.float64) for x in (q, k, v, cotangent))
    terms = {"bias": bias, "temperature": temperature}
    weights = attention(q, k, v, scaled=scaled, seen_BxQxK=seen_BxQxK, **terms).weights
    of_v = np.einsum("bhqk,bqhd->bkhd", weights, cotangent)
    of_weights = np.einsum("bqhd,bkhd->bhqk", cotangent, v)
    of_logits = weights * (of_weights - np.sum(weights * of_weights, axis=-1, keepdims=True)) / temperature
    if scaled:
        of_logits = of_logits / np.sqrt(q.shape[-1])
    return (
        np.einsum("bhqk,bkhd->bqhd", of_logits, k),
        np.einsum("bhqk,bqhd->bkhd", of_logits, q),
        of_v,
    )
