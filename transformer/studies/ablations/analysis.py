"""The report of an ablation: a pure function of its runs, from which the page, the JSON and the CSV are written."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.config import to_config
from transformer.studies.ablations.ablation import Ablation, Direction
from transformer.studies.ablations.arm_comparisons import (
    Comparison,
    SecondOpinion,
    compare_arms,
    compare_best_two,
    equality_tolerance,
    second_opinion,
)
from transformer.studies.ablations.calibration import describe_calibration
from transformer.studies.ablations.predictions import PredictionOutcome, describe_prediction, judge_predictions
from transformer.studies.ablations.registration import describe_registration
from transformer.studies.ablations.report import (
    ArmReport,
    Band,
    ComparisonReport,
    Estimate,
    Heatmap,
    HeatmapCell,
    InterquartileMean,
    NumLearned,
    PredictionReport,
    Profile,
    RunCounts,
    RunReport,
    SeedDifference,
    SeedToTarget,
    SelectedRun,
    Sensitivity,
    SensitivityPoint,
    StudyReport,
    ToTarget,
)
from transformer.studies.ablations.run_distributions import (
    Scores,
    arm_scores,
    improvement_interval,
    performance_profile,
    probability_of_improvement,
    profile_thresholds,
)
from transformer.studies.ablations.run_result import UNKNOWN, Point, RunResult
from transformer.studies.ablations.sentences import (
    comparison_caveats,
    describe_added_seeds,
    explain_verdict,
    study_warnings,
    summary_sentences,
)
from transformer.studies.ablations.statistics import (
    MIN_RUNS_FOR_BOOTSTRAP,
    clip_to_metric_range,
    interquartile_coverage,
    interquartile_interval,
    interquartile_mean,
    t_test,
    wilson_interval,
)
from transformer.studies.ablations.study_results import (
    DIVERGED,
    FAILED,
    STUCK,
    Place,
    StudyResults,
    arrange_results,
    known_values,
    mean_over_tasks,
)

Curve = Callable[[RunResult], Sequence[Point]]


def analyze(spec: Ablation, cells: Sequence[RunResult], about: Mapping[str, Any]) -> StudyReport:
    """Analyze the runs of an ablation.

    For each arm and task the tuned values are selected that have the best mean of `selection_metric`, of those with
    which at least half of the seeds learned. Values of several tasks are averaged seed by seed before anything else.

    Args:
        spec: The ablation.
        cells: The results of its runs.
        about: What the runs do not record: each arm's config differences and number of parameters, the hardware, the
            seeds that the study was first judged with, and its registration and calibration, if it has them.

    Raises:
        ValueError: If a run does not belong to the study, or two runs have the same arm, task, seed and tuned values.
    """
    study = arrange_results(spec, cells)
    pairs = compare_arms(study)
    judged = [(pair, second_opinion(study, pair)) for pair in pairs]
    predictions = judge_predictions(study, pairs)
    about_values = to_config(about)
    arm_metadata, scores = about_values.get("arms", {}), {arm: arm_scores(study, arm) for arm in spec.arms}
    thresholds = profile_thresholds(list(scores.values()))
    arms = [
        _report_arm(study, arm, arm_metadata.get(arm, {}), _profile(spec.direction, scores[arm], thresholds))
        for arm in spec.arms
    ]
    registration, added = about.get("registration"), _added_seeds(spec, about)
    if registration:
        exploratory, provenance = registration.is_contradicted, describe_registration(registration)
    else:
        exploratory, provenance = bool(added), [describe_added_seeds(added)] if added else []
    return StudyReport(
        name=about.get("name", ""),
        question=spec.question,
        reference=spec.reference,
        direction=spec.direction,
        selection_metric=spec.selection_metric,
        reported_metric=spec.reported_metric,
        target=spec.target,
        smallest_effect_of_interest=spec.smallest_effect_of_interest,
        seeds=spec.seeds,
        hyperparameter_values=spec.tuning_grid,
        tasks=list(spec.tasks),
        about=about_values,
        exploratory=exploratory,
        warnings=study_warnings(study),
        arms=arms,
        comparisons=[_report_comparison(study, pair, opinion, scores) for pair, opinion in judged],
        predictions=[_report_prediction(spec, prediction) for prediction in predictions],
        summary=[
            *provenance,
            *(describe_prediction(spec, prediction) for prediction in predictions),
            *summary_sentences(study, judged, arms, compare_best_two(study)),
            *(describe_calibration(spec, about["calibration"]) if about.get("calibration") else ()),
        ],
        runs=[_report_run(study, place) for place in study.run_results],
    )


def _added_seeds(spec: Ablation, about: Mapping[str, Any]) -> list[int]:
    """Return the seeds that the study did not have when it was first judged; none if it was not judged before."""
    judged = about.get("first_judged_seeds")
    return [] if judged is None else [seed for seed in spec.seeds if seed not in judged]


def _report_arm(study: StudyResults, arm: str, metadata: Mapping[str, Any], profile: Profile | None) -> ArmReport:
    values = known_values(study.values(arm, None))
    test = t_test(values, resolution=equality_tolerance(values)) if len(values) >= 2 else None
    # Of an arm that lost runs, the others are no sample: their mean has no interval.
    all_finished = not study.seeds_in_state(arm, None, DIVERGED)
    interval = test.interval if test and all_finished else None
    return ArmReport(
        name=arm,
        differences=metadata.get("differences", []),
        parameters=metadata.get("parameters"),
        shared=metadata.get("shared"),
        run_counts=_count_runs(study, arm),
        selected_hyperparameters=study.selected_hyperparameters(arm),
        seeds=[_report_selected_run(study, place) for place in study.selected_places(arm)],
        mean=statistics.fmean(values) if values else None,
        interval=interval and clip_to_metric_range(study.spec.reported_metric, interval, values),
        deviation=test and test.standard_deviation,
        n=len(values),
        learned=NumLearned(*study.count_learned(arm, None)),
        iqm=_interquartile_mean(study, arm, all_finished),
        to_target=_steps_to_target(study, arm, study.spec.target),
        bands=_metric_bands(study, arm),
        heads=_head_bands(study, arm),
        sensitivity=[_sensitivity(study, arm, key) for key in _varied_keys(study.spec)],
        heatmap=_heatmap(study, arm),
        profile=profile,
    )


def _report_selected_run(study: StudyResults, place: Place) -> SelectedRun:
    run = study.run_results[place]
    value = float(study.reported_AxTxCxS[place]) if study.completed_AxTxCxS[place] else None
    return SelectedRun(run.task_name, run.seed, value, study.states_AxTxCxS[place], run.directory, run.command)


def _count_runs(study: StudyResults, arm: str) -> RunCounts:
    states_TxCxS = study.states_AxTxCxS[study.arm_number(arm)]
    diverged, stuck, failed = (int((states_TxCxS == state).sum()) for state in (DIVERGED, STUCK, FAILED))
    ended = int(study.ended_AxTxCxS[study.arm_number(arm)].sum())
    return RunCounts(
        all=int(study.planned_AxTxCxS[study.arm_number(arm)].sum()),
        ended=ended,
        diverged=diverged,
        stuck=stuck,
        failed=failed,
        rate=diverged / ended if ended else None,
        interval=wilson_interval(diverged, ended) if ended else None,
    )


def _interquartile_mean(study: StudyResults, arm: str, all_finished: bool) -> InterquartileMean:
    tasks = [known_values(values_S) for values_S in study.values_AxTxS[study.arm_number(arm)]]
    fewest = min(map(len, tasks))
    interval = None
    if all_finished and fewest >= MIN_RUNS_FOR_BOOTSTRAP:
        interval = interquartile_interval(tasks)
    return InterquartileMean(
        interquartile_mean(list(itertools.chain(*tasks))) if all(tasks) else None,
        interval,
        interval and interquartile_coverage(fewest),
    )


def _profile(direction: Direction, scores: Scores, thresholds: Sequence[float]) -> Profile | None:
    """Return the performance profile over values of the reported metric, in rising order."""
    profile = performance_profile(scores, thresholds) if thresholds else None
    if profile is None:
        return None
    if direction is Direction.MAXIMIZE:
        return Profile(thresholds, profile.shares, profile.low, profile.high)
    return Profile(
        [-score for score in reversed(thresholds)],
        profile.shares[::-1],
        profile.low and profile.low[::-1],
        profile.high and profile.high[::-1],
    )


# --- Over training


def _ended_runs(study: StudyResults, arm: str) -> list[tuple[Place, RunResult]]:
    """Return the runs at the selected values that completed or diverged, with their places."""
    return [(place, study.run_results[place]) for place in study.selected_places(arm) if study.ended_AxTxCxS[place]]


def _steps_to_target(study: StudyResults, arm: str, target: float | None) -> ToTarget | None:
    """Return when each run first reaches the target; for the median, a run that never does counts as later than any."""
    if target is None:
        return None
    seeds = []
    for _, run in _ended_runs(study, arm):
        step = min(
            (
                step
                for step, value in _finite(run.curves.get(study.spec.selection_metric, ()))
                if not study.spec.direction.is_better(target, value)
            ),
            default=None,
        )
        flops = None if step is None or run.flops is None else step * run.flops
        seeds.append(SeedToTarget(run.task_name, run.seed, step, flops))
    return ToTarget(
        sum(seed.steps is not None for seed in seeds),
        len(seeds),
        _median([seed.steps for seed in seeds]),
        _median([seed.flops for seed in seeds]),
        seeds,
    )


def _median(values: Sequence[float | None]) -> float | None:
    if not values:
        return None
    middle = statistics.median(math.inf if value is None else value for value in values)
    return middle if math.isfinite(middle) else None


def _metric_bands(study: StudyResults, arm: str) -> dict[str, Band]:
    """Return every curve of the study as a band over seeds: the mean over tasks and, if several, each task's own."""
    bands = {}
    tasks = list(study.spec.tasks)
    for metric in study.spec.curves:
        curve = _metric_curve(metric)
        bands[metric] = _band(study, arm, curve, study.task_numbers(None))
        if len(tasks) > 1:
            bands |= {f"{metric} ({task})": _band(study, arm, curve, study.task_numbers(task)) for task in tasks}
    return {name: band for name, band in bands.items() if band.steps}


