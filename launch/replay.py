"""Replay a run to any step in memory, find the step of a head's onset, or branch another run off it."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import Command, TrainingArguments, flag, trust_flag
from launch.compilation_cache import enable_compilation_cache
from launch.platform import exit_process
from transformer.config import UserError
from transformer.system.command_invocation import shell_command

if TYPE_CHECKING:
    from transformer.runs.preemption import ProgressMonitor
    from transformer.runs.run_directory import RunDirectory
    from transformer.training.config import ExperimentConfig
    from transformer.training.replay import Replay


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayArguments(TrainingArguments):
    """The arguments of `replay`."""

    workdir: str = flag("the run directory, in which nothing is written", required=True)
    step: int | None = flag("the step to replay to, from the nearest checkpoint at or before it")
    example: int | None = flag(
        "also map this example of the batch that the step trained on, counted from 0",
        needs=("step",),
    )
    output: str | None = flag(
        "the folder to write (default: a new one here, named after run and step)",
        needs=("step",),
    )
    verify: bool = flag("train on to the next checkpoint, if the run has one, and compare every array with it", True)
    bisect: str | None = flag(
        "find the step at which heads took up this role, such as induction or previous_token",
        excludes=("step", "example", "output", "verify", "branch"),
    )
    site: str | None = flag("only the heads of this attention module", needs=("bisect",))
    head: str | None = flag("only this head, as LAYER.HEAD", needs=("bisect",))
    branch: str | None = flag(
        "the directory of a new run that continues from --step with the given --config.KEY=VALUE",
        excludes=("example", "output", "verify"),
    )
    without: str | None = flag(
        "FROM:TO: leave out the batches FROM to TO - 1, counted from 0 (by default, --step is the step before them)",
        needs=("branch",),
    )
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data, if it has moved")


COMMAND = Command(
    name="replay",
    description=(
        "Train a run again in memory, from a checkpoint to any step, and write what it never stored: the attention "
        "maps of that step, the loss of every example of its batch, and the maps of one example. It says whether the "
        "replay is bit for bit what ran. --bisect finds the very step at which a head took up a role, between two "
        "steps whose maps are stored. --branch continues from the step as a new run with other config values, or "
        "without some batches."
    ),
    example="--workdir=runs/demo --step=130",
    arguments=ReplayArguments,
    reads_run=True,
    before_jax=enable_compilation_cache,
)


def main(arguments: ReplayArguments) -> None:
    """Replay the run to a step, find the onset of a role, or train a branch."""
    from transformer.runs.lifecycle import run_lifecycle
    from transformer.runs.run_directory import RunDirectory
    from transformer.training.replay import open_replay, refuse_live_run

    if not (arguments.bisect or arguments.branch or arguments.step is not None):
        raise UserError(f"replay needs --step, --bisect or --branch; for example: {COMMAND.example_call}")
    if arguments.config_overrides and arguments.branch is None:
        raise UserError(
            f"{arguments.config_overrides[0]} changes the run, which is replayed as it was: add --branch=NEW"
        )
    refuse_live_run(RunDirectory.open(arguments.workdir))
    with run_lifecycle(None, 1, None, heartbeat=60, watchdog=0) as monitor:
        with open_replay(arguments.workdir, arguments.trust, arguments.data_dir, monitor) as replay:
            if arguments.bisect is not None:
                _bisect(arguments, replay)
                return
            if arguments.branch is None:
                _replay_step(arguments, replay)
                return
            experiment = _start_branch(arguments, replay)
        _train_branch(arguments, experiment, monitor)


def _replay_step(arguments: ReplayArguments, replay: "Replay") -> None:
    """Replay the run to a step, write what it never stored, and print what was written."""
    from transformer.interpret.replayed_step import prepare_output, replay_step
    from transformer.storage.paths import parse_path, storage_of

    assert arguments.step is not None
    replay.check_step(arguments.step)
    path = replay.directory.path
    output = (
        Path.cwd() / f"{path.resolve().name}-step-{arguments.step}"
        if arguments.output is None
        else parse_path(arguments.output)
    )
    prepare_output(output, path)
    try:
        result = replay_step(replay, arguments.step, output, example=arguments.example, verify=arguments.verify)
    except BaseException:  # also if it was stopped: the same command begins anew
        storage_of(output).remove_tree(output)
        raise
    print(f"step {result.step} of {path}, replayed from step {result.first}")
    print(result.verdict)
    if result.metrics:
        print("metrics of the step: " + ", ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))
    for note in result.notes:
        print(note)
    print(f"written to {output}: {', '.join(file.name for file in result.files)}")


def _bisect(arguments: ReplayArguments, replay: "Replay") -> None:
    """Find the onsets of a role and print them."""
    from transformer.interpret.role_onset import describe_head, find_role_onsets, parse_role

    assert arguments.bisect is not None
    role = parse_role(arguments.bisect)

    def announce(line: str) -> None:
        print(line, flush=True)

    search = find_role_onsets(replay, role, site=arguments.site, head=arguments.head, announce=announce)
    for onset in search.onsets:
        print(
            f"{describe_head(onset.head, replay)} takes up the role {role.value} at step {onset.step}: score "
            f"{onset.score_before:.4f} after step {onset.step - 1}, {onset.score:.4f} after step {onset.step} "
            f"({onset.num_probes} maps between steps {onset.bracket[0]} and {onset.bracket[1]})"
        )
    for note in search.notes:
        print(note)
    print(f"{search.num_steps} steps were trained again; {search.verdict}")


def _start_branch(arguments: ReplayArguments, replay: "Replay") -> "ExperimentConfig":
    """Write the directory of a branch with its first checkpoint, and return the branch's config."""
    from transformer.config import config_differences
    from transformer.storage.paths import parse_path
    from transformer.training.branch import (
        BranchRequest,
        check_branch,
        parse_batch_range,
        start_branch,
        step_before_batch,
    )
    from transformer.training.config import resolve_config
    from transformer.training.rollback import skipped_batches

    assert arguments.branch is not None
    workdir = parse_path(arguments.branch)
    left_out = None if arguments.without is None else parse_batch_range(arguments.without)
    if arguments.step is None and left_out is None:
        raise UserError("--branch needs the step from which it continues: add --step=S")
    if arguments.step is not None or left_out is None:
        step = arguments.step or 0
    else:
        step = step_before_batch(left_out.first, skipped_batches(replay.directory))
    experiment = resolve_config(arguments.config_with_data_dir())
    differences = config_differences(experiment.to_config(), replay.experiment.to_config())
    overrides = {key: now for key, (now, _) in differences.items()}
    request = BranchRequest(step, experiment, overrides, left_out)
    components = check_branch(replay, request, workdir)
    replayed = replay.train_on(replay.start_before(step), step)
    start_branch(replay, request, components, replayed.state, workdir)
    print(f"{workdir}: branched off {replay.directory.path} at step {step}, replayed from step {replayed.first}")
    return experiment


