"""Train on the GPUs of a Slurm cluster: one batch job, which is requeued when its time limit nears."""

import re
import shlex
import sys

from launch.clusters.gpu_nodes import GPUS_PER_NODE, parse_gpu_topology
from launch.clusters.launcher_common import (
    DRY_RUN,
    NAME,
    TrainCommand,
    build_train_argv,
    check_config_fits,
    check_flag_value,
    format_shell_command,
    make_run_name,
    parse_extra_options,
    require_tool,
    run_launcher,
    run_tool,
)
from launch.command import Arguments, Command, Flag
from transformer.config import UserError
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE
from transformer.system.command_invocation import find_checkout

# The nodes share this machine's disk. A checkout's environment is in it; an installed library's is this one.
PYTHON = sys.executable if find_checkout() is None else ".venv/bin/python"
COMMAND = Command(
    name="clusters.slurm",
    description=(
        "Train on the GPUs of a Slurm cluster. The flags of the train command follow after --. A batch script runs it "
        "as one task per GPU or per node. The job is requeued shortly before its time limit, when it is preempted and "
        "when a node fails, and resumes from its last checkpoint. A job that needs longer to save is warned earlier "
        "the next time. One that is requeued three times without a new checkpoint fails."
    ),
    example="--topology=gpu:16 --time=24:00:00 -- --config=experiments/demo.py --workdir=runs/demo",
    flags=(
        Flag("topology", "the total number of GPUs, such as gpu:16 (default: the config's topology)"),
        GPUS_PER_NODE,
        Flag(
            "process_per",
            "start one process per GPU, or one per node with all of its GPUs",
            choices=("gpu", "node"),
            default="gpu",
        ),
        Flag("cpus_per_task", "the number of CPUs per process (default: the cluster's, often 1)", value_type=int),
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
# Slurm may send a signal up to a minute earlier than asked, never later.
EARLY = 60  # seconds
# Seconds before the end of the job's time that it goes back into the queue, whether or not the run has stopped: Slurm
# kills a job at that end, and queues it no more.
RESERVE = 30
# So many times in a row a job puts itself back into the queue without a new checkpoint.
MAX_REQUEUES = 3
# The exit code of a process whose peer was lost: jax aborts it.
PEER_LOST = 134
# A node's own disk: no other node sees it, and the next run of the job may be on other nodes.
LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")


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
    if arguments.cpus_per_task is not None and arguments.cpus_per_task < 1:
        raise UserError(f"--cpus_per_task={arguments.cpus_per_task} must be at least 1")
    warning = arguments.grace_seconds + EARLY
    if arguments.time is not None and 0 < _parse_seconds(_check_time(arguments.time)) <= 2 * warning:
        raise UserError(
            f"--time={arguments.time} is too short: the job is stopped {warning} seconds before its end, and "
            "would be requeued again and again without training; increase it, or reduce --grace_seconds"
        )
    check_config_fits(training, share.num_gpus)
    name = make_run_name(arguments.name, training.workdir)
    tasks = share.gpus_per_node if arguments.process_per == "gpu" else 1
    settings = [
        f"--job-name={name}",
        f"--nodes={share.num_nodes}",
        f"--ntasks-per-node={tasks}",
        f"--gpus-per-node={share.gpus_per_node}",
        *((f"--cpus-per-task={arguments.cpus_per_task}",) if arguments.cpus_per_task is not None else ()),
        *((f"--time={_check_time(arguments.time)}",) if arguments.time is not None else ()),
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
    words = build_train_argv(check_flag_value("python", arguments.python), training)
    command = f'{shlex.join(("srun", "--kill-on-bad-exit=1", *words))} "--grace_seconds=$grace"'
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {setting}" for setting in settings),
        *(f"{variable}={value}" for variable, value in _script_variables(arguments, training, name).items()),
        *enter,
        *((f"export JAX_LOCAL_DEVICE_IDS={devices}",) if arguments.process_per == "node" else ()),
        f"{_BEGIN}{command} &",
        _END,
    ]
    return "\n".join(lines)


def _script_variables(arguments: Arguments, training: TrainCommand, name: str) -> dict[str, str]:
    """Return the variables of the batch script, with their quoted values."""
    local = not re.match("gs://", training.workdir)
    return {
        "grace": str(arguments.grace_seconds),
        "early": str(EARLY),
        "reserve": str(RESERVE),
        "most": str(MAX_REQUEUES),
        "restartable": str(EXIT_CODE_RESTARTABLE),
        "peer_lost": str(PEER_LOST),
        # Those of a run in a bucket are not looked up: its requeues do not count.
        "checkpoints": shlex.quote(f"{training.workdir}/checkpoints") if local else "",
        # Beside the log, wherever the checkout is.
        "state": f'"$PWD/{name}${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}.requeue"',
    }


# Before the processes are started.
_BEGIN = r"""# srun does not take this from its job by itself.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi
# One job of an array: the SLURM_JOB_ID of its last one names the whole array.
job="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"

# The newest complete checkpoint; "none" if there is none.
newest() { ls -- "$checkpoints" 2>/dev/null | grep -xE '[0-9]+' | sort -n | tail -n 1 | grep . || echo none; }

# The end of the job's time in seconds since the epoch; nothing if it has none.
end_of_job() { SLURM_TIME_FORMAT=%s squeue --noheader --jobs="$job" --format=%e 2>/dev/null | grep -xE '[0-9]+'; }

# What earlier starts have learned: the grace that they needed, and how often the job went back into the queue with the
# same newest checkpoint.
first=$(newest) end=$(end_of_job) longest=$grace requeues=0
if [ -n "$end" ]; then longest=$(((end - $(date +%s)) / 2 - early)); fi  # half of its time the job trains
if [ -r "$state" ] && read -r learned count checkpoint <"$state" && [[ "$learned:$count" =~ ^[1-9][0-9]*:[0-9]+$ ]]
then
  if ((learned > longest)); then learned=$longest; fi
  if ((learned > grace)); then grace=$learned; fi
  if [ "${SLURM_RESTART_COUNT:-0}" != 0 ] && [ "$checkpoint" = "$first" ]; then requeues=$count; fi
fi

# Queue the job again, unless it did so too often without a new checkpoint.
requeue() {
  if [ -n "$checkpoints" ] && [ "$(newest)" = "$first" ] && ((requeues += 1, requeues > most)); then
    echo "error: this job went back into the queue $most times without a new checkpoint, and is not queued again:" \
      "pass a longer --time, a longer --grace_seconds (now $grace) or a smaller --config.checkpoint_every" >&2
    exit 1
  fi
  echo "$grace $requeues $first" >"$state"
  scontrol requeue "$job" && exit
  echo "error: Slurm does not queue job $job again: submit it again to go on" >&2
  exit 1
}

# Before the end: tell the processes to stop, and queue the job again once they have saved. What has not ended shortly
# before the end gets SIGTERM from Slurm, which changes nothing more, and is killed KillWait seconds (30) later.
again() {
  trap '' USR1
  local until=$(($(date +%s) + grace))
  end=$(end_of_job)
  if [ -n "$end" ] && ((end - reserve > until)); then until=$((end - reserve)); fi
  scancel --signal=TERM "$job"
  while kill -0 "$processes" 2>/dev/null && (($(date +%s) < until)); do sleep 1; done
  if kill -0 "$processes" 2>/dev/null && ((grace < longest)); then
    grace=$((2 * grace < longest ? 2 * grace : longest))
    echo "stopping and saving took longer than the warning: the next start stops $((grace + early)) seconds before" \
      "its end; pass --grace_seconds=$grace to a new job" >&2
    requeues=$((requeues - 1))  # a longer grace is worth another start
  fi
  requeue
}
trap again USR1
"""
# Behind them.
_END = r"""processes=$!
# Slurm warns as the job was submitted, and not as it has learned since. This ends with the script, however that ends.
if [ -n "$end" ]; then
  (
    while kill -0 $$ && (($(date +%s) < end - early - grace)); do sleep 5; done
    kill -USR1 $$
  ) >/dev/null 2>&1 &
fi
while wait "$processes"; code=$?; ((code > 128)) && kill -0 "$processes" 2>/dev/null; do :; done
shown=$(scontrol show job "$job" 2>/dev/null)
if ((code == restartable)) && [[ "$shown" == *PreemptTime=[0-9]* ]]; then
  # It was preempted and has saved within its GraceTime: Slurm would not queue it again, but count it as failed.
  scontrol requeue "$job" && exit
elif ((code == restartable)) && [[ "$shown" == *JobState=RUNNING* ]]; then
  requeue  # somebody told it to stop, and did not cancel the job
elif ((code == peer_lost)); then
  requeue  # the processes miss a lost node earlier than Slurm does (SlurmdTimeout, 300 seconds)
fi
exit "$code"
"""


def _parse_seconds(time: str) -> int:
    """Return the seconds of MINUTES, MINUTES:SECONDS, HH:MM:SS or DAYS-HH:MM:SS, as Slurm reads them."""
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _check_time(text: str) -> str:
    if not re.fullmatch(TIME, text, flags=re.ASCII):
        raise UserError(
            f"--time={text} is not a time: write MINUTES, HH:MM:SS or DAYS-HH:MM:SS, such as --time=24:00:00"
        )
    return text


if __name__ == "__main__":
    sys.exit(run_launcher(COMMAND, main))
