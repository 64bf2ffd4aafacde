"""Run an ablation: train its arms on the same seeds, compare them, and write the page."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import Command, TrainingArguments, flag, trackers_flag, trust_flag, vmap_flag
from launch.config_files import load_function
from launch.platform import exit_process
from launch.retrain_command import retrain_command
from launch.workers import become_worker, divide_machine, run_as_worker, run_workers
from transformer.config import UserError
from transformer.system.command_invocation import shell_command, subprocess_command

if TYPE_CHECKING:
    from transformer.studies.ablations.ablation import Ablation
    from transformer.studies.ablations.calibration import Calibration
    from transformer.studies.ablations.collect_results import EndedRun
    from transformer.studies.ablations.registration import RegistrationStatus
    from transformer.studies.ablations.run_plan import PlannedRun
    from transformer.studies.ablations.study_metadata import StudyMetadata
    from transformer.studies.sweeps.trial_store import TrialStore


_TRAINING_FLAGS = ("num_workers", "only", "trackers", "vmap", "retry_failed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblateArguments(TrainingArguments):
    """The arguments of `ablate`."""

    workdir: str | None = flag("the study's directory", required=True)
    num_workers: int | None = flag("processes on this machine (default: 1)")
    seeds: str | None = flag("seeds instead of the study's own, such as 1,2,3")
    only: str | None = flag(
        "train only these runs of the study, such as 'arm=pre; task=words; seed=1; optimizer.learning_rate=0.01'; "
        "what is not named is not restricted"
    )
    trackers: str | None = trackers_flag()
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data on this machine, for data sets that are not generated")
    vmap: int | None = vmap_flag()
    retry_failed: bool = flag("train failed runs again", False)
    report_only: bool = flag(
        "write the page of the finished runs, without training",
        False,
        excludes=("only",),
        because="it trains nothing",
    )
    plan_effect: float | None = flag(
        "before a study, print the power of several numbers of seeds to see this difference, in standard "
        "deviations of the paired differences; nothing is trained",
        makes_optional=("workdir",),
        excludes=("only",),
        because="it trains nothing",
    )
    register: bool = flag(
        "before a study, check it and write what it asks and how it decides into the study's directory, with a "
        "hash; nothing is trained",
        False,
        excludes=(*_TRAINING_FLAGS, "plan_effect", "calibrate", "report_only"),
        because="it trains and reports nothing",
    )
    calibrate: bool = flag(
        "simulate 2,000 studies of this design with equal arms and, with --plan_effect, 2,000 in which one arm is "
        "better; write how many give a verdict into the study's directory; noise is drawn from the study's runs, "
        "if there are enough",
        False,
        needs=("workdir",),
        excludes=(*_TRAINING_FLAGS, "report_only"),
        because="it trains and reports nothing, and writes into the study's directory",
    )
    worker: bool = flag(
        "be one worker of a study that has begun, in this process",
        False,
        excludes=(
            "num_workers",
            "seeds",
            "only",
            "plan_effect",
            "calibrate",
            "report_only",
            "retry_failed",
            "register",
        ),
        because="the study has begun, and this is one of its workers",
    )

    @property
    def study_dir(self) -> str:
        """The value of --workdir, without which only --plan_effect is called."""
        assert self.workdir is not None
        return self.workdir


@dataclasses.dataclass(frozen=True)
class OpenStudy:
    """A study with a directory, which a call of the command trains, registers or reports.

    Attributes:
        arguments: The arguments of the call.
        spec: The ablation, with the seeds of the call.
        planned: All of its runs.
        trial_store: The trial store in its directory.
        metadata: The contents of about.json.
    """

    arguments: AblateArguments
    spec: "Ablation"
    planned: "Sequence[PlannedRun]"
    trial_store: "TrialStore"
    metadata: "StudyMetadata"

    def with_metadata(self, **changes: Any) -> "OpenStudy":
        """Change the metadata, in about.json too."""
        from transformer.studies.ablations.study_metadata import write_metadata

        metadata = dataclasses.replace(self.metadata, **changes)
        write_metadata(self.trial_store.path, metadata)
        return dataclasses.replace(self, metadata=metadata)


def _become_worker(arguments: AblateArguments) -> None:
    """Prepare a worker process before reading the config imports jax."""
    if not arguments.worker:
        return
    from transformer.storage.paths import parse_path
    from transformer.studies.sweeps.trial_store import TrialStore

    TrialStore.open_existing(parse_path(arguments.study_dir))
    become_worker()


COMMAND = Command(
    name="ablate",
    description=(
        "Train every arm of get_ablation() of a config file on the same seeds and data, with equal tuning, and write "
        "one offline page that says which arm is better, by how much, and with what confidence, together with JSON and "
        "CSV files of the numbers. Running the same command again completes what is missing and rewrites the page."
    ),
    example="--config=experiments/ablations/configs/norm_placement.py --workdir=runs/norms --num_workers=2",
    arguments=AblateArguments,
    before_jax=_become_worker,
)


def main(arguments: AblateArguments) -> None:
    """Check everything, train the missing runs, write the page."""
    if arguments.worker:
        _run_worker(arguments)
        return
    if arguments.calibrate:
        _calibrate(arguments, _load_ablation(arguments))
        return
    if arguments.plan_effect is not None:
        from transformer.studies.ablations.study_plan import format_plan

        print(format_plan(_load_ablation(arguments), arguments.plan_effect))
        return
    if arguments.num_workers is not None:
        divide_machine(arguments.num_workers, range(arguments.num_workers))
    spec = _load_ablation(arguments)
    _use_cpu()
    from transformer.studies.ablations.initial_gradients import check_depth_sweeps
    from transformer.studies.ablations.run_plan import plan_runs
    from transformer.training.writers.trackers import parse_trackers

    parse_trackers(arguments.trackers)
    planned = plan_runs(spec, arguments.config)
    selected = _select_runs(arguments, planned)
    if not arguments.report_only:
        check_depth_sweeps(arguments.config, spec)
    study = _open_study(arguments, spec, planned)
    if arguments.register:
        _register(study)
        return
    if not arguments.report_only:
        _print_contradicted_registration(_check_study_registration(study, search_commits=False))
        study = _train_runs(study, selected)
    _write_report(study)


def _run_worker(arguments: AblateArguments) -> None:
    """Run as a worker of the study in the directory."""
    from transformer.runs.trust import named_resources
    from transformer.storage.paths import parse_path
    from transformer.studies.sweeps.trial_store import TrialStore
    from transformer.studies.sweeps.trials import check_recorded_trial
    from transformer.training.writers.trackers import parse_trackers

    trial_store = TrialStore.open_existing(parse_path(arguments.study_dir))
    trusted_names = {*arguments.trust, *named_resources(arguments.config)}
    for trial in trial_store.trials():
        check_recorded_trial(trial, trusted_names)
    run_as_worker(
        trial_store,
        None,
        total=len(trial_store.trials()),
        metric=str(trial_store.facts().get("metric", "")),
        vmap=arguments.vmap or 1,
        data_dir=arguments.data_dir,
        trusted_names=trusted_names,
        trackers=parse_trackers(arguments.trackers),
    )


def _load_ablation(arguments: AblateArguments) -> "Ablation":
    """Return the study of the config file, with the seeds of the flag."""
    from transformer.studies.ablations.ablation import Ablation, build_ablation, replace_seeds

    file = arguments.config_file
    get_ablation = load_function(file, "get_ablation")
    if get_ablation is None:
        raise UserError(
            f"config file {file!r} has no get_ablation(ablation): define one beside get_config() that returns "
            "ablation(question=..., arms=..., reference=...), as experiments/ablations/configs/norm_placement.py does"
        )
    spec = get_ablation(build_ablation)
    if not isinstance(spec, Ablation):
        raise UserError(
            f"config file {file!r}: get_ablation returned a {type(spec).__name__}; return ablation(question=..., ...)"
        )
    arguments.refuse_keys_of_study(spec.keys_by_owner())
    return spec if arguments.seeds is None else replace_seeds(spec, arguments.seeds)


def _use_cpu() -> None:
    """Run checks and measurements of this process on the CPU, to leave accelerators to the workers."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def _open_study(arguments: AblateArguments, spec: "Ablation", planned: "Sequence[PlannedRun]") -> OpenStudy:
    """Open the directory of a study, new or continued.

    A refused study leaves no directory, so that the corrected one can use it.
    """
    from transformer.storage.paths import parse_path
    from transformer.studies.ablations.study_metadata import (
        check_and_describe_arms,
        read_metadata,
        refuse_dropped_seeds,
        study_identity,
        write_metadata,
    )
    from transformer.studies.sweeps.trial_store import TrialStore

    path, base = parse_path(arguments.study_dir), arguments.config
    is_begun = (path / "sweep.json").is_file()
    if arguments.report_only and not is_begun:
        TrialStore.open_existing(path)
    metadata = None
    if is_begun:
        refuse_dropped_seeds(spec, TrialStore.open(path, study_identity(spec, base)))
        metadata = read_metadata(path)
    if metadata is None:
        print(f"checking that {len(spec.arms)} arms meet on equal terms", flush=True)
        metadata = check_and_describe_arms(spec, base, planned, arguments.data_dir)
    trial_store = TrialStore.open(path, study_identity(spec, base))
    write_metadata(path, metadata)
    return OpenStudy(arguments, spec, planned, trial_store, metadata)


