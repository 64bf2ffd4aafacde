"""The statistics over many simulated studies: what they claim of 95% and 5% holds where the truth is known."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from tests.studies.null_studies import (
    ARMS,
    EFFECT,
    SEEDS,
    UNEQUAL,
    Setting,
    has_power,
    measure,
    measure_power,
    measure_with_second_opinion,
    num_studies,
    settings,
)
from transformer.studies.ablations.ablation import Ablation, Direction
from transformer.studies.ablations.arm_comparisons import Comparison, compare_arms
from transformer.studies.ablations.calibration import calibrate
from transformer.studies.ablations.noise_models import noise_from_runs, simulate
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.statistics import interquartile_coverage, interquartile_interval, t_test
from transformer.studies.ablations.study_results import arrange_results

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
    (comparison,) = compare_arms(arrange_results(spec, cells))
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


@pytest.mark.parametrize(
    "setting",
    [each for each in settings() if each.metric not in UNEQUAL],
    ids=lambda setting: "-".join(map(str, setting)),
)
def test_equal_arms_are_told_apart_in_one_study_of_twenty_at_most(setting: Setting) -> None:
    """A tenth of the studies of the guide's table: no rate is above 5% by more than chance among so many settings."""
    rate = measure(setting, num_studies(setting) // 10)
    assert stats.binom.sf(rate.count - 1, rate.of, 0.05) > 0.05 / len(list(settings()))


@pytest.mark.parametrize("metric", UNEQUAL)
def test_equal_means_with_unequal_noise_are_told_apart_too_often_and_the_second_opinion_knows(metric: str) -> None:
    false, unopposed = measure_with_second_opinion(Setting(metric, True, 8, 2), 200)
    assert false.low > 0.05
    assert unopposed.count < 0.75 * false.count


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
        pairs = compare_arms(arrange_results(spec, cells))
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
    return any(pair.verdict in ("better", "worse") for pair in compare_arms(arrange_results(spec, cells)))


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


def is_told_apart(selection_AxCxS: np.ndarray, reported_AxCxS: np.ndarray, threshold: float) -> bool:
    """Judge a study of two arms by the rules of the guide, written anew."""
    chosen, without = [], []
    seeds = selection_AxCxS.shape[2]

    def best(values_CxS: np.ndarray) -> int:
        learned = values_CxS <= threshold
        enough = 2 * learned.sum(axis=1) >= values_CxS.shape[1]
        if not enough.any():
            kept = [
                values[each].mean() if each.any() else np.inf for values, each in zip(values_CxS, learned, strict=True)
            ]
            return int(np.lexsort((kept, -learned.sum(axis=1)))[0])
        worst_S = np.where(learned, values_CxS, -np.inf).max(axis=0)
        filled = np.where(learned, values_CxS, worst_S)[:, np.isfinite(worst_S)]
        return int(np.where(enough, filled.mean(axis=1), np.inf).argmin())

    stuck = False
    for selection_CxS, reported_CxS in zip(selection_AxCxS, reported_AxCxS, strict=True):
        choice = best(selection_CxS)
        chosen.append(reported_CxS[choice])
        stuck |= bool((selection_CxS[choice] > threshold).any())
        without.append([reported_CxS[best(np.delete(selection_CxS, seed, axis=1))] for seed in range(seeds)])
    differences = chosen[1] - chosen[0]
    if stuck and 2.0 ** (1 - seeds) < 0.05:
        signs = np.array(np.meshgrid(*[(1, -1)] * seeds)).reshape(seeds, -1)
        return bool(np.mean(np.abs(differences @ signs) >= abs(differences.sum()) - 1e-9) < 0.05)
    means = [np.delete(without[1][seed] - without[0][seed], seed).mean() for seed in range(seeds)]
    error = max(differences.std(ddof=1) / math.sqrt(seeds), np.std(means) * math.sqrt(seeds - 1))
    return bool(stats.t.sf(abs(differences.mean()) / error, seeds - 1) < 0.025)


KINDS = ("clear", "flat", "unstable", "bad", "stuck")


@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)))
def test_what_a_calibration_prints_is_what_simulated_studies_give(number: int, kind: str) -> None:
    """Two thousand studies of each kind of noise, drawn and judged by other code."""
    seeds, combinations, studies = 8, 3, 2_000
    spec = Ablation(
        "Equal?", {"a": {}, "b": {}}, "a", {"x": (1, 2, 3)}, seeds=tuple(range(seeds)), learned_threshold=1.0
    )
    printed = calibrate(spec, num_studies=500).rates[number].false_positives
    random, found = np.random.default_rng(number), 0
    shape = (2, combinations, seeds)
    for _ in range(studies):
        shared = random.normal(size=seeds) * math.sqrt(0.5)
        noise = random.normal(size=shape)
        if kind == "unstable":
            noise = random.exponential(size=shape) - 1
            noise[1] *= 4
        own = noise * math.sqrt(0.5)
        if kind == "bad":
            own[1] += 14 * ((random.random(shape[1:]) < 0.1) - 0.1)
        own[:, 1:] += 0 if kind == "flat" else 10
        reported = shared + own
        spread = math.sqrt(0.5 * 0.04) * np.where(np.arange(2) == 1, 4.0 if kind == "unstable" else 1.0, 1.0)
        selection = reported + spread[:, None, None] * random.normal(size=shape)
        if kind == "stuck":
            stuck = random.random(shape) < 0.4
            reported, selection = (np.where(stuck, 100.0, each) for each in (reported, selection))
        found += is_told_apart(selection, reported, 50.0 if kind == "stuck" else np.inf)
    rate = found / studies
    allowed = 3.5 * math.sqrt(max(rate, 0.02) * (1 - rate) * (1 / studies + 1 / printed.num_studies))
    assert abs(printed.rate - rate) <= allowed, (kind, printed, rate)
    if kind in ("unstable", "bad"):
        assert rate > 0.08


def test_runs_of_an_unstable_arm_print_more_than_one_study_in_twenty() -> None:
    """Its own noise from 40 seeds, of which the studies have eight: the rate is that of the truth, above 5%."""
    many = Ablation("Equal?", {"a": {}, "b": {}}, "a", {"x": (1, 2, 3)}, seeds=tuple(range(40)))
    random = np.random.default_rng(4)
    noise = random.exponential(size=(2, 3, 40)) - 1
    noise[1] *= 4
    values = noise + 10 * np.array([0, 1, 1])[:, None]
    cells = [
        RunResult("ab"[arm], "", seed, {"x": rate + 1}, "done", value, value, {}, None, {}, 1, "", "")
        for (arm, rate, seed), value in np.ndenumerate(values)
    ]
    model = noise_from_runs(arrange_results(many, cells))
    assert model is not None
    few = dataclasses.replace(many, seeds=tuple(range(8)))
    verdicts = [simulate(few, model, random)[0].verdict for _ in range(1_000)]
    draws = random.exponential(size=(20_000, 2, 8)) - 1
    differences = 4 * draws[:, 1] - draws[:, 0]
    t = differences.mean(axis=1) / differences.std(axis=1, ddof=1) * math.sqrt(8)
    truth = np.mean(2 * stats.t.sf(np.abs(t), 7) < 0.05)
    told = sum(verdict != "no difference seen" for verdict in verdicts) / len(verdicts)
    assert truth > 0.08
    assert told == pytest.approx(truth, abs=0.03)
    assert verdicts.count("better") > 3 * verdicts.count("worse")
