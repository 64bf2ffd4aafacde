"""Train on a TPU slice of Google Cloud: a queued resource is asked for, waited for, used and given back."""

import json
import shlex
import subprocess
import sys
import time
from typing import NamedTuple

from launch.clusters.launcher_common import (
    DRY_RUN,
    NAME,
    TrainCommand,
    check_max_restarts,
    check_word,
    parse_extra_options,
    require_shared_storage,
    require_tool,
    run_launcher,
    run_name,
    run_tool,
    shell_line,
    train_words,
)
from launch.clusters.tpu_slices import TpuSlice, default_shape, parse_slice
from launch.command import Arguments, Command, Flag
from transformer.config import UserError
from transformer.installation import command_words
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE

COMMAND = Command(
    name="clusters.tpu_vm",
    description=(
        "Train on the hosts of a TPU slice through gcloud's queued resources: ask for the slice and wait for it, run "
        "the train command, whose flags stand behind --, on every host, and give the slice back. A slice that was "
        "preempted is asked for again and the run goes on; the same command takes up a slice that still exists."
    ),
    example="--zone=us-east5-a --topology=v5p:2x2x2 -- --config=experiments/demo.py --workdir=gs://bucket/demo",
    flags=(
        Flag("zone", "the zone of the slice", required=True),
        Flag("project", "the project that pays (default: gcloud's own)"),
        Flag("topology", "the slice, as v5e:4x4 or v5p:4x8x8 (default: the config's pod)"),
        NAME,
        Flag("spot", "take spare capacity, which may be preempted", kind=bool, default=False),
        Flag("options", "more options of gcloud compute tpus queued-resources create, in one string"),
        Flag("setup_command", "a shell command that every host runs first, such as one that fetches the checkout"),
        Flag("checkout_dir", "the checkout on the hosts, from the home directory", default="headwise"),
        Flag("python", "the interpreter on the hosts, from the checkout", default=".venv/bin/python"),
        Flag("max_restarts", "how often a slice that was lost is asked for again", kind=int, default=10),
        Flag("keep_slice", "leave the slice booked when the run has ended", kind=bool, default=False),
        DRY_RUN,
    ),
)
POLL_SECONDS = 30.0
WAITING_STATES = ("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES", "STATE_UNSPECIFIED")
LEAVING_STATES = ("DELETING", "SUSPENDING")
GONE_STATES = ("FAILED", "SUSPENDED")
# ssh itself fails with this, whatever the command on the host did.
CONNECTION_LOST = 255
# The train command's exit code for user errors: the slice is kept, since waiting for another may take hours.
MISTAKE = 2
# Why a slice that was not lost is kept, by the exit code.
REASONS_TO_KEEP = {
    CONNECTION_LOST: "the connection was lost",
    MISTAKE: "the run was refused on its hosts",
    EXIT_CODE_RESTARTABLE: "the run was told to stop and has saved",
}
STATE_CHECKS = 4


class GcloudCommands(NamedTuple):
    """The words of every call of gcloud that a run may need."""

    name: str
    describe: tuple[str, ...]
    create: tuple[str, ...]
    setup: tuple[str, ...] | None
    train: tuple[str, ...]
    delete: tuple[str, ...]


def main(arguments: Arguments, training: TrainCommand) -> None:
    """Print the calls, or make them."""
    require_shared_storage(training)
    check_max_restarts(arguments.max_restarts)
    tpu = parse_slice(arguments.topology, training.pod)
    if tpu.shape != default_shape(tpu.name, tpu.chips):
        raise UserError(
            f"{tpu.name}:{tpu.topology} is no TPU VM: {tpu.accelerator_type} stands for "
            f"{'x'.join(map(str, default_shape(tpu.name, tpu.chips)))}; take that, or "
            f"{shlex.join(command_words('clusters.gke'))}"
        )
    calls = gcloud_commands(arguments, training, tpu, run_name(arguments.name, training.workdir))
    if arguments.dry_run:
        print(dry_run_script(calls, arguments.keep_slice))
        return
    require_tool("gcloud", training.environment)
    _run(calls, arguments, training, tpu)


def gcloud_commands(arguments: Arguments, training: TrainCommand, tpu: TpuSlice, name: str) -> GcloudCommands:
    """Every call, quoted for the hosts' shell alone: on this machine calls are lists of words."""
    place: tuple[str, ...] = (f"--zone={check_word('zone', arguments.zone)}",)
    place += (f"--project={check_word('project', arguments.project)}",) if arguments.project else ()
    queued = ("gcloud", "compute", "tpus", "queued-resources")
    create = (
        *(*queued, "create", name, *place, f"--node-id={name}"),
        *(f"--accelerator-type={tpu.accelerator_type}", f"--runtime-version={tpu.generation.runtime}"),
        *(("--spot",) if arguments.spot else ()),
        *parse_extra_options(arguments.options),
    )
    enter = f"cd -- {shlex.quote(check_word('checkout_dir', arguments.checkout_dir))}"
    command = shlex.join(train_words(check_word("python", arguments.python), training))
    ssh = ("gcloud", "compute", "tpus", "tpu-vm", "ssh", name, *place, "--worker=all")
    return GcloudCommands(
        name=name,
        describe=(*queued, "describe", name, *place, "--format=json"),
        create=create,
        setup=(*ssh, f"--command={arguments.setup_command}") if arguments.setup_command else None,
        train=(*ssh, f"--command={enter} && exec {command}"),
        delete=(*queued, "delete", name, *place, "--force", "--quiet"),
    )