def _select_runs(arguments: AblateArguments, planned: "Sequence[PlannedRun]") -> "Sequence[PlannedRun]":
    """Return the planned runs that --only names; all without it."""
    from transformer.studies.ablations.run_result import parse_run_filter

    if arguments.only is None:
        return planned
    return parse_run_filter(arguments.only).select((planned_run, planned_run.values) for planned_run in planned)


def _register(study: OpenStudy) -> None:
    """Register the study, and print its hash and what it leaves open."""
    from transformer.studies.ablations.registration import (
        FILE,
        register,
        registration_contents,
        write_registration,
    )

    spec, trial_store = study.spec, study.trial_store
    contents = registration_contents(spec, study.arguments.config, study.planned)
    registration = register(trial_store, study.metadata.registration, contents)
    # Before the registration: a file that this directory does not know would look like a copy.
    study.with_metadata(registration=registration.sha256)
    write_registration(trial_store.path, registration)
    print(f"registered {registration.registered}, SHA-256 {registration.sha256}: {trial_store.path}/{FILE}")
    if not spec.predictions:
        print("it makes no predictions: give get_ablation predictions, and the report says of each if it came out")
    if not spec.known_before.strip():
        print("it does not say what was known before: give get_ablation known_before, such as earlier runs and seeds")
    if trial_store.trials():
        print("the study has begun since: the same command without --register completes it, and reports it")
        return
    print("commit the file and push it, so that others see its date; then train by the same command without --register")


