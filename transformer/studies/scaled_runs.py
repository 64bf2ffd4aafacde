"""What a scaling study reads of runs: their parameters, tokens, operations and the loss that they came to."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer.config import UserError
from transformer.runs.directory import RunDirectory
from transformer.runs.records import Metric, parse_metric, read_records
from transformer.studies.scaling import Scaled


class Read(NamedTuple):
    """The finished runs, and why each of the others is left out."""

    runs: list[Scaled]
    left_out: list[str]


def read_runs(paths: Iterable[Path], metric: str) -> Read:
    """The runs of directories: of each itself, or of those in the `trials/` of a sweep or an ablation.

    Tokens are those that the training loss counted: what was trained on at each step, times the steps. Operations are
    counted by the family's formula, else 6 N D. A run that has not come to its last step, or does not report `metric`
    at the end, is left out.

    Errors: UserError for a directory that is neither.
    """
    asked, found = parse_metric(metric), Read([], [])
    for path in _directories(paths):
        try:
            read = _scaled(path, asked)
        except (KeyError, TypeError, ValueError) as error:
            read = f"its files cannot be read: {' '.join(str(error).split())[:200]}"
        if isinstance(read, Scaled):
            found.runs.append(read)
        else:
            found.left_out.append(f"{path}: {read}")
    return found


def _directories(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if RunDirectory(path).is_run():
            yield path
            continue
        trials = sorted(each for each in (path / "trials").glob("*") if RunDirectory(each).is_run())
        if not trials:
            raise UserError(f"{path} is no run directory, and holds no trials of a sweep or an ablation")
        yield from trials


def _scaled(path: Path, metric: Metric) -> Scaled | str:
    """The run, or why it is left out."""
    run = RunDirectory(path)
    steps, records = run.config()["steps"], read_records(run.metrics_file)
    reports = [each for each in records if each["split"] == metric.split and metric.name in each]
    if not reports or reports[-1]["step"] < steps:
        return f"it reports no {metric} at its last step, {steps}"
    loss, parameters = reports[-1][metric.name], run.facts().get("parameters")
    if loss is None or parameters is None:
        return f"its {metric} is not finite" if loss is None else "it does not say how many parameters it has"
    training = [each for each in records if each["split"] == "train" and each.get("steps_per_second")]
    counted = [each["tokens_per_second"] / each["steps_per_second"] for each in training if "tokens_per_second" in each]
    if not counted:
        return "its task counts no tokens"
    tokens = float(np.mean(counted)) * steps
    operations = [each["flops_per_step"] for each in training if each.get("flops_per_step")]
    total = float(np.mean(operations)) * steps if operations else 6.0 * parameters * tokens
    return Scaled(path.name, float(parameters), tokens, total, float(loss))
