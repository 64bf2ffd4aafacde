"""Statistics of a few paired runs: intervals, corrections, and how many seeds a difference takes to be seen."""

import functools
import math
import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95  # of every interval
SIGNIFICANCE = 0.05  # two-sided, of every test
POWER = 0.8  # the share of studies that are to see a true difference
RESAMPLES = 2000  # of a bootstrap
SIGN_FLIPS = 9999  # of the signs, where there are too many to try each: beyond 13 pairs
_NODES = 1024  # of the integral over the estimated deviation: power is then good to 1e-4
_SHARES = {"accuracy", "exact", "share"}
_NEVER_NEGATIVE = {"loss", "entropy", "perplexity", "error", "distance", "bleu", "gleu", "norm"}


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class MeanTest(NamedTuple):
    """The mean of a sample, its deviation, its t interval, and the two-sided p of its being zero.

    A sample without spread has neither interval nor p.
    """

    n: int
    mean: float
    deviation: float
    interval: Interval | None
    p: float | None


def t_test(values: Sequence[float], *, resolution: float = 0.0, step: float = 0.0) -> MeanTest:
    """Student's t on one sample; on paired differences it is the paired t test (Student 1908, Biometrika 6).

        mean +- t(n - 1, 0.975) s / sqrt(n),    p = 2 P(T(n - 1) > |mean| sqrt(n) / s)

    with s the deviation with n - 1 in its denominator. Values that are all equal leave no noise to judge by: they have
    no t, so that there is neither an interval nor a p.

    Args:
        values: The sample.
        resolution: Values that differ by no more are equal.
        step: The distance of neighboring values that a discrete quantity can have, 0 where it is continuous. The mean
            moves by step / n, and half of that is the correction for continuity: the interval reaches so much further
            on both sides, and p is that of a mean so much nearer to zero. Without it tests of discrete values reject
            more true hypotheses than they say.

    Raises:
        ValueError: For fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"a t interval takes two values or more, not {len(values)}")
    sample = np.asarray(values, np.float64)
    if np.ptp(sample) <= resolution:
        mean = float(sample[0])  # the mean of equal numbers can be off by a rounding
        return MeanTest(sample.size, mean if abs(mean) > resolution else 0.0, 0.0, None, None)
    mean, deviation, correction = float(sample.mean()), float(sample.std(ddof=1)), step / (2 * sample.size)
    test = stats.ttest_1samp(sample, math.copysign(min(correction, abs(mean)), mean))
    low, high = test.confidence_interval(CONFIDENCE)
    interval = Interval(float(low) - correction, float(high) + correction)
    return MeanTest(sample.size, mean, deviation, interval, float(test.pvalue))


def discrete_step(values: Sequence[float], resolution: float = 0.0) -> float:
    """The step of a discrete quantity such as an accuracy: the least distance of two values, where two others tie.

    Values of which no two are equal to within `resolution` are continuous, and their step is 0.
    """
    gaps = np.diff(np.sort(np.asarray(values, np.float64)))
    apart = gaps[gaps > resolution]
    return float(apart.min()) if 0 < apart.size < gaps.size else 0.0


def permutation_p(differences: Sequence[float]) -> float:
    """The two-sided p of paired differences by flipping their signs (Fisher 1935, "The design of experiments", 21).

    The share of all 2^n choices of signs whose mean is as far from zero as the observed one, on either side: it takes
    no distribution for granted, and is never below 2 / 2^n, 0.0625 for five pairs. Beyond 13 pairs a fixed random
    sample of the choices stands for all.

    Raises:
        ValueError: For fewer than two differences.
    """
    if len(differences) < 2:
        raise ValueError(f"a permutation test takes two differences or more, not {len(differences)}")
    sample = np.asarray(differences, np.float64)
    test = stats.permutation_test(
        (sample,), np.mean, permutation_type="samples", vectorized=True, n_resamples=SIGN_FLIPS, rng=0
    )
    return float(test.pvalue)


def holm_correction(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Holm 1979, Scandinavian Journal of Statistics 6).

    Of m values in rising order the i-th becomes max over j <= i of min(1, (m - j + 1) p_j). Who rejects below 0.05 is
    wrong about any true null hypothesis of the family in at most 5 % of studies, however the tests depend on another.
    """
    order = np.argsort(ps, kind="stable")
    corrected = [0.0] * len(ps)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = highest
    return corrected


def wilson_interval(count: int, n: int) -> Interval:
    """The score interval of a proportion (Wilson 1927, Journal of the American Statistical Association 22).

    It holds at small n, and says something of rates that were never or always seen.

    Raises:
        ValueError: Unless 0 <= count <= n and n >= 1.
    """
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"{count} of {n} is no proportion")
    low, high = stats.binomtest(count, n).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(low), float(high))