def _check_study_registration(study: OpenStudy, *, search_commits: bool) -> "RegistrationStatus | None":
    """Return what the report says of the study's registration; None if it was never registered."""
    from transformer.studies.ablations.collect_results import first_start_of_run
    from transformer.studies.ablations.hash_commits import find_hash_commit
    from transformer.studies.ablations.registration import check_registration, registration_contents

    arguments, trial_store = study.arguments, study.trial_store
    trials = [trial for trial in trial_store.trials() if trial_store.has_begun(trial)]
    # The folders of code that runs, not the study's, which may be a stranger's: git takes the settings of a repository.
    folders = [Path(str(arguments.config_file)).absolute().parent, Path.cwd()] if search_commits else []
    return check_registration(
        trial_store.path,
        study.metadata.registration,
        registration_contents(study.spec, arguments.config, study.planned),
        [first_start_of_run(trial_store.directory(trial), trial_store.attempt_times(trial)) for trial in trials],
        lambda sha256, since: find_hash_commit(sha256, since, folders),
    )


def _print_contradicted_registration(registration: "RegistrationStatus | None") -> None:
    """Print before training why the study is not the registered one, rather than hours later."""
    from transformer.studies.ablations.registration import describe_registration

    if registration is not None and registration.is_contradicted:
        print(describe_registration(registration)[0], flush=True)


