"""Train on a TPU slice of Google Cloud through a queued resource: request it, wait, train, and release it."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from launch.clusters.launcher_common import (
    DRY_RUN,
    ENV,
    MISTAKE,
    NAME,
    TrainCommand,
    build_train_argv,
    check_config_fits,
    check_flag_value,
    check_max_restarts,
    format_shell_command,
    make_run_name,
    parse_env,
    parse_extra_options,
    require_shared_storage,
    require_tool,
    run_launcher,
    run_tool,
)
from launch.clusters.tpu_slices import TpuSlice, default_shape, parse_slice
from launch.command import Arguments, Command, Flag
from transformer.config import UserError
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE
from transformer.system.command_invocation import shell_command

COMMAND = Command(
    name="clusters.tpu_vm",
    description=(
        "Train on a TPU slice of Google Cloud: request it as a queued resource, wait for it, start the train command "
        "on every host, follow its log, and release the slice. The flags of the train command follow after --. The run "
        "continues on the hosts if this command ends or its connection is lost: the same command follows it again. A "
        "preempted slice is requested again, and the run resumes."
    ),
    example="--zone=us-east5-a --topology=v5p:2x2x2 -- --config=experiments/demo.py --workdir=gs://bucket/demo",
    flags=(
        Flag("zone", "the zone of the slice", required=True),
        Flag("project", "the Google Cloud project (default: gcloud's own)"),
        Flag("topology", "the slice, such as v5e:4x4 or v5p:4x8x8 (default: the config's topology)"),
        NAME,
        Flag("spot", "use spot capacity, which may be preempted", value_type=bool, default=False),
        Flag("options", "more options of gcloud compute tpus queued-resources create, in one string"),
        Flag("ssh_options", "more options of gcloud compute tpus tpu-vm ssh, such as --tunnel-through-iap"),
        Flag("setup_command", "a shell command to run first on every host, such as one that fetches the checkout"),
        Flag("checkout_dir", "the checkout on the hosts, relative to the home directory", default="headwise"),
        Flag("python", "the Python interpreter on the hosts, relative to the checkout", default=".venv/bin/python"),
        Flag(
            "max_restarts",
            "the maximum number of times that a lost slice is requested again",
            value_type=int,
            default=10,
        ),
        Flag("keep_slice", "keep the slice when the run has ended", value_type=bool, default=False),
        ENV,
        DRY_RUN,
    ),
)
POLL_SECONDS = 30.0
WAITING_STATES = ("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES", "STATE_UNSPECIFIED")
LEAVING_STATES = ("DELETING", "SUSPENDING")
GONE_STATES = ("FAILED", "SUSPENDED")
# ssh itself fails with this, whatever the command on the host did.
CONNECTION_LOST = 255
# Why a slice that was not lost is kept, by the exit code: waiting for another may take hours.
REASONS_TO_KEEP = {
    CONNECTION_LOST: "the hosts could not be reached",
    MISTAKE: "the run ended with a user error",
    EXIT_CODE_RESTARTABLE: "the run was stopped after saving",
}
STATE_CHECKS = 4


# What a host says of its process; its log and the files that this is read from are in FOLDER of the home directory.
FOLDER = ".headwise"
# "running DIRECTORY" is another run of the same name.
STATUS = r"headwise: (running(?: .+)?|gone|ended \d+)"
_STATUS_SCRIPT = (
    'if [ -e "$f/code" ]; then s="ended $(cat "$f/code")"; '
    'elif kill -0 "$(cat "$f/pid" 2>/dev/null)" 2>/dev/null; then s=running; else s=gone; fi; '
    'w="$(cat "$f/workdir" 2>/dev/null)"; '
    'if [ "$w" != {workdir} ]; then if [ "$s" = running ]; then s="running $w"; else s=gone; fi; fi; '
    'echo "headwise: $s"'
)
# A session of its own, which no end of a connection reaches; SIGTERM for all of it leaves the shell to write the code.
_RUN_SCRIPT = 'trap : TERM; {command}; echo $? >"$0/code.part"; mv "$0/code.part" "$0/code"'
_START_SCRIPT = (
    'mkdir -p "$f" && cd -- {directory} || exit; rm -f "$f/code"; echo {workdir} >"$f/workdir"; '
    'setsid nohup bash -c {run} "$f" >"$f/log" 2>&1 </dev/null & echo $! >"$f/pid"'
)


class GcloudCommands(NamedTuple):
    """The words of every gcloud call that a run may need.

    Attributes:
        name: The name of the slice.
        describe: Prints the state of the slice.
        create: Requests the slice.
        setup: Runs the setup command on every host, None without one.
        start: Starts the train command on every host, detached.
        status: Prints on every host whether it runs, as STATUS.
        log: Prints the log of the first host from the byte that the last word is completed with.
        stop: Tells the run to stop and save.
        forget: Deletes the exit codes and process ids of the run from the hosts.
        delete: Releases the slice.
    """

    name: str
    describe: tuple[str, ...]
    create: tuple[str, ...]
    setup: tuple[str, ...] | None
    start: tuple[str, ...]
    status: tuple[str, ...]
    log: tuple[str, ...]
    stop: tuple[str, ...]
    forget: tuple[str, ...]
    delete: tuple[str, ...]


def main(arguments: Arguments, training: TrainCommand) -> None:
    """Run the gcloud calls, or print them."""
    require_shared_storage(training)
    check_max_restarts(arguments.max_restarts)
    tpu = parse_slice(arguments.topology, training.topology)
    if tpu.generation.runtime_version is None:
        raise UserError(
            f"{tpu.generation_name} is no TPU VM that gcloud's queued resources have: use "
            f"{shlex.join(shell_command('clusters.gke'))}"
        )
    if tpu.shape != default_shape(tpu.generation_name, tpu.num_chips):
        raise UserError(
            f"{tpu.generation_name}:{tpu.topology} is not a TPU VM: {tpu.accelerator_type} is "
            f"{'x'.join(map(str, default_shape(tpu.generation_name, tpu.num_chips)))}; use that, or "
            f"{shlex.join(shell_command('clusters.gke'))}"
        )
    check_config_fits(training, tpu.num_devices)
    calls = build_gcloud_commands(arguments, training, tpu, make_run_name(arguments.name, training.workdir))
    if arguments.dry_run:
        print(format_dry_run_script(calls, arguments.keep_slice))
        return
    require_tool("gcloud", training.environment)
    _run_on_slice(calls, arguments, training, tpu)


def build_gcloud_commands(arguments: Arguments, training: TrainCommand, tpu: TpuSlice, name: str) -> GcloudCommands:
    """Return every gcloud call of a run.

    Only the commands for the hosts are quoted for a shell; on this machine calls are lists of words.

    Args:
        arguments: The launcher's flags.
        training: The train command.
        tpu: The slice.
        name: The name of the run.

    Returns:
        The calls.
    """
    place: tuple[str, ...] = (f"--zone={check_flag_value('zone', arguments.zone)}",)
    place += (f"--project={check_flag_value('project', arguments.project)}",) if arguments.project else ()
    queued = ("gcloud", "compute", "tpus", "queued-resources")
    create = (
        *(*queued, "create", name, *place, f"--node-id={name}"),
        *(f"--accelerator-type={tpu.accelerator_type}", f"--runtime-version={tpu.generation.runtime_version}"),
        *(("--spot",) if arguments.spot else ()),
        *parse_extra_options(arguments.options),
    )
    directory = shlex.quote(check_flag_value("checkout_dir", arguments.checkout_dir))
    variables = [f"{key}={value}" for key, value in parse_env(arguments.env).items()]
    words = build_train_argv(check_flag_value("python", arguments.python), training)
    command = shlex.join([*(("env", *variables) if variables else ()), *words])
    run = shlex.quote(_RUN_SCRIPT.format(command=command))
    options = parse_extra_options(arguments.ssh_options, "ssh_options")
    first_host_ssh = ("gcloud", "compute", "tpus", "tpu-vm", "ssh", name, *place, *options)
    ssh = (*first_host_ssh, "--worker=all")
    command_prefix, workdir = f'--command=f="$HOME/{FOLDER}/{name}"; ', shlex.quote(training.workdir)
    return GcloudCommands(
        name=name,
        describe=(*queued, "describe", name, *place, "--format=json"),
        create=create,
        setup=(*ssh, f"--command={arguments.setup_command}") if arguments.setup_command else None,
        start=(*ssh, f"{command_prefix}{_START_SCRIPT.format(directory=directory, workdir=workdir, run=run)}"),
        status=(*ssh, f"{command_prefix}{_STATUS_SCRIPT.format(workdir=workdir)}"),
        log=(*first_host_ssh, "--worker=0", f'{command_prefix}tail -c +{{byte}} "$f/log" 2>/dev/null'),
        stop=(*first_host_ssh, "--worker=0", f'{command_prefix}kill -TERM -- "-$(cat "$f/pid")"'),
        forget=(*ssh, f'{command_prefix}rm -f "$f/code" "$f/pid"'),
        delete=(*queued, "delete", name, *place, "--force", "--quiet"),
    )


def format_dry_run_script(calls: GcloudCommands, keep: bool) -> str:
    """Return the calls of a run as a script, with comments where one depends on the slice's state.

    Args:
        calls: The gcloud calls.
        keep: Whether the slice is kept when the run has ended.

    Returns:
        The script.
    """
    lines = [
        *("# The slice's state:", format_shell_command(calls.describe)),
        *(
            "# If the slice does not exist, or was lost (then it is deleted first, as below):",
            format_shell_command(calls.create),
        ),
        f"# The state is checked every {POLL_SECONDS:.0f} s until it is ACTIVE. Then the status of the run:",
        format_shell_command(calls.status),
        "# If no host has the run:",
        *((format_shell_command(calls.setup),) if calls.setup else ()),
        format_shell_command(calls.start),
        f"# Every {POLL_SECONDS:.0f} s, the status as above and the log from the next byte on, until no process runs:",
        format_shell_command(_log_command(calls, 1)),
        "# If the slice is kept:",
        format_shell_command(calls.forget),
        *(() if keep else ("# When the run has ended:", format_shell_command(calls.delete))),
    ]
    return "\n".join(lines)


def _run_on_slice(calls: GcloudCommands, arguments: Arguments, training: TrainCommand, tpu: TpuSlice) -> None:
    release = f"release it with: {format_shell_command(calls.delete)}"
    still_exists = f"{calls.name} still exists: run the same command again to resume, or {release}"
    code, lost = 0, True
    try:
        for _ in range(arguments.max_restarts + 1):
            _acquire_slice(calls, training, tpu)
            states = _read_host_states(calls, training, tpu)
            if states is not None and all(state == "gone" for state in states):
                code = run_tool(calls.setup, training.environment) if calls.setup else 0
                code = code or run_tool(calls.start, training.environment)
            else:
                code = 0
            code = code or _follow_log(calls, training, tpu)
            lost = code != 0 and _is_slice_lost(calls, training, tpu, code)
            if not lost:
                break
            print(f"{calls.name} was lost", flush=True)
    except KeyboardInterrupt:
        print(
            f"\nthe run continues on {calls.name}: the same command follows it again; stop it with: "
            f"{format_shell_command(calls.stop)}\n{still_exists}",
            file=sys.stderr,
        )
        raise
    keep_slice = arguments.keep_slice or (code in REASONS_TO_KEEP and not lost)
    if code in REASONS_TO_KEEP and not lost:
        print(f"{REASONS_TO_KEEP[code]}, and {still_exists}", file=sys.stderr)
    elif arguments.keep_slice:
        print(still_exists)
    elif run_tool(calls.delete, training.environment):
        print(still_exists, file=sys.stderr)
        code, keep_slice = code or 1, True
    if keep_slice and not lost:
        run_tool(calls.forget, training.environment)
    if code:
        raise SystemExit(code if code == MISTAKE or (code == EXIT_CODE_RESTARTABLE and not lost) else 1)


def _follow_log(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice) -> int:
    """Print the log of the first host until no process runs, and return their exit code.

    A connection that is lost is tried again for as long as the slice is there: the run does not depend on it.
    """
    byte, is_reported = 1, False
    while True:
        states = _read_host_states(calls, training, tpu)
        log = subprocess.run(_log_command(calls, byte), env=training.environment, stdout=subprocess.PIPE, check=False)
        sys.stdout.write(log.stdout.decode(errors="replace"))
        sys.stdout.flush()
        byte += len(log.stdout)
        if states is None:
            if _read_slice_state(calls, training, tpu) != "ACTIVE":
                return CONNECTION_LOST
            if not is_reported:
                print(f"{calls.name} cannot be reached: the run continues there, and this tries again", file=sys.stderr)
            is_reported = True
        elif "running" not in states:
            return _combine_exit_codes(states)
        else:
            is_reported = False
        time.sleep(POLL_SECONDS)


def _log_command(calls: GcloudCommands, byte: int) -> tuple[str, ...]:
    return (*calls.log[:-1], calls.log[-1].replace("{byte}", str(byte)))


def _read_host_states(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice) -> list[str] | None:
    """Return the state of the process on each host; None if a host did not answer.

    Raises:
        UserError: If the slice trains another run.
    """
    completed = subprocess.run(calls.status, env=training.environment, stdout=subprocess.PIPE, text=True, check=False)
    states = [match[1] for match in re.finditer(STATUS, completed.stdout)]
    for state in states:
        if state.startswith("running "):
            raise UserError(
                f"{calls.name} trains {state.removeprefix('running ')}: pass another --name, or wait until it has ended"
            )
    return states if len(states) == tpu.num_hosts else None


def _combine_exit_codes(states: Sequence[str]) -> int:
    """Return the exit code of processes that have all ended; one that is gone counts as failed."""
    codes = {1 if state == "gone" else int(state.removeprefix("ended ")) for state in states}
    failed = sorted(codes - {0, EXIT_CODE_RESTARTABLE})
    if MISTAKE in failed:
        return MISTAKE
    return failed[0] if failed else max(codes)


def _acquire_slice(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice) -> None:
    """Wait until the slice is ready, requesting it once if it does not exist."""
    is_requested, printed_state = False, None
    while (state := _read_slice_state(calls, training, tpu)) != "ACTIVE":
        if state in (None, *GONE_STATES):
            if is_requested:
                print(f"the slice was refused: see {format_shell_command(calls.describe)}", file=sys.stderr)
                raise SystemExit(1)
            if (state and run_tool(calls.delete, training.environment)) or run_tool(calls.create, training.environment):
                raise SystemExit(1)
            is_requested = True
        elif state not in (*WAITING_STATES, *LEAVING_STATES):
            raise UserError(f"{calls.name} is in the unknown state {state}: see {format_shell_command(calls.describe)}")
        elif state != printed_state:
            print(f"{calls.name} is {state}; checking every {POLL_SECONDS:.0f} s", flush=True)
            printed_state = state
        time.sleep(POLL_SECONDS)


def _is_slice_lost(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice, code: int) -> bool:
    """Return whether the slice was lost, rather than the program or the connection; its state may lag behind both.

    A preemption tells the processes to stop before it takes the slice: they may have saved and exited in between.
    """
    for attempt in range(STATE_CHECKS if code in (CONNECTION_LOST, EXIT_CODE_RESTARTABLE) else 1):
        if attempt:
            time.sleep(POLL_SECONDS)
        if _read_slice_state(calls, training, tpu) != "ACTIVE":
            return True
    return False


def _read_slice_state(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice) -> str | None:
    """Return the state of the queued resource, None if it does not exist.

    Raises:
        UserError: If the resource of this name is another slice, or gcloud fails.
    """
    completed = subprocess.run(calls.describe, env=training.environment, capture_output=True, text=True, check=False)
    if completed.returncode:
        if "NOT_FOUND" in completed.stderr:
            return None
        raise UserError(
            f"gcloud cannot describe the slice: {completed.stderr.strip() or f'exit code {completed.returncode}'}"
        )
    described = json.loads(completed.stdout)
    for node in described.get("tpu", {}).get("nodeSpec", []):
        kind = node.get("node", {}).get("acceleratorType", tpu.accelerator_type)
        if kind != tpu.accelerator_type:
            raise UserError(
                f"the queued resource of this name is a {kind}, and this run needs a {tpu.accelerator_type}: "
                f"pass another --name, or release it with: {format_shell_command(calls.delete)}"
            )
    return described.get("state", {}).get("state", "STATE_UNSPECIFIED")


if __name__ == "__main__":
    sys.exit(run_launcher(COMMAND, main))
