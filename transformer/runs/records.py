"""The records of a run, a JSON object a line, read while or after it trains. This module does not import jax."""

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError
from transformer.storage import locate

_TAIL = 1 << 16  # bytes that hold the last reports of a run

Record = dict[str, Any]


class Metric(NamedTuple):
    """The name of a number that runs report: "split/name", as "validation/loss" or "validation/exact_match/de"."""

    split: str
    name: str

    def __str__(self) -> str:
        return f"{self.split}/{self.name}"


class Reached(NamedTuple):
    """The last step of a run that reported a metric, and the metric; None where it was not finite."""

    step: int
    value: float | None


class Extent(NamedTuple):
    """How long a file of records was, and the SHA-256 of that content."""

    length: int
    sha256: str


def extent_of(content: bytes) -> Extent:
    """The extent of a file's content."""
    return Extent(len(content), hashlib.sha256(content).hexdigest())


def begins_as(content: bytes, extent: Extent) -> bool:
    """Whether a file that has grown begins with what it was."""
    return len(content) >= extent.length and extent_of(content[: extent.length]) == extent


def departs(path: Path, extent: Extent | None) -> str | None:
    """What of a file's content is no longer what it was; None where nothing is.

    Where it is not known what it was, which of its lines is none.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if extent is not None and begins_as(content, extent):
        return None
    for number, line in enumerate(content.splitlines(), start=1):
        if _record(line) is None:
            return f"line {number} cannot be read"
    if extent is None:
        return None
    if len(content) < extent.length:
        return f"it has {len(content)} of {extent.length} bytes"
    return "what its lines say has changed"


def cut(content: bytes, last: int, extent: Extent | None = None) -> bytes:
    """What a run that goes on from step `last` keeps of its records: what was written up to then.

    Where the content begins as it was at that step, that; else the lines of steps up to it that can be read.
    """
    if extent is not None and begins_as(content, extent):
        return content[: extent.length]
    kept = []
    for line in content.splitlines(keepends=True):
        record = _record(line)
        step = None if record is None else record.get("step")
        if isinstance(step, int) and step <= last:
            kept.append(line if line.endswith(b"\n") else line + b"\n")
    return b"".join(kept)


def parse_metric(text: str) -> Metric:
    """The metric that the text names.

    Errors: UserError for a text without split or name.
    """
    split, slash, name = text.partition("/")
    if not (slash and split and re.fullmatch(r"[^/].*", name)):
        raise UserError(f"--metric={text} is no metric: write split/name, as validation/loss")
    return Metric(split, name)


def read_records(path: str | Path, keys: Collection[str] = ("step", "split")) -> list[Record]:
    """The records of a file in order, none where the file does not exist yet; a number that was not finite is None.

    A last line that is being written, or was torn by a kill, is left out.

    Errors: UserError for another line that is no JSON object with all of `keys`.
    """
    path = locate(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return parse_records(whole_lines(content), path, keys)


def read_last_records(path: Path) -> list[Record]:
    """The last records of a run's metrics, at a cost that does not depend on the file's length.

    Errors: as `read_records`.
    """
    if not isinstance(path, Path):  # a bucket's objects are read whole
        return read_records(path)
    try:
        with path.open("rb") as file:
            length = file.seek(0, 2)
            file.seek(max(0, length - _TAIL))
            content = file.read()
    except FileNotFoundError:
        return []
    first_whole = content if length <= _TAIL else content.partition(b"\n")[2]
    return parse_records(whole_lines(first_whole), path, ("step", "split"))


def parse_records(content: bytes, path: Path, keys: Collection[str]) -> list[Record]:
    """The records of a file's whole lines. Errors: as `read_records`, naming `path`."""
    records = []
    for number, line in enumerate(content.splitlines(), start=1):
        record = _record(line)
        if record is None or not set(keys) <= record.keys():
            raise UserError(
                f"{path}:{number} is no JSON object with {' and '.join(keys)}: {line[:40]!r}; repair or remove that "
                "line"
            )
        records.append(record)
    return records


def whole_lines(content: bytes) -> bytes:
    """The content without a last line that a kill tore; a last line that only lacks its newline is kept."""
    complete, newline, last = content.rpartition(b"\n")
    return complete + newline if _record(last) is None else content + b"\n"


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # also what is not UTF-8
        return None
    return record if isinstance(record, dict) else None


def reached(records: Sequence[Record], metric: Metric) -> Reached | None:
    """The last report of a metric; None where the run has not reported it."""
    for record in reversed(records):
        if record["split"] == metric.split and metric.name in record:
            return Reached(record["step"], record[metric.name])
    return None


def last_step(records: Sequence[Record]) -> int:
    """The last step that reported a number, or 0."""
    return max((record["step"] for record in records), default=0)


def metrics_in(records: Sequence[Record]) -> list[str]:
    """Every metric that the reports have, those of the training split last."""
    names = {f"{record['split']}/{name}" for record in records for name in record if name not in ("step", "split")}
    return sorted(names, key=lambda metric: (metric.startswith("train/"), metric))