def fisher_exact_p(count: int, n: int, other: int, of_other: int) -> float:
    """The two-sided p of two proportions being one: Fisher's exact test (Fisher 1935, "The design of experiments").

    Of three runs each it is never below 0.1, of five 0.0079.

    Raises:
        ValueError: Unless 0 <= count <= n for both.
    """
    if not (0 <= count <= n and 0 <= other <= of_other):
        raise ValueError(f"{count} of {n} and {other} of {of_other} are no proportions")
    return float(stats.fisher_exact([[count, n - count], [other, of_other - other]]).pvalue)


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half of all runs of all tasks (Agarwal et al. 2021, arXiv 2108.13264).

    A quarter of the values, rounded down, is left out at each end, as its authors' code does.

    Raises:
        ValueError: For no value.
    """
    if not len(values):
        raise ValueError("no value has no mean")
    return float(stats.trim_mean(values, 0.25))


def interquartile_interval(
    tasks: Sequence[Sequence[float]], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """The stratified bootstrap interval of the interquartile mean over tasks x seeds (Agarwal et al. 2021).

    Each resample draws from every task as many of its own runs as it has, with replacement. The ends are quantiles of
    the resamples' means, corrected for bias and acceleration (BCa: Efron 1987, Journal of the American Statistical
    Association 82); where these are undefined, the plain 2.5 and 97.5 % quantiles. Runs that are equal within every
    task leave no noise to judge by, and have no interval. One `seed` always gives one interval. With five runs it holds
    the truth in about 90 % of studies, not 95: a verdict rests on the t interval.

    Raises:
        ValueError: For no task, or for a task with fewer than two runs, which has nothing to resample.
    """
    if not tasks or min(map(len, tasks)) < 2:
        raise ValueError("a bootstrap takes two runs or more of every task")
    if all(min(task) == max(task) for task in tasks):
        return None

    def mean(*samples: np.ndarray, axis: int) -> np.ndarray:
        return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)

    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        drawn = stats.bootstrap(
            tasks, mean, n_resamples=resamples, confidence_level=CONFIDENCE, method="BCa", vectorized=True, rng=seed
        )
    ends = np.asarray(drawn.confidence_interval)
    if not np.isfinite(ends).all():
        ends = np.quantile(drawn.bootstrap_distribution, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(ends[0]), float(ends[1]))


def statistical_power(n: int, effect: float, significance: float = SIGNIFICANCE) -> float:
    """The share of studies with n pairs whose two-sided t test sees a difference of `effect` deviations.

        P(|T'| > t(n - 1, 1 - significance / 2)),    T' = (Z + effect sqrt(n)) / S,    S^2 = chi^2(n - 1) / (n - 1)

    T' is the noncentral t (Cohen 1988, "Statistical power analysis for the behavioral sciences", chapter 2). `effect`
    is the true mean of the paired differences over their true deviation.

    Raises:
        ValueError: For fewer than two pairs.
    """
    if n < 2:
        raise ValueError(f"a paired t test takes two pairs or more, not {n}")
    critical = stats.t.ppf(1 - significance / 2, n - 1) * _deviations(n - 1)
    center = abs(effect) * math.sqrt(n)
    # scipy.stats.nct is NaN in its far tail, where a solver walks (SciPy 1.18).
    return float(np.mean(stats.norm.cdf(center - critical) + stats.norm.cdf(-center - critical)))


@functools.lru_cache
def _deviations(degrees: int) -> np.ndarray:
    """Estimated deviations, in units of the true one, at equally likely places of their distribution."""
    places = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(stats.chi2.ppf(places, degrees) / degrees)


def detectable_effect(n: int, significance: float = SIGNIFICANCE) -> float:
    """The smallest difference, in deviations of the paired differences, that n pairs see with a power of 80 %.

    Raises:
        ValueError: For fewer than two pairs.
    """
    highest = 1.0
    while statistical_power(n, highest, significance) < POWER:
        highest *= 2
    return float(optimize.brentq(lambda effect: statistical_power(n, effect, significance) - POWER, 0.0, highest))


def pairs_needed(effect: float, significance: float = SIGNIFICANCE) -> int:
    """The fewest pairs, two or more, that see a difference of `effect` deviations with a power of 80 %.

    Raises:
        ValueError: For an effect of zero, which no number of pairs sees.
    """
    if not effect:
        raise ValueError("no number of pairs sees a difference of zero")
    # With the deviation known, (z + z)^2 / effect^2 would do: t takes a few more, and never fewer.
    z = float(stats.norm.ppf(1 - significance / 2) + stats.norm.ppf(POWER))
    pairs = max(2, math.floor((z / effect) ** 2))
    while statistical_power(pairs, effect, significance) < POWER:
        pairs += 1
    return pairs


def clip_to_possible(metric: str, interval: Interval, values: Sequence[float]) -> Interval:
    """An interval of a mean, cut where no value of the metric can lie.

    A t interval of a few losses near 0 reaches below it, where no mean of losses is: what is cut off holds no possible
    mean, so that the interval holds the true one as often as before. The metric is known by the words of its name; one
    with a value outside its range, as of a loss that subtracts something, keeps the whole interval.

    Examples: ("test/loss", -0.1 to 0.4) -> 0 to 0.4; ("test/reward", -0.1 to 0.4) as it is.
    """
    words = set(re.split(r"[/_]", metric))
    low = 0.0 if words & (_SHARES | _NEVER_NEGATIVE) else -math.inf
    high = 1.0 if words & _SHARES else math.inf
    if not all(low <= value <= high for value in values):
        return interval
    return Interval(max(interval.low, low), min(interval.high, high))