def _metric_curve(name: str) -> Curve:
    return lambda run: run.curves.get(name, ())


def _statistic_curve(name: str, site: str) -> Curve:
    return lambda run: run.head_statistics.get(name, {}).get(site, ())


def _head_bands(study: StudyResults, arm: str) -> dict[str, dict[str, Band]]:
    runs = [run for _, run in _ended_runs(study, arm)]
    bands: dict[str, dict[str, Band]] = {}
    for name, site in dict.fromkeys(
        (name, site) for run in runs for name, sites in run.head_statistics.items() for site in sites
    ):
        band = _band(study, arm, _statistic_curve(name, site), study.task_numbers(None))
        if band.steps:
            bands.setdefault(name, {})[site] = band
    return bands


def _band(study: StudyResults, arm: str, curve: Curve, tasks: Sequence[int]) -> Band:
    """Return mean, minimum and maximum over seeds at each step, of each seed's mean over tasks if it has them all."""
    points = {
        (place[1], place[3]): dict(_finite(curve(run))) for place, run in _ended_runs(study, arm) if place[1] in tasks
    }
    steps = sorted({step for values in points.values() for step in values})
    shape = len(tasks), len(study.spec.seeds), len(steps)
    values_TxSxN = np.full(shape, np.nan)
    for (task, seed), values in points.items():
        values_TxSxN[tasks.index(task), seed] = [values.get(step, math.nan) for step in steps]
    means_SxN = mean_over_tasks(values_TxSxN.reshape(len(tasks), shape[1] * shape[2])).reshape(shape[1:])
    by_step = {
        step: step_values
        for step, means_S in zip(steps, means_SxN.T, strict=True)
        if (step_values := known_values(means_S))
    }
    return Band(
        steps=list(by_step),
        middle=list(map(statistics.fmean, by_step.values())),
        low=list(map(min, by_step.values())),
        high=list(map(max, by_step.values())),
        n=list(map(len, by_step.values())),
    )


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(step, value) for step, value in points if math.isfinite(value)]


