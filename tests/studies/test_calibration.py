"""Simulated studies of a design: noise as of the runs, verdicts as of the study, and rates as by theory."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.studies.tiny import ablation
from transformer.config import UserError
from transformer.studies.ablations import arm_comparisons
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.calibration import (
    calibrate,
    describe_calibration,
    hash_design,
    read_calibration,
    write_calibration,
)
from transformer.studies.ablations.noise_models import noise_from_runs, simulate, synthetic_noise
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.study_results import arrange_results

SEEDS = (1, 2, 3, 4, 5)
RATES = {"optimizer.warmup_steps": (0, 2)}


def runs(spec: Ablation, value: Any, chosen_by: Any = None) -> list[RunResult]:
    """A run of every arm, task, combination and seed; a value of None is one that diverged."""
    found = []
    for arm, task, combination, seed in itertools.product(spec.arms, spec.tasks, spec.combinations(), spec.seeds):
        reported = value(arm, task, combination, seed)
        selection = reported if chosen_by is None else chosen_by(arm, task, combination, seed)
        state = "diverged" if reported is None else "done"
        found.append(RunResult(arm, task, seed, combination, state, selection, reported, {}, None, {}, 1, "", ""))
    return found


def noisy(spec: Ablation, deviation: float, means: Mapping[str, float], seed: int = 7) -> list[RunResult]:
    """Normal runs, of which those of one seed have a far larger part in common."""
    random = np.random.default_rng(seed)
    shared = dict(zip(spec.seeds, random.normal(0, 10 * deviation, len(spec.seeds)), strict=True))
    return runs(spec, lambda arm, task, combination, seed: means[arm] + shared[seed] + deviation * random.normal())


def noise_of(spec: Ablation, cells: list[RunResult]) -> Any:
    return noise_from_runs(arrange_results(spec, cells))


@pytest.mark.parametrize(("effect", "arms"), [(1.0, 2), (2.0, 2), (2.0, 4)])
def test_normal_noise_has_the_rates_of_the_t_test(effect: float, arms: int) -> None:
    names = [f"arm{number}" for number in range(arms)]
    spec = ablation(arms={name: {"model.heads": number + 1} for number, name in enumerate(names)}, reference="arm0")
    spec = dataclasses.replace(spec, seeds=SEEDS)
    found = calibrate(spec, effect=effect, num_studies=200)
    assert found.num_runs == 0
    rates, *others = found.rates
    assert rates.false_positives_on_tasks is None
    assert [each.noise.partition(",")[0] for each in others] == [
        "skewed noise",
        "one arm in which a run of ten is bad",
        "two runs of five stuck in every arm",
    ]
    level = 0.05 / (arms - 1)
    critical = stats.t.ppf(1 - level / 2, 4)
    power = stats.nct.sf(critical, 4, effect * math.sqrt(5))
    assert rates.power is not None
    for rate, truth in ((rates.false_positives.rate, 0.05), (rates.power.rate, power)):
        assert abs(rate - truth) < 3.5 * math.sqrt(truth * (1 - truth) / 200)
    interval = stats.binomtest(rates.power.count, 200).proportion_ci(0.95, method="wilson")
    assert (rates.power.low, rates.power.high) == pytest.approx((interval.low, interval.high))
    # Two runs of deviation 1, correlated by one half, differ by a deviation of 1.
    assert rates.deviation == pytest.approx(1.0, abs=0.1)


def test_noise_is_that_of_the_runs_whatever_the_arms_and_seeds_differ_by() -> None:
    spec = ablation(seeds=tuple(range(1, 41)))
    cells = noisy(spec, 0.02, {"pre": 1.0, "post": 3.0})
    model = noise_of(spec, cells)
    assert model.num_runs == 80
    values = np.array([cell.reported_value for cell in cells]).reshape(2, 40)
    differences = values[0] - values[1]
    random = np.random.default_rng(3)
    simulated = np.array([list(simulate(spec, model, random)[0].differences.values()) for _ in range(60)])
    assert simulated.std() == pytest.approx(differences.std(ddof=1), rel=0.08)
    assert abs(simulated.mean()) < 0.003
    found = calibrate(dataclasses.replace(spec, smallest_effect_of_interest=0.01), cells, num_studies=20)
    assert found.effect == pytest.approx(0.01 / differences.std(ddof=1), rel=0.1)


def test_few_runs_give_noise_of_their_true_size_in_the_mean() -> None:
    """Arms and seeds are estimated from the same runs: without degrees of freedom it is 0.58 of it."""
    spec = ablation(seeds=(1, 2, 3))
    random, variances = np.random.default_rng(5), []
    for number in range(100):
        model = noise_of(spec, noisy(spec, 0.1, {"pre": 1.0, "post": 1.0}, seed=number))
        pairs = [simulate(spec, model, random)[0] for _ in range(3)]
        variances += [np.var(list(pair.differences.values()), ddof=1) for pair in pairs]
    assert math.sqrt(np.mean(variances)) == pytest.approx(0.1 * math.sqrt(2), rel=0.12)


def test_runs_diverge_and_get_stuck_as_often_as_those_of_the_study() -> None:
    spec = ablation(seeds=SEEDS, tuning_grid=RATES, learned_threshold=50.0)
    random = np.random.default_rng(0)

    def value(arm: str, task: str, combination: Mapping[str, Any], seed: int) -> float | None:
        if combination["optimizer.warmup_steps"] == 0:
            return None if seed < 4 else 100.0 if seed == 4 else random.normal(1.0, 0.1)
        return random.normal(2.0, 0.1)

    model = noise_of(spec, runs(spec, value))
    of_bad, of_good = model.settings[0]
    for bad in of_bad:
        assert (bad.num_learned, len(bad.unlearned_Ux2), np.isnan(bad.unlearned_Ux2).any(axis=1).sum()) == (1, 4, 3)
        assert np.allclose(bad.unlearned_Ux2[~np.isnan(bad.unlearned_Ux2)], 100.0)
    # The selected one is of both arms.
    assert all((good.num_learned, len(good.unlearned_Ux2)) == (10, 0) for good in of_good)
    pairs = [simulate(spec, model, random)[0] for _ in range(60)]
    # Of five runs of which one in five learns, three or more learn in one of seventeen arms; of these some diverge.
    assert 50 < sum(not pair.diverged_seeds for pair in pairs) < 60


def test_of_tuned_values_one_is_clearly_best_and_beside_it_all_are_equally_good() -> None:
    """Where all are equally good, tuning is luck, the standard error is the jackknife's, and hardly a test sees it."""
    tasks = {"a": {"task.dataset": "a"}, "b": {"task.dataset": "b"}}
    spec = ablation(seeds=tuple(range(8)), tasks=tasks, tuning_grid={"optimizer.warmup_steps": (0, 1, 2, 3, 4, 5)})
    clear, flat, *_ = calibrate(spec, num_studies=200).rates
    assert clear.noise.endswith("one clearly best tuned value")
    assert flat.noise.endswith("all tuned values equally good")
    for rate in (clear.false_positives, clear.false_positives_on_tasks):
        assert rate is not None
        assert abs(rate.rate - 0.05) < 3.5 * math.sqrt(0.05 * 0.95 / 200)
    assert flat.deviation < clear.deviation  # the luckiest of six differ less


