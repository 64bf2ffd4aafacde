"""Files and folders of examples that a user has: their paths, lines and fields, and their splits by name."""

import collections
import contextlib
import csv
import hashlib
import io
import json
import math
import os
import pathlib
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer.config import UserError
from transformer.data.datasets.split_overlap import normalize_text
from transformer.data.line_splitting import split_lines
from transformer.storage.json_reading import parse_json, read_regular_file, require_object
from transformer.system.terminal import escape_control_characters

SPLITS = ("train", "validation", "test")
# Of twenty parts of the examples, one is for validation and one for test.
_PARTS = 20
_SPLIT_OF_PART = {18: "validation", 19: "test"}
_LABEL = "label"
_FIELDS_SHOWN = 8  # fields that a message lists
_CELL_CHARACTERS_SHOWN = 40
TABLE_FILES = (".tsv", ".csv", ".jsonl")
"""The endings of files of examples with named fields."""
BY_CONTENT = "the SHA-256 of each example's text (in NFC, with single spaces, case kept), 90, 5 and 5% of them"
BY_PLACE = "position, 90, 5 and 5% of the characters"
_LARGEST_TEXT = 1 << 38  # the largest text in bytes

_SPELLINGS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing"),
}

_SPLITS = {f"{name}{ending}": split for split, names in _SPELLINGS.items() for name in names for ending in ("", "set")}
_SHARD = re.compile(r"[ ._-]*\d+([ ._-]*of[ ._-]*\d+)?$")
# Files that operating systems add next to a user's files.
_HIDDEN = ("__macosx", "thumbs.db", "desktop.ini")
# Files about a data set that are not part of it.
_ABOUT_DATA = ("readme", "license", "licence", "copying", "citation", "notice", "changelog")
_NAMES_SHOWN = 3


class HeldOutFiles(NamedTuple):
    """The files of splits that have files of their own, as a config names them; "" for a split that is cut."""

    validation: str = ""
    test: str = ""

    @property
    def by_split(self) -> dict[str, str]:
        """The files by split, of those splits that have any."""
        return {split: files for split, files in self._asdict().items() if files}

    def refuse(self, name: str) -> None:
        """Refuse files for the splits of a data set that has its own splits.

        Raises:
            UserError: If there are any.
        """
        for split, files in self.by_split.items():
            raise UserError(f"config.task.{split}_files={files!r} goes with files of your own alone, not with {name!r}")

    def describe(self, by: str, by_name: Sequence[str] = ()) -> str:
        """Describe which splits are cut, which are named by files and folders, and which come from files of their own.

        Args:
            by: What determines the split of an example, in words.
            by_name: The splits that names of files and folders say.
        """
        cut = [split for split in SPLITS if split not in (*self.by_split, *by_name)]
        files = [f"{split} from {files}" for split, files in self.by_split.items()]
        parts = [f"{', '.join(cut)} cut by {by}"] if len(cut) > 1 and "train" in cut else []
        parts += [f"{', '.join(by_name)} by the names of files and folders"] if by_name else []
        return "; ".join(parts + files)


NOTHING_HELD_OUT = HeldOutFiles()


def is_table_file(name: str) -> bool:
    """Whether a name is that of a file of examples with named fields: .tsv, .csv or .jsonl."""
    return pathlib.PurePath(name).suffix.lower() in TABLE_FILES


def refuse_as_plain_text(name: str) -> None:
    """Refuse a table or a JSON document where a file is read as one plain text: its markup would be learned too.

    Raises:
        UserError: If the name ends in .csv, .tsv or .json.
    """
    if pathlib.PurePath(name).suffix.lower() in (".csv", ".tsv", ".json"):
        raise UserError(
            f'{name} is no plain text: write a .jsonl with {{"text": "..."}} in each line, one for each document, or '
            "rename the file to .txt to learn it as it is"
        )


