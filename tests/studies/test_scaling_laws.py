"""Fits of the loss against size: planted exponents come back, and what the runs cannot tell is not told."""

import functools
import itertools

import numpy as np
import pytest
from scipy import stats

from transformer.config import UserError
from transformer.studies.scaling_laws import (
    HUBER,
    ScalingFit,
    ScalingRun,
    compute_optimal_exponents,
    fit_power_law,
    fit_saturating_power_law,
    fit_scaling_laws,
    huber_loss_and_gradient,
    loss_falls_with_size,
)

SIZES, TEXTS = np.geomspace(1e5, 1e8, 5), np.geomspace(1e7, 1e10, 4)
# Hoffmann et al. 2022, equation 10.
E, A, ALPHA, B, BETA = 1.69, 406.4, 0.34, 410.7, 0.28


def runs(sizes: np.ndarray, texts: np.ndarray, seeds: int = 1, noise: float = 0.0) -> list[ScalingRun]:
    """Made-up runs whose losses are the law's, times a little."""
    random = np.random.default_rng(0)
    made = []
    for (n, d), seed in itertools.product(itertools.product(sizes, texts), range(seeds)):
        loss = E + A / n**ALPHA + (B / d**BETA if len(texts) > 1 else 0)
        made.append(ScalingRun(f"{n:.0f}-{seed}", n, d, 6 * n * d, loss * np.exp(noise * random.normal())))
    return made


@functools.cache
def planted_law_of_both() -> ScalingFit:
    return fit_scaling_laws(runs(SIZES, TEXTS), draws=0)["parameters and tokens"]


@functools.cache
def planted_law_of_parameters(noise: float = 0.0) -> ScalingFit:
    return fit_scaling_laws(runs(np.geomspace(1e5, 1e8, 9), TEXTS[:1], noise=noise), draws=0)["parameters"]


def test_the_planted_law_of_both_comes_back() -> None:
    found = planted_law_of_both()
    assert found.form == "L = E + A / N^alpha + B / D^beta"
    planted = {"E": E, "A": A, "alpha": ALPHA, "B": B, "beta": BETA}
    assert dict(found.values) == pytest.approx(planted, rel=2e-2)
    assert found.intervals == {}
    assert compute_optimal_exponents(found) == pytest.approx((BETA / (ALPHA + BETA), ALPHA / (ALPHA + BETA)), rel=1e-2)


def test_the_planted_law_of_parameters_comes_back_with_its_limit_and_one_bad_run_does_not_move_it() -> None:
    made = runs(np.geomspace(1e5, 1e8, 9), TEXTS[:1])
    found = planted_law_of_parameters()
    assert found.form == "L = E + A / N^alpha"
    assert dict(found.values) == pytest.approx({"E": E, "A": A, "alpha": ALPHA}, rel=1e-2)
    made[4] = made[4]._replace(loss=made[4].loss * 1.1)
    assert fit_scaling_laws(made, draws=0)["parameters"].values["alpha"] == pytest.approx(ALPHA, rel=0.02)


def test_of_three_sizes_a_power_alone_is_told_by_the_normal_equations() -> None:
    made = runs(SIZES[:3], TEXTS[:1], seeds=2, noise=0.02)
    found = fit_scaling_laws(made)
    assert list(found) == ["parameters", "flops"]
    x, y = np.log([run.parameters for run in made]), np.log([run.loss for run in made])
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    assert found["parameters"].form == "L = A / N^alpha"
    assert found["parameters"].values["alpha"] == pytest.approx(-slope, rel=1e-9)
    # At equal tokens operations grow as parameters do: one slope.
    assert found["flops"].values["gamma"] == pytest.approx(-slope, rel=1e-9)
    assert fit_power_law(np.exp(x), np.exp(y))[1] == pytest.approx(-slope, rel=1e-9)


@pytest.mark.parametrize("seeds", [2, 8])
def test_intervals_of_seeds_hold_the_planted_exponent_nineteen_times_in_twenty(seeds: int) -> None:
    held, widths = 0, []
    for seed in range(40):
        random = np.random.default_rng(seed)
        made = [
            ScalingRun("", n, 1e7, 6e7 * n, 20 / n**0.1 * np.exp(0.01 * random.normal()))
            for n in SIZES[:3]
            for _ in range(seeds)
        ]
        low, high = fit_scaling_laws(made, seed=seed)["parameters"].intervals["alpha"]
        held += low <= 0.1 <= high
        widths.append(high - low)
    # 40 draws of 0.95 have a deviation of 1.4.
    assert held >= 34
    # The slope's own deviation is 0.01 / sqrt(R var(log N)); Student's t knows it from R - 3 degrees of freedom.
    runs, freedom = 3 * seeds, 3 * seeds - 3
    expected = 2 * stats.t.ppf(0.975, freedom) * 0.01 / np.sqrt(runs * np.var(np.log(SIZES[:3])))
    assert np.mean(widths) == pytest.approx(expected, rel=0.15)


