"""The registration of a study: what it asks, expects and fixes, written down with a hash before its first run.

A registration is a file in the folder of its study. The hash covers all of it: the time, the study, the resolved config
of every run, the predictions and the code that judges. `about.json` of the folder names the hash, so that a copied file
is seen. When each run began is in its own files. None of this stops who edits everything; a commit that holds the hash
does.
"""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import ABSENT, Sha256, UserError, config_differences, hash_config, to_config
from transformer.runs.run_directory import current_commit, parse_time, write_json
from transformer.storage.json_reading import read_dataclass
from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.hash_commits import HashCommit, describe_hash_commit, format_time
from transformer.studies.ablations.run_plan import PlannedRun, equal_as_json
from transformer.studies.ablations.run_result import describe_run
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import to_json_values

FILE = "registration.json"
_SHOWN_HASH = 12  # characters of the hash that a sentence has
_SHOWN_CHANGES = 8
_OF_RUNS = ("settings", "runs")  # what follows from the fields below, and is named where none of these explains it
_EXPLAINS_RUNS = ("arms", "reference", "tuning_grid", "tasks", "base")
_NOTHING_CONFIRMED = (
    "These p-values and intervals confirm nothing. To confirm a difference, register and train a new study with other "
    "seeds."
)

DECISION_RULE = (
    "two-sided paired t test at 5%, Bonferroni-adjusted for the comparisons; the permutation test where runs diverged, "
    "got stuck or differ by one value; diverged runs are the worst"
)
"""How a verdict is reached. A change of the rules changes this sentence, so that older registrations differ from it."""


