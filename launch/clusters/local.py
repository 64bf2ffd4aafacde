"""Train with several processes on this machine: a rehearsal of a pod on CPU devices, or one process for each GPU."""

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, Any, NamedTuple

from launch import train
from launch.cli import run
from launch.command import Arguments, Command, flag
from launch.flag_parsing import parse_arguments
from launch.platform import NVIDIA_GPUS, has_device, without_chosen_platform
from transformer.config import UserError
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE
from transformer.system.command_invocation import subprocess_command


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalArguments(Arguments):
    """The arguments of `clusters.local`, without those of the train command after --."""

    num_processes: int = flag("the number of processes", 2)
    devices_per_process: int | None = flag("CPU devices of each process (default: 1)")
    use_gpus: bool = flag("give each process one GPU instead of CPU devices", False)
    port: int | None = flag("the coordinator's port on 127.0.0.1 (default: any free one)")
    dry_run: bool = flag("print what would be run, without running it", False)


COMMAND = Command(
    name="clusters.local",
    description=(
        "Train with several processes on this machine, each with its own CPU devices or, with --use_gpus, one of the "
        "machine's GPUs. The flags of the train command follow after --. Output lines start with the process id. If "
        "one process fails, all are ended; Ctrl-C and SIGTERM reach all."
    ),
    example="--num_processes=2 --devices_per_process=4 -- --config=experiments/demo.py --workdir=runs/demo",
    arguments=LocalArguments,
)
# The launcher sets these for each process; the train command's flags after -- must not.
LAUNCHER_FLAGS = ("coordinator_address", "num_processes", "process_id", "grace_seconds")
COUNT_FLAG = "--xla_force_host_platform_device_count"
# Seconds from SIGTERM to SIGKILL for processes whose peer is lost: they come to no end of their step.
GRACE_SECONDS = 10.0
# So many times Ctrl-C kills what hangs: by the second the processes have ended whatever is no save.
SIGINTS_TO_KILL = 3
POLL_SECONDS = 0.05


class TrainCommand(NamedTuple):
    """A checked call of the train command.

    Attributes:
        flags: Its flags.
        config: Its config, with the flags that set keys of it.
        environment: The environment in which the launcher was started, without a platform that it chose itself.
    """

    flags: tuple[str, ...]
    config: Mapping[str, Any]
    environment: Mapping[str, str]


class ProcessSpec(NamedTuple):
    """A process to start.

    Attributes:
        argv: Its program and arguments.
        extra_environment: Its environment variables, in addition to the launcher's.
    """

    argv: tuple[str, ...]
    extra_environment: Mapping[str, str]


def main(arguments: LocalArguments, training: TrainCommand) -> None:
    """Start the processes and wait for them, or print the calls."""
    processes = plan_processes(arguments, training)
    if arguments.dry_run:
        print(
            "\n".join(f"{format_shell_command(process.argv, process.extra_environment)} &" for process in processes)
            + "\nwait"
        )
        return
    if arguments.use_gpus and not has_device(NVIDIA_GPUS):
        raise UserError("--use_gpus needs an NVIDIA GPU, and this machine shows none: omit it to train on CPU devices")
    code = run_processes(processes, training.environment)
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code:
        raise SystemExit(code)


