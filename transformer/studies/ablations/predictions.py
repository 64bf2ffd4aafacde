"""Compare the predictions of a study with its results: which came out, which did not, and by how much."""

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

from transformer.studies.ablations.ablation import Ablation, PredictedDirection, Prediction
from transformer.studies.ablations.arm_comparisons import (
    Comparison,
    Verdict,
    equality_tolerance,
    mean_differences_without_each_seed,
)
from transformer.studies.ablations.formatting import (
    format_adjustment,
    format_interval,
    format_task_suffix,
    round_to_error,
)
from transformer.studies.ablations.statistics import Interval, jackknife_error, t_test
from transformer.studies.ablations.study_results import StudyResults


class Outcome(enum.Enum):
    """Whether a prediction came out: the whole interval of the difference agrees with it, none of it, or a part."""

    CAME_OUT = "came out"
    DID_NOT = "did not come out"
    UNDECIDED = "undecided"


class PredictionOutcome(NamedTuple):
    """The outcome of a prediction.

    Attributes:
        prediction: The prediction.
        outcome: Whether it came out.
        difference: The mean difference, above 0 in the predicted direction; of similar arms as it is. None without one.
        interval: Its 95% interval, adjusted for the comparisons or predictions of its kind; None without one.
        num_agreeing_seeds: With how many seeds the difference agrees with the prediction.
        num_seeds: The number of paired seeds.
        num_adjusted: The number of intervals that hold together.
    """

    prediction: Prediction
    outcome: Outcome
    difference: float | None
    interval: Interval | None
    num_agreeing_seeds: int
    num_seeds: int
    num_adjusted: int


def judge_predictions(study: StudyResults, pairs: Sequence[Comparison]) -> list[PredictionOutcome]:
    """Compare every prediction of a study with its results.

    A prediction of an arm on a task takes the interval of that comparison. One that a difference is larger on one task
    than on another takes the t interval of the differences between the two, paired by seed and adjusted for the number
    of such predictions.

    Args:
        study: The results of the study.
        pairs: The comparisons with the reference.
    """
    by_subject = {(pair.arm_name, pair.task_name): pair for pair in pairs}
    num_excesses = sum(prediction.more_than_on is not None for prediction in study.spec.predictions)
    outcomes = []
    for prediction in study.spec.predictions:
        task = prediction.task if len(study.spec.tasks) > 1 else None
        pair = by_subject[prediction.arm, task]
        if prediction.more_than_on is None:
            outcomes.append(_judge_difference(study.spec, prediction, pair))
        else:
            other_pair = by_subject[prediction.arm, prediction.more_than_on]
            outcomes.append(_judge_excess(study, prediction, pair, other_pair, num_excesses))
    return outcomes


def describe_prediction(spec: Ablation, result: PredictionOutcome) -> str:
    """Say in one sentence what was predicted, and what came out."""
    words = f"Predicted: {_describe_expectation(spec, result.prediction)}. {result.outcome.value.capitalize()}: "
    agreeing = f"{result.num_agreeing_seeds} of {result.num_seeds} seeds agree"
    if result.difference is None:
        if result.outcome is Outcome.UNDECIDED:
            return f"{words}runs are missing or diverged, so that there is no difference."
        return f"{words}runs diverged, so that only their order counts ({agreeing})."
    difference, interval = result.difference, result.interval
    subject = "the difference is"
    if result.prediction.more_than_on is not None:
        subject = "the excess is"
    elif result.prediction.direction is not PredictedDirection.SIMILAR:
        subject = f"{result.prediction.arm} is {_observed_direction(result.prediction, difference)} by"
        if difference < 0:
            difference, interval = -difference, interval and interval.oriented(-1.0)
    size = round_to_error(difference, interval and interval.half_width)
    with_interval = (
        f"{format_interval(interval)}{format_adjustment(result.num_adjusted)}" if interval else "no interval"
    )
    return f"{words}{subject} {size} in {spec.reported_metric} ({with_interval}; {agreeing})."


def _describe_expectation(spec: Ablation, prediction: Prediction) -> str:
    where = format_task_suffix(prediction.task)
    if prediction.direction is PredictedDirection.SIMILAR:
        return f"{prediction.arm} within {_predicted_range(spec, prediction)[1]:g} of {spec.reference}{where}"
    sizes = [
        f"{word} {size:g}"
        for word, size in (("at least", prediction.at_least), ("at most", prediction.at_most))
        if size is not None
    ]
    size = f", by {' and '.join(sizes)}" if sizes else ""
    words = f"{prediction.arm} {prediction.direction.value} than {spec.reference}{where}"
    if prediction.more_than_on is None:
        return f"{words}{size}"
    return f"{words} by more than on {prediction.more_than_on}{size}"


