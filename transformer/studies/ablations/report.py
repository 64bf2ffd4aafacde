"""The report of an ablation: what its page shows and its JSON file holds."""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.studies.ablations.ablation import Direction, PredictedDirection
from transformer.studies.ablations.arm_comparisons import LearnedCounts, Verdict
from transformer.studies.ablations.run_result import Hyperparameters
from transformer.studies.ablations.statistics import Interval

HyperparameterValue = object


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; None where there is none."""

    value: float | None
    interval: Interval | None


@dataclasses.dataclass(frozen=True)
class InterquartileMean(Estimate):
    """An interquartile mean, and in what share of studies its interval contains the truth."""

    coverage: float | None


@dataclasses.dataclass(frozen=True)
class RunCounts:
    """How many of all runs of an arm ended in which state.

    Attributes:
        all: The number of runs.
        ended: The number that completed or diverged.
        diverged: The number that diverged.
        stuck: The number that completed without having learned.
        failed: The number that failed.
        rate: `diverged` over `ended`.
        interval: The interval of this rate.
    """

    all: int
    ended: int
    diverged: int
    stuck: int
    failed: int
    rate: float | None
    interval: Interval | None


@dataclasses.dataclass(frozen=True)
class SelectedRun:
    """A run at the selected values; its value is None unless it completed."""

    task: str
    seed: int
    value: float | None
    state: str
    directory: str
    command: str


@dataclasses.dataclass(frozen=True)
class NumLearned:
    """How many of the runs at the selected values that ended learned."""

    count: int
    of: int


@dataclasses.dataclass(frozen=True)
class SeedToTarget:
    """The steps and FLOPs with which one run first reaches the target; None if it never does."""

    task: str
    seed: int
    steps: int | None
    flops: float | None


@dataclasses.dataclass(frozen=True)
class ToTarget:
    """How many runs reach the target, and the medians of their steps and FLOPs; None for more than the longest run."""

    reached: int
    of: int
    steps: float | None
    flops: float | None
    seeds: Sequence[SeedToTarget]


@dataclasses.dataclass(frozen=True)
class Band:
    """A curve as mean, minimum and maximum over `n` seeds at each step."""

    steps: Sequence[int]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    n: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Profile:
    """A performance profile over values of the reported metric, in rising order."""

    steps: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None


@dataclasses.dataclass(frozen=True)
class SensitivityPoint:
    """The selection metric over the `n` seeds that did not diverge, at one tuned value."""

    value: HyperparameterValue
    mean: float | None
    low: float | None
    high: float | None
    diverged: int
    n: int


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of an arm to the values of a tuned key."""

    key: str
    points: Sequence[SensitivityPoint]
    sensitivity: float | None


@dataclasses.dataclass(frozen=True)
class HeatmapCell:
    """The mean of the selection metric over the `n` seeds that did not diverge, at two tuned values."""

    mean: float | None
    diverged: int
    n: int


@dataclasses.dataclass(frozen=True)
class Heatmap:
    """The selection metric over two tuned keys; `cells` are rows, one for each value of the second."""

    x_key: str
    y_key: str
    x: Sequence[HyperparameterValue]
    y: Sequence[HyperparameterValue]
    cells: Sequence[Sequence[HeatmapCell]]


@dataclasses.dataclass(frozen=True)
class ArmReport:
    """An arm: all but `run_counts`, `sensitivity` and `heatmap` is of its runs at the selected values.

    Attributes:
        name: The arm.
        differences: The config keys in which it differs from the reference.
        parameters: The number of parameters.
        shared: How many initial parameters equal the reference's.
        run_counts: The states of all of its runs.
        selected_hyperparameters: The selected values by task.
        seeds: The runs.
        mean: The mean of the reported metric over the seeds that completed every task.
        interval: Its 95% interval; None if a run diverged, as the others are no sample.
        deviation: The standard deviation over these seeds.
        n: Their number.
        learned: How many runs learned.
        iqm: The interquartile mean of the runs of all tasks.
        to_target: The steps to the target; None if the study has none.
        bands: The curves of metrics by name and, of several tasks, by name and task.
        heads: The curves of head statistics by statistic and attention module.
        sensitivity: The sensitivity to each tuned key with several values.
        heatmap: The selection metric over two tuned keys, if exactly two have several values.
        profile: The performance profile; None if a task has no run.
    """

    name: str
    differences: Sequence[Any]
    parameters: int | None
    shared: Mapping[str, Any] | None
    run_counts: RunCounts
    selected_hyperparameters: Mapping[str, Hyperparameters]
    seeds: Sequence[SelectedRun]
    mean: float | None
    interval: Interval | None
    deviation: float | None
    n: int
    learned: NumLearned
    iqm: InterquartileMean
    to_target: ToTarget | None
    bands: Mapping[str, Band]
    heads: Mapping[str, Mapping[str, Band]]
    sensitivity: Sequence[Sensitivity]
    heatmap: Heatmap | None
    profile: Profile | None


