"""The answer of an ablation in sentences, for the top of its page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer.studies.ablations.arm_comparisons import MIN_SEEDS_FOR_VERDICT, Comparison, SecondOpinion
from transformer.studies.ablations.formatting import (
    describe_diverged_seeds,
    explain_verdict,
    format_adjusted_p_value,
    format_difference,
    format_interval,
    format_p_value,
    format_proportion,
    format_seeds,
    format_task_suffix,
    join_words,
    round_to_error,
)
from transformer.studies.ablations.hyperparameter_selection import DIVERGED, StudyResults, rank_best_first
from transformer.studies.ablations.statistics import (
    SIGNIFICANCE,
    Interval,
    MeanTest,
    bonferroni_correction,
    fisher_exact_p,
)
from transformer.studies.ablations.study_warnings import describe_edge_values, describe_noise


def summary_sentences(
    study: StudyResults,
    judged: Sequence[tuple[Comparison, SecondOpinion | None]],
    arms: Sequence[Mapping[str, Any]],
    between_the_best: tuple[Comparison, str] | None,
) -> list[str]:
    """Summarize a study: which arms learned, which is best and by how much, divergence, and steps to the target.

    Args:
        study: The results of the study.
        judged: The comparisons with the reference, each with the second opinion on it, if there is one.
        arms: The arms of the study's result.
        between_the_best: The comparison of the two best arms and the second one's name, if neither is the reference.

    Returns:
        The sentences.
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
            if pair.task_name is not None
            and pair.verdict in ("better", "worse")
            and pair.verdict != verdicts[pair.arm_name]
        ),
        *_describe_divergence(study, arms),
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


