"""Format an ablation's results as text: numbers rounded to their error, reasons for verdicts, the CSV, the table."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer.studies.ablations.arm_comparisons import Comparison, missing_runs_by_arm
from transformer.studies.ablations.hyperparameter_selection import DIVERGED, STUCK, MissingRun, StudyResults
from transformer.studies.ablations.run_result import describe_run
from transformer.studies.ablations.statistics import SIGNIFICANCE, Interval, MeanTest, least_permutation_p

_BEFORE, _AFTER = (
    ("arm", "task", "seed"),
    ("state", "selection_value", "reported_value", "steps", "started", "commit", "hardware", "directory", "command"),
)


def explain_verdict(study: StudyResults, pair: Comparison) -> str:
    """Explain the verdict of a comparison in one sentence."""
    test = pair.test
    if gaps := missing_runs_by_arm(study, pair):
        return _name_missing_runs(gaps)
    if test is None or pair.p_adjusted is None:
        plural = "s" if pair.num_seeds != 1 else ""
        return f"{pair.num_seeds} paired seed{plural}, and no verdict is given under three."
    if test.p_value is None:
        p = _permutation_result(pair)
        if pair.diverged_seeds:
            return f"{describe_diverged_seeds(study, pair)}: flipping the signs of {pair.num_seeds} pairs gives {p}."
        if test.standard_deviation:
            mean_difference = f"The mean difference is {format_difference(test)}; {_describe_stuck_seeds(study, pair)}"
            return f"{mean_difference}: flipping the signs gives {p}."
        if not test.mean:
            return f"All {pair.num_seeds} paired differences are 0: the arms are alike."
        sentence_start = f"All {pair.num_seeds} paired differences are {format_difference(test)}"
        return f"{sentence_start}: they carry no t statistic, and flipping their signs gives {p}."
    mean_difference = f"The mean difference is {format_difference(test, format_adjusted_p_value(pair))}"
    if pair.verdict != "no difference seen":
        return f"{mean_difference}, over {pair.num_seeds} paired seeds."
    if test.p_value < SIGNIFICANCE:
        alone = f"alone it would count as seen ({format_p_value(test.p_value)})"
        return f"{mean_difference}: {alone}, among {pair.num_comparisons} it does not."
    return f"{mean_difference}, over {pair.num_seeds} paired seeds: the interval holds 0."


def _name_missing_runs(gaps: Mapping[str, Sequence[MissingRun]]) -> str:
    """Name the runs without which there is no verdict, and say how to get them."""
    runs = [(arm, run) for arm, missing in gaps.items() for run in missing]
    words = [
        f"{describe_run(arm, task, seed, hyperparameters)} {'failed' if failed else 'has not ended'}"
        for arm, (task, seed, hyperparameters, failed) in runs
    ]
    again = " with --retry_failed" if any(run.failed for _, run in runs) else ""
    return f"{format_first(words, 1)}: run the command again{again}."


def format_first(descriptions: Sequence[str], most: int = 4, separator: str = "; ") -> str:
    """List a few descriptions, and count the rest: "a; b; c; d; and 6 more"."""
    num_omitted = len(descriptions) - most
    return separator.join(descriptions[:most]) + (f"{separator}and {num_omitted} more" if num_omitted > 0 else "")


def round_to_error(value: float, error: float | None = None) -> str:
    """Round a number to the second digit of its error, or to three digits without an error.

    Args:
        value: The number.
        error: Its error, in the same unit; None, 0 or infinite for none.

    Returns:
        The number as text: "1.235" for 1.23456 with an error of 0.031, "0.000123" for 0.000123456 without one.
    """
    if not error or not math.isfinite(error):
        return f"{value:.3g}"
    places = 1 - math.floor(math.log10(error))
    if places > 6:
        return f"{value:.3g}"
    return f"{round(value, max(0, places)) + 0.0:.{max(0, places)}f}"  # + 0.0: no "-0.00"


def format_proportion(count: int, n: int, interval: Interval) -> str:
    """Describe a proportion with its interval: "2 of 5 (95% interval 12 to 77%)"."""
    return f"{count} of {n} (95% interval {100 * interval.low:.0f} to {100 * interval.high:.0f}%)"


def format_interval(interval: Interval) -> str:
    """Describe an interval, rounded to half its width: "95% interval -0.02 to 0.11"."""
    return f"95% interval {_format_ends(interval)}"


def _format_ends(interval: Interval) -> str:
    """Describe the ends of an interval; one beside 0 keeps a digit, so that nobody reads that the interval holds 0."""
    half_width = (interval.high - interval.low) / 2
    texts = [(end, round_to_error(end, half_width)) for end in interval]
    return " to ".join(f"{end:.1g}" if end and not float(text) else text for end, text in texts)


def format_p_value(p: float) -> str:
    """Describe a p-value: "p = 0.031"; below 0.001 without its digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def format_adjusted_p_value(pair: Comparison) -> str:
    """Describe the adjusted p-value of a comparison, and for how many comparisons it and the interval are adjusted."""
    assert pair.p_adjusted is not None
    if pair.num_comparisons == 1:
        return format_p_value(pair.p_adjusted)
    both = "both " if pair.test and pair.test.interval else ""
    return f"{format_p_value(pair.p_adjusted)}, {both}adjusted for {pair.num_comparisons} comparisons"


