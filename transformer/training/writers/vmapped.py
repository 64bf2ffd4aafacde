"""The writer of vmapped runs, which splits stacked reports between the writers of the runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.runs.exceptions import NonFiniteError
from transformer.training.writers.writer import (
    HeadStatistics,
    Metrics,
    MultiWriter,
    ProbeMaps,
    Progress,
    Report,
    Samples,
    Writer,
)


def _raise_error(run: int, error: NonFiniteError) -> None:
    raise error


class VmappedWriters(Writer):
    """Splits the stacked reports of vmapped runs between one writer for each run.

    Metrics are sequences over the runs, with None for a run that has none; a plain number belongs to every run. A
    stopped run gets no more reports.

    Args:
        writers: The writer of each run.
        shared: A writer of the mean metrics over the unfinished runs, such as the console.
        not_finite: A function that is called with the number of a run whose maps are not finite; it may stop the run.
    """

    def __init__(
        self,
        writers: Sequence[Writer],
        shared: Writer | None = None,
        not_finite: Callable[[int, NonFiniteError], None] = _raise_error,
    ):
        self._active, self._not_finite = dict(enumerate(writers)), not_finite
        self._shared = MultiWriter() if shared is None else shared

    @property
    def active_runs(self) -> tuple[int, ...]:
        """The numbers of the runs that have not been stopped."""
        return tuple(self._active)

    def stop(self, run: int) -> None:
        """Close a run's writer; it gets no more reports."""
        self._active.pop(run).close()

    def write(self, report: Report) -> None:
        match report:
            case Metrics(step, split, values):
                self._write_metrics(step, split, values)
            case Samples(step, split, samples):
                for run, writer in self._active.items():
                    if samples[run]:
                        writer.write(Samples(step, split, samples[run]))  # type: ignore[arg-type]
            case ProbeMaps(step, maps):
                self._write_maps(step, maps)
            case HeadStatistics(step, statistics):
                for run, writer in self._active.items():
                    run_statistics = {
                        site: {name: values[run] for name, values in table.items()}
                        for site, table in statistics.items()
                    }
                    writer.write(HeadStatistics(step, run_statistics))
            case Progress():
                for writer in self._writers():
                    writer.write(report)

    def flush(self) -> None:
        for writer in self._writers():
            writer.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for writer in self._writers():
                stack.callback(writer.close)

    def _write_metrics(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        by_run = {run: {name: _value_of_run(value, run) for name, value in values.items()} for run in self._active}
        for run, writer in self._active.items():
            if present := {name: number for name, number in by_run[run].items() if number is not None}:
                writer.write(Metrics(step, split, present))
        by_name = {name: [numbers[name] for numbers in by_run.values()] for name in values}
        if means := {name: float(np.mean(numbers)) for name, numbers in by_name.items() if None not in numbers}:
            self._shared.write(Metrics(step, split, means))

    def _write_maps(self, step: int, maps: Mapping[str, Any]) -> None:
        for run, writer in list(self._active.items()):
            try:
                writer.write(ProbeMaps(step, {site: by_run[run] for site, by_run in maps.items()}))
            except NonFiniteError as error:
                self._not_finite(run, error)

    def _writers(self) -> Iterator[Writer]:
        yield from self._active.values()
        yield self._shared


def _value_of_run(value: Any, run: int) -> Any:
    return value if np.ndim(value) == 0 else value[run]