# --- Over the tuned values


def _varied_keys(spec: Ablation) -> list[str]:
    return [key for key, values in spec.tuning_grid.items() if len(values) > 1]


def _sensitivity(study: StudyResults, arm: str, key: str) -> Sensitivity:
    """Compute an arm's sensitivity to one tuned value, the others as selected (Wortsman et al. 2023, arXiv 2309.14322).

        mean over tried values of (E over seeds of min(final, initial)) - best over tried values

    of `selection_metric`, with min and best reversed if higher is better; of several tasks their mean. Seeds are those
    of `tuning_seeds`. A run that diverged counts with its initial value. Since runs are first evaluated after some
    steps, the initial value is the worst first value of any run of the arm on that task that did not diverge.
    """
    axis, grid = list(study.spec.tuning_grid).index(key), study.combination_grid
    selected_T = study.selected_LxAxT[0, study.arm_number(arm)]
    # The combinations along the axis of the key that goes through the selected one.
    numbers_TxV = np.array(
        [np.moveaxis(grid, axis, -1)[*np.delete(np.argwhere(grid == number)[0], axis)] for number in selected_T]
    )
    values = study.spec.tuning_grid[key]
    costs_TxV = np.array(
        [
            _costs(study, study.arm_number(arm), task, numbers_V, _initial_value(study, study.arm_number(arm), task))
            for task, numbers_V in enumerate(numbers_TxV)
        ]
    )
    is_complete = not np.isnan(costs_TxV).any()
    return Sensitivity(
        key,
        [
            _sensitivity_point(study, arm, value, numbers_T)
            for value, numbers_T in zip(values, numbers_TxV.T, strict=True)
        ],
        statistics.fmean(statistics.fmean(costs_V - costs_V.min()) for costs_V in costs_TxV) if is_complete else None,
    )


