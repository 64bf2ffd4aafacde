"""Train a model, or resume a run that was stopped."""

import dataclasses
import itertools
import math
import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.cli import run
from launch.command import DATA_DIR_KEY, Command, TrainingArguments, flag, trackers_flag, trust_flag
from launch.compilation_cache import enable_compilation_cache
from launch.platform import exit_process
from transformer.config import UserError
from transformer.system.command_invocation import shell_command
from transformer.system.terminal import pluralize

if TYPE_CHECKING:
    from transformer.training.config import ExperimentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainArguments(TrainingArguments):
    """The arguments of `train`."""

    workdir: str | None = flag("the run directory", required=True)
    data_dir: str | None = flag("the folder of the data, for data sets that are not generated")
    trust: tuple[str, ...] = trust_flag()
    show_config: bool = flag(
        "print every config key with its value, without training", False, makes_optional=("workdir",)
    )
    smoke_test: bool = flag(
        "train 20 steps, with intervals and warmups shortened to match, to see the whole life of a run; data and model "
        "are unchanged",
        False,
    )
    check: bool = flag(
        "check the config, the data, the directory and, for config.topology, mesh and memory, without training", False
    )
    trackers: str | None = trackers_flag()
    serve: bool = flag("serve the run's page to a browser on this machine during training", False)
    profile: bool = flag("write a profiler trace of steps 10 to 14 to WORKDIR/profile", False)
    coordinator_address: str | None = flag("HOST:PORT of process 0, when training on several processes")
    num_processes: int | None = flag("the number of processes; 1 trains on this process alone")
    process_id: int | None = flag("the index of this process, from 0")
    heartbeat_timeout: int = flag("seconds without a heartbeat before a process counts as lost", 60)
    watchdog_timeout: float | None = flag(
        "seconds without progress before the process is ended; 0: never (default: from the step time)"
    )
    grace_seconds: float | None = flag(
        "seconds from a stop signal until the process is killed; the run says if a step and a save take longer"
    )
    rollback_to_step: int | None = flag(
        "restore the checkpoint of this step first (default: the latest); 0 restarts from the beginning"
    )
    skip_batches: int | None = flag("skip this many batches after the restored step")


def _prepare_process(arguments: TrainArguments) -> None:
    """Enable the compilation cache; to check a run for a topology, make as many CPU devices as it has."""
    topology = arguments.config_topology
    if not arguments.check or not topology:
        enable_compilation_cache(arguments)
        return
    from transformer.costs.topologies import compile_environment_variables, topology_size

    os.environ.update(compile_environment_variables(f"cpu:{topology_size(topology).num_devices}"))


COMMAND = Command(
    name="train",
    description=(
        "Train the model of a config file in a run directory, and log metrics and the attention maps of every head. "
        "Running the same command again resumes the run; --config is then optional. To train on several processes or "
        "machines, run the command on each: TPU pods, Slurm and Open MPI (5 or newer, with mpi4py) are detected. "
        "Elsewhere pass --coordinator_address, --num_processes and --process_id, or set JAX_COORDINATOR_ADDRESS, "
        "JAX_NUM_PROCESSES and JAX_PROCESS_ID."
    ),
    example="--config=experiments/demo.py --workdir=runs/demo",
    arguments=TrainArguments,
    resumes=True,
    before_jax=_prepare_process,
)


