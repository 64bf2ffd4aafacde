"""The maps of the probe batch: into the run's store, in the background while training goes on."""

import concurrent.futures
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from transformer.maps.capture_plan import StoredMaps
from transformer.maps.store import MapStore
from transformer.training.writers.contract import NullSink, Number, Sample, Sink

QUEUE_SIZE = 2  # steps of maps in the queue, at most; then the loop waits


class Maps(NullSink):
    """The sink that appends maps to a store."""

    def __init__(self, store: MapStore):
        self._store = store

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        self._store.write(step, maps)


class BackgroundMaps:
    """The sink that gives maps, in order, to another sink in a thread of its own.

    An error of the other sink is raised at the next call of `maps`, `flush` or `close`.
    """

    def __init__(self, sink: Sink):
        self._sink = sink
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="maps")
        self._pending: list[concurrent.futures.Future[None]] = []

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        self._sink.scalars(step, split, values)

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        self._sink.samples(step, split, samples)

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        self._sink.heads(step, heads)

    def progress(self, step: int, total: int) -> None:
        self._sink.progress(step, total)

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Start the copies to the host and come back."""
        for leaf in jax.tree.leaves(dict(maps)):
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()
        self._settle(QUEUE_SIZE - 1)
        self._pending.append(self._thread.submit(self._sink.maps, step, maps))

    def flush(self) -> None:
        self._settle(0)
        self._sink.flush()

    def close(self) -> None:
        """Wait, and end the thread, also when a write failed."""
        try:
            self._settle(0)
        finally:
            self._thread.shutdown()
            self._sink.close()

    def _settle(self, waiting: int) -> None:
        while self._pending and (len(self._pending) > waiting or self._pending[0].done()):
            self._pending.pop(0).result()