def join_words(words: Iterable[Any]) -> str:
    """Join words as "a, b and c"."""
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def format_seeds(seeds: Sequence[int]) -> str:
    """Describe some seeds: "seed 3" or "seeds 1, 2 and 3"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {join_words(seeds)}"


def format_task_suffix(task: str | None) -> str:
    """Return " on TASK" for a comparison on one task, else nothing."""
    return f" on {task}" if task else ""


def _describe_stuck_seeds(study: StudyResults, pair: Comparison) -> str:
    """Describe which seeds of either arm are stuck, where these forbid a t test."""
    stuck = [
        f"{arm} is stuck with {format_seeds(seeds)}"
        for arm in (pair.arm_name, pair.reference_name)
        if (seeds := study.seeds_in_state(arm, pair.task_name, STUCK))
    ]
    return f"{join_words(stuck)}, so that the noise is not normal"


def _permutation_result(pair: Comparison) -> str:
    """Describe the p-value of a comparison that the permutation test judges."""
    assert pair.p_value is not None
    if pair.verdict != "not judged":
        return format_adjusted_p_value(pair)
    least_p = format_p_value(least_permutation_p(pair.num_seeds))
    over = f" before it is adjusted for {pair.num_comparisons} comparisons" if pair.num_comparisons > 1 else ""
    return f"{format_p_value(pair.p_value)}{over}: {pair.num_seeds} seeds can give no less than {least_p}"


def format_difference(test: MeanTest, more: str = "", *, of: str = "") -> str:
    """Describe a mean difference, rounded to its interval, with the interval in brackets.

    Args:
        test: The test of the differences.
        more: More words in the brackets.
        of: A metric in which one arm is better or worse by the difference, which then has no sign.

    Returns:
        The text.
    """
    low, high = test.interval or (test.mean, test.mean)
    size, interval = test.mean, Interval(low, high)
    if of and size < 0:
        size, interval = -size, Interval(-high, -low)
    text = round_to_error(size, (high - low) / 2)
    text = f"{text} in {of}" if of else text if text.startswith("-") else f"+{text}"
    interval_text = format_interval(interval) if test.interval else "" if test.standard_deviation else "with every seed"
    brackets = ", ".join(filter(None, (interval_text, more)))
    return f"{text} ({brackets})" if brackets else text


def describe_diverged_seeds(study: StudyResults, pair: Comparison) -> str:
    """Describe which seeds of either arm diverged, and how they count."""
    descriptions = [
        f"{arm} diverged with {format_seeds(seeds)}"
        for arm in (pair.arm_name, pair.reference_name)
        if (seeds := study.seeds_in_state(arm, pair.task_name, DIVERGED))
    ]
    return f"{join_words(descriptions)}, counted as worse than every finished run"


def format_runs_csv(result: Mapping[str, Any]) -> str:
    """Format the runs of a result as CSV: a row a run, a column a tuned key, floats in full, empty without a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_BEFORE, *result["hyperparameter_values"], *_AFTER])
    for cell in result["runs"]:
        hyperparameters = [cell["hyperparameters"].get(key) for key in result["hyperparameter_values"]]
        writer.writerow([*(cell[name] for name in _BEFORE), *hyperparameters, *(cell[name] for name in _AFTER)])
    return text.getvalue()


def format_arms_table(result: Mapping[str, Any]) -> str:
    """Format the arms as a text table: mean, 95% interval, difference from the reference, verdict, diverged runs."""
    rows = [
        (
            "arm",
            result["reported_metric"],
            "95% interval",
            "difference",
            "95% interval",
            "p (adjusted)",
            "verdict",
            "diverged",
        )
    ]
    against = {pair["arm"]: pair for pair in result["comparisons"] if pair["task"] is None}
    for arm in result["arms"]:
        pair = against.get(arm["name"])
        runs = arm["run_counts"]
        rows.append(
            (
                arm["name"],
                _format_number(arm["mean"], arm["interval"]),
                _format_optional_interval(arm["interval"]),
                _format_number(pair["difference"], pair["interval"]) if pair else "",
                _format_optional_interval(pair["interval"]) if pair else "",
                _format_probability(pair["p_adjusted"]) if pair else "",
                _format_verdict(pair, exploratory=result["exploratory"]) if pair else "reference",
                f"{runs['diverged']} of {runs['ended']}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _format_verdict(pair: Mapping[str, Any], *, exploratory: bool) -> str:
    """Return a verdict with what a reader must know beside it."""
    if pair["verdict"] == "not judged":
        return pair["verdict"]
    notes = [*(["exploratory"] if exploratory else ()), *pair["caveats"]]
    return f"{pair['verdict']} ({', '.join(notes)})" if notes else pair["verdict"]


def _format_number(value: float | None, interval: Sequence[float] | None) -> str:
    return "-" if value is None else round_to_error(value, _half_width(interval))


def _format_optional_interval(interval: Sequence[float] | None) -> str:
    return "-" if interval is None else _format_ends(Interval(*interval))


def _half_width(interval: Sequence[float] | None) -> float | None:
    return (interval[1] - interval[0]) / 2 if interval else None


def _format_probability(p: float | None) -> str:
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"