def plan_processes(arguments: LocalArguments, training: TrainCommand) -> list[ProcessSpec]:
    """Plan the processes.

    Args:
        arguments: The launcher's flags.
        training: The train command.

    Returns:
        The processes, in the order of their process id.

    Raises:
        UserError: If a number is invalid, --devices_per_process is given with --use_gpus, or there are too few GPUs.
    """
    count = arguments.num_processes
    devices = 1 if arguments.devices_per_process is None else arguments.devices_per_process
    for name, value in (("num_processes", count), ("devices_per_process", devices)):
        if value < 1:
            raise UserError(f"--{name}={value} must be at least 1")
    if arguments.use_gpus and arguments.devices_per_process is not None:
        raise UserError(
            f"--devices_per_process={devices} is for CPU devices, and --use_gpus for GPUs: omit one of them"
        )
    if arguments.port is not None and not 1 <= arguments.port <= 65535:
        raise UserError(f"--port={arguments.port} is not a port: it must be from 1 to 65535")
    cards = (training.environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))).split(",")
    if arguments.use_gpus and count > len(cards):
        raise UserError(f"--num_processes={count} is more than the {len(cards)} GPUs of CUDA_VISIBLE_DEVICES")
    check_config_fits(training, count * devices)
    coordinator = f"--coordinator_address=127.0.0.1:{arguments.port or free_port()}"
    flags = [part for part in training.environment.get("XLA_FLAGS", "").split() if not part.startswith(COUNT_FLAG)]
    # NCCL would listen on another interface of the machine, and jax would train on the CPU if it finds no GPU.
    defaults = {"JAX_PLATFORMS": "cuda", "NCCL_SOCKET_IFNAME": "lo"}
    gpu = {name: value for name, value in defaults.items() if not training.environment.get(name)}
    fake = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join([*flags, f"{COUNT_FLAG}={devices}"])}
    return [
        ProcessSpec(
            (
                *subprocess_command("train"),
                *training.flags,
                coordinator,
                f"--num_processes={count}",
                f"--process_id={index}",
            ),
            {**gpu, "CUDA_VISIBLE_DEVICES": cards[index]} if arguments.use_gpus else fake,
        )
        for index in range(count)
    ]


