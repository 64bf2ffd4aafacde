"""Statistics of a few paired runs: intervals, tests and corrections, and the power of a planned study."""

import functools
import itertools
import math
import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

CONFIDENCE = 0.95  # of every interval
SIGNIFICANCE = 0.05  # two-sided, of every test
POWER = 0.8  # the share of studies that are to see a true difference
RESAMPLES = 2000  # of a bootstrap
BOOTSTRAPPED_TESTS = 9999  # whose statistics are drawn
SIGN_FLIPS = 9999  # of the signs, where there are too many to try each
_MOST_PAIRS = 13  # whose signs are all tried
_ROUNDING = 1e-12  # relative: sums that differ by less are equal
MIN_RUNS_FOR_BOOTSTRAP = 5  # of each task
_NODES = 1024  # of the integral over the estimated deviation: power is then good to 1e-4
_SHARES = {"accuracy", "exact", "fraction", "share", "success"}
_NEVER_NEGATIVE = {"loss", "entropy", "perplexity", "error", "distance", "bleu", "gleu", "norm"}


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the distance of its ends."""
        return (self.high - self.low) / 2

    def oriented(self, sign: float) -> "Interval":
        """Return the interval of the quantity times 1 or -1."""
        low, high = sorted(sign * end for end in self)
        return Interval(low, high)


class MeanTest(NamedTuple):
    """The mean of a sample and its t test against zero.

    Attributes:
        sample_size: The size of the sample.
        mean: The mean.
        standard_deviation: The standard deviation, with n - 1 in its denominator.
        interval: The t interval of the mean; None without spread.
        p_value: The two-sided p-value of a zero mean; None without spread.
    """

    sample_size: int
    mean: float
    standard_deviation: float
    interval: Interval | None
    p_value: float | None


def t_test(
    values: Sequence[float],
    *,
    resolution: float = 0.0,
    step: float = 0.0,
    num_comparisons: int = 1,
    least_error: float = 0.0,
) -> MeanTest:
    """Compute Student's t test on one sample, or the paired t test on differences (Student 1908, Biometrika 6).

        mean +- t(n - 1, 1 - 0.025 / m) s / sqrt(n),    p = 2 P(T(n - 1) > |mean| sqrt(n) / s)

    with s the standard deviation with n - 1 in its denominator, and m comparisons, so that the intervals of all contain
    the truth in at least 95% of studies (Bonferroni); p is not corrected. Values that are all equal have no estimate of
    noise, and so neither an interval nor a p-value.

    Args:
        values: The sample.
        resolution: Values that differ by no more count as equal.
        step: The distance of neighboring values that a discrete quantity can have, 0 if it is continuous. The mean
            moves by step / n, and half of that is the continuity correction: the interval is wider by it
            on both sides, and p is that of a mean closer to zero by it. Without it tests of discrete values reject
            more true hypotheses than they state.
        num_comparisons: The number m of comparisons of which this is one.
        least_error: The smallest standard error of the mean, which takes the place of s / sqrt(n) if that is smaller.

    Returns:
        The test.

    Raises:
        ValueError: If there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"a t interval takes two values or more, not {len(values)}")
    sample = np.asarray(values, np.float64)
    if np.ptp(sample) <= resolution:
        mean = float(sample[0])  # the mean of equal numbers can be off by a rounding
        return MeanTest(sample.size, mean if abs(mean) > resolution else 0.0, 0.0, None, None)
    mean, deviation, correction = float(sample.mean()), float(sample.std(ddof=1)), step / (2 * sample.size)
    error, degrees = max(deviation / math.sqrt(sample.size), least_error), sample.size - 1
    half_width = float(special.stdtrit(degrees, 1 - (1 - CONFIDENCE) / 2 / num_comparisons)) * error + correction
    p = 2 * float(special.stdtr(degrees, -max(0.0, abs(mean) - correction) / error))
    return MeanTest(sample.size, mean, deviation, Interval(mean - half_width, mean + half_width), p)


def t_statistic(p: float, count: int) -> float:
    """Return the size of the t statistic of a sample that has a two-sided p-value."""
    return -float(special.stdtrit(count - 1, p / 2))


