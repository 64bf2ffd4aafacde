"""What the report of an ablation says in words: its warnings, the caveats and reasons of verdicts, and the summary."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from transformer.studies.ablations.arm_comparisons import (
    ENOUGH_SEEDS,
    EVIDENT_SKEWNESS,
    MIN_SEEDS_FOR_VERDICT,
    UNEQUAL_SPREADS,
    Comparison,
    SecondOpinion,
    Verdict,
    missing_places,
)
from transformer.studies.ablations.formatting import (
    format_adjustment,
    format_difference,
    format_first,
    format_interval,
    format_p_value,
    format_proportion,
    format_seeds,
    format_task_suffix,
    join_words,
    round_to_error,
)
from transformer.studies.ablations.report import ArmReport
from transformer.studies.ablations.statistics import (
    SIGNIFICANCE,
    MeanTest,
    bonferroni_correction,
    fisher_exact_p,
    least_permutation_p,
)
from transformer.studies.ablations.study_results import DIVERGED, FAILED, STUCK, StudyResults

# --- Warnings about the study


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


def _warn_of_unfinished_runs(study: StudyResults) -> Iterator[str]:
    unfinished_AxTxCxS = ~(study.ended_AxTxCxS | (study.states_AxTxCxS == FAILED))
    by_seed = np.argwhere(unfinished_AxTxCxS.transpose(3, 1, 0, 2)).tolist()
    if by_seed:
        missing = [study.describe_run((arm, task, combination, seed)) for seed, task, arm, combination in by_seed]
        yield f"{len(missing)} of {unfinished_AxTxCxS.size} runs have not ended: {format_first(missing)}."


def _warn_of_failed_runs(study: StudyResults) -> Iterator[str]:
    failed = [
        f"{study.describe_run(place)} ({run.directory})"
        for place, run in study.run_results.items()
        if study.states_AxTxCxS[place] == FAILED
    ]
    if failed:
        yield f"{len(failed)} run{'s' if len(failed) > 1 else ''} failed: {format_first(failed)}."


def _warn_of_few_seeds(study: StudyResults) -> Iterator[str]:
    count = len(study.spec.seeds)
    seeds = f"{count} seed{'s' if count > 1 else ''} only"
    if count < MIN_SEEDS_FOR_VERDICT:
        yield f"{seeds}: no verdict is given under three, and {ENOUGH_SEEDS} are the default."
    elif count < ENOUGH_SEEDS:
        yield f"{seeds}: one odd run can decide, and only large differences are seen; {ENOUGH_SEEDS} are the default."


def _warn_of_missed_target(study: StudyResults) -> Iterator[str]:
    spec = study.spec
    if spec.target is None:
        return
    runs = [study.run_results[place] for arm in spec.arms for place in study.selected_places(arm)]
    measured_values = [
        value for run in runs for _, value in run.curves.get(spec.selection_metric, ()) if math.isfinite(value)
    ]
    never = f"The target {spec.selection_metric}={spec.target:g} is never reached"
    if not measured_values:
        yield f"{never}: no run measured it."
    elif spec.direction.is_better(spec.target, best := spec.direction.best(measured_values)):
        yield f"{never}: the best of all is {best:.4g}."


def _warn_of_no_tuning(study: StudyResults) -> Iterator[str]:
    if not _is_tuned(study):
        yield (
            "Nothing was tuned: all arms have the base config's values, such as its learning rate, which may suit one "
            "arm better than another. Give a tuning_grid to judge each arm at its best."
        )


def _is_tuned(study: StudyResults) -> bool:
    return len(study.combinations) > 1


def _warn_of_edge_values(study: StudyResults) -> Iterator[str]:
    """Warn of arms that selected the smallest or largest value tried: their best may lie beyond."""
    for arms, word, key, end in _edge_values(study, list(study.spec.arms), None):
        yield f"{arms} chose {key}={end}, the {word} tried: the best may lie beyond."


def _warn_of_shared_metric(study: StudyResults) -> Iterator[str]:
    spec = study.spec
    if spec.selection_metric == spec.reported_metric and _is_tuned(study):
        yield (
            f"Values were chosen by {spec.reported_metric}, which is also reported: what was chosen looks better than "
            "it is."
        )


# --- What limits a verdict


def comparison_caveats(study: StudyResults, pair: Comparison, opinion: SecondOpinion | None) -> list[str]:
    """Return what a reader must know beside a verdict, in a few words each.

    Args:
        study: The study.
        pair: The comparison.
        opinion: The second opinion on it; None if there is none.
    """
    edges = [f"{arms} at the {word} {key}" for arms, word, key, _ in _pair_edge_values(study, pair)]
    return [*(edges if _is_tuned(study) else ["not tuned"]), *noise_caveats(pair, opinion)]


def noise_caveats(pair: Comparison, opinion: SecondOpinion | None) -> list[str]:
    """Say what the second opinion has against a t test."""
    if opinion is None:
        return []
    caveats, ratio = [], opinion.spread_ratio
    if ratio is not None and max(ratio, 1 / ratio) >= UNEQUAL_SPREADS:
        caveats.append(f"spreads differ {max(ratio, 1 / ratio):.2g} x")
    if abs(opinion.skewness) >= EVIDENT_SKEWNESS:
        caveats.append("skewed differences")
    if pair.verdict.is_difference and opinion.p_bootstrap is not None and opinion.p_bootstrap >= SIGNIFICANCE:
        caveats.append(f"bootstrap {format_p_value(opinion.p_bootstrap)}")
    return caveats


def _describe_doubts(study: StudyResults, pair: Comparison, opinion: SecondOpinion | None) -> str:
    """Describe the caveats of a verdict in sentences; empty without any."""
    edges = [f"{arms} chose the {word} {key} tried, {end}" for arms, word, key, end in _pair_edge_values(study, pair)]
    noise = noise_caveats(pair, opinion)
    advice = "the t test takes noise to be normal, and this may be a few runs; more seeds tell"
    return (f" But {join_words(edges)}: beyond it this may turn." if edges else "") + (
        f" But {join_words(noise)}: {advice}." if noise else ""
    )


def _pair_edge_values(study: StudyResults, pair: Comparison) -> Iterator[tuple[str, str, str, float]]:
    return _edge_values(study, [pair.arm_name, study.spec.reference], pair.task_name)


def _edge_values(study: StudyResults, arms: Sequence[str], task: str | None) -> Iterator[tuple[str, str, str, float]]:
    """Yield which arms selected the smallest or largest value of a tuned key on a task or, for None, on any.

    A smallest value of 0, as of warm-up steps or dropout, has nothing beyond it.
    """
    for key, tuned_values in study.spec.tuning_grid.items():
        numbers = sorted(
            value for value in tuned_values if isinstance(value, int | float) and not isinstance(value, bool)
        )
        for word, end in (("smallest", numbers[0]), ("largest", numbers[-1])) if len(numbers) > 1 else ():
            at_end = [words for arm in arms if (words := _describe_choice(study, arm, task, key, end))]
            if end and at_end:
                yield join_words(at_end), word, key, end


def _describe_choice(study: StudyResults, arm: str, task: str | None, key: str, value: float) -> str:
    """Return the arm, with those of the tasks on which it selected a value if not on all; empty if on none.

    It has not selected where runs have not ended.
    """
    number, tasks = study.arm_number(arm), study.task_numbers(task)
    is_over_TxCxS = study.ended_AxTxCxS[number] | (study.states_AxTxCxS[number] == FAILED)
    chose = [
        list(study.spec.tasks)[task_number]
        for task_number in tasks
        if study.combinations[study.selected_LxAxT[0, number, task_number]][key] == value
        and not np.isnan(study.values_AxTxS[number, task_number]).all()
        and is_over_TxCxS[task_number].all()
    ]
    if not chose:
        return ""
    return arm if len(chose) == len(tasks) else f"{arm} (on {join_words(chose)})"


# --- The reason for a verdict


def explain_verdict(study: StudyResults, pair: Comparison) -> str:
    """Explain the verdict of a comparison in one sentence."""
    test = pair.test
    if missing := _name_missing_runs(study, pair):
        return missing
    if test is None or pair.p_adjusted is None:
        plural = "s" if pair.num_seeds != 1 else ""
        return f"{pair.num_seeds} paired seed{plural}, and no verdict is given under three."
    if test.p_value is None:
        p = _describe_permutation_test(pair)
        if pair.diverged_seeds:
            return f"{_describe_diverged_seeds(study, pair)}: flipping the signs of {pair.num_seeds} pairs gives {p}."
        if test.standard_deviation:
            stuck = f"{_name_seeds(study, pair, STUCK, 'is stuck')}, so that the noise is not normal"
            return f"The mean difference is {format_difference(test)}; {stuck}: flipping the signs gives {p}."
        if not test.mean:
            return f"All {pair.num_seeds} paired differences are 0: the arms are alike."
        sentence_start = f"All {pair.num_seeds} paired differences are {format_difference(test)}"
        return f"{sentence_start}: they carry no t statistic, and flipping their signs gives {p}."
    mean_difference = f"The mean difference is {format_difference(test, _describe_p_value(pair))}"
    if pair.verdict is not Verdict.NO_DIFFERENCE_SEEN:
        return f"{mean_difference}, over {pair.num_seeds} paired seeds."
    if test.p_value < SIGNIFICANCE:
        alone = f"alone it would count as seen ({format_p_value(test.p_value)})"
        return f"{mean_difference}: {alone}, among {pair.num_comparisons} it does not."
    return f"{mean_difference}, over {pair.num_seeds} paired seeds: the interval holds 0."


def _name_missing_runs(study: StudyResults, pair: Comparison) -> str:
    """Name the runs without which there is no verdict, and say how to get them; empty if there are none."""
    places = list(missing_places(study, pair))
    if not places:
        return ""
    failed = [study.states_AxTxCxS[place] == FAILED for place in places]
    words = [
        f"{study.describe_run(place)} {'failed' if has_failed else 'has not ended'}"
        for place, has_failed in zip(places, failed, strict=True)
    ]
    return f"{format_first(words, 1)}: run the command again{' with --retry_failed' if any(failed) else ''}."


def _describe_p_value(pair: Comparison) -> str:
    """Describe the adjusted p-value of a comparison, and for how many comparisons it and the interval are adjusted."""
    assert pair.p_adjusted is not None
    both = "both " if pair.test and pair.test.interval else ""
    return f"{format_p_value(pair.p_adjusted)}{format_adjustment(pair.num_comparisons, both)}"


def _describe_permutation_test(pair: Comparison) -> str:
    """Describe the p-value of a comparison that the permutation test judges."""
    assert pair.p_value is not None
    if pair.verdict is not Verdict.NOT_JUDGED:
        return _describe_p_value(pair)
    least_p = format_p_value(least_permutation_p(pair.num_seeds))
    over = f" before it is adjusted for {pair.num_comparisons} comparisons" if pair.num_comparisons > 1 else ""
    return f"{format_p_value(pair.p_value)}{over}: {pair.num_seeds} seeds can give no less than {least_p}"


def _describe_diverged_seeds(study: StudyResults, pair: Comparison) -> str:
    """Describe which seeds of either arm diverged, and how they count."""
    return f"{_name_seeds(study, pair, DIVERGED, 'diverged')}, counted as worse than every finished run"


def _name_seeds(study: StudyResults, pair: Comparison, state: str, verb: str) -> str:
    """Name the seeds of either arm whose run is in a state: "pre diverged with seeds 1 and 2 and post with seed 3"."""
    return join_words(
        f"{arm} {verb} with {format_seeds(seeds)}"
        for arm in (pair.arm_name, pair.reference_name)
        if (seeds := study.seeds_in_state(arm, pair.task_name, state))
    )


# --- The summary


def summary_sentences(
    study: StudyResults,
    judged: Sequence[tuple[Comparison, SecondOpinion | None]],
    arms: Sequence[ArmReport],
    between_the_best: tuple[Comparison, str] | None,
) -> list[str]:
    """Summarize a study: which arms learned, which is best and by how much, divergence, and steps to the target.

    Args:
        study: The results of the study.
        judged: The comparisons with the reference, each with the second opinion on it, if there is one.
        arms: The arms of the study's report.
        between_the_best: The comparison of the two best arms and the second one's name, if neither is the reference.
    """
    overall = [pair for pair, _ in judged if pair.task_name is None]
    verdicts = {pair.arm_name: pair.verdict for pair in overall}
    return [
        *_describe_learning(study, overall, arms),
        *_describe_winner(study, verdicts, arms),
        *([_describe_best_two(*between_the_best)] if between_the_best else ()),
        *(_describe_verdict(study, pair, opinion) for pair, opinion in judged if pair.task_name is None),
        *(
            _describe_verdict(study, pair, opinion)
            for pair, opinion in judged
            if pair.task_name is not None and pair.verdict.is_difference and pair.verdict != verdicts[pair.arm_name]
        ),
        *_describe_divergence(arms),
        *_describe_steps_to_target(study, arms),
        *_describe_sensitivity(study, arms),
    ]


def describe_added_seeds(seeds: Sequence[int]) -> str:
    """Say that a study has seeds that were added after a verdict was seen."""
    were = "was" if len(seeds) == 1 else "were"
    return (
        f"Exploratory: {format_seeds(seeds)} {were} added after the study was judged without. Whoever adds seeds until "
        "a difference shows finds one too often where there is none: these p-values and intervals confirm nothing. To "
        "confirm a difference, train other seeds in another --workdir."
    )


def _describe_learning(study: StudyResults, overall: Sequence[Comparison], arms: Sequence[ArmReport]) -> Iterator[str]:
    """Say how many runs of each arm learned, if not all did: whether an arm learns comes before how well."""
    if all(arm.learned.count == arm.learned.of for arm in arms):
        return
    counts = sorted((arm for arm in arms if arm.learned.of), key=lambda arm: -arm.learned.count / arm.learned.of)
    learned_counts = join_words(f"{arm.name} {arm.learned.count} of {arm.learned.of}" for arm in counts)
    counted = [pair for pair in overall if pair.learned_counts.p_adjusted is not None]
    tested = ""
    if counted:
        against = f"against {study.spec.reference}{format_adjustment(counted[0].num_comparisons)}"
        tested = f"; Fisher's exact test {against}: {'; '.join(map(_describe_count_test, counted))}"
    yield f"Runs that learned: {learned_counts}{tested}."


def _describe_count_test(pair: Comparison) -> str:
    """Describe the test of how many runs of an arm learned."""
    (_, n), (_, reference_n) = pair.learned_counts.arm, pair.learned_counts.reference
    assert pair.learned_counts.p_adjusted is not None
    least_p = bonferroni_correction(fisher_exact_p(n, n, 0, reference_n), pair.num_comparisons)
    limit = f", and {n} and {reference_n} runs can give no less than {least_p:.2g}" if least_p > SIGNIFICANCE else ""
    return f"{pair.arm_name} {format_p_value(pair.learned_counts.p_adjusted)}{limit}"


def _describe_best_two(pair: Comparison, second_best: str) -> str:
    assert pair.test is not None
    assert pair.p_adjusted is not None
    difference = format_difference(pair.test, format_p_value(pair.p_adjusted))
    return (
        f"The two best, {pair.arm_name} less {second_best}: {difference} over {pair.num_seeds} paired seeds, adjusted "
        f"for all {pair.num_comparisons} pairs of arms, as these two were picked by their values. It is no verdict."
    )


def _describe_winner(study: StudyResults, verdicts: Mapping[str, Verdict], arms: Sequence[ArmReport]) -> Iterator[str]:
    spec = study.spec
    candidates = {
        arm.name: arm
        for arm in arms
        if arm.n >= MIN_SEEDS_FOR_VERDICT and not study.seeds_in_state(arm.name, None, DIVERGED)
    }
    if len(candidates) < 2:
        return
    first = spec.direction.rank({name: arm.mean for name, arm in candidates.items() if arm.mean is not None})[0]
    finished = "Of the arms whose runs all finished, " if len(candidates) < len(arms) else ""
    best_mean = f"{finished}{first} has the best mean {spec.reported_metric}, {_format_mean(candidates[first])}"
    if first != spec.reference:
        yield {
            Verdict.BETTER: f"{best_mean}, and beats the reference {spec.reference}.",
            Verdict.WORSE: f"{best_mean}, but is worse than the reference {spec.reference}.",
            Verdict.NOT_JUDGED: f"{best_mean}; it is not judged against the reference {spec.reference}.",
            Verdict.NO_DIFFERENCE_SEEN: f"{best_mean}, but no difference from the reference {spec.reference} was seen.",
        }[verdicts[first]]
    elif all(verdict is Verdict.WORSE for verdict in verdicts.values()):
        yield f"{best_mean}, and beats every other arm."
    else:
        undistinguished = [name for name, verdict in verdicts.items() if verdict is Verdict.NO_DIFFERENCE_SEEN]
        unseen = f"; not seen to differ from it: {join_words(undistinguished)}" if undistinguished else ""
        yield f"{best_mean}{unseen}."


def _format_mean(arm: ArmReport) -> str:
    assert arm.mean is not None
    if arm.interval is None:
        return f"{round_to_error(arm.mean)} (with every seed)"
    return f"{round_to_error(arm.mean, arm.interval.half_width)} ({format_interval(arm.interval)})"


def _describe_verdict(study: StudyResults, pair: Comparison, opinion: SecondOpinion | None) -> str:
    where, against, test = format_task_suffix(pair.task_name), study.spec.reference, pair.test
    if pair.verdict is Verdict.NOT_JUDGED or test is None:
        return f"{pair.arm_name} is not judged against {against}{where}: {explain_verdict(study, pair)}"
    seeds, p = f"{pair.num_seeds} paired seeds", _describe_p_value(pair)
    diverged = _describe_diverged_seeds(study, pair) if pair.diverged_seeds else ""
    if pair.verdict is Verdict.NO_DIFFERENCE_SEEN:
        evidence = f"{p}; {diverged}" if diverged else format_difference(test, p)
        smallest = _describe_smallest_effect(test, study.spec.smallest_effect_of_interest)
        arms = f"{pair.arm_name} and {against}{where} at {pair.num_seeds} seeds"
        return f"No difference seen between {arms}: {evidence}{smallest}."
    size = f" by {format_difference(test, f'{p}; {seeds}', of=study.spec.reported_metric)}"
    evidence = f": {p}; {seeds}; {diverged}" if diverged else size
    return f"{pair.arm_name} is {pair.verdict} than {against}{where}{evidence}.{_describe_doubts(study, pair, opinion)}"


def _describe_smallest_effect(test: MeanTest, smallest_effect: float | None) -> str:
    """Say whether the interval of a difference excludes the smallest one that matters, on both sides."""
    if smallest_effect is None or test.interval is None:
        return ""
    excluded = -smallest_effect < test.interval.low and test.interval.high < smallest_effect
    return f"; a difference of {smallest_effect:g} is {'excluded' if excluded else 'not excluded'}"


def _describe_divergence(arms: Sequence[ArmReport]) -> Iterator[str]:
    proportions = [
        f"{arm.name} in {format_proportion(arm.run_counts.diverged, arm.run_counts.ended, arm.run_counts.interval)}"
        for arm in arms
        if arm.run_counts.diverged and arm.run_counts.interval
    ]
    if proportions:
        none = [arm.name for arm in arms if not arm.run_counts.diverged and arm.run_counts.ended]
        never = f"; never: {join_words(none)}" if none else ""
        yield f"Runs that diverged, over all tuned values: {'; '.join(proportions)}{never}."


def _describe_steps_to_target(study: StudyResults, arms: Sequence[ArmReport]) -> Iterator[str]:
    spec = study.spec
    timed = [(arm.name, arm.to_target) for arm in arms if arm.to_target and arm.to_target.of]
    if not any(times.reached for _, times in timed):
        return
    descriptions = []
    for name, times in timed:
        steps = f"{times.steps:g}" if times.steps is not None else "not by more than half of its runs"
        missed = times.of - times.reached
        descriptions.append(f"{name} {steps}" + (f" ({missed} of {times.of} never did)" if missed else ""))
    yield f"Median steps to {spec.selection_metric} {spec.target:g}: {'; '.join(descriptions)}."


def _describe_sensitivity(study: StudyResults, arms: Sequence[ArmReport]) -> Iterator[str]:
    for key in study.spec.tuning_grid:
        sensitivities = {
            arm.name: entry.sensitivity
            for arm in arms
            for entry in arm.sensitivity
            if entry.key == key and entry.sensitivity is not None
        }
        if len(sensitivities) > 1:
            order = sorted(sensitivities, key=lambda name: sensitivities[name])
            descriptions = "; ".join(f"{name} {sensitivities[name]:.3g}" for name in order)
            metric = study.spec.selection_metric
            yield f"Sensitivity to {key}, in {metric} off the best, mean over the values tried: {descriptions}."
