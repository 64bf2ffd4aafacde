"""Overrides of a plain config: what they set, what they leave, and every mistake."""

import copy

import pytest
from ml_collections import ConfigDict
from transformer.studies.overrides import as_flags, describe, with_overrides

from launch.config_files import override
from transformer.config import UserError

BASE = {
    "seed": 0,
    "name": "x",
    "model": {"norm_placement": "post", "width": 64, "rate": 0.1, "tied": True, "window": None, "sizes": (1, 2)},
    "task": {"name": "translation", "data": {"folder": "", "limits": [1]}},
}


def test_keys_are_set_and_everything_else_stays():
    before = copy.deepcopy(BASE)
    overrides = {"model.norm_placement": "pre", "seed": 3, "model.sizes": [3], "task.data.folder": "d", "model.rate": 1}
    found = with_overrides(BASE, overrides)
    expected = copy.deepcopy(BASE)
    expected["model"] |= {"norm_placement": "pre", "sizes": (3,), "rate": 1.0}
    expected["seed"] = 3
    expected["task"]["data"]["folder"] = "d"
    assert found == expected
    assert type(found["model"]["rate"]) is float
    assert type(found["model"]["sizes"]) is tuple
    assert before == BASE
    found["task"]["data"]["limits"].append(2)
    assert before == BASE


def test_a_group_is_replaced_whole_and_its_keys_are_set_after_it():
    overrides = {"task.data": {"length": 4}, "task": {"name": "reversal", "data": {"length": 3, "more": 1}}}
    expected = {"name": "reversal", "data": {"length": 4}}
    for order in (overrides, dict(reversed(overrides.items()))):
        assert with_overrides(BASE, order)["task"] == expected
    with pytest.raises(UserError, match=r"unknown key config\.task\.folder"):
        with_overrides(BASE, {"task": {"name": "reversal"}, "task.folder": "d"})


def test_none_stands_for_any_value_and_any_value_for_none():
    found = with_overrides(BASE, {"model.window": 16, "model.width": None})
    assert (found["model"]["window"], found["model"]["width"]) == (16, None)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model.norm_placment", "pre", "unknown key config.model.norm_placment: did you mean 'norm_placement'"),
        ("modle.width", 1, "unknown key config.modle: did you mean 'model'"),
        ("seeed", 1, "unknown key config.seeed: did you mean 'seed'"),
        ("norm_placement", "pre", "did you mean config.model.norm_placement?"),
        ("seed.x", 1, "config.seed=0 is a value and has no key 'x'"),
        ("model", 3, "config.model=3: that key is a group; set config.model.norm_placement or give a whole group"),
        ("seed", 1.5, "config.seed=1.5 is a float; it must be a int"),
        ("seed", True, "config.seed=True is a bool; it must be a int"),
        ("model.rate", "fast", "config.model.rate='fast' is a str; it must be a float"),
        ("model.tied", 1, "config.model.tied=1 is a int; it must be a bool"),
        ("model.sizes", 3, "config.model.sizes=3 is a int; it must be a tuple"),
        ("name", {"a": 1}, "config.name={'a': 1} is a dict; it must be a str"),
    ],
)
def test_mistakes_name_key_and_value(key, value, says):
    with pytest.raises(UserError) as told:
        with_overrides(BASE, {key: value})
    assert says in str(told.value).replace('"', "'")


def test_overrides_in_one_line_and_as_flags():
    overrides = {"model.norm_placement": "pre", "model.rate": 0.00123456, "model.tied": False, "model.sizes": [3, 4]}
    assert describe(overrides) == "model.norm_placement=pre model.rate=0.001235 model.tied=false model.sizes=[3, 4]"
    assert describe({}) == "(the config as it is)"
    assert as_flags({"task": {"name": "x"}}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 7),
        ("model.norm_placement", "pre"),
        ("model.rate", 0.000123456789012345),
        ("model.rate", 1e-05),
        ("model.tied", False),
        ("model.width", None),
        ("model.window", 16),
        ("model.sizes", [5]),
        ("model.sizes", [5, 6]),
    ],
)
def test_a_flag_sets_what_the_override_does(key, value):
    config = ConfigDict(copy.deepcopy(BASE))
    (word,) = as_flags({key: value})
    name, text = word.removeprefix("--config.").split("=", 1)
    override(config, name, text)
    assert config.to_dict() == with_overrides(BASE, {key: value})
