"""Shared parts of the launchers: checking the train command after `--`, naming runs, printing and running commands."""

import hashlib
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from launch import train
from launch.cli import run
from launch.command import Arguments, Command, Flag
from launch.flag_parsing import parse_arguments
from launch.platform import without_chosen_platform
from transformer.config import UserError

DRY_RUN = Flag("dry_run", "print what would be run, without running it", value_type=bool, default=False)
NAME = Flag("name", "the name of the run (default: the last part of the train command's --workdir, and a hash)")
ENV = Flag(
    "env", "environment variables of the processes, as in --env='XLA_FLAGS=--xla_x=1 LIBTPU_INIT_ARGS=--xla_y=2'"
)
# The train command's exit code for user errors.
MISTAKE = 2
# The launcher sets these for each process; the train command's flags after -- must not.
LAUNCHER_FLAGS = ("coordinator_address", "num_processes", "process_id", "grace_seconds")
TOOLS = {
    "gcloud": "install the Google Cloud CLI and log in with: gcloud auth login",
    "kubectl": "install it with: gcloud components install kubectl",
    "sbatch": "run this on a login node of a Slurm cluster",
}


class TrainCommand(NamedTuple):
    """A checked call of the train command.

    Attributes:
        flags: Its flags.
        workdir: Its run directory.
        config_file: Its config file, None if it resumes a run without one.
        config: Its config, with the flags that set keys of it.
        environment: The environment in which the launcher was started, without a platform that it chose itself.
    """

    flags: tuple[str, ...]
    workdir: str
    config_file: str | None
    config: Mapping[str, Any]
    environment: Mapping[str, str]

    @property
    def topology(self) -> str:
        """The topology that its config names; "" if it names none."""
        return self.config.get("topology") or ""


def run_launcher(
    command: Command, main: Callable[[Arguments, TrainCommand], None], argv: Sequence[str] | None = None
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
    # sbatch hands it on to the nodes, which have GPUs where a login node has none.
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


def parse_train_command(command: Command, words: Sequence[str] | None, environment: Mapping[str, str]) -> TrainCommand:
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
    return TrainCommand(tuple(words), arguments.workdir, _flag_value(words, "--config"), arguments.config, environment)


def check_config_fits(training: TrainCommand, num_devices: int, num_slices: int = 1) -> None:
    """Check the whole config, and that its mesh and its batch fit the devices, before they are requested.

    No data are read, and no device of this machine is used.

    Args:
        training: The train command.
        num_devices: The number of devices of the run.
        num_slices: The number of TPU slices that they are on.

    Raises:
        UserError: If a value of the config is invalid, or the devices do not fit the mesh, or the mesh the batch.
    """
    from transformer.logical_axes import RULES, count_shards
    from transformer.tasks.registry import build_synthetic_task
    from transformer.training.config import resolve_config
    from transformer.training.partitioning import mesh_sizes

    experiment = resolve_config(training.config)
    sizes = mesh_sizes(experiment.sharding, num_devices, num_slices)
    parts = count_shards("batch", RULES[experiment.sharding.rules], sizes)
    build_synthetic_task(experiment.task, parts * experiment.run.num_microbatches)


def make_run_name(name: str | None, workdir: str, longest: int = 63) -> str:
    """Return the name of a run for the engines: an RFC 1123 label that starts with a letter.

    Args:
        name: The value of --name. By default the name is the last part of `workdir` with a hash of all its parts, so
            that gs://a/runs/seed-1 and gs://b/runs/seed-1 are two runs.
        workdir: The run directory.
        longest: The maximum length.

    Returns:
        The name.

    Raises:
        UserError: If `name` is not such a label or too long; the message suggests one.
    """
    path = PurePosixPath(workdir)
    part = path.name if name is None else name
    label = re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-")
    label = label if re.match("[a-z]", label) else f"run-{label}".rstrip("-")
    if name is None:
        return f"{label[: longest - 7].rstrip('-')}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"
    if label == name and len(label) <= longest:
        return label
    raise UserError(
        f"--name={name} is not a valid name of a run: use at most {longest} lower-case letters, digits and -, "
        f"starting with a letter and not ending with -, such as --name={label[:longest].rstrip('-')}"
    )


def require_shared_storage(training: TrainCommand) -> None:
    """Check that hosts without a shared disk see the same run directory, config file and data.

    Raises:
        UserError: If the workdir is not in a bucket, the config file is outside the checkout, or the data are in a
            bucket that is not mounted.
    """
    if not re.match(r"gs://[^/]", training.workdir):
        raise UserError(
            f"--workdir={training.workdir} would be a different directory on every host, lost with it: "
            "pass one that all hosts share, such as --workdir=gs://BUCKET/RUN"
        )
    path = PurePosixPath(training.config_file or "")
    if path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"--config={training.config_file} is a file of this machine: pass a path relative to the checkout, which "
            "the hosts have too, such as --config=experiments/demo.py"
        )
    from transformer.storage.paths import check_data_dir

    check_data_dir(_flag_value(training.flags, "--data_dir") or "")