def main(arguments: TrainArguments) -> None:
    """Check the config and train; or print the config."""
    from transformer.training.config import format_as_flags, resolve_config

    values, overridden_keys = arguments.config_with_data_dir(), arguments.overridden_keys
    if arguments.smoke_test:
        values, short_keys = _shorten(values, arguments.overrides)
        overridden_keys = (*overridden_keys, *short_keys)
    if arguments.show_config:
        print(format_as_flags(values, overridden_keys))
        return
    experiment = resolve_config(values)  # its mistakes are reported before the slow imports
    from transformer.runs.distributed import print_and_log
    from transformer.runs.lifecycle import run_lifecycle
    from transformer.storage.paths import parse_path
    from transformer.training.writers.trackers import open_trackers, parse_trackers

    if arguments.watchdog_timeout is not None and not arguments.watchdog_timeout >= 0:
        raise UserError(f"--watchdog_timeout={arguments.watchdog_timeout} must be a number of seconds, or 0 for none")
    if arguments.grace_seconds is not None and not arguments.grace_seconds > 0:
        raise UserError(f"--grace_seconds={arguments.grace_seconds} must be a number of seconds above 0")
    assert arguments.workdir is not None  # only --show_config goes without
    workdir = parse_path(arguments.workdir)
    if arguments.check:
        print(_check(experiment, workdir, arguments))
        return
    lifecycle = run_lifecycle(
        arguments.coordinator_address,
        arguments.num_processes,
        arguments.process_id,
        heartbeat=arguments.heartbeat_timeout,
        watchdog=arguments.watchdog_timeout,
        grace=arguments.grace_seconds,
    )
    trackers = open_trackers(parse_trackers(arguments.trackers), workdir, print_and_log)
    # The trackers are waited for outside: by then the run is saved, and nothing of it waits with them.
    with trackers as writers, lifecycle as monitor:
        from transformer.data.datasets.tfds_preparation import restrict_downloads
        from transformer.runs.distributed import is_primary
        from transformer.training.driver import train
        from transformer.training.rollback import RollbackRequest
        from transformer.training.writers.writer import BestEffortWriter, MultiWriter

        if arguments.serve:
            from transformer.training.writers.live_page import LivePageWriter

            writers = (*writers, BestEffortWriter("the page of --serve", lambda: LivePageWriter(workdir)))
        rewind = None
        if arguments.rollback_to_step is not None or arguments.skip_batches:
            rewind = RollbackRequest(arguments.rollback_to_step, arguments.skip_batches or 0)
        with restrict_downloads(arguments.trusted_names):
            train(
                experiment,
                workdir,
                profile=arguments.profile,
                writer=MultiWriter(*writers),
                monitor=monitor,
                rewind=rewind,
            )
        if is_primary():
            print(describe_next_commands(workdir, values), flush=True)


def _shorten(values: Mapping[str, Any], overrides: Collection[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the config of --smoke_test, and the keys that it sets, after printing them.

    Raises:
        UserError: If the call sets one of these keys, too.
    """
    from transformer.overrides import config_keys_overlap, override_flag
    from transformer.training.config import apply_overrides, resolve_config
    from transformer.training.shortened_run import shortening_overrides

    changes = shortening_overrides(resolve_config(values))
    for key, changed in itertools.product(overrides, changes):
        if config_keys_overlap(key, changed):
            raise UserError(f"--smoke_test sets config.{changed}: omit --config.{key}, or --smoke_test")
    flags = shlex.join(override_flag(key, value) for key, value in changes.items())
    print(f"smoke test: {flags or 'the run is as short as it is'}", flush=True)
    return apply_overrides(values, changes), tuple(changes)


def _check(experiment: "ExperimentConfig", workdir: Path, arguments: TrainArguments) -> str:
    """Check a run before its first step, and return what was found to be right.

    Raises:
        UserError: If something is wrong.
    """
    from transformer.costs.topologies import topology_size
    from transformer.data.datasets.tfds_preparation import restrict_downloads
    from transformer.models.model import count_parameters
    from transformer.training.export_check import describe_export
    from transformer.training.run_setup import check_run

    topology = experiment.run.topology
    memory_bytes = None if not topology or topology.startswith("cpu:") else topology_size(topology).memory_bytes
    unknown = topology.startswith("gpu:")  # of which model it does not say
    with restrict_downloads(arguments.trusted_names):
        components = check_run(experiment, workdir, math.inf if unknown else memory_bytes)
    mesh = components.placement.mesh
    kind = mesh.devices.flat[0].device_kind
    devices = f"{pluralize(mesh.size, 'device')} of {topology or kind}"
    fits = f"was not compared with the memory of {topology}" if unknown else f"fits {devices}"
    # A run that is resumed without a config file is not one that launch.compile reads.
    data_dir = [] if arguments.data_dir is None else [f"--config.{DATA_DIR_KEY}={arguments.data_dir}"]
    config_flags = [f"--config={arguments.config_file}", *arguments.config_overrides, *data_dir]
    compile_command = shlex.join([*shell_command("compile"), *config_flags])
    data_lines = "".join(f"{line}\n" for line in components.task.data_summary)
    return (
        f"{data_lines}{experiment.run.name}: config, data and {workdir} are right, and the state of "
        f"{count_parameters(components.abstract_state.variables.params):,} parameters {fits}; nothing was started."
        + (f" Whether the step fits too: {compile_command}" if arguments.config_file else "")
        + f"\nThe model {describe_export(experiment, components.task)}."
    )


def describe_next_commands(workdir: Path, config: Mapping[str, Any]) -> str:
    """Return the commands that one runs next on a completed run of this config."""
    from transformer.runs.trust import trust_flags

    run = [f"--workdir={workdir}", *trust_flags(config)]
    return (
        f"complete; write the page of its heads: {shlex.join([*shell_command('maps'), *run])}\n"
        f"          evaluate it again: {shlex.join([*shell_command('evaluate'), *run])}"
    )


if __name__ == "__main__":
    exit_process(run(COMMAND, main))
