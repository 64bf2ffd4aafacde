"""What a study found, against sums by hand over made-up cells."""

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from transformer.studies.ablations import analysis
from transformer.studies.ablations.ablation import Ablation, Direction
from transformer.studies.ablations.arm_comparisons import compare_arms
from transformer.studies.ablations.formatting import round_to_error
from transformer.studies.ablations.run_result import Point, RunResult
from transformer.studies.ablations.statistics import t_test
from transformer.studies.ablations.study_results import arrange_results

RATE, WARMUP = "optimizer.learning_rate", "optimizer.warmup_steps"
T4 = 2.7764451052  # Student's t, 4 degrees of freedom, two-sided 5%
T4_OF_3, T4_OF_4 = 3.9608445, 4.3147  # the same at 5% over three comparisons, and over four
PRE = [1.00, 1.20, 0.90, 1.10, 1.05]
POST = [1.31, 1.48, 1.22, 1.39, 1.36]
UNTUNED = (
    "Nothing was tuned: all arms have the base config's values, such as its learning rate, which may suit one arm "
    "better than another. Give a tuning_grid to judge each arm at its best."
)


def spec(arms: Sequence[str] = ("pre", "post"), **changes: Any) -> Ablation:
    return Ablation("Which norm?", {arm: {} for arm in arms}, arms[0], **changes)


def cell(
    arm: str,
    seed: int,
    value: float | None,
    *,
    task: str = "",
    hyperparameters: Mapping[str, Any] | None = None,
    state: str = "done",
    selection_value: float | None = None,
    curve: Sequence[Point] = (),
    flops: float | None = None,
    heads: Mapping[str, Any] | None = None,
) -> RunResult:
    selection_value = value if selection_value is None else selection_value
    place = "-".join(map(str, (arm, task, seed, *(hyperparameters or {}).values())))
    curves = {"validation/loss": tuple(curve)}
    return RunResult(
        arm,
        task,
        seed,
        hyperparameters or {},
        state,
        selection_value,
        value,
        curves,
        flops,
        heads or {},
        40,
        place,
        f"run {place}",
    )


def row(arm: str, values: Sequence[float | None], **kept: Any) -> list[RunResult]:
    """Seeds 1, 2, ...: None diverged."""
    return [
        cell(arm, seed, value, state="diverged" if value is None else "done", **kept)
        for seed, value in enumerate(values, start=1)
    ]


