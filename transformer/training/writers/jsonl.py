"""Write metrics.jsonl, heads.jsonl and samples.jsonl, append-only and with one JSON object per line.

They are the source of truth: pages, reports and studies are made from them.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer.runs.distributed import print_and_log
from transformer.runs.jsonl_reading import FileExtent, complete_lines, describe_change, truncate_records
from transformer.storage.paths import parse_path, storage_of
from transformer.training.writers.writer import HeadStatistics, Metrics, Report, Samples, Scalar, Writer


class JsonLinesFile:
    """An append-only file of records, one JSON object per line, each with its "step".

    Opening it removes an incomplete last line and changes nothing else.
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
            OSError: If it cannot be written; the file is unchanged.
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

        If the file no longer starts with the content of `extent`, or a line cannot be read, that is announced, a copy
        is kept, and the readable lines stay.

        Args:
            after_step: The last step to keep.
            extent: The extent of the file at that step.
        """
        what = describe_change(self.path, extent) if after_step > 0 else None
        if what is not None:
            copy = self.path.with_name(f"{self.path.name}.damaged-{after_step}")
            self._storage.replace(copy, self.path.read_bytes())
            print_and_log(
                f"{self.path} is not as the checkpoint of step {after_step} left it: {what}; the lines that can "
                f"be read are kept, and a copy of it as {copy.name}"
            )
        self._file.rewrite(lambda content: truncate_records(content, after_step, extent))
        self._measure()

    def flush(self) -> None:
        """Make all lines visible to readers, and durable."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _measure(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:  # in a bucket, until its first line is there
            content = b""
        self._length, self._sum = len(content), hashlib.sha256(content)


class MetricsWriter(JsonLinesFile, Writer):
    """A writer that appends {"step", "split", ...metrics} to a file, a line per report."""

    def write(self, report: Report) -> None:
        """Append one line.

        Raises:
            ValueError: If a metric is called "step" or "split".
        """
        if not isinstance(report, Metrics):
            return
        reserved = {"step", "split"} & set(report.values)
        if reserved:
            raise ValueError(f"a metric cannot be called {reserved.pop()!r}: every line already has one")
        values = {name: _plain_number(value) for name, value in report.values.items()}
        self.append({"step": int(report.step), "split": report.split, **values})


class HeadStatisticsWriter(JsonLinesFile, Writer):
    """A writer that appends {"step", "site", "statistic": [[head, ...] of each layer], ...}, a line per site.

    A number that is not finite, such as the largest logit if no row counted, is null.
    """

    def write(self, report: Report) -> None:
        if isinstance(report, HeadStatistics):
            for site, statistics in report.statistics.items():
                rows = {name: _rows(values_LxH) for name, values_LxH in statistics.items()}
                self.append({"step": int(report.step), "site": site, **rows})


def _plain_number(value: Scalar) -> int | float | None:
    """Return a scalar as a Python number; NaN and infinity, which JSON lacks, become null."""
    number = value.item() if isinstance(value, np.number) else value
    return number if math.isfinite(number) else None


def _rows(values_LxH: np.ndarray) -> list[list[float | None]]:
    # float32 has seven significant figures.
    return [[float(f"{x:.7g}") if np.isfinite(x) else None for x in row] for row in values_LxH.tolist()]


class SamplesWriter(JsonLinesFile, Writer):
    """A writer that appends {"step", "split", ...texts} to a file, a line per sample."""

    def write(self, report: Report) -> None:
        if isinstance(report, Samples):
            for sample in report.samples:
                self.append({"step": int(report.step), "split": report.split, **sample})