def test_an_arm_that_is_unstable_and_skewed_stays_so() -> None:
    spec = ablation(seeds=tuple(range(1, 301)), tuning_grid=RATES)
    random = np.random.default_rng(11)
    shared = dict(zip(spec.seeds, random.normal(size=300), strict=True))

    def value(arm: str, task: str, combination: Mapping[str, Any], seed: int) -> float:
        warmup = combination["optimizer.warmup_steps"]
        return 10.0 * warmup + shared[seed] + (4.0 if arm == "pre" else 1.0) * (random.exponential() - 1)

    model = noise_of(spec, runs(spec, value))
    of_post, of_pre = (pool.distances.draw(random, 20_000)[:, 1] for pool in model.settings[0][0])
    assert of_pre.std() == pytest.approx(4.0, rel=0.2)
    assert of_pre.std() / of_post.std() > 3
    assert stats.skew(of_pre) > 0.9  # of 600 exponential values it is 2, and what makes runs smooth takes some away
    assert abs(of_pre.mean()) < 0.3


def test_arms_are_equally_good_at_the_values_that_each_selects_and_stuck_where_they_were() -> None:
    spec = ablation(seeds=SEEDS, tuning_grid=RATES, learned_threshold=5.0)
    random = np.random.default_rng(12)

    def value(arm: str, task: str, combination: Mapping[str, Any], seed: int) -> float:
        means = {("post", 0): 3.5, ("post", 2): 7.0, ("pre", 0): 4.0, ("pre", 2): 1.5}
        return means[arm, combination["optimizer.warmup_steps"]] + random.normal(0.0, 0.05)

    model = noise_of(spec, runs(spec, value))
    (post, pre), (stuck_post, best_pre) = model.settings[0]
    assert post.mean_2 == pytest.approx(best_pre.mean_2)
    assert post.mean_2 == pytest.approx(np.full(2, 1.5), abs=0.1)
    assert pre.mean_2 == pytest.approx(np.full(2, 4.0), abs=0.1)
    assert (stuck_post.num_learned, len(stuck_post.unlearned_Ux2)) == (0, 5)
    # A study in which arms without a difference got stuck by chance, or differ by what they do at other values, has
    # differences of several units.
    differences = [pair.difference for _ in range(30) for pair in simulate(spec, model, random)]
    assert np.abs(differences).max() < 0.2


