"""Overrides: setting any key of a config, whether the config says it or not, by what its schema knows of the key.

The schema is a tree that is read from the dataclasses of a config; which dataclasses those are, the caller says
(transformer.training.config).
"""

import ast
import copy
import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from transformer.config import UserError, choice, convert, likeness, to_config


class Leaf(NamedTuple):
    """A key with a value: the type that its field declares, and its default as a plain value."""

    hint: Any
    default: Any = dataclasses.MISSING


class Group(NamedTuple):
    """A key with keys of its own: a section.

    `each` is what further names hold, where the section maps names that a person makes up to sections or values.
    `chosen` says in words what chose the keys, such as "family decoder". `optional` sections may be none.
    """

    keys: "Mapping[str, Leaf | Group]"
    each: "Leaf | Group | None" = None
    chosen: str = ""
    optional: bool = False


Read = Callable[[Leaf, Any, str], Any]


def group_of(cls: type, default: Any = dataclasses.MISSING) -> Group:
    """The keys of a dataclass; their defaults are those of the instance `default`, where one is given."""
    hints = typing.get_type_hints(cls)
    keys = {}
    for field in dataclasses.fields(cls):
        if default is not dataclasses.MISSING and default is not None:
            own = getattr(default, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            own = field.default_factory()
        else:
            own = field.default
        keys[field.name] = schema_node_of(hints[field.name], own)
    return Group(keys)


def schema_node_of(hint: Any, default: Any = dataclasses.MISSING) -> Leaf | Group:
    """What a field of this type holds: a value, a section, or a section of names that a person makes up."""
    members = _members(hint)
    one = members[0]
    if len(members) == 1 and dataclasses.is_dataclass(one):
        return group_of(typing.cast(type, one), default)._replace(optional=_takes_none(hint))
    if len(members) == 1 and (typing.get_origin(one) or one) in _MAPPINGS:
        (_, held) = typing.get_args(one) or (str, Any)
        return Group({}, each=schema_node_of(held), optional=_takes_none(hint))
    return Leaf(hint, default if default is dataclasses.MISSING else to_config(default))


def leaves(tree: Group, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values that the tree names."""
    for name, node in tree.keys.items():
        if isinstance(node, Group):
            yield from leaves(node, f"{prefix}{name}.")
        else:
            yield prefix + name


def find(tree: Group, key: str, given: Any = None) -> Leaf | Group:
    """What a dotted key, without "config.", is.

    Raises:
        UserError: For an unknown key, naming the key that was probably meant (`given`, the value that it should get,
            tells more than its name), and for a key of a value.
    """
    node: Leaf | Group = tree
    walked = "config"
    for name in key.split("."):
        if isinstance(node, Leaf):
            raise UserError(f"{walked} is a value and has no key {name!r}: write --{walked}=VALUE")
        if name in node.keys:
            node = node.keys[name]
        elif node.each is not None:
            node = node.each
        else:
            of = f" of {node.chosen}" if node.chosen else ""
            raise UserError(f"unknown key {walked}.{name}{of}: {_advice(tree, node, walked, key, given)}")
        walked = f"{walked}.{name}"
    return node


def override(base: Mapping[str, Any], overrides: Mapping[str, Any], tree: Group, read: Read) -> dict[str, Any]:
    """A copy of `base` in which each dotted key, without "config.", has the value that `overrides` gives.

    `read` makes a plain value of what is given. A mapping replaces a whole group, before the keys in it are set.

    Raises:
        UserError: For an unknown key, a group that is set to a value, and whatever `read` refuses.
    """
    result = copy.deepcopy(dict(base))
    for key in sorted(overrides, key=lambda key: key.count(".")):
        value = read_key(tree, key, overrides[key], read)
        *groups, name = key.split(".")
        holder: Any = result
        for depth, part in enumerate(groups, 1):
            if holder.get(part) is None:
                holder[part] = {}
            holder = holder[part]
            if not isinstance(holder, dict):
                path = ".".join(("config", *groups[:depth]))
                raise UserError(f"{path}={holder!r} must be a group of keys: write them in the config file")
        holder[name] = value
    return result


def read_key(tree: Group, key: str, given: Any, read: Read) -> Any:
    """The plain value that is given for a dotted key.

    Raises:
        UserError: As `override`.
    """
    node, path = find(tree, key, given), f"config.{key}"
    if isinstance(node, Leaf):
        return read(node, given, path)
    if isinstance(given, Mapping):
        return copy.deepcopy(dict(given))
    if node.optional and (given is None or (isinstance(given, str) and given.lower() == "none")):
        return None
    inside = next(iter(node.keys), "NAME")
    raise UserError(f"{path}={given!r}: that key is a group; set one of its keys, as --{path}.{inside}=VALUE")


def from_value(leaf: Leaf, value: Any, path: str) -> Any:
    """A plain value for a key, from a value of Python.

    Raises:
        UserError: For one of another type.
    """
    return to_config(convert(leaf.hint, value, path))


def from_text(leaf: Leaf, text: str, path: str) -> Any:
    """A plain value for a key, from a word of the command line; a sequence is written 1,2 or (1, 2).

    Raises:
        UserError: For text that is none of the type that the key's field declares, with what would be right.
    """
    return to_config(_read(leaf.hint, text, path))


def as_flags(overrides: Mapping[str, Any]) -> list[str] | None:
    """The words of a command line that set the overrides; None where one of them replaces a whole group."""
    if any(isinstance(value, Mapping) for value in overrides.values()):
        return None
    return [flag(key, value) for key, value in overrides.items()]


def flag(key: str, value: Any) -> str:
    """The word of a command line that sets a dotted key to a plain value: `from_text` reads that value from it."""
    return f"--config.{key}={_written(value)}"


def describe(overrides: Mapping[str, Any]) -> str:
    """Overrides in one line, as people write them: model.norm_placement=post optimizer.learning_rate=0.001."""
    return " ".join(f"{key}={_short(value)}" for key, value in overrides.items()) or "(the config as it is)"


_MAPPINGS = (dict, Mapping, typing.Mapping)
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


def _members(hint: Any) -> list[Any]:
    """The types of a union but None; of any other type itself."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return [member for member in typing.get_args(hint) if member is not type(None)]
    return [hint]


def _takes_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _advice(tree: Group, group: Group, path: str, key: str, given: Any) -> str:
    """What to write instead of an unknown key.

    `path` is how far the key is known, as "config.parameter_averages.last", and `group` the config at that path. A
    value that just one key of the group names among its choices tells which was meant, whatever the key was called.
    """
    last = key.rpartition(".")[2]
    prefix = f"{path}.".removeprefix("config.")
    inside = list(leaves(group, prefix))

    def near(other: str) -> tuple[float, float]:
        name = other.rpartition(".")[2]
        whole, end = likeness(key, other), 1.0 if last == _initials(name) else likeness(last, name)
        # What a key shares with all of its group says nothing; of a group that is unknown it does.
        return (end if key == prefix + last else max(whole, end)), whole

    takers = [other for other in inside if given in _choices(find(tree, other))]
    if len(takers) == 1 and max(near(other)[0] for other in inside) < 0.8:
        return f"did you mean config.{takers[0]}, which takes {given!r}?"
    best = max(dict.fromkeys((*inside, *leaves(tree))), key=near)
    known = f"known: {', '.join(sorted(group.keys))}"
    if near(best)[0] < 0.6:
        return known
    elsewhere = best not in inside and path != "config"
    return f"did you mean config.{best}?" + (f" {path} has no such key; {known}" if elsewhere else "")


def _initials(name: str) -> str:
    """What learning_rate is called for short: lr."""
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""


def _choices(node: Leaf | Group) -> set[str]:
    """The words that a key with a closed list of values takes."""
    if isinstance(node, Group):
        return set()
    enums = [kind for kind in _members(node.hint) if isinstance(kind, type) and issubclass(kind, enum.Enum)]
    return {str(member.value) for kind in enums for member in kind}


def _read(hint: Any, text: str, path: str) -> Any:
    members = _members(hint)
    if text.lower() == "none" and _takes_none(hint):
        return None
    if hint is Any:
        return None if text.lower() == "none" else _literal(text)
    for member in members[:-1]:
        try:
            return _read_one(member, text, path)
        except UserError:
            continue
    return _read_one(members[-1], text, path)


def _read_one(kind: Any, text: str, path: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise UserError(f"{path}={text!r} is no switch: write true or false, as --{path}=true")
        return _SWITCH[text.lower()]
    if kind is int:
        return _number(int, text, f"{path}={text!r} is not an integer: write for example --{path}=2")
    if kind is float:
        wrong = f"{path}={text!r} is not a finite number: write for example --{path}=0.1"
        number = _number(float, text, wrong)
        if not math.isfinite(number):
            raise UserError(wrong)
        return number
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return choice(text, {str(member.value): member for member in kind}, path)
    if typing.get_origin(kind) is tuple:
        return _read_items(typing.get_args(kind)[0], text, path)
    if kind is Any:
        return _literal(text)
    raise UserError(f"{path} is a {getattr(kind, '__name__', kind)} and cannot be set by a word: edit the config file")


def _number[T](kind: Callable[[str], T], text: str, wrong: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise UserError(wrong) from None


def _read_items(hint: Any, text: str, path: str) -> tuple[Any, ...]:
    """A sequence: a literal of Python, or words between commas, with brackets around them or without."""
    wrong = f"{path}={text!r} is not a sequence: write it as --{path}=1,2 or --{path}='(1, 2)'"
    if text.startswith(("(", "[")):
        items = _literal(text)
        if isinstance(items, (tuple, list)):
            return typing.cast(tuple, convert(tuple[hint, ...], items, path))
        if not isinstance(items, str) or text[-1:] not in (")", "]"):
            raise UserError(wrong)
        text = text[1:-1]
    words = [word.strip() for word in text.split(",")]
    return tuple(_read(hint, word, f"{path}[{place}]") for place, word in enumerate(filter(None, words)))


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return text


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if not isinstance(value, (list, tuple)):
        return str(value)
    words = [_written(item) for item in value]
    simple = all(word and word == word.strip() and not set(word) & set(",()[]'\"") for word in words)
    return ",".join(words) if words and simple else repr(tuple(value))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