@dataclasses.dataclass(frozen=True)
class Registration:
    """The contents of registration.json.

    Attributes:
        registered: When it was written, as ISO 8601 with its time zone.
        commit: The commit of the code that wrote it; None without a checkout.
        sha256: The hash of all else.
        study: The study, as `registration_contents` returns it.
    """

    registered: str
    commit: str | None
    sha256: Sha256
    study: Mapping[str, Any]

    def __post_init__(self) -> None:
        if parse_time(self.registered) is None:
            raise ValueError("registered: it must be a time with its zone, such as 2026-11-27T15:35:47+00:00")

    @property
    def is_unchanged(self) -> bool:
        """Whether its hash is that of its contents."""
        return self.sha256 == hash_registration(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class RegistrationStatus:
    """What the registration of a study is worth, as a report says it.

    Attributes:
        sha256: The hash of the registration.
        problems: Why it is not what was written, not written here, or not before the runs.
        changes: How the study differs from it, one field each.
        registered: When it was written; None if the file is gone, of which nothing else is known then.
        commit_of_code: The commit of the code that wrote it.
        known_before: What was known of the outcome.
        has_predictions: Whether it predicts anything.
        num_runs: The number of runs that have begun.
        num_runs_without_start: How many of them do not say when.
        first_start: When the first of the others began.
        commit: The commit that holds the hash; None if none does.
        num_runs_before_commit: The number of runs that began before its date.
    """

    sha256: str
    problems: Sequence[str]
    changes: Sequence[str] = ()
    registered: str | None = None
    commit_of_code: str | None = None
    known_before: str = ""
    has_predictions: bool = False
    num_runs: int = 0
    num_runs_without_start: int = 0
    first_start: str | None = None
    commit: HashCommit | None = None
    num_runs_before_commit: int = 0

    @property
    def is_contradicted(self) -> bool:
        """Whether it is not this study's, or came after a run: the verdicts are exploratory."""
        return bool(self.problems or self.changes)


def hash_registration(contents: Mapping[str, Any]) -> str:
    """Return the hash of a registration's contents; a hash among them is left out."""
    return hash_config({name: value for name, value in contents.items() if name != "sha256"})


def registration_contents(spec: Ablation, base: Mapping[str, Any], planned: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return what a registration fixes of a study, as JSON values.

    Besides the design these are the predictions, what was known before, and the judging code. The base config and each
    arm's on each task are resolved, so that a changed default changes the registration; "runs" is a hash of the
    resolved configs of all runs.
    """
    from transformer.training.config import resolve_config  # imports jax

    resolved = resolve_config(base).to_config()
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
            "base": resolved,
            "predictions": to_config(spec.predictions),
            "known_before": spec.known_before,
            "settings": _resolved_settings(resolved, planned),
            "runs": hash_config({"configs": sorted({_hash_without_seed(run.trial.config) for run in planned})}),
            "code": judging_code_version(),
        }
    )


def judging_code_version() -> str:
    """Return the hash of the source of this package, which turns runs into verdicts."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def register(trial_store: TrialStore, recorded_hash: str | None, contents: Mapping[str, Any]) -> Registration:
    """Return the registration of a study that is not begun; `write_registration` writes it.

    Args:
        trial_store: The study's trial store, without a trial.
        recorded_hash: The hash of the registration that was made in this directory, by about.json; None without one.
        contents: What it fixes, as `registration_contents` returns it.

    Returns:
        The registration. If the same study is registered already, that one.

    Raises:
        UserError: If the study has begun, another one is registered, or the registration is not of this directory.
    """
    path = trial_store.path
    earlier = read_registration(path)
    if earlier is not None:
        problems, changes = list(_file_problems(earlier, recorded_hash)), describe_changes(earlier, contents)
        if problems or changes:
            what = "a registration that is not its own" if problems else "another study registered"
            raise UserError(f"--workdir={path} has {what} ({'; '.join(problems or changes)}): choose another --workdir")
        return earlier
    if trial_store.trials():
        raise UserError(
            f"--workdir={path} has a study that has begun, and a study is registered before its first run: choose "
            "another --workdir"
        )
    contents_with_time: dict[str, Any] = {
        "registered": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": current_commit(),
        "study": contents,
    }
    return Registration(sha256=hash_registration(contents_with_time), **contents_with_time)


def write_registration(path: Path, registration: Registration) -> None:
    """Write a registration into the directory of its study, whose about.json names its hash already."""
    write_json(path / FILE, dataclasses.asdict(registration))


def read_registration(path: Path) -> Registration | None:
    """Read the registration in the directory of a study; None if there is none.

    Raises:
        UserError: If the file is not valid.
    """
    file = path / FILE
    return read_dataclass(Registration, file) if file.exists() else None


def check_registration(
    path: Path,
    recorded_hash: str | None,
    contents: Mapping[str, Any],
    starts: Sequence[datetime.datetime | None],
    find_commit: Callable[[str, datetime.datetime], HashCommit | None],
) -> RegistrationStatus | None:
    """Compare the registration in the directory of a study with the study, its directory and its runs.

    Args:
        path: The directory.
        recorded_hash: The hash of the registration that was made in this directory, by about.json; None without one.
        contents: The study as it is, as `registration_contents` returns it.
        starts: When each run that has begun first began; None if that is not recorded.
        find_commit: Returns the `HashCommit` of a hash that was made at a time, or None.

    Returns:
        What the registration is worth; None if the study was never registered.

    Raises:
        UserError: If the file is not valid.
    """
    registration = read_registration(path)
    if registration is None:
        if recorded_hash is None:
            return None
        return RegistrationStatus(recorded_hash, [f"{FILE} is gone, and with it what it fixed"])
    known_starts = [start for start in starts if start is not None]
    registered = parse_time(registration.registered)
    assert registered is not None
    early_starts = [start for start in known_starts if _whole_seconds(start) < _whole_seconds(registered)]
    problems = [*_file_problems(registration, recorded_hash)]
    if early_starts:
        problems.append(
            f"{len(early_starts)} of {len(starts)} runs began before it, the first on "
            f"{format_time(min(early_starts).isoformat())}"
        )
    commit = find_commit(registration.sha256, registered)
    date = None if commit is None else parse_time(commit.date)
    return RegistrationStatus(
        sha256=registration.sha256,
        problems=problems,
        changes=describe_changes(registration, contents),
        registered=registration.registered,
        commit_of_code=registration.commit,
        known_before=str(registration.study.get("known_before", "")),
        has_predictions=bool(registration.study.get("predictions")),
        num_runs=len(starts),
        num_runs_without_start=len(starts) - len(known_starts),
        first_start=min(known_starts).isoformat(timespec="seconds") if known_starts else None,
        commit=commit,
        num_runs_before_commit=sum(_whole_seconds(start) < _whole_seconds(date) for start in known_starts)
        if date
        else 0,
    )


def describe_changes(registration: Registration, contents: Mapping[str, Any]) -> list[str]:
    """Describe how a study differs from its registration, one field each.

    Args:
        registration: The registration.
        contents: The study as it is, as `registration_contents` returns it.
    """
    before, changes = registration.study, []
    for field in dict.fromkeys((*before, *contents)):
        if field in _OF_RUNS and any(not _is_same(before, contents, name) for name in _EXPLAINS_RUNS):
            continue
        if field == "runs" and not _is_same(before, contents, "settings"):
            continue
        if _is_same(before, contents, field):
            continue
        if field == "code":
            origin = f", which is of commit {_shorten(registration.commit[:12])}" if registration.commit else ""
            changes.append(f"the code that judges is not the registered one{origin}")
        elif field == "runs":
            changes.append("the resolved configs of the runs are others")
        elif field not in contents:
            changes.append(f"{_shorten(field, quoted=False)} is of another version")
        else:
            changes += _describe_changes(field, before.get(field), contents[field])
    if len(changes) > _SHOWN_CHANGES:
        return [*changes[:_SHOWN_CHANGES], f"and {len(changes) - _SHOWN_CHANGES} more"]
    return changes


def describe_registration(registration: RegistrationStatus) -> list[str]:
    """Say when a study was registered, what contradicts that, what was known before, and which commit shows it."""
    short = registration.sha256[:_SHOWN_HASH]
    if registration.registered is None:
        return [
            f"Exploratory: the study was registered with the hash {short}, but {'; '.join(registration.problems)}. "
            f"{_NOTHING_CONFIRMED}"
        ]
    when = f"egistered on {format_time(registration.registered)} with the hash {short}"
    fixed = (
        "arms, tasks, tuned values, seeds, metrics, thresholds, predictions, every run's resolved config, the rule and "
        "the code that judges are those of the registration"
    )
    if registration.is_contradicted:
        reasons = list(registration.problems)
        if registration.changes:
            reasons.append(f"changed since: {'; '.join(registration.changes)}")
        status = f"Exploratory: r{when}, but {'; '.join(reasons)}. {_NOTHING_CONFIRMED}"
    elif registration.num_runs_without_start:
        status = (
            f"R{when}, but {registration.num_runs_without_start} of {registration.num_runs} runs have no start time, "
            f"so that nothing shows that it came before the runs: {fixed}."
        )
    else:
        assert registration.first_start is not None  # a report is of runs that have begun
        status = f"R{when}, before its first run on {format_time(registration.first_start)}: {fixed}."
    known_before = " ".join(registration.known_before.split())
    return [
        status,
        f"Known before the registration: {known_before}"
        if known_before
        else "The registration does not say what was known before.",
        describe_hash_commit(registration.commit, registration.num_runs_before_commit),
        *([] if registration.has_predictions else ["The registration makes no predictions."]),
    ]


def _file_problems(registration: Registration, recorded_hash: str | None) -> Iterator[str]:
    """Say why a registration is not what was written, or not written here."""
    if not registration.is_unchanged:
        yield f"{FILE} was changed after it was written: its hash is not that of its contents"
    if recorded_hash != registration.sha256:
        yield f"{FILE} was copied or made again: about.json of this study does not have its hash"


def _resolved_settings(base: Mapping[str, Any], planned: Sequence[PlannedRun]) -> dict[str, dict[str, Any]]:
    """Return by arm and task the values of the resolved config that the base config does not have."""
    settings: dict[str, dict[str, Any]] = {}
    for run in planned:
        name = describe_run(run.arm_name, run.task_name, run.seed, {}).rpartition(", seed ")[0]
        if name not in settings:
            settings[name] = {
                key: value
                for key, (before, value) in config_differences(base, run.trial.config).items()
                # A null that the base lacks says nothing.
                if value is not ABSENT and (value, before) != (None, ABSENT)
                if key not in ("name", "seed", *run.hyperparameters)
            }
    return settings


def _hash_without_seed(config: Mapping[str, Any]) -> str:
    return hash_config({key: value for key, value in config.items() if key not in ("name", "seed")})


def _is_same(before: Mapping[str, Any], after: Mapping[str, Any], field: str) -> bool:
    return (field in before) == (field in after) and equal_as_json(before.get(field), after.get(field))


def _describe_changes(name: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the changed entries of a field, or the whole of one that is no mapping."""
    if equal_as_json(before, after):
        return
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        yield f"{name} was {_shorten(before)}, is {_shorten(after)}"
        return
    for key in [*before, *(key for key in after if key not in before)]:
        inner = f"{name}[{_shorten(key)}]"
        if key not in after:
            yield f"{inner} is left out"
        elif key not in before:
            yield f"{inner} is new"
        else:
            yield from _describe_changes(inner, before[key], after[key])


def _shorten(value: Any, limit: int = 60, *, quoted: bool = True) -> str:
    text = json.dumps(value, ensure_ascii=False)
    text = text if quoted else text[1:-1]
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _whole_seconds(time: datetime.datetime) -> int:
    """Return a time in whole seconds, as runs record theirs."""
    return int(time.timestamp() // 1)
