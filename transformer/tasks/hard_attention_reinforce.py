"""REINFORCE for attention that draws: what a draw was worth, against what is usual."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.sites import MapValues
from transformer.models.model import Model

DECAY = 0.9  # of the moving average of what is usual (Xu et al. 2015, section 4.1)


class ReinforceEstimate(NamedTuple):
    """A sum over the tokens that count, whose gradient is that of the expected loss; and the reward's sum."""

    loss: Float[Array, ""]
    reward: Float[Array, ""]


def samples_attention(model: Model) -> bool:
    """Whether an attention of the model draws what it reads."""
    return any(site.values is MapValues.SAMPLE for site in model.sites)


def token_log_likelihood(logits_BxTxV: Float[Array, "B T V"], labels_BxT: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Log p of every label, in nats."""
    log_BxTxV = jax.nn.log_softmax(logits_BxTxV.astype(jnp.promote_types(logits_BxTxV.dtype, jnp.float32)))
    return jnp.take_along_axis(log_BxTxV, labels_BxT[..., None], axis=-1)[..., 0]


def reinforce(
    log_likelihood_BxT: Float[Array, "B T"],
    counts_BxT: Bool[Array, "B T"],
    extras: Mapping[str, Array],
    baseline: Float[Array, ""],
    entropy_weight: float,
) -> ReinforceEstimate:
    """-sum_t (R_t - b_t) log p(draw_t) - w H_t, of the tokens that count (Xu et al. 2015, equations 11 and 12).

    R_t = sum_{u >= t} log p(y_u) is what the words from t on were worth, since a draw has no effect on those before;
    b_t is the `baseline`, what a word is usually worth, times their number. Both are taken as given: the gradient goes
    through the log-probability of the draw and its entropy H alone, `extras` of the model, added up over heads.
    """
    worth_BxT = jnp.where(counts_BxT, jax.lax.stop_gradient(log_likelihood_BxT), 0)
    advantage_BxT = _from_here_on(worth_BxT - baseline * counts_BxT)
    log_prob_BxT = jnp.sum(extras["attention_log_prob"], axis=-1)
    entropy_BxT = jnp.sum(extras["attention_entropy"], axis=-1)
    each_BxT = advantage_BxT * log_prob_BxT + entropy_weight * entropy_BxT
    return ReinforceEstimate(-jnp.sum(jnp.where(counts_BxT, each_BxT, 0)), jnp.sum(worth_BxT))


def initial_baseline() -> dict[str, Any]:
    """What the task carries from step to step."""
    return {"baseline": jnp.float32(0)}


def next_baseline(
    baseline: Float[Array, ""], estimate: ReinforceEstimate, counts_BxT: Bool[Array, "B T"]
) -> dict[str, Any]:
    """B <- 0.9 b + 0.1 times the batch's mean of log p(y) a word."""
    mean = estimate.reward / jnp.maximum(jnp.sum(counts_BxT), 1)
    return {"baseline": DECAY * baseline + (1 - DECAY) * mean}


def _from_here_on(x_BxT: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """The sum of each position and all behind it."""
    return jnp.flip(jnp.cumsum(jnp.flip(x_BxT, axis=1), axis=1), axis=1)
