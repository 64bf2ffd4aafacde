"""Warnings about a study: runs that are missing, too few or unequal, and tuned values at the edge of their range."""

import math
from collections.abc import Collection, Iterator

from transformer.studies.ablations.arm_comparisons import (
    ENOUGH_SEEDS,
    EVIDENT_SKEWNESS,
    MIN_SEEDS_FOR_VERDICT,
    UNEQUAL_SPREADS,
    Comparison,
    SecondOpinion,
)
from transformer.studies.ablations.formatting import (
    format_first,
    format_p_value,
    join_words,
)
from transformer.studies.ablations.hyperparameter_selection import (
    DIVERGED,
    DONE,
    FAILED,
    STUCK,
    StudyResults,
    best_value,
    has_completed,
    is_better,
    missing_runs,
)
from transformer.studies.ablations.run_result import describe_run
from transformer.studies.ablations.statistics import SIGNIFICANCE

_ENDED = (DONE, STUCK, DIVERGED, FAILED)


def study_warnings(study: StudyResults) -> list[str]:
    """Return warnings about a study, one line each."""
    return [
        *_warn_of_unfinished_runs(study),
        *_warn_of_failed_runs(study),
        *_warn_of_few_seeds(study),
        *_warn_of_missed_target(study),
        *_warn_of_no_tuning(study),
        *_warn_of_edge_values(study),
        *_warn_of_shared_metric(study),
    ]


def _warn_of_few_seeds(study: StudyResults) -> Iterator[str]:
    count = len(study.spec.seeds)
    seeds = f"{count} seed{'s' if count > 1 else ''} only"
    if count < MIN_SEEDS_FOR_VERDICT:
        yield f"{seeds}: no verdict is given under three, and {ENOUGH_SEEDS} are the default."
    elif count < ENOUGH_SEEDS:
        yield f"{seeds}: one odd run can decide, and only large differences are seen; {ENOUGH_SEEDS} are the default."


def _warn_of_unfinished_runs(study: StudyResults) -> Iterator[str]:
    spec = study.spec
    missing = [
        describe_run(arm, task, seed, hyperparameters)
        for seed in spec.seeds
        for task in spec.tasks
        for arm in spec.arms
        for hyperparameters in spec.combinations()
        if not any(
            cell.seed == seed and cell.state in _ENDED for cell in study.runs_of_combination(arm, task, hyperparameters)
        )
    ]
    if missing:
        planned = len(spec.seeds) * len(spec.tasks) * len(spec.arms) * len(list(spec.combinations()))
        yield f"{len(missing)} of {planned} runs have not ended: {format_first(missing)}."


def _warn_of_failed_runs(study: StudyResults) -> Iterator[str]:
    cells = [cell for arm in study.spec.arms for cell in study.runs_of_arm(arm) if cell.state == FAILED]
    if cells:
        failed = [
            f"{describe_run(cell.arm_name, cell.task_name, cell.seed, cell.hyperparameters)} ({cell.directory})"
            for cell in cells
        ]
        yield f"{len(cells)} run{'s' if len(cells) > 1 else ''} failed: {format_first(failed)}."


def _warn_of_missed_target(study: StudyResults) -> Iterator[str]:
    spec = study.spec
    if spec.target is None:
        return
    cells = [cell for arm in spec.arms for task in spec.tasks for cell in study.selected_runs(arm, task)]
    measured_values = [
        value for cell in cells for _, value in cell.curves.get(spec.selection_metric, ()) if math.isfinite(value)
    ]
    never = f"The target {spec.selection_metric}={spec.target:g} is never reached"
    if not measured_values:
        yield f"{never}: no run measured it."
    elif is_better(spec, spec.target, best_value(spec, measured_values)):
        yield f"{never}: the best of all is {best_value(spec, measured_values):.4g}."


def _warn_of_no_tuning(study: StudyResults) -> Iterator[str]:
    if not _is_tuned(study):
        yield (
            "Nothing was tuned: all arms have the base config's values, such as its learning rate, which may suit one "
            "arm better than another. Give a tuning_grid to judge each arm at its best."
        )


def _is_tuned(study: StudyResults) -> bool:
    return any(len(values) > 1 for values in study.spec.tuning_grid.values())


