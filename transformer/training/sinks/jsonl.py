"""metrics.jsonl: the source of truth of a run's numbers, one JSON object a line, append-only."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import UserError
from transformer.storage import locate, storage_of
from transformer.training.sinks.contract import NullSink, Number


def _plain(value: Number) -> int | float | None:
    """The Python number of a scalar; JSON has no NaN and no infinity, so these become null."""
    number = value.item() if isinstance(value, np.number) else value
    return number if math.isfinite(number) else None


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:  # also what is not UTF-8
        return False


def _whole_lines(content: bytes) -> bytes:
    """The content without a last line that a kill tore; a last line that only lacks its newline is kept."""
    complete, newline, last = content.rpartition(b"\n")
    return content + b"\n" if _is_record(last) else complete + newline


def _parse(content: bytes, path: Path) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not _is_record(line):
            raise UserError(f"{path}:{number} is no JSON object: {line[:40]!r}; repair or remove that line")
        records.append(json.loads(line))
    return records


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a metrics file in order; a number that was not finite is None.

    A last line that is being written, or was torn by a kill, is left out.

    Errors: UserError when the file is missing or when another line is no JSON object.
    """
    path = locate(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is missing: this run has reported no metrics yet") from None
    return _parse(_whole_lines(content), path)


class JsonLines:
    """A file of records, one JSON object a line, each with its "step"; appended to without a buffer.

    Opening it cuts off a last line that a kill tore and changes nothing else.
    """

    def __init__(self, path: str | Path):
        self._path = locate(path)
        self._file = storage_of(self._path).append_to(self._path)
        self._file.rewrite(_whole_lines)

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        self._file.append(json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n")

    def truncate(self, after_step: int) -> None:
        """Drop the lines of steps beyond `after_step`: a resumed run will write them again.

        Errors: UserError, with the file as it was, when a line is no JSON object.
        """

        def kept(content: bytes) -> bytes:
            lines = content.splitlines(keepends=True)
            records = _parse(content, self._path)
            return b"".join(line for line, record in zip(lines, records, strict=True) if record["step"] <= after_step)

        self._file.rewrite(kept)

    def flush(self) -> None:
        """Hand the lines so far to where a reader finds them."""
        self._file.flush()

    def close(self) -> None:
        """Hand the file to the disk."""
        self._file.close()


class MetricsFile(JsonLines, NullSink):
    """The sink that appends {"step", "split", ...numbers} to a metrics file, a line a call."""

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Append one line.

        Errors: ValueError for a metric called "step" or "split".
        """
        taken = {"step", "split"} & set(values)
        if taken:
            raise ValueError(f"a metric cannot be called {taken.pop()!r}: every line already has one")
        self.append({"step": int(step), "split": split, **{name: _plain(value) for name, value in values.items()}})
