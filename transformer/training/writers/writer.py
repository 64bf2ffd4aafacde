"""The protocol of writers, and the writer that feeds several."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from transformer.maps.capture_plan import StoredMaps
from transformer.runs.distributed import announce
from transformer.storage.storage import DirectoryLost

Scalar = float | int | np.number
Sample = Mapping[str, str]


@runtime_checkable
class Writer(Protocol):
    """A receiver of a run's reports; a writer ignores those that it has no use for."""

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        """Numbers of one step of one split ("train", "validation", ...), by name."""

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Examples to read, such as decoded sentences: the texts of each by name."""

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Attention maps and head statistics of the probe batch by site; their arrays may still be computed."""

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Statistics of the training batch's attention by site and name, each [layer, head]."""

    def report_progress(self, step: int, total: int) -> None:
        """`step` of `total` training steps are done."""

    def flush(self) -> None:
        """Write everything so far to the disk: a checkpoint follows, from which a resumed run continues."""

    def close(self) -> None:
        """Write everything that is still buffered; nothing follows."""


class NullWriter:
    """The writer that ignores everything; others inherit from it and override the methods that they need."""

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        """Nothing."""

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Nothing."""

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Nothing."""

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Nothing."""

    def report_progress(self, step: int, total: int) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class MultiWriter:
    """Several writers as one: each call goes to every one of them, in order."""

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
    """A writer that a run can do without: what it raises is said once, and from then on it is told nothing.

    That the run directory is lost is no fault of the writer's, and is raised.
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
            announce(f"{self._name}: {' '.join(str(error).split())[:300]}; the run goes on without")
            with contextlib.suppress(Exception):
                broken.close()
