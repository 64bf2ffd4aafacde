"""The result of an ablation: a pure function of its runs, from which the page, the JSON and the CSV are written."""

import collections
import enum
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer.config import to_config
from transformer.studies.ablations.ablation import Ablation, Direction
from transformer.studies.ablations.arm_comparisons import (
    Comparison,
    SecondOpinion,
    compare_arms,
    compare_best_two,
    count_learned,
    equality_tolerance,
    second_opinion,
)
from transformer.studies.ablations.calibration import describe_calibration
from transformer.studies.ablations.formatting import explain_verdict
from transformer.studies.ablations.hyperparameter_selection import (
    DIVERGED,
    FAILED,
    STUCK,
    StudyResults,
    best_value,
    has_completed,
    has_completed_or_diverged,
    is_better,
    select_hyperparameters,
    tuning_seeds,
    worst_value,
)
from transformer.studies.ablations.predictions import describe_prediction, judge_predictions, prediction_as_json
from transformer.studies.ablations.registration import describe_registration, is_contradicted
from transformer.studies.ablations.run_distributions import (
    Scores,
    arm_scores,
    improvement_interval,
    performance_profile,
    probability_of_improvement,
    profile_thresholds,
)
from transformer.studies.ablations.run_result import UNKNOWN, Point, RunResult
from transformer.studies.ablations.statistics import (
    MIN_RUNS_FOR_BOOTSTRAP,
    clip_to_metric_range,
    interquartile_coverage,
    interquartile_interval,
    interquartile_mean,
    t_test,
    wilson_interval,
)
from transformer.studies.ablations.study_warnings import comparison_caveats, study_warnings
from transformer.studies.ablations.summary import describe_added_seeds, summary_sentences