def _observed_direction(prediction: Prediction, difference: float) -> str:
    """Return whether the arm is better or worse; the difference is above 0 in the predicted direction."""
    predicted_better = prediction.direction is PredictedDirection.BETTER
    return "better" if predicted_better == (difference >= 0) else "worse"


def _judge_difference(spec: Ablation, prediction: Prediction, pair: Comparison) -> PredictionOutcome:
    sign = _prediction_sign(spec, prediction)
    values = [sign * value for value in pair.differences.values()]
    interval = pair.test and pair.test.interval and pair.test.interval.oriented(sign)
    if interval:
        outcome = _judge_interval(spec, prediction, interval)
    else:
        # Judged by the order of the runs alone, which has no size.
        opposite = {Verdict.BETTER: "worse", Verdict.WORSE: "better"}.get(pair.verdict)
        has_size = prediction.at_least is not None or prediction.at_most is not None
        outcome = Outcome.UNDECIDED
        if opposite == prediction.direction.value:
            outcome = Outcome.DID_NOT
        elif pair.verdict == prediction.direction.value and not has_size:
            outcome = Outcome.CAME_OUT
    difference = None if pair.difference is None or pair.test is None else sign * pair.difference
    return PredictionOutcome(
        prediction,
        outcome,
        difference,
        interval or None,
        _num_agreeing(spec, prediction, values),
        len(values),
        pair.num_comparisons,
    )


def _judge_excess(
    study: StudyResults, prediction: Prediction, pair: Comparison, other_pair: Comparison, num_predictions: int
) -> PredictionOutcome:
    sign = _prediction_sign(study.spec, prediction)
    seeds = [seed for seed in pair.differences if seed in other_pair.differences]
    values = [sign * (pair.differences[seed] - other_pair.differences[seed]) for seed in seeds]
    agreeing = _num_agreeing(study.spec, prediction, values)
    undecided = PredictionOutcome(prediction, Outcome.UNDECIDED, None, None, agreeing, len(values), num_predictions)
    if not all(comparison.test and comparison.test.interval for comparison in (pair, other_pair)) or len(values) < 2:
        return undecided
    test = t_test(
        values,
        resolution=equality_tolerance([*pair.differences.values(), *other_pair.differences.values()]),
        num_comparisons=num_predictions,
        least_error=_tuning_error(study, prediction, seeds),
    )
    if test.interval is None:
        return undecided._replace(difference=test.mean)
    outcome = _judge_interval(study.spec, prediction, test.interval)
    return undecided._replace(outcome=outcome, difference=test.mean, interval=test.interval)


def _tuning_error(study: StudyResults, prediction: Prediction, seeds: Sequence[int]) -> float:
    """Return the jackknife's standard error of the excess, with tuned values selected anew without each seed."""
    arms = (prediction.arm, study.spec.reference)
    means, other_means = (
        mean_differences_without_each_seed(study, arms, task, seeds)
        for task in (prediction.task, prediction.more_than_on)
    )
    return jackknife_error([mean - other for mean, other in zip(means, other_means, strict=True)])


def _judge_interval(spec: Ablation, prediction: Prediction, interval: Interval) -> Outcome:
    low, high = _predicted_range(spec, prediction)
    if interval.low >= low and interval.high <= high:
        return Outcome.CAME_OUT
    if interval.high <= low or interval.low >= high:
        return Outcome.DID_NOT
    return Outcome.UNDECIDED


def _num_agreeing(spec: Ablation, prediction: Prediction, values: Sequence[float]) -> int:
    low, high = _predicted_range(spec, prediction)
    # No difference at all is neither better nor worse.
    return sum(low <= value <= high and (value != 0 or low < 0) for value in values)


def _predicted_range(spec: Ablation, prediction: Prediction) -> tuple[float, float]:
    """Return the ends of the predicted difference, above 0 in the predicted direction."""
    if prediction.direction is PredictedDirection.SIMILAR:
        most = prediction.at_most or spec.smallest_effect_of_interest
        assert most is not None  # checked with the ablation
        return -most, most
    return prediction.at_least or 0.0, math.inf if prediction.at_most is None else prediction.at_most


def _prediction_sign(spec: Ablation, prediction: Prediction) -> float:
    """Return the sign with which a difference of the metric is above 0 in the predicted direction."""
    if prediction.direction is PredictedDirection.SIMILAR:
        return 1.0
    return -spec.direction.sign if prediction.direction is PredictedDirection.BETTER else spec.direction.sign