def _calibrate(arguments: AblateArguments, spec: "Ablation") -> None:
    """Measure how often the design gives a verdict, print it and write it into the study's directory."""
    from transformer.storage.paths import parse_path
    from transformer.studies.ablations.calibration import (
        FILE,
        calibrate,
        check_seeds,
        describe_calibration,
        write_calibration,
    )
    from transformer.studies.ablations.collect_results import collect_results
    from transformer.studies.ablations.run_plan import plan_runs
    from transformer.studies.ablations.study_metadata import refuse_dropped_seeds, study_identity
    from transformer.studies.ablations.study_plan import check_planned_effect
    from transformer.studies.sweeps.trial_store import TrialStore

    if arguments.plan_effect is not None:
        check_planned_effect(arguments.plan_effect)
    check_seeds(spec)
    planned = plan_runs(spec, arguments.config)
    trial_store = TrialStore.open(parse_path(arguments.study_dir), study_identity(spec, arguments.config))
    refuse_dropped_seeds(spec, trial_store)
    run_results = collect_results(spec, _list_ended_runs(arguments, planned, trial_store))
    calibration = calibrate(spec, run_results, arguments.plan_effect)
    write_calibration(trial_store.path, calibration)
    print("\n".join(describe_calibration(spec, calibration)))
    if calibration.rates[0].power is None:
        print("for the power to see a difference, add --plan_effect=1.5, in its standard deviations")
    print(f"numbers: {trial_store.path}/{FILE}; the next report shows them")


def _read_study_calibration(spec: "Ablation", trial_store: "TrialStore") -> "Calibration | None":
    """Return the calibration of the study; None if there is none, or it is that of another design."""
    from transformer.studies.ablations.calibration import FILE, hash_design, read_calibration

    calibration = read_calibration(trial_store.path)
    if calibration is None or calibration.design == hash_design(spec):
        return calibration
    print(f"{trial_store.path}/{FILE} is of another design, and left out: run the command with --calibrate", flush=True)
    return None


def _train_runs(study: OpenStudy, selected: "Sequence[PlannedRun]") -> OpenStudy:
    """Train the unfinished trials of the selected runs, then measure the gradients at initialization."""
    from transformer.runs.trust import named_resources
    from transformer.studies.ablations.ablation import Direction
    from transformer.studies.ablations.study_metadata import measure_initial_gradients

    arguments, spec, trial_store = study.arguments, study.spec, study.trial_store
    if arguments.retry_failed:
        print(f"{trial_store.forget_failed()} failed runs are tried again", flush=True)
    if arguments.only is not None:
        _refuse_other_pending_trials(arguments, selected, trial_store)
    trial_store.append_trials([planned_run.trial for planned_run in selected])
    trusted_names = set(arguments.trust).union(*(named_resources(planned_run.trial.config) for planned_run in selected))
    num_combinations = len(list(spec.combinations())) * len(spec.tasks)
    print(
        (f"{len(selected)} of " if arguments.only is not None else "")
        + f"{len(study.planned)} runs: {len(spec.arms)} arms x {len(spec.seeds)} seeds"
        + (f" x {num_combinations} tasks and tuned values" if num_combinations > 1 else "")
        + f" in {trial_store.path}",
        flush=True,
    )
    run_workers(
        [
            *subprocess_command("ablate"),
            *arguments.omit_flags(
                "num_workers",
                "seeds",
                "only",
                "retry_failed",
                "no_retry_failed",
                "no_report_only",
                "no_worker",
                "trust",
            ),
            # What the arms name, the workers do not see: they read the trial store.
            f"--trust={','.join(sorted(name for name in trusted_names if ',' not in name))}",
        ],
        trial_store,
        workers=arguments.num_workers or 1,
        total=len(trial_store.trials()),
        metric=spec.selection_metric,
        maximize=spec.direction is Direction.MAXIMIZE,
    )
    if arguments.only is not None:
        return study
    if spec.initial_gradients:
        print("measuring the gradients at initialization", flush=True)
    measured = measure_initial_gradients(spec, arguments.config, study.metadata, arguments.data_dir)
    return study.with_metadata(initial_gradients=measured.initial_gradients, stacks=measured.stacks)


