"""The watchdog of a run: a process that makes no progress reports where it hangs, and ends."""

import contextlib
import faulthandler
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from transformer.runs.preemption import ProgressMonitor, exit_at_once, is_waiting_for_save, write_stderr

# The limit in seconds: at least this, and this many times the slowest unit. Up to the second step, and while a save is
# waited for, at least the last.
MIN_SECONDS, SLOWEST_UNIT_FACTOR, FIRST_STEP_SECONDS = 300.0, 10.0, 3600.0

_logger = logging.getLogger(__name__)


def time_limit(monitor: ProgressMonitor, seconds: float | None) -> float:
    """Return how many seconds a unit of work may take.

    Args:
        monitor: The monitor of the process.
        seconds: The limit; None is a multiple of the slowest unit so far. Until the second step is done it is at least
            an hour, since programs are compiled; so it is while a save is waited for, which may be slower than any step
            and is the work that a stopped run came to do.
    """
    if not monitor.is_past_compilation or is_waiting_for_save():
        return max(FIRST_STEP_SECONDS, seconds or 0.0)
    return max(MIN_SECONDS, SLOWEST_UNIT_FACTOR * monitor.slowest_unit_seconds) if seconds is None else seconds


@contextlib.contextmanager
def watchdog_thread(
    monitor: ProgressMonitor,
    seconds: float | None,
    process: str,
    compare: Callable[[str], str] = lambda where: "",
    end: Callable[[], None] = lambda: exit_at_once(1),
) -> Iterator[None]:
    """End the process if a unit of its work takes longer than `time_limit`.

    First it writes the stack of each thread to stderr and the run's log.

    Args:
        monitor: The monitor of the process.
        seconds: The limit in seconds; None is a multiple of the slowest unit so far, 0 is no limit.
        process: The name of the process.
        compare: A function from the hanging unit to a description of where other processes are.
        end: A function that ends the process.
    """
    if seconds == 0:
        yield
        return
    stopped = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(monitor, seconds, process, compare, end, stopped), name="watchdog", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _watch(
    monitor: ProgressMonitor,
    seconds: float | None,
    process: str,
    compare: Callable[[str], str],
    end: Callable[[], None],
    stopped: threading.Event,
) -> None:
    period = 1.0 if seconds is None else min(1.0, seconds / 10)
    unit, waited, last_check = monitor.num_begun, 0.0, time.monotonic()
    while not stopped.wait(period):
        now = time.monotonic()
        # Time during which the process itself was suspended, as by a debugger, does not count.
        waited += min(now - last_check, 2 * period)
        last_check = now
        if monitor.num_begun != unit:
            unit, waited = monitor.num_begun, 0.0
        elif waited > time_limit(monitor, seconds):
            stalled = f"{process} on {socket.gethostname()} has made no progress for {waited:.0f} seconds"
            where = f"{stalled} in: {monitor.current_unit}"
            _report_threads(f"{where}{compare(monitor.current_unit)}; it ends. Its threads stand here:")
            end()
            return


def _report_threads(line: str) -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = f"{line}\n{file.read()}"
    write_stderr(text)
    _logger.error("%s", text)
