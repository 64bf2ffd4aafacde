"""Format an ablation's results as text: numbers rounded to their error, the CSV of the runs, the table of the arms."""

import csv
import io
import math
from collections.abc import Iterable, Sequence

from transformer.studies.ablations.arm_comparisons import Verdict
from transformer.studies.ablations.report import ComparisonReport, StudyReport
from transformer.studies.ablations.statistics import Interval, MeanTest

_BEFORE, _AFTER = (
    ("arm", "task", "seed"),
    ("state", "selection_value", "reported_value", "steps", "started", "commit", "hardware", "directory", "command"),
)
_TABLE_HEADER = ("95% interval", "difference", "95% interval", "p (adjusted)", "verdict", "diverged")


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
    texts = [(end, round_to_error(end, interval.half_width)) for end in interval]
    return " to ".join(f"{end:.1g}" if end and not float(text) else text for end, text in texts)


def format_p_value(p: float) -> str:
    """Describe a p-value: "p = 0.031"; below 0.001 without its digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def format_adjustment(num_comparisons: int, both: str = "") -> str:
    """Say for how many comparisons numbers are adjusted: ", adjusted for 3 comparisons"; nothing for one.

    Args:
        num_comparisons: The number of comparisons.
        both: "both " if these numbers are two.
    """
    return f", {both}adjusted for {num_comparisons} comparisons" if num_comparisons > 1 else ""


def join_words(words: Iterable[object]) -> str:
    """Join words as "a, b and c"."""
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def format_seeds(seeds: Sequence[int]) -> str:
    """Describe some seeds: "seed 3" or "seeds 1, 2 and 3"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {join_words(seeds)}"


def format_task_suffix(task: str | None) -> str:
    """Return " on TASK" for a comparison on one task, else nothing."""
    return f" on {task}" if task else ""


def format_difference(test: MeanTest, more: str = "", *, of: str = "") -> str:
    """Describe a mean difference, rounded to its interval, with the interval in brackets.

    Args:
        test: The test of the differences.
        more: More words in the brackets.
        of: A metric in which one arm is better or worse by the difference, which then has no sign.

    Returns:
        The text.
    """
    size, interval = test.mean, test.interval
    if of and size < 0:
        size, interval = -size, interval and interval.oriented(-1.0)
    text = round_to_error(size, interval and interval.half_width)
    text = f"{text} in {of}" if of else text if text.startswith("-") else f"+{text}"
    interval_text = format_interval(interval) if interval else "" if test.standard_deviation else "with every seed"
    brackets = ", ".join(filter(None, (interval_text, more)))
    return f"{text} ({brackets})" if brackets else text


def format_runs_csv(report: StudyReport) -> str:
    """Format the runs of a report as CSV: a row a run, a column a tuned key, floats in full, empty without a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_BEFORE, *report.hyperparameter_values, *_AFTER])
    for run in report.to_json()["runs"]:
        hyperparameters = [run["hyperparameters"].get(key) for key in report.hyperparameter_values]
        writer.writerow([*(run[name] for name in _BEFORE), *hyperparameters, *(run[name] for name in _AFTER)])
    return text.getvalue()


def format_arms_table(report: StudyReport) -> str:
    """Format the arms as a text table: mean, 95% interval, difference from the reference, verdict, diverged runs."""
    against = {pair.arm: pair for pair in report.comparisons if pair.task is None}
    rows = [("arm", report.reported_metric, *_TABLE_HEADER)]
    for arm in report.arms:
        rows.append(
            (
                arm.name,
                *_format_estimate(arm.mean, arm.interval),
                *_format_comparison(against.get(arm.name), exploratory=report.exploratory),
                f"{arm.run_counts.diverged} of {arm.run_counts.ended}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _format_comparison(pair: ComparisonReport | None, *, exploratory: bool) -> tuple[str, str, str, str]:
    """Return the difference, its interval, p and the verdict with what a reader must know beside it."""
    if pair is None:
        return "", "", "", "reference"
    notes = [*(["exploratory"] if exploratory else ()), *pair.caveats] if pair.verdict is not Verdict.NOT_JUDGED else []
    verdict = f"{pair.verdict} ({', '.join(notes)})" if notes else str(pair.verdict)
    p = "-" if pair.p_adjusted is None else format_p_value(pair.p_adjusted).removeprefix("p ").removeprefix("= ")
    return *_format_estimate(pair.difference, pair.interval), p, verdict


def _format_estimate(value: float | None, interval: Interval | None) -> tuple[str, str]:
    return (
        "-" if value is None else round_to_error(value, interval and interval.half_width),
        "-" if interval is None else _format_ends(interval),
    )