@dataclasses.dataclass(frozen=True)
class SeedDifference:
    """The difference of an arm from the reference with one seed."""

    task: str | None
    seed: int
    value: float


@dataclasses.dataclass(frozen=True)
class ComparisonReport:
    """A comparison of an arm with the reference; see `arm_comparisons.Comparison` and `SecondOpinion`.

    Attributes:
        arm: The arm.
        reference: The reference.
        task: The task; None for the mean over all.
        difference: The mean difference.
        interval: Its simultaneous interval.
        differences: The difference with each seed that did not diverge.
        n: The number of paired seeds.
        p: The uncorrected p-value that decides.
        p_permutation: That of the permutation test.
        p_adjusted: `p`, adjusted for `num_comparisons`.
        num_comparisons: The number of comparisons in the family.
        verdict: The verdict.
        spread_ratio: The ratio of both arms' standard deviations.
        skewness: The skewness of the differences, in standard errors.
        p_bootstrap: The p-value of the studentized bootstrap.
        caveats: What a reader must know beside the verdict, in a few words each.
        learned: How many runs of both arms learned.
        reason: The reason for the verdict, in a sentence.
        improvement: How probably a run of the arm is better than one of the reference; None for a task of several.
    """

    arm: str
    reference: str
    task: str | None
    difference: float | None
    interval: Interval | None
    differences: Sequence[SeedDifference]
    n: int
    p: float | None
    p_permutation: float | None
    p_adjusted: float | None
    num_comparisons: int
    verdict: Verdict
    spread_ratio: float | None
    skewness: float | None
    p_bootstrap: float | None
    caveats: Sequence[str]
    learned: LearnedCounts
    reason: str
    improvement: Estimate | None


@dataclasses.dataclass(frozen=True)
class PredictionReport:
    """A prediction and what came out; see `ablation.Prediction` and `predictions.PredictionOutcome`."""

    arm: str
    direction: PredictedDirection
    task: str | None
    at_least: float | None
    at_most: float | None
    more_than_on: str | None
    outcome: str
    difference: float | None
    interval: Interval | None
    num_agreeing_seeds: int
    num_seeds: int
    sentence: str


@dataclasses.dataclass(frozen=True)
class RunReport:
    """A run: what it reached, and how it is trained again."""

    arm: str
    task: str
    seed: int
    hyperparameters: Hyperparameters
    state: str
    selection_value: float | None
    reported_value: float | None
    steps: int
    started: str
    commit: str
    hardware: str
    directory: str
    command: str
    trust: str


@dataclasses.dataclass(frozen=True)
class StudyReport:
    """The report of an ablation.

    Attributes:
        name: The name of the study.
        question: What it asks.
        reference: The reference arm.
        direction: Whether its metrics are minimized.
        selection_metric: The metric that selects among tuned values.
        reported_metric: The metric of the verdict.
        target: The value of the selection metric that is to be reached.
        smallest_effect_of_interest: The smallest difference that matters.
        seeds: The seeds.
        hyperparameter_values: The values that were tried by tuned key.
        tasks: The tasks.
        about: What the runs do not record, as given to `analysis.analyze`.
        exploratory: Whether its verdicts confirm nothing.
        warnings: What is wrong with the study, one sentence each.
        arms: The arms.
        comparisons: The comparisons over all tasks, then those on single tasks.
        predictions: The predictions.
        summary: The answer, one sentence each.
        runs: All runs.
    """

    name: str
    question: str
    reference: str
    direction: Direction
    selection_metric: str
    reported_metric: str
    target: float | None
    smallest_effect_of_interest: float | None
    seeds: Sequence[int]
    hyperparameter_values: Mapping[str, Sequence[HyperparameterValue]]
    tasks: Sequence[str]
    about: Mapping[str, Any]
    exploratory: bool
    warnings: Sequence[str]
    arms: Sequence[ArmReport]
    comparisons: Sequence[ComparisonReport]
    predictions: Sequence[PredictionReport]
    summary: Sequence[str]
    runs: Sequence[RunReport]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, None where there is no number, never NaN."""
        values = _to_json(self)
        assert isinstance(values, dict)
        return values


def _to_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
