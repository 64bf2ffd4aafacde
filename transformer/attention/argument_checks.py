"""Checks of arguments, with one-line errors that give the argument's name, its value and what is expected."""

import contextlib
import enum
import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.pytree_dataclass import is_pytree

SEQUENCE_AXES = "[batch, length, heads, depth]"
MAP_AXES = "[batch, heads, queries, keys]"


def describe_value(value: Any) -> str:
    """Describe a value in a few words on one line, however large it is."""
    if is_array(value):
        return f"an array of {value.dtype} {tuple(value.shape)}"
    if isinstance(value, enum.Enum):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    return value.__name__ if isinstance(value, type) else f"of type {type(value).__name__}"


def is_array(value: Any) -> bool:
    """Whether a value has a shape and a dtype, as JAX and NumPy arrays and their placeholders do."""
    return all(hasattr(value, name) for name in ("shape", "ndim", "dtype"))


def check_member(name: str, value: Any, choices: type[enum.Enum]) -> None:
    """Check that a value is a member of an enum, and not, say, the string of one.

    Raises:
        TypeError: If it is not; lists the members, and names the one that a string stands for.
    """
    if isinstance(value, choices):
        return
    members = ", ".join(map(str, choices))
    for member in choices:
        if isinstance(value, str) and value.lower() in (member.value, member.name.lower()):
            raise TypeError(f"{name} is {value!r}, a string; say {member} (all of them: {members})")
    raise TypeError(f"{name} is {describe_value(value)}, which is no {choices.__name__}; say one of {members}")


def check_array(name: str, value: Any, axes: str = SEQUENCE_AXES) -> None:
    """Check that a value is a floating-point array with as many axes as `axes` lists, none of size 0.

    Args:
        name: The argument's name, for the error.
        value: The value to check.
        axes: The expected axes, in brackets and separated by commas.

    Raises:
        TypeError: If it is not an array of floating-point numbers.
        ValueError: If it has another number of axes, or one of size 0.
    """
    if not is_array(value):
        raise TypeError(f"{name} is {describe_value(value)}; attention takes an array {axes}")
    if value.ndim != axes.count(",") + 1:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; attention takes {axes}")
    if 0 in value.shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; no size may be 0")
    check_floats(name, value)


def check_floats(name: str, array: Any) -> None:
    """Check that an array is of floating-point numbers: weights cast to an integer type would all be 0.

    Raises:
        TypeError: If it is not; gives the array's name and dtype.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} has numbers of type {array.dtype}; attention takes floating-point numbers")


def check_heads(
    name: str, heads: int, shape: tuple[int, ...], kv_name: str, kv_heads: int, kv_shape: tuple[int, ...]
) -> None:
    """Check that the heads of keys or values divide the heads of an array.

    Args:
        name: Name of the array with `heads` heads.
        heads: Its number of heads.
        shape: Its shape.
        kv_name: Name of the keys or values.
        kv_heads: Their number of heads.
        kv_shape: Their shape.

    Raises:
        ValueError: If `kv_heads` does not divide `heads`; gives both arrays' names, shapes and heads.
    """
    if heads % kv_heads:
        raise ValueError(
            f"{name} {shape} has {heads} heads, which the {kv_heads} heads of {kv_name} {kv_shape} do not divide"
        )


def check_function(name: str, function: Any, arguments: Sequence[str], example: str = "") -> None:
    """Check that an argument is a function, and a pytree or something that can be part of a program's key.

    Args:
        name: The argument's name.
        function: Its value.
        arguments: The names of what it is called with.
        example: An example of such a function, for messages.

    Raises:
        TypeError: If it is no function of these arguments, or if it cannot be hashed.
    """
    if not callable(function):
        such_as = f", such as {example}" if example else ""
        raise TypeError(f"{name} is {describe_value(function)}; give a function of ({', '.join(arguments)}){such_as}")
    with contextlib.suppress(ValueError):  # some functions that are not written in Python have no signature
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise TypeError(f"{name} is called with ({', '.join(arguments)}): {error}") from None
    if is_pytree(function):
        return
    try:
        hash(function)
    except TypeError:
        raise TypeError(
            f"{name}={function} cannot be hashed; give a function, a frozen dataclass without arrays, or with arrays "
            "jax.tree_util.Partial(function, *arrays)"
        ) from None


def check_positive(name: str, value: Any) -> None:
    """Check that every number is real, finite and above 0; traced arrays, whose numbers are unknown, pass.

    Raises:
        ValueError: If one is not; gives the argument's name and value.
    """
    if isinstance(value, jax.core.Tracer):
        return
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "fiuV" or not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{name}={value} must be finite and above 0")
