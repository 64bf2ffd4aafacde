"""The writer of vmapped runs, which splits stacked metrics between the writers of the runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.runs.exceptions import NonFiniteError
from transformer.training.writers.writer import NullWriter, Writer


def _refuse(run: int, found: NonFiniteError) -> None:
    raise found


class VmappedWriters:
    """Splits the stacked metrics and maps of vmapped runs between one writer for each run.

    Metrics are sequences over the runs, with None for a run that has none; a plain number belongs to every run. A
    stopped run gets no more reports.

    Args:
        writers: The writer of each run.
        shared: A writer of the means over the unfinished runs, such as the console.
        not_finite: A function that is called with the number of a run whose maps are not finite; it may stop the run.
    """

    def __init__(
        self,
        writers: Sequence[Writer],
        shared: Writer | None = None,
        not_finite: Callable[[int, NonFiniteError], None] = _refuse,
    ):
        self._going, self._not_finite = dict(enumerate(writers)), not_finite
        self._shared = NullWriter() if shared is None else shared

    @property
    def active_runs(self) -> tuple[int, ...]:
        """The numbers of the runs that have not been stopped."""
        return tuple(self._going)

    def stop(self, run: int) -> None:
        """Close a run's writer; it gets no more reports."""
        self._going.pop(run).close()

    def write_scalars(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        told = {run: {name: _of_run(value, run) for name, value in values.items()} for run in self._going}
        for run, writer in self._going.items():
            if numbers := {name: number for name, number in told[run].items() if number is not None}:
                writer.write_scalars(step, split, numbers)
        every = {name: [numbers[name] for numbers in told.values()] for name in values}
        if means := {name: float(np.mean(numbers)) for name, numbers in every.items() if None not in numbers}:
            self._shared.write_scalars(step, split, means)

    def write_samples(self, step: int, split: str, samples: Sequence[Any]) -> None:
        for run, writer in self._going.items():
            if samples[run]:
                writer.write_samples(step, split, samples[run])

    def write_maps(self, step: int, maps: Mapping[str, Any]) -> None:
        for run, writer in list(self._going.items()):
            try:
                writer.write_maps(step, {site: kept[run] for site, kept in maps.items()})
            except NonFiniteError as found:
                self._not_finite(run, found)

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        for run, writer in self._going.items():
            writer.write_heads(
                step, {site: {name: of[run] for name, of in table.items()} for site, table in heads.items()}
            )

    def report_progress(self, step: int, total: int) -> None:
        for writer in self._all():
            writer.report_progress(step, total)

    def flush(self) -> None:
        for writer in self._all():
            writer.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for writer in self._all():
                stack.callback(writer.close)

    def _all(self) -> Iterator[Writer]:
        yield from self._going.values()
        yield self._shared


def _of_run(value: Any, run: int) -> Any:
    return value if np.ndim(value) == 0 else value[run]