def locate_file(name: str, data_dir: str | None) -> pathlib.Path:
    """Return the path of a file or folder that a config names: in `data_dir` if there is one, else relative to here.

    Raises:
        UserError: If the name, or a link, leads out of `data_dir`.
    """
    if data_dir is None:
        return pathlib.Path(name).expanduser()
    folder = pathlib.Path(data_dir).expanduser()
    check_inside_folder(folder / name, folder)
    return folder / name


def check_inside_folder(path: pathlib.Path, folder: pathlib.Path) -> None:
    """Check that a path does not lead out of a folder, also not through a link: a stranger may have chosen the name.

    Raises:
        UserError: If it does, or cannot be resolved.
    """
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError for a link to itself before Python 3.13
        raise UserError(f"{path} leads nowhere: {error}") from error
    if not inside:
        raise UserError(f"{path} leads out of {folder}, the folder that was named: name a file that lies in it")


def read_text(path: pathlib.Path) -> str:
    """Read a UTF-8 file, with its line ends unchanged and without a byte-order mark.

    Raises:
        UserError: If the file is missing, cannot be read, or is not UTF-8.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}: name one that exists (a relative path is from here, or --data_dir)")
    try:
        return read_regular_file(path, _LARGEST_TEXT).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} as UTF-8 text: {error}") from error


def read_raw_lines(path: pathlib.Path) -> list[str]:
    """Read the lines of a UTF-8 file as they are; a carriage return within one belongs to it.

    Raises:
        UserError: If the file is missing or unreadable, or carriage returns alone end its lines.
    """
    text = read_text(path)
    if "\r" in text and "\n" not in text:
        raise UserError(f"{path} ends its lines with carriage returns alone: end them with line feeds")
    return split_lines(text)


def read_lines(path: pathlib.Path) -> list[str]:
    """Read the lines of a UTF-8 file, without white space at their ends.

    Raises:
        UserError: If the file is missing or unreadable, has no lines, or has an empty line.
    """
    lines = [line.strip() for line in read_raw_lines(path)]
    if not any(lines):
        raise UserError(f"{path} is empty: it needs a line for each example")
    refuse_empty_lines([number for number, line in enumerate(lines, 1) if not line], path)
    return lines


def read_json_lines(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the object of every line of a .jsonl, each with its place for messages.

    Raises:
        UserError: If the file is missing or unreadable, or a line is empty or no object.
    """
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}: line {number}"
        yield where, require_object(parse_json(line, where), where)


def refuse_empty_lines(numbers: Sequence[int], path: pathlib.Path, what: str = "") -> None:
    """Refuse lines with something empty, since leaving them out silently would drop examples.

    Args:
        numbers: The numbers of the lines.
        path: The file, for the message.
        what: The name of the empty field; "" for an empty line.

    Raises:
        UserError: If there are any; the message has the first and their number.
    """
    if numbers:
        more = f", and {len(numbers) - 1} more," if len(numbers) > 1 else ""
        where = f"{path}: line {numbers[0]}{more}"
        raise UserError(f"{where} {f'has an empty {what}' if what else 'is empty'}: fill or remove it")


