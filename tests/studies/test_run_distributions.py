"""Probability of improvement and performance profiles, against counting by hand and whole enumerations."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from transformer.studies.ablations.run_distributions import (
    improvement_interval,
    performance_profile,
    probability_of_improvement,
    profile_thresholds,
)


def test_improvement_counts_pairs_and_halves_of_ties() -> None:
    assert probability_of_improvement([[1.0, 2.0, 3.0]], [[0.0, 2.0]]) == pytest.approx((1 + 1.5 + 2) / 6)
    # Tasks have equal weight, whatever their runs.
    tasks = [[1.0], [1.0, 1.0, 1.0]], [[0.0], [2.0, 2.0, 1.0]]
    assert probability_of_improvement(*tasks) == pytest.approx((1 + 1 / 6) / 2)
    assert probability_of_improvement([[1.0], []], [[0.0], [1.0]]) is None
    # Two runs that diverged are equal, and worse than any other.
    assert probability_of_improvement([[-math.inf, 0.0]], [[-math.inf, -9.0]]) == pytest.approx((0.5 + 2) / 4)


def test_improvement_is_the_statistic_of_mann_and_whitney() -> None:
    random = np.random.default_rng(3)
    x, y = random.normal(size=7), random.normal(size=9)
    assert probability_of_improvement([x], [y]) == pytest.approx(stats.mannwhitneyu(x, y).statistic / 63, rel=1e-12)


def test_the_interval_is_that_of_all_resamples() -> None:
    x, y = [1.0, 2.5, 3.0, 4.0, 7.0], [0.0, 2.0, 2.5, 5.0, 6.0]
    every = list(itertools.combinations_with_replacement(range(5), 5))
    weights = [math.factorial(5) / math.prod(math.factorial(one.count(run)) for run in range(5)) for one in every]
    values = [np.array(x)[list(one)] for one in every], [np.array(y)[list(one)] for one in every]
    drawn, weight = [], []
    for (a, w), (b, v) in itertools.product(zip(values[0], weights, strict=True), zip(values[1], weights, strict=True)):
        drawn.append(((a[:, None] > b) + (a[:, None] == b) / 2).mean())
        weight.append(w * v)
    order = np.argsort(drawn)
    at = np.cumsum(np.array(weight)[order]) / np.sum(weight)
    low, high = (np.array(drawn)[order][np.searchsorted(at, end)] for end in (0.025, 0.975))
    interval = improvement_interval([x], [y], resamples=40_000)
    assert interval is not None
    assert interval == pytest.approx((low, high), abs=0.021)  # a pair of 25 is 0.04
    assert improvement_interval([x[:4]], [y]) is None


def test_a_profile_is_the_share_of_runs_that_reach_each_value() -> None:
    scores = [[0.1, 0.4, 0.4, 0.9, -math.inf], [0.0, 0.0, 0.5, 0.5, 1.0]]
    thresholds = profile_thresholds([scores, [[2.0], [0.3]]])
    assert thresholds == [0.0, 0.1, 0.3, 0.4, 0.5, 0.9, 1.0, 2.0]
    many = profile_thresholds([[np.random.default_rng(0).permutation(1000).tolist()]])
    assert many == pytest.approx(np.arange(61) * 999 / 60)
    profile = performance_profile(scores, [0.0, 0.4, 0.45, 1.0])
    assert profile is not None
    assert profile.shares == pytest.approx([(0.8 + 1) / 2, (0.6 + 0.6) / 2, (0.2 + 0.6) / 2, (0 + 0.2) / 2])
    assert profile.low is not None
    assert profile.high is not None
    assert all(low <= share <= high for low, share, high in zip(profile.low, profile.shares, profile.high, strict=True))
    # One task of five runs, of which two reach the value: the share of a resample is binomial.
    alone = performance_profile([[0.1, 0.2, 0.3, 0.8, 0.9]], [0.5], resamples=40_000)
    assert alone is not None
    assert alone.low == [stats.binom.ppf(0.025, 5, 0.4) / 5]
    assert alone.high == [stats.binom.ppf(0.975, 5, 0.4) / 5]
    few = performance_profile([[0.1, 0.2]], [0.15])
    assert few is not None
    assert (few.shares, few.low, few.high) == ([0.5], None, None)
    assert performance_profile([[1.0], []], [0.5]) is None
    assert profile_thresholds([[[-math.inf]]]) == []
