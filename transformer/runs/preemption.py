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

# Programs that end a process and its group, such as timeout(1), send the same signal twice.
_SAME_REQUEST = 0.5  # seconds
# SIGTERM, a connection that was closed, and what `sbatch --signal` and its wrappers warn with.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class PausePoint(NamedTuple):
    """Where a process pauses until the last unit of work is agreed upon.

    Attributes:
        num_begun: The number of units begun.
        has_finished_step: Whether a training step is done, so that there is something to save.
    """

    num_begun: int
    has_finished_step: bool


class ProgressMonitor:
    """Counts the units of work that a process has begun (steps, evaluation batches, saves), and can stop it after one.

    Attributes:
        current_unit: The current unit in words.
        unit_start_time: The time at which it began.
        slowest_unit_seconds: The seconds of the slowest finished unit.
        slowest_compiled_seconds: The same, of the units after the first steps, which compile.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_begun, self._is_paused = 0, False
        self._is_waiting = False
        self._first_step_unit: int | None = None  # the first training step
        self._last_unit: int | None = None
        self.current_unit = "starting"
        self.unit_start_time = time.monotonic()
        self.slowest_unit_seconds = 0.0
        self.slowest_compiled_seconds = 0.0

    def begin_unit(self, what: str, *, makes: bool = False) -> None:
        """Begin the next unit; the one before is done.

        Args:
            what: The unit in words.
            makes: Whether it is a training step, whose result would be lost.

        Raises:
            RunStopped: If the run stops before it.
        """
        with self._changed:
            # Paused while the processes exchange their numbers.
            self._changed.wait_for(lambda: self._last_unit is not None or not self._is_paused)
            if self._last_unit is not None and self._num_begun >= self._last_unit:
                raise RunStopped(f"stopped before {what}")
            now = time.monotonic()
            if self._num_begun:
                self.slowest_unit_seconds = max(self.slowest_unit_seconds, now - self.unit_start_time)
            if self.is_past_compilation:
                self.slowest_compiled_seconds = max(self.slowest_compiled_seconds, now - self.unit_start_time)
            self._num_begun += 1
            if makes and self._first_step_unit is None:
                self._first_step_unit = self._num_begun
            self.current_unit, self.unit_start_time, self._is_waiting = what, now, False

    def mark_waiting(self) -> None:
        """Mark that the rest of the unit only waits for devices, and so for other processes."""
        self._is_waiting = True

    @property
    def progress(self) -> tuple[int, bool]:
        """The progress of the process: the units begun, and whether the last only waits. Tuples compare accordingly."""
        return self._num_begun, self._is_waiting

    @property
    def num_begun(self) -> int:
        """The number of units begun."""
        return self._num_begun

    @property
    def has_finished_step(self) -> bool:
        """Whether a training step is done."""
        return self._first_step_unit is not None and self._first_step_unit < self._num_begun

    @property
    def is_past_compilation(self) -> bool:
        """Whether the first step, which compiles, and the next, which reads its metrics, are over."""
        return self._first_step_unit is not None and self._first_step_unit + 1 < self._num_begun

    def pause(self) -> PausePoint:
        """Begin no further unit until `stop_after` is called."""
        with self._changed:
            self._is_paused = True
            return PausePoint(self._num_begun, self.has_finished_step)

    def stop_after(self, last: int) -> None:
        """Let the units up to number `last` finish, and begin no other."""
        with self._changed:
            self._last_unit = last
            self._changed.notify_all()


@contextlib.contextmanager
def handle_stop_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call a function at the first signal to stop, and end the process at a second SIGINT.

    The signals are SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2. They are received by the interpreter's C handler and
    read in a thread, so that they are noticed even while the main thread compiles or waits for another process, and no
    exception interrupts anything. A signal stays ignored if it was, as SIGINT for programs that a shell starts in the
    background and SIGHUP under nohup.

    Another signal after the first changes nothing, also after the context: schedulers send SIGTERM again before they
    kill (Slurm when it requeues a job), and the run is stopping already. Only a second SIGINT comes from a user who
    does not want to wait for the step: the process ends with 128 + its number, once a pending save is done.

    Args:
        stop: The function, which is called with the name of the first signal in a thread of its own.
    """
    stopping = threading.Event()
    numbers = [
        signal_number
        for signal_number in (*_STOP_SIGNALS, signal.SIGINT)
        if signal.getsignal(signal_number) is not signal.SIG_IGN
    ]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    earlier = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    thread = threading.Thread(
        target=_listen_for_signals, args=(reading, set(numbers), stop, stopping), name="signals", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            # The exit code of a run that has stopped says so, whatever it still hears.
            ignored = stopping.is_set() and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if ignored else handler)
        signal.set_wakeup_fd(earlier)
        os.close(writing)
        thread.join(timeout=1)  # a process forked in between would keep the pipe open
        os.close(reading)


