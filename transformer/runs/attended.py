"""A training process attended to from its start to its end: by signals, by the other processes, by the watchdog."""

import contextlib
import time
from collections.abc import Iterator

import jax

from transformer.runs.news import News
from transformer.runs.processes import primary, start
from transformer.runs.pulse import Pulse, leave_at_once
from transformer.runs.signals import heeded
from transformer.runs.watchdog import watched


@contextlib.contextmanager
def attended(
    coordinator: str | None, processes: int | None, process: int | None, *, heartbeat: int, watchdog: float | None
) -> Iterator[Pulse]:
    """Join the other processes of the run, and attend to the pulse that the context gives while it lasts.

    `watchdog` are the seconds that a unit of work may take; None: long against those before it; 0: for ever.

    Errors: as `transformer.runs.processes.start`.
    """
    pulse = Pulse()
    news = News(pulse)

    def end() -> None:
        if primary():
            time.sleep(1)  # the others end with it: first let those that hang too say where
        leave_at_once(1)

    with heeded(news.stop):
        if start(coordinator, processes, process, heartbeat=heartbeat):
            news.join()
        name = f"process {jax.process_index()} of {jax.process_count()}"
        with news.telling(heartbeat), watched(pulse, watchdog, name, news.compare, end):
            yield pulse
