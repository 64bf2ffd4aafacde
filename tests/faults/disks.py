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

from tests.faults.failing_disk import NEVER, ROOT, Commands, Ended, Fault, Operation, why_not
from tests.faults.outcome import Row
from tests.faults.subject import differences, result

TRAIN = (
    f"--config={ROOT / 'tests/faults/small_config.py'}",
    "--config.steps=20",
    "--config.eval_every=10",
    "--config.maps_every=10",
    "--config.checkpoint_every=5",
    "--config.keep=1",
)
# What a run can do without: it says so once, and goes on.
OPTIONAL = re.compile(r"run/(log\.txt|tensorboard)(/|$)")
# A checkpoint that was committed and cannot be read back is set aside in a line; the one before, or the next, serves.
COMMITTED = re.compile(r"run/checkpoints/#(/|$)")
SAYS = re.compile(r"(No space left on device|Input/output error).*; .*start the same command again")


def chosen(operations: Sequence[Operation], count: int, seed: int) -> list[Fault]:
    """So many faults: one of each kind of write first, then of each other operation; which of its kind is drawn."""
    draw = random.Random(seed)
    kinds: dict[tuple[str, str], int] = {}
    for name, _, file in operations:
        kinds[name, file] = kinds.get((name, file), 0) + 1
    draws = [Operation(name, draw.randint(1, times), file) for (name, file), times in kinds.items()]
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
    lines = ended.errors.splitlines()
    if not ended.failed:
        return [] if ended.code == 0 else [f"the fault did not happen, and it ended with {ended.code}"]
    optional = OPTIONAL.match(fault.operation.file) is not None and not fault.lasting
    if ended.code == 0:
        kept = fault.operation.name == "sync" and COMMITTED.match(fault.operation.file)
        allowed = optional or kept or OPTIONAL.match(fault.operation.file) or fault.operation.name == "remove"
        return [] if allowed and len(lines) <= 1 else [f"it ended with 0 and {len(lines)} lines: {ended.errors[-300:]}"]
    if ended.code != 1:
        return [f"it ended with {ended.code}: {ended.errors[-300:]}"]
    told = [line for line in lines if line.startswith("error: ")]
    if optional:
        return [f"what it can do without stopped it: {ended.errors[-300:]}"]
    beside = [line for line in lines if "the run goes on" in line or "it is kept as damaged-" in line]
    if len(told) != 1 or len({*lines} - {*beside, *told}) > 0:
        return [f"it said {len(lines)} lines: {ended.errors[:300]} ... {ended.errors[-300:]}"]
    named = str(workdir) in told[0] and SAYS.search(told[0])
    return [] if named else [f"it does not say what to do: {told[0]}"]


def disks(folder: Path, count: int, seed: int = 0, cache: Path | None = None) -> list[Row]:
    """Let so many operations of a run fail, one in each run; each then goes on to what a run without one comes to."""
    run, faults = folder / "run", []
    said_once = stopped = 0
    with Commands(folder, cache) as commands:
        words = [*TRAIN, f"--workdir={run}"]
        clean = commands("launch.train", words, NEVER)
        assert clean.code == 0, clean.errors
        reference = result(run)
        tried = chosen(clean.operations, count, seed)
        for fault in tried:
            shutil.rmtree(run)
            ended = commands("launch.train", words, fault)
            found = wrong(ended, fault, run)
            stopped += ended.code == 1
            said_once += ended.code == 0
            if not found:
                again = ended if ended.code == 0 else commands("launch.train", words)
                if again.code != 0:
                    found = [f"it does not go on: {again.code}, {again.errors[-300:]}"]
                elif different := differences(reference, result(run)):
                    found = [f"it goes on to something else: {different}"]
            faults += [f"{fault}: {each}" for each in found]
            print(f"{fault}: {ended.code}, {found or 'held'}", file=sys.stderr, flush=True)
    measured = f"{stopped} stopped and said so, {said_once} went on without what failed; {len(faults)} wrong"
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
