"""The records of experiments/*/results: their commands, the files with their numbers, and where these come from.

A record is a page NAME.md. The commands of its section "Reproduce" train again what its figures rest on, each with the
file of the figures behind it, and with the values by which lines of that file are the run's, if it has several runs:

    python -m launch.train --config=FILE.py --workdir=RUN --config.seed=2  # words.jsonl problem=entities seed=2

A placeholder stands for the data, as in `--data_dir=DIR`. A record without a command says in the section why.
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer.config import UserError, suggest_nearest

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGES = ("python", "jax", "jaxlib", "flax", "optax")
_SECTION = re.compile(r"^## Reproduce\n+(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^python -m launch\.(\w+) (.*?)  # (\S+)(.*)$", re.MULTILINE)
_FACT = re.compile(r"^(?:- )?{}: (.*?)(?=\n\n|\n- |\Z)", re.MULTILINE | re.DOTALL)
_FAMILY = re.compile(r"\bfamily \d+")
_JAX = re.compile(r"\bjax (\d+(?:\.\d+)+)")


class Provenance(NamedTuple):
    """Where numbers come from, as far as it is known.

    Attributes:
        commit: The commit of the code.
        hardware: The processor or accelerator.
        versions: The versions of Python and packages.
    """

    commit: str
    hardware: str
    versions: Mapping[str, str]


class RecordedRun(NamedTuple):
    """A run or study of a record.

    Attributes:
        number: Its number in the record, from 1.
        command: The command, "train" or "ablate".
        words: The words of the command, without --workdir.
        file: The file of its numbers.
        selected: The values by which lines of the file are its own.
    """

    number: int
    command: str
    words: tuple[str, ...]
    file: Path
    selected: Mapping[str, str]

    @property
    def label(self) -> str:
        """The name of its directory: the file's stem and the values that select its lines."""
        return "_".join((self.file.stem, *self.selected.values()))

    @property
    def setting(self) -> tuple[str, ...]:
        """What it shares with the runs of other seeds."""
        return tuple(word for word in self.words if not word.startswith("--config.seed="))

    def lines(self) -> list[dict[str, Any]]:
        """Return its lines of a file of curves, without the values that select them."""
        lines = [json.loads(line) for line in self.file.read_text(encoding="utf-8").split("\n") if line]
        matching_lines = [
            line for line in lines if all(str(line.get(name)) == value for name, value in self.selected.items())
        ]
        return [{name: value for name, value in line.items() if name not in self.selected} for line in matching_lines]


class Record(NamedTuple):
    """A record.

    Attributes:
        name: Its name, "project/name".
        runs: Its runs.
        note: What its section says besides the commands.
        provenance: Where its numbers come from.
    """

    name: str
    runs: tuple[RecordedRun, ...]
    note: str
    provenance: Provenance


def list_records(root: Path) -> dict[str, Path]:
    """Return the pages of all records by name.

    Args:
        root: The checkout.
    """
    pages = sorted(root.glob("experiments/*/results/*.md"))
    return {f"{page.parent.parent.name}/{page.stem}": page for page in pages}


def find_record(root: Path, name: str) -> Record:
    """Read a record by its name, "glue/words", or by the path of its page.

    Raises:
        UserError: If there is none.
    """
    pages = list_records(root)
    by_path = {page.resolve(): record_name for record_name, page in pages.items()}
    record_name = name if name in pages else by_path.get(Path(name).resolve(), "")
    if not record_name:
        raise UserError(f"--name={name} is no record: {suggest_nearest(name, pages)}")
    return read_record(record_name, pages[record_name])


def read_record(name: str, page: Path) -> Record:
    """Read a record.

    Args:
        name: Its name.
        page: Its page.
    """
    text = page.read_text(encoding="utf-8")
    section = match[1] if (match := _SECTION.search(text)) else ""
    runs = []
    for number, (command, words, file, selected) in enumerate(_COMMAND.findall(section), start=1):
        command_words = tuple(word for word in shlex.split(words) if not word.startswith("--workdir="))
        pairs = (word.partition("=") for word in selected.split())
        runs.append(
            RecordedRun(number, command, command_words, page.parent / file, {key: value for key, _, value in pairs})
        )
    note = " ".join(re.sub(r"```.*?```", "", section, flags=re.DOTALL).split())
    jax = _JAX.search(text)
    versions = {"jax": jax[1]} if jax else {}
    return Record(
        name, tuple(runs), note, Provenance(_find_facts(text, "Commit"), _find_facts(text, "Hardware"), versions)
    )


def names_processor_family(record: Record) -> bool:
    """Return whether a record names the family of its processor, on which the last bits depend."""
    return bool(_FAMILY.search(record.provenance.hardware))


def provenance_from_facts(facts: Mapping[str, Any]) -> Provenance:
    """Return where numbers come from, by the facts that runs recorded, such as "about" of an ablation.json."""
    versions = {name: version for name, version in facts["versions"].items() if version}
    return Provenance(facts["commit"] or "", facts["hardware"] or "", versions)


def compare_provenance(record: Provenance, current: Provenance) -> list[str]:
    """Say where two provenances differ, one line each: commits, processors, and the versions of `PACKAGES`."""
    recorded_packages = [name for name in PACKAGES if record.versions.get(name)]
    differing = [name for name in recorded_packages if current.versions.get(name) != record.versions[name]]
    differences = "; ".join(
        f"{name} {record.versions[name]}, here {current.versions.get(name, 'unknown')}" for name in differing
    )
    unnamed = ", ".join(name for name in PACKAGES if name not in recorded_packages)
    unnamed_note = f"; the record does not name {unnamed}" if unnamed else ""
    return [
        f"commit: {record.commit or 'unknown'}; here {current.commit or 'unknown'}",
        f"processor: {record.hardware or 'unknown'}; here {current.hardware or 'unknown'}",
        f"versions: {differences or 'as in the record'}{unnamed_note}",
    ]


def _find_facts(text: str, name: str) -> str:
    """Return the facts with a name, such as "Commit: 1234567", of a page."""
    facts = re.findall(_FACT.pattern.format(name), text, re.MULTILINE | re.DOTALL)
    return " | ".join(dict.fromkeys(" ".join(fact.split()) for fact in facts))
