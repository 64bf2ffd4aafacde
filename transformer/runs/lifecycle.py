"""The lifecycle of a training process: signals, the other processes of the run, the watchdog."""

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from transformer.runs.distributed import is_primary, join_processes, print_and_log
from transformer.runs.preemption import (
    PausePoint,
    ProgressMonitor,
    exit_at_once,
    handle_stop_signals,
    observe_saves,
    write_stderr,
)
from transformer.runs.watchdog import watchdog_thread

_NEWS_KEY, _PAUSE_POINT_KEY, _ALL_PAUSE_POINTS_KEY, _RECEIVED_KEY = (
    "headwise/news",
    "headwise/begun",
    "headwise/all",
    "headwise/heard",
)
_HUNG_KEY = "headwise/hung"
_HOUR_MILLISECONDS = 3_600_000  # milliseconds
_RECEIPT_MILLISECONDS = 5_000  # milliseconds
# Errors that collective operations raise when another process is gone.
_LOST_PROCESS = re.compile("gloo|nccl|connection|peer|remote process|heartbeat|coordination|unavailable", re.IGNORECASE)


@contextlib.contextmanager
def run_lifecycle(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    *,
    heartbeat: int,
    watchdog: float | None,
    grace: float | None = None,
) -> Iterator[ProgressMonitor]:
    """Join the other processes of a run, and handle signals, errors and hangs while the context lasts.

    Args:
        coordinator: The address HOST:PORT of the first process; None reads the environment or asks the launcher.
        processes: The number of processes.
        process: The index of this process.
        heartbeat: The seconds of silence after which a process counts as lost.
        watchdog: The seconds that a unit of work may take; None is a multiple of the slowest so far, 0 is no limit.
        grace: The seconds from a signal to stop until the process is killed; None is not known.

    Yields:
        The monitor of this process, for the training loop.

    Raises:
        UserError: If the settings of the processes are incomplete or invalid.
    """
    monitor = ProgressMonitor()
    messages = ProcessMessages(monitor)

    def end() -> None:
        if is_primary():
            time.sleep(1)  # the others end with it: first let them report where they hang
        exit_at_once(1)

    with handle_stop_signals(messages.stop):
        if join_processes(coordinator, processes, process, heartbeat=heartbeat):
            messages.join()
        name = f"process {jax.process_index()} of {jax.process_count()}"
        with (
            messages.report_errors(heartbeat),
            watchdog_thread(monitor, watchdog, name, messages.describe_hung, end),
            compare_saves_with_grace(monitor, grace),
        ):
            yield monitor


@contextlib.contextmanager
def compare_saves_with_grace(monitor: ProgressMonitor, grace: float | None) -> Iterator[None]:
    """Say once, on the first process, if the process would be killed before it has finished a step and saved it.

    Args:
        monitor: The monitor of this process.
        grace: The seconds from a signal to stop until the process is killed; None is not known.
    """
    is_reported = False

    def compare(save: float) -> None:
        nonlocal is_reported
        unit = monitor.slowest_compiled_seconds
        if is_reported or grace is None or save + unit <= grace or not is_primary():
            return
        is_reported = True
        print_and_log(
            f"stopping takes up to {math.ceil(save + unit)} s (a save {save:.0f} s, a step or batch {unit:.0f} s), and "
            f"the launcher kills the run after --grace_seconds={grace:g}: give the launcher a longer --grace_seconds; "
            "a smaller config.checkpoint_every loses fewer steps by a kill"
        )

    with observe_saves(compare):
        yield


