"""Statistics of a few paired runs: intervals, corrections, and how many seeds a difference takes to be seen.

Pure functions of numbers. Runs that share a seed share their data order, and where shapes allow their initial values:
what is tested is their difference, seed by seed.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

CONFIDENCE = 0.95  # of every interval
SIGNIFICANCE = 0.05  # two-sided, of every test
POWER = 0.8  # the share of studies that are to see a difference which is there
RESAMPLES = 2000
_NODES = 1024  # of the integral over the estimated deviation: power is then good to 1e-4


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class MeanTest(NamedTuple):
    """The mean of a sample, its deviation, its t interval, and the two-sided p of its being zero."""

    n: int
    mean: float
    deviation: float
    interval: Interval
    p: float


def t_test(values: Sequence[float]) -> MeanTest:
    """Student's t on one sample; on paired differences it is the paired t test (Student 1908, Biometrika 6).

        mean +- t(n - 1, 0.975) s / sqrt(n),    p = 2 P(T(n - 1) > |mean| sqrt(n) / s)

    with s the deviation with n - 1 in its denominator. Values that are all equal leave no noise to judge by: the
    interval has no width, and p is 1 where they are zero and 0 elsewhere.

    Errors: ValueError for fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"a t interval takes two values or more, not {len(values)}")
    sample = np.asarray(values, np.float64)
    n, mean, deviation = sample.size, float(sample.mean()), float(sample.std(ddof=1))
    if np.ptp(sample) == 0:
        mean = float(sample[0])  # the mean of equal numbers can be off by a rounding
        return MeanTest(n, mean, 0.0, Interval(mean, mean), 0.0 if mean else 1.0)
    error = deviation / math.sqrt(n)
    half = _t_quantile(n - 1, (1 + CONFIDENCE) / 2) * error
    p = 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    return MeanTest(n, mean, deviation, Interval(mean - half, mean + half), p)


def holm(ps: Sequence[float]) -> list[float]:
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


def wilson(count: int, n: int) -> Interval:
    """The score interval of a proportion (Wilson 1927, Journal of the American Statistical Association 22).

        (f + z^2 / 2n +- z sqrt(f (1 - f) / n + z^2 / 4n^2)) / (1 + z^2 / n),    f = count / n, z = 1.96

    It holds at small n, and says something of rates that were never or always seen.

    Errors: ValueError unless 0 <= count <= n and n >= 1.
    """
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"{count} of {n} is no proportion")
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    f = count / n
    centre = f + z**2 / (2 * n)
    half = z * math.sqrt(f * (1 - f) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    # At the ends the two terms are equal but for their rounding.
    low = 0.0 if count == 0 else (centre - half) / scale
    high = 1.0 if count == n else (centre + half) / scale
    return Interval(low, high)


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half of all runs of all tasks (Agarwal et al. 2021, arXiv 2108.13264).

    A quarter of the values, rounded down, is left out at each end, as its authors' code does.

    Errors: ValueError for no value.
    """
    if not len(values):
        raise ValueError("no value has no mean")
    return float(_interquartile_means(np.asarray(values, np.float64)[None])[0])


def interquartile_interval(tasks: Sequence[Sequence[float]], *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The stratified percentile bootstrap of the interquartile mean over tasks x seeds (Agarwal et al. 2021).

    Each resample draws from every task as many of its own runs as it has, with replacement; the interval holds the
    middle 95 % of the resamples' interquartile means. One `seed` always gives one interval. With few runs it is too
    narrow, as every percentile bootstrap: the t interval is what a verdict rests on.

    Errors: ValueError for no task, or for a task with fewer than two runs, which has nothing to resample.
    """
    if not tasks or min(map(len, tasks)) < 2:
        raise ValueError("a bootstrap takes two runs or more of every task")
    generator = np.random.default_rng(seed)
    drawn = [np.asarray(runs, np.float64)[generator.integers(len(runs), size=(resamples, len(runs)))] for runs in tasks]
    means = _interquartile_means(np.concatenate(drawn, axis=1))
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))


def _interquartile_means(samples: np.ndarray) -> np.ndarray:
    """The interquartile mean of every row."""
    cut = samples.shape[1] // 4
    return np.sort(samples, axis=1)[:, cut : samples.shape[1] - cut].mean(axis=1)


def power(n: int, effect: float, significance: float = SIGNIFICANCE) -> float:
    """The share of studies with n pairs whose two-sided t test sees a difference of `effect` deviations.

        P(|T'| > t(n - 1, 1 - significance / 2)),    T' = (Z + effect sqrt(n)) / S,    S^2 = chi^2(n - 1) / (n - 1)

    T' is the noncentral t (Cohen 1988, "Statistical power analysis for the behavioral sciences", chapter 2). `effect`
    is the true mean of the paired differences over their true deviation.

    Errors: ValueError for fewer than two pairs.
    """
    if n < 2:
        raise ValueError(f"a paired t test takes two pairs or more, not {n}")
    critical = _t_quantile(n - 1, 1 - significance / 2) * _deviations(n - 1)
    centre = abs(effect) * math.sqrt(n)
    # SciPy's own noncentral t is NaN in its far tail, where a solver walks.
    return float(np.mean(special.ndtr(centre - critical) + special.ndtr(-centre - critical)))


@functools.lru_cache
def _deviations(degrees: int) -> np.ndarray:
    """Estimated deviations, in units of the true one, at equally likely places of their distribution."""
    places = (np.arange(_NODES) + 0.5) / _NODES
    return np.sqrt(special.gammaincinv(degrees / 2, places) * 2 / degrees)


def detectable_effect(n: int, significance: float = SIGNIFICANCE) -> float:
    """The smallest difference, in deviations of the paired differences, that n pairs see with a power of 80 %.

    Errors: ValueError for fewer than two pairs.
    """
    highest = 1.0
    while power(n, highest, significance) < POWER:
        highest *= 2
    return float(optimize.brentq(lambda effect: power(n, effect, significance) - POWER, 0.0, highest))


def pairs_needed(effect: float, significance: float = SIGNIFICANCE) -> int:
    """The fewest pairs, two or more, that see a difference of `effect` deviations with a power of 80 %.

    Errors: ValueError for an effect of zero, which no number of pairs sees.
    """
    if not effect:
        raise ValueError("no number of pairs sees a difference of zero")
    # With the deviation known, (z + z)^2 / effect^2 would do: t takes a few more, and never fewer.
    z = float(special.ndtri(1 - significance / 2) + special.ndtri(POWER))
    pairs = max(2, math.floor((z / effect) ** 2))
    while power(pairs, effect, significance) < POWER:
        pairs += 1
    return pairs


def _t_quantile(degrees: int, probability: float) -> float:
    return float(special.stdtrit(degrees, probability))
