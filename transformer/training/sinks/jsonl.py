"""metrics.jsonl: the source of truth of a run's numbers, one JSON object a line, append-only."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer.runs.records import parse_records, whole_lines
from transformer.storage import locate, storage_of
from transformer.training.sinks.contract import NullSink, Number


def _plain(value: Number) -> int | float | None:
    """The Python number of a scalar; JSON has no NaN and no infinity, so these become null."""
    number = value.item() if isinstance(value, np.number) else value
    return number if math.isfinite(number) else None


class JsonLines:
    """A file of records, one JSON object a line, each with its "step"; appended to without a buffer.

    Opening it cuts off a last line that a kill tore and changes nothing else.
    """

    def __init__(self, path: str | Path):
        self._path = locate(path)
        self._file = storage_of(self._path).append_to(self._path)
        self._file.rewrite(whole_lines)

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        self._file.append(json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n")

    def truncate(self, after_step: int) -> None:
        """Drop the lines of steps beyond `after_step`, which a resumed run writes again.

        Errors: UserError, with the file as it was, when a line is no JSON object.
        """

        def kept(content: bytes) -> bytes:
            lines = content.splitlines(keepends=True)
            records = parse_records(content, self._path, ("step",))
            return b"".join(line for line, record in zip(lines, records, strict=True) if record["step"] <= after_step)

        self._file.rewrite(kept)

    def flush(self) -> None:
        """Make the lines so far visible to readers."""
        self._file.flush()

    def close(self) -> None:
        """Write the file to the disk."""
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
