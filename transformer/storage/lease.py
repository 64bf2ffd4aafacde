"""A lease on a run directory in a bucket: a bucket has no kernel that frees the lock of a dead process.

The lease is an object that says who holds it and for how many seconds. Its holder replaces it again and again, each
time on the condition that nobody else has. A claimant that sees it renewed goes away; one that watches it for its
seconds without a renewal takes it over, on the same condition, so that of several claimants one succeeds. No two clocks
are ever compared: each process measures by a monotonic clock of its own.

A holder writes only while its lease lasts, and asks the bucket before each write whether the lease is still its own
(`Lease.confirm`). A write that was held up in between finds that its object is no longer what it was, and fails
(transformer.storage.bucket).
"""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from transformer.config import Range, UserError
from transformer.storage.gcs_objects import ABSENT_GENERATION, blob_at, object_key, translate_gcs_errors
from transformer.storage.json_reading import parse_dataclass, parse_json
from transformer.storage.storage import DirectoryInUse, DirectoryLost

LEASE_SECONDS = 60.0  # that a holder which died keeps its directory
_RENEWALS = 4  # in that time
_LONGEST = 3600.0  # seconds of a lease that a process of ours may have written

# A clock that goes on while the machine sleeps, on systems that have one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# The leases of this process by their directory.
_leases: dict[str, "Lease"] = {}


@dataclasses.dataclass(frozen=True)
class LeaseFile:
    """The content of a lease file: the holder, its token, and the seconds between renewals."""

    holder: str
    token: str
    seconds: Annotated[float, Range(0, _LONGEST)]


class _StoredLease(NamedTuple):
    """The lease that the bucket holds."""

    generation: int
    holder: str
    token: str
    seconds: float


class Lease:
    """A lease on a directory, renewed by a thread until it is released or lost."""

    def __init__(self, path: Path, name: str, seconds: float):
        self._path, self._seconds = path, seconds
        self._file = path / name
        self._holder = f"process {os.getpid()} on host {socket.gethostname()}"
        self._token = uuid.uuid4().hex  # a process can hold, lose and claim again
        self._generation = ABSENT_GENERATION
        self._renewed = 0.0
        self._lost: str | None = None
        self._released = threading.Event()
        self._claimant = threading.current_thread()
        self._thread = threading.Thread(target=self._renew_until_released, name="lease", daemon=True)

    def acquire(self) -> None:
        """Acquire the lease; wait only until it is known whether its holder is alive.

        Raises:
            DirectoryInUse: If a live process holds the directory.
            OSError: If the bucket cannot be reached.
        """
        first_stored: _StoredLease | None = None
        since = monotonic_seconds()
        while True:
            stored = self._read_lease()
            if stored is not None:
                if first_stored is not None and first_stored.generation != stored.generation:
                    raise DirectoryInUse(self._path, stored.holder)
                if first_stored is None:
                    first_stored, since = stored, monotonic_seconds()
                    notice = f"{self._path} is held by {stored.holder}; for up to {stored.seconds:.0f} seconds"
                    print(f"{notice} it is watched whether that process is alive", file=sys.stderr, flush=True)
                if monotonic_seconds() - since < stored.seconds:
                    time.sleep(stored.seconds / (4 * _RENEWALS))
                    continue
            if self._write_lease(ABSENT_GENERATION if stored is None else stored.generation, patient=True):
                self._thread.start()
                return

    def release(self) -> None:
        """Release the lease, unless another process holds it by now."""
        self._released.set()
        self._thread.join()
        if not self.is_lost:
            # A lease that stays ends by itself.
            with contextlib.suppress(OSError, _precondition_error()), translate_gcs_errors(self._file):
                blob_at(self._file).delete(if_generation_match=self._generation, timeout=self._request_seconds)

    def check(self) -> None:
        """Check that no other process can hold the directory.

        Raises:
            DirectoryLost: If another process may have taken the directory.
        """
        # The thread may itself have been stopped, with the machine, for longer than the lease lasts.
        if self._lost is None and monotonic_seconds() - self._renewed > self._seconds:
            self._lost = "could not be renewed in time"
        if self._lost is not None:
            raise DirectoryLost(
                f"--workdir={self._path} is no longer held by this run: its lease {self._lost}; the run has stopped. "
                "Start it again to resume it, if no other process trains in it"
            )

    def confirm(self) -> None:
        """Ask the bucket that no other process holds the directory.

        Raises:
            DirectoryLost: If another process may have taken the directory.
            OSError: If the bucket cannot be reached.
        """
        self.check()
        self._mark_lost_if_replaced(self._read_lease())
        self.check()

    @property
    def is_lost(self) -> bool:
        """Whether the lease was lost: another process may hold the directory."""
        return self._lost is not None

    @property
    def _request_seconds(self) -> float:
        return self._seconds / _RENEWALS

    def _mark_lost_if_replaced(self, stored: _StoredLease | None) -> None:
        """Know that the lease is lost, if what the bucket holds is not this one."""
        if stored is None or stored.token != self._token:
            self._lost = f"was taken over by {stored.holder}" if stored else "was removed from the bucket"

    def _renew_until_released(self) -> None:
        """The thread: renew, and once that is too late interrupt the main thread if that is the claimant."""
        while not self._released.wait(self._request_seconds):
            # Where the bucket cannot be reached for a while, the next attempt may still be in time.
            with contextlib.suppress(OSError):
                if not self._write_lease(self._generation):
                    self._mark_lost_if_replaced(self._read_lease())
            try:
                self.check()
            except DirectoryLost:
                # A signal, which wakes it also where it waits; other threads find out at their next write.
                if self._claimant is threading.main_thread() and self._claimant.ident is not None:
                    signal.pthread_kill(self._claimant.ident, signal.SIGINT)
                return

    def _write_lease(self, generation: int, patient: bool = False) -> bool:
        """Replace the lease of a known generation; False where the object has another generation by now.

        `patient`: try again for a while where the bucket fails, as the thread does by itself.

        Raises:
            OSError: If the bucket cannot be reached.
        """
        start = monotonic_seconds()
        content = dataclasses.asdict(LeaseFile(self._holder, self._token, self._seconds))
        lease = blob_at(self._file)
        try:
            with translate_gcs_errors(self._file):
                lease.upload_from_string(
                    json.dumps(content, indent=1) + "\n",
                    content_type="application/json",
                    if_generation_match=generation,
                    timeout=self._request_seconds,
                    retry=_default_retry().with_timeout(self._request_seconds) if patient else None,
                )
            new_generation = int(lease.generation)
        except _precondition_error():
            # A write whose answer was lost has succeeded nevertheless; but that was earlier, so it is made again.
            stored = self._read_lease()
            return stored is not None and stored.token == self._token and self._write_lease(stored.generation)
        self._generation, self._renewed = new_generation, start
        return True

    def _read_lease(self) -> _StoredLease | None:
        while True:
            lease = blob_at(self._file)
            # Replaced or removed between the two requests: asked again.
            with contextlib.suppress(_precondition_error()):
                try:
                    with translate_gcs_errors(self._file):
                        lease.reload(timeout=self._request_seconds)
                        generation = int(lease.generation)
                        content = lease.download_as_bytes(if_generation_match=generation, timeout=self._request_seconds)
                except FileNotFoundError:
                    return None
                return _parse_lease(generation, content, self._seconds)


