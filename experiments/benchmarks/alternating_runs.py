"""Run the programs of a benchmark in alternation for several rounds, each time in a fresh process."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.benchmark import Benchmark, BenchmarkProgram, PythonInterpreter
from transformer.config import UserError

CHECKOUT = Path(__file__).resolve().parents[2]


class ResultRow(NamedTuple):
    """A row of a benchmark's table: the median seconds of each round, their median, and the ratio to the first row.

    The ratio is the median over rounds of the ratio within a round; `lowest` and `highest` are its extremes.
    """

    name: str
    rounds: tuple[float, ...]
    seconds: float
    ratio: float
    lowest: float
    highest: float


class BenchmarkResult(NamedTuple):
    """The rows, and what else the last process of each program printed (versions, parameters, the first step)."""

    rows: tuple[ResultRow, ...]
    facts: Mapping[str, Mapping[str, Any]]
    left_out: tuple[str, ...]


def run_alternating(
    benchmark: Benchmark, rounds: int, peer_python: str | None, log: Callable[[str], None] = lambda line: None
) -> BenchmarkResult:
    """Run all programs once per round, each round starting with the next one, and compare their times.

    Args:
        benchmark: The programs.
        rounds: The number of rounds.
        peer_python: The Python of an environment with the peers' libraries; None skips their programs.
        log: Called with a line before each run.

    Raises:
        UserError: If a program fails.
    """
    programs = {
        name: program
        for name, program in benchmark.programs.items()
        if peer_python is not None or program.interpreter is PythonInterpreter.OWN
    }
    # By program and row, in the order of the table, whichever round begins with whom.
    times: dict[str, dict[str, list[float]]] = {name: {} for name in programs}
    facts: dict[str, Mapping[str, Any]] = {}
    names = list(programs)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            log(f"round {number + 1} of {rounds}: {name}")
            output = _run_program(name, programs[name], peer_python)
            seconds = output.pop("seconds")
            for row, measured in (seconds if isinstance(seconds, dict) else {name: seconds}).items():
                times[name].setdefault(row, []).append(statistics.median(measured))
            facts[name] = output
    seconds_by_row = {row: seconds for program_times in times.values() for row, seconds in program_times.items()}
    first = next(iter(seconds_by_row.values()))
    rows = tuple(_result_row(name, seconds, first) for name, seconds in seconds_by_row.items())
    return BenchmarkResult(rows, facts, tuple(name for name in benchmark.programs if name not in programs))


def _result_row(name: str, seconds: list[float], first_seconds: list[float]) -> ResultRow:
    ratios = [
        row_seconds / reference_seconds for row_seconds, reference_seconds in zip(seconds, first_seconds, strict=True)
    ]
    return ResultRow(
        name, tuple(seconds), statistics.median(seconds), statistics.median(ratios), min(ratios), max(ratios)
    )


def _run_program(name: str, program: BenchmarkProgram, peer_python: str | None) -> dict[str, Any]:
    python = sys.executable if program.interpreter is PythonInterpreter.OWN else str(peer_python)
    # No program finds what another one compiled: the first step is a first step.
    inherited = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    path = os.pathsep.join(filter(None, (str(CHECKOUT), inherited.get("PYTHONPATH"))))
    environment = {**inherited, "PYTHONPATH": path}
    words = [python, *program.command, json.dumps(dict(program.settings))]
    try:
        process = subprocess.run(words, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"--peer_python={peer_python} does not run: {error}") from None
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"the program of {name} failed with exit code {process.returncode}: {last}")
    return json.loads(process.stdout.strip().splitlines()[-1])
