"""Folders outside of a run whose content is trusted: only the user can change or replace what is in them."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from transformer.config import UserError

_LINKS = 40  # the most links in a path, as on Linux


class NotPrivateError(UserError):
    """A folder that another user could have filled or replaced."""


def private_folder(base: Path, *names: str, create: bool = True) -> Path:
    """Return the folder NAMES in `base`, whose content only the user controls.

    Only the user and root may write to `base` and to all folders that lead to it; it may be a link of theirs, as where
    homes are on another disk. The folders of NAMES must belong to the user and not be links, and the last is closed to
    all others.

    Args:
        base: An absolute path, such as ~/.cache.
        *names: The names of nested folders in it.
        create: Whether missing folders are created.

    Raises:
        NotPrivate: If a folder is not private; the message says which, and what to do.
        OSError: If a folder is missing or cannot be created.
    """
    if not base.is_absolute():
        raise FileNotFoundError(f"{base} is not an absolute path")
    if create:
        for missing in [folder for folder in (base, *base.parents) if not folder.exists()][::-1]:
            missing.mkdir(mode=0o700, exist_ok=True)  # pathlib would leave parents open
    for path, facts in _walk_to(base):
        _require_owner(path, facts, 0, os.getuid())
        # In a folder with the sticky bit, such as /tmp, only owners can rename or remove their files.
        if stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
            raise NotPrivateError(
                f"others may write to {path} ({_format_mode(facts)}): close it with chmod go-w {path}"
            )
    folder = base
    for name in names:
        folder = folder / name
        if create:
            folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
        if stat.S_ISLNK(facts.st_mode):
            raise NotPrivateError(f"{folder} is a link: remove it, so that a folder is made in its place")
        _require_owner(folder, facts, os.getuid())
        if facts.st_mode & 0o022:
            raise NotPrivateError(
                f"others may write to {folder} ({_format_mode(facts)}), and may have: remove it with all in it"
            )
    if folder.lstat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def _walk_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder and link on the way from the root to the target of an absolute path."""
    folder, pending_names, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    yield folder, folder.lstat()
    while pending_names:
        name = pending_names.pop()
        if name == "..":
            folder = folder.parent
            continue
        entry = folder / name
        facts = entry.lstat()
        yield entry, facts
        if not stat.S_ISLNK(facts.st_mode):
            folder = entry
            continue
        links += 1
        if links > _LINKS:
            raise NotPrivateError(f"{path} leads over more than {_LINKS} links")
        target = Path(os.readlink(entry))
        pending_names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        folder = Path(target.anchor) if target.is_absolute() else folder


def _require_owner(path: Path, facts: os.stat_result, *owners: int) -> None:
    if facts.st_uid not in owners:
        raise NotPrivateError(f"{path} belongs to another user (number {facts.st_uid}), who decides what is in it")


def _format_mode(facts: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(facts.st_mode):04o}"
