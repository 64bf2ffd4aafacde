"""An experiment: every section of a config checked and with its defaults, its keys, overrides and listing.

A config gives the values that differ from the defaults. The task, the model's family and the model's size determine
which keys exist, so these three are set first.
"""

import dataclasses
import shlex
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from transformer.config import (
    COMPILER_FLAGS,
    RunConfig,
    UserError,
    flatten_config,
    from_config,
    hash_config,
    to_config,
)
from transformer.layers.functional_module import Precision
from transformer.maps.capture_plan import MapStorageConfig
from transformer.models import registry as models
from transformer.models.registry import change_size, fill_from_size, remove_contradicted_size
from transformer.overrides import (
    ReadValue,
    SchemaSection,
    SchemaValue,
    config_keys_overlap,
    field_schema,
    find_key,
    override_flag,
    parse_value,
    read_override,
    replace_keys,
    section_schema,
    to_plain_value,
)
from transformer.tasks import registry as tasks
from transformer.training.init_plan import InitializeFromConfig
from transformer.training.learning_rate import depends_on_steps
from transformer.training.optimizer import OptimizerConfig
from transformer.training.parameter_averages import ParameterAverage
from transformer.training.partitioning import ShardingConfig
from transformer.training.update_guard import UpdateGuardConfig

_CHOICES = SchemaSection(
    {
        "model": SchemaSection({"family": SchemaValue(str), "size": SchemaValue(str | None)}),
        "task": SchemaSection({"name": SchemaValue(str)}),
    }
)
_CHOOSING = ("model.size", "model.family", "task.name")


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Every section of a config, checked and with its defaults filled in.

    Attributes:
        run: The top level.
        task: The config of the task.
        model: The config of the model's family.
        optimizer: The optimizer of all objectives without one of their own.
        optimizers: The optimizers of single objectives, by name.
        parameter_averages: The averages of parameters, by name.
        precision: The types of parameters and of computation.
        maps: The size and the budget of stored maps.
        sharding: The device mesh and the partitioning over it.
        initialize_from: The source of the initial parameters.
        update_guard: Which updates are skipped.
    """

    run: RunConfig
    task: Any
    model: Any
    optimizer: OptimizerConfig
    optimizers: Mapping[str, OptimizerConfig]
    parameter_averages: Mapping[str, ParameterAverage]
    precision: Precision
    maps: MapStorageConfig
    sharding: ShardingConfig
    initialize_from: InitializeFromConfig = dataclasses.field(default_factory=InitializeFromConfig)
    update_guard: UpdateGuardConfig = dataclasses.field(default_factory=UpdateGuardConfig)

    @property
    def eval_parameters(self) -> str:
        """The parameters by which the run is judged, shown and published: "raw", or the name of an average."""
        return getattr(self.task, "eval_parameters", "raw")

    def to_config(self) -> dict[str, Any]:
        """Return the resolved config as plain values: the content of `config.json`."""
        return {
            **to_config(self.run),
            "task": {"name": tasks.task_name(self.task), **to_config(self.task)},
            "model": {"family": models.family_name(self.model), **to_config(self.model)},
            "optimizer": to_config(self.optimizer),
            "optimizers": to_config(self.optimizers),
            "parameter_averages": to_config(self.parameter_averages),
            "precision": to_config(self.precision),
            "maps": to_config(self.maps),
            "sharding": to_config(self.sharding),
            "initialize_from": to_config(self.initialize_from),
            "update_guard": to_config(self.update_guard),
        }

    def optimizer_of(self, objective: str) -> OptimizerConfig:
        """Return the optimizer of one of the task's objectives."""
        return self.optimizers.get(objective, self.optimizer)


