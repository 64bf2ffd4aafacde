"""The registry of model families by name, and model configs from `config.model` sections."""

from collections.abc import Mapping
from typing import Any

from transformer.config import UserError, from_config, lookup_by_name, to_config
from transformer.layers.functional_module import Precision
from transformer.models.model import Model
from transformer.models.model_family import ModelFamily, PublishedSize
from transformer.models.published_sizes import PUBLISHED_SIZES
from transformer.models.task_interface import TaskInterface
from transformer.system.module_registry import ModuleRegistry

# `config.model.family` is the name of a module: "decoder" is transformer/models/decoder.py, a dotted path any other,
# such as experiments.graphs.model. Each module exports its `FAMILY`.
FAMILIES = ModuleRegistry("transformer.models", "FAMILY", ModelFamily, "config.model.family")


def published_sizes() -> dict[str, PublishedSize]:
    """Return the published sizes of all families of this library, by name."""
    own = {name: size for family in FAMILIES.names() for name, size in FAMILIES[family].sizes.items()}
    return {**PUBLISHED_SIZES, **own}


def model_config_class(values: Mapping[str, Any]) -> type:
    """Return the config dataclass of the family that a `config.model` section names by `family` or `size`.

    Raises:
        UserError: If family or size is unknown, or if a key contradicts the size.
    """
    return FAMILIES[fill_from_size(values).get("family", "")].config_class


def model_config(values: Mapping[str, Any]) -> Any:
    """Return the checked model config of a `config.model` section.

    Args:
        values: The section. `values["size"]`, if not None, names a published size, which gives every key that the
            section does not set, `family` included.

    Returns:
        An instance of the family's config dataclass.

    Raises:
        UserError: If family, size or a key is unknown, or if a key contradicts the size.
    """
    filled = fill_from_size(values)
    cls = FAMILIES[filled.get("family", "")].config_class
    return from_config(cls, {k: v for k, v in filled.items() if k != "family"}, "config.model")


def build(config: Any, interface: TaskInterface, precision: Precision) -> Model:
    """Build the model of a config for a task.

    Args:
        config: The model config.
        interface: What the task requires.
        precision: The types of parameters and computation.

    Returns:
        The model.

    Raises:
        UserError: If the family does not support the task, or if the config does not fit it.
    """
    name = family_name(config)
    required, family = interface.signature, FAMILIES[name]
    if required is not None and required not in family.signatures:
        suitable = [candidate for candidate in FAMILIES.all_names() if required in FAMILIES[candidate].signatures]
        supported = "; ".join(sorted(map(str, family.signatures))) or "nothing"
        raise UserError(
            f"config.model.family={name} supports {supported}, but the task needs {required}: "
            + (f"use config.model.family={' or '.join(suitable)}" if suitable else "no family supports it")
        )
    return family.build(config, interface, precision)


def family_name(config: Any) -> str:
    """Return the name of the family that a config belongs to."""
    return FAMILIES.name_of(config)


def fill_from_size(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill the absent keys of a `config.model` section with the values of its `size`.

    Args:
        values: The section; a value of None counts as absent.

    Returns:
        The section with all keys; unchanged without a size.

    Raises:
        UserError: If the size is unknown (suggests the nearest), or if a key contradicts it (gives both values).
    """
    name = values.get("size")
    if name is None:
        return dict(values)
    size = _lookup_size(values)
    fixed = _fixed_values(size)
    explicit = {key: value for key, value in values.items() if value is not None}
    for key, value in fixed.items():
        if key in explicit and not _is_same_value(explicit[key], value):
            raise UserError(
                f"config.model.{key}={to_config(explicit[key])!r} contradicts config.model.size={name!r}, which has "
                f"{key}={to_config(value)!r}; leave one of them out"
            )
    return {**values, **{key: value for key, value in fixed.items() if key not in explicit}}


def change_size(values: Mapping[str, Any], size: str | None) -> dict[str, Any]:
    """Change the `size` of a `config.model` section and remove the values that the former size fixes.

    Args:
        values: The section.
        size: The new size. With None the model stays the same, and the former size's values are written out.

    Returns:
        The new section.

    Raises:
        UserError: If the former size is unknown.
    """
    former = values.get("size")
    if former is None or size is None:
        return {**fill_from_size(values), "size": size}
    fixed = _fixed_values(_lookup_size(values))
    remaining = {
        key: value for key, value in values.items() if key not in fixed or not _is_same_value(value, fixed[key])
    }
    return {**remaining, "size": size}


def remove_contradicted_size(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the `size` of a `config.model` section if `changes` contradict it.

    The model is then no longer the published one, and its other values are written out.

    Args:
        values: The section.
        changes: The keys that will change, with their new values.

    Returns:
        The section, without `changes`.

    Raises:
        UserError: If the size is unknown.
    """
    if values.get("size") is None:
        return dict(values)
    fixed = _fixed_values(_lookup_size(values))
    departs = any(key in fixed and not _is_same_value(value, fixed[key]) for key, value in changes.items())
    return change_size(values, None) if departs else dict(values)


def _lookup_size(values: Mapping[str, Any]) -> PublishedSize:
    """Return the size that a section names, from the library or from the external family of the section."""
    family = str(values.get("family") or "")
    own = FAMILIES[family].sizes if "." in family else {}
    return lookup_by_name(str(values["size"]), {**published_sizes(), **own}, "config.model.size")


def _fixed_values(size: PublishedSize) -> dict[str, Any]:
    return {"family": size.family, **size.config_values}


def _is_same_value(first: Any, second: Any) -> bool:
    return to_config(first) == to_config(second)
