"""Frozen dataclasses as pytrees, with static fields, functions, and array fields that name their axes."""

import dataclasses
import typing
from collections.abc import Iterable
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


def function_field(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is a function: static unless it is a pytree, such as a `jax.tree_util.Partial`."""
    return dataclasses.field(default=default, metadata={"function": True})


def is_pytree(value: Any) -> bool:
    """Whether JAX sees a container in a value, and no leaf."""
    return not jax.tree_util.all_leaves([value])


@typing.dataclass_transform(
    frozen_default=True, field_specifiers=(dataclasses.field, static_field, array_field, function_field)
)
def pytree_dataclass[T](cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree of its fields, except those declared as `static_field`."""
    frozen_class: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen_class)
    functions = {field.name for field in fields if field.metadata.get("function")}
    if not functions:
        return jax.tree_util.register_dataclass(frozen_class)
    names = tuple(field.name for field in fields if not field.metadata.get("static"))
    static_names = tuple(field.name for field in fields if field.metadata.get("static") or field.name in functions)

    def child(tree: Any, name: str) -> Any:
        value = getattr(tree, name)
        return None if name in functions and not is_pytree(value) else value

    def static_value(tree: Any, name: str) -> Any:
        value = getattr(tree, name)
        return None if name in functions and is_pytree(value) else value

    def flatten(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children = tuple((jax.tree_util.GetAttrKey(name), child(tree, name)) for name in names)
        return children, tuple(static_value(tree, name) for name in static_names)

    def unflatten(static_values: tuple[Any, ...], children: Iterable[Any]) -> Any:
        values = dict.fromkeys(names) | dict(zip(static_names, static_values, strict=True))
        present = {name: child for name, child in zip(names, children, strict=True) if child is not None}
        return frozen_class(**values | present)

    jax.tree_util.register_pytree_with_keys(frozen_class, flatten, unflatten)
    return frozen_class


def field_axes(tree: Any) -> list[tuple[str | None, ...]]:
    """The axes of every array of a dataclass, in the order of its leaves; None for an axis of a function's array."""
    collected: list[tuple[str | None, ...]] = []
    for field in dataclasses.fields(tree):
        value, axes = getattr(tree, field.name), field.metadata.get("axes")
        if field.metadata.get("function") and not _names_axes(value):
            collected += [(None,) * leaf.ndim for leaf in jax.tree.leaves(value) if is_pytree(value)]
        elif axes is None and dataclasses.is_dataclass(value):
            collected += field_axes(value)
        elif axes is not None and value is not None:
            collected += axes if isinstance(value, tuple) else [axes]
    return collected


def _names_axes(value: Any) -> bool:
    """Whether a value is a dataclass with a field that is declared as `array_field`."""
    return dataclasses.is_dataclass(value) and any("axes" in field.metadata for field in dataclasses.fields(value))
