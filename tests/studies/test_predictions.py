"""Predictions of made-up studies, and those of the recorded study of pre-norm against post-norm."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from launch.config_files import load_config, load_function
from transformer.config import UserError
from transformer.studies.ablations import analysis
from transformer.studies.ablations.ablation import Ablation, build_ablation
from transformer.studies.ablations.arm_comparisons import compare_arms
from transformer.studies.ablations.predictions import PredictionOutcome, describe_prediction, judge_predictions
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.study_results import arrange_results

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (1, 2, 3, 4, 5)
NOISE = (0.0, 0.03, -0.02, 0.01, -0.01)  # of each seed, in the differences
# The true difference of the arm "new" from the reference on each task.
EFFECTS = {"easy": -0.5, "hard": -0.2, "flat": 0.0}


def study(predictions: Sequence[Mapping[str, Any]], **fields: Any) -> Ablation:
    values = {
        "question": "?",
        "arms": {"old": {}, "new": {"model.norm_placement": "pre"}},
        "reference": "old",
        "seeds": SEEDS,
        "tasks": {task: {"task.dataset": task} for task in EFFECTS},
        "predictions": predictions,
    }
    return build_ablation(**{**values, **fields})


def run(arm: str, task: str, seed: int, value: float, state: str = "done") -> RunResult:
    return RunResult(arm, task, seed, {}, state, value, value if state == "done" else None, {}, None, {}, 1, "", "")


def cells(spec: Ablation, diverged: Sequence[tuple[str, str, int]] = ()) -> list[RunResult]:
    return [
        run(
            arm,
            task,
            seed,
            2.0 + 0.1 * seed + (EFFECTS[task] + NOISE[seed - 1] * (1 + (task == "hard")) if arm == "new" else 0.0),
            "diverged" if (arm, task, seed) in diverged else "done",
        )
        for arm in spec.arms
        for task in spec.tasks
        for seed in spec.seeds
    ]


def judge(prediction: Mapping[str, Any], **fields: Any) -> tuple[PredictionOutcome, str]:
    """The outcome of a prediction about the arm "new", and its sentence."""
    diverged = fields.pop("diverged", ())
    spec = study([{"arm": "new", **prediction}], **fields)
    results = arrange_results(spec, cells(spec, diverged))
    (judged,) = judge_predictions(results, compare_arms(results))
    return judged, describe_prediction(spec, judged)


@pytest.mark.parametrize(
    ("prediction", "outcome", "agreeing"),
    [
        ({"direction": "better", "task": "easy"}, "came out", 5),
        ({"direction": "better"}, "came out", 5),
        ({"direction": "worse", "task": "easy"}, "did not come out", 0),
        ({"direction": "better", "task": "flat"}, "undecided", 2),
        ({"direction": "better", "task": "easy", "at_least": 0.3}, "came out", 5),
        ({"direction": "better", "task": "easy", "at_least": 0.6}, "did not come out", 0),
        ({"direction": "better", "task": "easy", "at_least": 0.5}, "undecided", 3),
        ({"direction": "better", "task": "easy", "at_most": 0.6}, "came out", 5),
        ({"direction": "better", "task": "easy", "at_most": 0.3}, "did not come out", 0),
        ({"direction": "similar", "task": "flat", "at_most": 0.1}, "came out", 5),
        ({"direction": "similar", "task": "easy", "at_most": 0.1}, "did not come out", 0),
        ({"direction": "similar", "task": "flat", "at_most": 0.025}, "undecided", 4),
        ({"direction": "better", "task": "easy", "more_than_on": "hard"}, "came out", 5),
        ({"direction": "better", "task": "hard", "more_than_on": "easy"}, "did not come out", 0),
        ({"direction": "better", "task": "easy", "more_than_on": "hard", "at_least": 0.4}, "did not come out", 0),
        # All seeds have the same excess, which has no interval.
        ({"direction": "worse", "task": "flat", "more_than_on": "easy"}, "undecided", 5),
        ({"direction": "worse", "task": "flat", "more_than_on": "hard"}, "came out", 5),
    ],
)
def test_a_prediction_comes_out_if_its_whole_interval_agrees(prediction, outcome, agreeing):
    judged, sentence = judge(prediction)
    assert (judged.outcome.value, judged.num_agreeing_seeds, judged.num_seeds) == (outcome, agreeing, 5)
    assert f". {outcome.capitalize()}: " in sentence
    # The same of a metric that is to be large, with all values turned around.
    turned = [each._replace(reported_value=-each.reported_value) for each in cells(study([]))]
    spec = study([{"arm": "new", **prediction}], direction="maximize")
    results = arrange_results(spec, turned)
    (other,) = judge_predictions(results, compare_arms(results))
    assert other.outcome is judged.outcome


def test_the_excess_on_one_task_is_a_paired_t_interval():
    judged, sentence = judge({"direction": "better", "task": "easy", "more_than_on": "hard"})
    # The noise of "hard" is twice that of "easy": what is left is once, in the predicted direction.
    differences = [0.3 + noise for noise in NOISE]
    mean, half = statistics.fmean(differences), stats.t.ppf(0.975, 4) * statistics.stdev(differences) / math.sqrt(5)
    assert judged.difference == pytest.approx(mean)
    assert judged.interval == pytest.approx((mean - half, mean + half))
    assert sentence == (
        "Predicted: new better than old on easy by more than on hard. Came out: the excess is 0.302 in test/loss (95% "
        "interval 0.278 to 0.326; 5 of 5 seeds agree)."
    )
    spec = study(
        [
            {"arm": "new", "direction": "better", "task": task, "more_than_on": other}
            for task, other in (("easy", "hard"), ("hard", "flat"))
        ]
    )
    results = arrange_results(spec, cells(spec))
    first, _ = judge_predictions(results, compare_arms(results))
    wider = stats.t.ppf(1 - 0.025 / 2, 4) * statistics.stdev(differences) / math.sqrt(5)
    assert first.interval == pytest.approx((mean - wider, mean + wider))


def test_a_run_that_diverged_leaves_no_difference():
    judged, sentence = judge({"direction": "better", "task": "easy"}, diverged=[("old", "easy", 1)])
    assert (judged.outcome.value, judged.difference) == ("undecided", None)
    assert sentence.endswith("Undecided: runs are missing or diverged, so that there is no difference.")
    judged, _ = judge({"direction": "better", "task": "easy", "more_than_on": "hard"}, diverged=[("old", "hard", 1)])
    assert (judged.outcome.value, judged.difference) == ("undecided", None)


@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        ({"arm": "newer"}, "predictions[0].arm='newer' is no arm"),
        ({"arm": "old"}, "is the reference"),
        ({"task": "eesy"}, "predictions[0].task='eesy' is no task"),
        ({"task": "easy", "more_than_on": "x"}, "predictions[0].more_than_on='x' is no task"),
        ({"more_than_on": "easy"}, "compares two tasks"),
        ({"task": "easy", "more_than_on": "easy"}, "is its own task"),
        ({"direction": "bigger"}, "direction"),
        ({"direction": "similar"}, "give at_most or smallest_effect_of_interest"),
        ({"direction": "similar", "at_least": 1.0}, "excludes at_least"),
        ({"direction": "similar", "task": "easy", "more_than_on": "hard"}, "excludes more_than_on"),
        ({"at_least": 2.0, "at_most": 1.0}, "must be smaller than"),
        ({"at_least": 0.0}, "at_least"),
        ({"at_least": -1.0}, "at_least"),
        ({"at_least": math.nan}, "at_least"),
        ({"at_least": "0.1"}, "at_least"),
        ({"size": 0.1}, "size"),
    ],
)
def test_a_prediction_that_means_nothing_is_refused_with_the_study(prediction, words):
    with pytest.raises(UserError) as refusal:
        study([{"arm": "new", "direction": "better", **prediction}])
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_predictions_are_a_list_of_dicts_and_each_is_made_once():
    with pytest.raises(UserError, match="must be a list"):
        study({"arm": "new", "direction": "better"})
    with pytest.raises(UserError, match=r"predictions\[0\]='pre' must be a dict"):
        study(["pre"])
    with pytest.raises(UserError, match="the second prediction of arm 'new'"):
        study([{"arm": "new", "direction": direction, "task": "easy"} for direction in ("better", "worse")])


def test_the_result_says_of_each_prediction_whether_it_came_out():
    spec = study([{"arm": "new", "direction": "better", "task": "easy", "at_least": 0.6}])
    result = analysis.analyze(spec, cells(spec), {}).to_json()
    (prediction,) = result["predictions"]
    assert (prediction["outcome"], prediction["direction"]) == ("did not come out", "better")
    assert prediction["sentence"] == result["summary"][0]
    json.dumps(result, allow_nan=False)


def test_what_came_out_of_the_recorded_study_is_in_its_record():
    config = "experiments/ablations/configs/pre_norm_vs_post_norm.py"
    load_config(str(ROOT / config))
    get_ablation = load_function(str(ROOT / config), "get_ablation")
    assert get_ablation is not None
    spec = get_ablation(build_ablation)
    results = ROOT / "experiments" / "ablations" / "results"
    recorded = json.loads((results / "pre_norm_vs_post_norm.json").read_text())
    runs = [
        RunResult(
            each["arm"],
            each["task"],
            each["seed"],
            each["hyperparameters"],
            each["state"],
            each["selection_value"],
            each["reported_value"],
            {},
            None,
            {},
            each["steps"],
            each["directory"],
            each["command"],
        )
        for each in recorded["runs"]
    ]
    study_results = arrange_results(spec, runs)
    outcomes = judge_predictions(study_results, compare_arms(study_results))
    sentences = [describe_prediction(spec, each) for each in outcomes]
    assert [each.outcome.value for each in outcomes].count("came out") == 6
    (wrong,) = [each for each in outcomes if each.outcome.value == "did not come out"]
    assert (wrong.prediction.task, wrong.num_agreeing_seeds) == ("2+2 layers without warm-up", 0)
    page = (results / "pre_norm_vs_post_norm.md").read_text().replace("\n", " ")
    assert [sentence for sentence in sentences if sentence not in " ".join(page.split())] == []
