"""Attacks on a run while it trains: signals, lost and hanging processes, numbers that are not finite, and leaks.

    python -m tests.faults.running [--signals=N] [--lost=N] [--steps=N] [--seed=N] [--only=PART,PART]

Each trial is drawn by the seed. It prints a row a part, what was wrong of it, and ends with 1 where something was.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults import outcome
from tests.faults.groups import ROOT, Ended, environment_of, together, words_of
from transformer.runs.jsonl_reading import read_records

HEARTBEAT, WATCHDOG = 10, 20
# A unit of each kind of work, by its first words: of the first no step is made.
UNITS = {
    "compile": ("the maps of step 0", "step 1"),
    "train": ("step 7", "step 23", "step 31"),
    "evaluate": ("batch 0 of", "batch 1 of"),
    "save": ("the checkpoint of step 20",),
}
LOST = ("raise", "SIGKILL", "SIGSTOP", "sleep")


class Row(NamedTuple):
    """What a part of the attack has shown: in words, and its faults."""

    part: str
    says: str
    faults: list[str]


def signals(count: int, seed: int) -> Row:
    """SIGTERM to one process of a group in every kind of work: all end at one step, saved, and the run goes on."""
    drawn, faults, late, gone_on = random.Random(seed), [], [], 0
    references: dict[int, list[dict[str, Any]]] = {}
    for trial in range(count):
        processes, work = (1, 2, 4)[trial % 3], list(UNITS)[trial % 4]
        unit = drawn.choice(UNITS[work])
        plan = {"process": drawn.randrange(processes), "unit": unit, "act": "SIGTERM", "delay": drawn.random() / 50}
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            ended = together(run, processes, plan)
            wrong = wrong_stop(ended, run, work)
            if not wrong:
                late.append(max(each.at for each in ended) - max(each.fault_at or 0 for each in ended))
            if not wrong and trial % 8 == 0:
                gone_on += 1
                wrong = wrong_rest(run, processes, references)
            faults += [f"trial {trial} ({json.dumps(plan)} of {processes}): {each}" for each in wrong]
            progress(f"signal {trial}: {work}, {processes} processes: {wrong or f'{late[-1]:.2f} s'}")
    slowest = f"the slowest {max(late):.1f} s, half within {sorted(late)[len(late) // 2]:.1f} s" if late else "none"
    good = count - len({each.split(" (")[0] for each in faults})
    return Row("SIGTERM", f"{good} of {count} stopped as one, {slowest}; {gone_on} gone on with, bit for bit", faults)


def progress(line: str) -> None:
    """Say how far a part has come, beside its row."""
    print(line, file=sys.stderr, flush=True)


def wrong_stop(ended: Sequence[Ended], run: Path, work: str) -> list[str]:
    """What is wrong with how a group stopped."""
    faults = [
        f"process {index} ended with {each.code}: {each.said[-300:]}"
        for index, each in enumerate(ended)
        if each.code != 75
    ]
    places = {place for each in ended for place in re.findall(r"stopped before ([^;]+);", each.said)}
    if len(places) != 1:
        faults.append(f"they stopped at {sorted(places)}")
    if work == "compile" and saved(run) and "a step was done" in places:
        faults.append(f"it saved {saved(run)} without a step")
    if work != "compile" and not saved(run):
        faults.append("nothing is saved")
    return faults


def saved(run: Path) -> list[int]:
    """The steps of the complete checkpoints."""
    folder = run / "checkpoints"
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit()) if folder.is_dir() else []


def wrong_rest(run: Path, processes: int, references: dict[int, list[dict[str, Any]]]) -> list[str]:
    """How the rest of a run that was stopped differs from one that was not, in its records and its last state."""
    if processes not in references:
        with tempfile.TemporaryDirectory() as folder:
            together(Path(folder) / "run", processes)
            references[processes] = told(Path(folder) / "run")
    ended = together(run, processes)
    if any(each.code for each in ended):
        return [f"it did not go on: {ended[0].said[-300:]}"]
    return [] if told(run) == references[processes] else ["its records or its last state are not those of one run"]


def told(run: Path) -> list[dict[str, Any]]:
    """A run's records without what depends on the clock, and the digests of its last state."""
    clock = re.compile(r".*_per_second|mfu|batch_wait|flops_per_step")
    records = [
        {name: value for name, value in record.items() if not clock.fullmatch(name)}
        for record in read_records(run / "metrics.jsonl")
    ]
    manifest = json.loads((run / "checkpoints" / str(saved(run)[-1]) / "manifest" / "metadata").read_text())
    return [*records, manifest["leaves"]]


