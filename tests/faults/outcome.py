"""What a part of the harness reports: a fault, how often it was delivered, and what became of it."""

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A fault, what was measured of it, and whether that is what is wanted."""

    fault: str
    measured: str
    held: bool


def table(rows: Sequence[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| fault | measured | |", "| --- | --- | --- |"]
    return "\n".join(
        [*lines, *(f"| {row.fault} | {row.measured} | {'held' if row.held else 'NOT HELD'} |" for row in rows)]
    )