def _refuse_other_pending_trials(
    arguments: AblateArguments, selected: "Sequence[PlannedRun]", trial_store: "TrialStore"
) -> None:
    """Raise UserError if the workers would also train runs that --only does not name."""
    names = {planned_run.trial.name for planned_run in selected}
    pending = [
        trial for trial in trial_store.trials() if trial.name not in names and trial_store.outcome(trial) is None
    ]
    if pending:
        raise UserError(
            f"--workdir={arguments.study_dir} has {len(pending)} planned runs that --only does not name and that have "
            "not ended, and its workers train all of them: choose another --workdir"
        )


def _write_report(study: OpenStudy) -> None:
    """Analyze the ended runs, write page, JSON and CSV, print the table and their paths."""
    import datetime

    from transformer.studies.ablations.analysis import analyze
    from transformer.studies.ablations.arm_comparisons import Verdict
    from transformer.studies.ablations.collect_results import collect_provenance, collect_results
    from transformer.studies.ablations.formatting import format_arms_table
    from transformer.studies.ablations.page import write_report_files

    arguments, spec, trial_store, metadata = study.arguments, study.spec, study.trial_store, study.metadata
    ended_runs = _list_ended_runs(arguments, study.planned, trial_store)
    if not ended_runs:
        raise UserError(f"--workdir={arguments.study_dir} has no run that has ended, so no results to report")
    report = analyze(
        spec,
        collect_results(spec, ended_runs),
        {
            "name": metadata.base["name"],
            "base": metadata.base,
            "arms": metadata.arms,
            "initial_gradients": metadata.initial_gradients,
            "first_judged_seeds": metadata.first_judged_seeds,
            "registration": _check_study_registration(study, search_commits=True),
            "calibration": _read_study_calibration(spec, trial_store),
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": shlex.join(
                [*shell_command("ablate"), *arguments.omit_flags("report_only", "retry_failed", "only")]
            ),
            "maps_command": shlex.join(shell_command("maps")),
            "workdir": arguments.study_dir.rstrip("/") or "/",
            **collect_provenance([ended_run.path for ended_run in ended_runs]),
        },
    )
    if metadata.first_judged_seeds is None and any(
        pair.verdict is not Verdict.NOT_JUDGED for pair in report.comparisons
    ):
        # Before the page: what has been seen is known even if this process ends here.
        study.with_metadata(first_judged_seeds=spec.seeds)
    files = write_report_files(report, trial_store.path)
    # First what the numbers are worth: whether the study is as registered, and what was expected of it.
    print("\n".join(["", *report.summary, "", *report.warnings, "", format_arms_table(report), ""]))
    failed = [ended_run for ended_run in ended_runs if ended_run.state == "failed"]
    for ended_run in failed:
        outcome = trial_store.outcome(ended_run.planned.trial)
        print(f"failed: {ended_run.planned.description}: {outcome.message if outcome else ''} ({ended_run.directory})")
    if failed:
        print("train the failed runs again with --retry_failed")
    print(f"page: {files['html']}   numbers: {files['json'].name}, {files['csv'].name}", flush=True)


def _list_ended_runs(
    arguments: AblateArguments, planned: "Sequence[PlannedRun]", trial_store: "TrialStore"
) -> "list[EndedRun]":
    """Return the runs that have ended, each with its directory and the command that trains it again."""
    from transformer.studies.ablations.collect_results import EndedRun

    ended_runs = []
    for planned_run in planned:
        outcome, path = trial_store.outcome(planned_run.trial), trial_store.directory(planned_run.trial)
        if outcome is None:
            continue
        command = retrain_command(
            arguments.config_file,
            arguments.config_overrides,
            planned_run.trial,
            recorded=str(path),
            workdir=f"{Path(str(trial_store.path)).name}-again/{planned_run.trial.name}",
            data_dir=arguments.data_dir,
        )
        times = trial_store.attempt_times(planned_run.trial)
        ended_runs.append(
            EndedRun(planned_run, outcome.state.value, path, f"trials/{planned_run.trial.name}", command, times)
        )
    return ended_runs


if __name__ == "__main__":
    exit_process(run(COMMAND, main))
