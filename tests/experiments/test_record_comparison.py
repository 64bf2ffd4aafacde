"""A run trained again, beside its record: equal to what was rounded, within what seeds differ by, or neither."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from experiments.record_comparison import (
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
    curves = [read_curve(each) for each in seeds]
    others = {f"run {number}": each for number, each in enumerate(curves) if each != read_curve(recorded)}
    return compare_curves(read_curve(recorded), read_curve(found), curves, others)


def test_a_number_that_no_seed_changes_may_differ_by_its_rounding() -> None:
    seeds, found = [lines(seed, digits=5) for seed in (1, 2, 3)], lines(1, shift=0.0001)
    for each in seeds:
        each[-1]["reference"] = 13.121
    found[-1]["reference"] = 13.12148
    assert compare(seeds[0], found, seeds).verdict is Verdict.WITHIN_SPREAD
    found[-1]["reference"] = 13.12252
    finding = compare(seeds[0], found, seeds)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert "1 of 3 differ by more than the record's seeds do: validation/reference is 13.121 in" in finding.reasons[-1]


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
    digits = {"train": 3, "validation": 5}
    found = [{"step": step, "split": split, "loss": random.random()} for step in range(40) for split in digits]
    recorded = [{**line, "loss": round(line["loss"], digits[line["split"]])} for line in found]
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


def test_a_run_that_begins_as_its_record_and_ends_near_it_is_within_the_spread() -> None:
    seeds = [lines(seed, digits=5) for seed in range(3)]
    found = lines(0, shift=0.0001)  # as another processor rounds
    finding = compare(seeds[0], found, seeds)
    assert finding.verdict is Verdict.WITHIN_SPREAD
    assert finding.reasons[-1] == "it begins as its record, and 2 of 2 last values differ by less than seeds do"
    spread = max(each[-1]["accuracy"] for each in seeds) - min(each[-1]["accuracy"] for each in seeds)
    found[-1]["accuracy"] = seeds[0][-1]["accuracy"] + 1.01 * spread
    finding = compare(seeds[0], found, seeds)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.reasons[-1].startswith("1 of 2 differ by more than the record's seeds do: validation/accuracy is")
    # Fewer seeds, or no number before the last ones, give no spread.
    assert compare(seeds[0], lines(0, shift=0.0001), seeds[:2]).verdict is Verdict.NO_SPREAD
    ends = [[line for line in each if line["step"] == STEPS[-1]] for each in (*seeds, lines(0, shift=0.0001))]
    finding = compare(ends[0], ends[3], ends[:3])
    assert finding.verdict is Verdict.NO_SPREAD
    assert "the record has no numbers before the last ones" in finding.reasons[-1]


def test_another_seed_or_arm_is_none_however_wide_the_seeds_are_apart() -> None:
    seeds = [lines(seed, digits=5) for seed in range(4)]
    for each, width in zip(seeds, (0.0, 0.5, -0.5, 0.1), strict=True):
        each[-1]["accuracy"] += width
    finding = compare(seeds[0], lines(3), seeds[:3])
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert "it begins otherwise: " in finding.reasons[-1]
    # An arm that begins within the tolerance: its own record is nearer.
    arm = [{**line, "loss": line["loss"] * 1.001} if "loss" in line else line for line in seeds[0]]
    curves = {"run 7 (arm)": read_curve(arm)}
    recorded = read_curve(seeds[0])
    finding = compare_curves(recorded, read_curve(arm), [read_curve(each) for each in seeds[:3]], curves)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.reasons[-1] == (
        "at step 50, its train metrics are nearer to the record's run 7 (arm) than to its own record"
    )
    nearer = [{**line, "loss": line["loss"] * 1.0001} if "loss" in line else line for line in seeds[0]]
    finding = compare_curves(recorded, read_curve(nearer), [read_curve(each) for each in seeds[:3]], curves)
    assert finding.verdict is Verdict.WITHIN_SPREAD


def test_a_metric_that_the_run_has_not_is_not_compared() -> None:
    recorded = [{"step": 1, "split": "train", "right": 0.5, "loss": 1.0}]
    finding = compare(recorded, [{"step": 1, "split": "train", "accuracy": 0.5, "loss": 1.0}])
    assert finding == (
        Verdict.NOT_COMPARED,
        (
            "1 of 1 numbers of 1 steps are those of the record",
            "1 metrics of the record have no counterpart in the run: train/right",
        ),
    )
    # Nor is one whose last value is missing.
    finding = compare(lines(1), lines(1)[:-1])
    assert finding.verdict is Verdict.NOT_COMPARED
    assert finding.reasons[1].endswith(": validation/accuracy")


@pytest.mark.parametrize(("recorded", "found"), [(lines(1), lines(1)[:3]), (lines(1)[:3], lines(1))])
def test_a_run_ends_where_its_record_does(recorded: Any, found: Any) -> None:
    finding = compare(recorded, found)
    ends = [recorded[-1]["step"], found[-1]["step"]]
    why = f"the record ends at step {ends[0]}, and the run at step {ends[1]}"
    assert finding == (Verdict.NOT_REPRODUCED, (why,))


def test_last_values_are_of_evaluations_if_there_are_any() -> None:
    curve = read_curve(lines(3))
    assert list(last_values(curve)) == ["validation/loss", "validation/accuracy"]
    assert last_values(curve)["validation/loss"] == curve["validation", 100]["loss"]
    training = [{"step": step, "split": "train", "loss": 2.0 / step} for step in (1, 2)]
    assert last_values(read_curve(training)) == {"train/loss": 1.0}


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


def study(shift: float = 0.0, seed: int = 0, *, seeds: int = 3, noise: float = 0.0) -> dict[str, Any]:
    random, other = np.random.default_rng(seed), np.random.default_rng(99)
    values = {(arm, number): float(random.normal(1, 0.05)) for arm in ("pre", "post") for number in range(seeds)}
    runs = []
    for (arm, number), value in values.items():
        reported = value + shift * (arm == "post") + noise * float(other.normal())
        of_run = {"arm": arm, "task": "", "seed": number, "hyperparameters": {"rate": 0.1}}
        runs.append({**of_run, "selection_value": 2 * reported, "reported_value": reported})
    return {"runs": runs, "selection_metric": "validation/loss", "reported_metric": "test/loss"}


def test_a_study_is_compared_run_by_run_and_then_arm_by_arm() -> None:
    recorded = study()
    assert compare_studies(recorded, study()).verdict is Verdict.EQUAL
    assert compare_studies(recorded, study(noise=0.005)).verdict is Verdict.WITHIN_SPREAD
    finding = compare_studies(recorded, study(shift=1.0))
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.reasons[0] == "6 of 12 values of runs are those of the record"
    finding = compare_studies(study(seeds=2), study(noise=0.005, seeds=2))
    assert finding.verdict is Verdict.NO_SPREAD
    # A mean that is outside, of an arm that is nearer to its own record than to the other.
    wide = study(shift=5.0)
    finding = compare_studies(wide, study(shift=6.0))
    assert "2 of 4 are outside of the spread: post rate=0.1 validation/loss is" in finding.reasons[-1]


def test_the_runs_of_another_arm_are_not_reproduced_however_wide_the_spread_is() -> None:
    recorded = study()
    exchanged = json.loads(json.dumps(recorded))
    for one, other in zip(exchanged["runs"][:3], exchanged["runs"][3:], strict=True):
        for name in ("selection_value", "reported_value"):
            one[name], other[name] = other[name], one[name]
    finding = compare_studies(recorded, exchanged)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert finding.reasons[-1] == (
        "the runs of arm 'pre' are nearer to those of arm 'post' in the record than to its own"
    )


def test_arms_with_other_names_are_told() -> None:
    renamed = json.loads(json.dumps(study()).replace('"pre"', '"first"').replace('"post"', '"last"'))
    finding = compare_studies(study(), renamed)
    assert finding.verdict is Verdict.NOT_COMPARED
    assert finding.reasons[0].startswith("12 of 12 values of the record have no counterpart")
    assert finding.reasons[0].endswith("its arms are post, pre, here they are first, last")
    fewer = study()
    fewer["runs"].pop()
    assert compare_studies(study(), fewer).verdict is Verdict.NOT_COMPARED


def test_a_study_of_another_metric_is_not_compared() -> None:
    other = {**study(), "reported_metric": "test/accuracy"}
    assert compare_studies(study(), other) == (
        Verdict.NOT_COMPARED,
        ("the record has the metric test/loss; here are test/accuracy, validation/loss",),
    )


def test_a_run_that_diverged_in_one_of_two_is_outside() -> None:
    lost = study(noise=0.0001)
    lost["runs"][0]["reported_value"] = None
    finding = compare_studies(study(), lost)
    assert finding.verdict is Verdict.NOT_REPRODUCED
    assert compare_studies(lost, lost).verdict is Verdict.EQUAL
