"""The statistics over many simulated studies: what they claim of 95% and 5% holds where the truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.studies.null_studies import (
    ARMS,
    EFFECT,
    SEEDS,
    Setting,
    has_power,
    measure,
    measure_power,
    num_studies,
    settings,
)
from transformer.studies.ablations.ablation import Ablation, Direction
from transformer.studies.ablations.arm_comparisons import Comparison, compare_arms
from transformer.studies.ablations.hyperparameter_selection import select_hyperparameters
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.statistics import interquartile_coverage, interquartile_interval, t_test

pytestmark = pytest.mark.slow

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
        held_by_normal += abs(test.mean - 0.2) <= 1.96 * test.standard_deviation / math.sqrt(seeds)
    assert 0.93 <= held / studies <= 0.97
    assert held_by_normal / studies < 0.93


@pytest.mark.parametrize(("tasks", "runs"), [(1, 5), (1, 8), (4, 5), (4, 8)])
def test_intervals_of_interquartile_means_cover_what_pages_say(tasks: int, runs: int) -> None:
    random = np.random.default_rng(17)
    intervals = [interquartile_interval(random.normal(0, 1, (tasks, runs)).tolist()) for _ in range(400)]
    held = np.mean([low <= 0 <= high for low, high in intervals])
    assert held == pytest.approx(interquartile_coverage(runs), abs=0.035)


def study(spec: Ablation, random: np.random.Generator, effects: dict[str, float]) -> Comparison:
    """A study of made-up runs: a seed moves all of its runs, a learning rate its arm's, and validation is not test."""
    shared = random.normal(0.0, 0.5, len(spec.seeds))
    cells = []
    for arm, effect in effects.items():
        for hyperparameters in spec.combinations():
            off = 0.1 * abs(math.log10(hyperparameters["optimizer.learning_rate"]) + 3)
            for seed, moved in zip(spec.seeds, shared, strict=True):
                run = 2.0 + effect + off + moved + random.normal(0.0, 0.08)
                chosen, reported = run + random.normal(0.0, 0.03, 2)
                cell = RunResult(arm, "", seed, hyperparameters, "done", chosen, reported, {}, None, {}, 100, "", "")
                cells.append(cell)
    (comparison,) = compare_arms(select_hyperparameters(spec, cells))
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


@pytest.mark.parametrize("setting", [*settings()], ids=lambda setting: "-".join(map(str, setting)))
def test_equal_arms_are_told_apart_in_one_study_of_twenty_at_most(setting: Setting) -> None:
    """A tenth of the studies of the guide's table: no rate is above 5% by more than chance among so many settings."""
    rate = measure(setting, num_studies(setting) // 10)
    assert stats.binom.sf(rate.count - 1, rate.of, 0.05) > 0.05 / len(list(settings()))


@pytest.mark.parametrize("setting", [*filter(has_power, settings())], ids=lambda setting: "-".join(map(str, setting)))
def test_an_arm_that_is_worse_is_called_so_at_most_as_often_as_normal_noise_allows(setting: Setting) -> None:
    """No test sees more than the t test whose noise is normal, but for the rounding of accuracies."""
    power = measure_power(setting, 100)
    critical = stats.t.ppf(1 - 0.025 / (setting.arms - 1), setting.seeds - 1)
    best = stats.nct.sf(critical, setting.seeds - 1, EFFECT * math.sqrt(setting.seeds))
    # Tuned to the best of noisy values, an arm has less noise than each value.
    assert power.low <= best + (0.1 if setting.tuned else 0.05)
    if setting.metric == "a loss with normal noise" and not setting.tuned:
        assert stats.binom.cdf(power.count, power.of, best) > 0.05 / (len(SEEDS) * len(ARMS))


def test_intervals_of_all_arms_hold_their_differences_together() -> None:
    random = np.random.default_rng(19)
    names, truths = "abcdef", np.array([0.0, 0.0, 0.1, 0.3, 1.0, 3.0])
    spec = Ablation("Q?", {name: {} for name in names}, "a")
    held, studies = 0, 300
    for _ in range(studies):
        values = random.normal(truths[:, None], 0.2, (6, 5)) + random.normal(0, 1, 5)
        cells = [
            RunResult(name, "", seed, {}, "done", value, value, {}, None, {}, 100, "", "")
            for name, own in zip(names, values.tolist(), strict=True)
            for seed, value in zip(spec.seeds, own, strict=True)
        ]
        pairs = compare_arms(select_hyperparameters(spec, cells))
        held += all(
            pair.test.interval.low <= truth <= pair.test.interval.high
            for pair, truth in zip(pairs, truths[1:], strict=True)
        )
    assert held / studies >= 0.93


def told_apart(accuracies_AxS: np.ndarray) -> bool:
    """Whether a study of accuracies, by arm and seed, gives any verdict."""
    arms, seeds = accuracies_AxS.shape
    names = tuple(f"arm{number}" for number in range(arms))
    spec = Ablation(
        "Equal?", {name: {} for name in names}, names[0], seeds=tuple(range(seeds)), direction=Direction.MAXIMIZE
    )
    cells = [
        RunResult(name, "", seed, {}, "done", float(value), float(value), {}, None, {}, 100, "", "")
        for name, accuracies in zip(names, accuracies_AxS, strict=True)
        for seed, value in enumerate(accuracies)
    ]
    return any(pair.verdict in ("better", "worse") for pair in compare_arms(select_hyperparameters(spec, cells)))


@pytest.mark.parametrize("seeds", range(3, 11))
def test_arms_that_learn_all_or_nothing_are_told_apart_by_chance_in_at_most_one_study_of_twenty(seeds: int) -> None:
    """Accuracies of 1 or 0, every outcome of a study with its probability: nothing here is sampled."""
    apart = [
        (ahead, behind)
        for ahead in range(seeds + 1)
        for behind in range(seeds + 1 - ahead)
        if told_apart(np.array([[0.0] * ahead + [1.0] * (seeds - ahead), [1.0] * (seeds - behind) + [0.0] * behind]))
    ]
    for learns in (0.05, 0.3, 0.5, 0.8, 0.95):
        differs = learns * (1 - learns)
        wrong = sum(
            math.comb(seeds, ahead)
            * math.comb(seeds - ahead, behind)
            * differs ** (ahead + behind)
            * (1 - 2 * differs) ** (seeds - ahead - behind)
            for ahead, behind in apart
        )
        assert wrong <= 0.05


@pytest.mark.parametrize(("examples", "error"), [(1000, 0.001), (200, 0.01)])
def test_six_equal_arms_with_saturated_accuracies_are_told_apart_in_at_most_one_study_of_twenty(
    examples: int, error: float
) -> None:
    """At three seeds differences that are all equal come often: with a p of 0 it was one study of ten."""
    random = np.random.default_rng(13)
    wrong = [told_apart(1 - random.binomial(examples, error, (6, 3)) / examples) for _ in range(300)]
    assert sum(wrong) / len(wrong) <= 0.05
