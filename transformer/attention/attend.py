"""The public stages of attention, and attend(), which composes them."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.attention.capture import Capture, Captured, capture_weights
from transformer.attention.masks import Mask, dense
from transformer.attention.normalise import softmax
from transformer.attention.scores import Score, score


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """What kind of attention is computed."""

    score: Score = Score.SCALED_DOT


def read(weights_BxHxQxK: Float[Array, "B H Q K"], v_BxKxHxD: Float[Array, "B K H D"]) -> Float[Array, "B Q H D"]:
    """The weighted sum of the values, o_q = sum_k w_qk v_k, in the values' type."""
    return jnp.einsum("bhqk,bkhd->bqhd", weights_BxHxQxK.astype(v_BxKxHxD.dtype), v_BxKxHxD)


def attend(
    q_BxQxHxD: Float[Array, "B Q H D"],
    k_BxKxHxD: Float[Array, "B K H D"],
    v_BxKxHxD: Float[Array, "B K H Dv"],
    *,
    spec: AttentionSpec,
    mask: Mask,
    capture: Capture | None = None,
) -> tuple[Float[Array, "B Q H Dv"], Captured | None]:
    """Attention(Q, K, V) = softmax(score(Q, K)) V (Vaswani et al. 2017, equation 1), and its map when asked for.

    The values may have a depth
    of their own. The softmax is at least float32. A query that may see no key gives exactly 0.
    """
    logits_BxHxQxK = score(q_BxQxHxD, k_BxKxHxD, spec.score)
    allowed = dense(mask, queries=q_BxQxHxD.shape[1], keys=k_BxKxHxD.shape[1])
    weights_BxHxQxK = softmax(logits_BxHxQxK, allowed)
    return read(weights_BxHxQxK, v_BxKxHxD), capture_weights(weights_BxHxQxK) if capture is not None else None
