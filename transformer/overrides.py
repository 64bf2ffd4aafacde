"""Override any key of a config, also one that it does not set, by the schema of the key.

The schema is a tree that is built from the dataclasses of a config; the caller chooses the dataclasses
(transformer.training.config).
"""

import ast
import contextlib
import copy
import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from transformer.config import (
    UserError,
    choices_beside_modules,
    convert_value,
    enum_member,
    field_default,
    lookup_choice_beside_modules,
    members_default_first,
    name_similarity,
    to_config,
)


class SchemaValue(NamedTuple):
    """A key with a value.

    Attributes:
        hint: The annotation of its field.
        default: Its default as a plain value; `dataclasses.MISSING` if there is none.
    """

    hint: Any
    default: Any = dataclasses.MISSING


class SchemaSection(NamedTuple):
    """A key with keys of its own: a section.

    Attributes:
        keys: Its keys.
        entry_schema: What other names hold, if the section maps names chosen by the user to sections or values.
        entries: The plain entries of such a section in a config that does not set it.
        chosen_by: What determines the keys, in words, such as "family decoder".
        optional: Whether the section may be None.
    """

    keys: "Mapping[str, SchemaValue | SchemaSection]"
    entry_schema: "SchemaValue | SchemaSection | None" = None
    entries: Mapping[str, Any] = types.MappingProxyType({})
    chosen_by: str = ""
    optional: bool = False


ReadValue = Callable[[SchemaValue, Any, str], Any]


def section_schema(cls: type, default: Any = dataclasses.MISSING, values: Any = None) -> SchemaSection:
    """Return the keys of a dataclass.

    Args:
        cls: The dataclass.
        default: An instance whose values are the defaults.
        values: The section in the config, which determines the keys of an inner section of several possible classes.
    """
    hints = _type_hints(cls)
    section = values if isinstance(values, Mapping) else {}
    keys = {}
    for field in dataclasses.fields(cls):
        value = section.get(field.name)
        if isinstance(default, cls):
            keys[field.name] = field_schema(hints[field.name], getattr(default, field.name), value)
        elif value is None:
            keys[field.name] = _default_keys(cls)[field.name]
        else:
            keys[field.name] = field_schema(hints[field.name], field_default(field), value)
    return SchemaSection(keys)


@functools.cache
def _default_keys(cls: type) -> dict[str, SchemaValue | SchemaSection]:
    """Return the keys of a dataclass of which a config sets none; most keys of every config are among them."""
    hints = _type_hints(cls)
    return {field.name: field_schema(hints[field.name], field_default(field)) for field in dataclasses.fields(cls)}


def field_schema(hint: Any, default: Any = dataclasses.MISSING, value: Any = None) -> SchemaValue | SchemaSection:
    """Return what a field holds: a value, a section, or a section of names chosen by the user.

    Args:
        hint: The annotation of the field.
        default: Its default.
        value: Its value in the config, None if the config does not set it.
    """
    members = members_default_first(hint, default)
    first_member = members[0]
    if all(map(dataclasses.is_dataclass, members)):
        cls = _section_class(members, default, value)
        return section_schema(cls, default, value)._replace(optional=_is_optional(hint))
    if len(members) == 1 and (typing.get_origin(first_member) or first_member) in _MAPPINGS:
        (_, entry_hint) = typing.get_args(first_member) or (str, Any)
        entries = to_config(default) if isinstance(default, Mapping) else {}
        return SchemaSection({}, entry_schema=field_schema(entry_hint), entries=entries, optional=_is_optional(hint))
    return SchemaValue(hint, default if default is dataclasses.MISSING else to_config(default))