def _listen_for_signals(pipe: int, numbers: set[int], stop: Callable[[str], None], stopping: threading.Event) -> None:
    first: float | None = None
    while received := os.read(pipe, 1):
        number = received[0]
        if number not in numbers:
            continue
        name = signal.Signals(number).name
        if first is None:
            first = time.monotonic()
            stopping.set()
            press = "press Ctrl-C again" if number == signal.SIGINT else "press Ctrl-C"
            write_stderr(f"{name}: stopping after the current step and saving a checkpoint; {press} to stop at once")
            threading.Thread(target=stop, args=(name,), name="stopping", daemon=True).start()
        elif time.monotonic() - first <= _SAME_REQUEST:
            continue
        elif number != signal.SIGINT:
            write_stderr(f"{name} again: already stopping and saving")
        else:
            if save_in_progress():
                write_stderr(f"{name} again: stopping as soon as the checkpoint is saved")
            call_when_no_save_runs(functools.partial(_exit_by_signal, number))


def _exit_by_signal(number: int) -> None:
    write_stderr(f"{signal.Signals(number).name} again: stopped; the run resumes from its last checkpoint")
    exit_at_once(128 + number)


def exit_at_once(code: int = EXIT_CODE_RESTARTABLE) -> None:
    """End this process from any thread, whatever other threads are doing."""
    os._exit(code)


def write_stderr(line: str) -> None:
    """Write a line to stderr, even if another thread is stopped in the middle of writing."""
    with contextlib.suppress(OSError):  # stderr may be a file on a disk that is full
        os.write(2, f"{line}\n".encode())


_saves_changed = threading.Condition()
_saves_under_way = 0
_save_start_time = 0.0
_save_observers: list[Callable[[float], None]] = []
_waits_for_save = False


def mark_save_start() -> None:
    """Mark the start of a checkpoint save; call `mark_save_end` once it is committed or has failed."""
    global _saves_under_way, _save_start_time
    with _saves_changed:
        _saves_under_way += 1
        _save_start_time = time.monotonic()


def mark_save_end() -> None:
    """Mark the end of a checkpoint save."""
    global _saves_under_way
    with _saves_changed:
        _saves_under_way -= 1
        seconds = time.monotonic() - _save_start_time
        _saves_changed.notify_all()
    for observe in tuple(_save_observers):
        observe(seconds)


def save_in_progress() -> bool:
    """Whether a checkpoint is being saved."""
    return _saves_under_way > 0


def call_when_no_save_runs(act: Callable[[], None]) -> None:
    """Call a function once no save is running, and let none begin meanwhile."""
    with _saves_changed:
        _saves_changed.wait_for(lambda: not _saves_under_way)
        act()


@contextlib.contextmanager
def observe_saves(observe: Callable[[float], None]) -> Iterator[None]:
    """Call a function with the seconds of each checkpoint save that ends while the context lasts."""
    _save_observers.append(observe)
    try:
        yield
    finally:
        _save_observers.remove(observe)


@contextlib.contextmanager
def wait_for_save() -> Iterator[None]:
    """Mark that the training thread does nothing but wait for a save and its verification."""
    global _waits_for_save
    before, _waits_for_save = _waits_for_save, True
    try:
        yield
    finally:
        _waits_for_save = before


def is_waiting_for_save() -> bool:
    """Whether the training thread waits for a save."""
    return _waits_for_save