def estimate_discrete_step(values: Sequence[float], resolution: float = 0.0) -> float:
    """Estimate the step of a discrete quantity such as an accuracy: the least distance between values, if some tie.

    Args:
        values: The values.
        resolution: Values that differ by no more count as equal.

    Returns:
        The step; 0 if no two values are equal, as in a continuous quantity.
    """
    gaps = np.diff(np.sort(np.asarray(values, np.float64)))
    distinct_gaps = gaps[gaps > resolution]
    return float(distinct_gaps.min()) if 0 < distinct_gaps.size < gaps.size else 0.0


def jackknife_error(means: Sequence[float]) -> float:
    """Compute the jackknife's standard error of a statistic (Tukey 1958, Annals of Mathematical Statistics 29).

        sqrt((n - 1) / n * sum of (mean_i - their mean)^2)

    Args:
        means: The statistic without the i-th of n observations, for each of them.

    Returns:
        The standard error; for the mean of observations it is s / sqrt(n).
    """
    sample = np.asarray(means, np.float64)
    return float(sample.std() * math.sqrt(sample.size - 1))


def permutation_p(differences: Sequence[float]) -> float:
    """Compute the two-sided p of paired differences by flipping signs (Fisher 1935, "The design of experiments", 21).

    It is the fraction of all 2^n sign patterns whose mean is as far from zero as the observed one, on either side. It
    assumes no distribution, and is never below 2 / 2^n, 0.0625 for five pairs. Beyond 13 pairs a fixed random
    sample of the patterns is used.

    Raises:
        ValueError: If there are fewer than two differences.
    """
    if len(differences) < 2:
        raise ValueError(f"a permutation test takes two differences or more, not {len(differences)}")
    sample = np.asarray(differences, np.float64)
    if sample.size <= _MOST_PAIRS:
        sums = np.abs(_sign_patterns(sample.size) @ sample)
        return float(np.mean(sums >= abs(sample.sum()) * (1 - _ROUNDING)))
    test = stats.permutation_test(
        (sample,), np.mean, permutation_type="samples", vectorized=True, n_resamples=SIGN_FLIPS, rng=0
    )
    return float(test.pvalue)


def studentized_bootstrap_p(t: float, count: int, groups: Sequence[Sequence[float]], seed: int = 0) -> float:
    """Compute the two-sided p of a t statistic by the studentized bootstrap (Hall 1988, Annals of Statistics 16).

        2 min(P(t* <= t), P(t* >= t)),    t* = mean(d*) sqrt(n) / s(d*)

    with n differences d* drawn with replacement from the R differences of all groups, each less the mean of its group
    and divided by its standard deviation, plus normal noise of deviation R^(-1/5) / 2 (the smoothed bootstrap, Efron
    1979). Where differences are skewed, t is not symmetric: a mean tends to be off on the side on which the estimate of
    noise is small. More groups than the one that t is of show the skewness better.

    Args:
        t: The t statistic.
        count: The number n of differences that it is of.
        groups: Differences with noise of the same shape; those of a group that are all equal are left out.
        seed: The seed of the bootstrap.

    Raises:
        ValueError: If no group has a spread.
    """
    samples = [np.asarray(group, np.float64) for group in groups if len(group) > 1 and np.ptp(group) > 0]
    if not samples:
        raise ValueError("a bootstrap takes a group with differences that are not all equal")
    residuals_R = np.concatenate([(sample - sample.mean()) / sample.std(ddof=1) for sample in samples])
    random, shape = np.random.default_rng(seed), (BOOTSTRAPPED_TESTS, count)
    drawn_BxN = random.choice(residuals_R, shape) + len(residuals_R) ** (-1 / 5) / 2 * random.normal(size=shape)
    t_B = drawn_BxN.mean(axis=1) * math.sqrt(count) / drawn_BxN.std(axis=1, ddof=1)
    below, above = np.sum(t_B <= t), np.sum(t_B >= t)
    return min(1.0, 2 * (1 + int(min(below, above))) / (1 + BOOTSTRAPPED_TESTS))


def skewness_score(groups: Sequence[Sequence[float]]) -> float:
    """Compute the mean skewness of some groups in standard errors of that of normal values.

    The skewness m3 / m2^(3/2) of n normal values has mean 0 and variance 6 (n - 2) / ((n + 1) (n + 3)) (Fisher 1930,
    Proceedings of the Royal Society A 130). Groups of fewer than three values, or of equal ones, are left out.

    Returns:
        The score; 0 without a group.
    """
    samples = [np.asarray(group, np.float64) for group in groups if len(group) > 2 and np.ptp(group) > 0]
    if not samples:
        return 0.0
    skewness = sum(float(stats.skew(sample)) for sample in samples)
    variance = sum(6 * (n - 2) / ((n + 1) * (n + 3)) for n in map(len, samples))
    return skewness / math.sqrt(variance)


