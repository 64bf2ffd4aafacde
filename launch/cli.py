"""The entry point of every command: flags, config overrides, help, messages and exit codes.

Exit codes: 0: success; 1: the run failed, with a traceback unless one line explains it, such as a full disk; 2: a user
error, explained in one line on stderr; 3: a worker whose trials failed one after another; 75: a training run that
SIGTERM or SIGINT stopped after it had saved, or had nothing to save, and that the same command resumes; 130:
interrupted, or a training run that a second SIGINT ended at once; 141: nobody reads the output any more. jax is
imported late, only once a config key must be set, so that mistakes in flags are reported at once.
"""

import contextlib
import errno
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from launch.command import Arguments, Command, ConfigArguments
from launch.flag_parsing import help_text, parse_arguments
from launch.platform import (
    add_compiler_flags,
    choose_platform,
    collect_garbage_less_often,
    quiet_libraries,
    return_freed_memory,
    reuse_freed_memory,
)
from launch.standard_output import StandardOutput, redirect_to_devnull
from transformer.config import UserError
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE, RunFailed, RunStopped
from transformer.system.terminal import escape_control_characters, escape_terminal_output, raw_terminal_stream

_SHOWN = 1000
_UNUSABLE_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR)


def run[A: Arguments](command: Command[A], main: Callable[[A], None], argv: Sequence[str] | None = None) -> int:
    """Parse a command's flags, call its `main`, and return the exit code.

    A command file ends with `exit_process(run(COMMAND, main))` under `if __name__ == "__main__"`; it imports what needs
    jax inside `main`, which is called after the platform is chosen.

    Args:
        command: The declaration of the command.
        main: What the command does, given its arguments.
        argv: The words after the command, by default the process's own.

    Returns:
        The exit code.
    """
    with escape_terminal_output():
        return _run(command, main, list(sys.argv[1:] if argv is None else argv))


def _run[A: Arguments](command: Command[A], main: Callable[[A], None], words: Sequence[str]) -> int:
    try:
        if any(word in ("--help", "-h") for word in words):
            print(help_text(command), end="")
            return 0
        arguments = parse_arguments(command, words)
        collect_garbage_less_often()
        choose_platform()
        if command.repeats_steps:
            reuse_freed_memory()
        else:
            return_freed_memory()
        quiet_libraries()
        if isinstance(arguments, ConfigArguments):
            add_compiler_flags({**arguments.base, **arguments.overrides})
        if command.before_jax is not None:
            command.before_jax(arguments)
        if isinstance(arguments, ConfigArguments):
            arguments.config  # noqa: B018  its mistakes are reported before anything is done
        # The figures of what trains, and so takes trackers, are in files as well.
        # Escaping is outermost, so that a progress bar finds the stream below it.
        trains = any(flag.name == "trackers" for flag in command.flags)
        output: Any = StandardOutput(raw_terminal_stream(sys.stdout), needed=not trains)
        with contextlib.redirect_stdout(output), escape_terminal_output():
            main(arguments)
            sys.stdout.flush()
    except UserError as error:
        print(f"error: {to_one_line(str(error))}", file=sys.stderr)
        return 2
    except RunStopped as stopped:
        print(f"{stopped}; start the same command again to go on", file=sys.stderr)
        return EXIT_CODE_RESTARTABLE
    except RunFailed as error:
        print(f"error: {to_one_line(str(error))}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"error: out of memory: {to_one_line(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _redirect_closed_output():
            return 141
        if error.errno in _UNUSABLE_PATHS:
            # Of a renaming, the second name is that of the file.
            print(f"error: {to_one_line(f'{error.filename2 or error.filename}: {error.strerror}')}", file=sys.stderr)
            return 2
        return _report_unexpected_error(error, words)
    except KeyboardInterrupt:
        print("interrupted; start the same command again to resume", file=sys.stderr)
        return 130
    except RuntimeError as error:
        if not str(error).startswith("Unable to initialize backend"):
            return _report_unexpected_error(error, words)
        print(
            f"error: jax cannot use JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} on this machine: unset it, or "
            f"install the package of the accelerator, such as jax[cuda13] for NVIDIA GPUs ({to_one_line(str(error))})",
            file=sys.stderr,
        )
        return 2
    except Exception as error:
        return _report_unexpected_error(error, words)
    return 0


def _report_unexpected_error(error: Exception, words: Sequence[str]) -> int:
    """Report an unexpected error: in one line if the disk or the memory is to blame, else with its traceback."""
    from transformer.storage.disk_errors import error_chain, explain_disk_error, find_disk_error

    run = next((word for word in words if word.startswith("--workdir=")), None)
    go_on = "" if run is None else f" to go on with {run}"
    failure = find_disk_error(error)
    unstarted = next((cause for cause in error_chain(error) if "can't start new thread" in str(cause)), None)
    if failure is not None:
        print(f"error: {to_one_line(explain_disk_error(failure, go_on))}", file=sys.stderr)
    elif unstarted is not None:
        print(
            f"error: out of memory or of threads ({unstarted}): allow the process more (ulimit -v, ulimit -u), then "
            f"start the same command again{go_on}",
            file=sys.stderr,
        )
    else:
        traceback.print_exc()
    return 1


def to_one_line(text: str) -> str:
    """Return a message as one printable line: names may hold escape sequences, and errors be a whole page."""
    line = " ".join(text.split())
    if len(line) > _SHOWN:
        line = f"{line[: _SHOWN * 3 // 4]} ... {line[-_SHOWN // 4 :]}"
    return escape_control_characters(line)


def _redirect_closed_output() -> bool:
    """Return whether nobody reads the standard output; if so, redirect it to /dev/null, since flushing would fail."""
    try:
        output = sys.stdout.fileno()
        poll = select.poll()
        poll.register(output, 0)
        is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False
    if is_closed:
        redirect_to_devnull(sys.stdout)
    return is_closed
