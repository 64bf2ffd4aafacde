"""The declaration of a command, and the parsed arguments of one call."""

import dataclasses
import functools
import itertools
import shlex
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from transformer.config import Range, UserError
from transformer.system.command_invocation import shell_command


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a command: --name=VALUE, or --name and --no_name for a bool.

    Attributes:
        name: The name, with underscores.
        help: Its text in the output of --help.
        default: The default; None if the flag has none.
        value_type: The type of the value.
        required: Whether the flag must be given.
        choices: The allowed values; any if empty.
        makes_optional: The required flags that are not needed if this one is given.
        needs: Flags of which at least one must be given with this one.
        excludes: Flags that have no effect if this one is given, and are refused with it.
        because: Why it needs or excludes them, as the end of a message: "it trains nothing".
        range: The least and the greatest number; by default numbers of 32 bits.
    """

    name: str
    help: str
    default: str | int | float | bool | None = None
    value_type: type[str] | type[int] | type[float] | type[bool] = str
    required: bool = False
    choices: tuple[str, ...] = ()
    makes_optional: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    because: str = ""
    range: Range | None = None


@dataclasses.dataclass(frozen=True)
class Command:
    """The declaration of a command.

    Attributes:
        name: The name, as in `python -m launch.NAME`.
        description: Its text in the output of --help.
        example: The flags of an example call.
        flags: The flags.
        takes_config: Whether it takes --config and --config.KEY=VALUE.
        resumes: Whether --config may be omitted if --workdir holds a run, which recorded its config.
        before_jax: What must be done to this process before jax is imported, such as setting environment variables.
        repeats_steps: Whether it computes step after step, for which freed memory is kept.
        package: Where its module is: `launch`, or a package of the checkout whose commands are not installed.
    """

    name: str
    description: str
    example: str
    flags: tuple[Flag, ...] = ()
    takes_config: bool = False
    resumes: bool = False
    before_jax: "Callable[[Arguments], None] | None" = None
    repeats_steps: bool = True
    package: str = "launch"

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


# For commands that read a run: its config.json may be a stranger's, and a dotted path in it is code.
TRUST = Flag(
    "trust",
    "names in the run's config.json that you trust, separated by commas: your own modules, data sets to download, "
    "and files, folders and runs outside of the run",
)

TRACKERS = Flag("trackers", "also log metrics to these, separated by commas: wandb, mlflow, trackio")

VMAP = Flag(
    "vmap",
    "train N runs with the same program as one, by jax.vmap (default: 1)",
    value_type=int,
    range=Range(1, 1024),
)

LANGUAGE_MODEL = Flag(
    "language_model", "the run of a character language model that rescores the beams (shallow fusion)"
)
LANGUAGE_WEIGHT = Flag(
    "language_model_weight",
    "the weight of the language model's score (default: 0.3)",
    value_type=float,
    needs=("language_model",),
)

ENSEMBLE = Flag("ensemble", "further run directories, separated by commas, to average probabilities with")


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


class Arguments(types.SimpleNamespace):
    """The parsed flags of one call, as attributes by name.

    Attributes:
        base: The values of the config file, or of the run's recorded config.
        config_file: The value of --config.
        config_overrides: The arguments --config.KEY=VALUE.
        argv: All arguments of the call, each flag joined with its value.
    """

    base: Mapping[str, Any]
    config_file: str
    config_overrides: tuple[str, ...]
    argv: tuple[str, ...]

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
        if self.config_overrides:
            # imports jax
            from transformer.training.config import apply_text_overrides

            values = apply_text_overrides(values, map(split_override, self.config_overrides))
        return values

    @property
    def overridden_keys(self) -> tuple[str, ...]:
        """The config keys that the call sets, by --config.KEY=VALUE or by --data_dir."""
        return (*self.overrides, *([] if getattr(self, "data_dir", None) is None else [DATA_DIR_KEY]))

    @property
    def config_topology(self) -> str:
        """The config's `topology`, without resolving the config, which imports jax; "" if it names none."""
        return self.overrides.get("topology", self.base.get("topology")) or ""

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
            if DATA_DIR_KEY in keys and getattr(self, "data_dir", None) is not None:
                raise UserError(f"--data_dir would replace config.{DATA_DIR_KEY}, which {owner} sets: omit it")

    @property
    def trusted(self) -> tuple[str, ...]:
        """The dotted paths of code that the user trusts (--trust)."""
        return tuple(filter(None, (self.trust or "").split(",")))

    @property
    def trusted_names(self) -> tuple[str, ...] | None:
        """The names of code and downloads that the user has given; None if --config is the user's own file."""
        return None if self.config_file else (*self.trusted, *self.overrides.values())

    @property
    def ensembled(self) -> tuple[str, ...]:
        """The directories of the runs that join the ensemble (--ensemble)."""
        return tuple(filter(None, (self.ensemble or "").split(",")))

    @property
    def language_model_and_weight(self) -> tuple[str | None, float]:
        """The run of the language model (--language_model) and the weight of its score."""
        return self.language_model, 0.3 if self.language_model_weight is None else self.language_model_weight

    def omit_flags(self, *names: str) -> list[str]:
        """Return the arguments of the call without these flags."""
        return [word for word in self.argv if word.partition("=")[0] not in {f"--{name}" for name in names}]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the command declares no flag {name!r}")


def split_override(word: str) -> tuple[str, str]:
    """Split a word --config.KEY=VALUE into the dotted key and the text of the value.

    Raises:
        UserError: If the word has another form.
    """
    key, equals, value = word.split(".", 1)[1].partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"malformed override {word!r}: write --config.KEY=VALUE, as --config.seed=1")
    return key, value
