"""Write attention maps of the probe batch to the map store, in a background thread."""

import concurrent.futures
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from transformer.maps.capture_plan import StoredMaps
from transformer.maps.store import MapStore
from transformer.training.writers.writer import NullWriter, Sample, Scalar, Writer

QUEUE_SIZE = 2  # steps of maps in the queue, at most; then the loop waits


class MapWriter(NullWriter):
    """Appends attention maps to a map store."""

    def __init__(self, store: MapStore):
        self._store = store

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        self._store.write(step, maps)


class BackgroundMapWriter:
    """A writer that writes maps through another writer in a background thread, and forwards everything else.

    An error of the other writer is raised at the next call of `write_maps`, `flush` or `close`.
    """

    def __init__(self, writer: Writer):
        self._writer = writer
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="maps")
        self._pending: list[concurrent.futures.Future[None]] = []

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        self._writer.write_scalars(step, split, values)

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        self._writer.write_samples(step, split, samples)

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        self._writer.write_heads(step, heads)

    def report_progress(self, step: int, total: int) -> None:
        self._writer.report_progress(step, total)

    def write_maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        """Start the copies to the host, queue the write, and return."""
        for leaf in jax.tree.leaves(dict(maps)):
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()
        self._settle(QUEUE_SIZE - 1)
        self._pending.append(self._thread.submit(self._writer.write_maps, step, maps))

    def flush(self) -> None:
        self._settle(0)
        self._writer.flush()

    def close(self) -> None:
        """Wait for the writes, and end the thread even if one failed."""
        try:
            self._settle(0)
        finally:
            self._thread.shutdown()
            self._writer.close()

    def _settle(self, waiting: int) -> None:
        while self._pending and (len(self._pending) > waiting or self._pending[0].done()):
            self._pending.pop(0).result()
