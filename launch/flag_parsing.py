"""Parse the words of a call into arguments; every mistake is a UserError of one line."""

import argparse
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from launch.command import DATA_DIR_KEY, Arguments, Command, Flag, TrainingArguments, split_override
from launch.config_files import load_config, recorded_config
from transformer.config import UserError, close_matches, convert_value, suggest_nearest


def parse_arguments[A: Arguments](command: Command[A], words: Sequence[str]) -> A:
    """Parse the words of a call; overrides of the config are checked later, when `ConfigArguments.config` is read.

    Args:
        command: The declaration of the command.
        words: The words after the command.

    Returns:
        The arguments.

    Raises:
        UserError: If a flag, the config file or an override is unknown, missing or malformed.
    """
    for word in words:
        convert_value(str, word, "the word")
    config_overrides = tuple(word for word in words if command.takes_config and re.match(r"--?config\.", word))
    overrides = dict(map(split_override, config_overrides))
    namespace, unknown_words = _build_parser(command).parse_known_args(
        [word for word in words if word not in config_overrides]
    )
    flag_values = vars(namespace)
    config_file, workdir = flag_values.get("config", ""), flag_values.get("workdir")
    if unknown_words:
        raise UserError(_describe_unknown_flag(command, unknown_words, config_file, workdir))
    _refuse_repeated_flags(command, words)
    for flag in command.flags:
        # Numbers that no array holds, and infinite ones.
        if flag.value_type in (int, float) and flag.name in flag_values:
            limits = () if flag.range is None else (flag.range,)
            convert_value(flag.value_type, flag_values[flag.name], f"--{flag.name}", limits)
    if "data_dir" in flag_values and DATA_DIR_KEY in overrides:
        raise UserError(f"--data_dir={flag_values['data_dir']} sets config.{DATA_DIR_KEY} too: leave one of them out")
    recorded = recorded_config(workdir) if _may_read_run(command) and not config_file else None
    _refuse_missing_flags(command, flag_values, has_config=bool(config_file) or recorded is not None)
    argv = _join_flag_values(command, words)
    _check_combinations(command, flag_values, argv)
    values = {flag.name: _field_value(flag, flag_values) for flag in command.flags}
    if command.takes_config:
        base = (load_config(config_file).to_dict() if config_file else {}) if recorded is None else recorded
        values |= {"base": base, "config_file": config_file, "config_overrides": config_overrides}
    arguments = command.arguments(argv=argv, **values)
    if recorded is not None and isinstance(arguments, TrainingArguments):
        from transformer.runs.trust import check_trusted

        trusted_names = arguments.trusted_names or ()
        check_trusted(arguments.base, trusted_names, source=list(arguments.overridden_keys), training=True)
    return arguments


def _field_value(flag: Flag, flag_values: Mapping[str, object]) -> object:
    """Return the value of a flag's field: as given, or the default."""
    value = flag_values.get(flag.name, flag.default)
    return tuple(filter(None, value.split(","))) if flag.is_tuple and isinstance(value, str) else value


def _refuse_missing_flags(command: Command, flag_values: Mapping[str, object], *, has_config: bool) -> None:
    """Raise UserError for a required flag that is missing and for which no other one stands."""
    waived = {name for flag in command.flags if flag_values.get(flag.name) for name in flag.makes_optional}
    for flag in _all_flags(command):
        missing = not has_config if flag is _CONFIG else flag_values.get(flag.name, "") == ""
        if not (flag.required and missing) or flag.name in waived:
            continue
        if flag is _CONFIG and command.resumes and flag_values.get("workdir"):
            raise UserError(
                f"--workdir={flag_values['workdir']} holds no run to resume; to start one there, add --config=FILE: "
                f"{command.example_call}"
            )
        choice = " or ".join(map(_format_flag, [flag, *_alternatives(command, flag)]))
        raise UserError(f"{command.name} needs {choice} ({flag.help}); for example: {command.example_call}")


def _check_combinations(command: Command, flag_values: Mapping[str, object], argv: Sequence[str]) -> None:
    """Raise UserError for a flag without one that it needs, or with one that it excludes."""
    # --no_serve, where that is the default, is not given.
    given_names = {
        flag.name
        for flag in command.flags
        if flag.name in flag_values and not (flag.value_type is bool and flag_values[flag.name] == flag.default)
    }
    for flag in command.flags:
        if flag.name not in given_names:
            continue
        reason = f", as {flag.because}" if flag.because else ""
        if flag.needs and given_names.isdisjoint(flag.needs):
            needed = _name_any(flag.needs)
            word = next(word for word in argv if word.partition("=")[0] == f"--{flag.name}")
            raise UserError(f"{word} needs {needed}{reason}: add {needed}, or omit --{flag.name}")
        if excluded := next((name for name in flag.excludes if name in given_names), None):
            typed = f"--no_{excluded}" if f"--no_{excluded}" in argv else f"--{excluded}"
            raise UserError(f"{typed} has no effect on --{flag.name}{reason}: omit one of them")


def _name_any(names: Sequence[str]) -> str:
    return " or ".join(f"--{name}" for name in names)


def parse_integers(text: str, flag: str, *, minimum: int = 1) -> list[int]:
    """Parse whole numbers separated by commas, such as 256,1024.

    Args:
        text: The text.
        flag: The flag, for messages.
        minimum: The smallest allowed number.

    Returns:
        The numbers.

    Raises:
        UserError: If an entry is not a whole number from `minimum` to 2^31 - 1.
    """
    words = text.split(",")
    # int() refuses text of thousands of digits.
    if not all(word.isdecimal() and len(word) < 20 and minimum <= int(word) < 2**31 for word in words):
        raise UserError(
            f"{flag}={text} must be whole numbers from {minimum} to {2**31 - 1}, joined by commas: 256,1024"
        )
    return list(map(int, words))


