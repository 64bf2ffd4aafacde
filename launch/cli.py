"""The one way in for every command: flags, config overrides, help, messages and exit codes.

Exit codes: 0 done; 2 a mistake of the user, told in one line on stderr; 3 a worker whose trials failed one after
another; 130 interrupted; 1 anything else, with its traceback. Nothing here imports jax, so that a mistake is told at
once.
"""

import argparse
import dataclasses
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ml_collections import ConfigDict

from launch.config_files import load_config, override, recorded_config
from launch.platform import choose_platform, quiet_libraries
from transformer.config import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag of a command: --name=VALUE, or --name and --no-name where the kind is bool."""

    name: str
    help: str
    default: str | int | float | bool | None = None
    kind: type[str] | type[int] | type[float] | type[bool] = str
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Command:
    """What `python -m launch.NAME` says of itself: one paragraph, one example, its flags."""

    name: str
    description: str
    example: str
    flags: tuple[Flag, ...] = ()
    takes_config: bool = False
    resumes: bool = False
    """Whether a run in --workdir stands for --config, with the config that it recorded."""


class Arguments(types.SimpleNamespace):
    """The flags of one call by name (dashes become underscores), and its locked `config`.

    `words` are those of the call, each flag with its value in one; `config_file` is what --config names, and
    `config_words` are the --config.KEY=VALUE among the words.
    """

    config: ConfigDict
    config_file: str
    config_words: tuple[str, ...]
    words: tuple[str, ...]

    def without(self, *names: str) -> list[str]:
        """The words without these flags."""
        return [word for word in self.words if word.partition("=")[0] not in {f"--{name}" for name in names}]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the command declares no flag {name!r}")


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
        quiet_libraries()
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


def parse(command: Command, words: Sequence[str]) -> Arguments:
    """The arguments that `words` give to `command`.

    Errors: UserError for an unknown, missing or malformed flag, config file or override.
    """
    words_of_config = [word for word in words if command.takes_config and re.match(r"--?config\.", word)]
    overrides = [_split(word) for word in words_of_config]
    values, rest = _parser(command).parse_known_args([word for word in words if word not in words_of_config])
    if rest:
        raise UserError(_unknown(command, rest[0]))
    arguments = Arguments(**vars(values), words=_joined(command, words), config_words=tuple(words_of_config))
    arguments.config_file = getattr(arguments, "config", None) or ""
    recorded = recorded_config(arguments.workdir) if command.resumes and not arguments.config else None
    for flag in _all_flags(command):
        given = getattr(arguments, _attribute(flag)) not in (None, "") or (flag is _CONFIG and recorded is not None)
        if flag.required and not given:
            raise UserError(f"{command.name} needs --{flag.name}=VALUE ({flag.help}); for example: {command.example}")
    if command.takes_config:
        arguments.config = load_config(arguments.config) if recorded is None else recorded
        for key, value in overrides:
            override(arguments.config, key, value)
    return arguments


def help_text(command: Command) -> str:
    """The page that --help prints: usage, the paragraph, the flags, an example."""
    return _parser(command).format_help()


def _joined(command: Command, words: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    values = {f"--{flag.name}" for flag in _all_flags(command) if flag.kind is not bool}
    for word in words:
        if found and found[-1] in values:
            found[-1] = f"{found[-1]}={word}"
        else:
            found.append(word)
    return tuple(found)


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UserErrors instead of a usage page and an exit."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


_CONFIG = Flag(
    "config",
    "a file with get_config(), or FILE.py:ARGUMENT; --config.KEY=VALUE sets one of its keys",
    required=True,
)


def _all_flags(command: Command) -> tuple[Flag, ...]:
    return ((_CONFIG,) if command.takes_config else ()) + command.flags


def _attribute(flag: Flag) -> str:
    return flag.name.replace("-", "_")


def _parser(command: Command) -> _Parser:
    parser = _Parser(
        prog=f"python -m launch.{command.name}",
        usage=f"python -m launch.{command.name} " + " ".join(_usage(flag) for flag in _all_flags(command)),
        description=textwrap.fill(" ".join(command.description.split()), 100),
        epilog=f"example:\n  {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    group = parser.add_argument_group("flags")
    for flag in _all_flags(command):
        note = "" if flag.default is None else f" (default: {flag.default})"
        settings: dict[str, Any] = {
            "dest": _attribute(flag),
            "default": flag.default,
            "help": (flag.help + note).replace("%", "%%"),
        }
        if flag.kind is bool:
            settings |= {"action": argparse.BooleanOptionalAction}
        else:
            settings |= {"type": flag.kind, "metavar": _metavar(flag), "choices": flag.choices or None}
        group.add_argument(f"--{flag.name}", **settings)
    group.add_argument("--help", "-h", action="store_true", default=argparse.SUPPRESS, help="print this page")
    return parser


def _metavar(flag: Flag) -> str:
    if flag.choices:
        return "{" + ",".join(flag.choices) + "}"
    return {str: "VALUE", int: "INTEGER", float: "NUMBER"}[flag.kind]


def _usage(flag: Flag) -> str:
    word = f"--{flag.name}" if flag.kind is bool else f"--{flag.name}={_metavar(flag)}"
    return word if flag.required else f"[{word}]"


def _unknown(command: Command, word: str) -> str:
    """The message for the first word that the parser did not know."""
    flags = [f"--{flag.name}" for flag in _all_flags(command)] + ["--help"]
    name = word.split("=", 1)[0]
    if not word.startswith("-"):
        return f"unexpected argument {word!r}: values belong to flags, as {flags[0]}={word}"
    if re.match(r"--?config\b", word):
        return f"unknown flag {name}: {command.name} takes no config, the run directory holds the run's own"
    return f"unknown flag {name}: {nearest(name, flags)}"


def _split(word: str) -> tuple[str, str]:
    key, equals, value = word.split(".", 1)[1].partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"malformed override {word!r}: write --config.KEY=VALUE, as --config.seed=1")
    return key, value
