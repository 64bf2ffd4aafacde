"""Train the runs of a record in experiments/*/results again, and say whether they give the same numbers."""

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.records import (
    CHECKOUT,
    Provenance,
    Record,
    RecordedRun,
    compare_provenance,
    find_record,
    list_records,
    provenance_from_facts,
    read_record,
)
from launch.cli import run
from launch.command import Arguments, Command, flag, split_override
from launch.config_files import load_config, load_function
from transformer.config import UserError
from transformer.runs.exceptions import RunFailed
from transformer.system.command_invocation import shell_command, subprocess_command

if TYPE_CHECKING:
    from experiments.record_comparison import Finding

REPORT = "ablation.json"
_RUN_OF_CONFIG = "--config.initialize_from.run="


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReproduceArguments(Arguments):
    """The arguments of `reproduce`."""

    name: str | None = flag("the record, such as glue/words, or the path of its page (default: list all records)")
    runs: str | None = flag("the runs of the record to train, by number, such as 1,3 (default: all)", needs=("name",))
    only: str | None = flag(
        "of a study, only these of its runs, such as 'arm=pre; task=words; seed=1; optimizer.learning_rate=0.01'",
        needs=("name",),
    )
    workdir: str | None = flag("the directory of the new runs (default: runs/reproduce/NAME)", needs=("name",))
    data_dir: str | None = flag("the folder of the data, for records whose data is not generated", needs=("name",))
    trained: str | None = flag(
        "compare this finished run or study with the run of --runs, without training",
        needs=("name",),
        excludes=("workdir", "data_dir"),
        because="it trains nothing",
    )


COMMAND = Command(
    name="reproduce",
    package="experiments",
    description=(
        "Train the runs of a record in experiments/*/results again, with the commands of the record. Say for each run "
        "whether its numbers are equal to those of its seed, begin as them and end within what the record's seeds "
        "differ by, or are not reproduced, and print the commits, processors and versions of both. Without --name, "
        "list the records. Exits with 1 if a run is neither, or if a number of the record was not compared."
    ),
    example="--name=glue/words --runs=1 --workdir=runs/again",
    arguments=ReproduceArguments,
)


def main(arguments: ReproduceArguments) -> None:
    """List the records, or train the runs of one again and compare."""
    root = CHECKOUT
    if arguments.name is None:
        print(format_records([read_record(name, page) for name, page in list_records(root).items()]))
        return
    record = find_record(root, arguments.name)
    if not record.runs:
        raise UserError(f"--name={record.name} has no command that gives its numbers: {record.note}")
    selected = select_runs(record, arguments.runs)
    if arguments.only is not None:
        _check_only(arguments.only, record, selected)
    if arguments.trained is None:
        for recorded_run in selected:
            _check_requirements(arguments, root, record, recorded_run)
        directories = [_train_run(arguments, root, record, recorded_run) for recorded_run in selected]
    else:
        if len(selected) > 1:
            raise UserError(
                f"--trained={arguments.trained} is one run, and --name={record.name} has {len(selected)}: say which, "
                "as --runs=1"
            )
        _check_matches_record(root, record, selected[0], Path(arguments.trained))
        directories = [Path(arguments.trained)]
    failed = [
        recorded_run
        for recorded_run, path in zip(selected, directories, strict=True)
        if not _print_comparison(record, recorded_run, path, arguments.only)
    ]
    if failed:
        raise RunFailed(f"{len(failed)} of {len(selected)} runs are neither equal to the record nor within its spread")


def format_records(records: Sequence[Record]) -> str:
    """Format the names of records, how many runs each has, and what it needs."""
    width = max(len(record.name) for record in records)
    lines = []
    for record in records:
        count = len(record.runs)
        plural = "s" if count > 1 else ""
        data = ", needs --data_dir" if any(_needs_data(recorded_run) for recorded_run in record.runs) else ""
        facts = f"{count} command{plural}{data}" if count else "no command"
        note = f". {record.note}" if record.note else ""
        lines.append(f"{record.name:{width}}  {facts}{note}")
    return "\n".join(lines)


