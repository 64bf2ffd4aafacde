"""The declaration of a benchmark: programs that do the same work, each run in its own process."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class PythonInterpreter(enum.Enum):
    """The Python that runs a program: this one, or that of an environment with the peers' libraries."""

    OWN = "own"
    PEERS = "peers"


@dataclasses.dataclass(frozen=True)
class BenchmarkProgram:
    """The command of a process: the interpreter, `command`, and `settings` as JSON.

    It prints one line of JSON, whose `seconds` are the times of its repetitions.
    """

    command: tuple[str, ...]
    settings: Mapping[str, Any]
    interpreter: PythonInterpreter = PythonInterpreter.OWN


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Programs by name; times are compared with those of the first.

    One repetition processes `units_per_repetition` of `unit_name`, such as tokens.
    """

    description: str
    programs: Mapping[str, BenchmarkProgram]
    units_per_repetition: int
    unit_name: str
