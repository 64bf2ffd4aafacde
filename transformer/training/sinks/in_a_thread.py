"""Telling a library that may raise or hang what a run reports: in a thread, from a queue that has an end."""

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

WAITING = 1000  # reports in the queue, at most; then further ones are left out
_PREFIX = "tracker "


class InAThread:
    """A thread that opens something and gives it, in order, what it is told.

    What raises is counted and the next is tried; what hangs holds up its own thread alone.
    """

    def __init__(self, name: str, open_it: Callable[[], Any]):
        self._name, self._open = name, open_it
        self._queue: queue.Queue[tuple[Callable[[Any], None], bool]] = queue.Queue(WAITING)
        self._told = self._done = 0
        self._error = ""
        # Not waited for when the process ends.
        self._thread = threading.Thread(target=self._run, name=f"{_PREFIX}{name}", daemon=True)
        self._thread.start()

    def tell(self, report: Callable[[Any], None]) -> None:
        """Put it into the queue, if there is room, and come back at once."""
        self._put(report, last=False)

    def end(self, close: Callable[[Any], None]) -> None:
        """Let the thread end behind what it was told."""
        if not self._put(close, last=True):
            # Of a full queue one report makes room: the thread, if it ever gets on, must end.
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()
            self._queue.put_nowait((close, True))

    @staticmethod
    def joined(threads: Sequence["InAThread"], seconds: float) -> list[str]:
        """Wait for the ends of all, at most so long together; a line for each that did not do all that it was told."""
        until = time.monotonic() + seconds
        for each in threads:
            each._thread.join(max(until - time.monotonic(), 0))
        return [each._left_out(seconds) for each in threads if each._told != each._done]

    def _left_out(self, seconds: float) -> str:
        hangs = f"no answer within {seconds:.0f} s" if self._thread.is_alive() else ""
        why = "; ".join(filter(None, (hangs, self._error))) or "more reports than it took"
        return f"{self._name} did not take {self._told - self._done} of {self._told} reports ({why})"

    def _put(self, report: Callable[[Any], None], *, last: bool) -> bool:
        self._told += 1
        try:
            self._queue.put_nowait((report, last))
        except queue.Full:
            return False
        return True

    def _run(self) -> None:
        opened = self._tried(self._open)
        last = not opened
        while not last:
            report, last = self._queue.get()
            if self._tried(functools.partial(report, opened[0])):
                self._done += 1

    def _tried(self, act: Callable[[], Any]) -> list[Any]:
        """What it returns, in a list; an empty one where it raises, whatever it raises."""
        try:
            return [act()]
        except BaseException as error:
            self._error = self._error or " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return []


def any_hangs() -> bool:
    """Whether a thread of this kind is still at work: a process that ends as usual may then wait for its library."""
    return any(thread.name.startswith(_PREFIX) and thread.is_alive() for thread in threading.enumerate())
