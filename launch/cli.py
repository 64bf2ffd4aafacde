"""The one way in for every command: flags, config overrides, help, messages and exit codes.

Exit codes: 0 done; 2 a mistake of the user, told in one line on stderr; 3 a worker whose trials failed one after
another; 130 interrupted; 1 anything else, with its traceback. Nothing here imports jax before it must, which is where
a key of the config is set: a mistake in flags is told at once.
"""

import argparse
import dataclasses
import functools
import os
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from launch.config_files import load_config, recorded_config
from launch.platform import choose_platform, quiet_libraries
from transformer.config import UserError, closest, nearest


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag of a command: --name=VALUE, or --name and --no-name where the kind is bool."""

    name: str
    help: str
    default: str | int | float | bool | None = None
    kind: type[str] | type[int] | type[float] | type[bool] = str
    required: bool = False
    choices: tuple[str, ...] = ()
    waives: tuple[str, ...] = ()
    """The required flags that are not needed beside this one."""


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
    environment: "Callable[[Arguments], Mapping[str, str]] | None" = None
    """What the process's environment must hold before jax is imported."""


# Of commands that read a run: its config.json may be a stranger's, and a dotted path in it is code.
TRUST = Flag("trust", "your own modules that the run's config.json may name as family or task, commas between them")


class Arguments(types.SimpleNamespace):
    """The flags of one call by name (dashes become underscores).

    `words` are those of the call, each flag with its value in one; `config_file` is what --config names, `base` the
    values of that file, and `config_words` are the --config.KEY=VALUE among the words.
    """

    base: Mapping[str, Any]
    config_file: str
    config_words: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def overrides(self) -> dict[str, str]:
        """The text that the words give for each key; of two for one key the last."""
        return dict(split_override(word) for word in self.config_words)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The values of the config file with those of the words set.

        Errors: UserError for a key that no such config has, and for a value that the key cannot have.
        """
        values = dict(self.base)
        if self.config_words:
            # jax comes with it.
            from transformer.training.schema import with_words

            values = with_words(values, self.overrides.items())
        return values

    def with_data(self) -> dict[str, Any]:
        """The config, whose data lie where --data_dir says."""
        if self.data_dir is None:
            return self.config
        return {**self.config, "task": {**self.config.get("task", {}), "data_dir": self.data_dir}}

    @property
    def trusted(self) -> tuple[str, ...]:
        """The dotted paths of code that the person vouches for (--trust)."""
        return tuple(filter(None, (self.trust or "").split(",")))

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
        if command.environment is not None:
            os.environ.update(command.environment(arguments))
        if command.takes_config:
            arguments.config  # noqa: B018  what is wrong in it is told before anything is done
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
    """The arguments that `words` give to `command`; its config is looked at when it is read.

    Errors: UserError for an unknown, missing or malformed flag, config file or override.
    """
    words_of_config = [word for word in words if command.takes_config and re.match(r"--?config\.", word)]
    for word in words_of_config:
        split_override(word)
    values, rest = _parser(command).parse_known_args([word for word in words if word not in words_of_config])
    if rest:
        raise UserError(_unknown(command, rest, values))
    given = vars(values)
    config_file = given.pop("config", None) or ""
    arguments = Arguments(**given, words=_joined(command, words), config_words=tuple(words_of_config))
    arguments.config_file = config_file
    recorded = recorded_config(arguments.workdir) if command.resumes and not config_file else None
    waived = {name for flag in command.flags if getattr(arguments, _attribute(flag)) is True for name in flag.waives}
    for flag in _all_flags(command):
        if flag is _CONFIG:
            missing = not config_file and recorded is None
        else:
            missing = getattr(arguments, _attribute(flag)) in (None, "")
        if flag.required and missing and flag.name not in waived:
            raise UserError(f"{command.name} needs --{flag.name}=VALUE ({flag.help}); for example: {command.example}")
    if command.takes_config:
        arguments.base = (load_config(config_file) if recorded is None else recorded).to_dict()
    if recorded is not None:
        from transformer.named import check_trusted

        # What the person's own words set is theirs.
        check_trusted(arguments.base, (*arguments.trusted, *arguments.overrides.values()))
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


def _unknown(command: Command, rest: Sequence[str], given: argparse.Namespace) -> str:
    """The message for the first word that the parser did not know."""
    flags = [f"--{flag.name}" for flag in _all_flags(command)] + ["--help"]
    word = rest[0]
    name = word.split("=", 1)[0]
    if not word.startswith("-"):
        return f"unexpected argument {word!r}: values belong to flags, as {flags[0]}={word}"
    if re.match(r"--?config\b", word):
        return f"unknown flag {name}: {command.name} takes no config, the run directory holds the run's own"
    if command.takes_config and not closest(name, flags, cutoff=0.8):
        for key in _keys(given.config, given.workdir if command.resumes else None):
            if name.lstrip("-") in (key, key.rpartition(".")[2]):
                # A value that stands apart is the next word.
                value = word.partition("=")[2] or next((word for word in rest[1:] if word[0] != "-"), "VALUE")
                return f"unknown flag {name}: a key of the config is set as --config.{key}={value}"
    return f"unknown flag {name}: {nearest(name, flags)}"


def _keys(config_file: str | None, workdir: str | None) -> list[str]:
    """The keys of the config that a file gives, or a run recorded; none where neither can be read."""
    from transformer.overrides import leaves
    from transformer.training.schema import schema_of

    try:
        base = load_config(config_file) if config_file else recorded_config(workdir)
        return [] if base is None else list(leaves(schema_of(base.to_dict())))
    except UserError:
        return []


def split_override(word: str) -> tuple[str, str]:
    """The dotted key and the text of a word --config.KEY=VALUE.

    Errors: UserError for a word that is none.
    """
    key, equals, value = word.split(".", 1)[1].partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"malformed override {word!r}: write --config.KEY=VALUE, as --config.seed=1")
    return key, value