def analyze(spec: Ablation, cells: Sequence[RunResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as JSON."""
    return analysis.analyze(spec, cells, about).to_json()


def arm_of(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next(arm for arm in result["arms"] if arm["name"] == name)


def test_a_study_of_two_arms() -> None:
    about = {
        "name": "norm",
        "arms": {"post": {"differences": [{"key": "k"}], "parameters": 7, "shared": {"num_equal_arrays": 1}}},
    }
    result = analyze(spec(), row("pre", PRE) + row("post", POST), about)
    pre, post = result["arms"]
    assert (pre["n"], pre["mean"]) == (5, pytest.approx(1.05))
    deviation = math.sqrt(sum((value - 1.05) ** 2 for value in PRE) / 4)
    assert pre["deviation"] == pytest.approx(deviation)
    half = T4 * deviation / math.sqrt(5)
    assert pre["interval"] == pytest.approx([1.05 - half, 1.05 + half])
    assert pre["iqm"]["value"] == pytest.approx((1.00 + 1.10 + 1.05) / 3)
    assert pre["iqm"]["interval"][0] < 1.05 < pre["iqm"]["interval"][1]
    assert pre["iqm"]["coverage"] == 0.9
    assert [entry["value"] for entry in post["seeds"]] == POST
    assert (post["differences"], post["parameters"], post["shared"]) == ([{"key": "k"}], 7, {"num_equal_arrays": 1})
    assert (pre["differences"], pre["parameters"], pre["shared"]) == ([], None, None)

    (pair,) = result["comparisons"]
    off = [b - a for a, b in zip(PRE, POST, strict=True)]
    mean, spread = sum(off) / 5, np.std(off, ddof=1)
    assert (pair["arm"], pair["reference"], pair["task"], pair["n"]) == ("post", "pre", None, 5)
    assert [(entry["seed"], entry["value"]) for entry in pair["differences"]] == list(enumerate(off, start=1))
    assert pair["difference"] == pytest.approx(mean)
    # Two of the differences tie, and the others lie a hundredth apart: half of that over 5 corrects for continuity.
    half = T4 * spread / math.sqrt(5) + 0.01 / 2 / 5
    assert pair["interval"] == pytest.approx([mean - half, mean + half])
    assert pair["p"] == pair["p_adjusted"] < 1e-4
    assert pair["verdict"] == "worse"
    assert "power" not in pair
    assert (result["name"], result["direction"], result["seeds"]) == ("norm", "minimize", [1, 2, 3, 4, 5])
    assert result["warnings"] == [UNTUNED]
    assert pair["caveats"] == ["not tuned"]
    assert result["about"] == about


def test_a_result_is_json_and_the_order_of_the_cells_is_nothing_to_it() -> None:
    cells = [*row("pre", [1.0, math.nan, None, 1.1, 1.0]), *row("post", [math.inf, 2.0, 1.0, None, None])]
    study = spec(target=0.9, plotted_metrics=("validation/accuracy",))
    about = {"initial_gradients": {"ratio": [{"last_over_first": math.nan}]}}
    result = analyze(study, cells, about)
    assert result["about"] == {"initial_gradients": {"ratio": [{"last_over_first": None}]}}
    text = json.dumps(result, allow_nan=False)
    assert json.loads(text) == result
    random.Random(3).shuffle(cells)
    assert analyze(study, cells, about) == result


def test_tuned_values_are_chosen_by_the_mean_where_at_least_half_of_the_seeds_learned() -> None:
    hyperparameters = {RATE: (1e-4, 1e-3, 1e-2)}
    cells = []
    for rate, pre, post in (
        (1e-4, [2.0] * 5, [1.5, 1.5, 1.5, 1.5, 1.4]),
        (1e-3, [1.0, 1.1, 1.0, 1.2, 1.0], [1.5, 1.5, 1.5, 1.5, 1.3]),
        (1e-2, [0.5, 0.5, 0.5, 0.5, None], [1.0, 1.0, None, None, None]),
    ):
        cells += row("pre", pre, hyperparameters={RATE: rate}) + row("post", post, hyperparameters={RATE: rate})
    result = analyze(spec(tuning_grid=hyperparameters), cells, {})
    # With its fifth seed the last rate of "pre" counts 2.0, the worst of that seed: 0.8 in the mean, against 1.06. That
    # of "post" has lost more than half of its seeds.
    assert [arm["selected_hyperparameters"] for arm in result["arms"]] == [{"": {RATE: 1e-2}}, {"": {RATE: 1e-3}}]
    assert [entry["value"] for entry in arm_of(result, "post")["seeds"]] == [1.5, 1.5, 1.5, 1.5, 1.3]
    runs = arm_of(result, "post")["run_counts"]
    assert (runs["all"], runs["ended"], runs["diverged"], runs["failed"]) == (15, 15, 3, 0)
    assert runs["rate"] == pytest.approx(0.2)
    # The score interval of 3 in 15, by its formula.
    center, half, scale = 0.2 + 3.8414588 / 30, 1.959964 * math.sqrt(0.16 / 15 + 3.8414588 / 900), 1 + 3.8414588 / 15
    assert runs["interval"] == pytest.approx([(center - half) / scale, (center + half) / scale], rel=1e-6)


def test_the_choice_is_on_validation_and_the_report_on_test() -> None:
    cells = []
    for seed in range(1, 6):
        for arm in ("pre", "post"):
            cells.append(cell(arm, seed, 1.0 + seed, selection_value=2.0, hyperparameters={RATE: 1}))
            cells.append(cell(arm, seed, 9.0 + seed, selection_value=1.0, hyperparameters={RATE: 2}))
    result = analyze(spec(tuning_grid={RATE: (1, 2)}), cells, {})
    assert arm_of(result, "pre")["mean"] == 12.0
    assert not any("which is also reported" in line for line in result["warnings"])
    result = analyze(spec(tuning_grid={RATE: (1, 2)}, reported_metric="validation/loss"), cells, {})
    assert any("which is also reported" in line for line in result["warnings"])


def test_a_run_that_ends_beyond_the_limit_is_stuck_and_keeps_its_figures() -> None:
    result = analyze(spec(learned_threshold=1.4), row("pre", PRE) + row("post", POST), {})
    post = arm_of(result, "post")
    assert (post["run_counts"]["diverged"], post["run_counts"]["stuck"], post["n"]) == (0, 1, 5)
    assert post["learned"] == {"count": 4, "of": 5}
    assert post["mean"] == pytest.approx(np.mean(POST))
    assert [(entry["state"], entry["value"]) for entry in post["seeds"]][1] == ("stuck", POST[1])
    (pair,) = result["comparisons"]
    assert [entry["seed"] for entry in pair["differences"]] == [1, 2, 3, 4, 5]
    assert pair["verdict"] == "worse"
    # Of 5 and 4 out of 5: every table with these margins is as likely as this one, or less.
    assert pair["learned"] == {"arm": [4, 5], "reference": [5, 5], "p_adjusted": 1.0}
    assert result["warnings"] == [UNTUNED]
    assert [entry["state"] for entry in result["runs"] if entry["arm"] == "post"].count("stuck") == 1


def test_who_learned_at_all_is_said_first() -> None:
    study = Ablation("Does post learn?", {"post": {}, "pre": {}}, "post", seeds=(1, 2, 3), learned_threshold=2.3)
    result = analyze(study, row("post", [2.673, 2.836, 2.723]) + row("pre", [0.030, 0.515, 0.027]), {})
    assert result["summary"][0] == (
        "Runs that learned: pre 3 of 3 and post 0 of 3; Fisher's exact test against post: pre p = 0.1, and 3 and 3 "
        "runs can give no less than 0.1."
    )
    assert result["comparisons"][0]["learned"] == {"arm": [3, 3], "reference": [0, 3], "p_adjusted": pytest.approx(0.1)}
    # All runs of one arm and none of the other are stuck in one study of 32 by chance alone, where half of them are.
    (pair,) = result["comparisons"]
    assert (pair["verdict"], pair["p"], pair["interval"]) == ("not judged", 0.25, None)
    assert result["summary"][1].endswith("; it is not judged against the reference post.")
    assert result["summary"][2] == (
        "pre is not judged against post: The mean difference is -2.55; post is stuck with seeds 1, 2 and 3, so that "
        "the noise is not normal: flipping the signs gives p = 0.25: 3 seeds can give no less than p = 0.25."
    )
    # No mean of losses is below 0; the t interval of these three would begin at -0.50.
    low, high = arm_of(result, "pre")["interval"]
    assert low == 0
    assert high == pytest.approx(0.191 + 4.30265 * np.std([0.030, 0.515, 0.027], ddof=1) / 3**0.5, abs=1e-3)
    everybody = analyze(study, row("post", [1.0, 1.1, 1.2]) + row("pre", [0.1, 0.2, 0.3]), {})
    assert not any("learned" in line for line in everybody["summary"])
    several = Ablation("Q?", {arm: {} for arm in ("a", "b", "c")}, "a", learned_threshold=2.0)
    told = analyze(several, row("a", [3.0] * 5) + row("b", PRE) + row("c", [1.0, 1.1, 1.2, 3.0, 3.0]), {})["summary"]
    # 2 x 1/252 and 2 x 21/252, each twice over two comparisons.
    assert told[0] == (
        "Runs that learned: b 5 of 5, c 3 of 5 and a 0 of 5; Fisher's exact test against a, adjusted for 2 comparisons"
        ": b p = 0.016; c p = 0.33."
    )


def test_stuck_runs_are_judged_by_signs_where_the_seeds_are_enough_for_that() -> None:
    for seeds, p, verdict in ((5, None, "worse"), (6, 2 / 64, "worse"), (8, 2 / 256, "worse")):
        study = spec(seeds=tuple(range(1, seeds + 1)), learned_threshold=1.4)
        pre = [*PRE, 1.02, 0.97, 1.11][:seeds]
        post = [value + 0.3 + 0.01 * number for number, value in enumerate(pre)]  # one of them is stuck
        (pair,) = analyze(study, row("pre", pre) + row("post", post), {})["comparisons"]
        assert (pair["verdict"], pair["interval"] is None) == (verdict, p is not None)
        assert p is None or pair["p"] == p


def test_what_counts_can_give_at_least_is_said_as_corrected() -> None:
    """Of 4 against 0 of 4 runs 2 of 70 tables are so uneven: p is 0.029 alone, and 0.057 as one of two."""
    arms = {"post": {}, "pre": {}, "sandwich": {}}
    study = Ablation("Does post learn?", arms, "post", seeds=(1, 2, 3, 4), learned_threshold=2.3)
    rows = (row("post", [2.7, 2.8, 2.9, 2.6]), row("pre", [0.1, 0.2, 0.3, 0.4]), row("sandwich", [0.2, 0.3, 0.1, 0.5]))
    told = analyze(study, [each for cells in rows for each in cells], {})["summary"][0]
    assert told.count("and 4 and 4 runs can give no less than 0.057") == 2


@pytest.mark.parametrize(
    ("fast", "chosen"),
    [([0.1, 0.1, 0.1, 1.5, 1.5], 1), ([0.1, 0.1, 1.5, 1.5, 1.5], 2), ([0.1, 0.1, 1.5, 1.5], 1)],
)
def test_tuned_values_at_which_fewer_than_half_learn_are_not_chosen(fast: list[float], chosen: int) -> None:
    seeds = tuple(range(1, len(fast) + 1))
    study = spec(tuning_grid={RATE: (1, 2)}, learned_threshold=1.4, seeds=seeds)
    cells = [
        each
        for arm in ("pre", "post")
        for each in row(arm, fast, hyperparameters={RATE: 1}) + row(arm, [1.3] * len(fast), hyperparameters={RATE: 2})
    ]
    # What is stuck counts as 1.3, the worst of its seed that learned.
    assert arm_of(analyze(study, cells, {}), "post")["selected_hyperparameters"] == {"": {RATE: chosen}}
    # Where none learns, the mean of those that finished decides.
    nobody = [
        each._replace(selection_value=each.selection_value + 2) for each in cells if each.selection_value is not None
    ]
    assert arm_of(analyze(study, nobody, {}), "post")["selected_hyperparameters"] == {"": {RATE: 1}}


def test_a_run_more_that_diverged_does_not_choose_a_far_worse_value() -> None:
    """One run of eight diverges at the better rate by chance: taking the other would be a difference of the arms."""
    study = spec(tuning_grid={RATE: (1, 2)}, seeds=tuple(range(1, 9)))
    losses = [1.00, 1.20, 0.90, 1.10, 1.05, 0.95, 1.15, 1.02]
    slow = [value + 3 + 0.02 * number for number, value in enumerate(losses)]
    cells = rates("pre", slow, losses) + rates("post", slow, [*losses[:7], None])
    result = analyze(study, cells, {})
    assert [arm["selected_hyperparameters"] for arm in result["arms"]] == [{"": {RATE: 2}}, {"": {RATE: 2}}]
    assert result["comparisons"][0]["verdict"] == "no difference seen"


def rates(arm: str, slow: Sequence[float | None], fast: Sequence[float | None]) -> list[RunResult]:
    """The runs of an arm at rates 1 and 2."""
    return row(arm, slow, hyperparameters={RATE: 1}) + row(arm, fast, hyperparameters={RATE: 2})


def test_a_run_that_a_machine_lost_is_in_no_rate_of_divergence() -> None:
    cells = row("pre", [None, *PRE[1:]]) + row("post", POST)
    cells[1] = cells[1]._replace(state="failed", selection_value=None, reported_value=None)
    runs = arm_of(analyze(spec(), cells, {}), "pre")["run_counts"]
    assert (runs["all"], runs["ended"], runs["diverged"], runs["failed"]) == (len(PRE), len(PRE) - 1, 1, 1)
    assert runs["rate"] == pytest.approx(1 / (len(PRE) - 1))


def test_a_rate_whose_run_died_of_the_machine_stays_in_tuning_and_its_arm_waits_for_it() -> None:
    """Rate 2 is the best of both; one run of "pre" at it fails, which is nothing that its rate did."""
    study = spec(tuning_grid={RATE: (1, 2)})
    worse = [value + 1 for value in PRE]
    whole = rates("pre", worse, PRE) + rates("post", worse, POST)
    cells = [
        each._replace(state="failed", selection_value=None, reported_value=None)
        if (each.arm_name, each.seed, each.hyperparameters[RATE]) == ("pre", 2, 2)
        else each
        for each in whole
    ]
    result = analyze(study, cells, {})
    assert arm_of(result, "pre")["selected_hyperparameters"] == {"": {RATE: 2}}
    (pair,) = result["comparisons"]
    assert (pair["verdict"], pair["n"], pair["p"], pair["p_adjusted"], pair["interval"]) == (
        ("not judged", 4, None, None, None)
    )
    assert pair["reason"] == f"arm 'pre', seed 2, {RATE}=2 failed: run the command again with --retry_failed."
    assert f"post is not judged against pre: {pair['reason']}" in result["summary"]
    # The same where the run that is lost is one at a value that would not be chosen anyway.
    other = [
        each._replace(state="pending", selection_value=None, reported_value=None)
        if (each.arm_name, each.seed, each.hyperparameters[RATE]) == ("post", 3, 1)
        else each
        for each in whole
    ]
    (pair,) = analyze(study, other, {})["comparisons"]
    assert (pair["verdict"], pair["n"]) == ("not judged", 5)
    assert pair["reason"] == f"arm 'post', seed 3, {RATE}=1 has not ended: run the command again."
    # The seed that is lost at one value is lost at the other: it is the only one at which rate 1 is any good.
    lucky = [
        each._replace(selection_value=-9.0) if (each.seed, each.hyperparameters[RATE]) == (2, 1) else each
        for each in cells
    ]
    assert arm_of(analyze(study, lucky, {}), "pre")["selected_hyperparameters"] == {"": {RATE: 2}}
    # One that diverged was tried, and is no more missing.
    diverged = [each._replace(state="diverged") if each.state == "failed" else each for each in cells]
    assert analyze(study, diverged, {})["comparisons"][0]["reason"].startswith("pre diverged with seed 2")
    result = analyze(study, whole, {})
    assert result["comparisons"][0]["verdict"] == "worse"
    assert result["warnings"] == [f"pre and post chose {RATE}=2, the largest tried: the best may lie beyond."]


def test_the_luck_of_tuning_is_in_the_interval_and_the_verdict() -> None:
    """By validation the rates of post are alike but for its fifth seed, and by test they are far apart."""
    study = spec(tuning_grid={RATE: (1, 2)})
    chosen_by = {("pre", 1): [1.0] * 5, ("pre", 2): [2.0] * 5, ("post", 1): [1.0] * 5, ("post", 2): [1.05] * 4 + [0.7]}
    reported = {("pre", 1): PRE, ("pre", 2): PRE, ("post", 1): PRE[::-1], ("post", 2): POST}
    cells = [
        cell(arm, seed, value, selection_value=selection, hyperparameters={RATE: rate})
        for (arm, rate), values in reported.items()
        for seed, value, selection in zip(range(1, 6), values, chosen_by[arm, rate], strict=True)
    ]
    (pair,) = analyze(study, cells, {})["comparisons"]
    # Without seed 5 post selects rate 1, and with it rate 2.
    at_2, at_1 = ([b - a for a, b in zip(PRE, own, strict=True)] for own in (POST, PRE[::-1]))
    means = [*((sum(at_2) - at_2[seed]) / 4 for seed in range(4)), sum(at_1[:4]) / 4]
    error = math.sqrt(4 / 5 * sum((mean - sum(means) / 5) ** 2 for mean in means))
    half = T4 * error + 0.01 / 2 / 5  # differences tie
    mean = sum(at_2) / 5
    assert pair["interval"] == pytest.approx([mean - half, mean + half])
    assert (pair["verdict"], pair["p"] > 0.05) == ("no difference seen", True)
    # Where each seed selects the same, this is the t interval.
    sure = [
        each._replace(selection_value=0.5) if each.arm_name == "post" and each.hyperparameters[RATE] == 2 else each
        for each in cells
    ]
    assert analyze(study, sure, {})["comparisons"][0]["verdict"] == "worse"


def test_an_arm_that_was_not_tuned_over_every_value_gets_no_verdict() -> None:
    study = spec(tuning_grid={RATE: (1, 2)})
    cells = rates("pre", [value + 1 for value in PRE], PRE) + rates("post", [value + 1 for value in PRE], POST)
    lost = [
        each._replace(state="failed", selection_value=None, reported_value=None)
        if each.arm_name == "pre" and each.hyperparameters[RATE] == 2
        else each
        for each in cells
    ]
    result = analyze(study, lost, {})
    (pair,) = result["comparisons"]
    assert (pair["verdict"], pair["n"], pair["p_adjusted"]) == ("not judged", 5, None)
    assert (
        pair["reason"] == f"arm 'pre', seed 1, {RATE}=2 failed; and 4 more: run the command again with --retry_failed."
    )
    # The same where each value has runs, but no seed has all of them.
    apart = [each for each in cells if each.arm_name == "post" or each.seed % 2 == each.hyperparameters[RATE] % 2]
    assert analyze(study, apart, {})["comparisons"][0]["verdict"] == "not judged"
    assert analyze(study, cells, {})["comparisons"][0]["verdict"] == "worse"


def test_only_comparisons_with_the_arm_whose_run_is_missing_wait() -> None:
    cells = row("a", PRE) + row("b", POST) + row("c", [value + 0.2 for value in POST])
    study = spec(("a", "b", "c"))
    of_arm = [each for each in cells if (each.arm_name, each.seed) != ("b", 5)]
    assert [pair["verdict"] for pair in analyze(study, of_arm, {})["comparisons"]] == ["not judged", "worse"]
    of_reference = [each for each in cells if (each.arm_name, each.seed) != ("a", 5)]
    assert [pair["verdict"] for pair in analyze(study, of_reference, {})["comparisons"]] == ["not judged"] * 2


def test_sensitivity_is_of_seeds_that_have_every_value() -> None:
    study = spec(tuning_grid={RATE: (1, 2)})
    cells = [
        each._replace(curves={"validation/loss": ((10, 9.0), (20, each.selection_value))})
        for arm in ("pre", "post")
        for each in rates(arm, [2.0, 2.0, 5.0], [1.0, 1.0, 1.0])
        if (arm, each.seed, each.hyperparameters[RATE]) != ("pre", 3, 2)
    ]
    told = {arm["name"]: arm["sensitivity"][0]["sensitivity"] for arm in analyze(study, cells, {})["arms"]}
    assert told == {"pre": 0.5, "post": 1.0}


def test_the_two_best_are_compared_where_neither_is_the_reference() -> None:
    close = [value + off for value, off in zip(PRE, (0.02, -0.025, 0.021, -0.022, 0.018), strict=True)]
    cells = row("post", POST) + row("pre", PRE) + row("sandwich", close)
    told = analyze(Ablation("Q?", {arm: {} for arm in ("post", "pre", "sandwich")}, "post"), cells, {})["summary"]
    differences = [own - other for own, other in zip(PRE, close, strict=True)]
    mean, half = np.mean(differences), T4_OF_3 * np.std(differences, ddof=1) / 5**0.5
    assert told[1].startswith(
        f"The two best, pre less sandwich: {mean:.3f} (95% interval {mean - half:.3f} to {mean + half:.3f}, p = "
    )
    assert "adjusted for all 3 pairs of arms" in told[1]
    assert "no verdict" in told[1]
    # The study itself compares its reference with each.
    assert not any("The two best" in line for line in analyze(spec(("pre", "post", "sandwich")), cells, {})["summary"])


def test_a_verdict_says_that_an_arm_chose_the_edge_of_what_was_tried() -> None:
    study = spec(tuning_grid={RATE: (1e-3, 1e-2)})
    cells = [
        each
        for arm, values in (("pre", PRE), ("post", POST))
        for rate in (1e-3, 1e-2)
        for each in row(arm, [value + (rate == 1e-3) for value in values], hyperparameters={RATE: rate})
    ]
    told = analyze(study, cells, {})
    (verdict,) = (line for line in told["summary"] if line.startswith("post is worse than pre"))
    assert verdict.endswith(f" But post and pre chose the largest {RATE} tried, 0.01: beyond it this may turn.")
    assert told["warnings"] == [f"pre and post chose {RATE}=0.01, the largest tried: the best may lie beyond."]
    assert told["comparisons"][0]["caveats"] == [f"post and pre at the largest {RATE}"]


@pytest.mark.parametrize("count", [1, 2])
def test_no_verdict_under_three_seeds(count: int) -> None:
    study = spec(seeds=tuple(range(1, count + 1)))
    result = analyze(study, row("pre", PRE[:count]) + row("post", POST[:count]), {})
    (pair,) = result["comparisons"]
    assert (pair["verdict"], pair["n"], pair["p_adjusted"]) == ("not judged", count, None)
    assert (pair["p"], pair["interval"]) == (None, None)
    assert result["warnings"][0].startswith(f"{count} seed{'s' if count > 1 else ''} only: no verdict is given")
    assert "no verdict is given under three" in pair["reason"]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_an_interquartile_mean_under_five_seeds_has_no_interval(count: int) -> None:
    """It would contain the truth in 48, 72 and 89% of studies."""
    study = spec(seeds=tuple(range(1, count + 1)))
    iqm = arm_of(analyze(study, row("pre", PRE[:count]) + row("post", POST[:count]), {}), "pre")["iqm"]
    assert iqm["value"] is not None
    assert (iqm["interval"], iqm["coverage"]) == (None, None)


@pytest.mark.parametrize(("count", "warned"), [(3, True), (4, True), (5, False)])
def test_a_warning_under_five_seeds(count: int, warned: bool) -> None:
    study = spec(seeds=tuple(range(1, count + 1)))
    result = analyze(study, row("pre", PRE[:count]) + row("post", POST[:count]), {})
    assert result["comparisons"][0]["verdict"] == "worse"
    assert any(line.startswith(f"{count} seeds only") for line in result["warnings"]) == warned


def test_an_arm_without_survivors_is_named_and_not_judged_by_five_seeds() -> None:
    result = analyze(spec(), row("pre", PRE) + row("post", [None] * 5), {})
    (pair,) = result["comparisons"]
    assert (pair["verdict"], pair["n"], pair["difference"], pair["interval"]) == ("not judged", 5, None, None)
    # Each of the five runs is worse: two of 32 choices of signs.
    assert (pair["p"], pair["differences"]) == (2 / 32, [])
    assert pair["reason"] == (
        "post diverged with seeds 1, 2, 3, 4 and 5, counted as worse than every finished run: flipping the signs of 5 "
        "pairs gives p = 0.062: 5 seeds can give no less than p = 0.062."
    )
    # Of 5 against 0 of 5 runs 2 of 252 tables are so uneven.
    assert pair["learned"] == {"arm": [0, 5], "reference": [5, 5], "p_adjusted": pytest.approx(2 / 252)}
    post = arm_of(result, "post")
    assert (post["mean"], post["interval"], post["iqm"]) == (
        None,
        None,
        {"value": None, "interval": None, "coverage": None},
    )
    assert any("post in 5 of 5 (95% interval 57 to 100%); never: pre" in line for line in result["summary"])


def test_a_diverged_run_counts_as_worse_than_every_finished_run() -> None:
    """Six seeds; the fifth of post diverged, and it was otherwise better: dropping that seed would call it better."""
    study = spec(seeds=(1, 2, 3, 4, 5, 6))
    pre, post = [*PRE, 1.02], [*(value - 0.3 + 0.01 * seed for seed, value in enumerate(PRE[:4])), None, 0.77]
    result = analyze(study, row("pre", pre) + row("post", post), {})
    (pair,) = result["comparisons"]
    # The worst is 1.20, the best 0.62: the diverged run counts as 1.78, and no choice of signs is a sum nearer to 0.
    differences = [-0.3, -0.29, -0.28, -0.27, 1.78 - 1.05, -0.25]
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=6)]
    p = np.mean([each >= abs(sum(differences)) - 1e-9 for each in sums])
    assert pair["p"] == pair["p_permutation"] == pytest.approx(p)
    assert (pair["verdict"], pair["n"], pair["difference"], pair["interval"]) == ("no difference seen", 6, None, None)
    assert [entry["seed"] for entry in pair["differences"]] == [1, 2, 3, 4, 6]
    counted = "post diverged with seed 5, counted as worse than every finished run"
    assert f"No difference seen between post and pre at 6 seeds: p = {p:.2g}; {counted}." in result["summary"]
    assert pair["reason"] == f"{counted}: flipping the signs of 6 pairs gives p = {p:.2g}."
    # A mean of the other runs is no more than that: it has no interval, and beats nobody.
    assert (arm_of(result, "post")["n"], arm_of(result, "post")["interval"]) == (5, None)
    assert not any("has the best mean" in line for line in result["summary"])
    # Arms that diverge with all of six seeds are worse than those that never do, whatever the others reach.
    never = analyze(study, row("pre", pre) + row("post", [None] * 6), {})
    assert (never["comparisons"][0]["verdict"], never["comparisons"][0]["p"]) == ("worse", 2 / 64)
    assert any(
        line.startswith(
            "post is worse than pre: p = 0.031; 6 paired seeds; post diverged with seeds 1, 2, 3, 4, 5 and 6,"
        )
        for line in never["summary"]
    )
    # If both diverge with a seed, they are equal there.
    both = analyze(study, row("pre", [*PRE, None]) + row("post", [*POST, None]), {})["comparisons"][0]
    assert (both["verdict"], both["p"]) == ("no difference seen", 2 / 32)


def test_a_run_that_diverged_on_one_task_counts_on_it_and_in_the_mean_of_all() -> None:
    study = spec(tasks={"short": {}, "long": {}}, seeds=(1, 2, 3, 4, 5, 6))
    pre = [*PRE, 1.02]
    cells = [
        *row("pre", pre, task="short"),
        *row("pre", [value + 1 for value in pre], task="long"),
        *row("post", [value + 0.2 + 0.01 * seed for seed, value in enumerate(pre)], task="short"),
        *row("post", [*(value + 1.6 - 0.02 * seed for seed, value in enumerate(pre[:5])), None], task="long"),
    ]
    overall, short, long = analyze(study, cells, {})["comparisons"]
    assert [pair["n"] for pair in (overall, short, long)] == [6, 6, 6]
    assert [len(pair["differences"]) for pair in (overall, short, long)] == [5, 6, 5]
    assert [pair["interval"] is None for pair in (overall, short, long)] == [True, False, True]
    # Six of six seeds are worse, with the one that diverged: two of 64 choices of signs.
    assert (overall["verdict"], overall["p"], long["p"]) == ("worse", 2 / 64, 2 / 64)


def test_the_best_of_the_arms_that_finished_may_be_no_better_than_one_that_diverged() -> None:
    study = spec(("a", "b", "c"), seeds=(1, 2, 3, 4, 5, 6, 7, 8))
    cells = row("a", [None, *[1.0] * 7]) + row("b", [2.0 + 0.1 * n for n in range(8)]) + row("c", [3.0] * 8)
    told = analyze(study, cells, {})["summary"]
    assert any(
        line.startswith("Of the arms whose runs all finished, b has the best mean test/loss, 2.35") for line in told
    )
    assert not any("a has the best mean" in line for line in told)


def test_a_metric_that_is_not_finite_diverged() -> None:
    result = analyze(spec(), row("pre", PRE) + row("post", [*POST[:4], math.nan]), {})
    assert [entry["state"] for entry in arm_of(result, "post")["seeds"]] == ["done"] * 4 + ["diverged"]
    assert result["comparisons"][0]["reason"].startswith("post diverged with seed 5, counted as worse")


def test_equal_arms_show_no_difference() -> None:
    result = analyze(spec(), row("pre", PRE) + row("post", PRE), {})
    (pair,) = result["comparisons"]
    assert (pair["verdict"], pair["p"], pair["p_adjusted"], pair["interval"]) == ("no difference seen", 1.0, 1.0, None)
    assert "All 5 paired differences are 0" in pair["reason"]


def test_equal_differences_carry_no_t_statistic() -> None:
    """Three seeds of 1.000 against 0.998 are no p of 0; nor are they where rounding moves the last digits."""
    arms = ("a", "b", "c")
    study = spec(arms, seeds=(1, 2, 3), reported_metric="test/accuracy", direction=Direction.MAXIMIZE)
    for noise in ((0.0, 0.0, 0.0), (0.0, 6e-8, -6e-8)):
        off = [0.998 + each for each in noise]
        result = analyze(study, row("a", [1.0] * 3) + row("b", off) + row("c", [1.1, 0.9, 1.0]), {})
        pair = result["comparisons"][0]
        assert (pair["verdict"], pair["interval"]) == ("not judged", None)
        # Two of the eight choices of signs, over two comparisons.
        assert (pair["p"], pair["p_permutation"], pair["p_adjusted"]) == (0.25, 0.25, 0.5)
        assert pair["reason"] == (
            "All 3 paired differences are -0.002 (with every seed): they carry no t statistic, and flipping their "
            "signs gives p = 0.25 before it is adjusted for 2 comparisons: 3 seeds can give no less than p = 0.25."
        )
        assert f"b is not judged against a: {pair['reason']}" in result["summary"]
        reference = arm_of(result, "a")
        assert (reference["mean"], reference["interval"], reference["iqm"]["interval"]) == (1.0, None, None)
        assert result["summary"][0].startswith("a has the best mean test/accuracy, 1 (with every seed)")


def test_seven_equal_differences_are_enough_for_a_verdict_over_two() -> None:
    study = spec(("a", "b", "c"), seeds=tuple(range(1, 8)), direction=Direction.MAXIMIZE)
    result = analyze(study, row("a", [1.0] * 7) + row("b", [0.998] * 7) + row("c", [1.0] * 7), {})
    worse, same = result["comparisons"]
    assert (worse["verdict"], worse["p_adjusted"]) == ("worse", 2 * 2 / 2**7)
    assert (same["verdict"], same["p_adjusted"], same["reason"]) == (
        "no difference seen",
        1.0,
        "All 7 paired differences are 0: the arms are alike.",
    )
    assert (
        "b is worse than a by 0.002 in test/loss (with every seed, p = 0.031, adjusted for 2 comparisons; 7 paired "
        "seeds)." in result["summary"]
    )
    assert any(
        line.startswith("No difference seen between c and a at 7 seeds: +0 (with every") for line in result["summary"]
    )


def test_interval_and_p_are_adjusted_for_the_number_of_arms() -> None:
    arms = ("pre", *(f"arm{number}" for number in range(4)))
    noise = np.array([-0.4, -0.2, 0.0, 0.25, 0.35])
    cells = row("pre", PRE)
    for arm, shift in zip(arms[1:], (0.5, 0.02, -0.01, 0.01), strict=True):
        cells += row(arm, (np.array(PRE) + shift + noise).tolist())
    pairs = analyze(spec(arms), cells, {})["comparisons"]
    ps = [pair["p"] for pair in pairs]
    assert 0.0125 < ps[0] < 0.05
    assert pairs[0]["p_adjusted"] == pytest.approx(4 * ps[0])
    assert pairs[0]["verdict"] == "no difference seen"
    assert "alone it would count as seen" in pairs[0]["reason"]
    assert {pair["p_adjusted"] for pair in pairs[1:]} == {1.0}
    # The interval is at the level of the verdict: it holds 0.
    half = T4_OF_4 * np.std(noise, ddof=1) / 5**0.5
    assert pairs[0]["interval"] == pytest.approx([0.5 - half, 0.5 + half], abs=1e-4)
    assert pairs[0]["interval"][0] < 0
    assert {pair["num_comparisons"] for pair in pairs} == {4}
    # Alone, the same arm is told apart.
    alone = analyze(spec(arms[:2]), [one for one in cells if one.arm_name in arms[:2]], {})["comparisons"][0]
    assert (alone["verdict"], alone["p_adjusted"]) == ("worse", ps[0])


def test_a_verdict_and_its_interval_never_contradict_each_other() -> None:
    """Continuous and discrete metrics of three to eight seeds and two to six arms, of which some differ."""
    generator = np.random.default_rng(5)
    verdicts = []
    for count in range(60):
        seeds, names = int(generator.integers(3, 9)), "abcdef"[: generator.integers(2, 7)]
        study = spec(names, seeds=tuple(range(1, seeds + 1)))
        values = generator.normal(0, 1, (len(names), seeds)) + generator.choice([0.0, 2.0], (len(names), 1))
        values = values.round(1) if count % 2 else values
        cells = [each for name, own in zip(names, values.tolist(), strict=True) for each in row(name, own)]
        for pair in compare_arms(arrange_results(study, cells)):
            if pair.test.interval is not None:
                low, high = pair.test.interval
                assert (pair.verdict in ("better", "worse")) == (not low <= 0 <= high) == (pair.p_adjusted < 0.05)
                verdicts.append(pair.verdict)
    assert set(verdicts) == {"better", "worse", "no difference seen"}


def test_a_verdict_does_not_change_when_another_arm_gets_its_own() -> None:
    noise = [-0.4, -0.2, 0.0, 0.25, 0.35]
    near = row("b", [value + 0.43 + off for value, off in zip(PRE, noise, strict=True)])
    # p is 0.036 alone, and that of two comparisons as long as a third arm has no runs.
    before = analyze(spec(("a", "b", "c")), [*row("a", PRE), *near], {})["comparisons"]
    after = analyze(spec(("a", "b", "c")), [*row("a", PRE), *near, *row("c", PRE)], {})["comparisons"]
    assert [pair["verdict"] for pair in before] == ["no difference seen", "not judged"]
    assert before[0] == after[0]


def test_higher_can_be_better() -> None:
    study = spec(direction=Direction.MAXIMIZE, tuning_grid={RATE: (1, 2)}, learned_threshold=0.5, target=1.3)
    low = [cell(arm, seed, 0.6, hyperparameters={RATE: 1}) for arm in ("pre", "post") for seed in range(1, 6)]
    low[0] = low[0]._replace(selection_value=0.4)
    high = [
        one._replace(curves={"validation/loss": ((10, 1.25), (20, one.selection_value), (30, 1.3))})
        for one in row("pre", PRE, hyperparameters={RATE: 2}) + row("post", POST, hyperparameters={RATE: 2})
    ]
    result = analyze(study, low + high, {})
    assert arm_of(result, "pre")["selected_hyperparameters"] == {"": {RATE: 2}}
    assert result["comparisons"][0]["verdict"] == "better"
    assert arm_of(result, "pre")["run_counts"]["stuck"] == 1
    assert arm_of(result, "post")["to_target"]["steps"] == 20
    assert arm_of(result, "pre")["to_target"]["steps"] == 30
    assert result["summary"][0].startswith("post has the best mean test/loss, 1.35")
    assert result["summary"][0].endswith("and beats the reference pre.")


def test_when_the_target_is_reached() -> None:
    curves: list[list[Point]] = [
        [(10, 2.0), (20, 1.0), (30, 1.5)],
        [(10, 0.9)],
        [(10, 3.0), (30, 0.5)],
        [(10, 3.0)],
        [(10, math.nan), (20, 3.0)],
    ]
    cells = [
        cell(arm, seed, 1.0 + seed, curve=curve, flops=None if arm == "post" else 100.0)
        for arm in ("pre", "post")
        for seed, curve in enumerate(curves, start=1)
    ]
    cells[-3:] = [cell("post", seed, 2.0, curve=[(10, 1.9)]) for seed in (3, 4, 5)]
    result = analyze(spec(target=1.0), cells, {})
    pre, post = (arm["to_target"] for arm in result["arms"])
    assert (pre["reached"], pre["of"], pre["steps"], pre["flops"]) == (3, 5, 30, 3000.0)
    assert [entry["steps"] for entry in pre["seeds"]] == [20, 10, 30, None, None]
    assert [entry["flops"] for entry in pre["seeds"]] == [2000.0, 1000.0, 3000.0, None, None]
    assert (post["reached"], post["of"], post["steps"], post["flops"]) == (2, 5, None, None)
    assert (
        "Median steps to validation/loss 1: pre 30 (2 of 5 never did); "
        "post not by more than half of its runs (3 of 5 never did)." in result["summary"]
    )
    never = analyze(spec(target=0.1), cells, {})
    assert "The target validation/loss=0.1 is never reached: the best of all is 0.5." in never["warnings"]
    assert not any("Median steps" in line for line in never["summary"])
    assert arm_of(analyze(spec(), cells, {}), "pre")["to_target"] is None


def test_sensitivity_and_the_map() -> None:
    study = spec(seeds=(1, 2, 3), tuning_grid={RATE: (1, 2, 3), WARMUP: (0, 100)})
    finals = {(1, 0): 2.0, (2, 0): 1.0, (3, 0): None, (1, 100): 2.5, (2, 100): 1.4, (3, 100): 9.0}
    cells = [
        cell(
            arm,
            seed,
            None if value is None else value + 0.1 * seed,
            hyperparameters={RATE: rate, WARMUP: warmup},
            state="diverged" if value is None else "done",
            curve=[(10, 4.0 + 0.1 * seed), (20, value or 7.0)],
        )
        for arm in ("pre", "post")
        for (rate, warmup), value in finals.items()
        for seed in (1, 2, 3)
    ]
    pre = arm_of(analyze(study, cells, {}), "pre")
    assert pre["selected_hyperparameters"] == {"": {RATE: 2, WARMUP: 0}}
    rate, warmup = pre["sensitivity"]
    # Initial 4.3, the worst of the three; means over seeds 2.2 and 1.2, and 4.3 where every seed diverged.
    assert (rate["key"], rate["sensitivity"]) == (RATE, pytest.approx((1.0 + 0.0 + 3.1) / 3))
    assert (warmup["key"], warmup["sensitivity"]) == (WARMUP, pytest.approx(0.4 / 2))
    assert rate["points"][0] == {
        "value": 1,
        "mean": pytest.approx(2.2),
        "low": 2.1,
        "high": pytest.approx(2.3),
        "diverged": 0,
        "n": 3,
    }
    assert rate["points"][2] == {"value": 3, "mean": None, "low": None, "high": None, "diverged": 3, "n": 0}
    found = pre["heatmap"]
    assert (found["x_key"], found["x"], found["y_key"], found["y"]) == (RATE, [1, 2, 3], WARMUP, [0, 100])
    assert [[point["mean"] for point in line] for line in found["cells"]] == [
        [pytest.approx(2.2), pytest.approx(1.2), None],
        [pytest.approx(2.7), pytest.approx(1.6), pytest.approx(9.2)],
    ]
    assert [point["diverged"] for point in found["cells"][0]] == [0, 0, 3]
    # A run that learns nothing costs no more than one that never began: 9.2 counts as 4.3.
    study = spec(seeds=(1, 2, 3), tuning_grid={RATE: (1, 2, 3), WARMUP: (100,)})
    only = arm_of(analyze(study, [one for one in cells if one.hyperparameters[WARMUP]], {}), "pre")
    assert only["heatmap"] is None
    assert only["sensitivity"][0]["sensitivity"] == pytest.approx((1.1 + 0.0 + 2.7) / 3)
    assert len(only["sensitivity"]) == 1


def test_bands_are_of_the_chosen_values_and_runs_that_diverged_end() -> None:
    heads = {"entropy": {"decoder/self": ((0, 1.0), (20, 2.0))}}
    cells = [
        cell("pre", 1, 1.0, curve=[(10, 2.0), (20, 1.0)], heads=heads),
        cell("pre", 2, 1.2, curve=[(10, 3.0), (20, 1.2)]),
        cell("pre", 3, None, state="diverged", curve=[(10, 7.0), (20, math.inf)]),
        cell("pre", 4, None, state="failed", curve=[(10, 100.0)]),
        cell("post", 1, 1.0),
    ]
    result = analyze(spec(), cells, {})
    pre = arm_of(result, "pre")
    assert pre["bands"] == {
        "validation/loss": {
            "steps": [10, 20],
            "middle": [4.0, pytest.approx(1.1)],
            "low": [2.0, 1.0],
            "high": [7.0, 1.2],
            "n": [3, 2],
        }
    }
    band = {"steps": [0, 20], "middle": [1.0, 2.0], "low": [1.0, 2.0], "high": [1.0, 2.0], "n": [1, 1]}
    assert pre["heads"] == {"entropy": {"decoder/self": band}}
    assert (arm_of(result, "post")["bands"], arm_of(result, "post")["heads"]) == ({}, {})


def test_tasks_are_averaged_seed_by_seed_and_judged_one_by_one() -> None:
    study = spec(tasks={"short": {}, "long": {}})
    cells = [
        *row("pre", PRE, task="short"),
        *row("pre", [value + 1 for value in PRE], task="long"),
        # Post wins where the task is short and loses more where it is long.
        *row("post", [value - 0.2 + 0.01 * seed for seed, value in enumerate(PRE)], task="short"),
        *row("post", [value + 1.6 - 0.02 * seed for seed, value in enumerate(PRE)], task="long"),
    ]
    result = analyze(study, cells, {})
    overall, short, long = result["comparisons"]
    assert [pair["task"] for pair in (overall, short, long)] == [None, "short", "long"]
    assert [pair["n"] for pair in (overall, short, long)] == [5, 5, 5]
    assert [entry["value"] for entry in overall["differences"]] == [
        pytest.approx((-0.2 + 0.01 * seed + 0.6 - 0.02 * seed) / 2) for seed in range(5)
    ]
    assert {entry["task"] for entry in overall["differences"]} == {None}
    assert {entry["task"] for entry in short["differences"]} == {"short"}
    assert [pair["verdict"] for pair in (overall, short, long)] == ["worse", "better", "worse"]
    # The question is one comparison; the two tasks are a family of their own.
    assert overall["p_adjusted"] == overall["p"]
    assert (short["p_adjusted"], long["p_adjusted"]) == (2 * short["p"], 2 * long["p"])
    assert any(line.startswith("post is better than pre on short by 0.18") for line in result["summary"])
    pre = arm_of(result, "pre")
    assert pre["mean"] == pytest.approx(1.55)
    both = sorted([*PRE, *(value + 1 for value in PRE)])
    assert pre["iqm"]["value"] == pytest.approx(sum(both[2:8]) / 6)
    assert set(pre["selected_hyperparameters"]) == {"short", "long"}


def test_bands_of_several_tasks() -> None:
    study = spec(tasks={"short": {}, "long": {}})
    cells = [
        cell("pre", 1, 1.0, task="short", curve=[(10, 2.0), (20, 1.0)]),
        cell("pre", 1, 1.0, task="long", curve=[(10, 4.0), (30, 1.0)]),
        cell("post", 1, 1.0, task="short"),
    ]
    bands = arm_of(analyze(study, cells, {}), "pre")["bands"]
    assert bands["validation/loss"]["steps"] == [10]
    assert bands["validation/loss"]["middle"] == [3.0]
    assert bands["validation/loss (long)"]["steps"] == [10, 30]


def test_failed_and_missing_runs_are_named() -> None:
    cells = row("pre", PRE) + row("post", POST)
    cells[6] = cells[6]._replace(state="failed", selection_value=None, reported_value=None)
    cells[8] = cells[8]._replace(state="pending", selection_value=None, reported_value=None)
    cells[1] = cells[1]._replace(reported_value=None)
    result = analyze(spec(), cells[:-1], {})
    assert result["warnings"] == [
        "2 of 10 runs have not ended: arm 'post', seed 4; arm 'post', seed 5.",
        "1 run failed: arm 'post', seed 2 (post--2).",
        UNTUNED,
    ]
    assert [entry["seed"] for entry in result["comparisons"][0]["differences"]] == [1, 3]
    assert arm_of(result, "pre")["run_counts"]["diverged"] == 1
    assert arm_of(result, "post")["run_counts"]["ended"] == 2
    many = [one._replace(state="failed") for one in row("pre", PRE) + row("post", POST)]
    assert analyze(spec(), many, {})["warnings"][0] == (
        "10 runs failed: arm 'pre', seed 1 (pre--1); arm 'pre', seed 2 (pre--2); arm 'pre', seed 3 (pre--3); "
        "arm 'pre', seed 4 (pre--4); and 6 more."
    )


def test_nothing_ran() -> None:
    result = analyze(spec(tuning_grid={RATE: (1, 2), WARMUP: (0, 1)}, target=1.0), [], {})
    assert result["comparisons"][0]["verdict"] == "not judged"
    assert [arm["selected_hyperparameters"] for arm in result["arms"]] == [{}, {}]
    assert result["warnings"][0].startswith(
        f"40 of 40 runs have not ended: arm 'pre', seed 1, {RATE}=1, {WARMUP}=0; arm 'pre', seed 1, {RATE}=1, {WARMUP}"
    )
    assert json.dumps(result, allow_nan=False)


def test_a_choice_at_the_edge_is_told() -> None:
    lowest = {"pre": {1e-3: 1.0, 1e-4: 2.0, 1e-2: 2.0}, "post": {1e-3: 1.0, 1e-4: 0.5, 1e-2: 2.0}}

    def cells(key: str, values: Sequence[float], task: str = "") -> list[RunResult]:
        return [
            one
            for arm, losses in lowest.items()
            for value, loss in zip(values, losses.values(), strict=True)
            for one in row(arm, [loss] * 5, hyperparameters={key: value}, task=task)
        ]

    told = f"post chose {RATE}=0.0001, the smallest tried: the best may lie beyond."
    rates = (1e-3, 1e-4, 1e-2)
    assert analyze(spec(tuning_grid={RATE: rates}), cells(RATE, rates), {})["warnings"] == [told]
    # Nothing lies beyond no warm-up at all.
    warmups = (100, 0, 200)
    inner = analyze(spec(tuning_grid={WARMUP: warmups}), cells(WARMUP, warmups), {})
    assert (inner["warnings"], inner["comparisons"][0]["caveats"]) == ([], [])
    tasks = spec(tuning_grid={RATE: rates}, tasks={"short": {}, "long": {}})
    many = cells(RATE, rates, "short") + [one._replace(selection_value=1.0) for one in cells(RATE, rates, "long")]
    assert analyze(tasks, many, {})["warnings"] == [told.replace("post", "post (on short)")]
    assert analyze(tasks, cells(RATE, rates, "short") + cells(RATE, rates, "long"), {})["warnings"] == [told]


def test_the_verdict_on_a_task_says_what_was_chosen_on_that_task() -> None:
    """Post chooses the smallest rate on one task; on another it has tried one rate alone, which is no choice."""
    rates = (1e-4, 1e-3, 1e-2)
    study = spec(tuning_grid={RATE: rates}, tasks={"short": {}, "long": {}})
    losses = {"short": (2.0, 0.0, 2.0), "long": (0.0, 1.0, 2.0)}
    cells = [
        one
        for task, of_rates in losses.items()
        for arm, values in (("pre", PRE), ("post", POST))
        for rate, added in zip(rates, (2.0, 0.0, 2.0) if arm == "pre" else of_rates, strict=True)
        for one in row(arm, [value + added for value in values], hyperparameters={RATE: rate}, task=task)
    ]
    told = analyze(study, cells, {})
    assert [(pair["task"], pair["caveats"]) for pair in told["comparisons"]] == [
        (None, [f"post (on long) at the smallest {RATE}"]),
        ("short", []),
        ("long", [f"post at the smallest {RATE}"]),
    ]
    assert f"But post (on long) chose the smallest {RATE} tried, 0.0001: beyond it" in told["summary"][1]
    begun = [each for each in cells if each.task_name == "short" or each.hyperparameters[RATE] == 1e-4]
    told = analyze(study, begun, {})
    assert not any("beyond" in line for line in told["warnings"] + told["summary"])
    assert [(pair["verdict"], pair["caveats"]) for pair in told["comparisons"]] == [
        ("not judged", []),
        ("worse", []),
        ("not judged", []),
    ]


def test_a_cell_has_one_place() -> None:
    cells = row("pre", PRE)
    with pytest.raises(ValueError, match=r"seed=1 \{\} has two runs: pre--1 and pre--1"):
        analyze(spec(), [*cells, cells[0]], {})
    for wrong in ({"arm_name": "sandwich"}, {"seed": 9}, {"task_name": "x"}, {"hyperparameters": {RATE: 1}}):
        with pytest.raises(ValueError, match="is of no arm, task, tuned value or seed"):
            analyze(spec(), [cells[0]._replace(**wrong)], {})
    # To ==, 1 is True: to a study they are two values.
    study = spec(tuning_grid={"model.bias": (True, 1)})
    result = analyze(study, [cell("pre", 1, 1.0, hyperparameters={"model.bias": value}) for value in (1, True)], {})
    assert arm_of(result, "pre")["run_counts"]["all"] == 2


def test_the_summary_says_who_wins_by_how_much_and_what_was_not_seen() -> None:
    arms = ("pre", "post", "sandwich")
    near = [value + off for value, off in zip(PRE, (0.02, -0.03, 0.01, 0.03, -0.02), strict=True)]
    cells = row("pre", PRE) + row("post", POST) + row("sandwich", near)
    result = analyze(spec(arms, smallest_effect_of_interest=0.1), cells, {})
    assert result["summary"] == [
        "pre has the best mean test/loss, 1.05 (95% interval 0.91 to 1.19); not seen to differ from it: sandwich.",
        "post is worse than pre by 0.302 in test/loss (95% interval 0.275 to 0.329, p < 0.001, both adjusted for 2 "
        "comparisons; 5 paired seeds).",
        "No difference seen between sandwich and pre at 5 seeds: +0.002 (95% interval -0.038 to 0.042, p = 1, both "
        "adjusted for 2 comparisons); a difference of 0.1 is excluded.",
    ]
    finer = analyze(spec(arms, smallest_effect_of_interest=0.02), cells, {})
    # The interval reaches from -0.038 to 0.042, and differences of 0.02 lie in it. No power is told after the fact.
    assert finer["summary"][2].endswith("; a difference of 0.02 is not excluded.")
    assert not any(words in line for line in finer["summary"] for words in ("you need", "would probably"))
    # A named favorite that loses is said to.
    lost = analyze(Ablation("Q?", {arm: {} for arm in arms}, "post"), cells, {})["summary"]
    assert lost[0].endswith("and beats the reference post.")
    assert lost[2].startswith("pre is better than post by 0.302 in test/loss (95% interval 0.275 to 0.329")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.23456, 0.031, "1.235"),
        (1.23456, 0.5, "1.23"),
        (-0.0001, 0.5, "0.00"),
        (1234.5, 300.0, "1234"),
        (0.000123456, None, "0.000123"),
        (2.0, 0.0, "2"),
        (1.5e-9, 1e-10, "1.5e-09"),
    ],
)
def test_numbers_have_the_digits_that_their_error_leaves(value: float, error: float | None, text: str) -> None:
    assert round_to_error(value, error) == text


def study_of_an_unstable_arm(factor: float, skewed: bool) -> dict[str, Any]:
    """Two arms of which the second is better, with so much more noise, at three learning rates and eight seeds."""
    study = spec(tuning_grid={RATE: (1e-3, 3e-3, 1e-2)}, seeds=tuple(range(8)))
    draw = np.random.default_rng(6)
    cells = []
    for arm, rate in itertools.product(("pre", "post"), (1e-3, 3e-3, 1e-2)):
        noise = (draw.exponential(size=8) - 1) if skewed else draw.normal(size=8)
        size, gain = (factor, -0.6 * factor) if arm == "post" else (1.0, 0.0)
        values = 5 * (rate != 3e-3) + 20 + gain + size * noise
        cells += row(arm, values.tolist(), hyperparameters={RATE: rate})
        cells = [each._replace(seed=number % 8) for number, each in enumerate(cells)]
    return analyze(study, cells, {})


def test_the_second_opinion_warns_of_unequal_spreads_and_skewness_beside_the_verdict() -> None:
    equal = study_of_an_unstable_arm(1.0, skewed=False)["comparisons"][0]
    assert equal["caveats"] == []
    assert 1 / 2 < equal["spread_ratio"] < 2
    result = study_of_an_unstable_arm(6.0, skewed=True)
    pair = result["comparisons"][0]
    assert pair["spread_ratio"] > 3
    assert pair["skewness"] > 2
    assert f"spreads differ {pair['spread_ratio']:.2g} x" in pair["caveats"]
    assert "skewed differences" in pair["caveats"]
    # More than one test in twenty would be off by as much on this side.
    assert pair["p_bootstrap"] > pair["p_adjusted"]
    if pair["verdict"] in ("better", "worse"):
        (sentence,) = (line for line in result["summary"] if line.startswith("post is "))
        assert "skewed differences" in sentence


def test_a_verdict_that_the_bootstrap_does_not_see_says_so() -> None:
    """Four small gains that are alike and a smaller one: mean over error is large by the luck of a small spread."""
    gains = [0.05, 0.20, 0.21, 0.20, 0.22]
    study = spec(tuning_grid={RATE: (1e-3, 1e-2, 3e-2)})
    cells = [
        each
        for arm, rate in itertools.product(("pre", "post"), (1e-3, 1e-2, 3e-2))
        for each in row(
            arm,
            [
                10 * (rate != 1e-2) + seed + (arm == "post") * (gain if rate == 1e-2 else 4 * (gain - 0.1))
                for seed, gain in enumerate(gains)
            ],
            hyperparameters={RATE: rate},
        )
    ]
    result = analyze(study, cells, {})
    (pair,) = result["comparisons"]
    assert pair["verdict"] == "worse"
    assert pair["p_adjusted"] < 0.05 <= pair["p_bootstrap"]
    assert f"bootstrap p = {pair['p_bootstrap']:.2g}" in pair["caveats"]
    (sentence,) = (line for line in result["summary"] if line.startswith("post is worse than pre"))
    assert "the t test takes noise to be normal" in sentence


@pytest.mark.parametrize("seeds", [3, 4])
def test_the_bootstrap_takes_five_seeds(seeds: int) -> None:
    cells = [*row("pre", PRE[:seeds]), *row("post", POST[:seeds])]
    (pair,) = analyze(spec(seeds=tuple(range(1, seeds + 1))), cells, {})["comparisons"]
    assert pair["p_bootstrap"] is None
    assert pair["spread_ratio"] is not None


def test_true_is_another_tuned_value_than_one() -> None:
    """Both arms select one of them, and other seeds select the other: the jackknife sees it."""
    key = "model.kind"
    study = arrange_results(
        spec(tuning_grid={key: (1, True)}),
        [
            *row("pre", PRE, hyperparameters={key: 1}),
            *row("pre", [2.0, 1.21, 0.91, 1.11, 0.5], hyperparameters={key: True}),
            *row("post", POST, hyperparameters={key: 1}),
            *row("post", [value + 1 for value in POST], hyperparameters={key: True}),
        ],
    )
    numbers = study.selected_LxAxT[:, :, 0]
    assert numbers[0].tolist() == [0, 0]
    assert [bool(number) for number in numbers[1:, 0]] == [True, False, False, False, False]
    (pair,) = compare_arms(study)
    taken_as_given = t_test(list(pair.differences.values()), step=0.01)
    assert pair.test.interval.half_width > 1.1 * taken_as_given.interval.half_width
