"""The run that faults are delivered to, in children of a process that has imported jax and used nothing of it.

A child costs a fork, no imports; its programs come from one compile cache.
"""

import hashlib
import importlib
import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from tests.training.small_run import without_clock
from transformer.maps.store import MapStore
from transformer.runs.checkpoint import Checkpoints
from transformer.training import config as experiment
from transformer.training import driver
from transformer.training.writers.writer import Progress, Report, Writer

STEPS, SAVED_EVERY = 60, 5
LIMIT = 300  # seconds for a child
# What a run imports when it needs it; imported here once, it costs its children nothing.
for _name in ("grain", "tokenizers", "tensorboardX", "tensorboardX.proto.summary_pb2", "rich.progress"):
    importlib.import_module(_name)


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run of steps of milliseconds, with dropout, over a text file of its own."""
    text = folder / "text.txt"
    if not text.exists():
        words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "back", "again", "to"]
        lines = (" ".join(words[(line * place) % len(words)] for place in range(1, 9)) for line in range(60))
        text.write_text("\n".join(lines))
    return {
        "name": "subject",
        "steps": STEPS,
        "log_every": 5,
        "eval_every": 20,
        "maps_every": 5,
        "head_statistics_every": 5,
        "checkpoint_every": SAVED_EVERY,
        "keep_checkpoints": 3,
        "task": {
            "name": "language_modeling",
            "dataset": str(text),
            "tokenizer": "characters",
            "batching": "packed",
            "context_length": 16,
            "batch_size": 4,
            "num_probe_examples": 2,
            "probe_length": 8,
            "prompts": ("the ",),
            "max_new_tokens": 2,
        },
        "model": {
            "family": "decoder",
            "vocab_size": 64,
            "layers": 1,
            "width": 16,
            "heads": 2,
            "feed_forward": 32,
            "dropout": 0.1,
            "biases": "none",
            "max_length": 18,
        },
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 4},
        **changes,
    }


class Ended(NamedTuple):
    """How a child ended: its exit code (negative: the signal), what it said, and what it returned."""

    code: int
    said: str
    value: Any


class SharedProgress(Writer):
    """Where a run has come to, in memory that its parent sees: the first step of this start, and the last."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 16)

    def write(self, report: Report) -> None:
        if isinstance(report, Progress):
            first, _ = self.seen()
            self._shared[:] = struct.pack("qq", first or report.step, report.step)

    def seen(self) -> tuple[int, int]:
        return struct.unpack("qq", self._shared[:])

    def clear(self) -> None:
        self._shared[:] = struct.pack("qq", 0, 0)


class Child:
    """A forked process that calls a function and ends."""

    def __init__(self, folder: Path, function: Callable[..., Any], *arguments: Any):
        self._said, self._value = folder / "said.txt", folder / "value.json"
        self._value.unlink(missing_ok=True)
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._call(function, arguments)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        code = 1
        try:
            descriptor = os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            value = function(*arguments)
            self._value.write_text(json.dumps(value))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        if self._status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if done else None
        return self._status is not None

    def kill(self) -> bool:
        """Kill it; False where it had ended."""
        if self.ended():
            return False
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return True

    def wait(self, limit: float = LIMIT) -> Ended:
        """Wait until it has ended, and kill it after `limit` seconds."""
        until = time.monotonic() + limit
        while not self.ended():
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        assert self._status is not None
        value = json.loads(self._value.read_text()) if self._value.exists() else None
        said = self._said.read_text(errors="replace") if self._said.exists() else ""
        return Ended(os.waitstatus_to_exitcode(self._status), said, value)


def forked(folder: Path, function: Callable[..., Any], *arguments: Any, limit: float = LIMIT) -> Ended:
    """What became of a function called in a child."""
    return Child(folder, function, *arguments).wait(limit)


def trained(values: dict[str, Any], run: Path, cache: Path, writer: Any = None) -> None:
    """Train the subject, or resume it."""
    use_cache(cache)
    driver.train(experiment.resolve_config(values), run, writer=writer)


def use_cache(cache: Path) -> None:
    """Keep compiled programs in a folder of the harness."""
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def result(run: Path) -> dict[str, Any]:
    """All that a run has come to, as what can be compared: bits of its last state, records, and maps."""
    checkpoints = Checkpoints.open_read_only(run / "checkpoints")
    latest = checkpoints.latest()
    assert latest is not None
    manifest = json.loads((run / "checkpoints" / str(latest) / "manifest" / "metadata").read_text())
    stored = checkpoints.read(latest)
    shapes = {name: leaf for name, leaf in stored.leaves.items() if not leaf.dtype.startswith("key")}
    restored = stored.restore_leaves(  # verified against the manifest's digests
        {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
    )
    store = MapStore.open_existing(run / "maps")
    maps = {}
    for site in store.sites:
        maps[site.name] = hashlib.sha256(store.statistics(site.name).values.tobytes()).hexdigest()
        for step in store.steps:
            maps[f"{site.name} {step}"] = hashlib.sha256(store.read(site.name, step).tobytes()).hexdigest()
    return {
        "step": latest,
        "leaves": {name: leaf["digest"] for name, leaf in manifest["leaves"].items()},
        "restored": len(restored),
        "metrics": without_clock(run),
        "heads": (run / "heads.jsonl").read_text(),
        "samples": (run / "samples.jsonl").read_text(),
        "maps": maps,
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What of two results differs: the part, and of the state the first leaf."""
    found = [part for part in one if part not in ("leaves",) and one[part] != other[part]]
    leaves = [name for name in one["leaves"] if one["leaves"][name] != other["leaves"].get(name)]
    return [*leaves[:1], *found]
