"""The symmetric InfoNCE loss, and how well embeddings retrieve the other text of a pair from a pool."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class ContrastiveLoss(NamedTuple):
    """Sums over the pairs of a batch.

    Attributes:
        loss: The symmetric InfoNCE loss, in nats.
        correct: The number of texts whose own partner is the most similar one, halved: the mean of both directions.
    """

    loss: Float[Array, ""]
    correct: Float[Array, ""]


def symmetric_info_nce(
    source_BxE: Float[Array, "B E"], target_BxE: Float[Array, "B E"], temperature: float
) -> ContrastiveLoss:
    """Sum the InfoNCE loss of each pair, whose negatives are the other pairs of the batch.

    loss = -1/2 sum_i (log softmax_j(s_ij)_i + log softmax_j(s_ji)_i), s_ij = x_i . y_j / temperature (van den Oord et
    al. 2018, equation 4; both directions as in Radford et al. 2021, figure 3).

    Args:
        source_BxE: The embeddings x of the sources, of length one.
        target_BxE: The embeddings y of the targets, of length one.
        temperature: The temperature.

    Returns:
        The sums.
    """
    similarity_BxB = source_BxE @ target_BxE.T / temperature
    own = jnp.arange(len(similarity_BxB))
    total, correct = jnp.zeros(()), jnp.zeros(())
    for logits_BxB in (similarity_BxB, similarity_BxB.T):
        total -= jnp.sum(jnp.diagonal(jax.nn.log_softmax(logits_BxB, axis=-1))) / 2
        correct += jnp.sum(jnp.argmax(logits_BxB, axis=-1) == own) / 2
    return ContrastiveLoss(total, correct)


def retrieval_metrics(source_NxE: Float[np.ndarray, "N E"], target_NxE: Float[np.ndarray, "N E"]) -> dict[str, float]:
    """Measure how well each text retrieves its partner among the N texts of the other side.

    Texts are ranked by their product with the query. `accuracy` is the fraction of queries whose partner has rank 1,
    `mean_reciprocal_rank` the mean of 1 / rank. Equal products have their ranks in random order: both metrics are the
    expected values.

    Args:
        source_NxE: The embeddings of the sources, of length one.
        target_NxE: The embeddings of the targets, in the same order.

    Returns:
        Both metrics in both directions, as in "source_to_target/accuracy".
    """
    similarity_NxN = np.asarray(source_NxE, np.float64) @ np.asarray(target_NxE, np.float64).T
    metrics = {}
    for direction, scores_NxN in (("source_to_target", similarity_NxN), ("target_to_source", similarity_NxN.T)):
        own_Nx1 = np.diagonal(scores_NxN)[:, None]
        ahead_N = np.sum(scores_NxN > own_Nx1, axis=1)
        level_N = np.sum(scores_NxN == own_Nx1, axis=1)  # the partner is one of them
        reciprocals = np.concatenate([[0], np.cumsum(1 / np.arange(1, len(scores_NxN) + 1))])
        metrics[f"{direction}/accuracy"] = float(np.mean((ahead_N == 0) / level_N))
        metrics[f"{direction}/mean_reciprocal_rank"] = float(
            np.mean((reciprocals[ahead_N + level_N] - reciprocals[ahead_N]) / level_N)
        )
    return metrics
