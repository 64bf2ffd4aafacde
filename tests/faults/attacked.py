"""`launch.train` with one fault in one process, when a unit of its work begins.

    python -m tests.faults.attacked PLAN FLAG ...

PLAN is a mapping in JSON: the `process`, the first words of the `unit`, what happens (`act`: a signal, "raise",
"sleep", or "threads": no further one can be started), and `delay`, seconds between the unit's beginning and the signal.
What happened when is written to stderr.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import launch.train
from launch.cli import run
from launch.platform import exit_process
from transformer.runs.preemption import ProgressMonitor, write_stderr


def attack(plan: dict[str, Any]) -> None:
    """Let the fault happen once, where the plan says."""
    if int(os.environ.get("JAX_PROCESS_ID", "0")) != plan["process"]:
        return
    beat, done = ProgressMonitor.begin_unit, threading.Event()

    def watched(monitor: ProgressMonitor, what: str, **more: Any) -> None:
        beat(monitor, what, **more)
        if what.startswith(plan["unit"]) and not done.is_set():
            done.set()
            act(plan)

    ProgressMonitor.begin_unit = watched  # type: ignore[method-assign]


def act(plan: dict[str, Any]) -> None:
    """Do what the plan says."""
    match plan["act"]:
        case "raise":
            note(plan)
            raise RuntimeError("planted fault")
        case "sleep":
            note(plan)
            time.sleep(3600)
        case "threads":
            note(plan)
            threading.Thread.start = unable  # type: ignore[method-assign]
        case "twice":
            threading.Timer(plan["delay"], send, (plan, signal.SIGTERM)).start()
            threading.Timer(plan["delay"] + 0.7, send, (plan, signal.SIGINT)).start()
            time.sleep(3600)  # the first alone would wait for it
        case name:
            threading.Timer(plan["delay"], send, (plan, signal.Signals[name])).start()


def unable(thread: threading.Thread) -> None:
    """Fail as a process does that is out of address space."""
    raise RuntimeError("can't start new thread")


def send(plan: dict[str, Any], number: signal.Signals) -> None:
    """Send this process a signal."""
    note(plan)
    os.kill(os.getpid(), number)


def note(plan: dict[str, Any]) -> None:
    """Write when it happened."""
    write_stderr(f"fault at {time.time():.3f}: {plan['act']} in {plan['unit']}")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
    attack(json.loads(sys.argv[1]))
    exit_process(run(launch.train.COMMAND, launch.train.main, sys.argv[2:]))
