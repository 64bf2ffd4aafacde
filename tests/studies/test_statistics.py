"""Paired statistics against published figures, sums by hand, and simulation that shares no code with them."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from transformer.studies.ablations.statistics import (
    Interval,
    bonferroni_correction,
    clip_to_metric_range,
    estimate_discrete_step,
    interquartile_interval,
    interquartile_mean,
    jackknife_error,
    num_pairs_needed,
    permutation_p,
    skewness_score,
    statistical_power,
    studentized_bootstrap_p,
    t_statistic,
    t_test,
    wilson_interval,
)

# Student's own example (1908): hours of sleep gained by ten patients under one drug more than under the other.
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]


def test_student_on_his_own_example() -> None:
    test = t_test(SLEEP)
    assert (test.sample_size, test.mean) == (10, pytest.approx(1.58))
    assert test.p_value == pytest.approx(0.002833, abs=1e-6)
    assert test.interval == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


# Tables of Student's t, two-sided 5 %.
@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)]
)
def test_the_width_of_an_interval_is_the_tables(degrees: int, quantile: float) -> None:
    n = degrees + 1
    values = np.random.default_rng(degrees).normal(size=n)
    test = t_test(values.tolist())
    error = math.sqrt(sum((value - sum(values) / n) ** 2 for value in values) / degrees / n)
    assert (test.interval.high - test.interval.low) / 2 / error == pytest.approx(quantile, abs=6e-4)
    assert sum(test.interval) / 2 == pytest.approx(sum(values) / n)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_p_is_the_area_of_both_tails(n: int) -> None:
    values = np.random.default_rng(n).normal(0.4, 1.0, n)
    t = abs(values.mean()) / (values.std(ddof=1) / math.sqrt(n))
    # The density of t on a fine grid of its angle: t = sqrt(n - 1) tan(a) spreads the tails over a finite range.
    angles = (np.arange(400_000) + 0.5) / 400_000 * math.pi / 2
    density = np.cos(angles) ** (n - 2)
    tail = density[angles > math.atan(t / math.sqrt(n - 1))].sum() / density.sum()
    assert t_test(values.tolist()).p_value == pytest.approx(tail, abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_equal_values_have_no_spread_and_carry_no_t(value: float) -> None:
    for moved in (0.0, 1e-9):  # equal but for a rounding
        test = t_test([value, value + moved, value - moved], resolution=1e-8)
        assert (test.sample_size, test.mean, test.standard_deviation, test.interval, test.p_value) == (
            3,
            value,
            0.0,
            None,
            None,
        )
    assert t_test([1e-9, -1e-9, 0.0], resolution=1e-8).mean == 0.0


def test_a_discrete_mean_is_corrected_by_half_of_its_step() -> None:
    """Of the whole numbers 2, 2 and 3 the mean moves by thirds: 7/3 - 1/6 over an error of 1/3."""
    test = t_test([2.0, 3.0, 2.0], step=estimate_discrete_step([2.0, 3.0, 2.0]))
    plain = t_test([2.0, 3.0, 2.0])
    t = (7 / 3 - 1 / 6) / (1 / 3)
    # The tails of t with two degrees of freedom have a closed form.
    assert test.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert test.p_value > plain.p_value
    assert (test.mean, test.standard_deviation) == (plain.mean, plain.standard_deviation)
    assert test.interval == pytest.approx((plain.interval.low - 1 / 6, plain.interval.high + 1 / 6))
    assert t_test([-1.0, 0.0, 0.0, 0.0, 0.0, 1.0], step=1.0).p_value == 1.0


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.3, 0.1, 0.2], 0.0),  # nothing ties
        ([0.1, 0.1, 0.1], 0.0),  # there is no other value
        ([0.5, 0.1, 0.1, 0.3], 0.2),
        ([0.9 - 0.8, 0.8 - 0.7, 0.4, 0.5], 0.1),  # equal but for a rounding
    ],
)
def test_values_that_tie_are_discrete(values: list[float], step: float) -> None:
    assert estimate_discrete_step(values, 1e-12) == pytest.approx(step)


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two values or more, not 1"):
        t_test([1.0])


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_permutation_p_is_the_share_of_all_signs_that_are_as_far_out(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.6, 1.0, n)
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=n)]
    share = np.mean([each >= abs(differences.sum()) - 1e-12 for each in sums])
    assert permutation_p(differences.tolist()) == pytest.approx(share)
    assert permutation_p([-each for each in differences]) == pytest.approx(share)


def test_the_permutation_p_of_what_leaves_no_noise() -> None:
    assert permutation_p([0.0] * 5) == 1.0
    assert permutation_p([0.1] * 5) == 2 / 2**5
    with pytest.raises(ValueError, match="two differences or more, not 1"):
        permutation_p([0.1])


def test_the_permutation_p_of_many_pairs_is_sampled_and_near_that_of_t() -> None:
    differences = np.random.default_rng(3).normal(0.4, 1.0, 30).tolist()
    assert (
        permutation_p(differences) == permutation_p(differences) == pytest.approx(t_test(differences).p_value, abs=0.01)
    )


# Tables of Student's t at two-sided 5 % over m comparisons (Dunn 1961, table 1).
@pytest.mark.parametrize(
    ("degrees", "comparisons", "quantile"), [(5, 2, 3.16), (5, 5, 4.03), (10, 4, 3.04), (10, 10, 3.58), (20, 3, 2.61)]
)
def test_the_width_of_an_adjusted_interval_is_dunns(degrees: int, comparisons: int, quantile: float) -> None:
    values = np.random.default_rng(degrees).normal(size=degrees + 1).tolist()
    one, several = t_test(values), t_test(values, num_comparisons=comparisons)
    error = statistics.stdev(values) / math.sqrt(degrees + 1)
    assert (several.interval.high - several.interval.low) / 2 / error == pytest.approx(quantile, abs=0.01)
    assert several.p_value == one.p_value


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    without = [(sum(SLEEP) - value) / 9 for value in SLEEP]
    assert jackknife_error(without) == pytest.approx(statistics.stdev(SLEEP) / math.sqrt(10))
    wider = t_test(SLEEP, least_error=2 * statistics.stdev(SLEEP) / math.sqrt(10))
    plain = t_test(SLEEP)
    assert wider.interval.high - wider.mean == pytest.approx(2 * (plain.interval.high - plain.mean))
    assert t_test(SLEEP, least_error=0.1) == plain


def test_bonferroni() -> None:
    assert bonferroni_correction(0.02, 3) == pytest.approx(0.06)
    assert (bonferroni_correction(0.4, 3), bonferroni_correction(0.4, 1)) == (1.0, 0.4)


# Newcombe (1998, Statistics in Medicine 17, table I), the score method without correction.
@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(count: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(count, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(n - count, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize(("count", "n"), [(3, 10), (1, 5), (40, 75)])
def test_wilsons_ends_are_where_the_score_test_turns(count: int, n: int) -> None:
    for end in wilson_interval(count, n):
        assert abs(count / n - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, abs=1e-5)


def test_wilson_stays_within_what_a_rate_can_be() -> None:
    for n in range(1, 60):
        assert wilson_interval(0, n).low == 0.0
        assert wilson_interval(n, n).high == 1.0
    for count, n in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ValueError, match="is no proportion"):
            wilson_interval(count, n)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0, 6.0], 3.0),  # three quarters of a value are cut at each end: rounded down, none
        ([9.0, 1.0, 2.0, 4.0], 3.0),
        ([100.0, 1.0, 2.0, 6.0, -50.0], 3.0),
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 99.0, 99.0], 2.5),
    ],
)
def test_interquartile_mean(values: list[float], mean: float) -> None:
    assert interquartile_mean(values) == pytest.approx(mean)
    assert interquartile_mean(values[::-1]) == pytest.approx(mean)


def test_no_run_has_no_interquartile_mean() -> None:
    with pytest.raises(ValueError, match="no value"):
        interquartile_mean([])


def test_the_bootstrap_is_what_all_resamples_give() -> None:
    """Efron and Tibshirani (1993), "An introduction to the bootstrap", 14.3, with all resamples for a sample."""
    tasks = [[0.0, 1.0, 5.0], [10.0, 13.0], [100.0, 103.0, 111.0]]

    def middle_mean(parts: Iterable[Sequence[float]]) -> float:
        values = sorted(itertools.chain(*parts))
        cut = len(values) // 4
        return statistics.fmean(values[cut : len(values) - cut])

    # Every resample of every task is equally likely; of 8 runs, 2 are cut at each end.
    means = sorted(map(middle_mean, itertools.product(*(itertools.product(task, repeat=len(task)) for task in tasks))))
    normal = statistics.NormalDist()
    observed = middle_mean(tasks)
    below = sum((mean < observed) + (mean <= observed) for mean in means) / 2 / len(means)
    bias = normal.inv_cdf(below)
    cubes = squares = 0.0
    for index, task in enumerate(tasks):
        left_out = [
            middle_mean([*tasks[:index], [*task[:i], *task[i + 1 :]], *tasks[index + 1 :]]) for i in range(len(task))
        ]
        influence = [(len(task) - 1) * (statistics.fmean(left_out) - mean) for mean in left_out]
        cubes += sum(each**3 for each in influence) / len(task) ** 3
        squares += sum(each**2 for each in influence) / len(task) ** 2
    acceleration = cubes / 6 / squares**1.5
    interval = interquartile_interval(tasks, resamples=20_000)
    for end, part in zip(interval, (0.025, 0.975), strict=True):
        moved = bias + normal.inv_cdf(part)
        share = normal.cdf(bias + moved / (1 - acceleration * moved))
        lowest, highest = (
            means[min(len(means) - 1, max(0, round((share + off) * len(means))))] for off in (-0.006, 0.006)
        )
        assert lowest <= end <= highest
    # Runs of one task are never drawn for another: the middle half has two of each outer task's at most.
    assert interval.low > 5
    assert interval.high < 63


@pytest.mark.parametrize("tasks", [[[0.1] * 5], [[0.0, 0.0], [1.0, 1.0, 1.0]]])
def test_equal_runs_have_no_bootstrap_interval(tasks: list[list[float]]) -> None:
    assert interquartile_interval(tasks) is None


def test_a_mean_that_no_single_run_moves_has_plain_quantiles() -> None:
    # Three or more of five draws are the 1 in 5.8 % of resamples, four or more in 0.7 %: of the middle three it is two.
    assert interquartile_interval([[0.0, 0.0, 0.0, 0.0, 1.0]]) == pytest.approx((0.0, 2 / 3))


def test_one_seed_gives_one_interval() -> None:
    tasks = [SLEEP, SLEEP[:4]]
    assert interquartile_interval(tasks) == interquartile_interval(tasks)
    assert interquartile_interval(tasks) != interquartile_interval(tasks, seed=1)


@pytest.mark.parametrize("tasks", [[], [[1.0, 2.0], [3.0]]])
def test_a_task_of_one_run_has_nothing_to_resample(tasks: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="two runs or more"):
        interquartile_interval(tasks)


@pytest.mark.parametrize(("n", "effect", "critical"), [(3, 2.0, 4.3027), (5, 1.2, 2.7764), (10, 0.9, 2.2622)])
def test_power_is_the_share_of_simulated_studies_that_see_the_difference(
    n: int, effect: float, critical: float
) -> None:
    draws = np.random.default_rng(n).normal(effect, 1.0, (200_000, n))
    t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / math.sqrt(n))
    assert statistical_power(n, effect) == pytest.approx((abs(t) > critical).mean(), abs=0.004)
    assert statistical_power(n, -effect) == statistical_power(n, effect)


def test_power_of_no_difference_is_the_level() -> None:
    for n in (2, 5, 40):
        assert statistical_power(n, 0.0) == pytest.approx(0.05, abs=1e-4)
        assert statistical_power(n, 0.0, 0.01) == pytest.approx(0.01, abs=1e-4)


# Cohen's small, medium and large effect, and one more, by tables of the paired t test at 80 % and 5 %.
@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_pairs_needed_as_published(effect: float, pairs: int) -> None:
    assert num_pairs_needed(effect) == pairs
    assert statistical_power(pairs, effect) >= 0.8 > statistical_power(pairs - 1, effect)


def test_pairs_needed_at_a_corrected_level_are_the_fewest_with_the_power() -> None:
    for level in (0.05, 0.0125):
        for effect in (0.7, 1.5, 3.0):
            pairs = num_pairs_needed(effect, level)
            assert statistical_power(pairs, effect, level) >= 0.8 > statistical_power(pairs - 1, effect, level)
    # Two pairs, far out, where a library's noncentral t is not a number: nearly all of the noise is in the estimated
    # deviation |Z|, and effect sqrt(2) / |Z| > 50.92 in 80 % of studies where effect is 50.92 x 1.2816 / sqrt(2).
    assert statistical_power(2, 46.15, 0.0125) == pytest.approx(0.8, abs=1e-3)
    assert num_pairs_needed(1e9) == 2


def test_what_has_no_power_is_refused() -> None:
    with pytest.raises(ValueError, match="two pairs or more"):
        statistical_power(1, 1.0)
    with pytest.raises(ValueError, match="difference of zero"):
        num_pairs_needed(0.0)


# The names are those that tasks report, and beside them the names of older records.
@pytest.mark.parametrize(
    ("metrics", "low", "high"),
    [
        ("exact_match exact exact_match/de position_accuracy optimal_action_accuracy accuracy_1_shot", 0.0, 1.0),
        ("invalid_fraction success success/2 greedy/success", 0.0, 1.0),
        ("loss language_model_loss bit_error_rate character_error_rate bayes_optimal_error frechet_distance", 0.0, 1.2),
        ("episode_reward sample_reward replayed_episode_reward reward", -0.1, 1.2),
        ("max_q_value value greedy_return expected_greedy_return oracle_return real_score fake_score", -0.1, 1.2),
        ("optimality_gap above_optimum excess area_ratio tour_length optimal_tour_length", -0.1, 1.2),
    ],
)
def test_an_interval_is_clipped_to_what_its_metric_can_be(metrics: str, low: float, high: float) -> None:
    for metric in metrics.split():
        clipped = clip_to_metric_range(f"test/{metric}", Interval(-0.1, 1.2), [0.1, 0.9])
        assert clipped == Interval(low, high), metric


def test_an_interval_is_whole_where_a_value_is_beyond_the_range_of_its_name() -> None:
    assert clip_to_metric_range("test/loss", Interval(-0.3, 0.4), [-0.1, 0.2]) == Interval(-0.3, 0.4)
    assert clip_to_metric_range("test/accuracy", Interval(-0.3, 1.4), [0.5, 1.1]) == Interval(-0.3, 1.4)


def test_the_t_statistic_of_a_p_value_is_that_which_gave_it() -> None:
    assert t_statistic(t_test(SLEEP).p_value, 10) == pytest.approx(4.0621, abs=1e-4)  # Student's own


def test_the_studentized_bootstrap_of_normal_noise_is_students_test() -> None:
    random = np.random.default_rng(1)
    groups = random.normal(3.0, 2.0, (40, 25)).tolist()
    for t, p in ((2.365, 0.05), (-2.365, 0.05), (3.499, 0.01), (0.711, 0.5)):  # tables of 7 degrees of freedom
        assert studentized_bootstrap_p(t, 8, groups) == pytest.approx(p, abs=0.012 + 0.04 * p)


def test_the_studentized_bootstrap_of_skewed_noise_doubts_the_side_on_which_means_tend_to_be_off() -> None:
    """The share of t statistics of exponential values that is as far out, by a simulation of its own."""
    random = np.random.default_rng(2)
    groups = random.exponential(size=(40, 25)).tolist()
    draws = random.exponential(size=(100_000, 8)) - 1
    t_N = draws.mean(axis=1) / draws.std(axis=1, ddof=1) * math.sqrt(8)
    low, high = studentized_bootstrap_p(-2.5, 8, groups), studentized_bootstrap_p(2.5, 8, groups)
    assert low == pytest.approx(2 * (t_N <= -2.5).mean(), rel=0.2)
    assert low > 0.12 > 0.04 > high
    assert studentized_bootstrap_p(-2.5, 8, [[-each for each in group] for group in groups]) < 0.04


def test_a_bootstrap_of_large_differences_from_five_pairs_sees_them() -> None:
    """Drawn as they are, five values often give nearly equal ones, and then t statistics as large as any."""
    assert studentized_bootstrap_p(30.0, 5, [[10.1, 9.9, 10.4, 9.6, 10.2]]) < 0.03
    assert studentized_bootstrap_p(30.0, 5, [[10.1, 9.9, 10.4, 9.6, 10.2], [7.0] * 5]) < 0.03
    with pytest.raises(ValueError, match="not all equal"):
        studentized_bootstrap_p(1.0, 3, [[2.0, 2.0, 2.0], [1.0]])


def test_the_skewness_of_normal_values_is_one_standard_error() -> None:
    """Of the values 0, 0, 0, 0, 5 it is 1.5, and its standard error by Fisher's formula sqrt(18 / 48)."""
    assert skewness_score([[0.0, 0.0, 0.0, 0.0, 5.0]]) == pytest.approx(1.5 / math.sqrt(18 / 48))
    assert skewness_score([[0.0, 0.0, 0.0, 0.0, 5.0], [7.0, 7.0, 7.0], [1.0]]) == pytest.approx(1.5 / math.sqrt(0.375))
    assert skewness_score([[3.0, 3.0, 3.0]]) == 0.0
    random = np.random.default_rng(3)
    scores = [skewness_score(random.normal(size=(3, 6)).tolist()) for _ in range(1_500)]
    assert np.std(scores) == pytest.approx(1.0, abs=0.07)
