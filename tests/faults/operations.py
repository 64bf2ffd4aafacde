"""Each operation on files of one append, one save and one deletion fails: a kill, a torn write, EIO, ENOSPC.

The operations are those that Python makes, through `os` and `open`. TensorStore writes a checkpoint's arrays in C++,
where nothing can be put in between: for these there are kills at random instants (tests.faults.kills), and folders of
which files are missing, halved or emptied (tests.faults.damage).
"""

import builtins
import contextlib
import errno
import io
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.outcome import Row
from tests.faults.subject import forked
from transformer.runs.checkpoint import Checkpoints
from transformer.runs.jsonl_reading import read_records
from transformer.training.writers.jsonl import MetricsWriter
from transformer.training.writers.writer import Metrics

KINDS = ("kill", "torn", "EIO", "ENOSPC")
CALLS = ("write", "fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "ftruncate")
OPENED = ("open", "open_code")


def state(step: int) -> dict[str, Any]:
    """A state that says which step it is of."""
    return {"a": np.full((8, 8), float(step)), "step": step}


class Injection:
    """Counts the operations in a folder's files, and lets the one of a number fail."""

    def __init__(self, number: int | None, kind: str):
        self.count, self.delivered = 0, False
        self._number, self._kind, self._lock = number, kind, threading.Lock()

    def __call__(self, name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with self._lock:
            self.count += 1
            now = self.count == self._number
        if not now:
            return call(*arguments, **named)
        self.delivered = True
        if self._kind == "torn" and name == "write":
            call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if self._kind in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._kind == "ENOSPC" and name == "write":
            call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        raise OSError(getattr(errno, self._kind), os.strerror(getattr(errno, self._kind)))


@contextlib.contextmanager
def injected(injection: Injection) -> Iterator[None]:
    """The operations of Python on files go through the injection."""
    before = {name: getattr(os, name) for name in CALLS}
    opening = io.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return opening(file, mode, *arguments, **named)
        return injection("open", opening, file, mode, *arguments, **named)

    def through(name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: injection(name, before[name], *arguments, **named)

    for name in CALLS:
        setattr(os, name, through(name))
    io.open = builtins.open = opened  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, call in before.items():
            setattr(os, name, call)
        io.open = builtins.open = opening


def begin(folder: Path) -> None:
    """A run with two checkpoints, and records up to the second."""
    checkpoints, metrics = Checkpoints(folder / "checkpoints", max_to_keep=2), MetricsWriter(folder / "metrics.jsonl")
    for step in (1, 2):
        metrics.write(Metrics(step, "train", {"loss": 1 / step}))
        metrics.flush()
        checkpoints.save(step, state(step), {"records": {"metrics.jsonl": metrics.extent()}})
    checkpoints.close()
    metrics.close()


def go_on(folder: Path, number: int | None, kind: str) -> dict[str, Any]:
    """Append a line, save a step, and by that remove the first; return what the injection has counted."""
    checkpoints, metrics = Checkpoints(folder / "checkpoints", max_to_keep=2), MetricsWriter(folder / "metrics.jsonl")
    injection, failed = Injection(number, kind), ""
    with injected(injection):
        try:
            metrics.write(Metrics(3, "train", {"loss": 1 / 3}))
            metrics.flush()
            checkpoints.save(3, state(3), {"records": {"metrics.jsonl": metrics.extent()}})
            checkpoints.close()
            metrics.close()
        except Exception as error:
            failed = repr(error)
    return {"count": injection.count, "delivered": injection.delivered, "failed": failed}


def restart(folder: Path) -> str:
    """Start again: what is wrong, or nothing."""
    checkpoints, metrics = Checkpoints(folder / "checkpoints", max_to_keep=2), MetricsWriter(folder / "metrics.jsonl")
    sound = checkpoints.restore_newest_valid(lambda stored: (stored.restore(state(0)), stored.metadata))
    if sound is None:
        return "no checkpoint is left"
    checkpoints.announce_damage(sound, set_aside=True)
    found, metadata = sound.value
    if sound.step < 2 or found["step"] != sound.step or not (found["a"] == sound.step).all():
        return f"step {sound.step} holds {found['step']}"
    metrics.truncate(sound.step)
    lines = [record["step"] for record in read_records(folder / "metrics.jsonl")]
    if lines != list(range(1, sound.step + 1)) or metrics.extent() != tuple(metadata["records"]["metrics.jsonl"]):
        return f"the records of step {sound.step} are of {lines}"
    checkpoints.save(sound.step + 1, state(sound.step + 1), {})
    checkpoints.close()
    names = {entry.name for entry in (folder / "checkpoints").iterdir()}
    wanted = {str(sound.step), str(sound.step + 1)}
    left = {name for name in names - wanted if not name.startswith("damaged-")}
    return f"left behind: {sorted(left)}" if left or not wanted <= names else ""


def operations(folder: Path, every: int = 1) -> list[Row]:
    """Let every operation fail in every way; `every` takes only each so manieth."""
    ready = folder / "ready"
    ready.mkdir()
    assert forked(folder, begin, ready).code == 0
    shutil.copytree(ready, folder / "counted")
    counted = forked(folder, go_on, folder / "counted", None, "").value["count"]
    delivered, failures = dict.fromkeys(KINDS, 0), []
    for kind in KINDS:
        for number in range(1, counted + 1, every):
            run = folder / f"{kind}-{number}"
            shutil.copytree(ready, run)
            ended = forked(folder, go_on, run, number, kind)
            delivered[kind] += ended.code == -signal.SIGKILL or bool(ended.value and ended.value["delivered"])
            again = forked(folder, restart, run)
            if again.code or again.value:
                failures.append(f"{kind} at {number}: {again.value or again.said[-300:]}")
                print(failures[-1], flush=True)
            else:
                shutil.rmtree(run)
    said = ", ".join(f"{count} {kind}" for kind, count in delivered.items())
    measured = (
        f"{counted} operations of Python; delivered: {said}; {len(failures)} restarts failed {failures or ''}".strip()
    )
    fault = "kill, torn write, EIO, ENOSPC at each file operation of one append, one save, one deletion"
    return [Row(fault, measured, not failures and min(delivered.values()) > 0)]
