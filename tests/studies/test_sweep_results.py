"""What the page of a sweep is made of, against sums by hand over made-up trials."""

import itertools
import json
import math

import numpy as np
import pytest

from transformer.runs.jsonl_reading import MetricName
from transformer.studies.sweeps.sweep_page_data import (
    SweepInfo,
    TrialCurves,
    parameter_importance,
    seconds_left,
    sweep_page_data,
    varied_keys,
)
from transformer.studies.sweeps.sweep_progress import TrialStatus, read_trial_statuses
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import trial_from_config

LOSS = MetricName("validation", "loss")
RATE, NORM = "optimizer.learning_rate", "model.norm_placement"


def row(value, state=TrialState.DONE, step=10, **overrides):
    made = {key.replace("__", "."): each for key, each in overrides.items()}
    return TrialStatus(
        trial_from_config(made, {"steps": 10, "overrides": made, "value": value}), state, step, value, ""
    )


def by_hand(values, groups):
    """1 - mean square within groups / mean square in all, of the ranks."""
    ranks = np.argsort(np.argsort(values)) + 1.0
    within = sum(((own := ranks[np.array(groups) == group]) - own.mean()) @ (own - own.mean()) for group in set(groups))
    n, k = len(values), len(set(groups))
    return max(0, 1 - (within / (n - k)) / (np.var(ranks) * n / (n - 1)))


def test_a_key_that_decides_explains_most_and_one_that_does_not_nothing():
    rates, norms = (1e-3, 1e-2, 1e-1), ("pre", "post")
    values = [0.1, 0.11, 0.5, 0.52, 7.0, 6.0]
    rows = [
        row(value, **{RATE: rate, NORM: norm})
        for value, (rate, norm) in zip(values, [(rate, norm) for rate in rates for norm in norms], strict=True)
    ]
    assert parameter_importance(rows, RATE) == pytest.approx(by_hand(values, [0, 0, 1, 1, 2, 2]))
    assert parameter_importance(rows, RATE) > 0.8
    assert parameter_importance(rows, NORM) == by_hand(values, [0, 1] * 3) == 0
    # What has not ended well, or has one value, tells nothing.
    assert parameter_importance(
        [*rows, row(None, TrialState.FAILED, **{RATE: 5.0, NORM: "pre"})], RATE
    ) == parameter_importance(rows, RATE)
    assert parameter_importance(rows[:3], RATE) is None
    assert parameter_importance([row(0.3, **{RATE: float(number)}) for number in range(4)], RATE) is None
    assert varied_keys([each.trial for each in rows]) == [RATE, NORM]
    assert varied_keys([each.trial for each in rows[:2]]) == [NORM]


def test_a_key_with_many_numbers_is_cut_into_groups_of_equally_many():
    rates = np.geomspace(1e-4, 1e-1, 12)[np.random.default_rng(0).permutation(12)]
    values = np.log(rates) ** 2 + 100 * rates
    rows = [row(float(value), **{RATE: float(rate)}) for rate, value in zip(rates, values, strict=True)]
    quarter = np.argsort(np.argsort(rates)) // 3
    assert parameter_importance(rows, RATE) == pytest.approx(by_hand(values, quarter))
    assert parameter_importance(rows, RATE) > 0.5


