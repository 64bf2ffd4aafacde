"""Speech recognition metrics: character error rate, exact match, and monotonicity of attention."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from transformer.tasks.attention_mass import head_with_most_mass
from transformer.tasks.string_metrics import string_report
from transformer.tasks.task import EvaluationReport

HEARD = ("target", "frames")
"""The axes of maps of what is said, symbol by symbol, over the frames of a sound."""


def transcript_report(outputs: Sequence[str], references: Sequence[str], *, num_samples: int) -> EvaluationReport:
    """Report `character_error_rate` (edits over reference characters) and `exact_match` of transcripts.

    Args:
        outputs: The transcripts.
        references: The true transcripts.
        num_samples: The number of transcripts to include as samples.

    Returns:
        The report.
    """
    report = string_report(outputs, references, num_samples=num_samples)
    scalars = report.scalars
    rate = 1 - scalars["character_accuracy"]
    return report._replace(scalars={"character_error_rate": rate, "exact_match": scalars["exact_match"]})


def spearman(x: Shaped[Array, "*B T"], y: Shaped[Array, "*B T"], real: Bool[Array, "*B T"]) -> Float[Array, "*B"]:
    """Compute Spearman's rank correlation of the real pairs of each row.

    Args:
        x: One side.
        y: The other side.
        real: Which pairs count.

    Returns:
        The correlations; 0 if a side is constant.
    """
    ranks = _centered_ranks(x, real), _centered_ranks(y, real)
    covariance, x_variance, y_variance = (
        jnp.sum(a * b, axis=-1) for a, b in ((ranks), (ranks[0],) * 2, (ranks[1],) * 2)
    )
    spread = jnp.sqrt(x_variance * y_variance)
    return jnp.where(spread > 0, covariance / jnp.where(spread > 0, spread, 1), 0)


def _centered_ranks(values: Shaped[Array, "*B T"], real: Bool[Array, "*B T"]) -> Float[Array, "*B T"]:
    """Return the ranks of the real values minus their mean; 0 for the others."""
    own, compared = values[..., :, None], values[..., None, :]
    beneath = (compared < own) + 0.5 * (compared == own)
    rank = jnp.sum(jnp.where(real[..., None, :], beneath, 0), axis=-1)
    count = jnp.maximum(jnp.sum(real, axis=-1, keepdims=True), 1)
    mean = jnp.sum(jnp.where(real, rank, 0), axis=-1, keepdims=True) / count
    return jnp.where(real, rank - mean, 0)


def monotonicity(weights_LxBxHxTxK: Float[Array, "L B H T K"], real_BxT: Bool[Array, "B T"]) -> Float[Array, "L H"]:
    """Sum over examples Spearman's correlation of the step's index and the frame that it attends to most.

    Args:
        weights_LxBxHxTxK: The weights [layer, example, head, step, frame].
        real_BxT: Which steps count.

    Returns:
        The sum [layer, head].
    """
    most_LxBxHxT = jnp.argmax(weights_LxBxHxTxK, axis=-1)
    steps = jnp.broadcast_to(jnp.arange(most_LxBxHxT.shape[-1]), most_LxBxHxT.shape)
    real = jnp.broadcast_to(real_BxT[None, :, None], most_LxBxHxT.shape)
    return jnp.sum(spearman(steps, most_LxBxHxT, real), axis=1)


ALL, FIRST = "all/", "first/"


def monotonicity_report(sums: Mapping[str, np.ndarray], rows: object) -> EvaluationReport:
    """Report `spearman` over letters (mean over examples), of the head where it is largest.

    `spearman_with_spaces` is over all symbols, with spaces, which have no sound. `spearman_of_first_letters` is over
    the first letter of each digit: the others can be spelled without listening again.
    """
    total, site, layer, head = head_with_most_mass(sums)
    count = max(float(sums["examples"]), 1)
    prefixes = {"spearman_with_spaces": ALL, "spearman_of_first_letters": FIRST}
    scalars = {name: float(sums[start + site][layer, head]) / count for name, start in prefixes.items()}
    return EvaluationReport(
        {"spearman": total / count, **scalars}, note=f"{site}, layer {layer}, head {head}; {int(count)} strings"
    )
