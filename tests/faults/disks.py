"""A run on a disk that is full or fails, at every kind of write that it makes: told in a line, and gone on with.

    python -m tests.faults.disks [--count=N] [--seed=N]

ENOSPC stays from then on, as on a full disk; EIO comes once.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.failing_disk import NEVER, ROOT, Commands, Ended, Fault, Operation, why_not
from tests.faults.outcome import Row
from tests.faults.subject import differences, result

TRAIN = (
    f"--config={ROOT / 'tests/faults/small_config.py'}",
    "--config.steps=20",
    "--config.eval_every=10",
    "--config.maps_every=10",
    "--config.checkpoint_every=5",
    "--config.keep_checkpoints=1",
)
FAILURE = "(?:No space left on device|Input/output error)"
# What a run can do without: it says so once, and goes on.
OPTIONAL = re.compile(r"run/(log\.txt|tensorboard)(/|$)")
# An older checkpoint that stays is in nobody's way.
STAYS = re.compile(rf"could not be removed yet: .*{FAILURE}.*; training continues$")
# The disk has not taken a checkpoint whose commit had been reported: it may be gone after a power cut, so it is never
# gone on from. One that a later checkpoint follows costs the run nothing, and a line says so; behind the last one the
# run must fail, as its end state is not on the disk: the next start goes on from the one before.
UNVERIFIED = rf"checkpoints/(\d+) was not written as it was saved: .*{FAILURE}.*; it is kept as damaged-\1, and .*"
REPLACED = re.compile(UNVERIFIED + "; training continues$")
NOT_REPLACED = re.compile(UNVERIFIED + "; start the same command again to go on$")
SAYS = re.compile(rf"{FAILURE}; .*, then start the same command again")


def chosen(operations: Sequence[Operation], count: int, seed: int) -> list[Fault]:
    """So many faults: one of each kind of write first, then of each other operation; which of its kind is drawn."""
    draw = random.Random(seed)
    kinds: dict[tuple[str, str], int] = {}
    for name, _, file in operations:
        kinds[name, file] = kinds.get((name, file), 0) + 1
    # Sorted: threads of a run begin theirs in one order today and in another tomorrow.
    draws = [Operation(name, draw.randint(1, times), file) for (name, file), times in sorted(kinds.items())]
    writes = [each for each in draws if each.name == "write"]
    others = [each for each in draws if each.name != "write"]
    draw.shuffle(writes)
    draw.shuffle(others)
    faults = []
    for number, operation in enumerate([*writes, *others][:count]):
        full = number % 2 == 0 and operation.name in ("write", "open", "mkdir", "sync")
        faults.append(Fault(operation, "ENOSPC" if full else "EIO", lasting=full))
    return faults


def wrong(ended: Ended, fault: Fault, workdir: Path) -> list[str]:
    """What is wrong with how a command ended that met a fault."""
    if not ended.failed:
        return [] if ended.code == 0 else [f"the fault did not happen, and it ended with {ended.code}"]
    lines = ended.errors.splitlines()
    told = [line for line in lines if line.startswith("error: ")]
    beside = [line for line in lines if line not in told]
    optional = OPTIONAL.match(fault.operation.file) is not None
    # On a disk that stays full, what the run can do without fails as well; or the run, before it has told of a
    # checkpoint that was set aside, which explains from where the next start goes on.
    most = len({*beside}) if fault.lasting else 1
    extra = [line for line in beside if "; training continues" not in line]
    if len(beside) > most or not all(told and fault.lasting and re.search(UNVERIFIED, line) for line in extra):
        return [f"it said {len(lines)} lines: {ended.errors[:300]} ... {ended.errors[-300:]}"]
    if ended.code == 0:
        # What could not be removed may stay without a word.
        silent = fault.operation.name == "remove" and not lines
        said = not told and any(_goes_on(line, optional, workdir) for line in beside)
        return [] if silent or said else [f"it ended with 0 and {len(lines)} lines: {ended.errors[-300:]}"]
    if ended.code != 1 or len(told) != 1:
        return [f"it ended with {ended.code} and {len(lines)} lines: {ended.errors[-300:]}"]
    if optional and not fault.lasting:
        return [f"what it can do without stopped it: {ended.errors[-300:]}"]
    named = str(workdir) in told[0] and (SAYS.search(told[0]) or NOT_REPLACED.search(told[0]))
    return [] if named else [f"it does not say what to do: {told[0]}"]


def _goes_on(line: str, optional: bool, workdir: Path) -> bool:
    """Whether a run that has said this line may end with 0."""
    if replaced := REPLACED.search(line):
        steps = [int(entry.name) for entry in (workdir / "checkpoints").iterdir() if entry.name.isdecimal()]
        aside = workdir / "checkpoints" / f"damaged-{replaced[1]}"
        return aside.is_dir() and max(steps, default=0) > int(replaced[1])
    return optional or STAYS.search(line) is not None


def outcome(
    commands: Commands, words: Sequence[str], fault: Fault, run: Path, reference: dict[str, Any]
) -> tuple[Ended, list[str]]:
    """How a run ended that met a fault, and what is wrong with it, or with what the same command then comes to."""
    shutil.rmtree(run)
    ended = commands("launch.train", words, fault)
    if found := wrong(ended, fault, run):
        return ended, found
    again = commands("launch.train", words)
    if again.code != 0 or again.errors:
        return ended, [f"it does not go on: {again.code}, {again.errors[-300:]}"]
    different = differences(reference, result(run))
    return ended, [f"it goes on to something else: {different}"] if different else []


def disks(folder: Path, count: int, seed: int = 0, cache: Path | None = None) -> list[Row]:
    """Let so many operations of a run fail, one in each run; each then goes on to what a run without one comes to."""
    run, faults = folder / "run", []
    stopped = went_on = 0
    with Commands(folder, cache) as commands:
        words = [*TRAIN, f"--workdir={run}"]
        clean = commands("launch.train", words, NEVER)
        assert clean.code == 0, clean.errors
        reference = result(run)
        tried = chosen(clean.operations, count, seed)
        for fault in tried:
            ended, found = outcome(commands, words, fault, run, reference)
            stopped += ended.code == 1
            went_on += ended.code == 0
            faults += [f"{fault}: {each}" for each in found]
            print(f"{fault}: {ended.code}, {found or 'held'}", file=sys.stderr, flush=True)
    measured = f"{stopped} stopped and said so, {went_on} went on without what failed; {len(faults)} wrong"
    return [Row(f"ENOSPC or EIO at {len(tried)} writes of a run", "; ".join([measured, *faults[:3]]), not faults)]


def measured(quick: bool) -> list[Row]:
    """Sixty faults, or a tenth of them."""
    unable = why_not()
    if unable is not None:
        return [Row("ENOSPC and EIO at the writes of a run", f"not tried: {unable}", held=True)]
    with tempfile.TemporaryDirectory(prefix="headwise-disks-") as name:
        return disks(Path(name) / "files", 6 if quick else 60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("count", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwise-disks-") as folder:
        (row,) = disks(Path(folder) / "files", given.count, given.seed)
    print(row.measured)
    sys.exit(not row.held)
