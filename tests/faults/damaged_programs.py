"""Damages of the folder of compiled programs: a run goes on as without, its figures the same, and mends the folder.

python -m tests.faults.damaged_programs --count=40
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# What a run of a few programs computes, in a process of its own: digits of its results, and what the cache did.
PROGRAM = """
from launch.compilation_cache import enable_user_cache
enable_user_cache()
import jax, jax.monitoring, jax.numpy as jnp
events = []
jax.monitoring.register_event_listener(lambda name, **more: events.append(name.rpartition("/")[2]))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
key = jax.random.key(0)
x = jax.jit(lambda key: jax.random.normal(key, (16, 16)))(key)
for power in range(1, 4):
    x = jax.jit(lambda x: jnp.tanh(jax.lax.fori_loop(0, power, lambda i, y: y @ x, x)))(x)
print(x.sum().item().hex(), events.count("cache_hits"), events.count("cache_misses"))
"""
Damage = Callable[[Path, random.Random], None]


def _flip(entry: Path, drawn: random.Random) -> None:
    content = bytearray(entry.read_bytes())
    for _ in range(drawn.choice((1, 1, 8, 200))):
        content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    entry.write_bytes(content)


def _cut(entry: Path, drawn: random.Random) -> None:
    os.truncate(entry, drawn.randrange(1, entry.stat().st_size))


def _empty(entry: Path, drawn: random.Random) -> None:
    entry.write_bytes(b"")


def _fill(entry: Path, drawn: random.Random) -> None:
    entry.write_bytes(drawn.randbytes(entry.stat().st_size))


def _delete(entry: Path, drawn: random.Random) -> None:
    entry.unlink()


def _folder(entry: Path, drawn: random.Random) -> None:
    entry.unlink()
    (entry / "inner").mkdir(parents=True)


def _unreadable(entry: Path, drawn: random.Random) -> None:
    entry.chmod(0)


def _another(entry: Path, drawn: random.Random) -> None:
    """The program of another entry under this one's name."""
    others = sorted(path for path in entry.parent.glob("*-cache") if path != entry)
    entry.write_bytes(drawn.choice(others).read_bytes()[:-9])


def _lock(entry: Path, drawn: random.Random) -> None:
    lock = entry.parent / ".lockfile"
    lock.unlink(missing_ok=True)
    lock.mkdir()


def _times(entry: Path, drawn: random.Random) -> None:
    for path in entry.parent.glob("*-atime"):
        path.unlink()
        if drawn.random() < 0.5:
            path.mkdir()


def _whole_folder(entry: Path, drawn: random.Random) -> None:
    shutil.rmtree(entry.parent)
    entry.parent.write_bytes(b"")


def _open_to_all(entry: Path, drawn: random.Random) -> None:
    entry.parent.chmod(0o777)


DAMAGES: tuple[Damage, ...] = (
    *(_flip, _flip, _flip, _cut, _cut, _empty, _fill, _delete, _folder, _unreadable, _another),
    *(_lock, _times, _whole_folder, _open_to_all),
)
# After these there is no folder to mend: nothing is kept, and what others may write to is not read, which is told.
UNUSED = (_whole_folder, _open_to_all)


class Outcome(NamedTuple):
    """What a run of the programs said: its figures, programs read and compiled, and what it complained of."""

    figures: str
    hits: int
    misses: int
    complaints: str


def run(home: Path) -> Outcome:
    """The programs in a process whose home is this."""
    environment: dict[str, Any] = {**os.environ, "HOME": str(home), "JAX_PLATFORMS": "cpu"}
    for name in ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    words = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if said.returncode:
        return Outcome(f"exit code {said.returncode}", 0, 0, said.stderr)
    figures, hits, misses = said.stdout.split()
    return Outcome(figures, int(hits), int(misses), said.stderr)


def faults_of(home: Path, whole: Outcome, damage: Damage, drawn: random.Random) -> list[str]:
    """What is wrong with the run after a damage, and with the one after that; `home` is as a whole run left it."""
    (folder,) = (home / ".cache" / "headwise").iterdir()
    damage(drawn.choice(sorted(folder.glob("*-cache"))), drawn)
    first, second = run(home), run(home)
    faults = [f"other figures: {each.figures}" for each in (first, second) if each.figures != whole.figures]
    if damage is _open_to_all:
        faults += ["is not told" for each in (first, second) if "others may write to" not in each.complaints]
    else:
        faults += [f"complains: {each.complaints[-300:]}" for each in (first, second) if each.complaints.strip()]
    if damage in UNUSED:
        faults += ["reads what others may write to"] if first.hits or second.hits else []
    elif second.misses:
        faults.append(f"is not mended: {second.misses} programs compiled again")
    return faults


def main(count: int = 40, seed: int = 0) -> int:
    """Damage the folder so many times, print each fault and a line of counts, and return the number of faults."""
    drawn, wrong = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as temporary:
        original = Path(temporary) / "whole"
        original.mkdir()
        run(original)
        whole = run(original)
        for number in range(count):
            damage = DAMAGES[number % len(DAMAGES)]
            home = Path(temporary) / "home"
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(original, home)
            faults = faults_of(home, whole, damage, drawn)
            wrong += bool(faults)
            if faults:
                print(f"{number} {damage.__name__.strip('_')}: {'; '.join(faults)}", flush=True)
    print(f"{count} damages of the folder of compiled programs: {wrong} with faults")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(bool(main(given.count, given.seed)))
