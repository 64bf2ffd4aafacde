"""The model families, found by name: each is a module that exports a FAMILY."""

from collections.abc import Collection, Mapping
from typing import Any

from transformer.config import UserError, choice, from_config, to_config
from transformer.models.contract import Family, Interface, Model, Operations, Precision
from transformer.models.published import PUBLISHED
from transformer.models.sizes import Size
from transformer.named import Exports

FAMILIES = Exports("transformer.models", "FAMILY", Family, "config.model.family")


def sizes() -> dict[str, Size]:
    """The published models of all families of this library by name, those of families that are not built here too."""
    own = {name: size for family in FAMILIES.names() for name, size in FAMILIES[family].sizes.items()}
    return {**PUBLISHED, **own}


def config_class(values: Mapping[str, Any], trusted: Collection[str] | None = None) -> type:
    """The dataclass of the family that a model section names, itself or by its `size`.

    Errors: as `model_config`.
    """
    FAMILIES.check_trusted(values.get("family", ""), trusted)  # before its sizes are looked at
    name = fill(values).get("family", "")
    FAMILIES.check_trusted(name, trusted)
    return FAMILIES[name].config


def model_config(values: Mapping[str, Any], trusted: Collection[str] | None = None) -> Any:
    """The checked config dataclass of the family that `values["family"]` names.

    `values["size"]`, where it is not None, names a published model (transformer.models.sizes), which says whatever
    `values` does not, the family too. `trusted` are the dotted paths that may be followed; None: all.

    Errors: UserError for an unknown family, size or key, for a key that contradicts the size, and for code that is not
    trusted.
    """
    cls = config_class(values, trusted)
    return from_config(cls, {k: v for k, v in fill(values).items() if k != "family"}, "config.model")


def build(config: Any, interface: Interface, precision: Precision) -> Model:
    """The model of a family's config for a task's interface.

    Errors: UserError for a family that does not predict what the task asks for, and whatever the family refuses.
    """
    name = name_of(config)
    wanted, family = interface.signature, FAMILIES[name]
    if wanted is not None and wanted not in family.serves:
        able = [other for other in FAMILIES.names() if wanted in FAMILIES[other].serves]
        served = "; ".join(sorted(map(str, family.serves))) or "nothing"
        raise UserError(
            f"config.model.family={name} serves {served}, but the task asks for {wanted}: "
            + (f"say config.model.family={' or '.join(able)}" if able else "no family of this library serves that")
        )
    return family.build(config, interface, precision)


def operations(config: Any, batch: Mapping[str, Any], vocabularies: Mapping[str, int]) -> Operations | None:
    """The operations of a batch by the formula of the config's family; None where it has none."""
    formula = FAMILIES[name_of(config)].operations
    return None if formula is None else formula(config, batch, vocabularies)


def name_of(config: Any) -> str:
    """The name under which a config's family is known."""
    return FAMILIES.name_of(config)


def fill(values: Mapping[str, Any]) -> dict[str, Any]:
    """A model section in which the keys that are not given have the values of its `size`; as it is without a size.

    None says nothing, like a key that is absent; a family of this library may be left out.

    Errors: UserError for an unknown size (with the nearest), one that is not built here, and a key that says
    otherwise than the size, with both values.
    """
    name = values.get("size")
    if name is None:
        return dict(values)
    family = str(values.get("family") or "")
    own = FAMILIES[family].sizes if "." in family else {}
    size = choice(str(name), {**sizes(), **own}, "config.model.size")
    if size.stated is not None:
        raise UserError(
            f"config.model.size={name!r} is listed by its shape alone: the family {size.family!r} is not built here"
        )
    fixed = {"family": size.family, **size.values}
    given = {key: value for key, value in values.items() if value is not None}
    for key, value in fixed.items():
        if key in given and to_config(given[key]) != to_config(value):
            raise UserError(
                f"config.model.{key}={to_config(given[key])!r} contradicts config.model.size={name!r}, which has "
                f"{key}={to_config(value)!r}; leave one of them out"
            )
    return {**values, **{key: value for key, value in fixed.items() if key not in given}}
