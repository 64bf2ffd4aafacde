"""The figures of classes, answers and scores, as GLUE scores them (Wang et al. 2019)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from transformer.data.datasets.examples import Shape
from transformer.data.datasets.glue import measure_of
from transformer.tasks.classification import confusion_of, report
from transformer.tasks.contract import Report


def sums_of(
    shape: Shape, outputs_BxA: Float[Array, "B A"], labels_B: Num[Array, " B"], real_B: Bool[Array, " B"]
) -> tuple[dict[str, Array], Any]:
    """Sums over a batch, and rows where a figure needs every example: scores with what they should be."""
    if shape.scores:
        rows = {"said": outputs_BxA[:, 0], "true": labels_B, "real": real_B}
        return {"examples": jnp.sum(real_B).astype(jnp.float32)}, rows
    return {"confusion": confusion_of(outputs_BxA, labels_B, real_B)}, None


def report_of(dataset: str, shape: Shape) -> Callable[[Any, Any], Report]:
    """What makes the report of a set from the sums and rows of its batches.

    Classes: loss, accuracy, Matthews correlation, and F1 of two. Answers: loss and accuracy, for an answer's place says
    nothing. Scores: loss, and the correlations of Pearson and Spearman. Sets of GLUE have `glue` as well.
    """
    if shape.scores:
        return _correlations
    return functools.partial(report, measure=measure_of(dataset), classes=bool(shape.classes))


def _correlations(sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> Report:
    real = np.asarray(rows["real"], bool)
    said, true = (np.asarray(rows[name], np.float64)[real] for name in ("said", "true"))
    scalars = {
        "loss": float(sums["loss"]) / len(said),
        "pearson": pearson(said, true),
        "spearman": spearman(said, true),
    }
    return Report(scalars, note=f"{len(said)} examples")


def pearson(one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]) -> float:
    """The correlation of two rows of numbers; 0 where either is constant."""
    first, second = one - one.mean(), other - other.mean()
    spread = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / spread) if spread > 0 else 0.0


def spearman(one: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]) -> float:
    """The correlation of the ranks of two rows of numbers; equal numbers have the mean of their ranks."""
    return pearson(ranks(one), ranks(other))


def ranks(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """The rank of each number, from 1; equal numbers have the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