def test_intervals_of_runs_without_seeds_hold_it_too() -> None:
    held = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        made = [
            ScalingRun("", n, d, 6 * n * d, 20 / (n * d) ** 0.1 * np.exp(0.01 * random.normal()))
            for n in SIZES[:3]
            for d in TEXTS[:2]
        ]
        low, high = fit_scaling_laws(made, seed=seed)["flops"].intervals["gamma"]
        held += low <= 0.1 <= high
    assert held >= 34


def test_the_search_minimizes_hubers_loss_by_its_gradient() -> None:
    random = np.random.default_rng(0)
    centered, target = random.normal(size=(2, 20)), random.normal(size=20)
    # Half of the residuals within the bend: at this place every loss is known by hand.
    values = np.array([0.1, -0.3, 0.2, -1.0, -0.5])

    def said(v: np.ndarray) -> np.ndarray:
        return np.log(np.exp(v[0]) + sum(np.exp(v[1 + k] - np.exp(v[3 + k]) * centered[k]) for k in range(2)))

    def by_hand(v: np.ndarray) -> float:
        r = np.abs(said(v) - target)
        return float(np.where(r <= HUBER, r**2 / 2, HUBER * (r - HUBER / 2)).sum() / HUBER)

    target[:10] = said(values)[:10]
    target[:10] += random.uniform(-0.5e-3, 0.5e-3, 10)
    found, gradient = huber_loss_and_gradient(values, centered, target)
    assert found == pytest.approx(by_hand(values), rel=1e-9)
    for number in range(5):
        step = 1e-7 * np.eye(5)[number]
        numeric = (by_hand(values + step) - by_hand(values - step)) / 2e-7
        assert gradient[number] == pytest.approx(numeric, rel=1e-4, abs=1e-5)
    made = runs(SIZES[:4], TEXTS[:1], noise=0.05)
    x, loss = np.array([[run.parameters for run in made]]), np.array([run.loss for run in made])
    best = fit_saturating_power_law(x, loss)
    assert best[0] > 0
    assert best[2] > 0


def test_seeds_are_drawn_at_each_size_where_all_have_two() -> None:
    # On no straight line: samples of all runs would differ, those of equal seeds at each size do not.
    made = [ScalingRun("", n, 1e7, 6e7 * n, loss) for n, loss in zip(SIZES[:3], (4.0, 3.0, 2.9), strict=True)] * 2
    low, high = fit_scaling_laws(made)["parameters"].intervals["alpha"]
    assert low == pytest.approx(high, rel=1e-9)


@pytest.mark.parametrize(
    ("losses", "undetermined"),
    [
        ([2.0, 2.1, 2.2, 2.3, 2.4, 2.5], {"alpha": "0.001"}),  # a loss that rises has no exponent
        ([3.0, 2.0, 2.0, 2.0, 2.0, 2.0], {"alpha": "10"}),  # nor one that falls at once
        ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5], {"E": "no limit"}),  # linear in the logarithm
        ([3.0, 2.5, 2.9, 2.2, 2.6, 2.4], {"alpha": "0.001"}),  # noise
    ],
)
def test_a_value_at_an_end_of_its_search_is_said_to_be(losses: list[float], undetermined: dict[str, str]) -> None:
    sizes = np.geomspace(1e5, 1e8, len(losses))
    made = [ScalingRun(f"{n}", n, 1e7, 6e7 * n, loss) for n, loss in zip(sizes, losses, strict=True)]
    found = fit_scaling_laws(made, draws=0)["parameters"]
    assert found.undetermined.keys() == undetermined.keys()
    assert all(words in found.undetermined[name] for name, words in undetermined.items())


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
def test_a_planted_law_is_determined(noise: float) -> None:
    assert planted_law_of_parameters(noise).undetermined == {}
    if not noise:
        assert planted_law_of_both().undetermined == {}


def test_what_cannot_be_told_is_not() -> None:
    assert "parameters and tokens" not in fit_scaling_laws(runs(SIZES[:2], TEXTS[:2]), draws=0)
    # Neither seeds nor runs enough to draw from.
    assert fit_scaling_laws(runs(SIZES[:3], TEXTS[:1]))["parameters"].intervals == {}
    with pytest.raises(UserError, match="nothing scales"):
        fit_scaling_laws(runs(SIZES[:1], TEXTS[:1], seeds=3, noise=0.1))
    with pytest.raises(UserError, match="positive numbers"):
        fit_scaling_laws([run._replace(loss=0.0) for run in runs(SIZES, TEXTS)])


def test_whether_the_loss_falls_is_asked_at_equal_tokens() -> None:
    made = runs(SIZES[:3], TEXTS, seeds=2)
    assert loss_falls_with_size(made)
    # Larger on more tokens says nothing of size.
    assert (
        loss_falls_with_size(
            [run for run in made if np.searchsorted(SIZES, run.parameters) == np.searchsorted(TEXTS, run.tokens)]
        )
        is None
    )
    worst = {(SIZES[2], TEXTS[1])}
    assert not loss_falls_with_size([r._replace(loss=r.loss + 5 * ((r.parameters, r.tokens) in worst)) for r in made])