def _parse_lease(generation: int, content: bytes, seconds: float) -> _StoredLease:
    """A lease as it was written; anything else, such as the lock file of a disk, as one of so many seconds."""
    with contextlib.suppress(UserError):
        lease_file = parse_dataclass(LeaseFile, parse_json(content, "it"), "it")
        if lease_file.seconds:
            return _StoredLease(generation, lease_file.holder, lease_file.token, lease_file.seconds)
    return _StoredLease(generation, content.decode(errors="replace").strip(), "", seconds)


@contextlib.contextmanager
def hold_lease(path: Path, name: str) -> Iterator[None]:
    """Hold a lease on the directory at `path` while the context lasts.

    Raises:
        DirectoryInUse: If a live process holds the directory.
        DirectoryLost: In the midst of the context where it runs in the main thread, else when it is left.
    """
    lease = Lease(path, name, LEASE_SECONDS)
    lease.acquire()
    _leases[object_key(path)] = lease
    try:
        yield
        lease.check()
    except KeyboardInterrupt:
        lease.check()  # it was the lease's own
        raise
    finally:
        lease.release()
        # A lost one stays: what this run still holds back, in some thread, is not to be written.
        if not lease.is_lost:
            del _leases[object_key(path)]


def monotonic_seconds() -> float:
    """Return the seconds of a monotonic clock that runs while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


def find_lease(path: Path) -> Lease | None:
    """Return the lease, held or lost, of this process on the directory of `path`, or None."""
    key = object_key(path)
    return next((lease for directory, lease in list(_leases.items()) if key.startswith(f"{directory}/")), None)


def check_lease(path: Path) -> None:
    """Check that `path` may be written: the lease on its directory, if this process took one, is held.

    Raises:
        DirectoryLost: If another process may have taken the directory.
    """
    lease = find_lease(path)
    if lease is not None:
        lease.check()


def check_lease_in_bucket(path: Path) -> None:
    """As `check_lease`, asking the bucket itself.

    Raises:
        DirectoryLost: If another process may have taken the directory.
        OSError: If the storage cannot be reached or written.
    """
    lease = find_lease(path)
    if lease is not None:
        lease.confirm()


def _default_retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY


def _precondition_error() -> type[Exception]:
    from google.api_core.exceptions import PreconditionFailed

    return PreconditionFailed