def read_fields(path: pathlib.Path, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Read the named fields of every example of a .tsv, .csv or .jsonl file.

    If the first line of a .tsv or .csv has all `names`, these are its columns; if it has none, the first columns are
    the fields, in order, and it is an example (`describe_missing_headers`). Cells of a .csv may be quoted, and then
    contain commas, line ends and doubled quotation marks (RFC 4180). A .jsonl has an object per line, or one under
    "translation", as Hugging Face writes pairs; a number is read as its digits, and true and false in "label" as these
    words.

    Args:
        path: The file.
        names: The names of the fields.

    Returns:
        The fields of each example, in the order of `names`.

    Raises:
        UserError: If the file is unreadable or of another kind, its first line has most but not all of `names`, or all
            in another spelling, or an example lacks a field or has an empty one.
    """
    if not is_table_file(path.name):
        raise UserError(
            f"{path} is neither .tsv, .csv nor .jsonl, the kinds of file with the fields {', '.join(names)}"
        )
    examples = _read_rows(path, names) if path.suffix.lower() in _ROW_READERS else _read_objects(path, names)
    if not examples:
        raise UserError(f"{path} is empty: it has a line with the names of its columns and no examples")
    for place, name in enumerate(names):
        refuse_empty_lines([line for line, fields in examples if not fields[place].strip()], path, name)
    return [fields for _, fields in examples]


class _Example(NamedTuple):
    """The fields of an example, and the number of the line in which it begins."""

    line: int
    fields: tuple[str, ...]


def _tab_separated_rows(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    # Empty cells at either end of a line are reported by column name.
    for number, line in enumerate(read_raw_lines(path), 1):
        yield number, line.split("\t")


def _comma_separated_rows(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    # Within quotation marks a line end belongs to the cell.
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    csv.field_size_limit(sys.maxsize)  # a cell may hold a whole document
    line = 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}: line {line} cannot be read ({error}): put a cell with commas, quotation marks or line ends "
            'between quotation marks, and double those in it, as in "he said ""no"", and left"'
        ) from error


_ROW_READERS = {".tsv": (_tab_separated_rows, "tabs"), ".csv": (_comma_separated_rows, "commas")}
"""By the ending of a table, what yields the number of the line and the cells of every row, and what parts the cells."""


def _read_rows(path: pathlib.Path, names: Sequence[str]) -> list[_Example]:
    """Read the columns of the named fields: those of the first line if it has the names, else the first."""
    read, separators = _ROW_READERS[path.suffix.lower()]
    rows = list(read(path))
    if not any(cell.strip() for _, cells in rows for cell in cells):
        raise UserError(f"{path} is empty: it needs a line for each example")
    header = rows[0][1]
    has_header = _is_header(header, names, path)
    columns = [header.index(name) for name in names] if has_header else list(range(len(names)))
    examples = []
    for number, cells in rows[has_header:]:
        if len(cells) <= max(columns):
            raise UserError(
                f"{path}: line {number} has {len(cells)} of the columns that {', '.join(names)} need, which "
                f"{separators} part"
            )
        examples.append(_Example(number, tuple(cells[column] for column in columns)))
    return examples


def _is_header(cells: Sequence[str], names: Sequence[str], path: pathlib.Path) -> bool:
    """Whether the first row of a table names its columns.

    Raises:
        UserError: If it has most but not all of `names`, or all in another spelling, or one twice.
    """
    present, missing = ([name for name in names if (name in cells) is is_present] for is_present in (True, False))
    spellings = {name.casefold(): name for name in names}
    respelled = [cell for cell in cells if cell.strip().casefold() in spellings]
    if missing and {cell.strip().casefold() for cell in respelled} == set(spellings):
        raise UserError(
            f"{path}: its first line names {', '.join(map(_quote_cell, respelled))}: write {join_names(names)} there"
        )
    # A single cell may equal a column's name: the label of a choice is the column of the correct answer.
    if len(present) >= len(missing) > 0:
        raise UserError(
            f"{path}: its first line names {', '.join(present)} but not {', '.join(missing)}: let it name all of "
            f"{', '.join(names)}"
        )
    if twice := [name for name in present if cells.count(name) > 1]:
        raise UserError(f"{path}: its first line names the column {twice[0]} twice: rename one of them")
    return not missing


def headerless_first_row(path: pathlib.Path, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the named fields of the first line of a .tsv or .csv that has no header; None for all other files."""
    if path.suffix.lower() not in _ROW_READERS or path.is_dir():
        return None
    read, _ = _ROW_READERS[path.suffix.lower()]
    _, cells = next(read(path), (1, []))
    return None if _is_header(cells, names, path) else tuple(cells[: len(names)])


def describe_missing_headers(files: Iterable[str], names: Sequence[str], data_dir: str | None) -> str:
    """Describe which of a user's tables have no header, so that their first line is an example; "" if none has none.

    Args:
        files: The names of the files; those that are no .tsv or .csv are left out.
        names: The names of the fields.
        data_dir: The folder of the files; None resolves names relative to here.
    """
    rows = {
        file: headerless_first_row(locate_file(file, data_dir), names)
        for file in dict.fromkeys(files)
        if is_table_file(file)
    }
    places = join_names([str(place + 1) for place in range(len(names))])
    return join_notes(
        f"{file} has no header: columns {places} are {join_names(names)}, the first row is {format_row(row)}"
        for file, row in rows.items()
        if row is not None
    )


def format_row(cells: Sequence[str]) -> str:
    """Format the cells of an example for a message, each shortened: "a text" -> "its label"."""
    *texts, last = map(_quote_cell, cells)
    return f"{', '.join(texts)} -> {last}"


def _quote_cell(cell: str) -> str:
    text = cell if cell.isprintable() else " ".join(cell.split())
    beginning = text if len(text) <= _CELL_CHARACTERS_SHOWN else f"{text[:_CELL_CHARACTERS_SHOWN]}..."
    return escape_control_characters(json.dumps(beginning, ensure_ascii=False))


def join_names(names: Sequence[str]) -> str:
    """Join names as in "source and target"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _read_objects(path: pathlib.Path, names: Sequence[str]) -> list[_Example]:
    examples = []
    for number, (where, fields) in enumerate(read_json_lines(path), 1):
        if isinstance(fields.get("translation"), dict) and not set(names) <= set(fields):
            fields = fields["translation"]
        examples.append(_Example(number, tuple(_get_text_field(fields, name, where) for name in names)))
    return examples


def _get_text_field(fields: Mapping[str, object], name: str, where: str) -> str:
    if name not in fields:
        has = ", ".join(map(str, list(fields)[:_FIELDS_SHOWN])) or "none"
        raise UserError(f"{where} has no field {name!r}; its fields are {has}")
    value = fields[name]
    if isinstance(value, bool) and name == _LABEL:
        return json.dumps(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        # NaN is what is written for a missing text.
        if name != _LABEL and not math.isfinite(value):
            raise UserError(f"{where} has no text in {name!r} but {json.dumps(value)}: fill or remove it")
        return str(value)
    if not isinstance(value, str):
        raise UserError(f"{where} has no text in {name!r} but a {type(value).__name__}")
    return value


def read_own_files[T](
    name: str, data_dir: str | None, held_out: HeldOutFiles, read: Callable[[pathlib.Path], T]
) -> dict[str, T]:
    """Read a user's file as "train", and those of the splits that have files of their own.

    Args:
        name: The name of the file.
        data_dir: The folder of the files; None resolves names relative to here.
        held_out: The files of splits that have files of their own.
        read: A function that reads a file.
    """
    return {split: read(locate_file(file, data_dir)) for split, file in {"train": name, **held_out.by_split}.items()}


def divide_into_splits[T](
    name: str, examples_by_file: Mapping[str, Sequence[T]], text: Callable[[T], str]
) -> dict[str, list[T]]:
    """Divide the examples of "train" into the splits that have no files of their own, by a hash of their text.

    An example's split depends only on the SHA-256 of its text as `normalize_text` returns it: the same text is never in
    two splits, however its accents and spaces are written, and adding examples to a file moves no other. About one in
    twenty is for validation and one for test.

    Args:
        name: The name of the data set, for the message.
        examples_by_file: The examples of "train", and of the splits with files of their own, which are not cut.
        text: A function from an example to the text that is hashed.

    Raises:
        UserError: If there are so few examples that a split is empty.
    """
    held_out = {split: list(own) for split, own in examples_by_file.items() if split != "train"}
    examples = examples_by_file["train"]
    splits: dict[str, list[T]] = {split: [] for split in SPLITS}
    for example in examples:
        part = int.from_bytes(hashlib.sha256(normalize_text(text(example)).encode()).digest()[:8], "big") % _PARTS
        split = _SPLIT_OF_PART.get(part, "train")
        splits["train" if split in held_out else split].append(example)
    for split in SPLITS:
        if not splits[split] and split not in held_out:
            raise UserError(
                f"{name} has too few examples: of {len(examples)} none is left for {split}; give more"
                + ("" if split == "train" else f", or files of their own by config.task.{split}_files")
            )
    return {**splits, **held_out}


class FolderListing(NamedTuple):
    """The files of a folder and its subfolders.

    Attributes:
        files: The files to read, sorted by name.
        left_out: The names of hidden files, and of files about the data.
    """

    files: tuple[pathlib.Path, ...]
    left_out: tuple[str, ...]


def split_spellings(split: str) -> tuple[str, ...]:
    """Return the spellings of a split's name, such as "valid" and "dev"."""
    return _SPELLINGS[split]


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is hidden: `.git`, `.ipynb_checkpoints`, `._1.jpg`, `Thumbs.db`."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _HIDDEN


def is_readme_or_license(name: str) -> bool:
    """Whether a file of this name is about the data: `README.md`, `LICENSE`."""
    return name.partition(".")[0].lower() in _ABOUT_DATA


def split_from_file_name(stem: str) -> str | None:
    """Return the split that a name without its ending says, or None.

    Examples are `train`, `Valid`, `train-00001-of-00002`, `test_data` and `wiki.dev`.

    Raises:
        UserError: If the name says two splits.
    """
    words = re.split(r"[._-]+", _SHARD.sub("", stem.lower()))
    splits = {_SPLITS[word] for word in (words[0], words[-1]) if word in _SPLITS}
    if len(splits) > 1:
        raise UserError(f"{stem!r} names the splits {' and '.join(sorted(splits))}: call it by one")
    return splits.pop() if splits else None


def canonical_split_names(splits: Iterable[str]) -> dict[str, str]:
    """Map the names of a data set's splits to those used here: other spellings of "train" and so on are replaced.

    Splits that spell the same name keep their own.
    """
    own = {split: _SPLITS.get(split.lower(), split) for split in splits}
    counts = collections.Counter(own.values())
    return {split: name if counts[name] == 1 else split for split, name in own.items()}


def list_files(folder: pathlib.Path, endings: Sequence[str]) -> FolderListing:
    """List the files with certain endings, in any case, in a folder and its subfolders.

    Hidden files, and files about the data, are left out.

    Args:
        folder: The folder.
        endings: The endings, in lower case.

    Raises:
        UserError: If there are other files, links to folders or out of the folder, or entries that are neither file nor
            folder.
    """
    files: list[pathlib.Path] = []
    left_out: list[str] = []
    unknown: list[str] = []
    for entry in _walk_visible_files(folder, left_out):
        name = str(entry.relative_to(folder))
        if entry.suffix.lower() in endings:
            files.append(entry)
        else:
            (left_out if is_readme_or_license(entry.name) else unknown).append(name)
    refuse_unknown_files(folder, sorted(unknown), endings)
    return FolderListing(tuple(sorted(files)), tuple(sorted(left_out)))


def _walk_visible_files(folder: pathlib.Path, left_out: list[str]) -> Iterator[pathlib.Path]:
    """Yield every file in a folder and its subfolders that is not hidden; the names of hidden ones go to `left_out`."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{folder} cannot be read whole: {error}") from error

    for root, folders, names in os.walk(folder, onerror=refuse):
        for name in (*folders, *names):
            entry = pathlib.Path(root, name)
            if is_hidden(name):
                left_out.append(str(entry.relative_to(folder)))
                continue
            check_folder_entry(entry, folder)
            if name in names:
                yield entry
        folders[:] = [name for name in folders if not is_hidden(name)]


def check_folder_entry(entry: pathlib.Path, folder: pathlib.Path) -> None:
    """Check that an entry of a folder is a file or a folder in it.

    Raises:
        UserError: If it is something else, a link to a folder, or a link out of the folder.
    """
    check_inside_folder(entry, folder)
    if entry.is_dir() and entry.is_symlink():
        raise UserError(f"{entry} is a link to a folder, which would be read twice: put a folder there, or remove it")
    if not entry.is_dir() and not entry.is_file():
        raise UserError(f"{entry} is neither a file nor a folder: remove it")


def refuse_unknown_files(where: pathlib.Path, names: Sequence[str], endings: Sequence[str]) -> None:
    """Refuse files of unknown kinds, since leaving them out silently could drop data.

    Args:
        where: The folder or archive, for the message.
        names: The names of the files.
        endings: The known endings.

    Raises:
        UserError: If there are any; the message has the first names, and the number of files of each ending.
    """
    if not names:
        return
    counts = collections.Counter(pathlib.PurePath(name).suffix.lower() or "no ending" for name in names)
    kinds = ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items()))
    raise UserError(
        f"{where} holds {len(names)} file{'s' * (len(names) > 1)} of other kinds than {', '.join(endings)} ({kinds}): "
        f"{_format_names(names)}; convert or remove them"
    )


def describe_left_out(names: Sequence[str]) -> str:
    """Describe which files are not read; "" if there are none."""
    return f"not read: {_format_names(names)}" if names else ""


def _format_names(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    text = ", ".join(names[:_NAMES_SHOWN])
    # The names may be a stranger's.
    return escape_control_characters(text) + (f" and {more:,} more" if more > 0 else "")


def join_notes(parts: Iterable[str]) -> str:
    """Join notes with semicolons, without empty ones."""
    return "; ".join(part for part in parts if part)


@contextlib.contextmanager
def reraise_archive_errors(path: pathlib.Path) -> Iterator[None]:
    """Raise the errors of a damaged archive as a UserError that names the file."""
    try:
        yield
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read as an archive: {error}") from error


def read_members(
    path: pathlib.Path, name: re.Pattern[str], most_bytes: int
) -> Iterator[tuple[re.Match[str], str, bytes]]:
    """Yield the members of a zip archive whose names match, in the order of names.

    Args:
        path: The archive.
        name: The pattern of their names.
        most_bytes: The largest size of a member.

    Yields:
        The match, the place of the member for messages, and its content.

    Raises:
        UserError: If the archive cannot be read, or a member is too large.
    """
    with reraise_archive_errors(path), zipfile.ZipFile(path) as archive:
        for member in sorted(archive.infolist(), key=lambda info: info.filename):
            if (match := name.fullmatch(member.filename)) is None:
                continue
            where = f"{path}: {member.filename}"
            if member.file_size > most_bytes:
                raise UserError(f"{where} has {member.file_size:,} bytes, where {most_bytes:,} are the most")
            yield match, where, archive.read(member)


def unread_members(path: pathlib.Path, name: re.Pattern[str], ending: str) -> list[str]:
    """List the members of an archive whose names do not match: hidden ones, and files with other endings.

    Args:
        path: The archive.
        name: The pattern of the members that are read.
        ending: Their ending.

    Raises:
        UserError: If the archive cannot be read, or a member with this ending does not match and is not hidden.
    """
    unread = []
    with reraise_archive_errors(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir() or name.fullmatch(member.filename):
                continue
            in_hidden = any(map(is_hidden, member.filename.split("/")))
            if member.filename.lower().endswith(ending) and not in_hidden:
                raise UserError(f"{path}: {member.filename} is not named as {ending} files of this set are: remove it")
            unread.append(f"{path.name}/{member.filename}")
    return unread