def test_an_accuracy_stays_one() -> None:
    spec = ablation(seeds=SEEDS, reported_metric="test/accuracy", selection_metric="test/accuracy")
    random = np.random.default_rng(2)
    cells = runs(spec, lambda *where: 1 - random.binomial(50, 0.02) / 50)
    model = noise_of(spec, cells)
    seen = set()
    for _ in range(20):
        (pair,) = simulate(spec, model, random)
        seen |= {round(50 * difference, 6) for difference in pair.differences.values()}
    assert seen <= set(range(-10, 11))
    assert {0.0, 1.0, -1.0} < seen


def test_verdicts_are_those_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_comparisons, "SIGNIFICANCE", 1.1)
    tasks = {"a": {"task.dataset": "a"}, "b": {"task.dataset": "b"}}
    found = calibrate(ablation(seeds=SEEDS, tasks=tasks), num_studies=5)
    for rates in found.rates:
        assert rates.false_positives_on_tasks is not None
        assert rates.false_positives.count == rates.false_positives_on_tasks.count == 5


def test_without_enough_runs_noise_is_normal() -> None:
    spec = ablation(seeds=SEEDS)
    cells = noisy(spec, 0.1, {"pre": 1.0, "post": 1.0})
    failed = [cell._replace(state="failed", reported_value=None) for cell in cells]
    assert noise_of(spec, []) is None
    assert noise_of(spec, failed) is None
    assert noise_of(spec, [cell for cell in cells if cell.seed == 1]) is None
    assert noise_of(spec, [cell for cell in cells if cell.arm_name == "pre"]) is None
    assert noise_of(spec, [cell for cell in cells if cell.seed < 3]).num_runs == 4
    assert len(synthetic_noise(spec)[0].settings[0]) == 1


def test_an_arm_without_a_run_has_the_noise_of_the_others() -> None:
    """As in the middle of a study, of which --only has trained two arms of three."""
    arms = {name: {"model.heads": number} for number, name in enumerate(("post", "pre", "none"), start=1)}
    spec = ablation(seeds=SEEDS, arms=arms, tuning_grid=RATES)
    cells = noisy(spec, 0.1, dict.fromkeys(arms, 1.0))
    model = noise_of(spec, [cell for cell in cells if cell.arm_name != "none"])
    assert model.num_runs == 20
    for settings in model.settings[0]:
        assert np.isfinite(settings[2].mean_2).all()
        assert settings[2].num_learned == 10
    assert calibrate(spec, cells[:20], num_studies=5).num_runs == 20


def test_a_threshold_in_the_metric_s_units_does_not_judge_normal_noise() -> None:
    found = calibrate(ablation(seeds=SEEDS, learned_threshold=-5.0), effect=4.0, num_studies=20)
    assert found.rates[0].power is not None
    assert found.rates[0].power.count > 15


@pytest.mark.parametrize("effect", [None, 3.0])
def test_a_calibration_is_read_as_it_was_written_and_described(effect: float | None, tmp_path: Any) -> None:
    spec = ablation(seeds=(1, 2, 3))
    found = calibrate(spec, effect=effect, num_studies=20)
    assert found == calibrate(spec, effect=effect, num_studies=20)
    assert read_calibration(tmp_path) is None
    write_calibration(tmp_path, found)
    assert read_calibration(tmp_path) == found
    first, *rest = describe_calibration(spec, found)
    assert first.startswith(f"In 20 simulated studies without differences, {found.rates[0].false_positives.count} (")
    assert len(rest) == 1 + (effect is not None)
    assert all(rates.noise in rest[-1] for rates in found.rates[1:])


def test_the_design_is_what_verdicts_depend_on() -> None:
    spec = ablation(seeds=(1, 2, 3))
    same = dataclasses.replace(spec, question="Another?")
    assert hash_design(spec) == hash_design(same)
    for change in ({"seeds": (1, 2, 3, 4)}, {"learned_threshold": 1.0}, {"tuning_grid": RATES}):
        assert hash_design(dataclasses.replace(spec, **change)) != hash_design(spec)


def test_two_seeds_are_too_few() -> None:
    with pytest.raises(UserError, match="gives no verdict, and this has 2"):
        calibrate(ablation())
