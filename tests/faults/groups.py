"""Groups of processes that train together, with a fault in one of them, and how they end."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launch.clusters.local import free_port

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests/faults/small_config.py"
NO_FAULT: Mapping[str, Any] = {"process": -1}


class Ended(NamedTuple):
    """A process that has ended: its exit code (None: it was still there), when, and what it said."""

    code: int | None
    at: float
    said: str

    @property
    def fault_at(self) -> float | None:
        """When the planted fault last happened."""
        times = re.findall(r"fault at ([\d.]+)", self.said)
        return float(times[-1]) if times else None


def together(
    workdir: Path, count: int, plan: Mapping[str, Any] = NO_FAULT, flags: Sequence[str] = (), seconds: float = 300
) -> list[Ended]:
    """Train with so many processes, of which one has the fault; wait so long until all have ended."""
    environment = environment_of(count)
    if count > 1:
        environment |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(count)}
    command = [sys.executable, "-m", "tests.faults.attacked", json.dumps(dict(plan)), *words_of(workdir, flags)]
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(count)]
        started = []
        for index, log in enumerate(logs):
            own = environment | ({"JAX_PROCESS_ID": str(index)} if count > 1 else {})
            started.append(subprocess.Popen(command, cwd=ROOT, env=own, stdout=log, stderr=subprocess.STDOUT))
            stack.callback(started[-1].wait)
            stack.callback(_end, started[-1])
        ends = _wait(started, plan, seconds)
        said = []
        for log in logs:
            log.seek(0)
            said.append(log.read())
    return [Ended(*end, words) for end, words in zip(ends, said, strict=True)]


def environment_of(count: int) -> dict[str, str]:
    """The variables of one of so many processes, which have four devices together."""
    flags = f"--xla_force_host_platform_device_count={4 // count} --xla_backend_optimization_level=0"
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def words_of(workdir: Path, flags: Sequence[str]) -> list[str]:
    """The words of the train command."""
    return [f"--config={CONFIG}", f"--workdir={workdir}", *flags]


def _wait(
    started: Sequence[subprocess.Popen[bytes]], plan: Mapping[str, Any], seconds: float
) -> list[tuple[int | None, float]]:
    """The code and time of each end; one that is stopped by the plan is not waited for."""
    ends: dict[int, tuple[int | None, float]] = {}
    stopped = {plan["process"]} if plan.get("act") == "SIGSTOP" else set()
    until = time.time() + seconds
    while time.time() < until and len(ends.keys() | stopped) < len(started):
        for index, process in enumerate(started):
            if index not in ends and process.poll() is not None:
                ends[index] = (process.returncode, time.time())
        time.sleep(0.02)
    return [ends.get(index, (None, time.time())) for index in range(len(started))]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
