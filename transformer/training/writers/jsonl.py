"""metrics.jsonl, heads.jsonl and samples.jsonl: one JSON object a line, append-only, the source of truth."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.runs.distributed import announce
from transformer.runs.jsonl_records import FileExtent, complete_lines, describe_change, truncate_records
from transformer.storage.paths import parse_path, storage_of
from transformer.training.writers.writer import NullWriter, Sample, Scalar


class JsonLinesFile:
    """A file of records, one JSON object a line, each with its "step"; appended to without a buffer.

    Opening it cuts off a last line that a kill tore and changes nothing else.
    """

    def __init__(self, path: str | Path):
        self.path = parse_path(path)
        self._storage = storage_of(self.path)
        self._file = self._storage.append_to(self.path)
        self._file.rewrite(complete_lines)
        self._length, self._sum = 0, hashlib.sha256()
        self._measure()

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            OSError: With the file as it was.
        """
        line = json.dumps(record, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        self._file.append(line)
        self._length += len(line)
        self._sum.update(line)

    def extent(self) -> FileExtent:
        """Return the length and SHA-256 of the file, which a checkpoint records."""
        return FileExtent(self._length, self._sum.hexdigest())

    def truncate(self, after_step: int, extent: FileExtent | None = None) -> None:
        """Drop the lines of steps beyond `after_step`, which a resumed run writes again.

        `extent` is what the file was at that step. Where it no longer begins so, or a line cannot be read, that
        is told, a copy is kept, and the lines that can be read stay.
        """
        what = describe_change(self.path, extent) if after_step > 0 else None
        if what is not None:
            copy = self.path.with_name(f"{self.path.name}.damaged-{after_step}")
            self._storage.replace(copy, self.path.read_bytes())
            announce(
                f"{self.path} is not as the checkpoint of step {after_step} left it: {what}; the lines that can "
                f"be read are kept, and a copy of it as {copy.name}"
            )
        self._file.rewrite(lambda content: truncate_records(content, after_step, extent))
        self._measure()

    def flush(self) -> None:
        """Make the lines so far visible to readers, and outlive a power cut."""
        self._file.flush()

    def close(self) -> None:
        """Write the file to the disk."""
        self._file.close()

    def _measure(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:  # in a bucket, until its first line is there
            content = b""
        self._length, self._sum = len(content), hashlib.sha256(content)


class MetricsWriter(JsonLinesFile, NullWriter):
    """The writer that appends {"step", "split", ...numbers} to a metrics file, a line a call."""

    def write_scalars(self, step: int, split: str, values: Mapping[str, Scalar]) -> None:
        """Append one line.

        Raises:
            ValueError: For a metric called "step" or "split".
        """
        taken = {"step", "split"} & set(values)
        if taken:
            raise ValueError(f"a metric cannot be called {taken.pop()!r}: every line already has one")
        self.append({"step": int(step), "split": split, **{name: _plain(value) for name, value in values.items()}})


class HeadStatisticsWriter(JsonLinesFile, NullWriter):
    """The writer that appends {"step", "site", "statistic": [[head, ...] of each layer], ...}, a line a site.

    A number that is not finite, such as the largest logit where no row counted, is null.
    """

    def write_heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        for site, statistics in heads.items():
            self.append({"step": int(step), "site": site, **{name: _rows(of) for name, of in statistics.items()}})


def _plain(value: Scalar) -> int | float | None:
    """The Python number of a scalar; JSON has no NaN and no infinity, so these become null."""
    number = value.item() if isinstance(value, np.number) else value
    return number if math.isfinite(number) else None


def _rows(values_LxH: np.ndarray) -> list[list[float | None]]:
    # float32 has seven significant figures.
    return [[float(f"{x:.7g}") if np.isfinite(x) else None for x in row] for row in values_LxH.tolist()]


class SamplesWriter(JsonLinesFile, NullWriter):
    """The writer that appends {"step", "split", ...texts} to a file, a line a sample."""

    def write_samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self.append({"step": int(step), "split": split, **sample})
