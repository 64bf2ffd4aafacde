"""SIGKILL at random instants, and a run repeated under other circumstances: bit for bit the same in the end."""

import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from tests.faults.outcome import Row
from tests.faults.subject import LIMIT, SAVED_EVERY, Child, SharedProgress, config, differences, forked, result, trained

REPEATED = 2 * SAVED_EVERY - 1  # steps, at most, while a save goes on beside the next ones


def kills(folder: Path, count: int, seed: int = 0) -> list[Row]:
    """Kill runs at `count` random instants; each run goes on until it is complete, or all kills are delivered."""
    draw, values, cache = random.Random(seed), config(folder), folder / "cache"
    reference = _reference(folder)
    began = time.monotonic()
    assert forked(folder, trained, values, folder / "warm", cache).code == 0
    seconds = time.monotonic() - began
    delivered, restarts, failed, repeated, wrong, complete = 0, 0, 0, 0, 0, 0
    while delivered < count:
        run, progress, last = Path(tempfile.mkdtemp(dir=folder)) / "run", SharedProgress(), 0
        while True:
            progress.clear()
            child = Child(folder, trained, values, run, cache, progress)
            restarts += 1
            killed = delivered < count and _killed(child, progress, draw, seconds)
            if not killed:
                ended = child.wait() if delivered >= count else None
                if (ended is not None and ended.code) or (ended is None and not _complete(folder, run)):
                    failed += 1
                    print((folder / "said.txt").read_text(), flush=True)
            delivered += killed
            first, reached = progress.seen()
            if first:
                repeated = max(repeated, last - first + 1)
            last = max(last, reached)
            said = f"{delivered} kills, {restarts} starts, {failed} failed, {wrong} of {complete} runs differ"
            print(f"{said}, at most {repeated} steps repeated", flush=True)
            if not killed:
                break
        complete += 1
        found = differences(reference, forked(folder, result, run).value or {"leaves": {}})
        wrong += bool(found)
        if found:
            print(f"{run}: {found}", flush=True)
        shutil.rmtree(run.parent)
    measured = (
        f"{delivered} kills over {complete} runs, {restarts} starts: {failed} failed restarts, {wrong} runs differ in "
        f"any bit of state, metrics, heads, samples or maps; at most {repeated} steps repeated"
    )
    held = not failed and not wrong and repeated <= REPEATED
    return [
        Row(f"SIGKILL at {delivered} random instants, dropout on, a save every {SAVED_EVERY} steps", measured, held)
    ]


def _killed(child: Child, progress: SharedProgress, draw: random.Random, seconds: float) -> bool:
    """Kill it, half of the time at any instant, else at one while it steps; False where it had ended before."""
    stepping, until = draw.random() < 0.5, time.monotonic() + LIMIT
    while stepping and not progress.seen()[0] and not child.ended() and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.2 * seconds if stepping else seconds))
    return child.kill()


def repeats(folder: Path) -> list[Row]:
    """The same run once more: with a cold compile cache, with a warm one, and beside other work."""
    values, reference, wrong = config(folder), _reference(folder), []
    for name in ("cold", "warm", "loaded"):
        cache = folder / ("cache-cold" if name == "cold" else "cache")
        burners = [Child(folder, _burn) for _ in range(3 if name == "loaded" else 0)]
        ended = forked(folder, trained, values, folder / f"again-{name}", cache)
        for burner in burners:
            burner.kill()
        if ended.code or differences(reference, forked(folder, result, folder / f"again-{name}").value):
            wrong.append(name)
    measured = f"3 runs (cold cache, warm cache, beside 3 busy processes): {len(wrong)} differ {wrong or ''}".strip()
    return [Row("a run repeated, under load, with a cold and a warm compile cache", measured, not wrong)]


def _complete(folder: Path, run: Path) -> bool:
    text = (folder / "said.txt").read_text()
    return "Traceback" not in text and (run / "checkpoints").is_dir()


def _reference(folder: Path) -> dict:
    run = folder / "reference"
    if not run.exists():
        ended = forked(folder, trained, config(folder), run, folder / "cache")
        assert ended.code == 0, ended.said
    return forked(folder, result, run).value


def _burn() -> None:
    signal.alarm(120)
    os.nice(0)
    while True:
        sum(range(10_000))
