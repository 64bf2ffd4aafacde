"""The registration of a study: what it asks and how it decides, written down with a hash before its first run."""

import dataclasses
import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from transformer.config import MatchesPattern, UserError, hash_config
from transformer.json_reading import read_dataclass
from transformer.runs.run_directory import write_json
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import to_json_values

_FILE = "registration.json"
_SHOWN_HASH = 12  # characters of the hash that a sentence has

DECISION_RULE = (
    "two-sided paired t test at 5%, Bonferroni-adjusted for the comparisons; the permutation test where runs diverged, "
    "got stuck or differ by one value; diverged runs are the worst"
)
"""How a verdict is reached. A change of the rules changes this sentence, so that older registrations differ from it."""


@dataclasses.dataclass(frozen=True)
class Registration:
    """The contents of registration.json.

    Attributes:
        registered: When it was written.
        sha256: The hash of `study`.
        study: The study, as `registered_study` returns it.
    """

    registered: str
    sha256: Annotated[str, MatchesPattern("[0-9a-f]{64}", "64 hexadecimal digits")]
    study: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.sha256 != hash_config(self.study):
            raise ValueError("sha256: the study was changed after it was registered")


def registered_study(spec: Ablation, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a registration fixes of a study, as JSON values.

    Args:
        spec: The ablation.
        base: The base config.
    """
    return to_json_values(
        {
            "question": spec.question,
            "arms": spec.arms,
            "reference": spec.reference,
            "tuning_grid": spec.tuning_grid,
            "tasks": spec.tasks,
            "seeds": sorted(spec.seeds),
            "selection_metric": spec.selection_metric,
            "reported_metric": spec.reported_metric,
            "direction": spec.direction.value,
            "learned_threshold": spec.learned_threshold,
            "smallest_effect_of_interest": spec.smallest_effect_of_interest,
            "rule": DECISION_RULE,
            "base": base,
        }
    )


def register(trial_store: TrialStore, spec: Ablation, base: Mapping[str, Any]) -> Registration:
    """Write the registration of a study into its directory.

    Args:
        trial_store: The study's trial store, without a trial.
        spec: The ablation.
        base: The base config.

    Returns:
        The registration. If the same study is registered already, that one.

    Raises:
        UserError: If the study has begun, or another one is registered.
    """
    study, path = registered_study(spec, base), trial_store.path
    earlier = read_registration(path)
    if earlier is not None and earlier.study == study:
        return earlier
    if earlier is not None:
        changed = "; ".join(describe_changes(earlier, study))
        raise UserError(f"--workdir={path} has another study registered ({changed}): choose another --workdir")
    if trial_store.trials():
        raise UserError(
            f"--workdir={path} has a study that has begun, and a study is registered before its first run: choose "
            "another --workdir"
        )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    registration = Registration(now, hash_config(study), study)
    write_json(path / _FILE, dataclasses.asdict(registration))
    return registration


def read_registration(path: Path) -> Registration | None:
    """Read the registration in the directory of a study; None if there is none.

    Raises:
        UserError: If the file is not valid, or the study in it does not have its hash.
    """
    file = path / _FILE
    return read_dataclass(Registration, file) if file.is_file() else None


def describe_changes(registration: Registration, study: Mapping[str, Any]) -> list[str]:
    """Describe how a study differs from its registration, one field each.

    Args:
        registration: The registration.
        study: The study as it is, as `registered_study` returns it.
    """
    return [
        change for field, value in study.items() for change in _changes(field, registration.study.get(field), value)
    ]


def describe_registration(registration: Mapping[str, Any]) -> str:
    """Say in one sentence when a study was registered, and how it differs from that.

    Args:
        registration: `registered`, `sha256` and `changes`.
    """
    day, short = registration["registered"].partition("T")[0], registration["sha256"][:_SHOWN_HASH]
    known = f"egistered on {day}, before its first run, with the hash {short}"
    if not registration["changes"]:
        return f"R{known}: arms, tuned values, metrics, seeds, thresholds and rule are those of the registration."
    return (
        f"Exploratory: r{known}, and changed since: {'; '.join(registration['changes'])}. These p-values and intervals "
        "confirm nothing. To confirm a difference, register and train a new study with other seeds."
    )


def _changes(field: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the changed entries of a field, or the whole of one that is no mapping."""
    if before == after:
        return
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        yield f"{field} was {_shorten(before)}, is {_shorten(after)}"
        return
    for key in [*before, *(key for key in after if key not in before)]:
        name = f"{field}[{key!r}]"
        if key not in after:
            yield f"{name} is left out"
        elif key not in before:
            yield f"{name} is new"
        else:
            yield from _changes(name, before[key], after[key])


def _shorten(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
