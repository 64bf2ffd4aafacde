"""Train on the GPUs of a Slurm cluster: one batch job, which is requeued when its time limit nears."""

import re
import shlex
import sys
from typing import NamedTuple

from launch.clusters.launcher_common import (
    DRY_RUN,
    NAME,
    TrainCommand,
    build_train_argv,
    check_flag_value,
    format_shell_command,
    make_run_name,
    parse_extra_options,
    require_tool,
    run_launcher,
    run_tool,
)
from launch.command import Arguments, Command, Flag
from transformer.command_invocation import find_checkout
from transformer.config import UserError

# The nodes share this machine's disk. A checkout's environment is in it; an installed library's is this one.
PYTHON = sys.executable if find_checkout() is None else ".venv/bin/python"
COMMAND = Command(
    name="clusters.slurm",
    description=(
        "Train on the GPUs of a Slurm cluster. The flags of the train command follow after --. A batch script runs it "
        "as one task per GPU or per node. The job is requeued shortly before its time limit, when it is preempted and "
        "when a node fails, and resumes from its last checkpoint."
    ),
    example="--topology=gpu:16 --time=24:00:00 -- --config=experiments/demo.py --workdir=runs/demo",
    flags=(
        Flag("topology", "the total number of GPUs, such as gpu:16 (default: the config's topology)"),
        Flag("gpus_per_node", "the number of GPUs per node", value_type=int, default=8),
        Flag(
            "process_per",
            "start one process per GPU, or one per node with all of its GPUs",
            choices=("gpu", "node"),
            default="gpu",
        ),
        Flag("time", "the time limit, after which the job is requeued: MINUTES, HH:MM:SS or DAYS-HH:MM:SS"),
        Flag(
            "grace_seconds",
            "the minimum number of seconds to stop and save before the time limit",
            value_type=int,
            default=240,
        ),
        NAME,
        Flag("options", "more options of sbatch in one string, such as --options='--partition=NAME'"),
        Flag("checkout_dir", "the folder of the checkout (default: where sbatch is called)"),
        Flag("python", "the Python interpreter, relative to the checkout", default=PYTHON),
        DRY_RUN,
    ),
)
TIME = r"\d+|(\d+:)?\d+:\d\d|\d+-\d+(:\d\d){0,2}"
# Seconds before the end of the job's time that it goes back into the queue, whether or not the run has stopped: Slurm
# kills a job at that end, and queues it no more.
REQUEUE = 60
# A node's own disk: no other node sees it, and the next run of the job may be on other nodes.
LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")


class NodeAllocation(NamedTuple):
    """The numbers of nodes and of GPUs on each node."""

    num_nodes: int
    gpus_per_node: int


def main(arguments: Arguments, training: TrainCommand) -> None:
    """Submit the batch script with sbatch, or print the call."""
    words = ("sbatch", *parse_extra_options(arguments.options))
    text = build_batch_script(arguments, training)
    if arguments.dry_run:
        print(format_shell_command(words, stdin=text))
        return
    require_tool("sbatch", training.environment)
    if run_tool(words, training.environment, stdin=text):
        raise SystemExit(1)


