"""Dataclasses of arrays: which fields are no arrays, and which axes those have that are."""

import dataclasses
import typing
from typing import Any

import jax


def static_field(*, default: Any = dataclasses.MISSING) -> Any:
    """A field that belongs to the structure of a pytree: known when a program is traced, another value another one."""
    return dataclasses.field(default=default, metadata={"static": True})


def array_field(*axes: Any, default: Any = dataclasses.MISSING, counts: str | None = None) -> Any:
    """A field that is an array with these axes; of a pair of arrays, a tuple of axes for each.

    `counts`: the axis whose positions its numbers are, so that they shift where a part of that axis begins.
    """
    return dataclasses.field(default=default, metadata={"axes": axes, "counts": counts})


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static_field, array_field))
def pytree_dataclass[T](cls: type[T]) -> type[T]:
    """A frozen dataclass that is a pytree of its fields, those that are `static_field` apart."""
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
