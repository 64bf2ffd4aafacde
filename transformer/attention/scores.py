"""Scores: how well every query fits every key, before any normalisation."""

import enum

import jax.numpy as jnp
from jaxtyping import Array, Float


class Score(enum.Enum):
    """A compatibility function of query and key."""

    DOT = "dot"
    SCALED_DOT = "scaled_dot"


def score(
    q_BxQxHxD: Float[Array, "B Q H D"], k_BxKxHxD: Float[Array, "B K H D"], kind: Score
) -> Float[Array, "B H Q K"]:
    """The logits of every head, in at least float32 whatever the inputs' type.

    dot: q . k (Luong et al. 2015, section 3.1). scaled_dot: q . k / sqrt(D) (Vaswani et al. 2017, section
    3.2.1, equation 1).
    """
    at_least_float32 = jnp.promote_types(q_BxQxHxD.dtype, jnp.float32)
    logits_BxHxQxK = jnp.einsum("bqhd,bkhd->bhqk", q_BxQxHxD, k_BxKxHxD, preferred_element_type=at_least_float32)
    match kind:
        case Score.DOT:
            return logits_BxHxQxK
        case Score.SCALED_DOT:
            return logits_BxHxQxK / jnp.sqrt(q_BxQxHxD.shape[-1]).astype(at_least_float32)
