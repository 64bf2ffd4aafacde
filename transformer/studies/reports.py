"""What a run reported, read from its metrics.jsonl while or after it trains; jax is not imported."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError

_FILE = "metrics.jsonl"
_TAIL = 1 << 16  # bytes in which the last reports are looked for while a run trains


class Metric(NamedTuple):
    """A number that runs report, written "split/name", as "validation/loss" or "validation/exact_match/de"."""

    split: str
    name: str

    def __str__(self) -> str:
        return f"{self.split}/{self.name}"


class Reached(NamedTuple):
    """The last step of a run that reported a metric, and the metric; None where it was not finite."""

    step: int
    value: float | None


def parse_metric(text: str) -> Metric:
    """The metric that the text names.

    Errors: UserError for a text without split or name.
    """
    split, slash, name = text.partition("/")
    if not (slash and split and re.fullmatch(r"[^/].*", name)):
        raise UserError(f"--metric={text} is no metric: write split/name, as validation/loss")
    return Metric(split, name)


def read_reports(directory: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; none where there is no file yet. A torn last line is left out."""
    try:
        content = (directory / _FILE).read_bytes()
    except FileNotFoundError:
        return []
    return _records(content)


def read_last(directory: Path) -> list[dict[str, Any]]:
    """The last lines of a run's metrics.jsonl, at no more cost when it is long."""
    file = directory / _FILE
    if not isinstance(file, Path):
        return read_reports(directory)
    try:
        with file.open("rb") as opened:
            length = opened.seek(0, 2)
            opened.seek(max(0, length - _TAIL))
            content = opened.read()
    except FileNotFoundError:
        return []
    return _records(content if length <= _TAIL else content.partition(b"\n")[2])


def reached(records: list[dict[str, Any]], metric: Metric) -> Reached | None:
    """The last report of a metric; None where there is none."""
    for record in reversed(records):
        if record["split"] == metric.split and metric.name in record:
            return Reached(record["step"], record[metric.name])
    return None


def last_step(records: list[dict[str, Any]]) -> int:
    """The last step that reported anything; 0 where none did."""
    return max((record["step"] for record in records), default=0)


def metrics_in(records: list[dict[str, Any]]) -> list[str]:
    """Every metric that the reports have, those of the training split last."""
    metrics = {f"{record['split']}/{name}" for record in records for name in record if name not in ("step", "split")}
    return sorted(metrics, key=lambda metric: (metric.startswith("train/"), metric))


def _records(content: bytes) -> list[dict[str, Any]]:
    records = []
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn, or being written
        if isinstance(record, dict) and {"step", "split"} <= set(record):
            records.append(record)
    return records
