"""Plant every mutant in a copy of the checkout and see which tests fail.

    python -m tests.mutants.run [--only=TEXT] [--processes=2]

A mutant is seen if a test of `make test` fails: those that it names, or the nearest to its file. What is seen by whom
is written to tests/mutants/results.json; with --only, for those whose name has the text, the others staying as they
are. Exits with 1 if fewer than 95 % are seen.
"""

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from tests.changed import nearest_test_files
from tests.mutants.mutant import ROOT, Mutant, all_mutants

RESULTS = Path(__file__).with_name("results.json")
COPIES = ROOT / ".cache" / "mutants"
LEAST_SEEN = 0.95
MOST_FAILURES = 3
SECONDS = 900
NO_TESTS = 5  # pytest's exit code where it finds none


def copy_checkout(folder: Path) -> Path:
    """Copy what git knows of the working tree; what tests have compiled there before stays."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name != ".cache":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    # Tests read the git history of the checkout, and data that may lie beside it.
    (folder / ".git").symlink_to(ROOT / ".git")
    shared = folder.parent / "shared"
    if (ROOT.parent / "shared").is_dir() and not shared.exists():
        shared.symlink_to(ROOT.parent / "shared")
    return folder


def failed_tests(copy: Path, files: Iterable[str]) -> list[str] | None:
    """Run test files in a copy; return the first tests that fail, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command += [f"--maxfail={MOST_FAILURES}", *files]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return [f"no end in {SECONDS} s"]
    if done.returncode == 0:
        return None
    if done.returncode == NO_TESTS:
        raise ValueError(f"none of {', '.join(files)} has a test that make test runs: name others")
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failures or [f"exit {done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1][:200]}"]


def files_to_run(mutant: Mutant) -> tuple[str, ...]:
    """Return the test files that should see a mutant."""
    if mutant.tests:  # what is nearest takes seconds to find
        return mutant.tests
    return tuple(name for name in nearest_test_files([mutant.file]) if name != "tests/test_structure.py")


def plant(mutants: Iterable[Mutant], processes: int) -> dict[str, list[str] | None]:
    """Plant each mutant by itself; return the tests that fail of it, None if all pass."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    results: dict[str, list[str] | None] = {}

    def work(copy: Path) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            original = (copy / mutant.file).read_text(encoding="utf-8")
            mutant.apply(copy)
            results[mutant.name] = failed_tests(copy, files_to_run(mutant))
            (copy / mutant.file).write_text(original, encoding="utf-8")
            print(f"{'seen' if results[mutant.name] else 'NOT SEEN'}  {mutant.name}", flush=True)

    workers = [
        threading.Thread(target=work, args=(copy_checkout(COPIES / f"copy_{number}"),)) for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def main() -> int:
    """Plant the mutants, write what was seen, and exit with 0 where enough was."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name has this text")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="copies at work (default: 2)")
    arguments = parser.parse_args()
    mutants = all_mutants()
    chosen = [mutant for mutant in mutants if arguments.only in mutant.name]
    sound = failed_tests(
        copy_checkout(COPIES / "copy_0"), sorted({name for each in chosen for name in files_to_run(each)})
    )
    if sound is not None:
        print(f"without a mutant these tests fail already: {', '.join(sound)}", file=sys.stderr)
        return 2
    seen = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    seen |= plant(chosen, arguments.processes)
    seen = {mutant.name: seen[mutant.name] for mutant in mutants if mutant.name in seen}
    RESULTS.write_text(json.dumps(seen, indent=1) + "\n")
    count = sum(tests is not None for tests in seen.values())
    print(f"{count} of {len(seen)} mutants are seen")
    return 0 if count >= LEAST_SEEN * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