def _train_branch(arguments: ReplayArguments, experiment: "ExperimentConfig", monitor: "ProgressMonitor") -> None:
    """Train a branch to its end, and print how its last metrics differ from those of the run it was branched off."""
    from transformer.data.datasets.tfds_preparation import restrict_downloads
    from transformer.runs.jsonl_reading import read_records
    from transformer.runs.run_directory import RunDirectory
    from transformer.storage.paths import parse_path
    from transformer.training.driver import train

    assert arguments.branch is not None
    workdir = parse_path(arguments.branch)
    with restrict_downloads(arguments.trusted_names):
        directory = train(experiment, workdir, monitor=monitor)
    records = [read_records(RunDirectory.open(path).metrics_file) for path in (workdir, arguments.workdir)]
    for line in describe_last_differences(*records):
        print(line)
    compare = describe_comparison_command(directory, arguments.workdir)
    print(f"compare it on a page with the run that it was branched off: {compare}", flush=True)


def describe_comparison_command(branch: "RunDirectory", parent: str) -> str:
    """Return the command that compares a branch on a page with the run that it was branched off."""
    from transformer.runs.trust import trust_flags

    flags = [f"--workdir={branch.path}", f"--compare_to={parent}", *trust_flags(branch.config())]
    return shlex.join([*shell_command("maps"), *flags])


def describe_last_differences(branch: list[dict[str, Any]], parent: list[dict[str, Any]]) -> list[str]:
    """Describe the last loss and accuracy of each split beside those of the other run at the same step.

    Args:
        branch: The metrics of the branch.
        parent: Those of the run that it was branched off.
    """
    by_step: dict[tuple[int, str], Mapping[str, Any]] = {(record["step"], record["split"]): record for record in parent}
    lines = []
    for split in dict.fromkeys(record["split"] for record in branch):
        common = [record for record in branch if record["split"] == split and (record["step"], split) in by_step]
        if not common:
            continue
        last = common[-1]
        parent_record = by_step[last["step"], split]
        values = [
            f"{name} {last[name]:.4f} ({last[name] - parent_record[name]:+.4f})"
            for name in ("loss", "accuracy")
            if isinstance(last.get(name), (int, float)) and isinstance(parent_record.get(name), (int, float))
        ]
        if values:
            lines.append(f"step {last['step']}, {split}: {', '.join(values)}")
    return lines


if __name__ == "__main__":
    exit_process(run(COMMAND, main))