def _sensitivity_point(study: StudyResults, arm: str, value: object, numbers_T: np.ndarray) -> SensitivityPoint:
    """Return `selection_metric` over seeds with one combination of each task."""
    place = study.arm_number(arm), np.arange(len(numbers_T)), numbers_T
    selection_AxTxCxS = np.where(study.completed_AxTxCxS, study.selection_AxTxCxS, np.nan)
    seed_values = known_values(mean_over_tasks(selection_AxTxCxS[place]))
    return SensitivityPoint(
        value=value,
        mean=statistics.fmean(seed_values) if seed_values else None,
        low=min(seed_values, default=None),
        high=max(seed_values, default=None),
        diverged=int(study.diverged_AxTxCxS[place].sum()),
        n=len(seed_values),
    )


def _costs(study: StudyResults, arm: int, task: int, numbers_V: np.ndarray, initial: float) -> list[float]:
    """Return the cost of some combinations, the mean over seeds of min(final, initial); NaN without a run."""
    sign = study.spec.direction.sign
    costs_VxS = np.minimum(sign * study.selection_AxTxCxS[arm, task, numbers_V], sign * initial)
    costs_VxS[~study.completed_AxTxCxS[arm, task, numbers_V]] = np.nan
    costs_VxS[study.diverged_AxTxCxS[arm, task, numbers_V]] = sign * initial
    # A run lost by a machine must not move a mean: seeds are those that every value has.
    seed_values = [known_values(costs_S) for costs_S in costs_VxS[:, study.tuning_seeds_AxTxS[arm, task]]]
    return [statistics.fmean(values) if values else math.nan for values in seed_values]


