"""Errors of full or failing disks: find the OSError behind a library's exception, its file, and advice."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from transformer.config import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILING = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO)
# Of TensorStore, and of libraries in Rust, the system's error and the file are in the text alone.
_CODE = re.compile(r"os_error_code='(\d+)'|\bOs \{ code: (\d+)|\(os error (\d+)\)")
_FILE = re.compile(r'"(/[^"]+)"')


@contextlib.contextmanager
def add_filename(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add `path` to an OSError that names no file, as those of a write or an fsync do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def find_disk_error(error: BaseException) -> OSError | None:
    """Return the disk error that an exception is or was caused by; None if there is none.

    If there are several, the one that names a file.
    """
    failures = [failure for cause in error_chain(error) if (failure := _to_disk_error(cause)) is not None]
    return next((failure for failure in failures if failure.filename is not None), failures[0] if failures else None)


@contextlib.contextmanager
def refuse_unusable_storage(path: str | os.PathLike[str], key: str = "--workdir") -> Iterator[None]:
    """Raise a UserError if storage cannot be reached or written, but not if a disk is full or fails.

    Args:
        path: The folder.
        key: The flag or the key of the config that names it.
    """
    try:
        yield
    except OSError as error:
        if find_disk_error(error) is not None and error.errno != errno.EROFS:  # the path is right, but the disk fails
            raise
        file = error.filename2 or error.filename
        inside = "" if file is None or os.fsdecode(file) == os.fspath(path) else f" ({os.fsdecode(file)})"
        raise UserError(f"{key}={path} cannot be used: {error.strerror or error}{inside}") from error


@contextlib.contextmanager
def refuse_unwritable_file(path: str | os.PathLike[str], argument: str) -> Iterator[None]:
    """Raise a UserError if a file cannot be written, but not if its disk is full or fails.

    Args:
        path: The file.
        argument: The argument that names it.
    """
    try:
        yield
    except OSError as error:
        if find_disk_error(error) is not None:
            raise
        raise UserError(f"{argument}={path} cannot be written: {error.strerror or error}") from error


def explain_disk_error(failure: OSError, what_for: str = "") -> str:
    """Describe a disk failure and its remedy in a line; `what_for` says why to start the command again."""
    file = os.fsdecode(failure.filename) if failure.filename is not None else "a disk"
    todo = "free space there" if failure.errno in _FULL else "see what the system's log says of that disk"
    return f"{file}: {failure.strerror}; {todo}, then start the same command again{what_for}"


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the members of exception groups."""
    seen_ids: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen_ids:
            continue
        seen_ids.add(id(current))
        yield current
        waiting += [*getattr(current, "exceptions", ()), *filter(None, (current.__cause__, current.__context__))]


def _to_disk_error(error: BaseException) -> OSError | None:
    if isinstance(error, OSError):
        return error if error.errno in (*_FULL, *_FAILING) else None
    match = _CODE.search(str(error))
    code = int(next(filter(None, match.groups()))) if match else 0
    if code not in (*_FULL, *_FAILING):
        return None
    file = _FILE.search(str(error))
    return OSError(code, os.strerror(code), file and file[1])
