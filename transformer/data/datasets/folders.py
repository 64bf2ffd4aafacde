"""What lies in a folder of data: the files that are read, their splits by name, and what is not read and said."""

import collections
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from transformer.config import UserError
from transformer.data.datasets.own_files import check_inside
from transformer.terminal import printable

_SPELLINGS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing"),
}
_SPLITS = {f"{name}{ending}": split for split, names in _SPELLINGS.items() for name in names for ending in ("", "set")}
_SHARD = re.compile(r"[ ._-]*\d+([ ._-]*of[ ._-]*\d+)?$")
# What operating systems put beside a user's files, hidden where they are at home.
_HIDDEN = ("__macosx", "thumbs.db", "desktop.ini")
# Files about a data set, not of it.
_ABOUT = ("readme", "license", "licence", "copying", "citation", "notice", "changelog")
_SHOWN = 3


class Folder(NamedTuple):
    """The files of a folder and beneath it that are read, in the order of their names, and the names of what is not."""

    files: tuple[pathlib.Path, ...]
    left_out: tuple[str, ...]


def spellings(split: str) -> tuple[str, ...]:
    """How a split is called."""
    return _SPELLINGS[split]


def hidden(name: str) -> bool:
    """Whether a file or a folder of this name is hidden: `.git`, `.ipynb_checkpoints`, `._1.jpg`, `Thumbs.db`."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _HIDDEN


def about(name: str) -> bool:
    """Whether a file of this name tells of the data: `README.md`, `LICENSE`."""
    return name.partition(".")[0].lower() in _ABOUT


def split_of(stem: str) -> str | None:
    """The split that a name without its ending says: `train`, `Valid`, `train-00001-of-00002`, `test_data`, `wiki.dev`.

    Errors: UserError for a name that says two.
    """
    words = re.split(r"[._-]+", _SHARD.sub("", stem.lower()))
    named = {_SPLITS[word] for word in (words[0], words[-1]) if word in _SPLITS}
    if len(named) > 1:
        raise UserError(f"{stem!r} names the splits {' and '.join(sorted(named))}: call it by one")
    return named.pop() if named else None


def own_names(splits: Iterable[str]) -> dict[str, str]:
    """What each split of a set is called here: as the set calls it, but for other spellings of train and so on.

    Splits that spell the same one keep their names.
    """
    own = {split: _SPLITS.get(split.lower(), split) for split in splits}
    counts = collections.Counter(own.values())
    return {split: name if counts[name] == 1 else split for split, name in own.items()}


def list_files(folder: pathlib.Path, endings: Sequence[str]) -> Folder:
    """The files of these endings, in small or capital letters, in a folder and beneath it.

    What is hidden, and what tells of the data, is not read.

    Errors: UserError for other files, with their number and names; for links to folders or out of the folder, and for
    what is neither a file nor a folder.
    """
    files: list[pathlib.Path] = []
    left_out: list[str] = []
    unknown: list[str] = []
    for entry in _walk(folder, left_out):
        name = str(entry.relative_to(folder))
        if entry.suffix.lower() in endings:
            files.append(entry)
        else:
            (left_out if about(entry.name) else unknown).append(name)
    refuse_unknown(folder, sorted(unknown), endings)
    return Folder(tuple(sorted(files)), tuple(sorted(left_out)))


def _walk(folder: pathlib.Path, left_out: list[str]) -> Iterator[pathlib.Path]:
    """Every file in a folder and beneath it that is not hidden; what is hidden is added to `left_out`."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{folder} cannot be read whole: {error}") from error

    for root, folders, names in os.walk(folder, onerror=refuse):
        for name in (*folders, *names):
            entry = pathlib.Path(root, name)
            if hidden(name):
                left_out.append(str(entry.relative_to(folder)))
                continue
            check_entry(entry, folder)
            if name in names:
                yield entry
        folders[:] = [name for name in folders if not hidden(name)]


def check_entry(entry: pathlib.Path, folder: pathlib.Path) -> None:
    """Refuse what stands in a folder and is neither a file nor a folder of it.

    Errors: UserError, also for a link that leads out.
    """
    check_inside(entry, folder)
    if entry.is_dir() and entry.is_symlink():
        raise UserError(f"{entry} is a link to a folder, which would be read twice: put a folder there, or remove it")
    if not entry.is_dir() and not entry.is_file():
        raise UserError(f"{entry} is neither a file nor a folder: remove it")


def refuse_unknown(where: pathlib.Path, names: Sequence[str], endings: Sequence[str]) -> None:
    """Refuse files that are of no kind that is read: leaving them out would leave out, in silence, what may be data.

    Errors: UserError with the first names, and how many there are of every ending.
    """
    if not names:
        return
    counts = collections.Counter(pathlib.PurePath(name).suffix.lower() or "no ending" for name in names)
    kinds = ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items()))
    raise UserError(
        f"{where} holds {len(names)} file{'s' * (len(names) > 1)} of other kinds than {', '.join(endings)} ({kinds}): "
        f"{_listed(names)}; convert or remove them"
    )


def said_of_left_out(names: Sequence[str]) -> str:
    """Which names are not read, in words; "" for none."""
    return f"not read: {_listed(names)}" if names else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    text = ", ".join(names[:_SHOWN])
    # A stranger has chosen the names.
    return printable(text) + (f" and {more:,} more" if more > 0 else "")


def joined(parts: Iterable[str]) -> str:
    """What there is to say, of which some may be "", as one text."""
    return "; ".join(part for part in parts if part)
