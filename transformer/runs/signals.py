"""SIGTERM and SIGINT: the first lets a run stop and save; a second SIGINT ends it. This module does not import jax."""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from transformer.runs import saves
from transformer.runs.pulse import leave_at_once, say

# Those who end a process with its group, such as timeout(1), send the same signal twice.
_ONE_WISH = 0.5  # seconds


@contextlib.contextmanager
def heeded(stop: Callable[[str], None]) -> Iterator[None]:
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
    thread = threading.Thread(target=_listen, args=(reading, set(numbers), stop), name="signals", daemon=True)
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


def _listen(pipe: int, numbers: set[int], stop: Callable[[str], None]) -> None:
    first: float | None = None
    while heard := os.read(pipe, 1):
        number = heard[0]
        if number not in numbers:
            continue
        name = signal.Signals(number).name
        if first is None:
            first = time.monotonic()
            say(f"{name}: the run stops behind what it is doing, and saves; a second Ctrl-C ends it at once")
            threading.Thread(target=stop, args=(name,), name="stopping", daemon=True).start()
        elif time.monotonic() - first <= _ONE_WISH:
            continue
        elif number == signal.SIGTERM:
            say(f"{name} again: the run is stopping already, and saves")
        else:
            if saves.under_way():
                say(f"{name} again: ended as soon as the checkpoint under way is saved")
            saves.once_done(functools.partial(_leave, number))


def _leave(number: int) -> None:
    say(f"{signal.Signals(number).name} again: ended; the run goes on from its last checkpoint")
    leave_at_once(128 + number)
