"""The entry point of every command: flags, config overrides, help, messages and exit codes.

Exit codes: 0 done; 2 a mistake of the user, told in one line on stderr; 3 a worker whose trials failed one after
another; 130 interrupted; 1 anything else, with its traceback. jax is imported late, where a key of the config is set,
so that a mistake in flags is reported at once.
"""

import sys
import traceback
from collections.abc import Callable, Sequence

from launch.command import Arguments, Command
from launch.parsing import help_text, parse
from launch.platform import choose_platform, keep_memory, quiet_libraries
from transformer.config import UserError


def run(command: Command, main: Callable[[Arguments], None], argv: Sequence[str] | None = None) -> int:
    """Parse `argv` (the process's own by default), call `main`, and return the exit code.

    A command file ends with `sys.exit(run(COMMAND, main))` under `if __name__ == "__main__"`; it imports
    what needs jax inside `main`, which is called after the platform is chosen.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if any(word in ("--help", "-h") for word in words):
            print(help_text(command), end="")
            return 0
        arguments = parse(command, words)
        choose_platform()
        keep_memory()
        quiet_libraries()
        if command.before_jax is not None:
            command.before_jax(arguments)
        if command.takes_config:
            arguments.config  # noqa: B018  its mistakes are reported before anything is done
        main(arguments)
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; start the same command again to resume", file=sys.stderr)
        return 130
    except Exception:
        traceback.print_exc()
        return 1
    return 0
