"""What an argument must be, told in one line to who gives something else: its name, its value, what would be right."""

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SEQUENCE_AXES = "[batch, length, heads, depth]"
MAP_AXES = "[batch, heads, queries, keys]"


def describe_value(value: Any) -> str:
    """A value in a few words on one line, however large it is."""
    if is_array(value):
        return f"an array of {value.dtype} {tuple(value.shape)}"
    if isinstance(value, enum.Enum):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    return value.__name__ if isinstance(value, type) else f"of type {type(value).__name__}"


def is_array(value: Any) -> bool:
    """Whether it has a shape and a type of numbers, as arrays of JAX and NumPy and placeholders of them have."""
    return all(hasattr(value, name) for name in ("shape", "ndim", "dtype"))


def check_member(name: str, value: Any, choices: type[enum.Enum]) -> None:
    """Refuse what is no member of the enum, such as the string of one.

    Raises:
        TypeError: That lists the members, and says which one the string would be.
    """
    if isinstance(value, choices):
        return
    members = ", ".join(map(str, choices))
    for member in choices:
        if isinstance(value, str) and value.lower() in (member.value, member.name.lower()):
            raise TypeError(f"{name} is {value!r}, a string; say {member} (all of them: {members})")
    raise TypeError(f"{name} is {describe_value(value)}, which is no {choices.__name__}; say one of {members}")


def check_array(name: str, value: Any, axes: str = SEQUENCE_AXES) -> None:
    """Refuse what is no array of floating-point numbers with as many axes as `axes` lists, none of size 0.

    Raises:
        TypeError: For another thing or type of numbers.
        ValueError: For another shape.
    """
    if not is_array(value):
        raise TypeError(f"{name} is {describe_value(value)}; attention takes an array {axes}")
    if value.ndim != axes.count(",") + 1:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; attention takes {axes}")
    if 0 in value.shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; no size may be 0")
    check_floats(name, value)


def check_floats(name: str, array: Any) -> None:
    """Refuse whole numbers and booleans: weights that are cast to their type would all be 0.

    Raises:
        TypeError: That names the array and its type.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} has numbers of type {array.dtype}; attention takes floating-point numbers")


def check_heads(name: str, heads: int, shape: tuple[int, ...], of: str, groups: int, other: tuple[int, ...]) -> None:
    """Refuse heads that do not divide evenly among the heads of keys or values.

    Raises:
        ValueError: That names both arrays, their shapes and their heads.
    """
    if heads % groups:
        raise ValueError(f"{name} {shape} has {heads} heads, which the {groups} heads of {of} {other} do not divide")


def check_positive(name: str, value: Any) -> None:
    """Refuse what is no real number, finite and above 0 (of a traced array the numbers are not known).

    Raises:
        ValueError: That names the argument and its value.
    """
    if isinstance(value, jax.core.Tracer):
        return
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "fiuV" or not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{name}={value} must be finite and above 0")