def dry_run_script(calls: GcloudCommands, keep: bool) -> str:
    """The calls of a run as a script, with a comment where one depends on the slice's state."""
    lines = [
        *("# The slice's state:", shell_line(calls.describe)),
        *("# If the slice does not exist, or was lost (then deleted first, as below):", shell_line(calls.create)),
        f"# The state is asked for every {POLL_SECONDS:.0f} s until it is ACTIVE; then on every host:",
        *((shell_line(calls.setup),) if calls.setup else ()),
        shell_line(calls.train),
        *(() if keep else ("# When the run has ended:", shell_line(calls.delete))),
    ]
    return "\n".join(lines)


def _run(calls: GcloudCommands, arguments: Arguments, training: TrainCommand, tpu: TpuSlice) -> None:
    booked = f"{calls.name} is still booked: start the same command again to go on, or give it back with: "
    booked += shell_line(calls.delete)
    code, lost = 0, True
    try:
        for _ in range(arguments.max_restarts + 1):
            _obtain(calls, training, tpu)
            code = run_tool(calls.setup, training.environment) if calls.setup else 0
            code = code or run_tool(calls.train, training.environment)
            lost = code != 0 and _lost(calls, training, tpu, code)
            if not lost:
                break
            print(f"{calls.name} was lost", flush=True)
    except KeyboardInterrupt:
        print(f"\n{booked}", file=sys.stderr)
        raise
    if code in REASONS_TO_KEEP and not lost:
        print(f"{REASONS_TO_KEEP[code]}, and {booked}", file=sys.stderr)
    elif arguments.keep_slice:
        print(booked)
    elif run_tool(calls.delete, training.environment):
        print(booked, file=sys.stderr)
        code = code or 1
    if code:
        raise SystemExit(code if code == MISTAKE or (code == EXIT_CODE_RESTARTABLE and not lost) else 1)


def _obtain(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice) -> None:
    """Wait until the slice is ready, asking for it once if it does not exist."""
    asked, said = False, None
    while (state := _state(calls, training, tpu)) != "ACTIVE":
        if state in (None, *GONE_STATES):
            if asked:
                print(f"the slice was refused: see {shell_line(calls.describe)}", file=sys.stderr)
                raise SystemExit(1)
            if (state and run_tool(calls.delete, training.environment)) or run_tool(calls.create, training.environment):
                raise SystemExit(1)
            asked = True
        elif state not in (*WAITING_STATES, *LEAVING_STATES):
            raise UserError(
                f"{calls.name} is {state}, which this launcher does not know: see {shell_line(calls.describe)}"
            )
        elif state != said:
            print(f"{calls.name} is {state}; asking again every {POLL_SECONDS:.0f} s", flush=True)
            said = state
        time.sleep(POLL_SECONDS)


def _lost(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice, code: int) -> bool:
    """Whether the slice was lost, not the program or the connection; its state may lag behind both.

    A preemption tells the processes to stop before it takes the slice: they may have saved and left in between.
    """
    for look in range(STATE_CHECKS if code in (CONNECTION_LOST, EXIT_CODE_RESTARTABLE) else 1):
        if look:
            time.sleep(POLL_SECONDS)
        if _state(calls, training, tpu) != "ACTIVE":
            return True
    return False


def _state(calls: GcloudCommands, training: TrainCommand, tpu: TpuSlice) -> str | None:
    """The queued resource's state, None where it does not exist.

    Raises:
        UserError: For a resource of this name that is another slice, and for errors of gcloud itself.
    """
    done = subprocess.run(calls.describe, env=training.environment, capture_output=True, text=True, check=False)
    if done.returncode:
        if "NOT_FOUND" in done.stderr:
            return None
        raise UserError(f"gcloud cannot tell of the slice: {done.stderr.strip() or f'exit code {done.returncode}'}")
    described = json.loads(done.stdout)
    for node in described.get("tpu", {}).get("nodeSpec", []):
        kind = node.get("node", {}).get("acceleratorType", tpu.accelerator_type)
        if kind != tpu.accelerator_type:
            raise UserError(
                f"the queued resource of this name has a {kind}, and this run wants a {tpu.accelerator_type}: "
                f"say another --name, or give it back with: {shell_line(calls.delete)}"
            )
    return described.get("state", {}).get("state", "STATE_UNSPECIFIED")


if __name__ == "__main__":
    sys.exit(run_launcher(COMMAND, main))
