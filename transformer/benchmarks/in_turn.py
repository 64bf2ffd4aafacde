"""Running the programs of a benchmark in turn, round after round, each time in a fresh process."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer.benchmarks.contract import Benchmark, Interpreter, Program
from transformer.config import UserError
from transformer.installation import checkout


class Row(NamedTuple):
    """One row of a benchmark's table: the median seconds of each round, and their median over that of the first row.

    The ratio is the median over rounds of the two times of one round, `lowest` and `highest` the extremes.
    """

    name: str
    rounds: tuple[float, ...]
    seconds: float
    ratio: float
    lowest: float
    highest: float


class Result(NamedTuple):
    """The rows, and of each program what else its last process printed (versions, parameters, the first step)."""

    rows: tuple[Row, ...]
    facts: Mapping[str, Mapping[str, Any]]
    left_out: tuple[str, ...]


def run_in_turn(
    benchmark: Benchmark, rounds: int, peers: str | None, said: Callable[[str], None] = lambda line: None
) -> Result:
    """Run all programs once a round, each round beginning with the next of them, and set their times in ratio.

    Without `peers`, the path of a Python that has them, their programs are left out. `said` is told what is run.

    Raises:
        UserError: With the last line of a program that fails, and for `peers` in an installed library, which has not
            their programs.
    """
    if peers is not None and checkout() is None:
        raise UserError(
            f"--peer_python={peers}: the peers' programs are in a checkout alone: clone the repository, or leave it out"
        )
    programs = {
        name: program
        for name, program in benchmark.programs.items()
        if peers is not None or program.interpreter is Interpreter.OWN
    }
    # By program and row, in the order of the table, whichever round begins with whom.
    times: dict[str, dict[str, list[float]]] = {name: {} for name in programs}
    facts: dict[str, Mapping[str, Any]] = {}
    names = list(programs)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            said(f"round {number + 1} of {rounds}: {name}")
            found = _run(name, programs[name], peers)
            seconds = found.pop("seconds")
            for row, measured in (seconds if isinstance(seconds, dict) else {name: seconds}).items():
                times[name].setdefault(row, []).append(statistics.median(measured))
            facts[name] = found
    rounds_of = {row: seconds for of_program in times.values() for row, seconds in of_program.items()}
    first = next(iter(rounds_of.values()))
    rows = tuple(_row(name, seconds, first) for name, seconds in rounds_of.items())
    return Result(rows, facts, tuple(name for name in benchmark.programs if name not in programs))


def _row(name: str, seconds: list[float], of_first: list[float]) -> Row:
    ratios = [one / other for one, other in zip(seconds, of_first, strict=True)]
    return Row(name, tuple(seconds), statistics.median(seconds), statistics.median(ratios), min(ratios), max(ratios))


def _run(name: str, program: Program, peers: str | None) -> dict[str, Any]:
    python = sys.executable if program.interpreter is Interpreter.OWN else str(peers)
    # No program finds what another one compiled: the first step is a first step.
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    root = checkout()
    if root is None:
        # The library is found where it is installed, before any file of its name in the working directory.
        environment = {**kept, "PYTHONSAFEPATH": "1"}
    else:
        environment = {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), kept.get("PYTHONPATH"))))}
    words = [python, *program.command, json.dumps(dict(program.settings))]
    try:
        ended = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"--peer_python={peers} does not run: {error}") from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"the program of {name} failed with exit code {ended.returncode}: {last}")
    return json.loads(ended.stdout.strip().splitlines()[-1])
