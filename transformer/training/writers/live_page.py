"""Serve the page of a run while it trains, in a process that ends with the run."""

import multiprocessing
import os
import threading
from pathlib import Path

from transformer.training.writers.writer import ProbeMaps, Report, Writer


class LivePageWriter(Writer):
    """A writer that starts serving the run's page at its first maps; a model without attention has none.

    The page is made by another process of lower priority, so that steps do not wait for it.
    """

    def __init__(self, workdir: Path):
        self._workdir = workdir
        self._server: multiprocessing.process.BaseProcess | None = None

    def write(self, report: Report) -> None:
        """Start the server at the first report of maps."""
        if isinstance(report, ProbeMaps) and report.maps and self._server is None:
            # Spawned: a fork would copy the locks of jax's threads.
            spawning = multiprocessing.get_context("spawn")
            self._server = spawning.Process(target=_serve, args=(self._workdir,), daemon=True)
            self._server.start()

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.join()


def _serve(workdir: Path) -> None:
    """Serve the page of a run until the run's process ends."""
    from transformer.maps.report import page, report_server

    threading.Thread(target=_end_with_the_run, daemon=True).start()
    os.nice(10)
    report_server.serve(
        workdir,
        lambda version: page.render(workdir, version=version),
        port=0,
        announce=lambda url: print(f"Open {url} in a browser of this machine: the page follows the run.", flush=True),
    )


def _end_with_the_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    run.join()
    os._exit(0)
