"""Which metrics of a case have no definition: neither in the library nor in the README of the task's project."""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.contracts.case import Case
from transformer.runs.metric_definitions import METRICS, MetricDefinition, find_definition

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
METRIC_TABLE = re.compile(r"^\| metric \| unit \| meaning \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", re.MULTILINE)


def definitions_of(page: str) -> list[MetricDefinition]:
    """The rows of the page's tables of metrics."""
    rows = [row.strip("| ").split(" | ") for table in METRIC_TABLE.findall(page) for row in table.splitlines()]
    return [MetricDefinition(row[0].strip("`"), row[1] if len(row) > 2 else "", row[-1]) for row in rows]


def undefined_metrics(case: Case, names: Iterable[str]) -> list[str]:
    """The names that no definition has; of a toy's task none is asked for."""
    task = case.task["name"]
    if task.startswith("tests."):
        return []
    definitions = list(METRICS)
    if task.startswith("experiments."):
        definitions += definitions_of((EXPERIMENTS / task.split(".")[1] / "README.md").read_text(encoding="utf-8"))
    return sorted(name for name in set(names) if find_definition(name, definitions) is None)
