"""The pulse of a run: its units of work one by one, each a place where it may end. This module does not import jax.

A unit is a step with its batch, a batch of an evaluation, the maps of the probe, a checkpoint. Every process of a run
begins the same units in the same order, so that "behind unit n" is one place for all of them.
"""

import contextlib
import os
import threading
import time
from typing import NamedTuple

from transformer.runs.endings import AGAIN, Stopped


class Held(NamedTuple):
    """Where a process waits to be told where to end: units `begun`, and whether one of them `made` what can be lost."""

    begun: int
    made: bool


class Pulse:
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

    def beat(self, what: str, *, makes: bool = False) -> None:
        """Begin the next unit, in words `what`; the one before is done. One that `makes` what can be lost is a step.

        Errors: Stopped where the run ends before it.
        """
        with self._changed:
            # Held for as long as the processes need to tell each other their numbers.
            self._changed.wait_for(lambda: self._last is not None or not self._held)
            if self._last is not None and self._begun >= self._last:
                raise Stopped(f"stopped before {what}")
            now = time.monotonic()
            if self._begun:
                self.slowest = max(self.slowest, now - self.since)
            self._begun += 1
            if makes and self._making is None:
                self._making = self._begun
            self.what, self.since, self._waits = what, now, False

    def waits(self) -> None:
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

    def hold(self) -> Held:
        """Begin no further unit before `end_behind` is called."""
        with self._changed:
            self._held = True
            return Held(self._begun, self.made)

    def end_behind(self, last: int) -> None:
        """Let the units up to number `last` be done, and no other."""
        with self._changed:
            self._last = last
            self._changed.notify_all()


def leave_at_once(code: int = AGAIN) -> None:
    """End this process from whatever thread, whatever the others are in the midst of."""
    os._exit(code)


def say(line: str) -> None:
    """Write a line to stderr, also where another thread is stopped in the midst of writing."""
    with contextlib.suppress(OSError):  # stderr may be a file on a disk that is full
        os.write(2, f"{line}\n".encode())