def build_batch_script(arguments: Arguments, training: TrainCommand) -> str:
    """Return the batch script; every word from outside this module is quoted or needs no quotes.

    Args:
        arguments: The launcher's flags.
        training: The train command.

    Returns:
        The script.

    Raises:
        UserError: If Slurm would not accept a flag, or the workdir is on a node's own disk.
    """
    share = parse_gpu_topology(arguments.topology, training.topology, arguments.gpus_per_node)
    if arguments.grace_seconds < 1:
        raise UserError(f"--grace_seconds={arguments.grace_seconds} must be at least 1 second")
    if training.workdir.startswith(tuple(f"{folder}/" for folder in LOCAL)):
        raise UserError(f"--workdir={training.workdir} is on a node's own disk: pass a directory that all nodes share")
    # Slurm may send it up to a minute earlier, never later: the run has the whole of what is left.
    warning = arguments.grace_seconds + REQUEUE
    if arguments.time is not None and 0 < _seconds(_time(arguments.time)) <= 2 * warning:
        raise UserError(
            f"--time={arguments.time} is too short: the job is stopped {warning} seconds before its end, and "
            "would be requeued again and again without training; increase it, or reduce --grace_seconds"
        )
    name = make_run_name(arguments.name, training.workdir)
    tasks = share.gpus_per_node if arguments.process_per == "gpu" else 1
    settings = [
        f"--job-name={name}",
        f"--nodes={share.num_nodes}",
        f"--ntasks-per-node={tasks}",
        f"--gpus-per-node={share.gpus_per_node}",
        *((f"--time={_time(arguments.time)}",) if arguments.time is not None else ()),
        f"--output={name}-%j.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{warning}",
    ]
    enter = (
        (f"cd -- {shlex.quote(check_flag_value('checkout_dir', arguments.checkout_dir))} || exit",)
        if arguments.checkout_dir
        else ()
    )
    # jax would give each process of a Slurm job one GPU, whatever their number.
    devices = ",".join(map(str, range(share.gpus_per_node)))
    command = shlex.join(
        ("srun", "--kill-on-bad-exit=1", *build_train_argv(check_flag_value("python", arguments.python), training))
    )
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {setting}" for setting in settings),
        *enter,
        *((f"export JAX_LOCAL_DEVICE_IDS={devices}",) if arguments.process_per == "node" else ()),
        "# srun does not take this from its job by itself.",
        'if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
        "# Before the end: tell the processes to stop, and queue the job again once they have saved. Whatever has not",
        "# ended then gets SIGTERM from Slurm, which changes nothing more, and is killed KillWait seconds (30) later.",
        "again() {",
        f"  local until=$((SECONDS + {arguments.grace_seconds}))",
        '  scancel --signal=TERM "$SLURM_JOB_ID"',
        '  while kill -0 "$processes" 2>/dev/null && ((SECONDS < until)); do sleep 1; done',
        '  scontrol requeue "$SLURM_JOB_ID"',
        "  exit",
        "}",
        f"{command} &",
        "processes=$!",
        "trap again USR1",
        'wait "$processes"',
    ]
    return "\n".join(lines) + "\n"


def parse_gpu_topology(flag: str | None, config_topology: str, gpus_per_node: int) -> NodeAllocation:
    """Parse a topology `gpu:N` into nodes and GPUs on each.

    Args:
        flag: The value of --topology.
        config_topology: The topology of the config, used if `flag` is None.
        gpus_per_node: The number of GPUs of a node.

    Returns:
        The allocation.

    Raises:
        UserError: If there is no topology, it is not of GPUs, or it does not fill whole nodes.
    """
    text, origin = (flag, "--topology") if flag else (config_topology, "config.topology")
    match = re.fullmatch(r"gpu:([1-9]\d{0,5})", text or "", flags=re.ASCII)
    if not match:
        said = f"{origin}={text} is not a number of GPUs" if text else "no topology"
        raise UserError(f"{said}: pass the total number of GPUs, such as --topology=gpu:16")
    if gpus_per_node < 1:
        raise UserError(f"--gpus_per_node={gpus_per_node} must be at least 1")
    gpus = int(match[1])
    nodes = max(1, gpus // gpus_per_node)
    if gpus > gpus_per_node and gpus % gpus_per_node:
        raise UserError(
            f"{origin}={text} does not fill whole nodes of --gpus_per_node={gpus_per_node}: "
            f"use gpu:{nodes * gpus_per_node} or gpu:{(nodes + 1) * gpus_per_node}"
        )
    return NodeAllocation(nodes, gpus // nodes)


def _seconds(time: str) -> int:
    """Return the seconds of MINUTES, MINUTES:SECONDS, HH:MM:SS or DAYS-HH:MM:SS, as Slurm reads them."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _time(text: str) -> str:
    if not re.fullmatch(TIME, text, flags=re.ASCII):
        raise UserError(
            f"--time={text} is not a time: write MINUTES, HH:MM:SS or DAYS-HH:MM:SS, such as --time=24:00:00"
        )
    return text


if __name__ == "__main__":
    sys.exit(run_launcher(COMMAND, main))