def analyze(spec: Ablation, cells: Sequence[RunResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Analyze the runs of an ablation.

    For each arm and task the tuned values are selected that have the best mean of `selection_metric`, of those with
    which at least half of the seeds learned; every figure of the arm except `sensitivity`, `map` and `runs` is of its
    runs at those values. Values of several tasks are averaged seed by seed before anything else.

    Args:
        spec: The ablation.
        cells: The results of its runs.
        about: What the runs do not record: each arm's config differences and number of parameters, the hardware, the
            seeds that the study was first judged with, and its registration and calibration, if it has them.

    Returns:
        The result as JSON values, None where there is no number, never NaN.

    Raises:
        ValueError: If a run does not belong to the study, or two runs have the same arm, task, seed and tuned values.
    """
    study = select_hyperparameters(spec, cells)
    pairs = compare_arms(study)
    opinions = [second_opinion(study, pair) for pair in pairs]
    arm_metadata, scores = about.get("arms", {}), {arm: arm_scores(study, arm) for arm in spec.arms}
    thresholds = profile_thresholds(list(scores.values()))
    arms = [
        {**_arm_data(study, name, arm_metadata.get(name, {})), "profile": _profile(study, scores[name], thresholds)}
        for name in spec.arms
    ]
    registration, added = about.get("registration"), _added_seeds(spec, about)
    predictions = judge_predictions(study, pairs)
    if registration:
        exploratory, provenance = is_contradicted(registration), describe_registration(registration)
    else:
        exploratory, provenance = bool(added), [describe_added_seeds(added)] if added else []
    result = {
        "name": about.get("name", ""),
        **{name: getattr(spec, name) for name in _COPIED_FIELDS},
        "hyperparameter_values": spec.tuning_grid,
        "tasks": list(spec.tasks),
        "about": to_config(about),
        "exploratory": exploratory,
        "warnings": study_warnings(study),
        "arms": arms,
        "comparisons": [
            {**_comparison_data(study, pair, opinion), "improvement": _probability_of_improvement(pair, scores)}
            for pair, opinion in zip(pairs, opinions, strict=True)
        ],
        "predictions": [prediction_as_json(spec, prediction) for prediction in predictions],
        "summary": [
            *provenance,
            *(describe_prediction(spec, prediction) for prediction in predictions),
            *summary_sentences(study, list(zip(pairs, opinions, strict=True)), arms, compare_best_two(study)),
            *(describe_calibration(spec, about["calibration"]) if about.get("calibration") else ()),
        ],
        "runs": [_run_data(cell) for arm in spec.arms for cell in study.runs_of_arm(arm)],
    }
    return _to_plain(result)


def _added_seeds(spec: Ablation, about: Mapping[str, Any]) -> list[int]:
    """Return the seeds that the study did not have when it was first judged; none if it was not judged before."""
    judged = about.get("first_judged_seeds")
    return [] if judged is None else [seed for seed in spec.seeds if seed not in judged]


_COPIED_FIELDS = (
    "question",
    "reference",
    "direction",
    "selection_metric",
    "reported_metric",
    "target",
    "smallest_effect_of_interest",
    "seeds",
)


def _arm_data(study: StudyResults, arm: str, about: Mapping[str, Any]) -> dict[str, Any]:
    values = study.values_by_seed(arm, None)
    own = list(values.values())
    test = t_test(own, resolution=equality_tolerance(own)) if len(own) >= 2 else None
    # Of an arm that lost runs, the others are no sample: their mean has no interval.
    all_finished = not study.seeds_in_state(arm, None, DIVERGED)
    interval = test.interval if test and all_finished else None
    return {
        "name": arm,
        "differences": about.get("differences", []),
        "parameters": about.get("parameters"),
        "shared": about.get("shared"),
        "run_counts": _run_counts(study.runs_of_arm(arm)),
        "selected_hyperparameters": {
            task: study.selected_hyperparameters[arm, task]
            for task in study.spec.tasks
            if (arm, task) in study.selected_hyperparameters
        },
        "seeds": [
            {
                "task": cell.task_name,
                "seed": cell.seed,
                "value": cell.reported_value if has_completed(cell) else None,
                "state": cell.state,
                "directory": cell.directory,
                "command": cell.command,
            }
            for task in study.spec.tasks
            for cell in study.selected_runs(arm, task)
        ],
        "mean": statistics.fmean(values.values()) if values else None,
        "interval": interval and clip_to_metric_range(study.spec.reported_metric, interval, own),
        "deviation": test and test.standard_deviation,
        "n": len(values),
        "learned": dict(zip(("count", "of"), count_learned(study, arm, None), strict=True)),
        "iqm": _interquartile(study, arm, all_finished),
        "to_target": _to_target(study, arm),
        "bands": _metric_bands(study, arm),
        "heads": _head_bands(study, arm),
        "sensitivity": [_sensitivity(study, arm, key) for key in _varied_keys(study.spec)],
        "heatmap": _heatmap(study, arm),
    }


def _run_counts(cells: Sequence[RunResult]) -> dict[str, Any]:
    """Count how many runs of an arm diverged or were stuck, of those that completed or diverged."""
    counts_by_state = collections.Counter(cell.state for cell in cells)
    diverged, at_an_end = counts_by_state[DIVERGED], sum(map(has_completed_or_diverged, cells))
    return {
        "all": len(cells),
        "ended": at_an_end,
        "diverged": diverged,
        "stuck": counts_by_state[STUCK],
        "failed": counts_by_state[FAILED],
        "rate": diverged / at_an_end if at_an_end else None,
        "interval": wilson_interval(diverged, at_an_end) if at_an_end else None,
    }


def _interquartile(study: StudyResults, arm: str, all_finished: bool) -> dict[str, Any]:
    tasks = [list(study.values_by_seed(arm, task).values()) for task in study.spec.tasks]
    fewest = min(map(len, tasks))
    interval = None
    if all_finished and fewest >= MIN_RUNS_FOR_BOOTSTRAP:
        interval = interquartile_interval(tasks)
    return {
        "value": interquartile_mean(list(itertools.chain(*tasks))) if all(tasks) else None,
        "interval": interval,
        "coverage": interval and interquartile_coverage(fewest),
    }


def _profile(study: StudyResults, scores: Scores, thresholds: Sequence[float]) -> dict[str, Any] | None:
    """Return the performance profile over values of the reported metric, in rising order."""
    profile = performance_profile(scores, thresholds) if thresholds else None
    if profile is None:
        return None
    minimized = study.spec.direction is Direction.MINIMIZE
    curves = {"middle": profile.shares, "low": profile.low, "high": profile.high}
    return {
        "steps": [-score for score in reversed(thresholds)] if minimized else list(thresholds),
        **{
            name: (shares[::-1] if minimized else shares) if shares is not None else None
            for name, shares in curves.items()
        },
    }


def _probability_of_improvement(pair: Comparison, scores: Mapping[str, Scores]) -> dict[str, Any] | None:
    """Return how probably a run of the arm is better than one of the reference; None for a single task of several."""
    if pair.task_name is not None:
        return None
    pair_scores = scores[pair.arm_name], scores[pair.reference_name]
    return {"value": probability_of_improvement(*pair_scores), "interval": improvement_interval(*pair_scores)}


# --- Over training


def _ended_runs(study: StudyResults, arm: str, task: str) -> list[RunResult]:
    """Return the runs at the chosen values that completed or diverged, including diverged ones."""
    return [cell for cell in study.selected_runs(arm, task) if has_completed_or_diverged(cell)]


def _to_target(study: StudyResults, arm: str) -> dict[str, Any] | None:
    """Return when each run first reaches the target; for the median, a run that never does counts as later than any."""
    target = study.spec.target
    if target is None:
        return None
    runs = [cell for task in study.spec.tasks for cell in _ended_runs(study, arm, task)]
    steps = [
        min(
            (
                step
                for step, value in _finite(cell.curves.get(study.spec.selection_metric, ()))
                if _reaches(study, value)
            ),
            default=None,
        )
        for cell in runs
    ]
    flops = [
        None if step is None or cell.flops is None else step * cell.flops
        for cell, step in zip(runs, steps, strict=True)
    ]
    return {
        "reached": sum(step is not None for step in steps),
        "of": len(runs),
        "steps": _median(steps),
        "flops": _median(flops),
        "seeds": [
            {"task": cell.task_name, "seed": cell.seed, "steps": step, "flops": count}
            for cell, step, count in zip(runs, steps, flops, strict=True)
        ],
    }


def _reaches(study: StudyResults, value: float) -> bool:
    target = study.spec.target
    return target is not None and not is_better(study.spec, target, value)


def _median(values: Sequence[float | None]) -> float | None:
    if not values:
        return None
    middle = statistics.median(math.inf if value is None else value for value in values)
    return middle if math.isfinite(middle) else None


def _metric_bands(study: StudyResults, arm: str) -> dict[str, Any]:
    """Return every curve of the study as a band over seeds: the mean over tasks and, if several, each task's own."""
    bands = {}
    for metric in study.spec.curves:
        curve = _metric_curve(metric)
        bands[metric] = _band(study, arm, curve, list(study.spec.tasks))
        if len(study.spec.tasks) > 1:
            bands |= {f"{metric} ({task})": _band(study, arm, curve, [task]) for task in study.spec.tasks}
    return {name: band for name, band in bands.items() if band["steps"]}


def _metric_curve(name: str) -> Callable[[RunResult], Sequence[Point]]:
    return lambda cell: cell.curves.get(name, ())


def _statistic_curve(name: str, site: str) -> Callable[[RunResult], Sequence[Point]]:
    return lambda cell: cell.head_statistics.get(name, {}).get(site, ())


def _head_bands(study: StudyResults, arm: str) -> dict[str, Any]:
    cells = [cell for task in study.spec.tasks for cell in _ended_runs(study, arm, task)]
    bands: dict[str, dict[str, Any]] = {}
    for name, site in dict.fromkeys(
        (name, site) for cell in cells for name, sites in cell.head_statistics.items() for site in sites
    ):
        band = _band(study, arm, _statistic_curve(name, site), list(study.spec.tasks))
        if band["steps"]:
            bands.setdefault(name, {})[site] = band
    return bands


def _band(
    study: StudyResults, arm: str, curve: Callable[[RunResult], Sequence[Point]], tasks: Sequence[str]
) -> dict[str, list[Any]]:
    """Return mean, minimum and maximum over seeds at each step, of each seed's mean over tasks if it has them all."""
    by_step: dict[int, list[float]] = {}
    by_task = [{cell.seed: dict(_finite(curve(cell))) for cell in _ended_runs(study, arm, task)} for task in tasks]
    for seed in study.spec.seeds:
        curves = [runs.get(seed, {}) for runs in by_task]
        for step in set(curves[0]).intersection(*curves[1:]):
            by_step.setdefault(step, []).append(statistics.fmean(points[step] for points in curves))
    steps = sorted(by_step)
    return {
        "steps": steps,
        "middle": [statistics.fmean(by_step[step]) for step in steps],
        "low": [min(by_step[step]) for step in steps],
        "high": [max(by_step[step]) for step in steps],
        "n": [len(by_step[step]) for step in steps],
    }


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(step, value) for step, value in points if math.isfinite(value)]


# --- Over the tuned values


def _varied_keys(spec: Ablation) -> list[str]:
    return [key for key, values in spec.tuning_grid.items() if len(values) > 1]


def _sensitivity(study: StudyResults, arm: str, key: str) -> dict[str, Any]:
    """Compute an arm's sensitivity to one tuned value, the others as chosen (Wortsman et al. 2023, arXiv 2309.14322).

        mean over tried values of (E over seeds of min(final, initial)) - best over tried values

    of `selection_metric`, with min and best reversed if higher is better; of several tasks their mean. Seeds are those
    of `tuning_seeds`. A run that diverged counts with its initial value. Since runs are first evaluated after some
    steps, the initial value is the worst first value of any run of the arm on that task that did not diverge.
    """
    points, costs = [], []
    for value in study.spec.tuning_grid[key]:

        def runs(task: str, value: Any = value) -> tuple[RunResult, ...]:
            return (
                study.runs_of_combination(arm, task, {**study.selected_hyperparameters[arm, task], key: value})
                if (arm, task) in study.selected_hyperparameters
                else ()
            )

        points.append({"value": value, **_sensitivity_point(study, runs)})
        costs.append(
            [_cost(study, arm, task, _runs_of_shared_seeds(study, arm, task, runs)) for task in study.spec.tasks]
        )
    losses = []
    for task_costs in zip(*costs, strict=True):  # by task
        measured_costs = [cost for cost in task_costs if cost is not None]
        if len(measured_costs) == len(task_costs):
            best_cost = best_value(study.spec, measured_costs)
            losses.append(statistics.fmean(abs(cost - best_cost) for cost in measured_costs))
    complete = len(losses) == len(study.spec.tasks)
    return {"key": key, "points": points, "sensitivity": statistics.fmean(losses) if complete else None}


def _sensitivity_point(study: StudyResults, runs: Callable[[str], tuple[RunResult, ...]]) -> dict[str, Any]:
    """Return mean, minimum and maximum over seeds of `selection_metric` at some tuned values; `n` did not diverge."""
    values = list(
        study.average_over_tasks(runs, lambda cell: cell.selection_value if has_completed(cell) else None).values()
    )
    return {
        "mean": statistics.fmean(values) if values else None,
        "low": min(values, default=None),
        "high": max(values, default=None),
        "diverged": sum(cell.state == DIVERGED for task in study.spec.tasks for cell in runs(task)),
        "n": len(values),
    }


def _runs_of_shared_seeds(
    study: StudyResults, arm: str, task: str, runs: Callable[[str], tuple[RunResult, ...]]
) -> list[RunResult]:
    """Return the runs of the seeds that every value has: a run lost by a machine must not move a mean."""
    shared = tuning_seeds(study, arm, task)
    return [cell for cell in runs(task) if cell.seed in shared]


def _cost(study: StudyResults, arm: str, task: str, cells: Sequence[RunResult]) -> float | None:
    """Return the mean of min(final, initial) over the runs of one value; None without any."""
    initial = _initial_value(study, arm, task)
    if initial is None:
        return None
    finals = [initial for cell in cells if cell.state == DIVERGED]
    finals += [
        best_value(study.spec, (cell.selection_value, initial))
        for cell in cells
        if has_completed(cell) and cell.selection_value is not None
    ]
    return statistics.fmean(finals) if finals else None


def _initial_value(study: StudyResults, arm: str, task: str) -> float | None:
    cells = [cell for cell in study.runs_of_arm(arm) if cell.task_name == task]
    first = [
        (has_completed(cell), points[0][1])
        for cell in cells
        if has_completed_or_diverged(cell) and (points := _finite(cell.curves.get(study.spec.selection_metric, ())))
    ]
    if finished_values := [value for finished, value in first if finished]:
        return worst_value(study.spec, finished_values)
    if first:
        # Of runs that all diverged the least is nearest to a model that has not yet learned anything.
        return best_value(study.spec, [value for _, value in first])
    return None


def _heatmap(study: StudyResults, arm: str) -> dict[str, Any] | None:
    """Return `selection_metric` over two tuned keys, if exactly two have several values."""
    keys = _varied_keys(study.spec)
    if len(keys) != 2:
        return None
    x_key, y_key = keys
    fixed = {key: values[0] for key, values in study.spec.tuning_grid.items() if key not in keys}

    def cell(x: Any, y: Any) -> dict[str, Any]:
        hyperparameters = {**fixed, x_key: x, y_key: y}
        point = _sensitivity_point(study, lambda task: study.runs_of_combination(arm, task, hyperparameters))
        return {name: point[name] for name in ("mean", "diverged", "n")}

    x_values, y_values = (study.spec.tuning_grid[key] for key in keys)
    return {
        "x_key": x_key,
        "y_key": y_key,
        "x": x_values,
        "y": y_values,
        "cells": [[cell(x, y) for x in x_values] for y in y_values],
    }


# --- As the result holds it


def _comparison_data(study: StudyResults, pair: Comparison, opinion: SecondOpinion | None) -> dict[str, Any]:
    # Who draws the only task's differences finds its seeds by the task's name.
    task = next(iter(study.spec.tasks)) if len(study.spec.tasks) == 1 else pair.task_name
    return {
        "arm": pair.arm_name,
        "reference": study.spec.reference,
        "task": pair.task_name,
        "difference": pair.difference,
        "interval": pair.test and pair.test.interval,
        "differences": [
            {"task": task, "seed": seed, "value": value}
            for seed, value in pair.differences.items()
            if seed not in pair.diverged_seeds
        ],
        "n": pair.num_seeds,
        "p": pair.p_value,
        "p_permutation": pair.p_permutation,
        "p_adjusted": pair.p_adjusted,
        "num_comparisons": pair.num_comparisons,
        "verdict": pair.verdict,
        **(dict.fromkeys(SecondOpinion._fields) if opinion is None else opinion._asdict()),
        "caveats": comparison_caveats(study, pair, opinion),
        "learned": pair.learned_counts._asdict(),
        "reason": explain_verdict(study, pair),
    }


def _run_data(cell: RunResult) -> dict[str, Any]:
    return {
        "arm": cell.arm_name,
        "task": cell.task_name,
        "seed": cell.seed,
        "hyperparameters": cell.hyperparameters,
        "state": cell.state,
        "selection_value": cell.selection_value,
        "reported_value": cell.reported_value,
        "steps": cell.num_steps,
        "started": cell.started or UNKNOWN,
        "commit": cell.commit or UNKNOWN,
        "hardware": cell.hardware or UNKNOWN,
        "directory": cell.directory,
        "command": cell.command,
        "trust": cell.trust_flags,
    }


def _to_plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
