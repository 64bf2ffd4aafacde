"""Compare each arm with the reference: paired differences, their intervals, and the verdict."""

import dataclasses
import enum
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer.studies.ablations.statistics import (
    SIGNIFICANCE,
    MeanTest,
    bonferroni_correction,
    estimate_discrete_step,
    fisher_exact_p,
    jackknife_error,
    least_permutation_p,
    permutation_p,
    skewness_score,
    studentized_bootstrap_p,
    t_statistic,
    t_test,
)
from transformer.studies.ablations.study_results import (
    DIVERGED,
    STUCK,
    Place,
    StudyResults,
    known_values,
    mean_over_tasks,
)

MIN_SEEDS_FOR_VERDICT = 3  # paired seeds
ENOUGH_SEEDS = 5  # the default; with fewer, all runs of one arm may be stuck, and none of another, by chance
UNEQUAL_SPREADS = 3.0  # a ratio of standard deviations
EVIDENT_SKEWNESS = 2.0  # standard errors
ROUNDING = 2.0**-22  # relative: metrics that differ by less are equal, as some are computed in float32


class Verdict(enum.StrEnum):
    """Whether an arm is better or worse than the reference."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE_SEEN = "no difference seen"
    NOT_JUDGED = "not judged"

    @property
    def is_difference(self) -> bool:
        """Whether it says that the arms differ."""
        return self in (Verdict.BETTER, Verdict.WORSE)


@dataclasses.dataclass(frozen=True)
class LearnedCounts:
    """How many of the runs at the chosen values learned, of those that completed or diverged.

    Attributes:
        arm: The number that learned and the number that ended, of the arm.
        reference: The same of the reference.
        p_adjusted: The p-value of Fisher's exact test on the two counts, corrected as that of the difference; None if
            the arms are not compared, or all runs of both learned.
    """

    arm: tuple[int, int]
    reference: tuple[int, int]
    p_adjusted: float | None


class Comparison(NamedTuple):
    """An arm minus the reference, on one task or on the mean of all tasks, in the units of the reported metric.

    The t test assumes normal noise. These comparisons are judged by the exact permutation test instead, and have no
    interval; where it cannot be significant with as few seeds, the verdict is "not judged":

    - The differences are all equal, and so have no t statistic.
    - A run of either arm diverged. It has no value, and counts as worse than every run that finished.
    - A run of either arm was stuck, unless there are at least `ENOUGH_SEEDS` seeds, but too few for this test.

    Attributes:
        arm_name: The arm.
        reference_name: The arm that it is compared with.
        task_name: The task; None for the mean of all tasks.
        differences: The paired differences by seed; see `StudyResults.compared_values`.
        diverged_seeds: The seeds with which a run of either arm diverged.
        test: The t test of the differences; None if no verdict may be given.
        num_comparisons: The number of comparisons in the family, for which interval and p-value are adjusted.
        verdict: The verdict.
        learned_counts: How many runs learned.
    """

    arm_name: str
    reference_name: str
    task_name: str | None
    differences: dict[int, float]
    diverged_seeds: tuple[int, ...]
    test: MeanTest | None
    num_comparisons: int
    verdict: Verdict
    learned_counts: LearnedCounts

    @property
    def num_seeds(self) -> int:
        """The number of seeds of which both arms have a run."""
        return len(self.differences)

    @property
    def difference(self) -> float | None:
        """The mean difference; None without paired seeds, or if a run diverged and so has no value."""
        if not self.differences or self.diverged_seeds:
            return None
        return math.fsum(self.differences.values()) / self.num_seeds

    @property
    def p_permutation(self) -> float | None:
        """The p-value of flipping the signs of the differences; those equal up to rounding count as equal."""
        if self.test is None:
            return None
        return permutation_p(
            list(self.differences.values()) if self.test.standard_deviation else [self.test.mean] * self.num_seeds
        )

    @property
    def p_value(self) -> float | None:
        """The uncorrected p-value that decides: of the t test or, where it is not valid, of flipping the signs."""
        return None if self.test is None else self.p_permutation if self.test.p_value is None else self.test.p_value

    @property
    def p_adjusted(self) -> float | None:
        """The p-value after Bonferroni's correction; None if no verdict may be given."""
        return None if self.p_value is None else bonferroni_correction(self.p_value, self.num_comparisons)


class SecondOpinion(NamedTuple):
    """What all runs of two arms say about the noise that the t test of their difference takes to be normal.

    Unequal arms with normal noise do it no harm. Where one arm's noise is larger and skewed, so are the differences.

    Attributes:
        spread_ratio: The standard deviation of the arm's runs over that of the reference's, the geometric mean over
            tuned values; None without spread.
        skewness: The skewness of the differences, in standard errors of that of normal noise.
        p_bootstrap: The p-value of the t statistic by the studentized bootstrap, corrected as that of the t test; None
            with fewer than `ENOUGH_SEEDS` seeds, or where the t test does not judge.
    """

    spread_ratio: float | None
    skewness: float
    p_bootstrap: float | None


