"""Stand-ins for the launchers' engines: programs on PATH that record how they were called."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Words that do harm wherever a shell, a script or a manifest takes them for its own.
HOSTILE = (
    "$(touch harm)",
    "`touch harm`",
    "; touch harm;",
    "&& touch harm",
    "| tee harm",
    "> harm",
    "'; touch harm; '",
    '"; touch harm; "',
    "\\",
    "${HOME}",
    "$$(PROCESS) $(PROCESS) $",
    "%j %u #{x} !x *",
    '{"a": [b]}: - |',
    "-rf",
    "--wrap=harm",
    "END_OF_INPUT",
    "ünïcode 木",
    "  two  spaces  ",
)

# As they go into one call.
HOSTILE_THREES = [HOSTILE[first : first + 3] for first in range(0, len(HOSTILE), 3)]

RECORDER = """#!{python} -ISs
import json, os, sys
name = {name!r}
typed = sys.stdin.read() if name in ("kubectl", "sbatch") else ""
with open({log!r}, "a") as log:
    log.write(json.dumps(dict(name=name, words=sys.argv[1:], typed=typed, environment=dict(os.environ))) + "\\n")
{body}
"""


class Called(NamedTuple):
    """One call of a stand-in."""

    name: str
    words: list[str]
    typed: str
    environment: dict[str, str]


class Engines:
    """A folder of stand-ins, and what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "engines"
        self.folder.mkdir()
        self.log = folder / "calls.jsonl"

    def add(self, name: str, body: str = "", path: Path | None = None) -> Path:
        """A program of this name that records its call and then runs `body`, a few lines of Python."""
        path = path or self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RECORDER.format(python=sys.executable, name=name, log=str(self.log), body=body))
        path.chmod(0o755)
        return path

    def calls(self, name: str | None = None) -> list[Called]:
        """The calls so far, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = [Called(**json.loads(line)) for line in lines]
        return [call for call in found if name in (None, call.name)]

    def forget(self) -> None:
        """Start the record anew."""
        self.log.unlink(missing_ok=True)

    @property
    def environment(self) -> dict[str, Any]:
        """An environment whose PATH begins with the stand-ins."""
        return {**os.environ, "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"}


def last_of_each_flag(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a launcher's call in which later flags replace earlier ones; those of the train command stay."""
    end = words.index("--") if "--" in words else len(words)
    last = {word.partition("=")[0]: word for word in words[:end]}
    return (*last.values(), *words[end:])
