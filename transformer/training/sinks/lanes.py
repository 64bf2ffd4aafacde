"""Several runs that are trained at once, each with its own sink."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.training.sinks.contract import NullSink, Sink


class LaneSinks:
    """The sink of several lanes, which gives each its own.

    Where a single run reports a number, an array or samples, lanes report a sequence of them, one a lane, with None
    for a lane that has none; a plain number is every lane's. A lane that was stopped is given nothing more. `shared`,
    for the person who watches, is given the means over the lanes that go on.
    """

    def __init__(self, sinks: Sequence[Sink], shared: Sink | None = None):
        self._going = dict(enumerate(sinks))
        self._shared = NullSink() if shared is None else shared

    @property
    def going(self) -> tuple[int, ...]:
        """The numbers of the lanes that were not stopped."""
        return tuple(self._going)

    def stop(self, lane: int) -> None:
        """Close a lane's sink: nothing follows."""
        self._going.pop(lane).close()

    def scalars(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """To each lane its numbers."""
        told = {lane: {name: _of_lane(value, lane) for name, value in values.items()} for lane in self._going}
        for lane, sink in self._going.items():
            if there := {name: number for name, number in told[lane].items() if number is not None}:
                sink.scalars(step, split, there)
        every = {name: [numbers[name] for numbers in told.values()] for name in values}
        if means := {name: float(np.mean(numbers)) for name, numbers in every.items() if None not in numbers}:
            self._shared.scalars(step, split, means)

    def samples(self, step: int, split: str, samples: Sequence[Any]) -> None:
        """To each lane its samples."""
        for lane, sink in self._going.items():
            if samples[lane]:
                sink.samples(step, split, samples[lane])

    def maps(self, step: int, maps: Mapping[str, Any]) -> None:
        """To each lane its maps."""
        for lane, sink in self._going.items():
            sink.maps(step, {site: kept[lane] for site, kept in maps.items()})

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """To each lane the statistics of its batch."""
        for lane, sink in self._going.items():
            sink.heads(step, {site: {name: of[lane] for name, of in found.items()} for site, found in heads.items()})

    def progress(self, step: int, total: int) -> None:
        """Pass the progress on."""
        for sink in self._all():
            sink.progress(step, total)

    def flush(self) -> None:
        """Flush every sink."""
        for sink in self._all():
            sink.flush()

    def close(self) -> None:
        """Close every sink that is not closed yet, also when one of them raises."""
        with contextlib.ExitStack() as stack:
            for sink in self._all():
                stack.callback(sink.close)

    def _all(self) -> Iterator[Sink]:
        yield from self._going.values()
        yield self._shared


def _of_lane(value: Any, lane: int) -> Any:
    return value if np.ndim(value) == 0 else value[lane]
