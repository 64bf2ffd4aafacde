"""Commands on a disk of which one operation fails: the shim in C, and a server of processes that it is loaded into."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("failing_disk.c")


class Operation(NamedTuple):
    """An operation on a file: `file` is its path with its numbers as '#', `number` counts those that are alike."""

    name: str
    number: int
    file: str


class Fault(NamedTuple):
    """An operation that fails; `lasting`: with all later ones that need space."""

    operation: Operation
    error: str
    lasting: bool

    def __str__(self) -> str:
        return f"{self.error} at {self.operation.name} {self.operation.number} of {self.operation.file}"


class Ended(NamedTuple):
    """A command that has ended: its exit code (None: it hung), what it said, and the operations that it made."""

    code: int | None
    said: str
    errors: str
    operations: tuple[Operation, ...]
    failed: tuple[Operation, ...]


def why_not() -> str | None:
    """Why no disk can be made to fail here; None where it can."""
    if sys.platform != "linux":
        return "only Linux has LD_PRELOAD and /proc"
    return None if shutil.which("cc") else "there is no C compiler"


class Commands:
    """Runs commands on files below `folder`, one after another."""

    def __init__(self, folder: Path, cache: Path | None = None):
        self.folder = folder.resolve()
        self._own = self.folder.with_name(f"{self.folder.name}-harness")
        self._own.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(exist_ok=True)
        shim = self._own / "failing_disk.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, SOURCE, "-ldl"], check=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0",
            "JAX_COMPILATION_CACHE_DIR": str(cache or self._own / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "LD_PRELOAD": str(shim),
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.command_server"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def __call__(
        self,
        module: str,
        words: Sequence[str],
        fault: Fault | None = None,
        *,
        output: str | None = None,
        limit: float = 120,
    ) -> Ended:
        """Run a command, its standard output into the file `output`; its operations are noted where it has a fault."""
        said, errors, log = (self._own / name for name in ("said.txt", "errors.txt", "operations.txt"))
        log.unlink(missing_ok=True)
        job: dict[str, Any] = {
            "module": module,
            "words": list(words),
            "said": output or str(said),
            "errors": str(errors),
        }
        job |= {"limit": limit, "disk": None if fault is None else self._plan(fault, log)}
        assert self._server.stdin is not None
        print(json.dumps(job), file=self._server.stdin, flush=True)
        code = self._answer()
        lines = [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []
        made = [(Operation(line[0], int(line[1]), line[2]), line[3:]) for line in lines]
        return Ended(
            code,
            "" if output else said.read_text(errors="replace"),
            errors.read_text(errors="replace"),
            tuple(operation for operation, _ in made),
            tuple(operation for operation, failed in made if failed),
        )

    def _plan(self, fault: Fault, log: Path) -> str:
        name, number, file = fault.operation
        words = (self.folder, log, name, file, number, getattr(errno, fault.error), int(fault.lasting))
        return "\t".join(map(str, words))

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        return json.loads(self._server.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


NEVER = Fault(Operation("never", 1, ""), "EIO", lasting=False)