@pytest.fixture
def half_done(tmp_path):
    """Eight trials in all, six planned: three done, one diverged, one that runs and one that waits."""
    trials = [
        trial_from_config({RATE: rate, NORM: norm}, {"steps": 10, RATE: rate, NORM: norm, "name": "n"})
        for rate in (1e-3, 1e-2, 1e-1)
        for norm in ("pre", "post")
    ]
    trial_store = TrialStore.open(tmp_path / "s", {"what": "test"})
    trial_store.append_trials(trials)
    ends = [TrialOutcome(TrialState.DONE, value, 10, "") for value in (0.5, 0.25, 1.0)]
    for trial, outcome in zip(trials, [*ends, TrialOutcome(TrialState.DIVERGED, None, 3, "loss is nan")], strict=False):
        trial_store.directory(trial).mkdir(parents=True)
        lines = [{"step": step, "split": "validation", "loss": 10 / (step + 1)} for step in range(1, 1001)]
        (trial_store.directory(trial) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with trial_store.hold_trial(trial) as lease:
            lease.record_outcome(outcome)
    running = trial_store.directory(trials[4])
    running.mkdir(parents=True)
    (running / "metrics.jsonl").write_text('{"step": 4, "split": "validation", "loss": 0.75}\n')
    with trial_store.hold_trial(trials[4]):
        yield trial_store, read_trial_statuses(trial_store, trials, LOSS)


def test_the_time_left_is_that_of_what_is_left_at_the_mean_of_what_is_done(half_done, monkeypatch):
    trial_store, rows = half_done
    seconds = itertools.cycle([(0.0, 10.0), (5.0, 25.0), (0.0, 30.0)])
    monkeypatch.setattr(trial_store, "start_and_end_times", lambda trial: next(seconds))
    # 60 % of the one that runs, and three that wait, two of which are not planned yet.
    assert seconds_left(trial_store, rows, total=8) == pytest.approx(20 * (3 + 0.6))
    assert seconds_left(trial_store, [each for each in rows if each.state != TrialState.RUNNING], total=8) is None
    assert seconds_left(trial_store, [each for each in rows if each.state != TrialState.DONE], total=8) is None


def test_the_result_is_json_with_every_trial_best_first(half_done):
    trial_store, rows = half_done
    about = SweepInfo("sweep", LOSS, False, 8, "python -m launch.sweep")
    curves = TrialCurves(trial_store, LOSS)
    result = sweep_page_data(about, trial_store, rows, curves, {rows[1].trial.name: "again"}, over=False)
    assert json.loads(json.dumps(result, allow_nan=False)) == json.loads(json.dumps(result))
    assert [trial["state"] for trial in result["trials"]] == ["done"] * 3 + ["running", "diverged", "pending"]
    assert [trial["value"] for trial in result["trials"]] == [0.25, 0.5, 1.0, 0.75, None, None]
    assert (result["state"], result["seconds_left"] is not None) == ("running", True)
    ended = sweep_page_data(about, trial_store, rows, curves, {}, over=True)
    assert (ended["state"], ended["seconds_left"]) == ("stopped", None)
    done = [each for each in rows if each.state in (TrialState.DONE, TrialState.DIVERGED)]
    assert (
        sweep_page_data(about._replace(num_trials=len(done)), trial_store, done, curves, {}, over=True)["state"]
        == "done"
    )
    assert result["best"] == rows[1].trial.name == result["trials"][0]["name"]
    assert result["trials"][0]["command"] == "again"
    assert result["trials"][0]["trust"] == ""
    row = rows[1]._replace(
        trial=rows[1].trial._replace(config={**rows[1].trial.config, "model": {"family": "lab.mine"}})
    )
    assert sweep_page_data(about, trial_store, [row], curves, {}, over=True)["trials"][0]["trust"] == "--trust=lab.mine"
    assert result["hyperparameter_values"] == {RATE: [1e-3, 1e-2, 1e-1], NORM: ["post", "pre"]}
    assert result["counts"] == "4 of 8 finished: 3 done, 1 diverged; 1 running, 3 pending"
    kept = result["trials"][0]["curve"]
    assert len(kept) == 200
    assert kept[-1] == (1000, 10 / 1001)
    assert all(math.isclose(value, 10 / (step + 1)) for step, value in kept)
    # What has ended is not read again; what runs is.
    for each in rows:
        (trial_store.directory(each.trial) / "metrics.jsonl").unlink(missing_ok=True)
    again = sweep_page_data(about, trial_store, rows, curves, {}, over=False)
    assert again["trials"][0]["curve"] == kept
    assert again["trials"][3]["curve"] == []


def test_values_that_only_look_equal_are_different():
    rows = [row(1.0, **{NORM: value}) for value in (1, True, 1.0)]
    assert varied_keys([each.trial for each in rows]) == [NORM]
    # A switch is no number: of four trials with either the metric is the switch's own.
    switched = [row(float(value), **{NORM: value}) for value in (1, True, 0, False)]
    assert parameter_importance(switched, NORM) is None  # as many groups as trials
    values = [1, True] * 4
    eight = [row(number / 10 + 10 * (type(value) is bool), **{NORM: value}) for number, value in enumerate(values)]
    assert parameter_importance(eight, NORM) == pytest.approx(by_hand([each.value for each in eight], [0, 1] * 4))