def check_max_restarts(restarts: int) -> None:
    """Check the number of restarts.

    Raises:
        UserError: If it is below 0.
    """
    if restarts < 0:
        raise UserError(f"--max_restarts={restarts} must be at least 0 (0: no restarts)")


def build_train_argv(python: str, training: TrainCommand, *more: str) -> tuple[str, ...]:
    """Return the words that run the train command on another machine.

    Args:
        python: The Python interpreter there.
        training: The train command.
        *more: Words to add at the end.

    Returns:
        The words.
    """
    return (python, "-m", "launch.train", *training.flags, *more)


def parse_extra_options(text: str | None, flag: str = "options") -> tuple[str, ...]:
    """Parse a flag whose words are passed to the engine unchanged.

    Args:
        text: Its value.
        flag: Its name, for the message.

    Returns:
        The words.

    Raises:
        UserError: If a word is not --key or --key=value, or a quote is not closed.
    """
    return tuple(_parse_words(flag, text, r"--[a-z][a-z0-9-]*(=.*)?", "--key=value", "--key=value --key=value"))


def parse_env(text: str | None) -> dict[str, str]:
    """Parse `--env`, the environment variables of the processes.

    Raises:
        UserError: If a word is not NAME=VALUE, or a quote is not closed.
    """
    words = _parse_words("env", text, r"[A-Za-z_][A-Za-z0-9_]*=.*", "NAME=VALUE", "XLA_FLAGS=--xla_x=1 NAME=VALUE")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _parse_words(flag: str, text: str | None, pattern: str, form: str, example: str) -> list[str]:
    """Split the value of a flag into the words of a shell.

    Args:
        flag: The name of the flag.
        text: Its value; None is no words.
        pattern: What every word must match.
        form: The same in words, for the message.
        example: A right value, for the message.

    Raises:
        UserError: If a word does not match, or a quote is not closed.
    """
    advice = f"write it as in --{flag}='{example}'"
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise UserError(f"--{flag}={text}: {error}; {advice}") from None
    for word in words:
        if not re.fullmatch(pattern, word) or not word.isprintable():
            raise UserError(f"--{flag}={text}: {word!r} is not of the form {form}; {advice}")
    return words


def check_flag_value(flag: str, value: str) -> str:
    """Return the value of a flag if no tool can mistake it for a flag of its own.

    Args:
        flag: The name of the flag, for the message.
        value: The value.

    Returns:
        The value.

    Raises:
        UserError: If it is empty, starts with a dash or has unprintable characters.
    """
    if not value or value.startswith("-") or not value.isprintable():
        raise UserError(f"--{flag}={value!r} must not be empty, start with - or have unprintable characters")
    return value


def format_shell_command(
    words: Sequence[str], environment: Mapping[str, str] | None = None, stdin: str | None = None
) -> str:
    """Return a call as a line for a shell.

    Args:
        words: The words of the call.
        environment: Environment variables to set for it.
        stdin: Its standard input, written as a heredoc.

    Returns:
        The line.
    """
    settings = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    line = " ".join([*settings, shlex.join(words)])
    return line if stdin is None else f"{line} <<'END_OF_INPUT'\n{stdin.rstrip()}\nEND_OF_INPUT"


def require_tool(name: str, environment: Mapping[str, str]) -> None:
    """Check that an engine's tool is installed.

    Args:
        name: The name of the tool's program.
        environment: The environment variables, of which PATH is searched.

    Raises:
        UserError: If the tool is not on PATH, with how to install it.
    """
    if shutil.which(name, path=environment.get("PATH")) is None:
        raise UserError(f"{name} is not on PATH: {TOOLS[name]}; --dry_run prints what would be run without it")


def run_tool(words: Sequence[str], environment: Mapping[str, str], stdin: str | None = None) -> int:
    """Print a call, run it, and return its exit code.

    Args:
        words: The words of the call.
        environment: The environment variables that it gets.
        stdin: Its standard input as text; None for this process's.

    Returns:
        The exit code.
    """
    print(f"+ {shlex.join(words)}", file=sys.stderr, flush=True)
    return subprocess.run(words, env=environment, input=stdin, text=True, check=False).returncode


def _split_at_double_dash(words: list[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in words:
        return words, None
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def _flag_value(words: Sequence[str], flag: str) -> str | None:
    """Return the value of the last `flag` among the words, written --flag=value or --flag value."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    values += [after for word, after in itertools.pairwise(words) if word == flag]
    return values[-1] if values else None