def select_runs(record: Record, numbers: str | None) -> list[RecordedRun]:
    """Return the runs of a record with these numbers, separated by commas; all for None.

    Raises:
        UserError: If a number is none of the record's.
    """
    if numbers is None:
        return list(record.runs)
    by_number = {str(recorded_run.number): recorded_run for recorded_run in record.runs}
    words = list(dict.fromkeys(word.strip() for word in numbers.split(",")))
    for word in words:
        if word not in by_number:
            raise UserError(
                f"--runs={numbers}: {record.name} has no run {word!r}: its runs are "
                + "; ".join(f"{recorded_run.number} ({recorded_run.label})" for recorded_run in record.runs)
            )
    return [by_number[word] for word in words]


def _check_only(only: str, record: Record, selected: Sequence[RecordedRun]) -> None:
    """Check that --only names recorded runs of each selected study."""
    from experiments.record_comparison import select_study_runs
    from transformer.storage.json_reading import read_json_object

    for recorded_run in selected:
        if recorded_run.command != "ablate":
            raise UserError(
                f"--only selects runs of a study, and run {recorded_run.number} of {record.name} is a single run: "
                "omit it, or name a study by --runs"
            )
        select_study_runs(read_json_object(recorded_run.file), only)


def _needs_data(recorded_run: RecordedRun) -> bool:
    return any(word.startswith("--data_dir=") for word in recorded_run.words)


def _check_requirements(arguments: ReproduceArguments, root: Path, record: Record, recorded_run: RecordedRun) -> None:
    """Check that a run's data is given, and that the run it starts from exists."""
    if _needs_data(recorded_run) and arguments.data_dir is None:
        raise UserError(
            f"run {recorded_run.number} of {record.name} needs data: add --data_dir=DIR; the record says which"
        )
    for word in recorded_run.words:
        start = word.removeprefix(_RUN_OF_CONFIG)
        if start != word and not (root / start).is_dir():
            raise UserError(
                f"run {recorded_run.number} of {record.name} begins with the run {start} of the checkout, which is not "
                "there: train it first; the record says how"
            )


def _check_matches_record(root: Path, record: Record, recorded_run: RecordedRun, path: Path) -> None:
    """Check that a finished run or study has the config of the record's command.

    Raises:
        UserError: If another value of the config is that of another run.
    """
    from transformer.config import ABSENT, config_differences
    from transformer.overrides import config_keys_overlap
    from transformer.runs.run_directory import RunDirectory
    from transformer.studies.ablations.ablation import build_ablation
    from transformer.studies.ablations.run_plan import plan_runs
    from transformer.studies.sweeps.trials import to_json_values
    from transformer.training.config import apply_text_overrides, changeable_keys, resolve_config

    report = _read_report(path) if recorded_run.command == "ablate" else {}
    if recorded_run.command == "train":
        _find_metrics_file(path)
    (file,) = (word.removeprefix("--config=") for word in recorded_run.words if word.startswith("--config="))
    overrides = [split_override(word) for word in recorded_run.words if word.startswith("--config.")]
    name, base = str(root / file), apply_text_overrides(load_config(str(root / file)).to_dict(), overrides)
    refusal = f"--trained={path} is not of run {recorded_run.number} of {record.name}"
    if recorded_run.command == "ablate":
        get_ablation = load_function(name, "get_ablation")
        assert get_ablation is not None
        trials = {planned.trial.name: planned for planned in plan_runs(get_ablation(build_ablation), base)}
        try:
            runs = [(run["arm"], run["task"], str(run["directory"])) for run in report["runs"]]
        except (KeyError, TypeError) as error:
            raise _invalid_report_error(path, error) from error
        for arm, task, directory in runs:
            planned = trials.get(directory.rpartition("/")[2])
            if planned is None or (planned.arm_name, planned.task_name) != (arm, task):
                raise UserError(f"{refusal}: its run {directory} of arm {arm!r} has not the config of that arm")
        return
    experiment = resolve_config(base)
    changeable = [name for name in changeable_keys(experiment) if name != "steps"] + ["initialize_from.run"]
    differences = config_differences(to_json_values(experiment.to_config()), RunDirectory(path).config())
    for key, (expected, actual) in differences.items():
        is_changed = ABSENT not in (expected, actual)
        if is_changed and not any(config_keys_overlap(key, name) for name in changeable):
            raise UserError(f"{refusal}: config.{key} is {expected} there, {actual} here")


