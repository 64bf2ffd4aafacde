"""A run trained again, beside its record: equal to what was rounded, within what seeds differ by, or neither."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from transformer.studies.reproduction import (
    Finding,
    Verdict,
    compare_curves,
    compare_studies,
    last_values,
    prediction_interval,
    read_curve,
    recorded_precision,
)

STEPS = (50, 100)


def lines(
    seed: int, digits: int | None = None, decimals: int | None = None, shift: float = 0.0
) -> list[dict[str, Any]]:
    """The lines of a run, rounded as a record has them."""
    random = np.random.default_rng(seed)

    def value(of: float) -> float:
        exact = float(of + 0.01 * random.normal() + shift)
        if digits is not None:
            return float(f"{exact:.{digits}g}")
        return exact if decimals is None else round(exact, decimals)

    found: list[dict[str, Any]] = []
    for step in STEPS:
        train = {"loss": value(12.0 / step), "learning_rate": value(0.02), "steps_per_second": value(3.0)}
        found.append({"step": step, "split": "train", **train, "flops_per_step": 6649900000.0, "batch_wait": 0.25})
        found.append({"step": step, "split": "validation", "loss": value(1.0)})
        found.append({"step": step, "split": "validation", "accuracy": value(0.5), "heads": [[1.0]]})
    return found


def compare(recorded: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], seeds: Any = ()) -> Finding:
    return compare_curves(read_curve(recorded), read_curve(found), [read_curve(each) for each in seeds])


def test_a_number_that_no_seed_changes_may_differ_by_its_rounding() -> None:
    seeds, found = [lines(seed, digits=5) for seed in (1, 2, 3)], lines(1, shift=0.001)
    for each in seeds:
        each[-1]["reference"] = 13.121
    found[-1]["reference"] = 13.12148
    assert compare(seeds[0], found, seeds).verdict is Verdict.WITHIN_SPREAD
    found[-1]["reference"] = 13.12252
    assert compare(seeds[0], found, seeds).verdict is Verdict.NOT_REPRODUCED


@pytest.mark.parametrize("rounding", [{}, {"digits": 5}, {"decimals": 5}])
def test_a_run_is_equal_to_its_record_as_that_is_rounded(rounding: Mapping[str, int]) -> None:
    recorded, found = lines(1, **rounding), lines(1)
    finding = compare(recorded, found)
    assert finding.verdict is Verdict.EQUAL
    # Of each of two steps: two of training, loss and accuracy of validation; no times, FLOPs or lists.
    assert finding.reasons[0].startswith("8 of 8 numbers of 2 steps are those of the record")
    found[-1]["accuracy"] += 2e-5
    finding = compare(recorded, found)
    assert finding.verdict is Verdict.NO_SPREAD
    assert finding.reasons[0].startswith("7 of 8")
    assert "the first that differs is validation/accuracy at step 100" in finding.reasons[1]
    assert finding.reasons[2].startswith("the record has 1 seed; the last values that differ most: validation/")


@pytest.mark.parametrize(
    ("values", "digits", "decimals"),
    [([0.5, 0.12346, 100000.0, None, 0.0], 5, 5), ([2.45393, 60715.22348], 10, 5), ([1.3658e-05], 5, 9), ([], 17, 17)],
)
def test_precision_is_that_of_the_number_with_the_most_digits(values: Any, digits: int, decimals: int) -> None:
    assert tuple(recorded_precision(values)) == (digits, decimals)


def test_metrics_may_be_rounded_each_to_its_own_digits() -> None:
    random = np.random.default_rng(0)
    exact = [{"step": step, "loss": random.random(), "validation_loss": random.random()} for step in range(40)]
    recorded = [
        {"step": line["step"], "loss": round(line["loss"], 3), "validation_loss": round(line["validation_loss"], 5)}
        for line in exact
    ]
    found = [
        {"step": line["step"], "split": split, "loss": line[name]}
        for line in exact
        for split, name in (("train", "loss"), ("validation", "validation_loss"))
    ]
    assert compare(recorded, found).verdict is Verdict.EQUAL
    found[-1]["loss"] += 1e-4
    assert compare(recorded, found).reasons[0].startswith("79 of 80 numbers of 40 steps")


def test_a_constant_is_as_exact_as_the_other_numbers() -> None:
    recorded = [{"step": step, "split": "train", "accuracy": 1.0, "loss": 0.12345 * step} for step in range(1, 30)]
    found = [{**line, "accuracy": 0.98} for line in recorded]
    assert compare(recorded, found).verdict is Verdict.NO_SPREAD


def test_a_number_that_is_not_finite_is_equal_to_none_other() -> None:
    precision = recorded_precision([0.5])
    assert precision.holds_equal(None, None)
    assert not precision.holds_equal(None, 0.5)


def test_another_seed_is_within_the_spread_and_another_distribution_is_not() -> None:
    seeds = [lines(seed, digits=5) for seed in range(5)]
    finding = compare(seeds[0], lines(77), seeds)
    assert finding.verdict is Verdict.WITHIN_SPREAD
    assert finding.reasons[-1] == "2 of 2 are inside of the spread of the record's seeds"
    finding = compare(seeds[0], lines(77, shift=0.3), seeds)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.reasons[-1].startswith("2 of 2 are outside of the spread: validation/loss is 1.28")
    assert compare(seeds[0], lines(77), seeds[:2]).verdict is Verdict.NO_SPREAD


def test_metrics_with_other_names_are_told() -> None:
    recorded = [{"step": 1, "split": "train", "right": 0.5, "loss": 1.0}]
    finding = compare(recorded, [{"step": 1, "split": "train", "accuracy": 0.5, "loss": 1.0}])
    assert finding.reasons == (
        "1 of 1 numbers of 1 steps are those of the record; 1 of its metrics are not in the run: train/right",
    )


def test_a_run_that_ends_before_its_record_is_not_equal() -> None:
    finding = compare(lines(1), lines(1)[:3])  # all of step 50
    assert finding == (
        Verdict.NOT_REPRODUCED,
        ("the record ends at step 100, of which the run has no number: it ends at step 50",),
    )


def test_last_values_are_of_evaluations_if_there_are_any() -> None:
    curve = read_curve(lines(3))
    assert list(last_values(curve)) == ["validation/loss", "validation/accuracy"]
    assert last_values(curve)["validation/loss"] == curve["validation", 100]["loss"]
    assert last_values(read_curve([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])) == {"train/loss": 1.0}


@pytest.mark.parametrize(("num_values", "num_intervals"), [(1, 1), (1, 4), (3, 2)])
def test_prediction_intervals_are_those_of_the_t_distribution_and_hold(num_values: int, num_intervals: int) -> None:
    random = np.random.default_rng(num_values + num_intervals)
    sample = random.normal(3.0, 0.2, 5)
    interval = prediction_interval(sample.tolist(), num_values, num_intervals)
    t = stats.t.ppf(1 - 0.025 / num_intervals, 4)
    half = t * sample.std(ddof=1) * math.sqrt(1 / num_values + 1 / 5)
    assert interval == pytest.approx((sample.mean() - half, sample.mean() + half))
    held = 0
    for _ in range(400):
        old, new = random.normal(size=(num_intervals, 5)), random.normal(size=(num_intervals, num_values))
        ends = [prediction_interval(each.tolist(), num_values, num_intervals) for each in old]
        held += all(low <= value <= high for (low, high), value in zip(ends, new.mean(axis=1), strict=True))
    assert held / 400 > 0.92


def study(shift: float = 0.0, seed: int = 0, *, old_names: bool = False, seeds: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    values = {(arm, number): float(random.normal(1, 0.05)) for arm in ("pre", "post") for number in range(seeds)}
    runs = [
        {"arm": arm, "task": "", "seed": number, "tuned": {"rate": 0.1}, "reported": value + shift * (arm == "post")}
        for (arm, number), value in values.items()
    ]
    if old_names:
        return {"cells": runs}
    return {
        "runs": [{**run, "hyperparameters": run.pop("tuned"), "reported_value": run.pop("reported")} for run in runs]
    }


def test_a_study_is_compared_run_by_run_and_then_arm_by_arm() -> None:
    recorded = study(old_names=True)
    assert compare_studies(recorded, study()).verdict is Verdict.EQUAL
    assert compare_studies(recorded, study(seed=5)).verdict is Verdict.WITHIN_SPREAD
    finding = compare_studies(recorded, study(shift=1.0))
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.reasons[0] == "3 of 6 runs have the value of the record"
    assert "1 of 2 are outside of the spread: post 0.1 is" in finding.reasons[-1]
    assert compare_studies(study(seeds=2), study(seed=5, seeds=2)).verdict is Verdict.NO_SPREAD


def test_arms_with_other_names_are_told() -> None:
    renamed = json.loads(json.dumps(study()).replace('"pre"', '"first"').replace('"post"', '"last"'))
    finding = compare_studies(study(), renamed)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.reasons[0].startswith("6 of 6 runs of the record have no counterpart")
    assert finding.reasons[0].endswith("its arms are post, pre, here they are first, last")
    fewer = study()
    fewer["runs"].pop()
    assert compare_studies(study(), fewer).verdict is Verdict.NOT_REPRODUCED


def test_a_run_that_diverged_in_one_of_two_is_outside() -> None:
    lost = study()
    lost["runs"][0]["reported_value"] = None
    finding = compare_studies(study(), lost)
    assert "is not finite in every run" in finding.reasons[-1]
    assert compare_studies(lost, lost).verdict is Verdict.EQUAL