def _initial_value(study: StudyResults, arm: int, task: int) -> float:
    """Return the value of an arm's runs on a task before they learned anything; NaN if none was evaluated."""
    first_values: dict[bool, list[float]] = {True: [], False: []}
    for place, run in study.run_results.items():
        if place[:2] == (arm, task) and study.ended_AxTxCxS[place]:
            points = _finite(run.curves.get(study.spec.selection_metric, ()))
            first_values[bool(study.completed_AxTxCxS[place])] += [value for _, value in points[:1]]
    if first_values[True]:
        return study.spec.direction.worst(first_values[True])
    if first_values[False]:
        # Of runs that all diverged the least is nearest to a model that has not yet learned anything.
        return study.spec.direction.best(first_values[False])
    return math.nan


def _heatmap(study: StudyResults, arm: str) -> Heatmap | None:
    """Return `selection_metric` over two tuned keys, if exactly two have several values."""
    keys = _varied_keys(study.spec)
    if len(keys) != 2:
        return None
    x_key, y_key = keys
    x_values, y_values = study.spec.tuning_grid[x_key], study.spec.tuning_grid[y_key]
    tasks = len(study.spec.tasks)

    def cell(number: int) -> HeatmapCell:
        point = _sensitivity_point(study, arm, None, np.full(tasks, number))
        return HeatmapCell(point.mean, point.diverged, point.n)

    numbers_YxX = study.combination_grid.reshape(len(x_values), len(y_values)).T
    cells = [[cell(number) for number in numbers_X] for numbers_X in numbers_YxX]
    return Heatmap(x_key, y_key, x_values, y_values, cells)


# --- Comparisons, predictions, runs


def _report_comparison(
    study: StudyResults, pair: Comparison, opinion: SecondOpinion | None, scores: Mapping[str, Scores]
) -> ComparisonReport:
    # Who draws the only task's differences finds its seeds by the task's name.
    task = next(iter(study.spec.tasks)) if len(study.spec.tasks) == 1 else pair.task_name
    pair_scores = scores[pair.arm_name], scores[pair.reference_name]
    return ComparisonReport(
        arm=pair.arm_name,
        reference=study.spec.reference,
        task=pair.task_name,
        difference=pair.difference,
        interval=pair.test and pair.test.interval,
        differences=[
            SeedDifference(task, seed, value)
            for seed, value in pair.differences.items()
            if seed not in pair.diverged_seeds
        ],
        n=pair.num_seeds,
        p=pair.p_value,
        p_permutation=pair.p_permutation,
        p_adjusted=pair.p_adjusted,
        num_comparisons=pair.num_comparisons,
        verdict=pair.verdict,
        spread_ratio=opinion and opinion.spread_ratio,
        skewness=opinion and opinion.skewness,
        p_bootstrap=opinion and opinion.p_bootstrap,
        caveats=comparison_caveats(study, pair, opinion),
        learned=pair.learned_counts,
        reason=explain_verdict(study, pair),
        improvement=Estimate(probability_of_improvement(*pair_scores), improvement_interval(*pair_scores))
        if pair.task_name is None
        else None,
    )


def _report_prediction(spec: Ablation, result: PredictionOutcome) -> PredictionReport:
    return PredictionReport(
        **vars(result.prediction),
        outcome=result.outcome.value,
        difference=result.difference,
        interval=result.interval,
        num_agreeing_seeds=result.num_agreeing_seeds,
        num_seeds=result.num_seeds,
        sentence=describe_prediction(spec, result),
    )


def _report_run(study: StudyResults, place: Place) -> RunReport:
    run = study.run_results[place]
    return RunReport(
        arm=run.arm_name,
        task=run.task_name,
        seed=run.seed,
        hyperparameters=run.hyperparameters,
        state=study.states_AxTxCxS[place],
        selection_value=float(study.selection_AxTxCxS[place]),
        reported_value=float(study.reported_AxTxCxS[place]),
        steps=run.num_steps,
        started=run.started or UNKNOWN,
        commit=run.commit or UNKNOWN,
        hardware=run.hardware or UNKNOWN,
        directory=run.directory,
        command=run.command,
        trust=run.trust_flags,
    )