def run_launcher(
    command: Command[LocalArguments],
    main: Callable[[LocalArguments, TrainCommand], None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the launcher's flags before `--` and the train command's after it, call `main`, and return the exit code.

    Nothing is started before both are valid: the train command's own parser reads its config file and overrides.

    Args:
        command: The declaration of the launcher.
        main: What the launcher does, given its arguments and the train command.
        argv: The words after the launcher, by default the process's own.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # The processes choose their own platform.
    environment = without_chosen_platform()
    launcher_words, train_words = _split_at_double_dash(words)
    misplaced = [word for word in launcher_words if re.match(r"--?(config|workdir)\b", word)]
    if misplaced and not {"--help", "-h"} & set(launcher_words):
        line = f"error: {misplaced[0]} is a flag of the train command: write it after --, as in {command.example_call}"
        print(line, file=sys.stderr)
        return 2
    return run(
        command,
        lambda arguments: main(arguments, parse_train_command(command, train_words, environment)),
        launcher_words,
    )


def parse_train_command(
    command: Command[LocalArguments], words: Sequence[str] | None, environment: Mapping[str, str]
) -> TrainCommand:
    """Parse and check the flags of the train command.

    Args:
        command: The declaration of the launcher, for messages.
        words: The words after `--`, None without it.
        environment: The environment in which the launcher was started.

    Returns:
        The train command.

    Raises:
        UserError: If the flags are missing, invalid, or contain unprintable characters, or set what the launcher sets.
    """
    if not words:
        raise UserError(f"{command.name} needs the train command's flags after --, as in {command.example_call}")
    for word in words:
        if not word.isprintable():
            raise UserError(f"{word!r} has an unprintable character: remove it")
        if re.fullmatch(rf"--({'|'.join(LAUNCHER_FLAGS)})(=.*)?", word):
            raise UserError(f"{word} after -- is set by the launcher for each process: omit it")
    arguments = parse_arguments(train.COMMAND, words)
    if arguments.show_config:
        raise UserError("--show_config after -- trains nothing: omit it, or run the train command itself")
    return TrainCommand(tuple(words), arguments.config, environment)


def check_config_fits(training: TrainCommand, num_devices: int) -> None:
    """Check the whole config, and that its mesh and its batch fit the devices, before they are requested.

    No data are read, and no device of this machine is used.

    Args:
        training: The train command.
        num_devices: The number of devices of the run.

    Raises:
        UserError: If a value of the config is invalid, or the devices do not fit the mesh, or the mesh the batch.
    """
    from transformer.logical_axes import RULES, count_shards
    from transformer.tasks.registry import build_synthetic_task
    from transformer.training.config import resolve_config
    from transformer.training.partitioning import mesh_sizes

    experiment = resolve_config(training.config)
    sizes = mesh_sizes(experiment.sharding, num_devices)
    parts = count_shards("batch", RULES[experiment.sharding.rules], sizes)
    build_synthetic_task(experiment.task, parts * experiment.run.num_microbatches)


def format_shell_command(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a call with its environment variables as a line for a shell."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*settings, shlex.join(words)])


def _split_at_double_dash(words: list[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in words:
        return words, None
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_processes(processes: Sequence[ProcessSpec], environment: Mapping[str, str]) -> int:
    """Run processes until all have ended, printing their lines after their index.

    A failure ends the other processes. A signal to this process is passed on to all, which are then awaited while they
    stop and save. The third SIGINT kills them.

    Args:
        processes: The processes.
        environment: Their environment, to which each one's own variables are added.

    Returns:
        The exit code of the first process that failed; 128 + its number after a signal; EXIT_CODE_RESTARTABLE if all
        processes ended with it.
    """
    started: list[subprocess.Popen[str]] = []
    threads: list[threading.Thread] = []
    with _record_signals() as received:
        try:
            for index, process in enumerate(processes):
                started.append(_start_process(process, environment))
                threads.append(threading.Thread(target=_echo_lines, args=(index, started[-1].stdout), daemon=True))
                threads[-1].start()
            code = _wait_for_processes(started, received)
        finally:
            _send_signal(started, signal.SIGKILL)
        for thread in threads:
            thread.join(timeout=GRACE_SECONDS)
    return code


def _start_process(process: ProcessSpec, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        process.argv,
        env={**environment, **process.extra_environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A session of its own: a Ctrl-C of the terminal reaches it once, through this process.
        start_new_session=True,
    )


def _wait_for_processes(started: Sequence[subprocess.Popen[str]], received: list[int]) -> int:
    """Wait until all have ended: pass signals on, end the rest after a failure, kill what outlives the grace period."""
    code, passed, deadline = 0, 0, float("inf")
    while any(child.poll() is None for child in started):
        if len(received) > passed:
            code = code or 128 + received[passed]
            passed += 1
            kills = received[:passed].count(signal.SIGINT) >= SIGINTS_TO_KILL
            _send_signal(started, signal.SIGKILL if kills else received[passed - 1])
        failed = _find_failed_process(started)
        if failed is not None and not received and deadline == float("inf"):
            index, code = failed
            outcome = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
            restart_advice = "; start the same command again to go on from the newest checkpoint" if code > 128 else ""
            print(f"process {index} {outcome}: ending the others{restart_advice}", file=sys.stderr, flush=True)
            _send_signal(started, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            _send_signal(started, signal.SIGKILL)
            deadline = time.monotonic() + GRACE_SECONDS
        time.sleep(POLL_SECONDS)
    if all(child.returncode == EXIT_CODE_RESTARTABLE for child in started):
        return EXIT_CODE_RESTARTABLE
    failed = _find_failed_process(started)
    return code or (failed[1] if failed else 0)


def _find_failed_process(started: Sequence[subprocess.Popen[str]]) -> tuple[int, int] | None:
    """Return the index of a process that failed, and the exit code that a shell would give it."""
    for index, child in enumerate(started):
        if child.poll():
            return index, child.returncode if child.returncode > 0 else 128 - child.returncode
    return None


def _send_signal(started: Sequence[subprocess.Popen[str]], number: int) -> None:
    for child in started:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)


def _echo_lines(index: int, lines: IO[str] | None) -> None:
    for line in lines or ():
        if line.startswith("[Gloo] Rank "):  # jax's CPU collectives report each peer, which reads like an error
            continue
        # One write a line, so that the lines of two processes do not run into each other.
        sys.stdout.write(f"[{index}] {line.rstrip()}\n")
        sys.stdout.flush()


@contextlib.contextmanager
def _record_signals() -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM while the context lasts, instead of handling them."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(run_launcher(COMMAND, main))
