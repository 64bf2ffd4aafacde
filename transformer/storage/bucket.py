"""Run directories in a bucket: `gs://bucket/folder`, through the extra `gcs`."""

import concurrent.futures
import contextlib
import fnmatch
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
from etils.epath import gpath

from transformer.storage.contract import Lost, Version
from transformer.storage.lease import check_lease, leased
from transformer.storage.objects import bucket_name, bucket_of, check_bucket, key_of, object_at, told
from transformer.storage.parts import Parts, put, read_parts

PERIOD = 60.0  # seconds between two looks at a staged folder
SHARE = 0.05  # of the time that sending it may take


# Other processes write there: each listing is asked for anew.
for _scheme in ("gs", "gcs"):
    fsspec.config.conf.setdefault(_scheme, {})["use_listings_cache"] = False


class BucketPath(gpath.PosixGPath):
    """A path in a bucket with pathlib's methods; the library's own takes it for one relative to this folder."""

    def resolve(self, strict: bool = False) -> "BucketPath":
        """The path itself, which is absolute."""
        return self


class Bucket:
    """Storage in a bucket, as `transformer.storage.contract.Storage` says."""

    def reach(self, path: Path) -> None:
        """Ask for the first object under `path`."""
        with told(path):
            next(iter(bucket_of(path).list_blobs(prefix=f"{key_of(path)}/", max_results=1)), None)

    def replace(self, path: Path, content: bytes) -> None:
        """Write the object: it appears when it is whole."""
        put(path, content)

    def append_to(self, path: Path) -> Parts:
        """Numbered objects under the file's name."""
        return Parts(path)

    def read(self, path: Path) -> bytes:
        """The parts, joined."""
        return b"".join(content for _, content in read_parts(path))

    def remove_tree(self, path: Path) -> None:
        """Remove every object under the folder."""
        check_lease(path)
        bucket = bucket_of(path)
        with told(path), concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda found: found.delete(), bucket.list_blobs(prefix=f"{key_of(path)}/")))

    def claim(self, path: Path, name: str) -> contextlib.AbstractContextManager[None]:
        """Hold a lease, renewed by a thread.

        Errors: OSError where the bucket is not one to train in; InUse; Lost.
        """
        check_bucket(path)
        return leased(path, name)

    @contextlib.contextmanager
    def stage(self, path: Path) -> Iterator[Path]:
        """A temporary folder, sent every minute."""
        with tempfile.TemporaryDirectory(prefix="headwise-staged-") as folder:
            mirror = Mirror(Path(folder), path)
            try:
                yield mirror.folder
            finally:
                mirror.close()

    def scratch(self, path: Path) -> Path:
        """A folder of its own in the user's cache."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cache / "headwise" / hashlib.sha256(os.fspath(path).encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def versions(self, path: Path, patterns: Sequence[str]) -> tuple[Version, ...]:
        """The generation and the length of each object, and of the parts of each file that grows."""
        found: list[Version] = []
        for pattern in patterns:
            within, _, last = pattern.rpartition("/")
            folder = f"{key_of(path)}/{within}/" if within else f"{key_of(path)}/"
            objects, folders = self._list(path, folder)
            matching = [each for each in folders if fnmatch.fnmatch(each[len(folder) : -1], last)]
            objects = [each for each in objects if fnmatch.fnmatch(each.name[len(folder) :], last)]
            for growing in matching:
                objects += self._list(path, growing)[0]
            found += [(each.name, int(each.generation), int(each.size)) for each in objects]
        return tuple(found)

    def key_value_store(self, path: Path) -> dict[str, Any]:
        """The driver of buckets."""
        return {"driver": "gcs", "bucket": bucket_name(path), "path": f"{key_of(path)}/"}

    def _list(self, path: Path, folder: str) -> tuple[list[Any], list[str]]:
        with told(path):
            listed = bucket_of(path).list_blobs(prefix=folder, delimiter="/")
            return list(listed), sorted(listed.prefixes)


class Mirror:
    """A folder whose files are sent to a bucket, whole, when they have changed."""

    def __init__(self, folder: Path, target: Path):
        self.folder = folder
        self._target = target
        self._sent: dict[Path, tuple[int, int]] = {}
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._send_on, name=f"mirror of {target.name}", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Send what has changed.

        Errors: OSError; Lost.
        """
        with self._sending:
            for file in sorted(file for file in self.folder.rglob("*") if file.is_file()):
                about = file.stat()
                version = about.st_size, about.st_mtime_ns
                if self._sent.get(file) != version:
                    target = self._target / file.relative_to(self.folder).as_posix()
                    check_lease(target)
                    with told(target):
                        object_at(target).upload_from_filename(os.fspath(file))
                    self._sent[file] = version

    def close(self) -> None:
        """Send what has changed, and end the thread."""
        self._closed.set()
        self._thread.join()
        self.flush()

    def _send_on(self) -> None:
        pause = PERIOD
        while not self._closed.wait(pause):
            began = time.monotonic()
            # Sent again at the next turn; Lost is told by whoever else writes.
            with contextlib.suppress(OSError, Lost):
                self.flush()
            pause = max(PERIOD, (time.monotonic() - began) / SHARE)