def second_signal(count: int, seed: int) -> Row:
    """A SIGINT behind a SIGTERM ends a process at once that does not come to the end of its step."""
    drawn, faults, late = random.Random(seed), [], []
    for trial in range(count):
        plan = {"process": 0, "unit": f"step {drawn.randrange(3, 30)}", "act": "twice", "delay": drawn.random() / 10}
        with tempfile.TemporaryDirectory() as folder:
            (ended,) = together(Path(folder) / "run", 1, plan)
        late.append(ended.at - (ended.fault_at or 0))
        if ended.code != 130 or late[-1] > 1:
            faults.append(f"trial {trial} ended with {ended.code} after {late[-1]:.2f} s: {ended.said[-300:]}")
    return Row("second signal", f"{count - len(faults)} of {count} ended, the slowest in {max(late):.2f} s", faults)


def lost(count: int, seed: int) -> Row:
    """One of several processes fails, dies, is stopped or hangs: the others end, and name it."""
    drawn, faults, late = random.Random(seed), [], {act: 0.0 for act in LOST}
    flags = (f"--heartbeat_timeout={HEARTBEAT}", f"--watchdog_timeout={WATCHDOG}")
    for trial in range(count):
        act, processes = LOST[trial % 4], (2, 4)[trial // 4 % 2]
        plan = {
            "process": drawn.randrange(processes),
            "unit": f"step {drawn.randrange(5, 18)}",
            "act": act,
            "delay": 0.0,
        }
        with tempfile.TemporaryDirectory() as folder:
            ended = together(Path(folder) / "run", processes, plan, flags, seconds=240)
        at = ended[plan["process"]].fault_at
        others = [each for index, each in enumerate(ended) if index != plan["process"]]
        if at is None:
            faults.append(f"trial {trial} ({json.dumps(plan)}): the fault did not happen: {ended[0].said[-300:]}")
            progress(faults[-1])
            continue
        seconds = max(each.at for each in others) - at
        late[act] = max(late[act], seconds)
        progress(f"lost {trial}: {act}, {processes} processes: {seconds:.1f} s")
        limit = (WATCHDOG if act == "sleep" else HEARTBEAT) + 5
        # jax lists the lost ones by their numbers; that the first is lost shows in its service, which answers no more.
        names = rf"process {plan['process']}\b|stopped sending heartbeats\):\s(\d+\s)*{plan['process']}\s"
        if plan["process"] == 0:
            names += "|[Cc]oordination ?[Ss]ervice"
        named = [bool(re.search(names, each.said)) for each in others]
        if seconds > limit or not all(named) or any(each.code in (0, None) for each in others):
            codes = [each.code for each in others]
            faults.append(
                f"trial {trial} ({json.dumps(plan)} of {processes}): {seconds:.1f} s, {codes}, named by {named}"
            )
    times = ", ".join(f"{act} {seconds:.1f} s" for act, seconds in late.items())
    return Row("lost process", f"{count - len(faults)} of {count} ended and named it; the slowest: {times}", faults)


def alarms(steps: int) -> Row:
    """A run without a fault, under a watchdog that is as strict as it may be: no alarm."""
    flags = (f"--config.steps={steps}", f"--watchdog_timeout={WATCHDOG}", f"--heartbeat_timeout={HEARTBEAT}")
    with tempfile.TemporaryDirectory() as folder:
        ended = together(Path(folder) / "run", 2, flags=(*flags, "--config.eval_every=200"), seconds=900)
        reached = saved(Path(folder) / "run")
    faults = [each.said[-500:] for each in ended if each.code or "no progress" in each.said]
    return Row("false alarms", f"{len(faults)} in {steps} steps of 2 processes, saved {reached}", faults)


def numbers(seed: int) -> Row:
    """Batches of NaN, infinities, tokens of no vocabulary and padding alone, one and ten in a row."""
    from tests.faults.poison import attacks

    faults, shown = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, wrong in attacks(Path(folder), seed):
            shown.append(name)
            faults += [f"{name}: {each}" for each in wrong]
    return Row("poison", f"{len(shown)} attacks: {', '.join(shown)}", faults)


def leaks(steps: int) -> Row:
    """A long run with maps and heads: memory, descriptors and threads behind step 500."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--config.steps={steps}", "--config.maps_every=50", "--config.head_statistics_every=5"]
        flags += ["--config.log_every=50", "--config.eval_every=500", "--config.checkpoint_every=500"]
        command = [
            sys.executable,
            "-m",
            "tests.faults.measured",
            f"{folder}/seen.json",
            *words_of(Path(folder) / "run", flags),
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment_of(1), capture_output=True, text=True, check=False)
        if done.returncode:
            return Row("leaks", "the run failed", [done.stderr[-500:]])
        seen = np.array(json.loads(Path(f"{folder}/seen.json").read_text()), float)
    seen = seen[seen[:, 0] > 500]
    at, megabytes = seen[:, 0], seen[:, 1] / 1e6
    # The slope by least squares; its error by the means of ten blocks, whose noise does not hang together.
    slopes = [np.polyfit(at[part], megabytes[part], 1)[0] for part in np.array_split(np.arange(len(at)), 5)]
    slope = np.polyfit(at, megabytes, 1)[0] * 1000
    spread = 2.78 * np.std(slopes, ddof=1) / np.sqrt(len(slopes)) * 1000
    growth = [
        f"{name} {int(seen[0, column])} to {int(seen[-1, column])}"
        for column, name in ((2, "descriptors"), (3, "threads"))
    ]
    says = f"{slope:+.2f} MB per 1,000 steps (95 % of five parts: +-{spread:.2f}) of {megabytes.mean():.0f} MB; "
    says += "; ".join(growth)
    faults = [
        each
        for each, grew in (
            (says, slope - spread > 1),
            (growth[0], seen[-1, 2] > seen[0, 2] + 2),
            (growth[1], seen[-1, 3] > seen[0, 3] + 2),
        )
        if grew
    ]
    return Row("leaks", f"{steps} steps: {says}", faults)


def main(signals_: int = 40, lost_: int = 16, steps: int = 3000, seed: int = 1, only: Sequence[str] = ()) -> list[Row]:
    """All attacks, or those named by `only`; each row is printed when it is known."""
    parts: dict[str, Callable[[], Row]] = {
        "numbers": lambda: numbers(seed),
        "signals": lambda: signals(signals_, seed),
        "second": lambda: second_signal(max(1, signals_ // 8), seed),
        "lost": lambda: lost(lost_, seed),
        "alarms": lambda: alarms(max(1, steps // 3)),
        "leaks": lambda: leaks(steps),
    }
    rows = []
    for name, part in parts.items():
        if not only or name in only:
            rows.append(part())
            print(f"| {rows[-1].part} | {rows[-1].says} | {len(rows[-1].faults)} wrong |", flush=True)
            print(*(f"    {fault}" for fault in rows[-1].faults), sep="\n", end="", flush=True)
    return rows


def measured(quick: bool) -> list[outcome.Row]:
    """All attacks, or a tenth of them, as rows of the harness's table."""
    rows = main(4, 2, 300) if quick else main()
    return [outcome.Row(row.part, "; ".join([row.says, *row.faults[:3]]), not row.faults) for row in rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("signals", 40), ("lost", 16), ("steps", 3000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    given = parser.parse_args()
    rows = main(given.signals, given.lost, given.steps, given.seed, given.only)
    sys.exit(any(row.faults for row in rows))
