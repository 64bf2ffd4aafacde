"""Frozen dataclasses as pytrees, with static fields and array fields that name their axes."""

import dataclasses
import typing
from typing import Any

import jax


def static_field(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is part of the pytree's structure: known at trace time; a new value means a new trace."""
    return dataclasses.field(default=default, metadata={"static": True})


def array_field(*axes: Any, default: Any = dataclasses.MISSING, counts: str | None = None) -> Any:
    """Declare a field that is an array, or a tuple of arrays.

    Args:
        *axes: Names of its axes; for a pair of arrays, a tuple of names for each.
        default: The default value; the field is required without it.
        counts: The axis whose positions the array's numbers are; they shift with the beginning of a block of that axis.
    """
    return dataclasses.field(default=default, metadata={"axes": axes, "counts": counts})


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static_field, array_field))
def pytree_dataclass[T](cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree of its fields, except those declared as `static_field`."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def field_axes(tree: Any) -> list[tuple[str, ...]]:
    """The axes of every array of a dataclass, in the order of its leaves."""
    collected: list[tuple[str, ...]] = []
    for field in dataclasses.fields(tree):
        value, axes = getattr(tree, field.name), field.metadata.get("axes")
        if axes is None and dataclasses.is_dataclass(value):
            collected += field_axes(value)
        elif axes is not None and value is not None:
            collected += axes if isinstance(value, tuple) else [axes]
    return collected
