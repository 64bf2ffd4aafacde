"""The declaration of a command, and the parsed arguments of one call."""

import dataclasses
import functools
import itertools
import shlex
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from transformer.config import Range, UserError
from transformer.system.command_invocation import shell_command


def flag[T](
    help: str,
    default: T | None = None,
    *,
    required: bool = False,
    makes_optional: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
    because: str = "",
    range: Range | None = None,
) -> T:
    """Declare a flag of a command by a field of its arguments.

    The flag has the field's name, and the field's type says what may be given: a text or a number by --name=VALUE, one
    of the texts of a `Literal`, texts separated by commas for a tuple, --name or --no_name for a bool.

    Example:
        ```python
        import dataclasses
        from launch.command import Arguments, declared_flags, flag

        @dataclasses.dataclass(frozen=True, kw_only=True)
        class TrainArguments(Arguments):
            workdir: str = flag("the run directory", required=True)
            num_processes: int | None = flag("the number of processes")

        [(declared.name, declared.value_type) for declared in declared_flags(TrainArguments)]
        # [('workdir', <class 'str'>), ('num_processes', <class 'int'>)]
        ```

    Args:
        help: Its text in the output of --help.
        default: The default.
        required: Whether the flag must be given.
        makes_optional: The required flags that are not needed if this one is given.
        needs: Flags of which at least one must be given with this one.
        excludes: Flags that have no effect if this one is given, and are refused with it.
        because: Why it needs or excludes them, as the end of a message: "it trains nothing".
        range: The least and the greatest number; by default numbers of 32 bits.

    Returns:
        The field.
    """
    rules = {
        "help": help,
        "required": required,
        "makes_optional": makes_optional,
        "needs": needs,
        "excludes": excludes,
        "because": because,
        "range": range,
    }
    value: Any = dataclasses.MISSING if required else default
    return dataclasses.field(default=value, metadata=rules)


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a command, as `flag` declares it, whose arguments its other attributes are.

    Attributes:
        name: The name, with underscores.
        value_type: The type of the value, or of each of several.
        choices: The allowed values; any if empty.
        is_tuple: Whether several values may be given, separated by commas.
    """

    name: str
    help: str
    default: object = None
    value_type: type[str] | type[int] | type[float] | type[bool] = str
    choices: tuple[str, ...] = ()
    is_tuple: bool = False
    required: bool = False
    makes_optional: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    because: str = ""
    range: Range | None = None


def declared_flags(arguments: "type[Arguments]") -> tuple[Flag, ...]:
    """Return the flags that a class of arguments declares, in the order of its fields."""
    hints = typing.get_type_hints(arguments)
    return tuple(_declared_flag(field, hints[field.name]) for field in dataclasses.fields(arguments) if field.metadata)


def _declared_flag(field: dataclasses.Field, hint: Any) -> Flag:
    default = None if field.default is dataclasses.MISSING else field.default
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if default is None and not field.metadata["required"] and types.NoneType not in members:
        raise TypeError(f"--{field.name} has no default: give it one, require it, or let its type be {hint} | None")
    (kind,) = (member for member in members if member is not types.NoneType)
    origin, parameters = typing.get_origin(kind), typing.get_args(kind)
    choices = parameters if origin is Literal else ()
    return Flag(
        field.name,
        default=default,
        value_type=str if origin else kind,
        choices=choices,
        is_tuple=origin is tuple,
        **field.metadata,
    )


DATA_DIR_KEY = "task.data_dir"
"""The config key that --data_dir sets."""


def with_data_dir(config: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """Return a config with another directory of data.

    Args:
        config: The config.
        data_dir: The directory of the task's data; None to leave the config as it is.

    Returns:
        The config.
    """
    if data_dir is None:
        return config
    return {**config, "task": {**config.get("task", {}), "data_dir": data_dir}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of one call of a command, whose own class declares each flag as a field by `flag`.

    Attributes:
        argv: All arguments of the call, each flag joined with its value.
    """

    argv: tuple[str, ...]

    def omit_flags(self, *names: str) -> list[str]:
        """Return the arguments of the call without these flags."""
        return [word for word in self.argv if word.partition("=")[0] not in {f"--{name}" for name in names}]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigArguments(Arguments):
    """The arguments of a command that takes --config and --config.KEY=VALUE.

    Attributes:
        base: The values of the config file, or of the run's recorded config.
        config_file: The value of --config.
        config_overrides: The arguments --config.KEY=VALUE.
    """

    base: Mapping[str, Any]
    config_file: str
    config_overrides: tuple[str, ...]

    @property
    def overrides(self) -> dict[str, str]:
        """The text of each overridden config key."""
        return dict(split_override(word) for word in self.config_overrides)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The values of the config file with the overrides applied.

        Raises:
            UserError: If a key is unknown or given twice, or its value invalid.
        """
        values = dict(self.base)
        if self.config_overrides and self.base:  # without a run to read it from, which the command refuses
            # imports jax
            from transformer.training.config import apply_text_overrides

            values = apply_text_overrides(values, map(split_override, self.config_overrides))
        return values

    @property
    def config_topology(self) -> str:
        """The config's `topology`, without resolving the config, which imports jax; "" if it names none."""
        return self.overrides.get("topology", self.base.get("topology")) or ""


