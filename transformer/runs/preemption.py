"""Preemption: stop signals, and the monitor that stops a run between two steps."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE, RunStopped

# Those who end a process with its group, such as timeout(1), send the same signal twice.
_SAME_REQUEST = 0.5  # seconds


class PausePoint(NamedTuple):
    """Where a process waits to be told where to end: units `begun`, and whether one of them `made` what can be lost."""

    begun: int
    made: bool


class ProgressMonitor:
    """Counts the units that a process has begun, and ends them behind one that was agreed upon."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun, self._held = 0, False
        self._waits = False
        self._making: int | None = None  # the first unit that makes what can be lost
        self._last: int | None = None
        self.what = "starting"
        self.since = time.monotonic()
        self.slowest = 0.0
        """Seconds of the slowest unit that is done."""

    def begin(self, what: str, *, makes: bool = False) -> None:
        """Begin the next unit, in words `what`; the one before is done. One that `makes` what can be lost is a step.

        Raises:
            RunStopped: If the run ends before it.
        """
        with self._changed:
            # Held for as long as the processes need to tell each other their numbers.
            self._changed.wait_for(lambda: self._last is not None or not self._held)
            if self._last is not None and self._begun >= self._last:
                raise RunStopped(f"stopped before {what}")
            now = time.monotonic()
            if self._begun:
                self.slowest = max(self.slowest, now - self.since)
            self._begun += 1
            if makes and self._making is None:
                self._making = self._begun
            self.what, self.since, self._waits = what, now, False

    def mark_waiting(self) -> None:
        """Say that what is left of the unit is to wait for devices, and so for the other processes."""
        self._waits = True

    @property
    def place(self) -> tuple[int, bool]:
        """How far the process has come: the units begun, and whether the last of them waits. Tuples compare so."""
        return self._begun, self._waits

    @property
    def begun(self) -> int:
        """The number of units begun."""
        return self._begun

    @property
    def made(self) -> bool:
        """Whether a unit is done that makes what can be lost."""
        return self._making is not None and self._making < self._begun

    @property
    def going(self) -> bool:
        """Whether the first step is over, whose program is compiled by then, and the next, which reads its numbers."""
        return self._making is not None and self._making + 1 < self._begun

    def hold(self) -> PausePoint:
        """Begin no further unit before `end_behind` is called."""
        with self._changed:
            self._held = True
            return PausePoint(self._begun, self.made)

    def end_behind(self, last: int) -> None:
        """Let the units up to number `last` be done, and no other."""
        with self._changed:
            self._last = last
            self._changed.notify_all()


@contextlib.contextmanager
def handle_stop_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` with the name of the first signal, in a thread of its own; end the process at a second SIGINT.

    The thread is told by the interpreter's own handler, in C: it also hears a signal while the main thread compiles or
    waits for another process, and no exception is raised in the midst of anything. SIGINT stays ignored where it was,
    as in what a shell starts in the background.

    A SIGTERM behind the first signal changes nothing: schedulers send it again before they kill (Slurm when it queues a
    job again), and the run is stopping already. A second SIGINT is of a person who does not want to wait for the step:
    the process ends with 128 + its number, once a save that is under way is done.
    """
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    earlier = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    thread = threading.Thread(
        target=_listen_for_signals, args=(reading, set(numbers), stop), name="signals", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier)
        os.close(writing)
        thread.join(timeout=1)  # a process forked in between would keep the pipe open
        os.close(reading)


def _listen_for_signals(pipe: int, numbers: set[int], stop: Callable[[str], None]) -> None:
    first: float | None = None
    while heard := os.read(pipe, 1):
        number = heard[0]
        if number not in numbers:
            continue
        name = signal.Signals(number).name
        if first is None:
            first = time.monotonic()
            write_stderr(
                f"{name}: stopping after the current step and saving a checkpoint; press Ctrl-C again to stop at once"
            )
            threading.Thread(target=stop, args=(name,), name="stopping", daemon=True).start()
        elif time.monotonic() - first <= _SAME_REQUEST:
            continue
        elif number == signal.SIGTERM:
            write_stderr(f"{name} again: already stopping and saving")
        else:
            if save_in_progress():
                write_stderr(f"{name} again: stopping as soon as the checkpoint is saved")
            call_when_no_save_runs(functools.partial(_exit_by_signal, number))


def _exit_by_signal(number: int) -> None:
    write_stderr(f"{signal.Signals(number).name} again: stopped; the run resumes from its last checkpoint")
    exit_at_once(128 + number)


def exit_at_once(code: int = EXIT_CODE_RESTARTABLE) -> None:
    """End this process from whatever thread, whatever the others are in the midst of."""
    os._exit(code)


def write_stderr(line: str) -> None:
    """Write a line to stderr, also where another thread is stopped in the midst of writing."""
    with contextlib.suppress(OSError):  # stderr may be a file on a disk that is full
        os.write(2, f"{line}\n".encode())


_saves_changed = threading.Condition()
_saves_under_way = 0


def begin_save() -> None:
    """Mark the begin of a checkpoint save; call `end_save` once it is committed or has failed."""
    global _saves_under_way
    with _saves_changed:
        _saves_under_way += 1


def end_save() -> None:
    """Mark the end of a checkpoint save."""
    global _saves_under_way
    with _saves_changed:
        _saves_under_way -= 1
        _saves_changed.notify_all()


def save_in_progress() -> bool:
    """Whether a checkpoint is being saved."""
    return _saves_under_way > 0


def call_when_no_save_runs(act: Callable[[], None]) -> None:
    """Call `act` once no save is under way, and let none begin meanwhile."""
    with _saves_changed:
        _saves_changed.wait_for(lambda: not _saves_under_way)
        act()