@functools.lru_cache
def _sign_patterns(n: int) -> np.ndarray:
    """Return all patterns of n signs, of two opposite ones the one that begins with a plus."""
    return np.array(list(itertools.product((1.0,), *[(1.0, -1.0)] * (n - 1))))


def least_permutation_p(n: int) -> float:
    """Return the smallest p that flipping the signs of n differences can give: only two of the 2^n are as far out."""
    return 2.0 ** (1 - n)


def bonferroni_correction(p: float, num_comparisons: int) -> float:
    """Apply Bonferroni's correction to a p-value (Dunn 1961, Journal of the American Statistical Association 56).

    The p-value is multiplied by the number of comparisons, up to 1. Rejecting below 0.05 then wrongly rejects any true
    null hypothesis of the family in at most 5% of studies, whatever the dependence of the tests. It does so exactly
    where an interval at 1 - 0.05 / num_comparisons excludes 0; such intervals of all comparisons contain the truth
    together in at least 95% of studies. The stepwise correction by Holm (1979) rejects a little more often, and has no
    such intervals.

    Args:
        p: The p-value.
        num_comparisons: The number of comparisons.

    Returns:
        The corrected p-value.
    """
    return min(1.0, num_comparisons * p)


def wilson_interval(count: int, n: int) -> Interval:
    """Compute the score interval of a proportion (Wilson 1927, Journal of the American Statistical Association 22).

    It is valid at small n, and informative for rates of 0 and 1.

    Args:
        count: The number of successes.
        n: The number of trials.

    Returns:
        The 95% interval.

    Raises:
        ValueError: If `count` is not from 0 to `n`, or `n` is below 1.
    """
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"{count} of {n} is no proportion")
    low, high = stats.binomtest(count, n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(low), float(high))


@functools.lru_cache
def fisher_exact_p(count: int, n: int, other_count: int, other_n: int) -> float:
    """Compute the two-sided p of Fisher's exact test of two proportions (Fisher 1935, "The design of experiments").

    For three runs each it is never below 0.1, for five 0.0079.

    Args:
        count: The successes of the first sample.
        n: Its size.
        other_count: The successes of the second sample.
        other_n: Its size.

    Returns:
        The p-value.

    Raises:
        ValueError: If a count is not from 0 to its sample's size.
    """
    if not (0 <= count <= n and 0 <= other_count <= other_n):
        raise ValueError(f"{count} of {n} and {other_count} of {other_n} are no proportions")
    return float(stats.fisher_exact([[count, n - count], [other_count, other_n - other_count]]).pvalue)


def interquartile_mean(values: Sequence[float]) -> float:
    """Compute the mean of the middle half of all runs of all tasks (Agarwal et al. 2021, arXiv 2108.13264).

    A quarter of the values, rounded down, is left out at each end, as in the authors' code.

    Raises:
        ValueError: If there are no values.
    """
    if not len(values):
        raise ValueError("no value has no mean")
    return float(stats.trim_mean(values, 0.25))


def interquartile_interval(
    tasks: Sequence[Sequence[float]], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """Compute the stratified bootstrap interval of the interquartile mean over tasks and seeds (Agarwal et al. 2021).

    Each resample draws from every task as many of its own runs as it has, with replacement. The ends are quantiles of
    the resamples' means, corrected for bias and acceleration (BCa: Efron 1987, Journal of the American Statistical
    Association 82); if these are undefined, the plain 2.5 and 97.5% quantiles. It contains the truth less often than in
    95% of studies, here of normal values, 2,000 each:

        runs of each task    2      3      4      5      6      8      10
        one task           48%    72%    89%    90%    90%    94%    93%
        four tasks         73%    87%    90%    90%    92%    92%    93%

    Reports show it from `MIN_RUNS_FOR_BOOTSTRAP` runs on, with its coverage. Verdicts rest on the t interval.

    Args:
        tasks: The values of the runs of each task.
        resamples: The number of resamples.
        seed: The seed of the bootstrap.

    Returns:
        The 95% interval; None if the runs are equal within every task.

    Raises:
        ValueError: If there is no task, or a task has fewer than two runs.
    """
    if not tasks or min(map(len, tasks)) < 2:
        raise ValueError("a bootstrap takes two runs or more of every task")
    if all(min(task) == max(task) for task in tasks):
        return None

    def mean(*samples: np.ndarray, axis: int) -> np.ndarray:
        return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)

    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        bootstrap = stats.bootstrap(
            tasks, mean, n_resamples=resamples, confidence_level=CONFIDENCE, method="BCa", vectorized=True, rng=seed
        )
    ends = np.asarray(bootstrap.confidence_interval)
    if not np.isfinite(ends).all():
        ends = np.quantile(bootstrap.bootstrap_distribution, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(ends[0]), float(ends[1]))


