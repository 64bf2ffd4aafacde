"""`launch.train`, which every ten steps writes down its step, resident memory, descriptors and threads.

python -m tests.faults.measured FILE FLAG ...
"""

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import launch.train
from launch.cli import run
from launch.platform import exit_process
from transformer.runs.preemption import ProgressMonitor

seen: list[tuple[int, int, int, int]] = []


def measure() -> None:
    """Look before every tenth step."""
    beat = ProgressMonitor.begin_unit

    def watched(monitor: ProgressMonitor, what: str, **more: Any) -> None:
        beat(monitor, what, **more)
        step = re.fullmatch(r"step (\d+)", what)
        if step and int(step[1]) % 10 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            bytes_ = pages * os.sysconf("SC_PAGE_SIZE")
            seen.append((int(step[1]), bytes_, len(os.listdir("/proc/self/fd")), threading.active_count()))

    ProgressMonitor.begin_unit = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    measure()
    code = run(launch.train.COMMAND, launch.train.main, sys.argv[2:])
    Path(sys.argv[1]).write_text(json.dumps(seen))
    exit_process(code)
