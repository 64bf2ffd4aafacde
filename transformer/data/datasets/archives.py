"""Zip archives of published sets, which may be damaged or a stranger's: read where they lie, member by member."""

import contextlib
import pathlib
import re
import zipfile
import zlib
from collections.abc import Iterator

from transformer.config import UserError
from transformer.data.datasets.user_files import hidden


@contextlib.contextmanager
def told_of(path: pathlib.Path) -> Iterator[None]:
    """What a damaged archive raises, wherever the damage lies, is told as a UserError that names `path`."""
    try:
        yield
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read as an archive: {error}") from error


def members_of(
    path: pathlib.Path, name: re.Pattern[str], most_bytes: int
) -> Iterator[tuple[re.Match[str], str, bytes]]:
    """Of each member whose name matches, in the order of names: the match, where it lies, and its bytes.

    `unread_members` says which members these are not.

    Errors: UserError for an archive that cannot be read, and for a member of more than `most_bytes`.
    """
    with told_of(path), zipfile.ZipFile(path) as archive:
        for member in sorted(archive.infolist(), key=lambda each: each.filename):
            if (match := name.fullmatch(member.filename)) is None:
                continue
            where = f"{path}: {member.filename}"
            if member.file_size > most_bytes:
                raise UserError(f"{where} has {member.file_size:,} bytes, where {most_bytes:,} are the most")
            yield match, where, archive.read(member)


def unread_members(path: pathlib.Path, name: re.Pattern[str], ending: str) -> list[str]:
    """The members whose names do not match: what is hidden, and files of other kinds than those of this ending.

    Errors: UserError for an archive that cannot be read, and for a member of this ending whose name does not match.
    """
    unread = []
    with told_of(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir() or name.fullmatch(member.filename):
                continue
            is_hidden = any(map(hidden, member.filename.split("/")))
            if member.filename.lower().endswith(ending) and not is_hidden:
                raise UserError(f"{path}: {member.filename} is not named as {ending} files of this set are: remove it")
            unread.append(f"{path.name}/{member.filename}")
    return unread
