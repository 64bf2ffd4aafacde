"""The sizes of a Parquet file's pages, from the headers before them: pyarrow allocates whatever these say."""

import enum
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3  # fields of a PageHeader
_MAX_NESTING = 8
_MAX_FIELDS = 1000
_MAX_TEXT_BYTES = 1 << 31


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


class PageSize(NamedTuple):
    """The size of a page in bytes, in its file and in memory."""

    compressed: int
    uncompressed: int


def page_sizes(file: BinaryIO, start: int, stop: int) -> Iterator[PageSize]:
    """Yield the sizes of the pages of a column, as their headers say, without reading a page.

    Args:
        file: The file, whose position changes.
        start: The first byte of the column's first page.
        stop: The byte behind its last.

    Raises:
        ValueError: If a header is malformed.
    """
    while start < stop:
        file.seek(start)
        header = _CompactReader(file).read_struct()
        size = PageSize(header.get(_COMPRESSED_SIZE, -1), header.get(_UNCOMPRESSED_SIZE, -1))
        if min(size) < 0:
            raise ValueError(f"the page at byte {start:,} has no size")
        yield size
        start = file.tell() + size.compressed


class _CompactReader:
    """Reads structs in Thrift's compact protocol: the integers of the outermost, past everything else."""

    def __init__(self, file: BinaryIO):
        self._file, self._num_fields = file, 0

    def read_struct(self, depth: int = 0) -> dict[int, int]:
        """Return the integers of a struct by field; texts, lists and inner structs are passed over."""
        if depth > _MAX_NESTING:
            raise ValueError("a page header is nested too deep")
        integers: dict[int, int] = {}
        field = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else self._integer()
            self._count(1)
            if _FieldType.I16 <= kind <= _FieldType.I64:
                integers[field] = self._integer()
            elif kind not in (_FieldType.TRUE, _FieldType.FALSE):  # the head says which
                self._skip(kind, depth)
        return integers

    def _skip(self, kind: int, depth: int) -> None:
        match kind:
            case _FieldType.TRUE | _FieldType.FALSE | _FieldType.BYTE:
                self._byte()
            case _FieldType.I16 | _FieldType.I32 | _FieldType.I64:
                self._integer()
            case _FieldType.DOUBLE:
                self._file.seek(8, 1)
            case _FieldType.BINARY:
                self._file.seek(min(self._varint(), _MAX_TEXT_BYTES), 1)
            case _FieldType.LIST | _FieldType.SET:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._varint()
                self._count(count)
                for _ in range(count):
                    self._skip(head & 15, depth + 1)
            case _FieldType.STRUCT:
                self.read_struct(depth + 1)
            case _:
                raise ValueError(f"a page header has a field of kind {kind}")

    def _count(self, number: int) -> None:
        self._num_fields += number
        if self._num_fields > _MAX_FIELDS:
            raise ValueError("a page header has too many fields")

    def _byte(self) -> int:
        read = self._file.read(1)
        if not read:
            raise ValueError("the file ends in a page header")
        return read[0]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a page header has a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
