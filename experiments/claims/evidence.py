"""The figures of claims: measured and recorded in results/, or read from the records of other projects."""

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.claims.claim import Claim, Figures, Measurement, Records
from transformer.config import UserError
from transformer.runs.run_directory import describe_environment
from transformer.storage.disk_errors import refuse_unwritable_file
from transformer.storage.json_reading import read_dataclass, read_json
from transformer.storage.paths import storage_of

EXPERIMENTS = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("jax", "jaxlib", "flax", "numpy")


@dataclass(frozen=True)
class MeasuredRecord:
    """The content of results/MODULE.json.

    Attributes:
        claim: The claim's name.
        command: The command that measured the figures.
        commit: The commit of the code, with "+changes" if files differed from it; None if unknown.
        hardware: The device, the number of cores and the processor.
        versions: The versions of Python and packages.
        seconds: How long the measurement took.
        figures: The figures.
    """

    claim: str
    command: str
    commit: str | None
    hardware: str
    versions: Mapping[str, str]
    seconds: float
    figures: Figures


def record_file(module: str) -> Path:
    """Return the file of the record of a claim's module."""
    return RESULTS / f"{module}.json"


def measuring_command(claim: Claim) -> str:
    """Return the command that measures a claim's figures anew."""
    return shlex.join(["python", "-m", "experiments.claims", f"--only={claim.name}", "--rerun"])


def measure(claim: Claim, evidence: Measurement) -> MeasuredRecord:
    """Measure a claim's figures."""
    start = time.perf_counter()
    figures = evidence.measure()
    seconds = time.perf_counter() - start
    facts = describe_environment()
    devices = facts["devices"]
    cores = f"{facts['cpus']} CPU cores of {facts['processor'] or facts['platform']}"
    hardware = cores if devices["platform"] == "cpu" else f"{devices['count']} x {devices['kind']}, {cores}"
    versions = {"python": facts["python"]}
    versions |= {name: facts["packages"][name] for name in PACKAGES if facts["packages"].get(name)}
    # As they are read: without tuples, and with texts as keys.
    figures = json.loads(json.dumps(figures, allow_nan=False))
    return MeasuredRecord(
        claim.name, measuring_command(claim), facts["commit"], hardware, versions, round(seconds, 2), figures
    )


def format_provenance(record: MeasuredRecord) -> str:
    """Format the hardware, versions and commit of a record."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    commit, plus, _ = (record.commit or "unknown").partition("+")
    return f"{record.hardware}; {versions}; commit {commit[:8]}{' with changes' if plus else ''}"


def format_seconds(seconds: float) -> str:
    """Format a time, in seconds or minutes."""
    if seconds < 0.095:
        return "under 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def write_record(path: Path, record: MeasuredRecord) -> None:
    """Write a record, a line for each fact and each figure."""
    facts = asdict(record)
    figures = facts.pop("figures")
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}," for name, value in facts.items()]
    figure_lines = [
        f"    {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in figures.items()
    ]
    text = "\n".join(["{", *lines, '  "figures": {', ",\n".join(figure_lines), "  }", "}", ""])
    with refuse_unwritable_file(path, "record"):
        path.parent.mkdir(parents=True, exist_ok=True)
        storage_of(path).replace(path, text.encode())


def read_record(path: Path) -> MeasuredRecord:
    """Read a record.

    Raises:
        UserError: If it cannot be read, or is none.
    """
    return read_dataclass(MeasuredRecord, path)


def read_figures(evidence: Records) -> Figures:
    """Read a claim's figures from the records of other projects.

    Raises:
        UserError: If a file is missing or not readable, or has not the figures.
    """
    parsed = [_parse(EXPERIMENTS / name) for name in evidence.files]
    try:
        return evidence.read(parsed)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        names = ", ".join(evidence.files)
        raise UserError(f"{names} in experiments/ has not the figures of the claim ({error!r}): restore it") from error


def _parse(path: Path) -> Any:
    """Parse a JSON file, or a JSON Lines file as a list."""
    if path.suffix != ".jsonl":
        return read_json(path)
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): restore it") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON Lines ({error}): restore it") from error


def load_figures(module: str, claim: Claim, *, rerun: bool = False) -> tuple[Figures, MeasuredRecord | None]:
    """Return a claim's figures, which are measured if they are not recorded, and their record.

    Args:
        module: The claim's module.
        claim: The claim.
        rerun: Whether to measure and record again what is recorded.

    Raises:
        UserError: If a record cannot be read.
    """
    path = record_file(module)
    if isinstance(claim.evidence, Measurement) and (rerun or not path.exists()):
        print(f"{claim.name}: measuring, about {claim.evidence.seconds:.0f} s ...", file=sys.stderr, flush=True)
        write_record(path, measure(claim, claim.evidence))
    return read_recorded_figures(module, claim)


def read_recorded_figures(module: str, claim: Claim) -> tuple[Figures, MeasuredRecord | None]:
    """Return a claim's figures, and their record if the claim measures them itself.

    Raises:
        UserError: If a record is missing or cannot be read.
    """
    if isinstance(claim.evidence, Records):
        return read_figures(claim.evidence), None
    record = read_record(record_file(module))
    return record.figures, record
