"""One hostile case in a process of its own, and what it did: crashed, ran code, wrote outside, called another host.

A case is a call of a command in a fork of a process that has imported everything and computed nothing: it costs what
the call costs. Python's audit hooks see each file that is opened to be written, each socket and each process; what
libraries in C++ write is seen by comparing the folders around the case's own before and after.
"""

import dataclasses
import gc
import importlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.cli import run
from launch.platform import choose_platform, quiet_libraries

LONGEST = 1100
"""Characters of a refusal, beyond which nobody reads it."""
_SECONDS = 120
_REFUSED_WITHIN = 10.0  # seconds of the processor
# So that a case that takes all memory harms no other process.
_MEMORY = 24 * 2**30
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What a run asks for by a process of its own: the commit that it runs from, and the machine.
_PROCESSES = ("git", "uname")
_CONNECTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")


@dataclasses.dataclass(frozen=True)
class Case:
    """A call: `prepare` fills a folder with what is hostile and gives the words of the command.

    `codes` are the exit codes that are right. `own` are folders beside the case's that the call may write to.
    """

    name: str
    command: str
    prepare: Callable[[Path], Sequence[str]]
    codes: tuple[int, ...] = (2,)
    words: str = ""
    """What the refusal has in it."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stdin: bytes = b""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a case did."""

    case: Case
    code: int
    out: str
    err: str
    seconds: float
    events: tuple[str, ...] = ()
    executed: bool = False
    outside: tuple[str, ...] = ()
    processor: float = 0.0
    """Seconds of the processor that it took, which do not depend on what else the machine does."""

    @property
    def tracebacks(self) -> bool:
        """Whether a traceback was shown, or the process did not end by itself."""
        return "Traceback (most recent call last)" in self.err or not 0 <= self.code < 128

    @property
    def connections(self) -> tuple[str, ...]:
        """The hosts that were called."""
        return tuple(event for event in self.events if event.startswith("connects"))

    @property
    def processes(self) -> tuple[str, ...]:
        """The processes that were started."""
        return tuple(event for event in self.events if event.startswith("starts"))

    @property
    def written(self) -> tuple[str, ...]:
        """The files outside the case's folder that were written."""
        return (*(event for event in self.events if event.startswith("writes")), *self.outside)

    @property
    def faults(self) -> list[str]:
        """What is wrong with it, in words."""
        faults = []
        if self.tracebacks:
            faults.append("traceback" if 0 <= self.code < 128 else f"ended with {self.code}")
        elif self.code not in self.case.codes:
            faults.append(f"exit code {self.code}, not {self.case.codes}: {self.err[-200:]!r}")
        if self.code == -signal.SIGKILL:
            faults.append(f"did not end within {_SECONDS} seconds")
        elif self.code == 2 and self.processor > _REFUSED_WITHIN:
            faults.append(f"refused after {self.processor:.0f} seconds of the processor")
        if self.code == 2:
            lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
            if len(lines) != 1 or self.err.splitlines()[-1:] != lines:
                faults.append(f"refused in {len(lines)} lines: {self.err[:200]!r}")
            elif len(lines[0]) > LONGEST:
                faults.append(f"refused in {len(lines[0])} characters")
            elif re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lines[0]):
                faults.append(f"control characters in {lines[0]!r}")
            elif self.case.words not in lines[0]:
                faults.append(f"does not say {self.case.words!r}: {lines[0]!r}")
        faults += ["executed"] if self.executed else []
        faults += [*self.connections, *self.processes, *self.written]
        return faults


class Sandbox:
    """Runs cases one after another, each in a new folder under `root`, which is emptied of it afterwards.

    ROOT/area/case is the case's folder, ROOT/area all that it could reach by "..", and ROOT/outside what absolute
    paths name. `canary` is the file that hostile code writes.
    """

    def __init__(self, root: Path):
        self.root = root
        self.outside, self.canary = root / "outside", root / "outside" / "canary"
        self.outside.mkdir(parents=True, exist_ok=True)
        (root / "home").mkdir(exist_ok=True)

    def run(self, case: Case) -> Seen:
        """Prepare the case and run it."""
        import shutil

        area = self.root / "area"
        shutil.rmtree(area, ignore_errors=True)
        folder = area / "case"
        folder.mkdir(parents=True)
        words = list(case.prepare(folder))
        before = _files(self.root, folder)
        files = {name: self.root / f"{name}.txt" for name in ("out", "err", "events")}
        for file in files.values():
            file.write_bytes(b"")
        start = time.monotonic()
        child = os.fork()
        if not child:
            _be(case, words, folder, files, self.root / "home")
        code, processor = _wait(child)
        seconds = time.monotonic() - start
        said = {name: file.read_text(errors="replace") for name, file in files.items()}
        executed = self.canary.exists()
        self.canary.unlink(missing_ok=True)
        changed = {str(path) for path, _ in _files(self.root, folder) ^ before} - {str(self.canary)}
        events = tuple(dict.fromkeys(said["events"].splitlines()))
        outside = tuple(f"writes {path}" for path in sorted(changed))
        return Seen(case, code, said["out"], said["err"], seconds, events, executed, outside, processor)


