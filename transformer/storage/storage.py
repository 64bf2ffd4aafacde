"""The interface of a storage: the operations of a run that differ between a disk and a bucket."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from transformer.config import UserError

# Identifies a file's content: its name and two numbers that change whenever the content does.
FileVersion = tuple[str, int, int]


class FolderEntry(NamedTuple):
    """A regular file or a folder in a folder.

    Attributes:
        name: Its name, without the folder.
        is_folder: Whether it is a folder.
        num_bytes: The size of a file; 0 of a folder.
        modified: When a file was last written, in seconds since 1970; 0 of a folder.
    """

    name: str
    is_folder: bool
    num_bytes: int
    modified: float


class DirectoryInUse(UserError):
    """The directory is in use by a live process."""

    def __init__(self, path: Path, holder: str):
        super().__init__(f"--workdir={path} is in use by {holder}; wait for it or choose another --workdir")


class DirectoryLost(UserError):
    """This process no longer holds the directory, and another may: the run must stop and write nothing more."""


class AppendOnlyFile(Protocol):
    """A file that only grows; this process is its only writer."""

    def append(self, content: bytes) -> None:
        """Add whole lines at the end: at once on a disk, within seconds in a bucket.

        Raises:
            OSError: With none of them added.
            DirectoryLost: If another process may have taken the directory.
        """

    def rewrite(self, keep: Callable[[bytes], bytes]) -> None:
        """Replace the content by what `keep` leaves of it; a kill at any moment leaves the old content or the new."""

    def flush(self) -> None:
        """Return once all that was appended is where a reader finds it, and outlives a power cut.

        Raises:
            OSError: If it cannot be written.
            DirectoryLost: If another process may have taken the directory.
        """

    def close(self) -> None:
        """Flush and close the file."""


class Storage(Protocol):
    """A disk or a bucket."""

    def reach(self, path: Path) -> None:
        """Check that the disk or bucket of `path` can be reached, whether the path exists or not.

        Raises:
            OSError: If there is no such bucket, no credentials or no permission.
        """

    def replace(self, path: Path, content: bytes) -> None:
        """Replace a file atomically: a reader finds the whole old content or the whole new content."""

    def check(self, path: Path) -> None:
        """Check that `path` may be written: this process holds its run directory, or never claimed it.

        Whatever is written through this contract is checked; what a library writes by itself is not.

        Raises:
            DirectoryLost: If another process may have taken the directory.
        """

    def append_to(self, path: Path) -> AppendOnlyFile:
        """Open a file for appending."""

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its content; a reader sees a whole checkpoint or none."""

    def move_tree(self, path: Path, to: Path) -> None:
        """Rename a folder."""

    def sync_tree(self, path: Path) -> None:
        """Flush a folder with its content to the disk, so that it survives a power failure.

        Raises:
            OSError: If the storage cannot be reached or written.
        """

    def claim(self, path: Path, name: str) -> AbstractContextManager[None]:
        """Lock the directory at `path` by its file `name` while the context lasts; create it if it is missing.

        The lock ends with the process, however it ends.

        Raises:
            DirectoryInUse: If a live process holds it.
            DirectoryLost: Inside the context or at its end, if another process has taken the directory.
        """

    def is_claimed(self, path: Path, name: str) -> bool:
        """Return, without waiting, whether a process holds the directory at `path` by its file `name`.

        In a bucket also for the seconds that the lease of a dead process lasts.

        Raises:
            OSError: If the storage cannot be reached.
        """

    def stage(self, path: Path) -> AbstractContextManager[Path]:
        """Return a local folder whose files are uploaded to `path`, for libraries that write only to disks.

        Every few seconds while the context lasts, and when it is left.

        Raises:
            OSError: If the storage cannot be reached or written.
            DirectoryLost: If another process may have taken the directory.
        """

    def scratch(self, path: Path) -> Path:
        """Return a local folder for files of a run that can be made again and that other machines do not need."""

    def versions(self, path: Path, patterns: Sequence[str]) -> tuple[FileVersion, ...]:
        """Return the versions of the files under `path` that match a pattern such as "*.json" or "maps/*.json"."""

    def list_folder(self, path: Path) -> list[FolderEntry]:
        """Return the files and folders in the folder `path`, by name; links, pipes and devices are left out.

        Raises:
            OSError: If it is missing or cannot be read.
        """

    def tree_size(self, path: Path) -> int:
        """Return the bytes of all files in a folder and below it; those that cannot be read are left out.

        Raises:
            OSError: If the storage cannot be reached.
        """

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes.

        Raises:
            OSError: If it is missing or cannot be read.
            UserError: If it is no regular file.
        """

    def read_range(self, path: Path, start: int, stop: int) -> bytes:
        """Return the bytes `start` to `stop` - 1 of a file, fewer where it ends before.

        Raises:
            OSError: If it is missing or cannot be read.
            UserError: If it is no regular file.
        """

    def key_value_store(self, path: Path) -> dict[str, Any]:
        """Return the tensorstore specification of the folder `path`."""