def _describe_learning(
    study: StudyResults, overall: Sequence[Comparison], arms: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Say how many runs of each arm learned, if not all did: whether an arm learns comes before how well."""
    if all(arm["learned"]["count"] == arm["learned"]["of"] for arm in arms):
        return
    counts = sorted(
        ((arm["name"], arm["learned"]["count"], arm["learned"]["of"]) for arm in arms if arm["learned"]["of"]),
        key=lambda arm_count: -arm_count[1] / arm_count[2],
    )
    learned_counts = join_words(f"{name} {count} of {of}" for name, count, of in counts)
    counted = [pair for pair in overall if pair.learned_counts.p_adjusted is not None]
    tests = [_describe_count_test(pair) for pair in counted]
    several = (
        f", adjusted for {counted[0].num_comparisons} comparisons" if counted and counted[0].num_comparisons > 1 else ""
    )
    tested = f"; Fisher's exact test against {study.spec.reference}{several}: {'; '.join(tests)}" if tests else ""
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


def _describe_winner(
    study: StudyResults, verdicts: Mapping[str, str], arms: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    spec = study.spec
    means = {
        arm["name"]: arm["mean"]
        for arm in arms
        if arm["n"] >= MIN_SEEDS_FOR_VERDICT and not study.seeds_in_state(arm["name"], None, DIVERGED)
    }
    if len(means) < 2:
        return
    first = rank_best_first(spec, means)[0]
    winner = next(arm for arm in arms if arm["name"] == first)
    finished = "Of the arms whose runs all finished, " if len(means) < len(arms) else ""
    best_mean = f"{finished}{first} has the best mean {spec.reported_metric}, {_format_mean(winner)}"
    undistinguished = [name for name, verdict in verdicts.items() if verdict == "no difference seen"]
    if first != spec.reference:
        if verdicts[first] == "better":
            yield f"{best_mean}, and beats the reference {spec.reference}."
        elif verdicts[first] == "worse":
            yield f"{best_mean}, but is worse than the reference {spec.reference}."
        elif verdicts[first] == "not judged":
            yield f"{best_mean}; it is not judged against the reference {spec.reference}."
        else:
            yield f"{best_mean}, but no difference from the reference {spec.reference} was seen."
    elif all(verdict == "worse" for verdict in verdicts.values()):
        yield f"{best_mean}, and beats every other arm."
    else:
        unseen = f"; not seen to differ from it: {join_words(undistinguished)}" if undistinguished else ""
        yield f"{best_mean}{unseen}."


def _format_mean(arm: Mapping[str, Any]) -> str:
    if arm["interval"] is None:
        return f"{round_to_error(arm['mean'])} (with every seed)"
    low, high = arm["interval"]
    return f"{round_to_error(arm['mean'], (high - low) / 2)} ({format_interval(Interval(low, high))})"


def _describe_verdict(study: StudyResults, pair: Comparison, opinion: SecondOpinion | None) -> str:
    where, against, test = format_task_suffix(pair.task_name), study.spec.reference, pair.test
    if pair.verdict == "not judged" or test is None:
        return f"{pair.arm_name} is not judged against {against}{where}: {explain_verdict(study, pair)}"
    seeds, p = f"{pair.num_seeds} paired seeds", format_adjusted_p_value(pair)
    diverged = describe_diverged_seeds(study, pair) if pair.diverged_seeds else ""
    if pair.verdict == "no difference seen":
        evidence = f"{p}; {diverged}" if diverged else format_difference(test, p)
        smallest = _describe_smallest_effect(test, study.spec.smallest_effect_of_interest)
        arms = f"{pair.arm_name} and {against}{where} at {pair.num_seeds} seeds"
        return f"No difference seen between {arms}: {evidence}{smallest}."
    size = f" by {format_difference(test, f'{p}; {seeds}', of=study.spec.reported_metric)}"
    evidence = f": {p}; {seeds}; {diverged}" if diverged else size
    doubts = f"{describe_edge_values(study, pair)}{describe_noise(pair, opinion)}"
    return f"{pair.arm_name} is {pair.verdict} than {against}{where}{evidence}.{doubts}"


def _describe_smallest_effect(test: MeanTest, smallest_effect: float | None) -> str:
    """Say whether the interval of a difference excludes the smallest one that matters, on both sides."""
    if smallest_effect is None or test.interval is None:
        return ""
    excluded = -smallest_effect < test.interval.low and test.interval.high < smallest_effect
    return f"; a difference of {smallest_effect:g} is {'excluded' if excluded else 'not excluded'}"


def _describe_divergence(study: StudyResults, arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    diverged_arms = [arm for arm in arms if arm["run_counts"]["diverged"]]
    if not diverged_arms:
        return
    proportions = [
        f"{arm['name']} in {format_proportion(runs['diverged'], runs['ended'], Interval(*runs['interval']))}"
        for arm in diverged_arms
        for runs in (arm["run_counts"],)
    ]
    none = [arm["name"] for arm in arms if not arm["run_counts"]["diverged"] and arm["run_counts"]["ended"]]
    never = f"; never: {join_words(none)}" if none else ""
    yield f"Runs that diverged, over all tuned values: {'; '.join(proportions)}{never}."


def _describe_steps_to_target(study: StudyResults, arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    spec = study.spec
    timed = [(arm["name"], arm["to_target"]) for arm in arms if arm["to_target"] and arm["to_target"]["of"]]
    if not any(times["reached"] for _, times in timed):
        return
    descriptions = []
    for name, times in timed:
        steps = f"{times['steps']:g}" if times["steps"] is not None else "not by more than half of its runs"
        missed = times["of"] - times["reached"]
        descriptions.append(f"{name} {steps}" + (f" ({missed} of {times['of']} never did)" if missed else ""))
    yield f"Median steps to {spec.selection_metric} {spec.target:g}: {'; '.join(descriptions)}."


def _describe_sensitivity(study: StudyResults, arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for key in study.spec.tuning_grid:
        sensitivities = {
            arm["name"]: entry["sensitivity"]
            for arm in arms
            for entry in arm["sensitivity"]
            if entry["key"] == key and entry["sensitivity"] is not None
        }
        if len(sensitivities) > 1:
            order = sorted(sensitivities, key=lambda name: sensitivities[name])
            descriptions = "; ".join(f"{name} {sensitivities[name]:.3g}" for name in order)
            metric = study.spec.selection_metric
            yield f"Sensitivity to {key}, in {metric} off the best, mean over the values tried: {descriptions}."
