"""An experiment: every section of a config checked, with its defaults; every key, its override and its listing.

A config gives the values that differ from the defaults. Its task, its model's family and its model's size choose which
keys exist; these three are therefore set first.
"""

import dataclasses
import shlex
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from transformer.config import RunConfig, UserError, flatten, from_config, hash_config, to_config
from transformer.layers.functional_module import Precision
from transformer.maps.capture_plan import MapsConfig
from transformer.models import registry as models
from transformer.models.registry import change_size, depart_from_size, fill_from_size
from transformer.overrides import (
    Group,
    Leaf,
    Read,
    find,
    flag,
    from_text,
    from_value,
    group_of,
    override,
    read_key,
    schema_node_of,
)
from transformer.tasks import registry as tasks
from transformer.training.init_from import InitializeFromConfig
from transformer.training.optimizer import LearningRateSchedule, OptimizerConfig
from transformer.training.parameter_averages import ParameterAverage
from transformer.training.partitioning import ShardingConfig
from transformer.training.update_guard import UpdateGuardConfig

_CHOICES = Group({"model": Group({"family": Leaf(str), "size": Leaf(str | None)}), "task": Group({"name": Leaf(str)})})
_CHOOSING = ("model.size", "model.family", "task.name")


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Every section of a config, checked and with its defaults filled in."""

    run: RunConfig
    task: Any
    model: Any
    optimizer: OptimizerConfig
    optimizers: Mapping[str, OptimizerConfig]
    parameter_averages: Mapping[str, ParameterAverage]
    precision: Precision
    maps: MapsConfig
    sharding: ShardingConfig
    initialize_from: InitializeFromConfig = dataclasses.field(default_factory=InitializeFromConfig)
    update_guard: UpdateGuardConfig = dataclasses.field(default_factory=UpdateGuardConfig)

    @property
    def eval_parameters(self) -> str:
        """The parameters that a run is judged by, and so shown and published: "raw", or the name of an average."""
        return getattr(self.task, "eval_parameters", "raw")

    def to_config(self) -> dict[str, Any]:
        """The resolved config as plain values: what `config.json` holds."""
        return {
            **to_config(self.run),
            "task": {"name": tasks.name_of(self.task), **to_config(self.task)},
            "model": {"family": models.name_of(self.model), **to_config(self.model)},
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
        """The optimizer of one of the task's objectives."""
        return self.optimizers.get(objective, self.optimizer)


def resolve_config(values: Mapping[str, Any]) -> ExperimentConfig:
    """Check a nested config and fill in its defaults.

    A family or task given by a dotted path is imported as code: see `transformer.trust.check_trusted` for recorded
    configs.

    Raises:
        UserError: Naming the first unknown key, missing key, or invalid value.
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
        maps=from_config(MapsConfig, run.maps, "config.maps"),
        sharding=from_config(ShardingConfig, run.sharding, "config.sharding"),
        initialize_from=from_config(InitializeFromConfig, run.initialize_from, "config.initialize_from"),
        update_guard=from_config(UpdateGuardConfig, run.update_guard, "config.update_guard"),
    )
    wanted = experiment.eval_parameters
    if wanted != "raw" and wanted not in averages:
        raise UserError(
            f"config.task.eval_parameters={wanted!r} is no average of this run; say raw"
            + "".join(f" or {name}" for name in averages)
        )
    return experiment


def config_hash(experiment: ExperimentConfig) -> str:
    """The SHA-256 of the resolved config."""
    return hash_config(experiment.to_config())


def changeable_keys(experiment: ExperimentConfig) -> tuple[str, ...]:
    """The keys that may differ when a run is resumed: of its devices, reports and length, not of its result."""
    often = ("log_every", "eval_every", "maps_every", "checkpoint_every", "keep_checkpoints", "milestone_every")
    keys = (*often, "task.data_dir", "sharding", "pod", "update_guard.max_consecutive_skips")
    lasting = experiment.optimizer.schedule in (LearningRateSchedule.CONSTANT, LearningRateSchedule.INVERSE_SQUARE_ROOT)
    return (*keys, "steps") if lasting else keys


def config_schema(values: Mapping[str, Any]) -> Group:
    """The tree of all keys of a config with these values, each with its type and its default.

    A named model size gives the defaults of its keys.

    Raises:
        UserError: For a task, family or size that is unknown or missing.
    """
    sections = typing.get_type_hints(ExperimentConfig)
    keys = dict(group_of(RunConfig).keys)
    keys |= {name: schema_node_of(hint) for name, hint in sections.items() if name not in ("run", "task", "model")}
    return Group({**keys, "task": _task(_section(values, "task")), "model": _model(_section(values, "model"))})


def apply_overrides(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `base` in which each dotted key, without "config.", has the value that `overrides` gives.

    A mapping replaces a whole group, before the keys in it are set. A list serves as a tuple, an integer as a number.
    A key that contradicts the model's size turns it into a model without a named size that differs in that key alone.

    Raises:
        UserError: For a key that no config with this task and family has (with the nearest one), a value of another
            type, and a key of `base` that another task or family has not.
    """
    return _override(base, overrides, from_value)


