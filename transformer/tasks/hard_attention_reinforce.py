"""REINFORCE for sampled (hard) attention (Xu et al. 2015, section 4.1)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.attention.sites import MapValues
from transformer.models.model import Aux, Model
from transformer.tasks.task import LossAux, StateView

DECAY = 0.9  # of the baseline, a moving average (Xu et al. 2015, section 4.1)


class HardAttentionConfig(Protocol):
    """The config of a task that trains sampled attention."""

    @property
    def reinforce_weight(self) -> float:
        """The weight of the loss of sampled attention."""

    @property
    def entropy_weight(self) -> float:
        """The weight of the entropy of sampled attention within this loss."""


class ReinforceEstimate(NamedTuple):
    """The estimate of one batch.

    Attributes:
        loss: A sum over the tokens that count, whose gradient estimates that of the expected loss.
        reward: The sum of the reward, in nats.
    """

    loss: Float[Array, ""]
    reward: Float[Array, ""]


def samples_attention(model: Model) -> bool:
    """Whether an attention module of the model samples the positions that it reads."""
    return any(site.values is MapValues.SAMPLE for site in model.sites)


def token_log_likelihood(logits_BxTxV: Float[Array, "B T V"], labels_BxT: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Compute log p of every label, in nats.

    Args:
        logits_BxTxV: The logits.
        labels_BxT: The labels.
    """
    log_BxTxV = jax.nn.log_softmax(logits_BxTxV.astype(jnp.promote_types(logits_BxTxV.dtype, jnp.float32)))
    return jnp.take_along_axis(log_BxTxV, labels_BxT[..., None], axis=-1)[..., 0]


def add_reinforce_loss(
    config: HardAttentionConfig,
    view: StateView,
    aux: Aux,
    metrics: Mapping[str, Float[Array, ""]],
    logits: Callable[[], Float[Array, "B T V"]],
    labels_BxT: Int[Array, "B T"],
    counts_BxT: Bool[Array, "B T"],
    num_tokens: Float[Array, ""],
) -> tuple[Array, LossAux]:
    """Add the loss of sampled attention to `metrics["loss"]`, if a model that samples is trained.

    Args:
        config: The weights.
        view: The state, with the baseline in its `task_state`.
        aux: The auxiliary results of the pass of the model.
        metrics: The metrics of the loss.
        logits: Computes the logits, which only this loss may need as a whole.
        labels_BxT: The true tokens.
        counts_BxT: Which tokens count.
        num_tokens: The number by which the sum over tokens is divided.

    Returns:
        The loss and its auxiliary results, with the updated baseline.
    """
    if not (view.train and "attention_log_prob" in aux.extras):
        return metrics["loss"], LossAux.from_aux(aux, view.task_state, metrics)
    baseline = view.task_state["baseline"]
    likelihood_BxT = token_log_likelihood(logits(), labels_BxT)
    estimate = estimate_reinforce_loss(likelihood_BxT, counts_BxT, aux.extras, baseline, config.entropy_weight)
    loss = metrics["loss"] + config.reinforce_weight * estimate.loss / num_tokens
    task_state = update_baseline(baseline, estimate, counts_BxT)
    return loss, LossAux.from_aux(aux, task_state, metrics, task_state_weight=jnp.sum(counts_BxT))


def estimate_reinforce_loss(
    log_likelihood_BxT: Float[Array, "B T"],
    counts_BxT: Bool[Array, "B T"],
    extras: Mapping[str, Array],
    baseline: Float[Array, ""],
    entropy_weight: float,
) -> ReinforceEstimate:
    """Compute -sum_t (R_t - b_t) log p(a_t) - w H_t over the tokens that count (Xu et al. 2015, equations 11 and 12).

    a_t is the sampled attention and H_t its entropy. R_t = sum_{u >= t} log p(y_u) is the reward of the words from t
    on, since a sample has no effect on earlier ones. b_t is the baseline: the usual reward of a word times the number
    of remaining words. Both are constants; the gradient flows through log p(a_t) and H_t alone, which are summed over
    heads.

    Args:
        log_likelihood_BxT: log p(y_t).
        counts_BxT: Which tokens count.
        extras: The model's `attention_log_prob` and `attention_entropy`, [B, T, heads].
        baseline: The usual reward of a word.
        entropy_weight: The weight w.
    """
    reward_BxT = jnp.where(counts_BxT, jax.lax.stop_gradient(log_likelihood_BxT), 0)
    advantage_BxT = _sum_from_each_step(reward_BxT - baseline * counts_BxT)
    log_prob_BxT = jnp.sum(extras["attention_log_prob"], axis=-1)
    entropy_BxT = jnp.sum(extras["attention_entropy"], axis=-1)
    objective_BxT = advantage_BxT * log_prob_BxT + entropy_weight * entropy_BxT
    return ReinforceEstimate(-jnp.sum(jnp.where(counts_BxT, objective_BxT, 0)), jnp.sum(reward_BxT))


def initial_baseline() -> dict[str, Any]:
    """Return the task's `task_state` before the first step: a baseline of 0."""
    return {"baseline": jnp.float32(0)}


def update_baseline(
    baseline: Float[Array, ""], estimate: ReinforceEstimate, counts_BxT: Bool[Array, "B T"]
) -> dict[str, Any]:
    """Update the moving average b <- 0.9 b + 0.1 times the batch's mean of log p(y) per word.

    Args:
        baseline: The baseline b.
        estimate: The estimate of the batch.
        counts_BxT: Which tokens count.

    Returns:
        The task's next `task_state`.
    """
    mean = estimate.reward / jnp.maximum(jnp.sum(counts_BxT), 1)
    # The mean may be wider, as in 64-bit mode; the state keeps its type.
    return {"baseline": DECAY * baseline + (1 - DECAY) * mean.astype(baseline.dtype)}


def _sum_from_each_step(x_BxT: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Return the sum of each position and all after it."""
    return jnp.flip(jnp.cumsum(jnp.flip(x_BxT, axis=1), axis=1), axis=1)