class ProcessMessages:
    """The messages between the processes of a run, and a thread that receives them; a single process has none."""

    def __init__(self, monitor: ProgressMonitor):
        self._monitor = monitor
        self._client: Any = None

    def join(self) -> None:
        """Start to receive messages; jax must have joined the other processes."""
        # The only access to the key-value store of the coordination service.
        from jax._src import distributed

        self._client = distributed.global_state.client
        threading.Thread(target=self._listen, name="news", daemon=True).start()

    def stop(self, why: str) -> None:
        """Stop every process after the unit that the furthest has begun.

        Args:
            why: The reason, such as the name of a signal.
        """
        if self._client is None:
            self._stop_after_furthest([self._monitor.pause()])
            return
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was faster
            self._client.key_value_set(_NEWS_KEY, json.dumps({"process": jax.process_index(), "stop": why}))

    @contextlib.contextmanager
    def report_errors(self, heartbeat: float) -> Iterator[None]:
        """Report an error that ends the context to the other processes, or wait for the report of its cause.

        If another process was lost without a report, jax ends this one within `heartbeat` seconds and names it.
        """
        try:
            yield
        except Exception as error:
            if self._client is not None:
                self._send_error(error, heartbeat)
            raise

    def describe_hung(self, what: str) -> str:
        """Describe, for the watchdog, which of the processes that hang are the furthest behind.

        Args:
            what: The unit in which this process hangs.
        """
        if self._client is None:
            return ""
        report = json.dumps({"place": self._monitor.progress, "what": what})
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"{_HUNG_KEY}/{jax.process_index()}", report, allow_overwrite=True)
            time.sleep(_RECEIPT_MILLISECONDS / 2000)
            return _describe_slowest_processes(dict(self._client.key_value_dir_get(_HUNG_KEY)))
        return ""

    def _send_error(self, error: Exception, heartbeat: float) -> None:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if isinstance(error, jax.errors.JaxRuntimeError) and _LOST_PROCESS.search(str(error)):
                write_stderr(f"process {jax.process_index()} has lost another: {message}")
                time.sleep(heartbeat + 2)
                return
            self._client.key_value_set(_NEWS_KEY, json.dumps({"process": jax.process_index(), "failed": message}))

    def _listen(self) -> None:
        while True:
            try:
                news = json.loads(self._client.blocking_key_value_get(_NEWS_KEY, _HOUR_MILLISECONDS))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE" in str(error):
                    continue
                return  # the service is gone, and with it the run
            break
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if "stop" in news:
                self._agree_on_last_unit(news)
            elif news["process"] != jax.process_index():
                write_stderr(
                    f"process {news['process']} failed ({news['failed']}), and process {jax.process_index()} ends "
                    "with it"
                )
                if jax.process_index() == 0:
                    time.sleep(1)  # the others receive the message through this process
                exit_at_once(1)

    def _agree_on_last_unit(self, news: dict[str, Any]) -> None:
        """Stop after the unit that the furthest process had begun when it received the request."""
        index, count = jax.process_index(), jax.process_count()
        if index != news["process"]:
            write_stderr(f"process {news['process']} received {news['stop']}: process {index} stops too")
        # Sent from a thread, so that processes do not wait for each other.
        self._client.key_value_set(f"{_PAUSE_POINT_KEY}/{index}", json.dumps(self._monitor.pause()))
        if index == 0:
            messages = [
                self._client.blocking_key_value_get(f"{_PAUSE_POINT_KEY}/{process}", _HOUR_MILLISECONDS)
                for process in range(count)
            ]
            self._client.key_value_set(_ALL_PAUSE_POINTS_KEY, f"[{', '.join(messages)}]")
        pause_points = [
            PausePoint(*point)
            for point in json.loads(self._client.blocking_key_value_get(_ALL_PAUSE_POINTS_KEY, _HOUR_MILLISECONDS))
        ]
        self._client.key_value_set(f"{_RECEIVED_KEY}/{index}", "")
        if index == 0:
            for process in range(count):  # they receive the message through this process, which may end now
                self._client.blocking_key_value_get(f"{_RECEIVED_KEY}/{process}", _RECEIPT_MILLISECONDS)
        self._stop_after_furthest(pause_points)

    def _stop_after_furthest(self, pause_points: list[PausePoint]) -> None:
        if not any(point.has_finished_step for point in pause_points):
            write_stderr("stopped before the first step; start the same command again")
            exit_at_once()
        self._monitor.stop_after(max(point.num_begun for point in pause_points))


def _describe_slowest_processes(reports: dict[str, str]) -> str:
    """Describe which of the hanging processes are the furthest behind, from what each has reported."""
    report_by_process = {key.rpartition("/")[2]: json.loads(text) for key, text in reports.items()}
    lowest = min([report["place"] for report in report_by_process.values()], default=None)
    slowest = [
        f"process {name} ({report['what']})" for name, report in report_by_process.items() if report["place"] == lowest
    ]
    if len(slowest) == len(report_by_process):
        return f"; of the {len(report_by_process)} processes that hang here none is behind the others"
    return f"; furthest behind: {', '.join(slowest)}"