def _files(root: Path, without: Path) -> set[tuple[Path, tuple[int, int]]]:
    """The files around a case, each with its size and time of change."""
    seen = set()
    for folder in (root / "area", root / "outside"):
        for path in folder.rglob("*"):
            if not path.is_relative_to(without):
                about = path.lstat()
                seen.add((path, (about.st_size, about.st_mtime_ns if path.is_file() else 0)))
    return seen


def _wait(child: int) -> tuple[int, float]:
    """The exit code of a child and the seconds of the processor that it took."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL, 0.0


def _be(case: Case, words: Sequence[str], folder: Path, files: Mapping[str, Path], home: Path) -> None:
    """Become the process of the case; does not return."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        os.chdir(folder)
        # What one case has begun, no other may open for that reason.
        own_places = {"HOME": str(home), "TMPDIR": str(folder), "XDG_STATE_HOME": str(folder / ".state")}
        os.environ |= {**own_places, **case.environment}
        (folder / ".stdin").write_bytes(case.stdin)
        for number, file in ((1, files["out"]), (2, files["err"])):
            os.dup2(os.open(file, os.O_WRONLY | os.O_TRUNC), number)
        os.dup2(os.open(folder / ".stdin", os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = [case.command, *words]
        # As for who starts a command in a folder that holds a stranger's files.
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        events = os.open(files["events"], os.O_WRONLY | os.O_APPEND)
        tempfile.tempdir = str(folder)
        own = (folder, home, Path("/dev"), Path("/proc"), Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", home)))
        sys.addaudithook(_Watch(events, own))
        code = call(case.command, words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:
                code = code or 1
        os._exit(code)


def call(command: str, words: Sequence[str]) -> int:
    """The exit code of a command with these words, in this process."""
    module = importlib.import_module(module_name(command))
    if command.startswith("clusters."):
        from launch.clusters.local import run_launcher

        return run_launcher(module.COMMAND, module.main, words)
    return run(module.COMMAND, module.main, words)


class _Watch:
    """The audit hook of a case: writes what is not the case's own business to a file, and lets no call out."""

    def __init__(self, file: int, own: Sequence[Path]):
        self._file, self._own = file, tuple(f"{os.path.realpath(path)}/" for path in own)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and not isinstance(path, int):
                self._written(path)
        elif event in _CHANGES:
            for path in arguments[:2]:
                if isinstance(path, (str, bytes, os.PathLike)):
                    self._written(path)
        elif event in _CONNECTS:
            where = arguments[0] if event.startswith("socket.get") else arguments[1]
            # A socket in the file system is of this machine.
            if not isinstance(where, (str, bytes)) or event.startswith("socket.get"):
                self._note(f"connects {event} {where!r}")
                raise ConnectionRefusedError("no network in the sandbox")
        elif event in _STARTS and os.path.basename(os.fsdecode(_program(arguments))) not in _PROCESSES:
            self._note(f"starts {_program(arguments)!r} {arguments[1:2]!r}")

    def _written(self, path: Any) -> None:
        real = os.path.realpath(os.fsdecode(os.fspath(path)))
        if not f"{real}/".startswith(self._own) and "__pycache__" not in real:
            self._note(f"writes {real}")

    def _note(self, text: str) -> None:
        os.write(self._file, f"{text}\n".encode(errors="replace"))


def _program(arguments: tuple[Any, ...]) -> Any:
    first, *rest = arguments
    words = rest[0] if rest and isinstance(rest[0], (list, tuple)) and rest[0] else [first]
    return words[0]


def import_all() -> None:
    """Import what commands import, so that no case does; nothing is computed."""
    choose_platform()
    quiet_libraries()
    for name in (
        "array_record.python.array_record_data_source",
        "tensorflow_datasets",
        "tensorflow_datasets.proto",
        "transformer.training.huggingface_conversion",
        "transformer.maps.report.page",
        "transformer.maps.report.report_server",
        "transformer.studies.sweeps.model_trainer",
        "transformer.training.driver",
        "transformer.tasks.registry",
        "transformer.aot",
        *map(module_name, COMMANDS),
    ):
        importlib.import_module(name)
    # A child that collects garbage would copy the pages of all these objects.
    gc.freeze()


COMMANDS = (
    *(
        "tokenize",
        "train",
        "evaluate",
        "generate",
        "maps",
        "ablate_heads",
        "alignment_error_rate",
        "model_sizes",
        "convert",
        "sweep",
        "ablate",
        "compile",
    ),
    *(
        "benchmark_backends",
        "benchmark_layers",
        "scaling_laws",
    ),
    *("clusters.local", "experiments.benchmarks.run", "experiments.pods.compile_experiments", "experiments.reproduce"),
    "experiments.claims.__main__",
)


def module_name(command: str) -> str:
    """The module of a command: those of the checkout are named in full."""
    return command if command.startswith("experiments.") else f"launch.{command}"
