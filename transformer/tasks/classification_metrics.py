"""Metrics of classes and of scores: accuracy, Matthews correlation, F1, and the correlations of scores."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.tasks.task import EvaluationReport


def confusion_matrix(
    logits_BxC: Float[Array, "B C"], labels_B: Int[Array, " B"], real_B: Bool[Array, " B"]
) -> Float[Array, "C C"]:
    """Count the real rows of each class (rows) that are predicted as each class (columns).

    Args:
        logits_BxC: The logits.
        labels_B: The true classes.
        real_B: Which rows count.
    """
    count = logits_BxC.shape[1]
    cells_B = labels_B * count + jnp.argmax(logits_BxC, axis=-1)
    confusion = jnp.zeros(count**2, jnp.float32).at[cells_B].add(real_B.astype(jnp.float32))
    return confusion.reshape(count, count)


def classification_report(
    sums: Mapping[str, Any], rows: object = None, *, measure: str | None = None, classes: bool = True
) -> EvaluationReport:
    """Report the mean loss, the accuracy and the Matthews correlation; with two classes also F1 of the second.

    F1 = 2 TP / (2 TP + FP + FN), 0 if the second class neither occurs nor is predicted.

    Args:
        sums: `loss` and `confusion` [C, C].
        rows: Ignored.
        measure: The metric that is the data set's score on GLUE, reported as `glue` as well, times 100.
        classes: Whether class numbers mean something. If they are only the places of answers, loss and accuracy are
            all.
    """
    confusion = np.asarray(sums["confusion"], np.float64)
    count = confusion.sum()
    scalars = {"loss": float(sums["loss"]) / count, "accuracy": float(np.trace(confusion) / count)}
    if classes:
        scalars["matthews"] = matthews_correlation(confusion)
    if classes and len(confusion) == 2:
        correct, wrong = confusion[1, 1], confusion[0, 1] + confusion[1, 0]
        scalars["f1"] = float(2 * correct / max(2 * correct + wrong, 1))
    if measure is not None:
        scalars["glue"] = 100 * scalars[measure]
    return EvaluationReport(
        scalars, note=f"{int(count)} texts" + ("" if measure is None else f"; glue: {measure} x 100")
    )


def matthews_correlation(confusion_CxC: Float[np.ndarray, "C C"]) -> float:
    """Compute the Matthews correlation of true and predicted classes, for any number of classes.

    (c s - sum_k t_k p_k) / sqrt((s^2 - sum_k t_k^2) (s^2 - sum_k p_k^2)) for c correct predictions of s, where class k
    is true t_k times and predicted p_k times (Gorodkin 2004); with two classes Matthews 1975.

    Args:
        confusion_CxC: The counts of each true class (rows) and predicted class (columns).

    Returns:
        The correlation, from -1 to 1; 0 if all texts are of one class or predicted as one.
    """
    correct, count = np.trace(confusion_CxC), confusion_CxC.sum()
    true_C, predicted_C = confusion_CxC.sum(1), confusion_CxC.sum(0)
    spread = (count**2 - true_C @ true_C) * (count**2 - predicted_C @ predicted_C)
    return float((correct * count - true_C @ predicted_C) / np.sqrt(spread)) if spread > 0 else 0.0


def score_report(sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
    """Report the mean loss and the correlations of Pearson and Spearman of predicted and true scores.

    Args:
        sums: `loss`.
        rows: `predicted`, `true`, and `real`, which of them count.
    """
    real = np.asarray(rows["real"], bool)
    predicted, true = (np.asarray(rows[name], np.float64)[real] for name in ("predicted", "true"))
    scalars = {
        "loss": float(sums["loss"]) / len(predicted),
        "pearson": pearson_correlation(predicted, true),
        "spearman": spearman_correlation(predicted, true),
    }
    return EvaluationReport(scalars, note=f"{len(predicted)} examples")


def pearson_correlation(one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]) -> float:
    """Compute the Pearson correlation of two arrays; 0 if either is constant."""
    first, second = one - one.mean(), other - other.mean()
    spread = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / spread) if spread > 0 else 0.0


def spearman_correlation(one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]) -> float:
    """Compute the Spearman correlation of two arrays: the Pearson correlation of their ranks."""
    return pearson_correlation(average_ranks(one), average_ranks(other))


def average_ranks(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Return the rank of each number, from 1; equal numbers share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