def help_text(command: Command) -> str:
    """Return the text of --help: usage, description, flags and an example."""
    return _build_parser(command).format_help()


def _join_flag_values(command: Command, words: Sequence[str]) -> tuple[str, ...]:
    joined: list[str] = []
    values = {f"--{flag.name}" for flag in _all_flags(command) if flag.value_type is not bool}
    for word in words:
        if joined and joined[-1] in values:
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return tuple(joined)


def _refuse_repeated_flags(command: Command, words: Sequence[str]) -> None:
    """Raise UserError for a flag that is given twice, of which argparse takes the last without a word."""
    names = {f"--{flag.name}": flag.name for flag in _all_flags(command)}
    names |= {f"--no_{flag.name}": flag.name for flag in command.flags if flag.value_type is bool}
    first_words: dict[str, str] = {}
    for word in _join_flag_values(command, words):
        name = names.get(word.partition("=")[0])
        if name in first_words:
            raise UserError(f"{first_words[name]} and {word} set the same flag: leave one of them out")
        if name is not None:
            first_words[name] = word


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are UserErrors instead of a usage message and an exit."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


class _Switch(argparse.BooleanOptionalAction):
    """A flag without a value: --name turns it on, --no_name off."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any):
        super().__init__(option_strings, dest, **settings)
        self.option_strings = [f"--{dest}", f"--no_{dest}"]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, option_string == f"--{self.dest}")


_CONFIG = Flag(
    "config",
    "a file with get_config(), or FILE.py:ARGUMENT; --config.KEY=VALUE sets one of its keys",
    required=True,
)


def _all_flags(command: Command) -> tuple[Flag, ...]:
    return ((_CONFIG,) if command.takes_config and not command.reads_run else ()) + command.flags


def _may_read_run(command: Command) -> bool:
    """Return whether the config may be that of the run in --workdir."""
    return command.resumes or command.reads_run


def _build_parser(command: Command) -> _Parser:
    parser = _Parser(
        prog=command.call,
        usage=" ".join([command.call.replace("%", "%%"), *_usage_words(command)]),
        description=textwrap.fill(" ".join(command.description.split()), 100),
        epilog=f"example:\n  {command.example_call}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    group = parser.add_argument_group("flags")
    for flag in _all_flags(command):
        note = "" if flag.default in (None, ()) else f" (default: {flag.default})"
        condition = f"with {_name_any(flag.needs)}, " if flag.needs else ""
        settings: dict[str, Any] = {
            "dest": flag.name,
            "default": argparse.SUPPRESS,
            "help": (condition + flag.help + note).replace("%", "%%"),
        }
        if flag.value_type is bool:
            settings |= {"action": _Switch}
        else:
            settings |= {"type": flag.value_type, "metavar": _metavar(flag), "choices": flag.choices or None}
        group.add_argument(f"--{flag.name}", **settings)
    group.add_argument("--help", "-h", action="store_true", default=argparse.SUPPRESS, help="print this page")
    return parser


def _metavar(flag: Flag) -> str:
    if flag.choices:
        return "{" + ",".join(flag.choices) + "}"
    return {str: "VALUE", int: "INTEGER", float: "NUMBER"}[flag.value_type]


def _usage_words(command: Command) -> Iterator[str]:
    """Yield the flags as typed: optional ones in brackets, alternatives in parentheses."""
    for flag in _all_flags(command):
        alternatives = _alternatives(command, flag)
        if flag.required and alternatives:
            yield f"({' | '.join(map(_format_flag, [flag, *alternatives]))})"
        elif not flag.makes_optional:
            yield _format_flag(flag) if flag.required else f"[{_format_flag(flag)}]"


def _alternatives(command: Command, flag: Flag) -> list[Flag]:
    """Return the flags that may be given instead of a required one."""
    return [other for other in command.flags if flag.name in other.makes_optional]


def _format_flag(flag: Flag) -> str:
    return f"--{flag.name}" if flag.value_type is bool else f"--{flag.name}={_metavar(flag)}"


def _describe_unknown_flag(
    command: Command, unknown_words: Sequence[str], config_file: str, workdir: str | None
) -> str:
    """Return the message for the first word that the parser did not know."""
    flags = [f"--{flag.name}" for flag in _all_flags(command)] + ["--help"]
    word = unknown_words[0]
    name = word.split("=", 1)[0]
    if not word.startswith("-"):
        return f"unexpected argument {word!r}: values belong to flags, as {flags[0]}={word}"
    if re.match(r"--?config\b", word):
        return f"unknown flag {name}: {command.name} takes no config, the run directory holds the run's own"
    if command.takes_config and not close_matches(name, flags, cutoff=0.8):
        for config_key in _config_keys(config_file, workdir if _may_read_run(command) else None):
            if name.lstrip("-") in (config_key, config_key.rpartition(".")[2]):
                # A separate value is the next word.
                value = word.partition("=")[2] or next((word for word in unknown_words[1:] if word[0] != "-"), "VALUE")
                return f"unknown flag {name}: a key of the config is set as --config.{config_key}={value}"
    return f"unknown flag {name}: {suggest_nearest(name, flags)}"


def _config_keys(config_file: str, workdir: str | None) -> list[str]:
    """Return the config keys of a file or of a recorded run; none if neither can be read."""
    from transformer.overrides import value_keys
    from transformer.training.config import config_schema

    try:
        base = load_config(config_file).to_dict() if config_file else recorded_config(workdir)
        return [] if base is None else list(value_keys(config_schema(base)))
    except UserError:
        return []
