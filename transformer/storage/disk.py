"""Run directories on a disk: a rename replaces a file, and the kernel keeps the lock."""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.storage.disk_errors import add_filename
from transformer.storage.json_reading import open_regular_file
from transformer.storage.storage import DirectoryInUse, DirectoryLost, FileVersion, FolderEntry

REMOVED_SUFFIX = ".removed"  # ends the name of a folder that is being removed
_INSTANT = 0.01  # seconds, longer than a look at a lock (`DiskStorage.is_claimed`), for which nobody else can take it

# Folders of the root that etils takes for the buckets of these schemes.
_BUCKETS = ("/gs", "/s3", "/az", "/hf")

# The lock files that this process holds, by their descriptors: a forked child must not keep them alive.
_lock_files: dict[int, Path] = {}


def _close_locks_in_child() -> None:
    for descriptor in _lock_files:
        os.close(descriptor)
    _lock_files.clear()


os.register_at_fork(after_in_child=_close_locks_in_child)


class DiskStorage:
    """Storage on a disk, as `transformer.storage.storage.Storage` says."""

    def reach(self, path: Path) -> None:
        """Raise UserError for a path that a library which writes under it would take for another."""
        _check_literal(path)

    def replace(self, path: Path, content: bytes) -> None:
        """Write beside the file, then rename: a rename within a folder is atomic.

        Of several processes that replace one file at once the last has written it, whole.

        Raises:
            OSError: With the old content in place.
            DirectoryLost: If another process may have taken the directory.
        """
        self.check(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            with add_filename(path), temporary.open("wb", buffering=0) as file:
                _write_all(file.fileno(), content)
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def check(self, path: Path) -> None:
        """The lock file must be the one that was locked: another process can hold what took the place of it."""
        real = Path(os.path.realpath(path))
        for descriptor, lock in list(_lock_files.items()):
            if real.is_relative_to(lock.parent) and not _is_same_file(descriptor, lock):
                raise DirectoryLost(
                    f"--workdir={lock.parent} is no longer held by this run: its lock file was removed, and another "
                    "process may have taken it; the run has stopped. Start it again to resume it, if no other process "
                    "trains in it"
                )

    def append_to(self, path: Path) -> "AppendOnlyDiskFile":
        return AppendOnlyDiskFile(self, path)

    def remove_tree(self, path: Path) -> None:
        """Rename it, then remove it: a kill in between leaves a folder NAME.removed, which no reader takes for it."""
        self.check(path)
        removed = path.with_name(f"{path.name}{REMOVED_SUFFIX}")
        if removed.exists():
            shutil.rmtree(removed)
        self.move_tree(path, removed)
        shutil.rmtree(removed)

    def move_tree(self, path: Path, to: Path) -> None:
        self.check(path)
        path.rename(to)
        _sync_folder(path.parent)

    def sync_tree(self, path: Path) -> None:
        for folder, _, names in os.walk(path):
            for name in names:
                _sync(os.path.join(folder, name))
            _sync_folder(folder)
        _sync_folder(path.parent)

    @contextlib.contextmanager
    def claim(self, path: Path, name: str) -> Iterator[None]:
        """Hold an advisory lock on a file; the kernel lets go of it when the process dies.

        Raises:
            DirectoryInUse: If a live process holds the directory.
        """
        is_created = not path.is_dir()
        descriptor = _lock_folder(path, name)
        _lock_files[descriptor] = Path(os.path.realpath(path)) / name
        try:
            with add_filename(path / name):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
            yield
        finally:
            if _is_same_file(descriptor, path / name) and os.listdir(path) == [name]:
                # Nothing was begun, and nothing stays of it.
                (path / name).unlink()
                if is_created:
                    # Whoever has waited may have begun in it already.
                    with contextlib.suppress(OSError):
                        path.rmdir()
            _lock_files.pop(descriptor, None)
            os.close(descriptor)

    def is_claimed(self, path: Path, name: str) -> bool:
        if not (path / name).is_file():
            return False
        # For reading, which is enough for a shared lock: the runs of others can be asked too.
        descriptor = os.open(path / name, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextlib.contextmanager
    def stage(self, path: Path) -> Iterator[Path]:
        yield path

    def scratch(self, path: Path) -> Path:
        return path

    def versions(self, path: Path, patterns: Sequence[str]) -> tuple[FileVersion, ...]:
        versions: list[FileVersion] = []
        for file in (file for pattern in patterns for file in sorted(path.glob(pattern))):
            # One that is gone in the meantime was being replaced.
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                versions.append((str(file), status.st_mtime_ns, status.st_size))
        return tuple(versions)

    def list_folder(self, path: Path) -> list[FolderEntry]:
        entries = []
        with os.scandir(path) as listing:
            for entry in listing:
                # One that is gone in the meantime was being replaced.
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        entries.append(FolderEntry(entry.name, True, 0, 0.0))
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        entries.append(FolderEntry(entry.name, False, status.st_size, status.st_mtime))
        return sorted(entries)

    def tree_size(self, path: Path) -> int:
        total, folders = 0, [os.fspath(path)]
        while folders:
            with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(folders.pop()) as listing:
                for entry in listing:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            total += entry.stat(follow_symlinks=False).st_size
        return total

    def size(self, path: Path) -> int:
        with open_regular_file(path) as file:
            return os.fstat(file.fileno()).st_size

    def read_range(self, path: Path, start: int, stop: int) -> bytes:
        with open_regular_file(path) as file:
            descriptor, parts = file.fileno(), []
            while start < stop and (part := os.pread(descriptor, stop - start, start)):
                parts.append(part)
                start += len(part)
        return b"".join(parts)

    def key_value_store(self, path: Path) -> dict[str, Any]:
        _check_literal(path)
        return {"driver": "file", "path": f"{path}/"}


class AppendOnlyDiskFile:
    """A file open at its end, without a buffer."""

    def __init__(self, disk: DiskStorage, path: Path):
        self._disk, self._path = disk, path
        self._appending = threading.RLock()  # a signal may come in the midst of its own thread
        self._end = 0
        self._torn = False  # whether what follows the end is a part of a line that was not written whole
        self._open()
        _sync_folder(path.parent)

    def append(self, content: bytes) -> None:
        """Append, from any thread.

        Raises:
            OSError: With the file as it was, also where a part had been written.
            DirectoryLost: If another wrote it.
        """
        self._disk.check(self._path)
        # A thread that came between the writing and the counting would take what this one wrote for another's.
        with self._appending, add_filename(self._path):
            descriptor = self._file.fileno()
            size = os.fstat(descriptor).st_size
            if size > self._end and not self._torn:
                raise DirectoryLost(
                    f"{self._path} was written by another process: this run has stopped, and changed nothing of it"
                )
            if size > self._end:
                os.ftruncate(descriptor, self._end)
            self._torn = False
            self._end = min(size, self._end)
            try:
                _write_all(descriptor, content)
            except BaseException:
                self._torn = True
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, self._end)
                raise
            self._end += len(content)

    def rewrite(self, keep: Callable[[bytes], bytes]) -> None:
        self._disk.check(self._path)
        content = self._path.read_bytes()
        new_content = keep(content)
        if new_content != content:
            self._file.close()
            try:
                self._disk.replace(self._path, new_content)
            finally:
                self._open()

    def flush(self) -> None:
        with add_filename(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._file:
            self.flush()

    def _open(self) -> None:
        break_hard_links(self._path)
        self._file = self._path.open("ab", buffering=0)
        self._end = os.fstat(self._file.fileno()).st_size


def break_hard_links(path: Path) -> None:
    """Copy a file that has other hard links, as `cp -al` makes them, before it is written to.

    Raises:
        OSError: If the storage cannot be reached or written.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            DiskStorage().replace(path, path.read_bytes())


def _check_literal(path: Path) -> None:
    """Raise UserError for a path that orbax, etils or tensorstore would take for another, and what it is."""
    real_path = f"{os.path.realpath(path)}/"
    reason = None
    if not _is_unicode(real_path):
        reason = "its name is not UTF-8"
    elif "\\" in real_path:
        reason = "tensorstore takes a \\ for a /"
    elif ".__lock/" in real_path:
        reason = "tensorstore keeps names that end in .__lock for its locks"
    elif "gs:/" in real_path:
        reason = "orbax takes a name that ends in gs: for the beginning of a bucket's address"
    elif real_path.startswith(tuple(f"{bucket}/" for bucket in _BUCKETS)):
        reason = f"etils takes what lies under {', '.join(_BUCKETS)} for buckets"
    if reason is not None:
        raise UserError(f"{path} cannot hold a run: {reason}; name another directory")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: the system may write less than it is given, at a full disk or a signal."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _sync_folder(folder: str | Path) -> None:
    """Make what was created, renamed or removed in a folder outlive a power cut."""
    try:
        _sync(folder)
    except OSError as error:
        # Some network file systems cannot, and need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with add_filename(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_folder(path: Path, name: str) -> int:
    """An open descriptor of the lock file in a folder, which is made where it is absent, held by this process.

    Raises:
        DirectoryInUse: If a live process holds the directory.
    """
    was_busy = False
    while True:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            _sync_folder(path.parent)
        try:
            descriptor = os.open(path / name, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # who held the folder has just removed it
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(descriptor, path / name):
                if os.fstat(descriptor).st_nlink == 1:
                    return descriptor
                (path / name).unlink()  # it is another directory's lock as well, by a hard link
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            if was_busy:
                raise DirectoryInUse(path, holder) from None
            was_busy = True
            time.sleep(_INSTANT)
            continue
        os.close(descriptor)


def _is_same_file(descriptor: int, file: Path) -> bool:
    """Whether the opened file is still the one of that name: one that was removed locks nothing any more."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
