"""Where the pages of a Parquet file lie, and their sizes, read from its footer and from the headers of its pages.

pyarrow allocates whatever a page header says, and some damaged footers end its process where its metadata are asked for
a column. Both are in Thrift's compact protocol.
"""

import enum
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

_MAX_NESTING = 12
_MAX_HEADER_FIELDS = 1000
_MAX_BINARY_BYTES = 1 << 24  # of a text in a header, such as the least of a page
# Fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and PageHeader.
_NUM_ROWS = 3  # of a file as of a row group
_ROW_GROUPS, _COLUMNS, _COLUMN_METADATA = 4, 1, 3
_PATH, _TOTAL_COMPRESSED_SIZE, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 3, 7, 9, 11
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3


class _FieldType(enum.IntEnum):
    """The types of fields in Thrift's compact protocol."""

    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    STRUCT = 12


class ColumnChunk(NamedTuple):
    """The pages of a column of a row group.

    Attributes:
        start: Their first byte in the file.
        stop: The byte behind their last.
        num_rows: The number of rows of the row group.
    """

    start: int
    stop: int
    num_rows: int


class PageSize(NamedTuple):
    """The size of a page in bytes, in its file and in memory."""

    compressed: int
    uncompressed: int


def read_column_chunks(file: BinaryIO, size: int, column: str) -> list[ColumnChunk]:
    """Return where the pages of a column lie, for each row group.

    Args:
        file: The file, whose position changes.
        size: Its size in bytes.
        column: The name of the column, which is in no other.

    Raises:
        ValueError: If the footer is malformed, a row group lacks the column, pages lie outside of the file, or row
            groups do not have the rows of the file.
    """
    file.seek(max(size - 8, 0))
    footer_size = int.from_bytes(file.read(8)[:4], "little")
    file.seek(max(size - 8 - footer_size, 0))
    footer = file.read(min(footer_size, size))
    metadata = _read_struct(io.BytesIO(footer), len(footer))
    chunks = []
    for number, group in enumerate(_get_structs(metadata, _ROW_GROUPS)):
        columns = [entry.get(_COLUMN_METADATA) for entry in _get_structs(group, _COLUMNS)]
        matches = [entry for entry in columns if isinstance(entry, dict) and entry.get(_PATH) == [column.encode()]]
        if len(matches) != 1:
            raise ValueError(f"row group {number} has {len(matches)} columns {column!r}")
        offsets = [matches[0].get(field) for field in (_DICTIONARY_PAGE_OFFSET, _DATA_PAGE_OFFSET)]
        start = min((offset for offset in offsets if isinstance(offset, int) and offset), default=0)
        length = matches[0].get(_TOTAL_COMPRESSED_SIZE)
        if not isinstance(length, int) or length < 0 or not 0 < start <= start + length <= size:
            raise ValueError(f"the pages of row group {number} lie outside of the file")
        if not isinstance(num_rows := group.get(_NUM_ROWS), int):
            raise ValueError(f"row group {number} has no number of rows")
        chunks.append(ColumnChunk(start, start + length, num_rows))
    if sum(chunk.num_rows for chunk in chunks) != metadata.get(_NUM_ROWS):
        raise ValueError("its row groups have other numbers of rows than the file")
    return chunks


def page_sizes(file: BinaryIO, chunk: ColumnChunk) -> Iterator[PageSize]:
    """Yield the sizes of the pages of a column, as their headers say, without reading a page.

    Args:
        file: The file, whose position changes.
        chunk: Where the pages lie.

    Raises:
        ValueError: If a header is malformed.
    """
    start = chunk.start
    while start < chunk.stop:
        file.seek(start)
        header = _read_struct(file, _MAX_HEADER_FIELDS)
        compressed, uncompressed = header.get(_COMPRESSED_SIZE), header.get(_UNCOMPRESSED_SIZE)
        if not isinstance(compressed, int) or not isinstance(uncompressed, int) or min(compressed, uncompressed) < 0:
            raise ValueError(f"the page at byte {start:,} has no size")
        start = file.tell() + compressed
        yield PageSize(compressed, uncompressed)


def _get_structs(struct: dict[int, Any], field: int) -> list[dict[int, Any]]:
    """Return a field that is a list of structs; empty if it is something else."""
    value = struct.get(field)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _read_struct(file: BinaryIO, max_fields: int) -> dict[int, Any]:
    """Read a struct in Thrift's compact protocol: integers, bytes, lists and structs by the number of their field.

    Args:
        file: The file, at the struct.
        max_fields: The largest number of fields and items, in all lists and structs together.

    Raises:
        ValueError: If it is malformed.
    """
    num_fields = 0

    def byte() -> int:
        content = file.read(1)
        if not content:
            raise ValueError("its metadata end too early")
        return content[0]

    def varint() -> int:
        value = 0
        for shift in range(0, 70, 7):
            part = byte()
            value |= (part & 127) << shift
            if part < 128:
                return value
        raise ValueError("its metadata have a number of more than 64 bits")

    def integer() -> int:
        value = varint()
        return (value >> 1) ^ -(value & 1)

    def count(number: int) -> int:
        nonlocal num_fields
        num_fields += number
        if num_fields > max_fields:
            raise ValueError("its metadata have too many fields")
        return number

    def read(kind: int, depth: int) -> Any:
        match kind:
            case _FieldType.TRUE | _FieldType.FALSE | _FieldType.BYTE:
                return byte()
            case _FieldType.I16 | _FieldType.I32 | _FieldType.I64:
                return integer()
            case _FieldType.DOUBLE:
                return file.read(8)
            case _FieldType.BINARY:
                if (length := varint()) > _MAX_BINARY_BYTES:
                    raise ValueError(f"its metadata have a text of {length:,} bytes")
                return file.read(length)
            case _FieldType.LIST | _FieldType.SET:
                head = byte()
                number = count(head >> 4 if head >> 4 < 15 else varint())
                return [read(head & 15, depth + 1) for _ in range(number)]
            case _FieldType.STRUCT:
                return struct(depth + 1)
        raise ValueError(f"its metadata have a field of kind {kind}")

    def struct(depth: int) -> dict[int, Any]:
        if depth > _MAX_NESTING:
            raise ValueError("its metadata are nested too deep")
        fields: dict[int, Any] = {}
        field = 0
        while head := byte():
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else integer()
            count(1)
            # The head of a truth value says which.
            fields[field] = None if kind in (_FieldType.TRUE, _FieldType.FALSE) else read(kind, depth)
        return fields

    return struct(0)
