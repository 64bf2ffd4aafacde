"""Normalisers: from logits to weights over the keys."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def softmax(
    logits_BxHxQxK: Float[Array, "B H Q K"], allowed: Bool[Array, "#B #H #Q K"] | None = None
) -> Float[Array, "B H Q K"]:
    """Softmax over the allowed keys: w_k = exp(s_k) / sum_j exp(s_j).

    A key that is not allowed has weight and gradient exactly 0. A row without any allowed key is all zeros,
    with zero gradient, where a softmax over a large negative bias would average the padding.
    """
    if allowed is None:
        allowed = jnp.ones((1, 1, 1, logits_BxHxQxK.shape[-1]), bool)
    largest = jnp.max(logits_BxHxQxK, axis=-1, keepdims=True, where=allowed, initial=-jnp.inf)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0))
    # The inner select keeps a forbidden logit out of exp: an overflow there would turn 0 * inf into NaN.
    safe = jnp.where(allowed, logits_BxHxQxK - largest, 0)
    unnormalised = jnp.where(allowed, jnp.exp(safe), 0)
    total = jnp.sum(unnormalised, axis=-1, keepdims=True)
    return unnormalised / jnp.where(total > 0, total, 1)
