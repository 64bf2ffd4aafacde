"""Deliver every fault and see what becomes of it.

    python -m tests.faults.run [--quick] [--only=PART ...] [--record=FILE]

Each part is a module with `measured(quick)`, which returns rows for the table. All draws are seeded.
"""

import argparse
import importlib
import sys
from pathlib import Path

from tests.faults.outcome import Row, table

PARTS = ("tests.faults.storage", "tests.faults.disks", "tests.faults.running", "tests.faults.hostile")


def main() -> int:
    """Run the parts, print and write the table, and exit with 0 where all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the counts")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="as storage; may be said again")
    parser.add_argument("--record", type=Path, metavar="FILE", help="where to write the table, as Markdown")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in PARTS:
        if not arguments.only or name.rpartition(".")[2] in arguments.only:
            rows += importlib.import_module(name).measured(arguments.quick)
    print(table(rows))
    if arguments.record is not None:
        arguments.record.write_text(f"{table(rows)}\n")
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
