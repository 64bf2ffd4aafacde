"""The interface of writers, and writers that ignore calls, forward them to several writers, or tolerate errors."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from transformer.maps.capture_plan import StoredMaps
from transformer.runs.distributed import print_and_log
from transformer.storage.storage import DirectoryLost

Scalar = float | int | np.number
Sample = Mapping[str, str]


@runtime_checkable
class Writer(Protocol):
    """Records the metrics, samples and attention maps of a run; a writer may ignore any of them."""

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        """Write the metrics of a step.

        Args:
            step: The number of the step.
            split: The split that they were measured on: "train", "validation", ...
            values: The metrics by name.
        """

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Write example outputs, such as decoded sentences.

        Args:
            step: The number of the step.
            split: The split that they are from.
            samples: The texts of each example by name.
        """

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Write attention maps and head statistics of the probe batch.

        Args:
            step: The number of the step.
            maps: The maps by site; their arrays may not be ready yet.
        """

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Write head statistics of the training batch.

        Args:
            step: The number of the step.
            heads: The statistics by site and name, each [layer, head].
        """

    def report_progress(self, step: int, total: int) -> None:
        """Report that `step` of `total` training steps are done."""

    def flush(self) -> None:
        """Flush to the storage before a checkpoint is saved."""

    def close(self) -> None:
        """Flush and close."""


class NullWriter:
    """A writer that ignores everything: the base class of writers that override only some methods."""

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        """Do nothing."""

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Do nothing."""

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Do nothing."""

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Do nothing."""

    def report_progress(self, step: int, total: int) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class MultiWriter:
    """A writer that forwards each call to several writers in order."""

    def __init__(self, *writers: Writer):
        self._writers = writers

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        for writer in self._writers:
            writer.write_scalars(step, split, values)

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        for writer in self._writers:
            writer.write_samples(step, split, samples)

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        for writer in self._writers:
            writer.write_maps(step, maps)

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        for writer in self._writers:
            writer.write_heads(step, heads)

    def report_progress(self, step: int, total: int) -> None:
        for writer in self._writers:
            writer.report_progress(step, total)

    def flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for writer in reversed(self._writers):
                stack.callback(writer.close)


class BestEffortWriter:
    """A writer whose errors do not stop the run: the first error is logged and the writer is closed.

    DirectoryLost is raised nevertheless.

    Args:
        name: The name in the message.
        open_it: A function that opens the writer.
    """

    def __init__(self, name: str, open_it: Callable[[], Writer]):
        self._name = name
        self._writer: Writer | None = NullWriter()
        self._tell(lambda _: self._keep(open_it()))

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        self._tell(lambda writer: writer.write_scalars(step, split, values))

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        self._tell(lambda writer: writer.write_samples(step, split, samples))

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        self._tell(lambda writer: writer.write_maps(step, maps))

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        self._tell(lambda writer: writer.write_heads(step, heads))

    def report_progress(self, step: int, total: int) -> None:
        self._tell(lambda writer: writer.report_progress(step, total))

    def flush(self) -> None:
        self._tell(lambda writer: writer.flush())

    def close(self) -> None:
        self._tell(lambda writer: writer.close())

    def _keep(self, writer: Writer) -> None:
        self._writer = writer

    def _tell(self, report: Callable[[Writer], None]) -> None:
        if self._writer is None:
            return
        try:
            report(self._writer)
        except DirectoryLost:
            raise
        except Exception as error:
            broken, self._writer = self._writer, None
            print_and_log(f"{self._name}: {' '.join(str(error).split())[:300]}; training continues without it")
            with contextlib.suppress(Exception):
                broken.close()