def resolve_config(values: Mapping[str, Any]) -> ExperimentConfig:
    """Check a nested config and fill in its defaults.

    A family or task given by a dotted path is imported, which runs its code; check recorded configs of others with
    `transformer.runs.trust.check_trusted` first.

    Args:
        values: The config as nested mappings, as in config.json.

    Raises:
        UserError: If a key is unknown or missing, or a value is invalid; the message names the first.

    Example:
        ```python
        from transformer.training.config import resolve_config

        experiment = resolve_config({
            "name": "small",
            "steps": 100,
            "checkpoint_every": 100,
            "task": {"name": "language_modeling", "dataset": "repeated"},
            "model": {"family": "decoder", "size": "gpt2"},
            "optimizer": {"learning_rate": 1e-3},
        })
        experiment.task.batch_size  # 16
        ```
    """
    run = from_config(RunConfig, values)
    optimizers = {
        name: from_config(OptimizerConfig, {**run.optimizer, **section}, f"config.optimizers.{name}")
        for name, section in run.optimizers.items()
    }
    averages = {
        name: from_config(ParameterAverage, section, f"config.parameter_averages.{name}")
        for name, section in run.parameter_averages.items()
    }
    experiment = ExperimentConfig(
        run=run,
        task=tasks.task_config(run.task),
        model=models.model_config(run.model),
        optimizer=from_config(OptimizerConfig, run.optimizer, "config.optimizer"),
        optimizers=optimizers,
        parameter_averages=averages,
        precision=from_config(Precision, run.precision, "config.precision"),
        maps=from_config(MapStorageConfig, run.maps, "config.maps"),
        sharding=from_config(ShardingConfig, run.sharding, "config.sharding"),
        initialize_from=from_config(InitializeFromConfig, run.initialize_from, "config.initialize_from"),
        update_guard=from_config(UpdateGuardConfig, run.update_guard, "config.update_guard"),
    )
    parameters = experiment.eval_parameters
    if parameters != "raw" and parameters not in averages:
        raise UserError(
            f"config.task.eval_parameters={parameters!r} is no average of this run; say raw"
            + "".join(f" or {name}" for name in averages)
        )
    return experiment


def config_hash(experiment: ExperimentConfig) -> str:
    """Return the SHA-256 of the resolved config."""
    return hash_config(experiment.to_config())


def changeable_keys(experiment: ExperimentConfig) -> tuple[str, ...]:
    """Return the keys that may change when a run is resumed: of devices, reports and length, not of the result."""
    often = (
        "log_every",
        "eval_every",
        "maps_every",
        "checkpoint_every",
        "keep_checkpoints",
        "permanent_checkpoint_every",
    )
    # Where the data are: their contents are compared with those of the checkpoint.
    data = ("task.data_dir", "task.dataset", "task.validation_files", "task.test_files", "task.shards_dir")
    keys = (
        *often,
        *data,
        "task.num_tokenizing_processes",
        *COMPILER_FLAGS,
        "sharding",
        "topology",
        "update_guard.max_consecutive_skips",
    )
    return keys if _schedules_end(experiment) else (*keys, "steps")


def _schedules_end(experiment: ExperimentConfig) -> bool:
    """Return whether the learning rate of any objective depends on the number of steps."""
    if any(depends_on_steps(own.schedule) for own in experiment.optimizers.values()):
        return True
    if not depends_on_steps(experiment.optimizer.schedule) or not experiment.optimizers:
        return depends_on_steps(experiment.optimizer.schedule)
    # The shared schedule ends: it counts unless every objective has an optimizer of its own.
    objectives = tasks.build_synthetic_task(experiment.task).objectives
    return any(objective.name not in experiment.optimizers for objective in objectives)


def config_schema(values: Mapping[str, Any]) -> SchemaSection:
    """Return the tree of all keys of a config, each with its type and its default.

    Args:
        values: The config, whose task, family and size determine the keys. A named size gives the defaults of its keys.

    Raises:
        UserError: If the task, family or size is unknown or missing.
    """
    sections = typing.get_type_hints(ExperimentConfig)
    keys = dict(section_schema(RunConfig).keys)
    keys |= {
        name: field_schema(hint, value=values.get(name))
        for name, hint in sections.items()
        if name not in ("run", "task", "model")
    }
    return SchemaSection({**keys, "task": _task(_section(values, "task")), "model": _model(_section(values, "model"))})


