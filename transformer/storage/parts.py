"""A file that grows, in a bucket: a folder of numbered objects, which are the file when they are joined.

The last part is written again, longer, every few seconds until it is full. So there are few of them, each ends with
a whole line, and a process that is killed loses the last seconds.
"""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from transformer.storage.contract import Lost
from transformer.storage.lease import check_lease
from transformer.storage.objects import bucket_of, key_of, object_at, told

PERIOD = 10.0  # seconds between two writes of a part
FULL = 1_000_000  # bytes
_AT_ONCE = 8  # parts that are read together


def put(path: Path, content: bytes) -> None:
    """Write an object whole.

    Errors: OSError; Lost where another process may hold the directory.
    """
    check_lease(path)
    with told(path):
        object_at(path).upload_from_string(content, content_type="application/octet-stream")


def names_of_parts(path: Path) -> list[str]:
    """The keys of a file's parts, in order; a file that was copied here whole is its own first part."""
    key = key_of(path)
    with told(path):
        whole = [key] if object_at(path).exists() else []
        listed = bucket_of(path).list_blobs(prefix=f"{key}/", fields="items(name),nextPageToken")
        return whole + sorted(blob.name for blob in listed)


def read_parts(path: Path) -> list[tuple[str, bytes]]:
    """The parts of a file by key, in order.

    Errors: FileNotFoundError where there are none; OSError.
    """
    bucket = bucket_of(path)
    while True:
        names = names_of_parts(path)
        if not names:
            raise FileNotFoundError(f"{path} is not there")
        # One that is gone was dropped by a run that resumes: what there is now is looked up again.
        with contextlib.suppress(FileNotFoundError), concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            with told(path):
                contents = list(pool.map(lambda name: bucket.blob(name).download_as_bytes(), names))
            return list(zip(names, contents, strict=True))


class Parts:
    """A growing file in a bucket: a thread writes its last part, which this process holds too."""

    def __init__(self, path: Path):
        self._path = path
        self._writing = threading.Lock()  # one write of a part at a time, in the order of the appends
        self._lock = threading.Lock()  # of what follows
        self._lost: Lost | None = None
        self._content, self._written = b"", 0
        self._number = self._next_number(names_of_parts(path))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name=f"parts of {path.name}", daemon=True)
        self._thread.start()

    def append(self, content: bytes) -> None:
        """Hold the lines until the thread's next write.

        Errors: Lost, found out by an earlier write.
        """
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._content += content

    def rewrite(self, keep: Callable[[bytes], bytes]) -> None:
        """Replace each part that changes, the last first: what is left at a kill is the file's beginning."""
        self.flush()
        with self._writing:
            parts = read_parts(self._path) if names_of_parts(self._path) else []
            changes = [(name, content, keep(content)) for name, content in parts]  # all, before the first is made
            for name, content, kept in reversed(changes):
                part = self._path if name == key_of(self._path) else self._part(name)
                if not kept:
                    check_lease(self._path)
                    with told(part):
                        object_at(part).delete()
                elif kept != content:
                    put(part, kept)
            with self._lock:
                self._content, self._written = b"", 0
                self._number = self._next_number(names_of_parts(self._path))

    def flush(self) -> None:
        """Write the last part, if it has grown.

        Errors: OSError; Lost.
        """
        with self._writing:
            with self._lock:
                content, number = self._content, self._number
            if len(content) == self._written:
                return
            put(self._part(f"{number:06d}"), content)
            with self._lock:
                self._written = len(content)
                if self._written >= FULL:
                    self._content, self._written = self._content[self._written :], 0
                    self._number += 1

    def close(self) -> None:
        """Flush, and end the thread."""
        self._closed.set()
        self._thread.join()
        self.flush()

    def _write_on(self) -> None:
        while not self._closed.wait(PERIOD):
            try:
                self.flush()
            except Lost as lost:
                with self._lock:
                    self._lost = lost
            except OSError:
                # Nothing is lost yet: the part is written at the next turn, and at a checkpoint it must be.
                continue

    def _part(self, name: str) -> Path:
        return self._path / name.rpartition("/")[2]

    def _next_number(self, names: list[str]) -> int:
        numbers = [name.rpartition("/")[2] for name in names]
        return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1
