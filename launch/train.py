"""Train a model, or go on with a run that was stopped."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.cli import run
from launch.command import TRACKERS, TRUST, Arguments, Command, Flag
from launch.compiled import keep_compiled
from launch.platform import leave
from transformer.config import UserError
from transformer.installation import command_words

COMMAND = Command(
    name="train",
    description=(
        "Train the model of a config file in a run directory, logging metrics and the attention maps of every "
        "head. The same command on the same directory resumes the run, then without --config if you like. On "
        "several processes or machines start it on each: TPU pods, Slurm and Open MPI (5 or newer: with "
        "mpi4py) are recognized; elsewhere give "
        "--coordinator, --processes and --process, or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."
    ),
    example="--config=experiments/demo.py --workdir=runs/demo",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("data_dir", "folder of the data, for data sets that are not generated"),
        TRUST,
        Flag(
            "show_config",
            "print every key of the config with its value, and train nothing",
            default=False,
            kind=bool,
            waives=("workdir",),
        ),
        TRACKERS,
        Flag("serve", "give the page to a browser of this machine while the run trains", default=False, kind=bool),
        Flag("profile", "trace steps 10 to 14 into WORKDIR/profile", default=False, kind=bool),
        Flag("coordinator", "HOST:PORT of process 0, where this is one of several processes"),
        Flag("processes", "number of processes; 1: this one trains alone, whatever started it", kind=int),
        Flag("process", "which of them this is, from 0", kind=int),
        Flag("heartbeat", "seconds of silence after which a process counts as lost", default=60, kind=int),
        Flag("watchdog", "seconds without progress that end the process; 0: never (default: by the steps)", kind=float),
        Flag("rewind", "go back to the checkpoint of this step first; 0 is the start", kind=int),
        Flag("skip", "leave out so many batches behind the step gone back to, or else behind the latest", kind=int),
    ),
    takes_config=True,
    resumes=True,
    before_jax=keep_compiled,
)


def main(arguments: Arguments) -> None:
    """Check the config, then train; or show it."""
    values = arguments.with_data()
    if arguments.show_config:
        from transformer.training.config import show

        given = arguments.overrides if arguments.data_dir is None else (*arguments.overrides, "task.data_dir")
        print(show(values, given))
        return
    from transformer.runs.distributed import announce
    from transformer.runs.lifecycle import run_lifecycle
    from transformer.storage.locate import locate
    from transformer.training.writers.trackers import open_trackers, requested_trackers

    if arguments.watchdog is not None and not arguments.watchdog >= 0:
        raise UserError(f"--watchdog={arguments.watchdog} must be a number of seconds, or 0 for none")
    workdir = locate(arguments.workdir)
    lifecycle = run_lifecycle(
        arguments.coordinator,
        arguments.processes,
        arguments.process,
        heartbeat=arguments.heartbeat,
        watchdog=arguments.watchdog,
    )
    trackers = open_trackers(requested_trackers(arguments.trackers), workdir, announce)
    # The trackers are waited for outside: by then the run is saved, and nothing of it waits with them.
    with trackers as sinks, lifecycle as monitor:
        from transformer.data.datasets.preparation import downloads
        from transformer.runs.distributed import primary
        from transformer.training.config import resolve
        from transformer.training.rollback import Rewind
        from transformer.training.train import train
        from transformer.training.writers.contract import OptionalSink, Sinks

        if arguments.serve:
            from transformer.training.writers.live_page import LivePage

            sinks = (*sinks, OptionalSink("the page of --serve", lambda: LivePage(workdir)))
        rewind = None
        if arguments.rewind is not None or arguments.skip:
            rewind = Rewind(arguments.rewind, arguments.skip or 0)
        with downloads(arguments.vouched):
            train(
                resolve(values),
                workdir,
                profile=arguments.profile,
                sink=Sinks(*sinks),
                monitor=monitor,
                rewind=rewind,
            )
        if primary():
            print(what_next(workdir, values), flush=True)


def what_next(workdir: Path, config: Mapping[str, Any]) -> str:
    """What one does with a run of this config that is complete: commands that run as they stand."""
    from transformer.trust import trust_words

    run = [f"--workdir={workdir}", *trust_words(config)]
    return (
        f"complete; the page of its heads: {shlex.join([*command_words('maps'), *run])}\n"
        f"          its figures once more: {shlex.join([*command_words('evaluate'), *run])}"
    )


if __name__ == "__main__":
    leave(run(COMMAND, main))
