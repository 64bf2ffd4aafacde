"""Write attention maps of the probe batch to the map store, in a background thread."""

import concurrent.futures

import jax

from transformer.maps.store import MapStore
from transformer.training.writers.writer import ProbeMaps, Report, Writer

QUEUE_SIZE = 2  # steps of maps in the queue, at most; then the loop waits


class MapWriter(Writer):
    """Appends attention maps to a map store."""

    def __init__(self, store: MapStore):
        self._store = store

    def write(self, report: Report) -> None:
        if isinstance(report, ProbeMaps):
            self._store.write(report.step, report.maps)


class BackgroundMapWriter(Writer):
    """A writer that writes maps through another writer in a background thread, and forwards everything else.

    An error of the other writer is raised when the next maps are written, or at the next `flush` or `close`.
    """

    def __init__(self, writer: Writer):
        self._writer = writer
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="maps")
        self._pending: list[concurrent.futures.Future[None]] = []

    def write(self, report: Report) -> None:
        """Write a report; of maps, start the copies to the host, queue the write, and return."""
        if not isinstance(report, ProbeMaps):
            self._writer.write(report)
            return
        for leaf in jax.tree.leaves(dict(report.maps)):
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()
        self._wait_for_writes(QUEUE_SIZE - 1)
        self._pending.append(self._thread.submit(self._writer.write, report))

    def flush(self) -> None:
        self._wait_for_writes(0)
        self._writer.flush()

    def close(self) -> None:
        """Wait for the writes, and end the thread even if one failed."""
        try:
            self._wait_for_writes(0)
        finally:
            self._thread.shutdown()
            self._writer.close()

    def _wait_for_writes(self, max_pending: int) -> None:
        while self._pending and (len(self._pending) > max_pending or self._pending[0].done()):
            self._pending.pop(0).result()
