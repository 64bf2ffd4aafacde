"""Losses of token predictions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class TokenLoss(NamedTuple):
    """Sums over the tokens that count."""

    smoothed: Float[Array, ""]
    cross_entropy: Float[Array, ""]
    correct: Float[Array, ""]


def token_loss(
    logits_BxTxV: Float[Array, "B T V"],
    labels_BxT: Int[Array, "B T"],
    counts_BxT: Bool[Array, "B T"],
    label_smoothing: float,
) -> TokenLoss:
    """Cross-entropy in nats against (1 - e) one_hot(label) + e / V (Szegedy et al. 2016, section 7), e the smoothing.

    Beside it the plain cross-entropy, and how many labels are the most probable token.
    """
    logits_BxTxV = logits_BxTxV.astype(jnp.promote_types(logits_BxTxV.dtype, jnp.float32))
    largest_BxT = jax.lax.stop_gradient(jnp.max(logits_BxTxV, axis=-1))
    exponentials_BxTxV = jnp.exp(logits_BxTxV - largest_BxT[..., None])
    normaliser_BxT = largest_BxT + jnp.log(jnp.sum(exponentials_BxTxV, axis=-1))
    label_logit_BxT = jnp.take_along_axis(logits_BxTxV, labels_BxT[..., None], axis=-1)[..., 0]
    plain_BxT = normaliser_BxT - label_logit_BxT
    uniform_BxT = normaliser_BxT - jnp.mean(logits_BxTxV, axis=-1)
    smoothed_BxT = (1 - label_smoothing) * plain_BxT + label_smoothing * uniform_BxT
    # Against the maximum that is there already: an argmax over the vocabulary is slow on CPUs.
    correct_BxT = label_logit_BxT >= largest_BxT
    smoothed, plain, correct = (
        jnp.sum(jnp.where(counts_BxT, value, 0)) for value in (smoothed_BxT, plain_BxT, correct_BxT)
    )
    return TokenLoss(smoothed, plain, correct.astype(plain.dtype))