def value_keys(tree: SchemaSection, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values in a tree."""
    for name, node in tree.keys.items():
        if isinstance(node, SchemaSection):
            yield from value_keys(node, f"{prefix}{name}.")
        else:
            yield prefix + name


def config_keys_overlap(key: str, other: str) -> bool:
    """Return whether two dotted keys are equal or one is a group that contains the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def find_key(tree: SchemaSection, key: str, value: Any = None) -> SchemaValue | SchemaSection:
    """Return the node of a dotted key.

    Args:
        tree: The schema.
        key: The key, without "config.".
        value: The value that it should get, which helps to find the key that was meant.

    Raises:
        UserError: If the key is unknown, with the key that was probably meant, or is inside a value.
    """
    node: SchemaValue | SchemaSection = tree
    walked = "config"
    for name in key.split("."):
        if isinstance(node, SchemaValue):
            raise UserError(f"{walked} is a value and has no key {name!r}: write --{walked}=VALUE")
        if name in node.keys:
            node = node.keys[name]
        elif node.entry_schema is not None:
            node = node.entry_schema
        else:
            owner = f" of {node.chosen_by}" if node.chosen_by else ""
            raise UserError(f"unknown key {walked}.{name}{owner}: {_suggest_key(tree, node, walked, key, value)}")
        walked = f"{walked}.{name}"
    return node


def replace_keys(
    base: Mapping[str, Any], overrides: Mapping[str, Any], tree: SchemaSection, read: ReadValue
) -> dict[str, Any]:
    """Return a copy of a config with some keys replaced.

    A mapping replaces a whole group, before the keys inside it are set.

    Args:
        base: The nested config.
        overrides: The new values by dotted key, without "config.".
        tree: The schema.
        read: A function (leaf, value, path) to the plain value: `to_plain_value` or `parse_value`.

    Raises:
        UserError: If a key is unknown, a group is set to a value, or `read` refuses a value.
    """
    result = copy.deepcopy(dict(base))
    for key in sorted(overrides, key=lambda key: key.count(".")):
        value = read_override(tree, key, overrides[key], read)
        *groups, name = key.split(".")
        holder: Any = result
        node: SchemaValue | SchemaSection | None = tree
        for depth, part in enumerate(groups, 1):
            assert isinstance(node, SchemaSection)  # read_override has found the key
            node = node.keys.get(part, node.entry_schema)
            if holder.get(part) is None:
                # The keys that a section leaves out have their defaults; the entries of a mapping are all of them.
                entries = node.entries if isinstance(node, SchemaSection) and part not in holder else {}
                holder[part] = copy.deepcopy(dict(entries))
            holder = holder[part]
            if not isinstance(holder, dict):
                path = ".".join(("config", *groups[:depth]))
                raise UserError(f"{path}={holder!r} must be a group of keys: write them in the config file")
        holder[name] = value
    return result


def read_override(tree: SchemaSection, key: str, value: Any, read: ReadValue) -> Any:
    """Return the plain value that is given for a dotted key.

    Args:
        tree: The schema.
        key: The key, without "config.".
        value: The value.
        read: A function (leaf, value, path) to the plain value.

    Raises:
        UserError: If the key is unknown, a group is set to a value, or `read` refuses the value.
    """
    node, path = find_key(tree, key, value), f"config.{key}"
    if isinstance(node, SchemaValue):
        return read(node, value, path)
    if isinstance(value, Mapping):
        return copy.deepcopy(dict(value))
    if node.optional and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    inside = next(iter(node.keys), "NAME")
    raise UserError(f"{path}={value!r}: that key is a group; set one of its keys, as --{path}.{inside}=VALUE")


def to_plain_value(leaf: SchemaValue, value: Any, path: str) -> Any:
    """Convert a Python value to the plain value of a key.

    Raises:
        UserError: If it has another type or is out of range.
    """
    return to_config(convert_value(leaf.hint, value, path))


def parse_value(leaf: SchemaValue, text: str, path: str) -> Any:
    """Convert a word of the command line to the plain value of a key; a sequence is written 1,2 or (1, 2).

    Raises:
        UserError: If the text does not parse as the field's type; the message says what would be right.
    """
    return to_config(_parse_text(leaf.hint, text, path))


def overrides_to_flags(overrides: Mapping[str, Any]) -> list[str] | None:
    """Return the flags that set the overrides; None if one of them replaces a whole group."""
    if any(isinstance(value, Mapping) for value in overrides.values()):
        return None
    return [override_flag(key, value) for key, value in overrides.items()]


def override_flag(key: str, value: Any) -> str:
    """Return the flag that sets a dotted key to a plain value, from which `parse_value` reads the same value."""
    return f"--config.{key}={_format_flag_value(value)}"


def describe_overrides(overrides: Mapping[str, Any]) -> str:
    """Write overrides in one line: model.norm_placement=post optimizer.learning_rate=0.001."""
    return " ".join(f"{key}={_shorten(value)}" for key, value in overrides.items()) or "(the config as it is)"


_MAPPINGS = (dict, Mapping, typing.Mapping)
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _section_class(classes: list[type], default: Any, value: Any) -> type:
    """Return the class of a section that may be of several: that of its value in the config, else of its default."""
    for cls in classes if isinstance(value, Mapping) and len(classes) > 1 else ():
        with contextlib.suppress(UserError):
            convert_value(cls, value, "", default=default)
            return cls
    return classes[0]


def _is_optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _suggest_key(tree: SchemaSection, group: SchemaSection, path: str, key: str, value: Any) -> str:
    """Return what to write instead of an unknown key.

    A value that only one key of the group accepts among its choices shows which key was meant, whatever it was called.

    Args:
        tree: The schema.
        group: The deepest known group.
        path: The path of that group, as in "config.parameter_averages.last".
        key: The unknown key.
        value: The value that it should get.
    """
    last = key.rpartition(".")[2]
    prefix = f"{path}.".removeprefix("config.")
    inside = list(value_keys(group, prefix))

    def closeness(candidate: str) -> tuple[float, float]:
        name = candidate.rpartition(".")[2]
        full_similarity, end = (
            name_similarity(key, candidate),
            1.0 if last == _initials(name) else name_similarity(last, name),
        )
        # A prefix shared by the whole group is no evidence, unless the group is unknown.
        return (end if key == prefix + last else max(full_similarity, end)), full_similarity

    takers = [candidate for candidate in inside if value in _enum_choices(find_key(tree, candidate))]
    if len(takers) == 1 and max(closeness(candidate)[0] for candidate in inside) < 0.8:
        return f"did you mean config.{takers[0]}, which takes {value!r}?"
    best = max(dict.fromkeys((*inside, *value_keys(tree))), key=closeness)
    known_keys = f"known: {', '.join(sorted(group.keys))}"
    if closeness(best)[0] < 0.6:
        return known_keys
    is_elsewhere = best not in inside and path != "config"
    # Beside another group's key of this very name, a key of this group that differs by a letter: steps for step.
    siblings = [
        candidate
        for candidate in inside
        if key == prefix + last and candidate.rpartition(".")[0] == key.rpartition(".")[0]
    ]
    misspelled = max(
        (candidate for candidate in siblings if name_similarity(key, candidate) >= 0.8), key=closeness, default=best
    )
    either = "" if misspelled == best else f"config.{misspelled} or "
    return f"did you mean {either}config.{best}?" + (f" {path} has no such key; {known_keys}" if is_elsewhere else "")


def _initials(name: str) -> str:
    """Return the initials of a key of several words: lr for learning_rate."""
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""


def _enum_choices(node: SchemaValue | SchemaSection) -> set[str]:
    """Return the words that a key with a closed list of values accepts."""
    if isinstance(node, SchemaSection):
        return set()
    enums = [
        kind for kind in members_default_first(node.hint) if isinstance(kind, type) and issubclass(kind, enum.Enum)
    ]
    return {str(member.value) for kind in enums for member in kind}


def _parse_text(hint: Any, text: str, path: str) -> Any:
    members = members_default_first(hint)
    if text.lower() == "none" and _is_optional(hint):
        return None
    if hint is Any:
        return None if text.lower() == "none" else _parse_literal(text)
    if "." not in text and (choices := choices_beside_modules(hint)) is not None:
        return lookup_choice_beside_modules(choices, text, path)
    for member in members[:-1]:
        try:
            return _parse_member(member, text, path)
        except UserError:
            continue
    return _parse_member(members[-1], text, path)


def _parse_member(kind: Any, text: str, path: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise UserError(f"{path}={text!r} is no switch: write true or false, as --{path}=true")
        return _SWITCH[text.lower()]
    if kind is int:
        return _parse_number(int, text, f"{path}={text!r} is not an integer: write for example --{path}=2")
    if kind is float:
        wrong = f"{path}={text!r} is not a finite number: write for example --{path}=0.1"
        number = _parse_number(float, text, wrong)
        if not math.isfinite(number):
            raise UserError(wrong)
        return number
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return enum_member(kind, text, path)
    if typing.get_origin(kind) is tuple:
        return _parse_items(typing.get_args(kind)[0], text, path)
    if kind is Any:
        return _parse_literal(text)
    raise UserError(f"{path} is a {getattr(kind, '__name__', kind)} and cannot be set by a word: edit the config file")


def _parse_number[T](kind: Callable[[str], T], text: str, wrong: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise UserError(wrong) from None


def _parse_items(hint: Any, text: str, path: str) -> tuple[Any, ...]:
    """Parse a sequence: a Python literal, or words between commas, with or without brackets."""
    wrong = f"{path}={text!r} is not a sequence: write it as --{path}=1,2 or --{path}='(1, 2)'"
    if text.startswith(("(", "[")):
        items = _parse_literal(text)
        if isinstance(items, (tuple, list)):
            return typing.cast(tuple, convert_value(tuple[hint, ...], items, path))
        if not isinstance(items, str) or text[-1:] not in (")", "]"):
            raise UserError(wrong)
        text = text[1:-1]
    words = [word.strip() for word in text.split(",")]
    return tuple(_parse_text(hint, word, f"{path}[{place}]") for place, word in enumerate(filter(None, words)))


def _parse_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return text


def _format_flag_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if not isinstance(value, (list, tuple)):
        return str(value)
    words = [_format_flag_value(item) for item in value]
    simple = all(word and word == word.strip() and not set(word) & set(",()[]'\"") for word in words)
    return ",".join(words) if words and simple else repr(tuple(value))


def _shorten(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
