"""Run directories on a disk: a rename replaces a file, and the kernel keeps the lock."""

import contextlib
import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer.storage.contract import InUse, Version

# The descriptors of the locks that this process holds: a forked child must not keep them alive.
_held: set[int] = set()


def _let_go_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


class Disk:
    """Storage on a disk, as `transformer.storage.contract.Storage` says."""

    def reach(self, path: Path) -> None:
        """Nothing: a disk needs no connection."""

    def replace(self, path: Path, content: bytes) -> None:
        """Write beside the file, then rename: a rename within a folder is atomic.

        Of several processes that replace one file at once the last has written it, whole.
        """
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def append_to(self, path: Path) -> "AppendedFile":
        return AppendedFile(self, path)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    @contextlib.contextmanager
    def claim(self, path: Path, name: str) -> Iterator[None]:
        """Hold an advisory lock on a file; the kernel lets go of it when the process dies.

        Errors: InUse.
        """
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / name, os.O_RDWR | os.O_CREAT, 0o644)
        _held.add(descriptor)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 1000).decode(errors="replace").strip() or "another process"
                raise InUse(path, holder) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
            yield
        finally:
            # The file stays: removing it could take the lock from a process that has just opened it.
            _held.discard(descriptor)
            os.close(descriptor)

    @contextlib.contextmanager
    def stage(self, path: Path) -> Iterator[Path]:
        yield path

    def scratch(self, path: Path) -> Path:
        return path

    def versions(self, path: Path, patterns: Sequence[str]) -> tuple[Version, ...]:
        versions: list[Version] = []
        for file in (file for pattern in patterns for file in sorted(path.glob(pattern))):
            # One that is gone in the meantime was being replaced.
            with contextlib.suppress(FileNotFoundError):
                about = file.stat()
                versions.append((str(file), about.st_mtime_ns, about.st_size))
        return tuple(versions)

    def key_value_store(self, path: Path) -> dict[str, Any]:
        return {"driver": "file", "path": f"{path}/"}


class AppendedFile:
    """A file open at its end, without a buffer."""

    def __init__(self, disk: Disk, path: Path):
        self._disk, self._path = disk, path
        self._file = path.open("ab", buffering=0)

    def append(self, content: bytes) -> None:
        self._file.write(content)

    def rewrite(self, keep: Callable[[bytes], bytes]) -> None:
        content = self._path.read_bytes()
        kept = keep(content)
        if kept != content:
            self._file.close()
            try:
                self._disk.replace(self._path, kept)
            finally:
                self._file = self._path.open("ab", buffering=0)

    def flush(self) -> None:
        """Nothing: what is appended is in the file."""

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
