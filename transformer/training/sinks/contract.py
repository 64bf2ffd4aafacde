"""What a sink is, and the one that passes everything on to several."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from transformer.maps.tiers import Kept

Number = float | int | np.number
Sample = Mapping[str, str]


@runtime_checkable
class Sink(Protocol):
    """A place that a run reports to; a sink ignores what it has no use for."""

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Numbers of one step of one split ("train", "validation", ...), by name."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Examples to look at, such as decoded sentences: each its texts by name."""

    def maps(self, step: int, maps: Mapping[str, Kept]) -> None:
        """Attention maps and head statistics of the probe batch by site; their arrays may still be computed."""

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Statistics of the training batch's attention by site and name, each [layer, head]."""

    def progress(self, step: int, total: int) -> None:
        """`step` of `total` training steps are done."""

    def flush(self) -> None:
        """Hand everything so far to the disk: a checkpoint follows, and what came before it is not seen again."""

    def close(self) -> None:
        """Write what is still held back; nothing follows."""


class NullSink:
    """The sink that ignores everything; others inherit from it and replace the calls that they have a use for."""

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Nothing."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Nothing."""

    def maps(self, step: int, maps: Mapping[str, Kept]) -> None:
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
        """Pass the numbers on."""
        for sink in self._sinks:
            sink.scalars(step, split, values)

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Pass the samples on."""
        for sink in self._sinks:
            sink.samples(step, split, samples)

    def maps(self, step: int, maps: Mapping[str, Kept]) -> None:
        """Pass the maps on."""
        for sink in self._sinks:
            sink.maps(step, maps)

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Pass the statistics on."""
        for sink in self._sinks:
            sink.heads(step, heads)

    def progress(self, step: int, total: int) -> None:
        """Pass the progress on."""
        for sink in self._sinks:
            sink.progress(step, total)

    def flush(self) -> None:
        """Flush every sink."""
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Close every sink, also when one of them raises."""
        with contextlib.ExitStack() as stack:
            for sink in reversed(self._sinks):
                stack.callback(sink.close)
