"""Read the records of a run, a JSON object per line, while or after it trains. This module does not import jax."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from transformer.config import MatchesPattern, Range, Sha256, UserError
from transformer.storage.json_reading import open_regular_file, parse_json, read_regular_file, refuse_repeated_keys
from transformer.storage.paths import parse_path, storage_of

_TAIL = 1 << 16  # bytes that hold the last reports of a run
_LARGEST = 1 << 34  # bytes of a file of records
_LAST_STEP = 2**53

Record = dict[str, Any]


class RecordSchema(NamedTuple):
    """The schema of a line.

    Attributes:
        owner: The key of what the line is about, a text, such as "split".
        is_value: A function that says whether a value of another key is valid.
        value: What values must be, for messages.
    """

    owner: str
    is_value: Callable[[Any], bool]
    value: str


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)


def _is_table(value: Any) -> bool:
    rows = isinstance(value, list) and all(isinstance(row, list) for row in value)
    return rows and len({len(row) for row in value}) <= 1 and all(_is_number(item) for row in value for item in row)


METRIC_RECORDS = RecordSchema("split", _is_number, "a number or null")
"""The schema of metrics.jsonl (transformer.training.writers.jsonl)."""
SAMPLE_RECORDS = RecordSchema("split", lambda value: True, "any value")
"""The schema of samples.jsonl (transformer.training.writers.jsonl)."""
HEAD_RECORDS = RecordSchema("site", _is_table, "a list of lists of numbers")
"""The schema of heads.jsonl (transformer.training.writers.jsonl)."""


class MetricName(NamedTuple):
    """The name of a metric, "split/name", such as "validation/loss" or "validation/exact_match/de"."""

    split: str
    name: str

    def __str__(self) -> str:
        return f"{self.split}/{self.name}"


class LastMetric(NamedTuple):
    """The last logged value of a metric and its step; the value is None if it was not finite."""

    step: int
    value: float | None


RecordsName = Annotated[str, MatchesPattern(r"(metrics|samples|heads)\.jsonl", "the name of a file of records")]
StepNumber = Annotated[int, Range(0, 2**53)]
"""A step of a run, as written in a file."""


class FileExtent(NamedTuple):
    """The length of a records file at some time, and the SHA-256 of its content then."""

    length: Annotated[int, Range(0, 2**53)]
    sha256: Sha256


def file_extent(content: bytes) -> FileExtent:
    """Return the extent of a file's content."""
    return FileExtent(len(content), hashlib.sha256(content).hexdigest())


def starts_with_extent(content: bytes, extent: FileExtent) -> bool:
    """Whether content starts with the content that `extent` describes."""
    return len(content) >= extent.length and file_extent(content[: extent.length]) == extent