def second_opinion(study: StudyResults, pair: Comparison) -> SecondOpinion | None:
    """Look at the noise of a comparison, in the runs that learned at the selected values and at all that were tried.

    It decides nothing. No test of a few pairs holds its level whatever the noise: a bad run of ten is not to be seen
    in five that are good.

    Returns:
        The second opinion; None where no t test is valid.
    """
    if pair.test is None or pair.test.p_value is None:
        return None
    groups = _paired_values(study, pair)
    differences = [(values_N - reference_N).tolist() for values_N, reference_N in groups]
    ratios = [
        math.log(spreads[0] / spreads[1])
        for group in groups
        if min(spreads := [values_N.std(ddof=1) for values_N in group]) > 0
    ]
    p_bootstrap = None
    if pair.num_seeds >= ENOUGH_SEEDS and any(np.ptp(group) > 0 for group in differences):
        t = math.copysign(t_statistic(pair.test.p_value, pair.num_seeds), pair.test.mean)
        p = studentized_bootstrap_p(t, pair.num_seeds, differences)
        p_bootstrap = bonferroni_correction(p, pair.num_comparisons)
    ratio = math.exp(math.fsum(ratios) / len(ratios)) if ratios else None
    return SecondOpinion(ratio, skewness_score(differences), p_bootstrap)


def _paired_values(
    study: StudyResults, pair: Comparison
) -> list[tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]]:
    """Return the reported values of both arms by seed: at the selected values, and at all that both tried alike."""
    arms, tasks = list(map(study.arm_number, (pair.arm_name, pair.reference_name))), study.task_numbers(pair.task_name)
    selected_2xT = study.selected_LxAxT[0][np.ix_(arms, tasks)]
    tuned_alike = [np.full_like(selected_2xT, number) for number in range(len(study.combinations))]
    is_tuned_alike = (selected_2xT == selected_2xT[0, 0]).all()
    learned_AxTxCxS = np.where(study.learned_AxTxCxS, study.reported_AxTxCxS, np.nan)
    groups = []
    for numbers_2xT in tuned_alike if is_tuned_alike else [selected_2xT, *tuned_alike]:
        values_2xS = np.stack(
            [
                mean_over_tasks(learned_AxTxCxS[arm, tasks, numbers_T])
                for arm, numbers_T in zip(arms, numbers_2xT, strict=True)
            ]
        )
        known_S = ~np.isnan(values_2xS).any(axis=0)
        if known_S.sum() >= MIN_SEEDS_FOR_VERDICT:
            groups.append((values_2xS[0, known_S], values_2xS[1, known_S]))
    return groups


def compare_arms(study: StudyResults) -> list[Comparison]:
    """Compare every arm with the reference over all tasks and, if there are several, on each task.

    The comparisons over all tasks are one family, and those on single tasks, of all arms and tasks together, another:
    the first answers the study's question, the second shows where the answer comes from. Intervals and p-values are
    adjusted for the size of their family, so that an interval excludes 0 exactly where the verdict is better or worse.
    Comparisons of fewer than three paired seeds, and those of which a run failed or has not ended, get no verdict; they
    count in the family all the same, and a verdict does not change when they get theirs.

    Args:
        study: The results of the study.

    Returns:
        The comparisons over all tasks, then those on single tasks.
    """
    arms = [arm for arm in study.spec.arms if arm != study.spec.reference]
    tasks = study.spec.tasks if len(study.spec.tasks) > 1 else ()
    reference = study.spec.reference
    overall = [_compare_pair(study, arm, None, reference, len(arms)) for arm in arms]
    single = [_compare_pair(study, arm, task, reference, len(arms) * len(tasks)) for task in tasks for arm in arms]
    return [*overall, *single]


def compare_best_two(study: StudyResults) -> tuple[Comparison, str] | None:
    """Compare the best arm with the second best over all tasks, unless one of them is the reference.

    The two arms are picked by the same values that are compared, so interval and p-value are adjusted for all pairs of
    arms. This is no verdict of the study.

    Args:
        study: The results of the study.

    Returns:
        The comparison and the name of the second best arm; None if there is nothing to compare.
    """
    values = {
        arm: known_values(study.values(arm, None))
        for arm in study.spec.arms
        if not study.seeds_in_state(arm, None, DIVERGED)
    }
    means = {arm: math.fsum(own) / len(own) for arm, own in values.items() if len(own) >= MIN_SEEDS_FOR_VERDICT}
    order = study.spec.direction.rank(means)
    if len(order) < 2 or study.spec.reference in order[:2]:
        return None
    pair = _compare_pair(study, order[0], None, order[1], math.comb(len(study.spec.arms), 2))
    return (pair, order[1]) if pair.test is not None else None