def _warn_of_edge_values(study: StudyResults) -> Iterator[str]:
    """Warn of arms that chose the smallest or largest value tried: their best may lie beyond."""
    for key, word, end in _extreme_values(study):
        arms = [
            description
            for arm in study.spec.arms
            if (description := _describe_arm_choice(study, arm, study.spec.tasks, key, end))
        ]
        if arms:
            yield f"{join_words(arms)} chose {key}={end}, the {word} tried: the best may lie beyond."


def _extreme_values(study: StudyResults) -> Iterator[tuple[str, str, float]]:
    """Yield tuned keys with the smallest and the largest of at least two values.

    A smallest value of 0, as of warm-up steps or dropout, has nothing beyond it.
    """
    for key, tuned_values in study.spec.tuning_grid.items():
        numbers = sorted(
            value for value in tuned_values if isinstance(value, int | float) and not isinstance(value, bool)
        )
        if len(numbers) > 1:
            yield from ((key, word, end) for word, end in (("smallest", numbers[0]), ("largest", numbers[-1])) if end)


def comparison_caveats(study: StudyResults, pair: Comparison, opinion: SecondOpinion | None) -> list[str]:
    """Return what a reader must know beside a verdict, in a few words each.

    Args:
        study: The study.
        pair: The comparison.
        opinion: The second opinion on it; None if there is none.
    """
    edges = [f"{arms} at the {word} {key}" for arms, word, key, _ in _pair_edge_values(study, pair)]
    tuning = edges if _is_tuned(study) else ["not tuned"]
    return [*tuning, *noise_caveats(pair, opinion)]


def noise_caveats(pair: Comparison, opinion: SecondOpinion | None) -> list[str]:
    """Say what the second opinion has against a t test."""
    if opinion is None:
        return []
    caveats, ratio = [], opinion.spread_ratio
    if ratio is not None and max(ratio, 1 / ratio) >= UNEQUAL_SPREADS:
        caveats.append(f"spreads differ {max(ratio, 1 / ratio):.2g} x")
    if abs(opinion.skewness) >= EVIDENT_SKEWNESS:
        caveats.append("skewed differences")
    if pair.verdict in ("better", "worse") and opinion.p_bootstrap is not None and opinion.p_bootstrap >= SIGNIFICANCE:
        caveats.append(f"bootstrap {format_p_value(opinion.p_bootstrap)}")
    return caveats


def describe_noise(pair: Comparison, opinion: SecondOpinion | None) -> str:
    """Describe what the second opinion has against a verdict of the t test; empty for nothing."""
    caveats = noise_caveats(pair, opinion)
    advice = "the t test takes noise to be normal, and this may be a few runs; more seeds tell"
    return f" But {join_words(caveats)}: {advice}." if caveats else ""


def _pair_edge_values(study: StudyResults, pair: Comparison) -> list[tuple[str, str, str, float]]:
    """Return which arms chose the smallest or largest value of a tuned key on the tasks of a comparison."""
    tasks = study.spec.tasks if pair.task_name is None else (pair.task_name,)
    return [
        (join_words(arms), word, key, end)
        for key, word, end in _extreme_values(study)
        if (
            arms := [
                description
                for arm in (pair.arm_name, study.spec.reference)
                if (description := _describe_arm_choice(study, arm, tasks, key, end))
            ]
        )
    ]


def describe_edge_values(study: StudyResults, pair: Comparison) -> str:
    """Describe which tuned values of either arm are at the edge of those tried, so that a verdict may change beyond."""
    descriptions = [
        f"{arms} chose the {word} {key} tried, {end}" for arms, word, key, end in _pair_edge_values(study, pair)
    ]
    return f" But {join_words(descriptions)}: beyond it this may turn." if descriptions else ""


def _describe_arm_choice(study: StudyResults, arm: str, tasks: Collection[str], key: str, value: float) -> str:
    """Return the arm, with those of the tasks on which it chose a value if not on all; empty if on none.

    It has not chosen where runs have not ended.
    """
    chose = [
        task
        for task in tasks
        if any(has_completed(cell) and cell.hyperparameters[key] == value for cell in study.selected_runs(arm, task))
        and all(missing_run.failed for missing_run in missing_runs(study, arm, [task]))
    ]
    if not chose:
        return ""
    return arm if len(chose) == len(tasks) else f"{arm} (on {join_words(chose)})"


def _warn_of_shared_metric(study: StudyResults) -> Iterator[str]:
    spec = study.spec
    if spec.selection_metric == spec.reported_metric and len(list(spec.combinations())) > 1:
        yield (
            f"Values were chosen by {spec.reported_metric}, which is also reported: what was chosen looks better than "
            "it is."
        )
