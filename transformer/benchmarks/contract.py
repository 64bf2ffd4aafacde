"""What is measured side by side: programs that do one piece of work, each in processes of its own."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class Interpreter(enum.Enum):
    """Which Python runs a program: that of this process, or that of an environment where the peers are installed."""

    OWN = "own"
    PEERS = "peers"


@dataclasses.dataclass(frozen=True)
class Program:
    """What one process runs: `command` behind the interpreter, with `settings` as JSON behind it.

    It prints one line of JSON, of which `seconds` are the times of its repetitions.
    """

    command: tuple[str, ...]
    settings: Mapping[str, Any]
    interpreter: Interpreter = Interpreter.OWN


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Programs by name, the first of them ours, to which the others' times are set in ratio.

    `units` are how many of `unit` one repetition makes, such as tokens.
    """

    description: str
    programs: Mapping[str, Program]
    units: int
    unit: str
