"""The model families, found by name: each is a module that exports a FAMILY."""

from collections.abc import Mapping
from typing import Any

from transformer.config import UserError, choice, from_config, to_config
from transformer.layers.functional_module import Precision
from transformer.models.model import Model
from transformer.models.model_family import ModelFamily, PublishedSize
from transformer.models.published_sizes import PUBLISHED_SIZES
from transformer.models.task_interface import TaskInterface
from transformer.module_registry import Exports

FAMILIES = Exports("transformer.models", "FAMILY", ModelFamily, "config.model.family")


def published_sizes() -> dict[str, PublishedSize]:
    """The published models of all families of this library by name, those of families that are not built here too."""
    own = {name: size for family in FAMILIES.names() for name, size in FAMILIES[family].sizes.items()}
    return {**PUBLISHED_SIZES, **own}


def model_schema(values: Mapping[str, Any]) -> type:
    """The config dataclass of the family that a model section chooses, by its `family` or its `size`.

    Raises:
        UserError: For an unknown family or size, and for a key that contradicts the size.
    """
    return FAMILIES[fill_from_size(values).get("family", "")].config


def model_config(values: Mapping[str, Any]) -> Any:
    """The checked config dataclass of the family that `values["family"]` names.

    `values["size"]`, where it is not None, names a published model (transformer.models.model_family), which says
    whatever `values` does not, the family too.

    Raises:
        UserError: As `model_schema`
        UserError: For an unknown key.
    """
    filled = fill_from_size(values)
    cls = FAMILIES[filled.get("family", "")].config
    return from_config(cls, {k: v for k, v in filled.items() if k != "family"}, "config.model")


def build(config: Any, interface: TaskInterface, precision: Precision) -> Model:
    """The model of a family's config for a task's interface.

    Raises:
        UserError: For a family that does not predict what the task asks for, and whatever the family refuses.
    """
    name = name_of(config)
    required, family = interface.signature, FAMILIES[name]
    if required is not None and required not in family.signatures:
        suitable = [other for other in FAMILIES.all_names() if required in FAMILIES[other].signatures]
        supported = "; ".join(sorted(map(str, family.signatures))) or "nothing"
        raise UserError(
            f"config.model.family={name} supports {supported}, but the task needs {required}: "
            + (f"use config.model.family={' or '.join(suitable)}" if suitable else "no family supports it")
        )
    return family.build(config, interface, precision)


def name_of(config: Any) -> str:
    """The name under which a config's family is known."""
    return FAMILIES.name_of(config)


def fill_from_size(values: Mapping[str, Any]) -> dict[str, Any]:
    """A model section in which the keys that are not given have the values of its `size`; as it is without a size.

    None says nothing, like a key that is absent; a family of this library may be left out.

    Raises:
        UserError: For an unknown size (with the nearest), and a key that says otherwise than the size, with both
            values.
    """
    name = values.get("size")
    if name is None:
        return dict(values)
    size = _size(values)
    fixed = _fixed(size)
    given = {key: value for key, value in values.items() if value is not None}
    for key, value in fixed.items():
        if key in given and not _same(given[key], value):
            raise UserError(
                f"config.model.{key}={to_config(given[key])!r} contradicts config.model.size={name!r}, which has "
                f"{key}={to_config(value)!r}; leave one of them out"
            )
    return {**values, **{key: value for key, value in fixed.items() if key not in given}}


def change_size(values: Mapping[str, Any], size: str | None) -> dict[str, Any]:
    """A model section whose `size` becomes another one: what its former size fixes goes with that.

    Without a size the section stays what it is, with the former size's values written out.

    Raises:
        UserError: For a former size that is unknown.
    """
    former = values.get("size")
    if former is None or size is None:
        return {**fill_from_size(values), "size": size}
    said = _fixed(_size(values))
    kept = {key: value for key, value in values.items() if key not in said or not _same(value, said[key])}
    return {**kept, "size": size}


def depart_from_size(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A model section in which the keys `changes` may be set to other values than its `size` fixes.

    Where one of them is, the model is no longer that published one: its size is none, and its values are written out.
    """
    if values.get("size") is None:
        return dict(values)
    said = _fixed(_size(values))
    departs = any(key in said and not _same(value, said[key]) for key, value in changes.items())
    return change_size(values, None) if departs else dict(values)


def _size(values: Mapping[str, Any]) -> PublishedSize:
    """The size that a section names: one of the library's, or of the family from elsewhere that it names as well."""
    family = str(values.get("family") or "")
    own = FAMILIES[family].sizes if "." in family else {}
    return choice(str(values["size"]), {**published_sizes(), **own}, "config.model.size")


def _fixed(size: PublishedSize) -> dict[str, Any]:
    return {"family": size.family, **size.values}


def _same(one: Any, other: Any) -> bool:
    return to_config(one) == to_config(other)