def apply_overrides(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config with some keys replaced.

    A mapping replaces a whole group, before the keys inside it are set. A list serves as a tuple, an integer as a
    float. Overriding a key of a named model size turns the model into one without a named size that differs in that key
    alone.

    Args:
        base: The nested config.
        overrides: The new values by dotted key, without "config.".

    Raises:
        UserError: If no config with this task and family has the key, a value has another type, or a key of `base` does
            not exist under the new task or family.
    """
    return _override(base, overrides, to_plain_value)


def apply_text_overrides(base: Mapping[str, Any], words: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Apply `apply_overrides` to dotted keys with values as text, such as command-line flags.

    Args:
        base: The nested config.
        words: Pairs of a dotted key and its value.

    Raises:
        UserError: If a key does not exist or is given twice, also as a key of a group that is given, or if its text
            does not parse as the type of the field.
    """
    overrides: dict[str, str] = {}
    for key, value in words:
        for other in overrides:
            if config_keys_overlap(key, other):
                both = f"--config.{other}={overrides[other]} and --config.{key}={value}"
                raise UserError(f"{both} set the same key: leave one of them out")
        overrides[key] = value
    return _override(base, overrides, parse_value)


def format_as_flags(values: Mapping[str, Any], highlighted: Iterable[str] = ()) -> str:
    """Format all keys of a config with their values as command-line flags, one a line.

    A key that differs from its default is marked * and has the default in a comment; the default of an objective's
    optimizer is `optimizer`.

    Args:
        values: The nested config.
        highlighted: Dotted keys that are marked >.

    Raises:
        UserError: If the config is invalid.
    """
    resolved = resolve_config(values).to_config()
    tree, highlighted, flat = config_schema(values), set(highlighted), flatten_config(resolved)
    title = "* differs from its default, > given on the command line"
    lines: dict[str, list[str]] = {"": [f"# {resolved['name']}: {title}"]}
    for key, value in flat.items():
        section = key.partition(".")[0] if "." in key else ""
        node = find_key(tree, key)
        if isinstance(node, SchemaSection):  # a group without keys, such as no averages
            lines.setdefault(key, ["", f"# {key}: none"])
            continue
        # The defaults of an objective's optimizer are the values of `optimizer`.
        default = flat[f"optimizer.{key.rpartition('.')[2]}"] if section == "optimizers" else node.default
        own = default is not dataclasses.MISSING and default == value
        marks = ("" if own else "*") + (">" if key in highlighted else "")
        example = "" if own or default in (dataclasses.MISSING, "") else override_flag("", default).partition("=")[2]
        comment = f"  # {marks}{f' default {example}' if example else ''}" if marks else ""
        word = shlex.quote(override_flag(key, value))
        lines.setdefault(section, ["", f"# {section}"]).append(f"{word:<50}{comment}".rstrip())
    return "\n".join(line for group in lines.values() for line in group)


def _override(base: Mapping[str, Any], overrides: Mapping[str, Any], read: ReadValue) -> dict[str, Any]:
    choices = {key: value for key, value in overrides.items() if key in (*_CHOOSING, *_CHOICES.keys)}
    rest = {key: value for key, value in overrides.items() if key not in choices}
    values = _choose(base, choices, read)
    tree = config_schema(values)
    for key in choices:
        _refuse_left_over(key, tree, values)
    if "model.size" not in choices:
        changes = {key.removeprefix("model."): key for key in rest if key.startswith("model.")}
        read_changes = {name: read_override(tree, key, rest[key], read) for name, key in changes.items()}
        values["model"] = remove_contradicted_size(values["model"], read_changes)
    return replace_keys(values, rest, tree, read)


def _choose(base: Mapping[str, Any], choices: Mapping[str, Any], read: ReadValue) -> dict[str, Any]:
    """Set the keys that determine others: whole sections, then the size, then family and task."""
    values = dict(base)
    for key in (*_CHOICES.keys, *_CHOOSING):
        if key not in choices:
            continue
        value = read_override(_CHOICES, key, choices[key], read)
        section, dot, name = key.partition(".")
        if not dot:
            values[section] = value
        elif name == "size":
            values[section] = change_size(_section(values, section), value)
        else:
            values[section] = {**_section(values, section), name: value}
    return values


def _refuse_left_over(key: str, tree: SchemaSection, values: Mapping[str, Any]) -> None:
    """Refuse a key of the config that does not exist under the choice of the override `key`.

    Raises:
        UserError: If there is such a key.
    """
    section, dot, _ = key.partition(".")
    group = tree.keys[section]
    if not dot or not isinstance(group, SchemaSection):
        return
    for name in values[section]:
        if name not in group.keys:
            raise UserError(
                f"config.{section}.{name}={values[section][name]!r} is said in the config, but the {group.chosen_by}, "
                f"which config.{key} chooses, has no such key: write a config file for it that leaves the key out"
            )


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    if not isinstance(section, Mapping):
        raise UserError(f"config.{name}={section!r} must be a group of keys: write them in the config file")
    return section


def _task(values: Mapping[str, Any]) -> SchemaSection:
    group = section_schema(tasks.task_schema(values), values=values)
    return group._replace(keys={"name": SchemaValue(str), **group.keys}, chosen_by=f"task {values['name']}")


def _model(values: Mapping[str, Any]) -> SchemaSection:
    """Return the keys of the model's family; a named size gives the defaults of those that it fixes."""
    group = section_schema(models.model_config_class(values), values=values)
    keys = {"family": SchemaValue(str), **group.keys}
    family_and_size = {key: values.get(key) for key in ("family", "size")}
    # Without a size these keys have no default: the family has none.
    size_values = (
        {}
        if family_and_size["size"] is None
        else {key: value for key, value in fill_from_size(family_and_size).items() if key != "size"}
    )
    for key, value in size_values.items():
        node = keys.get(key)
        if isinstance(node, SchemaValue):
            keys[key] = node._replace(default=to_config(value))
    return group._replace(keys=keys, chosen_by=f"family {fill_from_size(values)['family']}")
