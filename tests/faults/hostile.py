"""Wrong and hostile input to every command: what a stranger's files and a person's mistakes may do, which is nothing.

    python -m tests.faults.hostile --count=400

Each case is a call in a sandbox (tests.faults.sandbox). Counted are tracebacks, executions of code that a file brought
along, files outside the case's folder, processes and connections: of each there should be none. The same seed draws the
same cases.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults import damaged_programs, hostile_files, hostile_runs, hostile_weights, hostile_words
from tests.faults.originals import Originals, make, make_quickly
from tests.faults.outcome import Row
from tests.faults.sandbox import Case, Sandbox, Seen, import_all


def trials(seed: int, originals: Originals, sandbox: Sandbox, count: int | None = None) -> list[Case]:
    """The named cases that a seed draws: about `count`, of which two in three are files; or all that there are."""
    each = None if count is None else count // 20  # of eight kinds
    made = [
        *hostile_files.cases(originals, sandbox, seed, None if count is None else 13 * count // 20),
        *hostile_words.cases(originals, seed, each),
        *hostile_runs.cases(originals, sandbox, seed, each),
        *hostile_weights.cases(originals, sandbox, seed, each),
    ]
    return made


def main(count: int | None = 400, seed: int = 0, only: str = "", folder: Path | None = None, damages: int = 40) -> int:
    """Run the cases and damage the compiled programs; print what was wrong and a table; return the number of faults."""
    with _places(folder) as root:
        originals, sandbox = make(root / "originals"), Sandbox(root / "sandbox")
        cases = [case for case in trials(seed, originals, sandbox, count) if only in case.name]
        faults = watched(sandbox, cases)
    return faults + (damaged_programs.main(damages, seed) if damages else 0)


def measured(quickly: bool) -> list[Row]:
    """All of it, or a part, as a row of the harness's table; what was wrong is printed."""
    faults = quick() if quickly else main()
    what = "some inputs" if quickly else "400 inputs over all commands, and 40 damages of compiled programs"
    measured = f"{what}: {faults} that crashed, ran code, wrote elsewhere or called out"
    return [Row("wrong and hostile input", measured, not faults)]


def quick(count: int = 18, seed: int = 0) -> int:
    """As `main`, in seconds: nothing is trained, and each counter is first seen to count what it is for."""
    with _places(None) as root:
        originals, sandbox = make_quickly(root / "originals"), Sandbox(root / "sandbox")
        blind = 0
        for case, counter in hostile_words.planted(sandbox):
            seen = sandbox.run(case)
            if not getattr(seen, counter) or not seen.faults:
                print(f"{case.name} is not seen")
                blind += 1
        each = -(-count // 6)
        cases = [
            *hostile_words.cases(originals, seed, each),
            *hostile_runs.cases(originals, sandbox, seed, each),
        ]
        always = ("train: a run with a feature's class", "train: a run with a log", "sweep: a sweep with a trial o")
        cases += [case for case in hostile_runs.cases(originals, sandbox, seed) if case.name.startswith(always)]
        return blind + watched(sandbox, [case for case in cases if not case.name.startswith("convert --")])


@contextlib.contextmanager
def _places(folder: Path | None) -> Iterator[Path]:
    import_all()
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        yield folder or Path(temporary)


def watched(sandbox: Sandbox, cases: Sequence[Case]) -> int:
    """Run the cases, print each with a fault and the table, and return the number of those with faults."""
    start, seen = time.monotonic(), []
    for case in cases:
        one = sandbox.run(case)
        seen.append(one)
        if one.faults:
            print(f"{case.name}: {'; '.join(one.faults)[:700]}", flush=True)
            if one.tracebacks:
                print("    " + "\n    ".join(one.err.strip().splitlines()[-4:]), flush=True)
    print(table(seen, time.monotonic() - start))
    return sum(bool(one.faults) for one in seen)


def table(seen: Sequence[Seen], seconds: float) -> str:
    """What the cases did, a line a command."""
    columns = {
        "cases": lambda one: True,
        "refused": lambda one: one.code == 2,
        "went on": lambda one: one.code == 0,
        "tracebacks": lambda one: one.tracebacks,
        "executions": lambda one: one.executed,
        "files outside": lambda one: bool(one.written),
        "processes": lambda one: bool(one.processes),
        "connections": lambda one: bool(one.connections),
        "other faults": lambda one: bool(one.faults) and not (one.tracebacks or one.executed or one.written),
    }
    counts = Counter((one.case.command, name) for one in seen for name, holds in columns.items() if holds(one))
    lines = [f"| command | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for command in (*dict.fromkeys(one.case.command for one in seen),):
        lines.append(f"| {command} | {' | '.join(str(counts[command, name]) for name in columns)} |")
    totals = (str(sum(counts[command, name] for command, of in list(counts) if of == name)) for name in columns)
    slowest = max(seen, key=lambda one: one.seconds)
    took = f"{len(seen)} cases in {seconds:.0f} s, the longest {slowest.seconds:.0f} s: {slowest.case.name}"
    return "\n".join([*lines, f"| all | {' | '.join(totals)} |", took])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--all", action="store_true", help="every case that there is")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--damages", type=int, default=40, help="of the folder of compiled programs")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--folder", type=Path, help="keep the runs that cases are made of here")
    given = parser.parse_args()
    if given.quick:
        sys.exit(bool(quick(seed=given.seed)))
    many = None if given.all else given.count
    sys.exit(bool(main(many, given.seed, given.only, given.folder, given.damages)))