def apply_text_overrides(base: Mapping[str, Any], words: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """`apply_overrides` for dotted keys with their values as text; of two with one key the last counts.

    Raises:
        UserError: As `apply_overrides`
        UserError: For text that does not parse as the type of the key's field.
    """
    return _override(base, dict(words), from_text)


def format_as_flags(values: Mapping[str, Any], given: Iterable[str] = ()) -> str:
    """All keys of a config with their values as command-line flags, each with a comment.

    A key that differs from its default is marked * and has the default beside it, of an objective's optimizer what
    `optimizer` says; those of `given` are marked >.

    Raises:
        UserError: For an invalid config.
    """
    resolved = resolve_config(values).to_config()
    tree, given, flat = config_schema(values), set(given), flatten(resolved)
    title = "* differs from its default, > given on the command line"
    lines: dict[str, list[str]] = {"": [f"# {resolved['name']}: {title}"]}
    for key, value in flat.items():
        section = key.partition(".")[0] if "." in key else ""
        node = find(tree, key)
        if isinstance(node, Group):  # a group without keys, such as no averages
            lines.setdefault(key, ["", f"# {key}: none"])
            continue
        # An objective's optimizer has what `optimizer` says, where it says nothing of its own.
        default = flat[f"optimizer.{key.rpartition('.')[2]}"] if section == "optimizers" else node.default
        own = default is not dataclasses.MISSING and default == value
        marks = ("" if own else "*") + (">" if key in given else "")
        beside = "" if own or default in (dataclasses.MISSING, "") else flag("", default).partition("=")[2]
        comment = f"  # {marks}{f' default {beside}' if beside else ''}" if marks else ""
        word = shlex.quote(flag(key, value))
        lines.setdefault(section, ["", f"# {section}"]).append(f"{word:<50}{comment}".rstrip())
    return "\n".join(line for group in lines.values() for line in group)


def _override(base: Mapping[str, Any], overrides: Mapping[str, Any], read: Read) -> dict[str, Any]:
    chosen = {key: value for key, value in overrides.items() if key in (*_CHOOSING, *_CHOICES.keys)}
    rest = {key: value for key, value in overrides.items() if key not in chosen}
    values = _choose(base, chosen, read)
    tree = config_schema(values)
    for key in chosen:
        _refuse_left_over(key, tree, values)
    if "model.size" not in chosen:
        changes = {key.removeprefix("model."): key for key in rest if key.startswith("model.")}
        read_changes = {name: read_key(tree, key, rest[key], read) for name, key in changes.items()}
        values["model"] = depart_from_size(values["model"], read_changes)
    return override(values, rest, tree, read)


def _choose(base: Mapping[str, Any], chosen: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """The config with the keys set that choose others: whole sections, then the size, then family and task."""
    values = dict(base)
    for key in (*_CHOICES.keys, *_CHOOSING):
        if key not in chosen:
            continue
        value = read_key(_CHOICES, key, chosen[key], read)
        section, dot, name = key.partition(".")
        if not dot:
            values[section] = value
        elif name == "size":
            values[section] = change_size(_section(values, section), value)
        else:
            values[section] = {**_section(values, section), name: value}
    return values


def _refuse_left_over(key: str, tree: Group, values: Mapping[str, Any]) -> None:
    """Raise UserError for a key of the config that does not exist under the choice of the override `key`."""
    section, dot, _ = key.partition(".")
    group = tree.keys[section]
    if not dot or not isinstance(group, Group):
        return
    for name in values[section]:
        if name not in group.keys:
            raise UserError(
                f"config.{section}.{name}={values[section][name]!r} is said in the config, but the {group.chosen}, "
                f"which config.{key} chooses, has no such key: write a config file for it that leaves the key out"
            )


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    if not isinstance(section, Mapping):
        raise UserError(f"config.{name}={section!r} must be a group of keys: write them in the config file")
    return section


def _task(values: Mapping[str, Any]) -> Group:
    group = group_of(tasks.task_schema(values))
    return group._replace(keys={"name": Leaf(str), **group.keys}, chosen=f"task {values['name']}")


def _model(values: Mapping[str, Any]) -> Group:
    """The keys of the model's family; a named size gives the defaults of those that it fixes."""
    group = group_of(models.model_schema(values))
    keys = {"family": Leaf(str), **group.keys}
    named = {key: values.get(key) for key in ("family", "size")}
    # Without a size these keys have no default: the family has none.
    said = (
        {} if named["size"] is None else {key: value for key, value in fill_from_size(named).items() if key != "size"}
    )
    for key, value in said.items():
        node = keys.get(key)
        if isinstance(node, Leaf):
            keys[key] = node._replace(default=to_config(value))
    return group._replace(keys=keys, chosen=f"family {fill_from_size(values)['family']}")
