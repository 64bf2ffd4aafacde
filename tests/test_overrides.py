"""Overrides on a schema of this file's own: what they set, what they leave, how text is read, and every mistake."""

import copy
import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any

import pytest

from transformer.config import UserError, from_config, to_config
from transformer.overrides import (
    describe_overrides,
    override_flag,
    overrides_to_flags,
    parse_value,
    replace_keys,
    section_schema,
    to_plain_value,
    value_keys,
)


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    DARK_GREEN = "dark_green"


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    color: Color = Color.RED


@dataclasses.dataclass(frozen=True)
class Outer:
    steps: int
    name: str = "plain"
    on: bool = False
    limit: int | None = None
    folder: str | None = None
    tint: Color | None = None
    sizes: tuple[int, ...] = (1, 2)
    rates: tuple[float, ...] = ()
    words: tuple[str, ...] = ("a",)
    colors: tuple[Color, ...] = ()
    either: int | tuple[int, ...] = 1
    inner: Inner = Inner(rate=0.25)
    maybe: Inner | None = None
    named: Mapping[str, Inner] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    table: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Ring:
    radius: int = 1
    holes: int = 0


@dataclasses.dataclass(frozen=True)
class Square:
    radius: int = 1
    corners: int = 4


@dataclasses.dataclass(frozen=True)
class Middle:
    inner: Inner = Inner(rate=0.75, color=Color.GREEN)
    depth: int = 1


@dataclasses.dataclass(frozen=True)
class Family:
    """Its sections are not those that their classes would have."""

    middle: Middle = Middle(inner=Inner(rate=0.125), depth=2)
    named: Mapping[str, Inner] = dataclasses.field(default_factory=lambda: {"a": Inner(rate=2.0), "b": Inner(rate=3.0)})
    maybe: Inner | None = Inner(rate=4.0)
    shape: Ring | Square = Square(radius=3, corners=5)


TREE = section_schema(Outer)
BASE: dict[str, Any] = {"steps": 3, "named": {"first": {"rate": 1.0}}, "table": {"list": [1]}}


def set_values(**overrides: Any) -> dict[str, Any]:
    return replace_keys(BASE, {key.replace("__", "."): value for key, value in overrides.items()}, TREE, to_plain_value)


def set_words(*words: str) -> dict[str, Any]:
    pairs = (word.split("=", 1) for word in words)
    return replace_keys(BASE, {key: text for key, text in pairs}, TREE, parse_value)


def test_keys_are_set_whether_they_are_said_or_not_and_everything_else_stays() -> None:
    before = copy.deepcopy(BASE)
    found = set_values(steps=4, inner__rate=1, named__first__color="green", named__second__rate=2, maybe__rate=3)
    assert found == {
        "steps": 4,
        "inner": {"rate": 1.0},
        "named": {"first": {"rate": 1.0, "color": "green"}, "second": {"rate": 2.0}},
        "maybe": {"rate": 3.0},
        "table": {"list": [1]},
    }
    assert type(found["inner"]["rate"]) is float
    assert before == BASE
    found["table"]["list"].append(2)
    assert before == BASE


def test_a_group_is_replaced_whole_and_its_keys_are_set_after_it() -> None:
    overrides = {"named.first": {"rate": 4.0}, "named": {"first": {"rate": 3.0}, "other": {}}, "named.other.rate": 9}
    for order in (overrides, dict(reversed(overrides.items()))):
        found = replace_keys(BASE, order, TREE, to_plain_value)["named"]
        assert found == {"first": {"rate": 4.0}, "other": {"rate": 9.0}}
    assert set_values(maybe={"rate": 1.0}, maybe__color="green")["maybe"] == {"rate": 1.0, "color": "green"}
    assert set_values(maybe=None)["maybe"] is None
    assert set_words("maybe=none")["maybe"] is None


FAMILY = to_config(Family())


@pytest.mark.parametrize(
    "key",
    [
        "middle.inner.rate",
        "middle.inner.color",
        "middle.depth",
        "named.a.rate",
        "maybe.color",
        "shape.radius",
        "shape.corners",
    ],
)
@pytest.mark.parametrize("base", [{}, FAMILY], ids=["sparse", "whole"])
def test_a_section_starts_from_the_instance_that_stands_in_the_field(key: str, base: dict[str, Any]) -> None:
    value = functools.reduce(lambda part, name: part[name], key.split("."), FAMILY)
    found = replace_keys(base, {key: value}, section_schema(Family, values=base), to_plain_value)
    assert to_config(from_config(Family, found)) == FAMILY


