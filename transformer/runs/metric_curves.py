"""The metrics of a run as curves over its steps. This module does not import jax."""

import math
import re
from collections.abc import Iterable
from typing import Literal

import numpy as np

from transformer.config import UserError
from transformer.runs.jsonl_reading import MetricName, Record, read_records
from transformer.runs.run_directory import RunDirectory

POINTS_PER_CURVE = 400
Curve = list[tuple[int, float]]
"""The points (step, value) of a metric in the order of their steps, all finite."""
Direction = Literal["minimize", "maximize"]

# Words in the names of metrics, first of those that are better low: an error of an accuracy is an error.
_LOWER_IS_BETTER = re.compile(
    r"(^|[_/])(loss|perplexity|errors?|entropy|bits|gap|distance|regret|mse|rmse|wer|cer)([_/]|$)"
)
_HIGHER_IS_BETTER = re.compile(
    r"(^|[_/])(accuracy|match|bleu|f1|recall|precision|rouge|reward|return|success|matthews|spearman|pearson|glue|rank|"
    r"reciprocal)([_/]|$)"
)


def read_curves(directory: RunDirectory) -> dict[str, dict[str, Curve]]:
    """Read the curves of every metric and split.

    If a step was logged twice, as after a resume, its last value counts. Values that are not finite are left out.

    Returns:
        The points (step, value) in the order of their steps, by metric and split; empty for a run that was converted
        from a published model and not trained.

    Raises:
        UserError: If the run has not logged any metrics yet.
    """
    if "converted" in directory.facts() and not directory.metrics_file.exists():
        return {}
    curves: dict[str, dict[str, Curve]] = {}
    for metric, curve in curves_of_records(read_records(directory.metrics_file)).items():
        curves.setdefault(metric.name, {})[metric.split] = curve
    if not curves:
        raise UserError(
            f"{directory.metrics_file} holds no metrics yet: let the run log its first step, then ask again"
        )
    return curves


def curves_of_records(records: Iterable[Record]) -> dict[MetricName, Curve]:
    """Return the curve of every metric in some records; of a step that was logged twice the last value counts."""
    points: dict[MetricName, dict[int, float]] = {}
    for record in records:
        step, split = record["step"], record["split"]
        for name, value in record.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name != "step" and is_number and math.isfinite(value):
                points.setdefault(MetricName(split, name), {})[step] = float(value)
    return {metric: sorted(values.items()) for metric, values in points.items()}


def thin_curve(curve: Curve, points: int = POINTS_PER_CURVE) -> Curve:
    """Reduce a curve to at most `points` points, keeping each interval's minimum and maximum, so that spikes stay."""
    if len(curve) <= points:
        return curve
    indices = {0, len(curve) - 1}
    for stretch in np.array_split(np.arange(len(curve)), (points - 2) // 2):
        values = np.array([curve[index][1] for index in stretch])
        indices |= {int(stretch[values.argmin()]), int(stretch[values.argmax()])}
    return [curve[index] for index in sorted(indices)]


def metric_direction(metric: MetricName) -> Direction | None:
    """Return whether a metric is better low or high, by the words of its name; None if they do not say."""
    if _LOWER_IS_BETTER.search(metric.name):
        return "minimize"
    return "maximize" if _HIGHER_IS_BETTER.search(metric.name) else None
