"""Plant one fault after another in a copy of the tree, and see which of its tests notices it.

    python -m tests.mutants.run [--only=NAME ...] [--record=FILE]

A fault is caught where a test fails. Broken is a run of tests that could not begin: it counts as no catch, since an
import that fails says nothing of what the tests can see. All runs share one compile cache of their own.
"""

import argparse
import contextlib
import dataclasses
import difflib
import enum
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.fault import Fault
from tests.mutants.faults import FAULTS

LIMIT = 900  # seconds for the tests of one fault
WANTED = 0.95  # the share of faults that must be caught
ROOT = Path(__file__).resolve().parents[2]
_PYTEST = ("-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider")
# The name of the first test, without the brackets of its parameters, which may hold anything.
_NAMED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::\w+)*)", re.MULTILINE)


class Verdict(enum.Enum):
    """What became of a fault."""

    CAUGHT = "caught"
    ESCAPED = "escaped"
    TIMED_OUT = "timed out"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A fault, what became of it, and the test that noticed it."""

    fault: Fault
    verdict: Verdict
    by: str
    seconds: float

    def facts(self) -> dict[str, str | float]:
        """The outcome as plain values."""
        facts: dict[str, str | float] = {"fault": self.fault.name, "file": self.fault.file}
        return facts | {"verdict": self.verdict.value, "by": self.by, "seconds": round(self.seconds, 1)}


def judge(code: int | None, output: str) -> tuple[Verdict, str]:
    """What an exit code of pytest (None: it did not end in time) and its output say, and the first test named there."""
    named = _NAMED.search(output)
    by = named.group(1) if named else ""
    match code:
        case None:
            return Verdict.TIMED_OUT, ""
        case 0:
            return Verdict.ESCAPED, ""
        case 1:
            return Verdict.CAUGHT, by
        case _:
            return Verdict.BROKEN, by


def chosen(names: Sequence[str]) -> list[Fault]:
    """The faults of these names, all where none is named. Errors: SystemExit for an unknown one, with the nearest."""
    known = {fault.name: fault for fault in FAULTS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)
            sys.exit(f"--only={name} is no fault; the nearest is {near[0]}")
    return [known[name] for name in names] if names else list(FAULTS)


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """The files that git tracks, as they stand in the tree, in a folder that is removed in the end."""
    listed = _git("ls-files", "-z")
    with tempfile.TemporaryDirectory(prefix="headwise-mutants-") as folder:
        copy = Path(folder) / "checkout"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        yield copy


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tried(fault: Fault, checkout: Path) -> Outcome:
    """Plant the fault in a checkout, run its tests there, and take it out again."""
    file = checkout / fault.file
    sound = file.read_text()
    file.write_text(fault.planted_in(sound))
    began = time.monotonic()
    try:
        verdict, by = judge(*_tested(fault.tests, checkout))
    finally:
        file.write_text(sound)
    return Outcome(fault, verdict, by, time.monotonic() - began)


def _tested(tests: Sequence[str], checkout: Path) -> tuple[int | None, str]:
    # Beside the checkout: it ends with the copy.
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(checkout.parent / "compiled")}
    process = subprocess.Popen(
        [sys.executable, *_PYTEST, *tests],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that tests have started
        process.communicate()
        return None, ""
    return process.returncode, output


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
    lines = ["| fault | file | what became of it | seconds |", "| --- | --- | --- | --- |"]
    for outcome in outcomes:
        said = f"{outcome.verdict.value}{' by ' if outcome.by else ''}{outcome.by}"
        lines.append(f"| {outcome.fault.name} | {outcome.fault.file} | {said} | {outcome.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def record(file: Path, commit: str, outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes as JSON, and beside it as a table, naming the commit that the tree was of."""
    facts = {"commit": commit, "outcomes": [outcome.facts() for outcome in outcomes]}
    file.write_text(json.dumps(facts, indent=1) + "\n")
    file.with_suffix(".md").write_text(f"Of commit {commit}: {summary(outcomes)}\n\n{table(outcomes)}")


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many were caught, and how many were not."""
    counts = {verdict: sum(outcome.verdict is verdict for outcome in outcomes) for verdict in Verdict}
    said = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"{said}; {len(outcomes)} faults, {100 * _share(outcomes):.1f} % caught"


def _share(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.verdict is Verdict.CAUGHT for outcome in outcomes) / len(outcomes)


def main() -> int:
    """Try the faults, tell of each, and exit with 0 where enough are caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this fault; may be said again")
    parser.add_argument("--record", type=Path, metavar="FILE", help="where to keep the outcomes as JSON, and .md")
    arguments = parser.parse_args()
    faults = chosen(arguments.only)
    for fault in faults:
        fault.planted_in((ROOT / fault.file).read_text())  # all, before the first is tried
    commit = _git("rev-parse", "--short", "HEAD").strip()
    outcomes: list[Outcome] = []
    with copied() as checkout:
        for fault in faults:
            outcomes.append(tried(fault, checkout))
            last = outcomes[-1]
            print(f"{last.verdict.value:9} {last.seconds:5.0f} s  {fault.name}  {last.by}", flush=True)
            if arguments.record is not None:
                record(arguments.record, commit, outcomes)
    print(summary(outcomes))
    return 0 if _share(outcomes) >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
