"""A lease on a run directory in a bucket: a bucket has no kernel that frees the lock of a dead process.

The lease is an object that says who holds it and for how many seconds. Its holder replaces it again and again, each
time on the condition that nobody else has. A claimant that sees it renewed goes away; one that watches it for its
seconds without a renewal takes it over, on the same condition, so that of several claimants one succeeds. Nothing
depends on clocks that agree, but for leases so old that no clock of a working machine could be that wrong.
"""

import contextlib
import datetime
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
from typing import NamedTuple

from transformer.storage.contract import InUse, Lost
from transformer.storage.objects import ABSENT, key_of, object_at, told

SECONDS = 60.0  # that a holder which died keeps its directory
_RENEWALS = 4  # in that time
_OLD = 3  # times its seconds that a lease must be past for its date alone to be believed

# A clock that goes on while the machine sleeps, on systems that have one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# The leases of this process by their directory.
_held: dict[str, "Lease"] = {}


class _Stored(NamedTuple):
    """The lease that the bucket holds."""

    generation: int
    holder: str
    token: str
    seconds: float
    written: datetime.datetime


class Lease:
    """This process's hold on a directory, renewed by a thread until it is released or lost."""

    def __init__(self, path: Path, name: str, seconds: float):
        self._path, self._seconds = path, seconds
        self._file = path / name
        self._holder = f"process {os.getpid()} on host {socket.gethostname()}"
        self._token = uuid.uuid4().hex  # a process can hold, lose and claim again
        self._generation = ABSENT
        self._renewed = 0.0
        self._lost: str | None = None
        self._released = threading.Event()
        self._claimant = threading.current_thread()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def acquire(self) -> None:
        """Take the lease, waiting no longer than it takes to know whether its holder is alive.

        Errors: InUse; OSError where the bucket cannot be reached.
        """
        seen: _Stored | None = None
        since = now()
        while True:
            stored = self._read()
            if stored is not None and not self._expired(stored):
                if seen is not None and seen.generation != stored.generation:
                    raise InUse(self._path, stored.holder)
                if seen is None:
                    seen, since = stored, now()
                    about = f"{self._path} is held by {stored.holder}; for up to {stored.seconds:.0f} seconds"
                    print(f"{about} it is watched whether that process is alive", file=sys.stderr, flush=True)
                if now() - since < stored.seconds:
                    time.sleep(stored.seconds / (4 * _RENEWALS))
                    continue
            if self._write(ABSENT if stored is None else stored.generation):
                self._thread.start()
                return

    def release(self) -> None:
        """Let go; what another process may hold by now is left alone."""
        self._released.set()
        self._thread.join()
        if not self.lost:
            # A lease that stays ends by itself.
            with contextlib.suppress(OSError, _refused()), told(self._file):
                object_at(self._file).delete(if_generation_match=self._generation, timeout=self._patience)

    def check(self) -> None:
        """Return if nobody else can hold the directory.

        Errors: Lost.
        """
        # The thread may itself have been stopped, with the machine, for longer than the lease lasts.
        if self._lost is None and now() - self._renewed > self._seconds:
            self._lost = "could not be renewed in time"
        if self._lost is not None:
            raise Lost(
                f"--workdir={self._path} is no longer held by this run: its lease {self._lost}; the run has stopped. "
                "Start it again to resume it, if no other process trains in it"
            )

    @property
    def lost(self) -> bool:
        """Whether another process may hold the directory."""
        return self._lost is not None

    @property
    def _patience(self) -> float:
        return self._seconds / _RENEWALS

    def _expired(self, stored: _Stored) -> bool:
        age = datetime.datetime.now(datetime.UTC) - stored.written
        return age.total_seconds() > _OLD * stored.seconds

    def _renew(self) -> None:
        """The thread: renew, and once that is too late interrupt the main thread if that is the claimant."""
        while not self._released.wait(self._patience):
            # Where the bucket cannot be reached for a while, the next attempt may still be in time.
            with contextlib.suppress(OSError):
                if not self._write(self._generation):
                    stored = self._read()
                    self._lost = f"was taken over by {stored.holder}" if stored else "was removed from the bucket"
            try:
                self.check()
            except Lost:
                # A signal, which wakes it also where it waits; other threads find out at their next write.
                if self._claimant is threading.main_thread() and self._claimant.ident is not None:
                    signal.pthread_kill(self._claimant.ident, signal.SIGINT)
                return

    def _write(self, generation: int) -> bool:
        """Replace the lease of a known generation; False where the object has another generation by now.

        Errors: OSError where the bucket cannot be reached.
        """
        began = now()
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self._seconds)
        about = {
            "holder": self._holder,
            "token": self._token,
            "seconds": self._seconds,
            "expires": expires.isoformat(timespec="seconds"),
        }
        lease = object_at(self._file)
        try:
            with told(self._file):
                lease.upload_from_string(
                    json.dumps(about, indent=1) + "\n",
                    content_type="application/json",
                    if_generation_match=generation,
                    timeout=self._patience,
                    retry=None,
                )
            written = int(lease.generation)
        except _refused():
            # A write whose answer was lost has succeeded nevertheless; but that was earlier, so it is made again.
            stored = self._read()
            return stored is not None and stored.token == self._token and self._write(stored.generation)
        self._generation, self._renewed = written, began
        return True

    def _read(self) -> _Stored | None:
        while True:
            lease = object_at(self._file)
            # Replaced or removed between the two requests: asked again.
            with contextlib.suppress(_refused()):
                try:
                    with told(self._file):
                        lease.reload(timeout=self._patience)
                        generation, written = int(lease.generation), lease.updated
                        content = lease.download_as_bytes(if_generation_match=generation, timeout=self._patience)
                except FileNotFoundError:
                    return None
                try:
                    about = json.loads(content)
                    return _Stored(generation, about["holder"], about["token"], float(about["seconds"]), written)
                except (ValueError, KeyError, TypeError):
                    # The lock file of a disk, copied to the bucket with its run: nobody renews it.
                    return _Stored(generation, content.decode(errors="replace").strip(), "", self._seconds, written)


@contextlib.contextmanager
def leased(path: Path, name: str) -> Iterator[None]:
    """Hold the directory at `path` by a lease while the context lasts.

    Errors: InUse; Lost, in the midst of the context where it runs in the main thread, else when it is left.
    """
    lease = Lease(path, name, SECONDS)
    lease.acquire()
    _held[key_of(path)] = lease
    try:
        yield
        lease.check()
    except KeyboardInterrupt:
        lease.check()  # it was the lease's own
        raise
    finally:
        lease.release()
        # A lost one stays: what this run still holds back, in some thread, is not to be written.
        if not lease.lost:
            del _held[key_of(path)]


def now() -> float:
    """Seconds of a monotonic clock."""
    return time.clock_gettime(_CLOCK)


def check_lease(path: Path) -> None:
    """Return if what lies at `path` may be written: it is in no directory of this process's, or in one that it holds.

    Errors: Lost.
    """
    key = key_of(path)
    for directory, lease in list(_held.items()):
        if key.startswith(f"{directory}/"):
            lease.check()


def _refused() -> type[Exception]:
    from google.api_core.exceptions import PreconditionFailed

    return PreconditionFailed
