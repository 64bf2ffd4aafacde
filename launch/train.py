"""Train a model, or go on with a run that was stopped."""

from pathlib import Path

from launch.cli import run
from launch.command import TRUST, Arguments, Command, Flag
from launch.compiled import keep_compiled
from launch.platform import leave

COMMAND = Command(
    name="train",
    description=(
        "Train the model of a config file in a run directory, logging metrics and the attention maps of every "
        "head. The same command on the same directory resumes the run, then without --config if you like. On "
        "several processes or machines start it on each: TPU pods, Slurm and Open MPI are recognised; elsewhere give "
        "--coordinator, --processes and --process, or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."
    ),
    example="python -m launch.train --config=experiments/demo.py --workdir=runs/demo",
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
        Flag("serve", "give the page to a browser of this machine while the run trains", default=False, kind=bool),
        Flag("profile", "trace steps 10 to 14 into WORKDIR/profile", default=False, kind=bool),
        Flag("coordinator", "HOST:PORT of process 0, where this is one of several processes"),
        Flag("processes", "number of processes", kind=int),
        Flag("process", "which of them this is, from 0", kind=int),
        Flag("heartbeat", "seconds of silence after which a process counts as lost", default=60, kind=int),
    ),
    takes_config=True,
    resumes=True,
    before_jax=keep_compiled,
)


def main(arguments: Arguments) -> None:
    """Check the config, then train; or show it."""
    values = arguments.with_data()
    if arguments.show_config:
        from transformer.training.schema import show

        print(show(values, (*arguments.overrides, *(() if arguments.data_dir is None else ("task.data_dir",)))))
        return
    from transformer.runs.processes import start

    start(arguments.coordinator, arguments.processes, arguments.process, heartbeat=arguments.heartbeat)
    from transformer.data.datasets.preparation import downloads
    from transformer.training.experiment import resolve
    from transformer.training.train import train

    workdir = Path(arguments.workdir)
    page = None
    if arguments.serve:
        from transformer.training.sinks.live_page import LivePage

        page = LivePage(workdir)
    with downloads(arguments.vouched):
        train(resolve(values), workdir, profile=arguments.profile, sink=page)


if __name__ == "__main__":
    leave(run(COMMAND, main))
