"""The files of a text corpus: found by name, known by size and samples, and read in pieces of bounded memory."""

import contextlib
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from transformer.config import UserError
from transformer.data.batches import fingerprint
from transformer.data.datasets.local_files import (
    check_inside_folder,
    is_hidden,
    list_files,
    locate_file,
    refuse_as_plain_text,
)
from transformer.data.datasets.text_files import files_by_split
from transformer.data.parquet_metadata import ColumnChunk, page_sizes, read_column_chunks
from transformer.storage.json_reading import open_regular_file, parse_json, require_object
from transformer.storage.paths import parse_path, storage_of

_TEXT = "text"  # the field and the column of documents
SUFFIXES = (".txt", ".jsonl", ".parquet")
PIECE_BYTES = 1 << 18
"""About the bytes of text that are tokenized as one string: a longer one would take many times its size in memory."""
_SEARCH_BYTES = (1 << 16, 1 << 20)  # how far a cut is looked for, first and at most
_MAX_LINE_BYTES = 1 << 26  # of a line of a .jsonl
_SAMPLED_BYTES = 1 << 16  # of each of the three samples by which a file is known
_BLOCK_BYTES = 1 << 20
_PARQUET_ROWS = 64  # that are decoded at once, fewer if pages are large
_MAX_PAGE_BYTES = 1 << 28  # of a page of a .parquet in memory, also of a batch of rows, each at most a page
_WILDCARD = re.compile(r"[*?\[]")
# A line end between two characters that are no white space. Byte-level tokenizers split words there in any case, so
# that a text that is cut there has the tokens of the whole text. White space is, in UTF-8 and by GPT-2's expression:
_SPACES = (
    rb"\s",
    rb"\xc2[\x85\xa0]",
    rb"\xe1\x9a\x80",
    rb"\xe2\x80[\x80-\x8a\xa8\xa9\xaf]",
    rb"\xe2\x81\x9f",
    rb"\xe3\x80\x80",
)
_NO_SPACE_BEFORE, _NO_SPACE_AFTER = (b"".join(sign % space for space in _SPACES) for sign in (b"(?<!%s)", b"(?!%s)"))
_CUT = re.compile(_NO_SPACE_BEFORE + rb"(?<=.)\n" + _NO_SPACE_AFTER + rb"(?=.)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus.

    Attributes:
        name: Its path, which may be that of a bucket.
        size: Its size in bytes.
        samples_sha256: The SHA-256 of its first, middle and last 64 KiB.
    """

    name: str
    size: int
    samples_sha256: str

    @property
    def path(self) -> Path:
        """Its path."""
        return parse_path(self.name)

    @property
    def suffix(self) -> str:
        """The ending of its name in lower case, by which it is read."""
        return Path(self.name).suffix.lower()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `start` to `stop` - 1.

        Raises:
            UserError: If it has fewer, since it has changed.
        """
        stop = min(stop, self.size)
        content = storage_of(self.path).read_range(self.path, start, stop)
        if len(content) < stop - start:
            raise UserError(f"{self.name} has become shorter than {self.size:,} bytes while it was read: start again")
        return content


class FileRange(NamedTuple):
    """The part of a file whose documents or lines begin at the bytes `start` to `stop` - 1."""

    file: CorpusFile
    start: int
    stop: int


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
        text: Its text.
        ends: Whether it is the document's last.
    """

    text: str
    ends: bool


def find_corpus_files(name: str, data_dir: str | None = None) -> dict[str, list[Path]]:
    """Find the files of a corpus, by split.

    Args:
        name: A .txt, .jsonl or .parquet file, a folder of them, or a pattern such as "web/*.jsonl"; on a disk, or in a
            bucket as gs://BUCKET/NAME. Of a folder, files whose name says a split, such as valid.txt, belong to it; all
            others, and those of a pattern, are for training.
        data_dir: The folder that a name on the disk is relative to; None is the working directory.

    Raises:
        UserError: If there are none, or files of other kinds in a folder, or a file is a table or a JSON document.
    """
    in_bucket = name.startswith("gs://")
    wildcard = _WILDCARD.search(name)
    if in_bucket and wildcard:
        folder, pattern = _split_pattern(name)
        files = [file for file in parse_path(folder).glob(pattern) if file.name]
    else:
        path = parse_path(name) if in_bucket else locate_file(name, data_dir)
        if path.is_dir():
            listed = sorted(path.glob("*")) if in_bucket else list_files(path, SUFFIXES).files
            corpus_files = [file for file in listed if not in_bucket or Path(file).suffix.lower() in SUFFIXES]
            if not corpus_files:
                raise UserError(
                    f"{name} holds no {', '.join(SUFFIXES)} file: name a folder with texts, files or a pattern"
                )
            unassigned, by_name = files_by_split(path, corpus_files)
            return {**by_name, "train": [*unassigned, *by_name.get("train", ())]}
        if in_bucket or path.exists() or not wildcard:
            files = [path]
        else:
            folder, pattern = _split_pattern(name)
            files = [file for file in locate_file(folder, data_dir).glob(pattern) if not is_hidden(file.name)]
            if data_dir is not None:
                for file in files:
                    check_inside_folder(file, Path(data_dir).expanduser())
    files = sorted(file for file in files if not file.is_dir())
    for file in files:
        refuse_as_plain_text(str(file))
    if not files:
        raise UserError(f"no file matches {name}: name .txt, .jsonl or .parquet files, as 'web/*.jsonl', or a folder")
    return {"train": files}


def _split_pattern(name: str) -> tuple[str, str]:
    """Return the folder before the first wildcard of a pattern, and the rest."""
    before = _WILDCARD.split(name, maxsplit=1)[0]
    folder, slash, _ = before.rpartition("/")
    return (folder or slash or ".", name[len(folder) + len(slash) :])


def describe_files(paths: Sequence[Path]) -> tuple[CorpusFile, ...]:
    """Return the files with their sizes and samples; of each at most 192 KiB are read.

    A change that keeps the size of a file and falls between the samples goes unnoticed.

    Raises:
        UserError: If a file is missing, empty, or cannot be read.
    """
    return tuple(map(_describe_file, paths))


def _describe_file(path: Path) -> CorpusFile:
    try:
        size = storage_of(path).size(path)
        unsampled = CorpusFile(str(path), size, "")
        if not size:
            raise UserError(f"{path} is empty: give it text, or remove it")
        return dataclasses.replace(unsampled, samples_sha256=hash_samples(unsampled.read, size))
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}: name .txt, .jsonl or .parquet files that exist") from error


def hash_samples(read: Callable[[int, int], bytes], size: int) -> str:
    """Return the SHA-256 of the first, middle and last 64 KiB of a file, by which it is known.

    Args:
        read: A function (start, stop) that returns the bytes `start` to `stop` - 1, fewer at the end.
        size: The size of the file.
    """
    samples = hashlib.sha256()
    for start in sorted({0, max(size - _SAMPLED_BYTES, 0) // 2, max(size - _SAMPLED_BYTES, 0)}):
        samples.update(read(start, start + _SAMPLED_BYTES))
    return samples.hexdigest()


def corpus_fingerprint(files: Sequence[CorpusFile]) -> str:
    """Return the SHA-256 of the content of files: their kinds, sizes and samples, in order, wherever they lie."""
    return fingerprint(hashed_value for file in files for hashed_value in (file.suffix, file.size, file.samples_sha256))


def divide_files(files: Sequence[CorpusFile], part_bytes: int) -> list[tuple[FileRange, ...]]:
    """Divide files into parts of about `part_bytes`: large files are cut, small ones joined; their order is kept."""
    parts: list[list[FileRange]] = [[]]
    room = part_bytes
    for file in files:
        count = -(-file.size // part_bytes)
        bounds = [file.size * number // count for number in range(count + 1)]
        for start, stop in itertools.pairwise(bounds):
            if parts[-1] and stop - start > room:
                parts.append([])
                room = part_bytes
            parts[-1].append(FileRange(file, start, stop))
            room -= stop - start
    return [tuple(part) for part in parts if part]


def read_pieces(part: FileRange) -> Iterator[Piece]:
    """Read the documents of a part, in pieces of about 256 KiB.

    A .jsonl has a document in the field "text" of every line, a .parquet in the column "text" of every row, and any
    other file is one document. Documents without text are left out. The parts of a file together have each document
    once, whatever the parts.

    Raises:
        UserError: If the file is not UTF-8, a line is no object with a text, or a .parquet has no column of texts.
    """
    match part.file.suffix:
        case ".jsonl":
            for at, line in _read_lines_in_range(*part):
                if line.strip():
                    yield from _split_document(_parse_line_text(line, f"{part.file.name}, byte {at:,}"))
        case ".parquet":
            for text in _read_parquet_texts(part):
                yield from _split_document(text)
        case _:
            yield from _read_txt_pieces(*part)


def sample_texts(files: Sequence[CorpusFile], num_bytes: int) -> Iterator[str]:
    """Yield about `num_bytes` of text from evenly spaced places of a corpus; a corpus that has fewer is read whole.

    Args:
        files: The files.
        num_bytes: The bytes of text, of which a place has 256 KiB.
    """
    total = sum(file.size for file in files)
    if total <= num_bytes:
        for file in files:
            yield from (piece.text for piece in read_pieces(FileRange(file, 0, file.size)))
        return
    count = max(num_bytes // PIECE_BYTES, 1)
    places = [total * number // count for number in range(count)]
    first = 0
    for file in files:
        inside = [place - first for place in places if first <= place < first + file.size]
        first += file.size
        for file_range, num_characters in _sample_ranges(file, inside):
            remaining = num_characters
            for piece in read_pieces(file_range):
                yield piece.text
                remaining -= len(piece.text)
                if remaining <= 0:
                    break


def _sample_ranges(file: CorpusFile, places: Sequence[int]) -> Iterator[tuple[FileRange, int]]:
    """Yield the ranges of a file to sample, and how many characters of each."""
    if file.suffix != ".parquet":
        for place in places:
            yield FileRange(file, place, min(place + PIECE_BYTES, file.size)), PIECE_BYTES
        return
    with _open_parquet(file) as opened:
        offsets = [chunk.start for chunk in opened.chunks]
    for number, group_places in itertools.groupby(places, lambda place: max(sum(at <= place for at in offsets) - 1, 0)):
        yield FileRange(file, offsets[number], offsets[number] + 1), PIECE_BYTES * len(list(group_places))


def _find_cut(read: Callable[[int, int], bytes], size: int, place: int) -> int:
    """Return where a text is cut at or after a place: where a line begins, if possible one between two words."""
    if place <= 0 or place >= size:
        return min(max(place, 0), size)
    read_start = max(place - 4, 0)
    for reach in _SEARCH_BYTES:
        content = read(read_start, min(place + reach, size))
        for match in _CUT.finditer(content):
            if read_start + match.end() >= place:
                return read_start + match.end()
        if place + reach >= size:
            return size
    line_end = content.find(b"\n", place - 1 - read_start)
    if line_end >= 0:
        return read_start + line_end + 1
    # No line ends for a long while: between two characters.
    while place < size and content[place - read_start] & 0xC0 == 0x80:
        place += 1
    return place


def _read_txt_pieces(file: CorpusFile, start: int, stop: int) -> Iterator[Piece]:
    begin, end = (_find_cut(file.read, file.size, place) for place in (start, stop))
    if begin == end and stop == file.size:
        yield Piece("", True)  # a part before has the last characters
    while begin < end:
        following = min(_find_cut(file.read, file.size, begin + PIECE_BYTES), end)
        text = _decode_utf8(file.read(begin, following), f"{file.name}, byte {begin:,}")
        yield Piece(text.removeprefix("\ufeff") if begin == 0 else text, following == end and stop == file.size)
        begin = following


def _decode_utf8(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: this is not UTF-8 text ({error.reason} at {error.start:,} from there)") from error


def _read_lines_in_range(file: CorpusFile, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin at the bytes `start` to `stop` - 1, and where they begin."""
    # The byte before says whether a line begins at `start`: what precedes the first line end is the line before.
    place = at = max(start - 1, 0)
    skips, partial_line = start > 0, b""
    while place < file.size and (at < stop or skips):
        block = file.read(place, place + _BLOCK_BYTES)
        place += len(block)
        *complete_lines, partial_line = (partial_line + block).split(b"\n")
        for line in complete_lines:
            if not skips:
                if at >= stop:
                    return
                yield at, line
            skips = False
            at += len(line) + 1
        if len(partial_line) > _MAX_LINE_BYTES:
            raise UserError(f"{file.name}, byte {at:,}: a line has more than {_MAX_LINE_BYTES:,} bytes: divide it")
    if partial_line and not skips and at < stop:
        yield at, partial_line


def _parse_line_text(line: bytes, where: str) -> str:
    fields = require_object(parse_json(line.removeprefix(b"\xef\xbb\xbf"), where), where)
    text = fields.get("text")
    if not isinstance(text, str):
        has = "no field 'text'" if "text" not in fields else f"no text in 'text' but a {type(text).__name__}"
        raise UserError(
            f"{where}: the line has {has}; its fields are {', '.join(map(str, list(fields)[:8])) or 'none'}"
        )
    return text


def _read_parquet_texts(part: FileRange) -> Iterator[str]:
    with _open_parquet(part.file) as opened:
        groups = [number for number, chunk in enumerate(opened.chunks) if part.start <= chunk.start < part.stop]
        for group in groups:
            rows = min(_PARQUET_ROWS, max(_MAX_PAGE_BYTES // max(opened.largest_page(group), 1), 1))
            num_rows = 0
            for batch in opened.parquet.iter_batches(rows, row_groups=[group], columns=[_TEXT], use_threads=False):
                try:
                    yield from (text for text in batch.column(0).to_pylist() if text)
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{part.file.name}, row group {group}: its column {_TEXT!r} has a text that is not UTF-8 "
                        f"({error.reason})"
                    ) from error
                num_rows += len(batch)
            if num_rows != opened.chunks[group].num_rows:
                raise UserError(
                    f"{part.file.name} is damaged: its row group {group} has {num_rows:,} rows where its footer says "
                    f"{opened.chunks[group].num_rows:,}"
                )


class _OpenedParquet(NamedTuple):
    """A .parquet file, its bytes, and where the texts of each row group lie."""

    file: CorpusFile
    parquet: Any
    source: BinaryIO
    chunks: list[ColumnChunk]

    def largest_page(self, group: int) -> int:
        """Return the bytes that the largest page of the texts of a row group has in memory.

        Raises:
            UserError: If these are more than `_MAX_PAGE_BYTES`: pyarrow would allocate them, whatever a page has.
            ValueError: If a header is malformed.
        """
        largest = 0
        for size in page_sizes(self.source, self.chunks[group]):
            largest = max(largest, *size)
            if largest > _MAX_PAGE_BYTES:
                raise UserError(
                    f"{self.file.name}, row group {group}: a page of its column {_TEXT!r} has {largest:,} bytes, more "
                    f"than {_MAX_PAGE_BYTES:,}: write it with smaller pages"
                )
        return largest


@contextlib.contextmanager
def _open_parquet(file: CorpusFile) -> Iterator[_OpenedParquet]:
    import pyarrow
    import pyarrow.parquet

    source: BinaryIO = open_regular_file(file.path) if isinstance(file.path, Path) else file.path.open("rb")
    with source:
        try:
            parquet = pyarrow.parquet.ParquetFile(source, buffer_size=_BLOCK_BYTES, page_checksum_verification=True)
            schema = parquet.schema_arrow
            columns = [number for number, name in enumerate(schema.names) if name == _TEXT]
            kind = schema.field(columns[0]).type if columns else None
            if isinstance(kind, pyarrow.DictionaryType):
                kind = kind.value_type
            if kind not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
                raise UserError(
                    f"{file.name} has no column {_TEXT!r} of strings; its columns are {', '.join(schema.names[:8])}"
                )
            if len(columns) > 1:
                raise UserError(f"{file.name} has {len(columns)} columns {_TEXT!r}: give the others other names")
            yield _OpenedParquet(file, parquet, source, read_column_chunks(source, file.size, _TEXT))
        except UserError:
            raise
        except (pyarrow.ArrowException, OSError, EOFError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{file.name} cannot be read as a .parquet file: {reason}") from error


def _split_document(text: str) -> Iterator[Piece]:
    """Yield the pieces of a document that is held in memory."""
    if not text.strip():
        return
    if len(text) <= PIECE_BYTES:
        yield Piece(text, True)
        return
    content, at = text.encode("utf-8"), 0
    while at < len(content):
        following = _find_cut(lambda start, stop: content[start:stop], len(content), at + PIECE_BYTES)
        yield Piece(content[at:following].decode("utf-8"), following == len(content))
        at = following