class TrainingArguments(ConfigArguments):
    """The arguments of a command that trains what a config names: each declares these two flags in its own place.

    Attributes:
        data_dir: The folder of the data.
        trust: The dotted paths of code that the user trusts, and other names.
    """

    data_dir: str | None
    trust: tuple[str, ...]

    @property
    def overridden_keys(self) -> tuple[str, ...]:
        """The config keys that the call sets, by --config.KEY=VALUE or by --data_dir."""
        return (*self.overrides, *([] if self.data_dir is None else [DATA_DIR_KEY]))

    def config_with_data_dir(self) -> dict[str, Any]:
        """Return the config with --data_dir as the folder of its data."""
        return with_data_dir(self.config, self.data_dir)

    def refuse_keys_of_study(self, keys_by_owner: Iterable[tuple[str, Collection[str]]]) -> None:
        """Refuse overrides that a sweep or an ablation would replace in some or all of its runs.

        Args:
            keys_by_owner: The keys that the study sets, by a name of what sets them.

        Raises:
            UserError: If the call sets such a key, a group of one or a key in one.
        """
        from transformer.overrides import config_keys_overlap

        for owner, keys in keys_by_owner:
            for key, study_key in itertools.product(self.overrides, keys):
                if config_keys_overlap(key, study_key):
                    raise UserError(
                        f"--config.{key} would not reach every run: {owner} sets {study_key}; omit it, or change "
                        f"{self.config_file}"
                    )
            if DATA_DIR_KEY in keys and self.data_dir is not None:
                raise UserError(f"--data_dir would replace config.{DATA_DIR_KEY}, which {owner} sets: omit it")

    @property
    def trusted_names(self) -> tuple[str, ...] | None:
        """The names of code and downloads that the user has given; None if --config is the user's own file."""
        return None if self.config_file else (*self.trust, *self.overrides.values())


@dataclasses.dataclass(frozen=True)
class Command[A: Arguments]:
    """The declaration of a command.

    Attributes:
        name: The name, as in `python -m launch.NAME`.
        description: Its text in the output of --help.
        example: The flags of an example call.
        arguments: The class that declares its flags, of `ConfigArguments` if it takes --config and --config.KEY=VALUE.
        resumes: Whether --config may be omitted if --workdir holds a run, which recorded its config.
        reads_run: Whether the config is that of the run in --workdir, and there is no flag --config.
        before_jax: What must be done to this process before jax is imported, such as setting environment variables.
        repeats_steps: Whether it computes step after step, for which freed memory is kept.
        package: Where its module is: `launch`, or a package of the checkout whose commands are not installed.
    """

    name: str
    description: str
    example: str
    arguments: type[A]
    resumes: bool = False
    reads_run: bool = False
    before_jax: Callable[[A], None] | None = None
    repeats_steps: bool = True
    package: str = "launch"

    @functools.cached_property
    def flags(self) -> tuple[Flag, ...]:
        """The flags, in the order of --help."""
        return declared_flags(self.arguments)

    @property
    def takes_config(self) -> bool:
        """Whether it takes --config.KEY=VALUE, and --config unless `reads_run`."""
        return issubclass(self.arguments, ConfigArguments)

    @property
    def call(self) -> str:
        """The call of the command in a shell: `python -m launch.NAME`, or `headwise NAME` if started so."""
        if self.package != "launch":
            return f"python -m {self.package}.{self.name}"
        return shlex.join(shell_command(self.name))

    @property
    def example_call(self) -> str:
        """The example call, as typed in a shell."""
        return f"{self.call} {self.example}".rstrip()


def trust_flag(*, needs: tuple[str, ...] = (), because: str = "") -> tuple[str, ...]:
    """Declare --trust of a command that reads a run: its config.json may be a stranger's, and a path in it is code."""
    return flag(
        "names in the run's config.json that you trust, separated by commas: your own modules, data sets to download, "
        "and files, folders and runs outside of the run",
        (),
        needs=needs,
        because=because,
    )


def trackers_flag() -> str | None:
    """Declare --trackers of a command that trains."""
    return flag("also log metrics to these, separated by commas: wandb, mlflow, trackio")


def vmap_flag() -> int | None:
    """Declare --vmap of a study."""
    return flag("train N runs with the same program as one, by jax.vmap (default: 1)", range=Range(1, 1024))


def ensemble_flag() -> tuple[str, ...]:
    """Declare --ensemble of a command that predicts with a run."""
    return flag("further run directories, separated by commas, to average probabilities with", ())


def language_model_flag() -> str | None:
    """Declare --language_model of a command that decodes with a run."""
    return flag("the run of a character language model that rescores the beams (shallow fusion)")


def language_model_weight_flag() -> float:
    """Declare --language_model_weight beside --language_model."""
    return flag("the weight of the language model's score", 0.3, needs=("language_model",))


def split_override(word: str) -> tuple[str, str]:
    """Split a word --config.KEY=VALUE into the dotted key and the text of the value.

    Raises:
        UserError: If the word has another form.
    """
    key, equals, value = word.split(".", 1)[1].partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"malformed override {word!r}: write --config.KEY=VALUE, as --config.seed=1")
    return key, value