def describe_change(path: Path, extent: FileExtent | None) -> str | None:
    """Describe how a file differs from an extent; None if it starts as it did.

    Args:
        path: The file.
        extent: The extent. Without one, the first line that cannot be read is described.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if extent is not None and starts_with_extent(content, extent):
        return None
    for number, line in enumerate(content.splitlines(), start=1):
        if _parse_record(line) is None:
            return f"line {number} cannot be read"
    if extent is None:
        return None
    if len(content) < extent.length:
        return f"it has {len(content)} of {extent.length} bytes"
    return "what its lines say has changed"


def truncate_records(content: bytes, last: int, extent: FileExtent | None = None) -> bytes:
    """Return the records up to a step, which a run that resumes there keeps.

    Args:
        content: The content of the file.
        last: The step.
        extent: The extent at that step. If the content starts with it, that part is returned; else the readable lines
            of steps up to `last`.
    """
    if extent is not None and starts_with_extent(content, extent):
        return content[: extent.length]
    kept_lines = []
    for line in content.splitlines(keepends=True):
        record = _parse_record(line)
        step = None if record is None else record.get("step")
        if isinstance(step, int) and step <= last:
            kept_lines.append(line if line.endswith(b"\n") else line + b"\n")
    return b"".join(kept_lines)


def parse_metric_name(text: str) -> MetricName:
    """Parse a metric name such as "validation/loss".

    Raises:
        UserError: If the text has no split or no name.
    """
    split, slash, name = text.partition("/")
    if not (slash and split and re.fullmatch(r"[^/].*", name)):
        raise UserError(f"--metric={text} is no metric: write split/name, as validation/loss")
    return MetricName(split, name)


def read_records(path: str | Path, lines: RecordSchema = METRIC_RECORDS) -> list[Record]:
    """Read the records of a file in order; [] if the file does not exist yet.

    A number that was not finite is None. A last line that is being written, or was cut off by a kill, is left out.

    Args:
        path: The file.
        lines: The schema of its lines.

    Raises:
        UserError: If another line does not fit the schema.

    Example:
        ```python
        from transformer.runs.jsonl_reading import last_metric, parse_metric_name, read_records
        from transformer.runs.run_directory import RunDirectory

        records = read_records(RunDirectory.open("runs/demo").metrics_file)
        last_metric(records, parse_metric_name("train/loss"))  # the last step and its loss
        ```
    """
    path = parse_path(path)
    try:
        content = read_regular_file(path, _LARGEST)
    except FileNotFoundError:
        return []
    return parse_records(complete_lines(content), path, lines)


def read_last_records(path: Path) -> list[Record]:
    """Read the last records of a run's metrics, at a cost that does not depend on the file's length.

    Raises:
        UserError: If a line does not fit the schema.
    """
    if not isinstance(path, Path):  # a bucket's objects are read whole
        return read_records(path)
    try:
        with open_regular_file(path) as file:
            length = file.seek(0, 2)
            file.seek(max(0, length - _TAIL))
            content = file.read()
    except FileNotFoundError:
        return []
    first_whole = content if length <= _TAIL else content.partition(b"\n")[2]
    return parse_records(complete_lines(first_whole), path, METRIC_RECORDS)


class ReadableRecords(NamedTuple):
    """The records of a file that can be read, and how much of it cannot.

    Attributes:
        records: The records in order.
        num_unreadable: The number of lines that do not fit the schema; a last line that is being written is none.
        num_omitted: The number of bytes in the middle of a large file that were not read.
    """

    records: list[Record]
    num_unreadable: int
    num_omitted: int


def read_readable_records(path: Path, max_bytes: int, lines: RecordSchema = METRIC_RECORDS) -> ReadableRecords:
    """Read the records of a file that anybody may have written, however damaged or large it is.

    Args:
        path: The file.
        max_bytes: The most bytes to read: of a larger file half of them from its start, half from its end.
        lines: The schema of its lines.

    Raises:
        OSError: If it is missing or cannot be read.
        UserError: If it is no regular file.
    """
    storage = storage_of(path)
    size = storage.size(path)
    num_omitted = max(0, size - max_bytes)
    if num_omitted:
        start = storage.read_range(path, 0, max_bytes // 2).rpartition(b"\n")[0]
        end = storage.read_range(path, size - max_bytes // 2, size).partition(b"\n")[2]
        content = start + b"\n" + end
    else:
        content = storage.read_range(path, 0, size)
    values = _parse_lines(complete_lines(content).split(b"\n"))
    records = [value for value in values if _describe_mismatch(value, lines) is None]
    return ReadableRecords(
        [record for record in records if record is not None], len(values) - len(records), num_omitted
    )


def _parse_lines(lines: Sequence[bytes]) -> list[Record | None]:
    """Parse the lines that are not empty; None for each that is no JSON object."""
    lines = [line for line in lines if line.strip()]
    # All of them at once, which takes a fifth of the time, unless one is damaged or may hold half a surrogate pair.
    if not any(b"\\u" in line for line in lines):
        try:
            values = json.loads(b"[" + b",".join(lines) + b"]", parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            values = []
        if len(values) == len(lines) and all(isinstance(value, dict) for value in values):
            return values
    return [_parse_record(line) for line in lines]


def parse_records(content: bytes, path: Path, lines: RecordSchema) -> list[Record]:
    """Parse the records in the complete lines of a file.

    Args:
        content: The lines.
        path: The file, for messages.
        lines: The schema of the lines.

    Raises:
        UserError: If a line does not fit the schema.
    """
    records = []
    for number, line in enumerate(content.splitlines(), start=1):
        record = _parse_record(line)
        what = _describe_mismatch(record, lines)
        if record is None or what is not None:
            raise UserError(f"{path}:{number} {what}: {line[:40]!r}; repair or remove that line")
        records.append(record)
    return records


def _describe_mismatch(record: Record | None, lines: RecordSchema) -> str | None:
    """Describe how a record does not fit the schema; None if it does."""
    if record is None or not {"step", lines.owner} <= record.keys():
        return f"is no JSON object with step and {lines.owner}"
    if type(record["step"]) is not int or not 0 <= record["step"] <= _LAST_STEP:
        return f"has a step that is no integer from 0 to {_LAST_STEP}"
    if not isinstance(record[lines.owner], str):
        return f"has a {lines.owner} that is no text"
    for name, value in record.items():
        if name not in ("step", lines.owner) and not lines.is_value(value):
            return f"holds {name[:40]!r}, which is not {lines.value}"
    return None


def is_record(line: bytes) -> bool:
    """Whether a line is a JSON object."""
    return _parse_record(line) is not None


def complete_lines(content: bytes, is_complete: Callable[[bytes], bool] = is_record) -> bytes:
    """Return content without a last line that a kill cut off.

    A last line is kept if it only lacks its newline, or if another byte stands in its place.
    """
    complete, newline, last = content.rpartition(b"\n")
    for line in (last, last[:-1]):
        if is_complete(line):
            return complete + newline + line + b"\n"
    return complete + newline


def _parse_record(line: bytes) -> Record | None:
    try:
        # The careful parser is used only for possible surrogates: files of records are long.
        record = (
            parse_json(line, "it")
            if b"\\u" in line
            else json.loads(line, parse_constant=lambda _: None, object_pairs_hook=refuse_repeated_keys)
        )
    except (ValueError, RecursionError):  # also what is not UTF-8
        return None
    return record if isinstance(record, dict) else None


def last_metric(records: Sequence[Record], metric: MetricName) -> LastMetric | None:
    """Return the last logged value of a metric; None if the run has not logged it."""
    for record in reversed(records):
        if record["split"] == metric.split and metric.name in record:
            return LastMetric(record["step"], record[metric.name])
    return None


def last_step(records: Sequence[Record]) -> int:
    """Return the last logged step, or 0."""
    return max((record["step"] for record in records), default=0)


def list_metrics(records: Sequence[Record]) -> list[str]:
    """Return the names of all logged metrics, those of the training split last."""
    names = {f"{record['split']}/{name}" for record in records for name in record if name not in ("step", "split")}
    return sorted(names, key=lambda metric: (metric.startswith("train/"), metric))
