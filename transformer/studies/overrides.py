"""Overrides: setting dotted keys of a plain config, with every mistake named."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from transformer.config import UserError, nearest


def with_overrides(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `base` in which each dotted key, without "config.", has the value that `overrides` gives.

    A mapping replaces a whole group, before the keys in it are set. An integer serves as a number, a list as a tuple;
    None stands for any value, and any value for None.

    Errors: UserError for a key that `base` has not, a group set to a value, a value of another type.
    """
    result: dict[str, Any] = copy.deepcopy(dict(base))
    for key in sorted(overrides, key=lambda key: key.count(".")):
        *groups, name = key.split(".")
        holder: Any = result
        walked = "config"
        for part in groups:
            holder = holder[_known(holder, part, walked, result)]
            walked = f"{walked}.{part}"
        last = _known(holder, name, walked, result)
        holder[last] = _checked(overrides[key], holder[last], f"config.{key}")
    return result


def describe(overrides: Mapping[str, Any]) -> str:
    """Overrides in one line, as people write them: model.norm_placement=post optimizer.learning_rate=0.001."""
    return " ".join(f"{key}={_short(value)}" for key, value in overrides.items()) or "(the config as it is)"


def as_flags(overrides: Mapping[str, Any]) -> list[str] | None:
    """The words of a command line that set the overrides; None where one of them replaces a whole group."""
    if any(isinstance(value, Mapping) for value in overrides.values()):
        return None
    return [f"--config.{key}={_on_command_line(value)}" for key, value in overrides.items()]


def _known(holder: Any, name: str, path: str, whole: Mapping[str, Any]) -> str:
    if not isinstance(holder, Mapping):
        raise UserError(f"{path}={holder!r} is a value and has no key {name!r}")
    if name not in holder:
        elsewhere = [key for key in _keys(whole) if key.rpartition(".")[2] == name]
        hint = f"did you mean config.{elsewhere[0]}?" if elsewhere else nearest(name, holder)
        raise UserError(f"unknown key {path}.{name}: {hint}")
    return name


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def _checked(value: Any, current: Any, path: str) -> Any:
    """The value as what stands there is written.

    Errors: UserError where it is of another type.
    """
    if isinstance(current, Mapping):
        if not isinstance(value, Mapping):
            inside = next(iter(current), "KEY")
            raise UserError(f"{path}={value!r}: that key is a group; set {path}.{inside} or give a whole group")
        return copy.deepcopy(dict(value))
    if value is None or current is None:
        return copy.deepcopy(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(current, float) and number:
        return float(value)
    if isinstance(current, (tuple, list)) and isinstance(value, (tuple, list)):
        return type(current)(value)
    if type(value) is type(current):
        return value
    raise UserError(f"{path}={value!r} is a {type(value).__name__}; it must be a {type(current).__name__}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _on_command_line(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return repr(tuple(value)) if isinstance(value, (list, tuple)) else str(value)
