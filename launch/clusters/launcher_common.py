"""Shared parts of the launchers: checking the train command behind `--`, naming runs, showing and running words."""

import hashlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from launch import train
from launch.cli import run
from launch.command import Arguments, Command, Flag
from launch.flag_parsing import parse_arguments
from transformer.config import UserError

DRY_RUN = Flag("dry_run", "print what would be run, and run nothing", kind=bool, default=False)
NAME = Flag("name", "what the engine calls the run (default: from the last part of the train command's --workdir)")
OPTIONS = "as --options='--key=value --key=value'"
# The launcher knows these of each process, so the train command's flags behind -- leave them out.
LAUNCHER_FLAGS = ("coordinator_address", "num_processes", "process_id")
TOOLS = {
    "gcloud": "install the Google Cloud CLI and log in with: gcloud auth login",
    "kubectl": "install it with: gcloud components install kubectl",
    "sbatch": "start this on a login node of a Slurm cluster",
}


class TrainCommand(NamedTuple):
    """One checked call of the train command, and the environment that its launcher was started in."""

    words: tuple[str, ...]
    workdir: str
    config_file: str | None
    pod: str
    environment: Mapping[str, str]


def run_launcher(
    command: Command, main: Callable[[Arguments, TrainCommand], None], argv: Sequence[str] | None = None
) -> int:
    """Parse the launcher's flags before `--` and the train command's behind it, call `main`, return the exit code.

    Nothing is booked before both are right: the train command's own parser reads its config file and overrides.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # Copied before the platform is chosen for this process: a login node's may be wrong for its cluster.
    environment = dict(os.environ)
    own, behind = _split(words)
    astray = [word for word in own if re.match(r"--?(config|workdir)\b", word)]
    if astray and not {"--help", "-h"} & set(own):
        line = f"error: {astray[0]} is a flag of the train command: write it behind --, as {command.example_call}"
        print(line, file=sys.stderr)
        return 2
    return run(command, lambda arguments: main(arguments, parse_train_command(command, behind, environment)), own)


def parse_train_command(command: Command, words: Sequence[str] | None, environment: Mapping[str, str]) -> TrainCommand:
    """The train command that `words` give.

    Raises:
        UserError: If they are missing, where the train command would refuse them, where they set flags of the launcher,
            and for a character that no shell, script or manifest should carry.
    """
    if not words:
        raise UserError(f"{command.name} needs the train command's flags behind --, as {command.example_call}")
    for word in words:
        if not word.isprintable():
            raise UserError(f"{word!r} has a character that cannot be printed: leave it out")
        if re.fullmatch(rf"--({'|'.join(LAUNCHER_FLAGS)})(=.*)?", word):
            raise UserError(f"{word} behind -- is what the launcher itself tells each process: leave it out")
    arguments = parse_arguments(train.COMMAND, words)
    if arguments.show_config:
        raise UserError("--show_config behind -- trains nothing: leave it out, or say it to the train command itself")
    pod = arguments.config.get("pod") or ""
    return TrainCommand(tuple(words), arguments.workdir, _value(words, "--config"), pod, environment)


def run_name(given: str | None, workdir: str, longest: int = 63) -> str:
    """The name of a run for the engines: an RFC 1123 label that begins with a letter.

    Without `given` it is the last part of `workdir`, with a digest of that part where letters had to change.

    Raises:
        UserError: For a `given` that is none, or is longer than `longest` characters, with one that would do.
    """
    part = PurePosixPath(workdir).name if given is None else given
    label = re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-")
    label = label if re.match("[a-z]", label) else f"run-{label}".rstrip("-")
    if label == part and len(label) <= longest:
        return label
    proposal = f"{label[: longest - 7].rstrip('-')}-{hashlib.sha256(part.encode()).hexdigest()[:6]}"
    if given is None:
        return proposal
    raise UserError(
        f"--name={given} is no name for a run: it takes small letters, digits and -, begins with a letter, ends with "
        f"none of -, and has at most {longest} characters, as --name={label[:longest].rstrip('-')}"
    )


def require_shared_storage(training: TrainCommand) -> None:
    """Check that hosts without a shared disk see one run directory and one checkout.

    Raises:
        UserError: For a workdir that is not on object storage, and a config file outside the checkout.
    """
    if not re.match(r"gs://[^/]", training.workdir):
        raise UserError(
            f"--workdir={training.workdir} would be another directory on every host, lost with it: "
            "name one that all of them see, as --workdir=gs://BUCKET/RUN"
        )
    path = PurePosixPath(training.config_file or "")
    if path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"--config={training.config_file} is a file of this machine: name it from the root of the checkout, which "
            "the hosts have too, as --config=experiments/demo.py"
        )


def check_max_restarts(restarts: int) -> None:
    """Raise UserError for fewer than none."""
    if restarts < 0:
        raise UserError(f"--max_restarts={restarts} must be at least 0 (0: never again)")


def train_words(python: str, training: TrainCommand, *more: str) -> tuple[str, ...]:
    """The words of a process of another machine: its interpreter, the train command, its flags and those added."""
    return (python, "-m", "launch.train", *training.words, *more)


def parse_extra_options(text: str | None) -> tuple[str, ...]:
    """The words of `--options`, which go to the engine as they are.

    Raises:
        UserError: For a word that is not --key or --key=value, and for quotes that do not close.
    """
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise UserError(f"--options={text}: {error}; write it {OPTIONS}") from None
    for word in words:
        if not re.fullmatch(r"--[a-z][a-z0-9-]*(=.*)?", word) or not word.isprintable():
            raise UserError(f"--options={text}: {word!r} is not of the form --key=value; write it {OPTIONS}")
    return tuple(words)


def check_word(flag: str, value: str) -> str:
    """`value`, a word that no tool can take for a flag.

    Raises:
        UserError: For one that is empty, begins with a dash or cannot be printed.
    """
    if not value or value.startswith("-") or not value.isprintable():
        raise UserError(f"--{flag}={value!r} must not be empty, begin with - or have characters that cannot be printed")
    return value


def shell_line(words: Sequence[str], environment: Mapping[str, str] | None = None, typed: str | None = None) -> str:
    """The call as a line for a shell, with its standard input as a heredoc."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    line = " ".join([*settings, shlex.join(words)])
    return line if typed is None else f"{line} <<'END_OF_INPUT'\n{typed.rstrip()}\nEND_OF_INPUT"


def require_tool(name: str, environment: Mapping[str, str]) -> None:
    """An engine works through its own tool.

    Raises:
        UserError: Naming the tool that is not on PATH and what to do.
    """
    if shutil.which(name, path=environment.get("PATH")) is None:
        raise UserError(f"{name} is not on PATH: {TOOLS[name]}; --dry_run prints what would be run without it")


def run_tool(words: Sequence[str], environment: Mapping[str, str], typed: str | None = None) -> int:
    """Run the words, showing them first, and return their exit code."""
    print(f"+ {shlex.join(words)}", file=sys.stderr, flush=True)
    return subprocess.run(words, env=environment, input=typed, text=True, check=False).returncode


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in words:
        return words, None
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def _value(words: Sequence[str], flag: str) -> str | None:
    """The value of the last `flag` among the words, written --flag=value or --flag value."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    values += [after for word, after in itertools.pairwise(words) if word == flag]
    return values[-1] if values else None
