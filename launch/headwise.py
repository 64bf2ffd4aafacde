"""The console script `headwise COMMAND`, which runs every command."""

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NoReturn

from launch import (
    ablate,
    ablate_heads,
    alignment_error_rate,
    benchmark_backends,
    benchmark_layers,
    compile,
    convert,
    evaluate,
    generate,
    lm_eval,
    maps,
    model_sizes,
    replay,
    runs,
    scaling_laws,
    sweep,
    tokenize,
    train,
)
from launch.cli import run, to_one_line
from launch.clusters import local
from launch.clusters.local import run_launcher
from launch.platform import exit_process
from transformer.config import suggest_nearest
from transformer.system.command_invocation import headwise_version, register_console_script

# In the order in which --help lists them: a run and its data, studies, models, many machines, measurements.
_RUN = (tokenize, train, runs, evaluate, generate, maps, replay, ablate_heads, alignment_error_rate)
_STUDY = (sweep, ablate, scaling_laws)
_MODEL = (convert, lm_eval, model_sizes)
_CLUSTER = (local,)
_MEASURE = (compile, benchmark_backends, benchmark_layers)
COMMANDS: Mapping[str, ModuleType] = {
    module.COMMAND.name: module for module in (*_RUN, *_STUDY, *_MODEL, *_CLUSTER, *_MEASURE)
}


def main() -> NoReturn:
    """Run the console script, and end the process with the command's exit code."""
    register_console_script(sys.argv[0])
    exit_process(run_command(sys.argv[1:]))


def run_command(words: Sequence[str]) -> int:
    """Run the command named by the first word, and return its exit code."""
    from transformer.system.terminal import escape_terminal_output

    with escape_terminal_output():
        name = words[0] if words else ""
        if name in ("--help", "-h"):
            print(help_text(), end="")
            return 0
        if name == "--version":
            print(headwise_version())
            return 0
        if name not in COMMANDS:
            print(f"error: {to_one_line(_describe_command_mistake(words))}", file=sys.stderr)
            return 2
    _import_from_working_directory()
    module = COMMANDS[name]
    parse_and_run = run_launcher if module in _CLUSTER else run
    return parse_and_run(module.COMMAND, module.main, words[1:])


def help_text() -> str:
    """Return the text of --help: every command with its first line."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{(module.__doc__ or '').partition(chr(10))[0]}" for name, module in COMMANDS.items()]
    return (
        "usage: headwise COMMAND [--FLAG=VALUE ...]\n\n"
        "Attention research in JAX: one train and evaluation loop for every attention model.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\n"
        "headwise COMMAND --help lists the flags of a command.\n"
    )


def _describe_command_mistake(words: Sequence[str]) -> str:
    if not words:
        return "headwise needs a command, as headwise train --config=FILE --workdir=DIR; headwise --help lists them all"
    name, *following_words = words
    if name.startswith("-"):
        first = next((word for word in following_words if word in COMMANDS), None)
        if first is not None:
            ordered = [first, *(word for word in words if word != first)]
            return f"{name} stands before the command: write headwise {shlex.join(ordered)}"
        return f"{name} is no command, which comes first, as headwise train {name}; headwise --help lists them all"
    return f"unknown command {name!r}: {suggest_nearest(name, COMMANDS)} (headwise --help lists them all)"


def _import_from_working_directory() -> None:
    """Let a config name modules of the working directory, such as lab.mine, as `python -m` does.

    They are searched last: a transformer.py there does not shadow this library.
    """
    with contextlib.suppress(OSError):  # of a directory that is gone
        folder = os.getcwd()
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)


if __name__ == "__main__":
    # As a process of the console script, which says itself how it was started.
    exit_process(run_command(sys.argv[1:]))
