"""A study's result as text: the CSV of its cells, and a table of its arms for the terminal."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.studies.wording import rounded

_BEFORE, _AFTER = ("arm", "task", "seed"), ("state", "chosen", "reported", "steps", "directory", "command")


def cells_csv(result: Mapping[str, Any]) -> str:
    """One row a cell, with a column for every tuned key; floats with every digit, nothing where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_BEFORE, *result["tuned"], *_AFTER])
    for cell in result["cells"]:
        tuned = [cell["tuned"].get(key) for key in result["tuned"]]
        writer.writerow([*(cell[name] for name in _BEFORE), *tuned, *(cell[name] for name in _AFTER)])
    return text.getvalue()


def arms_table(result: Mapping[str, Any]) -> str:
    """The arms in lines of one width: mean, 95 % interval, difference to the reference, verdict, diverged runs."""
    rows = [
        ("arm", result["reported"], "95 % interval", "difference", "95 % interval", "p (Holm)", "verdict", "diverged")
    ]
    against = {pair["arm"]: pair for pair in result["comparisons"] if pair["task"] is None}
    for arm in result["arms"]:
        pair = against.get(arm["name"])
        runs = arm["runs"]
        rows.append(
            (
                arm["name"],
                _number(arm["mean"], arm["interval"]),
                _interval(arm["interval"]),
                _number(pair["difference"], pair["interval"]) if pair else "",
                _interval(pair["interval"]) if pair else "",
                _probability(pair["p_holm"]) if pair else "",
                pair["verdict"] if pair else "reference",
                f"{runs['diverged']} of {runs['ended']}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _number(value: float | None, interval: Sequence[float] | None) -> str:
    return "-" if value is None else rounded(value, _half(interval))


def _interval(interval: Sequence[float] | None) -> str:
    return "-" if interval is None else " to ".join(rounded(end, _half(interval)) for end in interval)


def _half(interval: Sequence[float] | None) -> float | None:
    return (interval[1] - interval[0]) / 2 if interval else None


def _probability(p: float | None) -> str:
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"
