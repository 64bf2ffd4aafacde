"""What a run needs of the place that its directory lies in, where a disk and a bucket differ."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from transformer.config import UserError

# What changes whenever a file's content does: its name and two numbers.
FileVersion = tuple[str, int, int]


class DirectoryInUse(UserError):
    """A directory that a live process holds."""

    def __init__(self, path: Path, holder: str):
        super().__init__(f"--workdir={path} is in use by {holder}; wait for it or choose another --workdir")


class DirectoryLost(UserError):
    """A directory that was this process's and may by now be another's: the run must stop and write nothing more."""


class AppendOnlyFile(Protocol):
    """A file that grows, written by this process alone."""

    def append(self, content: bytes) -> None:
        """Add whole lines at the end: at once on a disk, within seconds in a bucket.

        Raises:
            OSError: With none of them added.
            DirectoryLost: As described above.
        """

    def rewrite(self, keep: Callable[[bytes], bytes]) -> None:
        """Replace the content by what `keep` leaves of it; a kill at any moment leaves the old content or the new."""

    def flush(self) -> None:
        """Return once all that was appended is where a reader finds it, and outlives a power cut.

        Raises:
            OSError: If it cannot be written.
            DirectoryLost: As described above.
        """

    def close(self) -> None:
        """Flush and close the file."""


class Storage(Protocol):
    """A disk or a bucket."""

    def reach(self, path: Path) -> None:
        """Return if the disk or bucket of `path` answers; whether the path exists does not matter.

        Raises:
            OSError: That says why it cannot: no such bucket, no credentials, no permission.
        """

    def replace(self, path: Path, content: bytes) -> None:
        """Write a file so that a reader, or a kill at any moment, finds the old content or the new one, whole."""

    def check(self, path: Path) -> None:
        """Return if `path` may be written: it is in no directory that this process claimed, or in one that it holds.

        Whatever is written through this contract is checked; what a library writes by itself is not.

        Raises:
            DirectoryLost: As described above.
        """

    def append_to(self, path: Path) -> AppendOnlyFile:
        """A file that grows, from the content that it has."""

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and all that is in it: a reader finds a checkpoint whole, or not at all."""

    def move_tree(self, path: Path, to: Path) -> None:
        """Give a folder another name in the same place."""

    def sync_tree(self, path: Path) -> None:
        """Return once a folder and all that is in it outlive a power cut.

        Raises:
            OSError: As described above.
        """

    def claim(self, path: Path, name: str) -> AbstractContextManager[None]:
        """Hold the directory at `path`, made if it is missing, by the file `name` in it while the context lasts.

        A holder that dies, however it dies, holds it no longer.

        Raises:
            DirectoryInUse: If a live process holds it.
            DirectoryLost: In the midst of the context, or when it is left.
        """

    def stage(self, path: Path) -> AbstractContextManager[Path]:
        """A folder on a disk, for a library that writes nowhere else: its files arrive under `path`.

        Every few seconds while the context lasts, and when it is left.

        Raises:
            OSError: As described above.
            DirectoryLost: As described above.
        """

    def scratch(self, path: Path) -> Path:
        """A folder on a disk for files of a run that can be made again, which other machines need not see."""

    def versions(self, path: Path, patterns: Sequence[str]) -> tuple[FileVersion, ...]:
        """The files under `path` that match one of the patterns, as "*.json" or "maps/*.json": equal ones are equal."""

    def key_value_store(self, path: Path) -> dict[str, Any]:
        """The tensorstore specification of the folder `path`."""