def test_keys_that_a_section_of_a_file_leaves_out_are_those_of_the_field_too() -> None:
    found = from_config(Family, {"middle": {"inner": {"color": "dark_green"}}, "maybe": {}, "shape": {"radius": 9}})
    assert found == Family(
        middle=Middle(inner=Inner(rate=0.125, color=Color.DARK_GREEN), depth=2), shape=Square(radius=9, corners=5)
    )
    assert from_config(Family, {"named": {"c": {}}}).named == {"c": Inner()}


def test_a_section_of_several_classes_has_the_keys_of_the_one_that_the_config_has() -> None:
    base = {"shape": {"holes": 2}}
    tree = section_schema(Family, values=base)
    assert from_config(Family, replace_keys(base, {"shape.radius": 7}, tree, to_plain_value)).shape == Ring(7, 2)
    with pytest.raises(UserError, match=r"unknown key config\.shape\.corners: .*known: holes, radius"):
        replace_keys(base, {"shape.corners": 3}, tree, to_plain_value)


def test_defaults_are_those_of_the_instance_that_stands_in_the_field() -> None:
    inner = TREE.keys["inner"]
    assert inner.keys["rate"].default == 0.25  # type: ignore[union-attr]
    assert inner.keys["color"].default == "red"  # type: ignore[union-attr]
    assert TREE.keys["sizes"].default == [1, 2]  # type: ignore[union-attr]
    assert TREE.keys["steps"].default is dataclasses.MISSING  # type: ignore[union-attr]
    assert set(value_keys(TREE)) >= {"steps", "inner.rate", "maybe.color"}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("steps=-7", -7),
        ("name=none", "none"),
        ("name=3", "3"),
        ("on=TRUE", True),
        ("limit=none", None),
        ("limit=5", 5),
        ("folder=None", None),
        ("folder=5", "5"),
        ("tint=green", "green"),
        ("tint=none", None),
        ("sizes=5", [5]),
        ("sizes=5, 6", [5, 6]),
        ("sizes=()", []),
        ("rates=1,2.5", [1.0, 2.5]),
        ("rates=(1, 2.5)", [1.0, 2.5]),
        ("words=1.0,b c", ["1.0", "b c"]),
        ("words=['a,b', 'c']", ["a,b", "c"]),
        ("colors=red,green", ["red", "green"]),
        ("colors=(red, green)", ["red", "green"]),
        ("colors=('red',)", ["red"]),
        ("either=4", 4),
        ("either=4,5", [4, 5]),
        ("counts.a=4", 4),
        ("table.any=(1, {'a': None})", [1, {"a": None}]),
        ("table.any=text", "text"),
        ("table.any=none", None),
    ],
)
def test_text_is_read_by_the_type_that_the_field_declares(word: str, value: Any) -> None:
    config = set_words(word)
    found = config
    for part in word.split("=")[0].split("."):
        found = found[part]
    assert found == value
    assert [type(item) for item in found] == [type(item) for item in value] if isinstance(value, list) else True
    assert type(found) is type(value)
    from_config(Outer, config)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("stps=1", "unknown key config.stps: did you mean config.steps?"),
        ("rate=1", "unknown key config.rate: did you mean config.rates or config.inner.rate?"),
        ("iner.color=red", "unknown key config.iner: did you mean config.inner.color?"),
        ("named.first.colr=red", "unknown key config.named.first.colr: did you mean config.named.first.color?"),
        ("inner.zzz=1", "unknown key config.inner.zzz: known: color, rate"),
        # The value tells which key was meant, before a key of that name elsewhere.
        ("inner.tint=green", "unknown key config.inner.tint: did you mean config.inner.color, which takes 'green'?"),
        (
            "inner.tint=blue",
            "config.inner.tint: did you mean config.tint? config.inner has no such key; known: color, rate",
        ),
        ("steps.x=1", "config.steps is a value and has no key 'x': write --config.steps=VALUE"),
        ("inner=1", "config.inner='1': that key is a group; set one of its keys, as --config.inner.rate=VALUE"),
        ("inner=none", "config.inner='none': that key is a group"),
        ("named=1", "config.named='1': that key is a group; set one of its keys, as --config.named.NAME=VALUE"),
        ("steps=1.0", "config.steps='1.0' is not an integer: write for example --config.steps=2"),
        ("limit=x", "config.limit='x' is not an integer"),
        ("inner.rate=inf", "config.inner.rate='inf' is not a finite number"),
        ("on=2", "config.on='2' is no switch: write true or false, as --config.on=true"),
        ("tint=gren", "config.tint='gren' is unknown: did you mean 'green'? known: green, red, dark_green"),
        ("colors=red,gren", "config.colors[1]='gren' is unknown: did you mean 'green'?"),
        ("colors=('red', 'gren')", "config.colors[1]='gren' is unknown"),
        ("sizes=(1, '2')", "config.sizes[1]='2' is a str; it must be a int"),
        ("sizes=5]", "config.sizes[0]='5]' is not an integer"),
        ("either=x", "config.either[0]='x' is not an integer"),
    ],
)
def test_mistakes_in_words_say_what_would_be_right(word: str, says: str) -> None:
    with pytest.raises(UserError) as told:
        set_words(word)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("steps", 1.5, "config.steps=1.5 is a float; it must be a int"),
        ("steps", True, "config.steps=True is a bool; it must be a int"),
        ("steps", None, "config.steps=None is a NoneType; it must be a int"),
        ("inner.rate", "fast", "config.inner.rate='fast' is a str; it must be a float"),
        ("on", 1, "config.on=1 is a int; it must be a bool"),
        ("sizes", 3, "config.sizes=3 is a int; it must be a tuple"),
        ("name", {"a": 1}, "config.name={'a': 1} is a dict; it must be a str"),
        ("inner", 3, "config.inner=3: that key is a group"),
        ("tint", "blue", "config.tint='blue' is unknown: known: dark_green, green, red"),
    ],
)
def test_mistakes_in_values_name_key_and_value(key: str, value: Any, says: str) -> None:
    with pytest.raises(UserError) as told:
        replace_keys(BASE, {key: value}, TREE, to_plain_value)
    assert says in str(told.value)


