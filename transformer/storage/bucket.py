"""Run directories in a bucket: `gs://bucket/folder`, through the extra `gcs`."""

import concurrent.futures
import contextlib
import fnmatch
import functools
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
from etils.epath import gpath

from transformer.storage.disk import AppendOnlyDiskFile, DiskStorage
from transformer.storage.gcs_objects import (
    ABSENT_GENERATION,
    blob_at,
    bucket_name,
    bucket_of,
    check_bucket_access,
    object_key,
    translate_gcs_errors,
)
from transformer.storage.lease import check_lease, check_lease_in_bucket, find_lease, hold_lease
from transformer.storage.storage import DirectoryLost, FileVersion, FolderEntry
from transformer.system.private_folders import private_folder

SYNC_SECONDS = 10.0  # seconds between two looks for what has changed
SYNC_TIME_FRACTION = 0.05  # of the time that sending it may take
_ATTEMPTS = 5  # at writing an object that changes in between
COMMIT_MARKER = "commit_success.txt"  # by which orbax marks a whole checkpoint


# Other processes write to the bucket: no listing is kept.
for _scheme in ("gs", "gcs"):
    fsspec.config.conf.setdefault(_scheme, {})["use_listings_cache"] = False


class BucketPath(gpath.PosixGPath):
    """A path in a bucket with pathlib's methods; etils would resolve it against the working directory."""

    def resolve(self, strict: bool = False) -> "BucketPath":
        return self

    def read_bytes(self) -> bytes:
        """The content, of one generation also where another process replaces it.

        Raises:
            FileNotFoundError: If the object does not exist.
            OSError: If the storage cannot be reached or written.
        """
        with translate_gcs_errors(self):
            return blob_at(self).download_as_bytes()

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object; one that is missing may be what an attempt has removed whose answer was lost.

        Raises:
            OSError: If the storage cannot be reached or written.
            DirectoryLost: If another process may have taken the directory.
        """
        with contextlib.suppress(FileNotFoundError), translate_gcs_errors(self):
            blob = blob_at(self)
            blob.reload()
            check_lease_in_bucket(self)
            blob.delete()  # of this generation

    def read_text(self, encoding: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8")


class BucketStorage:
    """Storage in a bucket, as `transformer.storage.storage.Storage` says."""

    def reach(self, path: Path) -> None:
        """Request the first object under `path`."""
        with translate_gcs_errors(path):
            next(iter(bucket_of(path).list_blobs(prefix=f"{object_key(path)}/", max_results=1)), None)

    def replace(self, path: Path, content: bytes) -> None:
        def send(target: Any, **conditions: Any) -> None:
            target.upload_from_string(content, content_type="application/octet-stream", **conditions)

        _write_object(path, send)

    def check(self, path: Path) -> None:
        check_lease(path)

    def append_to(self, path: Path) -> "MirroredFile":
        """A temporary file, sent every few seconds."""
        return MirroredFile(path)

    def remove_tree(self, path: Path) -> None:
        """Remove the mark of a committed checkpoint first: without it there is none."""
        check_lease_in_bucket(path)
        bucket = bucket_of(path)
        with translate_gcs_errors(path), concurrent.futures.ThreadPoolExecutor(8) as pool:
            blobs = list(bucket.list_blobs(prefix=f"{object_key(path)}/"))
            for blob in blobs:
                if blob.name == object_key(path / COMMIT_MARKER):
                    _delete_blob(blob)
            other_blobs = [blob for blob in blobs if blob.name != object_key(path / COMMIT_MARKER)]
            list(pool.map(_delete_blob, other_blobs))

    def move_tree(self, path: Path, to: Path) -> None:
        """Copy every object, then remove the old ones: a bucket knows no renaming."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        check_lease_in_bucket(path)
        bucket = bucket_of(path)
        with translate_gcs_errors(path), concurrent.futures.ThreadPoolExecutor(8) as pool:
            blobs = bucket.list_blobs(prefix=f"{object_key(path)}/")
            pairs = [(blob, f"{object_key(to)}{blob.name.removeprefix(object_key(path))}") for blob in blobs]
            # Copied twice it is the same: Google's client would not try again without a condition.
            list(pool.map(lambda pair: bucket.copy_blob(pair[0], bucket, pair[1], retry=DEFAULT_RETRY), pairs))
        self.remove_tree(path)

    def sync_tree(self, path: Path) -> None:
        """Nothing: an object that was written stays."""

    def claim(self, path: Path, name: str) -> contextlib.AbstractContextManager[None]:
        """Hold a lease, renewed by a thread.

        Raises:
            OSError: If the bucket is not one to train in.
            DirectoryInUse: If a live process holds the directory.
            DirectoryLost: If another process may have taken the directory.
        """
        check_bucket_access(path)
        return hold_lease(path, name)

    def is_claimed(self, path: Path, name: str) -> bool:
        return (path / name).is_file()

    @contextlib.contextmanager
    def stage(self, path: Path) -> Iterator[Path]:
        """A temporary folder, sent every few seconds."""
        with tempfile.TemporaryDirectory(prefix="headwise-staged-") as folder:
            mirror = BucketMirror(Path(folder), path)
            try:
                yield mirror.source
            finally:
                mirror.close()

    def scratch(self, path: Path) -> Path:
        """A folder of its own in the user's cache.

        Raises:
            NotPrivate: If others could change what is in it.
        """
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return private_folder(cache, "headwise", hashlib.sha256(os.fspath(path).encode()).hexdigest()[:16])

    def versions(self, path: Path, patterns: Sequence[str]) -> tuple[FileVersion, ...]:
        """The generation and the length of each object; of a folder that it exists."""
        versions: list[FileVersion] = []
        for pattern in patterns:
            subfolder, _, last = pattern.rpartition("/")
            folder = f"{object_key(path)}/{subfolder}/" if subfolder else f"{object_key(path)}/"
            with translate_gcs_errors(path):
                listed = bucket_of(path).list_blobs(prefix=folder, delimiter="/")
                entries = [(blob.name, int(blob.generation), int(blob.size)) for blob in listed]
            entries += [(name, 0, 0) for name in sorted(listed.prefixes)]
            versions += [entry for entry in entries if fnmatch.fnmatch(entry[0][len(folder) :].rstrip("/"), last)]
        return tuple(versions)

    def list_folder(self, path: Path) -> list[FolderEntry]:
        folder = f"{object_key(path)}/"
        with translate_gcs_errors(path):
            listed = bucket_of(path).list_blobs(prefix=folder, delimiter="/")
            entries = [
                FolderEntry(name, False, int(blob.size), blob.updated.timestamp() if blob.updated else 0.0)
                for blob in listed
                if (name := blob.name.removeprefix(folder))
            ]
        folders = [FolderEntry(prefix.removeprefix(folder).rstrip("/"), True, 0, 0.0) for prefix in listed.prefixes]
        return sorted([*entries, *folders])

    def tree_size(self, path: Path) -> int:
        with translate_gcs_errors(path):
            return sum(int(blob.size) for blob in bucket_of(path).list_blobs(prefix=f"{object_key(path)}/"))

    def size(self, path: Path) -> int:
        with translate_gcs_errors(path):
            blob = blob_at(path)
            blob.reload()
            return int(blob.size)

    def read_range(self, path: Path, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        with translate_gcs_errors(path):
            return blob_at(path).download_as_bytes(start=start, end=stop - 1)

    def key_value_store(self, path: Path) -> dict[str, Any]:
        return {"driver": "gcs", "bucket": bucket_name(path), "path": f"{object_key(path)}/"}


def _write_object(path: Path, send: Callable[..., None]) -> None:
    """Let `send` write an object, in a directory that this process holds only while it holds it.

    The object must still be what it was before the lease was confirmed: a write that was held up since, by the network
    or with the whole machine, changes nothing that another holder has written. One that fails so is made again, for it
    may be its own earlier attempt, whose answer was lost, that has changed the object.

    Raises:
        OSError: If the storage cannot be reached or written.
        DirectoryLost: If another process may have taken the directory.
    """
    from google.api_core.exceptions import PreconditionFailed

    if find_lease(path) is None:
        with translate_gcs_errors(path):
            send(blob_at(path))
        return
    for _ in range(_ATTEMPTS):
        generation = _read_generation(path)
        check_lease_in_bucket(path)
        with contextlib.suppress(PreconditionFailed), translate_gcs_errors(path):
            send(blob_at(path), if_generation_match=generation)
            return
    raise OSError(f"{path} cannot be written: something else writes it as well")


def _send_file(file: Path, target: Any, **conditions: Any) -> None:
    target.upload_from_filename(os.fspath(file), **conditions)


def _read_generation(path: Path) -> int:
    try:
        with translate_gcs_errors(path):
            blob = blob_at(path)
            blob.reload()
            return int(blob.generation)
    except FileNotFoundError:
        return ABSENT_GENERATION


def _delete_blob(blob: Any) -> None:
    """Delete an object of the generation that was listed; it is missing where an attempt's answer was lost."""
    from google.api_core.exceptions import NotFound

    with contextlib.suppress(NotFound):
        blob.delete()


class BucketMirror:
    """A file or folder whose changed files are uploaded to a bucket every few seconds."""

    def __init__(self, source: Path, target: Path):
        self.source = source
        self.sending = threading.Lock()
        self._target = target
        self._sent_versions = self._file_versions()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._flush_until_closed, name=f"mirror of {target.name}", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Upload the files that have changed.

        Raises:
            OSError: If the storage cannot be reached or written.
            DirectoryLost: If another process may have taken the directory.
        """
        with self.sending:
            for file, version in sorted(self._file_versions().items()):
                if self._sent_versions.get(file) != version:
                    target = (
                        self._target / file.relative_to(self.source).as_posix() if file != self.source else self._target
                    )
                    _write_object(target, functools.partial(_send_file, file))
                    self._sent_versions[file] = version

    def close(self) -> None:
        """Upload the files that have changed, and end the thread."""
        self._closed.set()
        self._thread.join()
        self.flush()

    def _file_versions(self) -> dict[Path, tuple[int, int]]:
        files = [self.source] if self.source.is_file() else [file for file in self.source.rglob("*") if file.is_file()]
        return {file: (status.st_size, status.st_mtime_ns) for file in files for status in (file.stat(),)}

    def _flush_until_closed(self) -> None:
        pause = SYNC_SECONDS
        while not self._closed.wait(pause):
            start = time.monotonic()
            # Sent again at the next turn; Lost is told by whoever else writes.
            with contextlib.suppress(OSError, DirectoryLost):
                self.flush()
            pause = max(SYNC_SECONDS, (time.monotonic() - start) / SYNC_TIME_FRACTION)


class MirroredFile(AppendOnlyDiskFile):
    """A file that grows in a bucket: a temporary file of this machine, begun with the object's content and mirrored."""

    def __init__(self, path: Path):
        self._target = path
        self._folder = tempfile.TemporaryDirectory(prefix="headwise-staged-")
        local = Path(self._folder.name) / path.name
        with contextlib.suppress(FileNotFoundError):
            local.write_bytes(path.read_bytes())
        super().__init__(DiskStorage(), local)
        self._mirror = BucketMirror(local, path)

    def append(self, content: bytes) -> None:
        check_lease(self._target)
        super().append(content)

    def rewrite(self, keep: Callable[[bytes], bytes]) -> None:
        with self._mirror.sending:
            super().rewrite(keep)
        self.flush()

    def flush(self) -> None:
        self._mirror.flush()

    def close(self) -> None:
        super().close()
        try:
            self._mirror.close()
        finally:
            self._folder.cleanup()
