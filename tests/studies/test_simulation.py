"""The statistics over many simulated studies: what they claim of 95 % and 5 % holds where the truth is known."""

import math

import numpy as np

from transformer.studies.ablation import Ablation
from transformer.studies.cells import Cell
from transformer.studies.choice import arrange
from transformer.studies.comparisons import Comparison, comparisons
from transformer.studies.statistics import t_test

RATES = (1e-4, 1e-3, 1e-2)


def test_intervals_of_five_seeds_hold_the_truth_which_the_normal_quantiles_would_not() -> None:
    """Seeds move both arms far more than the noise of their difference."""
    random = np.random.default_rng(7)
    studies, seeds, held, held_by_normal = 2000, 5, 0, 0
    for _ in range(studies):
        shared = random.normal(3.0, 1.0, seeds)
        arm, reference = (shared + truth + random.normal(0.0, 0.1, seeds) for truth in (0.3, 0.1))
        test = t_test((arm - reference).tolist())
        held += test.interval.low <= 0.2 <= test.interval.high
        held_by_normal += abs(test.mean - 0.2) <= 1.96 * test.deviation / math.sqrt(seeds)
    assert 0.93 <= held / studies <= 0.97
    assert held_by_normal / studies < 0.93


def study(spec: Ablation, random: np.random.Generator, effects: dict[str, float]) -> Comparison:
    """A study of made-up runs: a seed moves all of its runs, a learning rate its arm's, and validation is not test."""
    shared = random.normal(0.0, 0.5, len(spec.seeds))
    cells = []
    for arm, effect in effects.items():
        for tuned in spec.combinations():
            off = 0.1 * abs(math.log10(tuned["optimizer.learning_rate"]) + 3)
            for seed, moved in zip(spec.seeds, shared, strict=True):
                run = 2.0 + effect + off + moved + random.normal(0.0, 0.08)
                chosen, reported = run + random.normal(0.0, 0.03, 2)
                cell = Cell(arm, "", seed, tuned, "done", chosen, reported, {}, None, {}, 100, "", "")
                cells.append(cell)
    (comparison,) = comparisons(arrange(spec, cells))
    return comparison


def test_two_equal_arms_are_seldom_told_apart() -> None:
    spec = Ablation("Equal?", {"a": {}, "b": {}}, "a", {"optimizer.learning_rate": RATES})
    random = np.random.default_rng(11)
    pairs = [study(spec, random, {"a": 0.0, "b": 0.0}) for _ in range(200)]
    differences = sum(pair.verdict != "no difference seen" for pair in pairs)
    assert 0.02 <= differences / len(pairs) <= 0.09
    for pair in pairs:
        assert pair.test is not None
        assert (pair.verdict == "no difference seen") == (pair.test.interval.low <= 0 <= pair.test.interval.high)


def test_two_arms_that_differ_are_told_apart_as_often_as_their_power_says() -> None:
    spec = Ablation("Different?", {"a": {}, "b": {}}, "a", {"optimizer.learning_rate": RATES[1:2]})
    random = np.random.default_rng(12)
    # Both arms' noise is in a difference: twice 0.08^2 + 0.03^2. The effect is 1.682 of its deviations.
    effect = 1.682 * math.sqrt(2 * (0.08**2 + 0.03**2))
    verdicts = [study(spec, random, {"a": 0.0, "b": effect}).verdict for _ in range(100)]
    assert 70 <= verdicts.count("worse") <= 90
    assert "better" not in verdicts
