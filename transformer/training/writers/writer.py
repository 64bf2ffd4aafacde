"""The reports of a run, the interface of writers, and writers that pass reports on or tolerate errors."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer.maps.capture_plan import StoredMaps
from transformer.runs.distributed import print_and_log
from transformer.storage.storage import DirectoryLost

Scalar = float | int | np.number
Sample = Mapping[str, str]


@dataclass(frozen=True)
class Metrics:
    """The metrics of a step.

    Attributes:
        step: The number of the step.
        split: The split that they were measured on: "train", "validation", ...
        values: The metrics by name.
    """

    step: int
    split: str
    values: Mapping[str, Scalar]


@dataclass(frozen=True)
class Samples:
    """Example outputs, such as decoded sentences.

    Attributes:
        step: The number of the step.
        split: The split that they are from.
        samples: The texts of each example by name.
    """

    step: int
    split: str
    samples: Sequence[Sample]


@dataclass(frozen=True)
class ProbeMaps:
    """Attention maps and head statistics of the probe batch.

    Attributes:
        step: The number of the step.
        maps: The maps by site; their arrays may not be ready yet.
    """

    step: int
    maps: Mapping[str, StoredMaps]


@dataclass(frozen=True)
class HeadStatistics:
    """Head statistics of the training batch.

    Attributes:
        step: The number of the step.
        statistics: The statistics by site and name, each [layer, head].
    """

    step: int
    statistics: Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Progress:
    """That `step` of `total` training steps are done."""

    step: int
    total: int


Report = Metrics | Samples | ProbeMaps | HeadStatistics | Progress


class Writer(ABC):
    """Records the reports of a run: those that it knows; it ignores all others."""

    @abstractmethod
    def write(self, report: Report) -> None:
        """Write a report, or ignore it."""

    def flush(self) -> None:
        """Flush to the storage before a checkpoint is saved; by default there is nothing to flush."""
        return

    def close(self) -> None:
        """Flush and close; by default there is nothing to close."""
        return


class MultiWriter(Writer):
    """A writer that passes each call on to several writers in order."""

    def __init__(self, *writers: Writer):
        self._writers = writers

    def write(self, report: Report) -> None:
        for writer in self._writers:
            writer.write(report)

    def flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for writer in reversed(self._writers):
                stack.callback(writer.close)


class BestEffortWriter(Writer):
    """A writer whose errors do not stop the run: the first error is logged and the writer is closed.

    DirectoryLost is raised nevertheless.

    Args:
        name: The name in the message.
        open_writer: A function that opens the writer.
    """

    def __init__(self, name: str, open_writer: Callable[[], Writer]):
        self._name = name
        self._writer: Writer = MultiWriter()
        with self._log_first_error():
            self._writer = open_writer()

    def write(self, report: Report) -> None:
        with self._log_first_error():
            self._writer.write(report)

    def flush(self) -> None:
        with self._log_first_error():
            self._writer.flush()

    def close(self) -> None:
        with self._log_first_error():
            self._writer.close()

    @contextlib.contextmanager
    def _log_first_error(self) -> Iterator[None]:
        try:
            yield
        except DirectoryLost:
            raise
        except Exception as error:
            broken, self._writer = self._writer, MultiWriter()  # which ignores all further reports
            print_and_log(f"{self._name}: {' '.join(str(error).split())[:300]}; training continues without it")
            with contextlib.suppress(Exception):
                broken.close()
