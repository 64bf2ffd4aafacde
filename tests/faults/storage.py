"""Faults of storage: kills, failed operations, damaged files; and that the comparison catches what is planted."""

import tempfile
from pathlib import Path

from tests.faults.damage import damages
from tests.faults.kills import kills, repeats
from tests.faults.operations import operations
from tests.faults.outcome import Row
from tests.faults.planted import planted


def measured(quick: bool) -> list[Row]:
    """Deliver them; `quick` takes a tenth of each."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="headwise-faults-") as name:
        for part, arguments in (
            (planted, ()),
            (kills, (10 if quick else 100,)),
            (operations, (10 if quick else 1,)),
            (damages, (21, 10) if quick else (203, 1)),
            (repeats, ()),
        ):
            folder = Path(name) / part.__name__
            folder.mkdir()
            rows += part(folder, *arguments)  # type: ignore[operator]
            print(f"{part.__name__}: {[row.measured for row in rows[-4:]]}", flush=True)
    return rows