def _compare_pair(study: StudyResults, arm: str, task: str | None, against: str, num_comparisons: int) -> Comparison:
    values_2xS = np.stack([study.compared_values(name, task) for name in (arm, against)])
    differences_S = values_2xS[0] - values_2xS[1]
    differences = {
        seed: difference
        for seed, difference in zip(study.spec.seeds, differences_S.tolist(), strict=True)
        if not math.isnan(difference)
    }
    diverged = {seed for name in (arm, against) for seed in study.seeds_in_state(name, task, DIVERGED)}
    learning = LearnedCounts(study.count_learned(arm, task), study.count_learned(against, task), None)
    pair = Comparison(
        arm, against, task, differences, tuple(sorted(diverged)), None, num_comparisons, Verdict.NOT_JUDGED, learning
    )
    if len(differences) < MIN_SEEDS_FOR_VERDICT or any(missing_places(study, pair)):
        return pair
    resolution = equality_tolerance(known_values(values_2xS))
    own = list(differences.values())
    step = estimate_discrete_step(own, resolution)
    error = _tuning_error(study, pair)
    test = t_test(own, resolution=resolution, step=step, num_comparisons=num_comparisons, least_error=error)
    stuck = any(study.seeds_in_state(name, task, STUCK) for name in (arm, against))
    can_decide = pair.num_seeds < ENOUGH_SEEDS or _least_adjusted_p(pair) < SIGNIFICANCE
    if diverged or (stuck and can_decide):
        test = test._replace(interval=None, p_value=None)
    pair = pair._replace(test=test, learned_counts=_add_fisher_test(learning, num_comparisons))
    return pair._replace(verdict=_decide_verdict(study, pair, test))


def _tuning_error(study: StudyResults, pair: Comparison) -> float:
    """Compute the jackknife's standard error of the mean difference, with values selected anew without each seed.

    The t test takes the selected values as given. Where a seed more or less selects others, arms that are equal differ
    by the luck of their tuning, which is no noise between seeds. Otherwise this is the t test's own standard error.

    Returns:
        The standard error; 0 if every selection stays the same.
    """
    arms = (pair.arm_name, pair.reference_name)
    selected_Lx2xT = study.selected_LxAxT[:, list(map(study.arm_number, arms))][
        :, :, study.task_numbers(pair.task_name)
    ]
    left_out = [1 + study.spec.seeds.index(seed) for seed in pair.differences]
    if (selected_Lx2xT[left_out] == selected_Lx2xT[0]).all():
        return 0.0
    return jackknife_error(mean_differences_without_each_seed(study, arms, pair.task_name, list(pair.differences)))


def mean_differences_without_each_seed(
    study: StudyResults, arms: tuple[str, str], task: str | None, seeds: Sequence[int]
) -> list[float]:
    """Return the mean differences of two arms without each of some seeds, which the selection leaves out too."""
    means = []
    for left_out in seeds:
        own_S, reference_S = (study.compared_values(arm, task, left_out) for arm in arms)
        others = [study.spec.seeds.index(seed) for seed in seeds if seed != left_out]
        means.append(math.fsum((own_S - reference_S)[others]) / len(others))
    return means


def _decide_verdict(study: StudyResults, pair: Comparison, test: MeanTest) -> Verdict:
    assert pair.p_adjusted is not None
    if pair.p_adjusted < SIGNIFICANCE:
        return Verdict.BETTER if study.spec.direction.is_better(test.mean, 0.0) else Verdict.WORSE
    if test.p_value is None and test.mean and _least_adjusted_p(pair) >= SIGNIFICANCE:
        return Verdict.NOT_JUDGED  # whatever the differences were
    return Verdict.NO_DIFFERENCE_SEEN


def _least_adjusted_p(pair: Comparison) -> float:
    return bonferroni_correction(least_permutation_p(pair.num_seeds), pair.num_comparisons)


def _add_fisher_test(learning: LearnedCounts, num_comparisons: int) -> LearnedCounts:
    """Add the p-value of Fisher's exact test, if some run did not learn."""
    counts = (learning.arm, learning.reference)
    if all(count == n for count, n in counts):
        return learning
    return dataclasses.replace(
        learning, p_adjusted=bonferroni_correction(fisher_exact_p(*learning.arm, *learning.reference), num_comparisons)
    )


def equality_tolerance(values: Sequence[float]) -> float:
    """Return how far apart equal metrics of this size can be."""
    return ROUNDING * max(map(abs, values), default=0.0)


def missing_places(study: StudyResults, pair: Comparison) -> Iterator[Place]:
    """Yield the places of the runs of either arm of a comparison that failed or have not ended, seed by seed.

    Without them its values were not all tried with the same seeds, and what it loses to another arm may be its tuning.
    """
    tasks = study.task_numbers(pair.task_name)
    for arm in map(study.arm_number, (pair.arm_name, pair.reference_name)):
        missing_SxTxC = ~study.ended_AxTxCxS[arm, tasks].transpose(2, 0, 1)
        for seed, task, combination in np.argwhere(missing_SxTxC).tolist():
            yield arm, tasks[task], combination, seed