def _train_run(arguments: ReproduceArguments, root: Path, record: Record, recorded_run: RecordedRun) -> Path:
    """Train a run with the record's command, and return its directory."""
    from transformer.storage.paths import parse_path

    words = [word for word in recorded_run.words if not word.startswith("--data_dir=")]
    if _needs_data(recorded_run):
        assert arguments.data_dir is not None  # or it would have been refused
        words.append(f"--data_dir={parse_path(arguments.data_dir).absolute()}")
    base = parse_path(arguments.workdir or f"runs/reproduce/{record.name}").absolute()
    path = base / recorded_run.label
    words.append(f"--workdir={path}")
    if arguments.only is not None:
        words.append(f"--only={arguments.only}")
    print(f"$ {shlex.join([*shell_command(recorded_run.command), *words])}", flush=True)
    code = subprocess.run([*subprocess_command(recorded_run.command), *words], cwd=root, check=False).returncode
    if code == 2:
        raise UserError(f"run {recorded_run.number} of {record.name} did not start: the line above says why")
    if code:
        raise RunFailed(f"run {recorded_run.number} of {record.name} ended with exit code {code}")
    return path


def _print_comparison(record: Record, recorded_run: RecordedRun, path: Path, only: str | None) -> bool:
    """Compare a run with its record, print what was found, and return whether it is reproduced."""
    from experiments.record_comparison import Verdict

    is_study = recorded_run.command == "ablate"
    finding, before, current = (
        _compare_study(recorded_run, path, only) if is_study else _compare_run(record, recorded_run, path)
    )
    print(f"run {recorded_run.number} ({recorded_run.label}): {finding.verdict.value}")
    for line in (*finding.reasons, *compare_provenance(before, current)):
        print(f"  {line}")
    return finding.verdict in (Verdict.EQUAL, Verdict.WITHIN_SPREAD)


def _compare_run(record: Record, recorded_run: RecordedRun, path: Path) -> "tuple[Finding, Provenance, Provenance]":
    from experiments.record_comparison import compare_curves, read_curve
    from transformer.runs.jsonl_reading import read_records
    from transformer.studies.ablations.collect_results import collect_provenance

    comparable = [other for other in record.runs if other.command == recorded_run.command]
    curves = {other.number: read_curve(other.lines()) for other in comparable}
    finding = compare_curves(
        curves[recorded_run.number],
        read_curve(read_records(_find_metrics_file(path))),
        [curves[other.number] for other in comparable if other.setting == recorded_run.setting],
        {
            f"run {other.number} ({other.label})": curves[other.number]
            for other in comparable
            if other is not recorded_run
        },
    )
    return finding, record.provenance, provenance_from_facts(collect_provenance([path]))


def _compare_study(recorded_run: RecordedRun, path: Path, only: str | None) -> "tuple[Finding, Provenance, Provenance]":
    from experiments.record_comparison import compare_studies
    from transformer.storage.json_reading import read_json_object

    recorded, report = read_json_object(recorded_run.file), _read_report(path)
    before = provenance_from_facts(recorded["about"])
    try:
        return compare_studies(recorded, report, only), before, provenance_from_facts(report["about"])
    except (AttributeError, KeyError, TypeError) as error:
        raise _invalid_report_error(path, error) from error


def _read_report(path: Path) -> dict[str, Any]:
    """Read the report of a study.

    Raises:
        UserError: If there is none, or it is no JSON object.
    """
    from transformer.storage.json_reading import read_json_object

    if not (path / REPORT).is_file():
        raise UserError(f"{path} is no study with a report: it has no {REPORT}")
    return read_json_object(path / REPORT)


def _invalid_report_error(path: Path, error: Exception) -> UserError:
    return UserError(f"{path / REPORT} is no report of a study ({error}): write it anew with --report_only")


def _find_metrics_file(path: Path) -> Path:
    """Return the metrics of a run.

    Raises:
        UserError: If it is no run.
    """
    from transformer.runs.run_directory import RunDirectory

    file = RunDirectory(path).metrics_file
    if not file.is_file():
        raise UserError(f"{path} is no run: it has no {file.name}")
    return file


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