def test_a_section_that_is_no_section_is_named() -> None:
    with pytest.raises(UserError, match=r"config\.inner=3 must be a group of keys"):
        replace_keys({"inner": 3}, {"inner.rate": 1.0}, TREE, to_plain_value)


FULL = Outer(
    steps=7,
    name="a 'b', c",
    on=True,
    limit=16,
    folder="x=y",
    tint=Color.GREEN,
    sizes=(5,),
    rates=(1e-05, 0.000123456789012345),
    words=("a", "b,c", ""),
    colors=(Color.RED, Color.GREEN),
    either=(4,),
    inner=Inner(1e-5),
)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Outer)][:11])
@pytest.mark.parametrize("whole", [FULL, Outer(1)], ids=["full", "defaults"])
def test_a_flag_sets_what_the_override_does(name: str, whole: Outer) -> None:
    value = to_config(whole)[name]
    (word,) = overrides_to_flags({name: value}) or ()
    assert word == override_flag(name, value)
    found = set_words(word.removeprefix("--config."))[name]
    # One number alone may be written as a sequence of one.
    assert found == (value[0] if name == "either" and isinstance(value, list) else value)


def test_overrides_in_one_line_and_as_flags() -> None:
    overrides = {"inner.color": "red", "inner.rate": 0.00123456, "on": False, "sizes": [3, 4], "limit": None}
    assert describe_overrides(overrides) == "inner.color=red inner.rate=0.001235 on=false sizes=[3, 4] limit=null"
    assert describe_overrides({}) == "(the config as it is)"
    assert overrides_to_flags(overrides) == [
        "--config.inner.color=red",
        "--config.inner.rate=0.00123456",
        "--config.on=false",
        "--config.sizes=3,4",
        "--config.limit=none",
    ]
    assert overrides_to_flags({"inner": {"rate": 1.0}}) is None
