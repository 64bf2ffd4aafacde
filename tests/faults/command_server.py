"""Runs commands of this checkout, each as a process of its own that does not import all again.

    python -m tests.faults.command_server < JOBS

A job is a line of JSON (`tests.faults.commands.Job`); the answer to it is a line with its exit code, null where it was
still there after `limit` seconds. A command is a fork of this process, which has imported what commands need and used
nothing of it: it begins and ends as any other process, with its interpreter's own end.
"""

import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

from launch.compilation_cache import enable_cache_in
from launch.platform import choose_platform, quiet_libraries

# What commands import when they need it.
MODULES = (
    "grain",
    "tokenizers",
    "tensorboardX.proto.event_pb2",
    "rich.progress",
    "transformer.training.driver",
    "transformer.maps.report.page",
    "transformer.runs.lifecycle",
)


def main() -> None:
    """Answer jobs until there are no more; a fork returns from here to run its command."""
    choose_platform()
    quiet_libraries()
    enable_cache_in(None)  # type: ignore[arg-type]  # the variable names the folder
    for name in MODULES:
        importlib.import_module(name)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        process = os.fork()
        if process == 0:
            return run(job)
        print(json.dumps(waited(process, job["limit"])), flush=True)
    return None


def run(job: dict[str, Any]) -> None:
    """Become the command of a job."""
    for descriptor, (path, flags) in enumerate(
        (
            (os.devnull, os.O_RDONLY),
            (job["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (job["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        )
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    if job["disk"]:
        os.environ["FAILING_DISK"] = job["disk"]  # for the processes that the command starts
        ctypes.CDLL(None).failing_disk_arm(job["disk"].encode())
    sys.argv = [job["module"], *job["words"]]
    runpy.run_module(job["module"], run_name="__main__", alter_sys=True)


def waited(process: int, limit: float) -> int | None:
    """The exit code of a process, a negative one for a signal; None where it took too long and was killed."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGABRT if os.environ.get("PYTHONFAULTHANDLER") else signal.SIGKILL)
    os.waitpid(process, 0)
    return None


if __name__ == "__main__":
    main()