def interquartile_coverage(num_runs: int) -> float:
    """Return the share of studies in which `interquartile_interval` contains the truth, by its table.

    Args:
        num_runs: The number of runs of each task, at least `MIN_RUNS_FOR_BOOTSTRAP`.
    """
    return 0.90 if num_runs < 8 else 0.92


def statistical_power(n: int, effect: float, significance: float = SIGNIFICANCE) -> float:
    """Compute the probability that the two-sided paired t test of n pairs detects a difference of `effect` deviations.

        P(|T'| > t(n - 1, 1 - significance / 2)),    T' = (Z + effect sqrt(n)) / S,    S^2 = chi^2(n - 1) / (n - 1)

    T' has the noncentral t distribution (Cohen 1988, "Statistical power analysis for the behavioral sciences", chapter
    2).

    Args:
        n: The number of pairs.
        effect: The true mean of the paired differences over their true standard deviation.
        significance: The two-sided significance level.

    Returns:
        The power, from 0 to 1.

    Raises:
        ValueError: If there are fewer than two pairs.
    """
    if n < 2:
        raise ValueError(f"a paired t test takes two pairs or more, not {n}")
    critical = stats.t.ppf(1 - significance / 2, n - 1) * _deviation_quantiles(n - 1)
    center = abs(effect) * math.sqrt(n)
    # scipy.stats.nct is NaN in its far tail, where a solver walks (SciPy 1.18).
    return float(np.mean(stats.norm.cdf(center - critical) + stats.norm.cdf(-center - critical)))


@functools.lru_cache
def _deviation_quantiles(degrees: int) -> np.ndarray:
    """Return quantiles of the estimated standard deviation, in units of the true one."""
    places = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(stats.chi2.ppf(places, degrees) / degrees)


def num_pairs_needed(effect: float, significance: float = SIGNIFICANCE) -> int:
    """Return the fewest pairs, at least two, that detect a difference with 80% power.

    Args:
        effect: The difference, in standard deviations of the paired differences.
        significance: The two-sided significance level of the test.

    Returns:
        The number of pairs.

    Raises:
        ValueError: If `effect` is zero, which no number of pairs detects.
    """
    if not effect:
        raise ValueError("no number of pairs sees a difference of zero")
    # With the deviation known, (z + z)^2 / effect^2 would do: t takes a few more, and never fewer.
    z = float(stats.norm.ppf(1 - significance / 2) + stats.norm.ppf(POWER))
    pairs = max(2, math.floor((z / effect) ** 2))
    while statistical_power(pairs, effect, significance) < POWER:
        pairs += 1
    return pairs


def clip_to_metric_range(metric: str, interval: Interval, values: Sequence[float]) -> Interval:
    """Clip the interval of a mean to the values that the metric can have.

    A t interval of a few losses near 0 may extend below it, where no mean of losses can be; clipping does not change
    its coverage. The range is known from the words of the metric's name. A metric with a value outside of it, such as a
    loss that subtracts something, keeps the whole interval.

    Examples: ("test/loss", -0.1 to 0.4) -> 0 to 0.4; ("test/episode_reward", -0.1 to 0.4) is unchanged.

    Args:
        metric: The metric, as "split/name".
        interval: The interval.
        values: The values that it was computed from.

    Returns:
        The clipped interval.
    """
    words = set(re.split(r"[/_]", metric))
    low = 0.0 if words & (_SHARES | _NEVER_NEGATIVE) else -math.inf
    high = 1.0 if words & _SHARES else math.inf
    if not all(low <= value <= high for value in values):
        return interval
    return Interval(max(interval.low, low), min(interval.high, high))
