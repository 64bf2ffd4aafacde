"""The protocol of sinks, and the sink that feeds several."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from transformer.maps.capture_plan import StoredMaps
from transformer.runs.distributed import announce
from transformer.storage.storage import DirectoryLost

Number = float | int | np.number
Sample = Mapping[str, str]


@runtime_checkable
class Sink(Protocol):
    """A receiver of a run's reports; a sink ignores those that it has no use for."""

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Numbers of one step of one split ("train", "validation", ...), by name."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Examples to read, such as decoded sentences: the texts of each by name."""

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Attention maps and head statistics of the probe batch by site; their arrays may still be computed."""

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Statistics of the training batch's attention by site and name, each [layer, head]."""

    def progress(self, step: int, total: int) -> None:
        """`step` of `total` training steps are done."""

    def flush(self) -> None:
        """Write everything so far to the disk: a checkpoint follows, from which a resumed run continues."""

    def close(self) -> None:
        """Write everything that is still buffered; nothing follows."""


class NullSink:
    """The sink that ignores everything; others inherit from it and override the methods that they need."""

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Nothing."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Nothing."""

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Nothing."""

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Nothing."""

    def progress(self, step: int, total: int) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Sinks:
    """Several sinks as one: each call goes to every one of them, in order."""

    def __init__(self, *sinks: Sink):
        self._sinks = sinks

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        for sink in self._sinks:
            sink.scalars(step, split, values)

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        for sink in self._sinks:
            sink.samples(step, split, samples)

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        for sink in self._sinks:
            sink.maps(step, maps)

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        for sink in self._sinks:
            sink.heads(step, heads)

    def progress(self, step: int, total: int) -> None:
        for sink in self._sinks:
            sink.progress(step, total)

    def flush(self) -> None:
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for sink in reversed(self._sinks):
                stack.callback(sink.close)


class OptionalSink:
    """A sink that a run can do without: what it raises is said once, and from then on it is told nothing.

    That the run directory is lost is no fault of the sink's, and is raised.
    """

    def __init__(self, name: str, open_it: Callable[[], Sink]):
        self._name = name
        self._sink: Sink | None = NullSink()
        self._tell(lambda _: self._keep(open_it()))

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        self._tell(lambda sink: sink.scalars(step, split, values))

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        self._tell(lambda sink: sink.samples(step, split, samples))

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        self._tell(lambda sink: sink.maps(step, maps))

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        self._tell(lambda sink: sink.heads(step, heads))

    def progress(self, step: int, total: int) -> None:
        self._tell(lambda sink: sink.progress(step, total))

    def flush(self) -> None:
        self._tell(lambda sink: sink.flush())

    def close(self) -> None:
        self._tell(lambda sink: sink.close())

    def _keep(self, sink: Sink) -> None:
        self._sink = sink

    def _tell(self, report: Callable[[Sink], None]) -> None:
        if self._sink is None:
            return
        try:
            report(self._sink)
        except DirectoryLost:
            raise
        except Exception as error:
            broken, self._sink = self._sink, None
            announce(f"{self._name}: {' '.join(str(error).split())[:300]}; the run goes on without")
            with contextlib.suppress(Exception):
                broken.close()
