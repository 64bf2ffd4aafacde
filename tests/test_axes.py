"""Logical axes: every name has a rule, and no rule is bent in silence."""

import pytest
from jax.sharding import PartitionSpec

from transformer.axes import LOGICAL_AXES, MESH_AXES, RULES, resolve

WHOLE: tuple[str, ...] = ()


@pytest.mark.parametrize("name", RULES)
def test_rules_name_every_logical_axis_and_axes_of_the_mesh_alone(name: str) -> None:
    assert set(RULES[name]) == LOGICAL_AXES
    assert {axis for axes in RULES[name].values() for axis in axes} <= set(MESH_AXES)


def test_data_parallel_divides_the_batch_alone() -> None:
    assert {name for name, axes in RULES["dp"].items() if axes} == {"batch"}
    assert resolve(("batch", None), RULES["dp"]) == PartitionSpec("data", None)
    for name in LOGICAL_AXES - {"batch"}:
        assert resolve((name,), RULES["dp"]) == PartitionSpec(None)


def test_each_dimension_follows_the_rule_of_its_name() -> None:
    rules = RULES["fsdp+tp"]
    assert resolve((), rules) == PartitionSpec()
    assert resolve(("layers", "embed", "heads", "head_depth"), rules) == PartitionSpec(None, "fsdp", "tensor", None)
    assert resolve(("batch", "length", None), rules) == PartitionSpec(("data", "fsdp"), None, None)
    assert resolve(("batch", "length", None), RULES["sp"]) == PartitionSpec(("data", "fsdp"), "sequence", None)
    # Two dimensions may be whole on every device.
    assert resolve(("head_depth", "head_depth"), rules) == PartitionSpec(None, None)


@pytest.mark.parametrize("axes", [("embed", "head"), ("Embed",), ("",)])
def test_a_misspelt_axis_is_refused_not_replicated(axes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"logical axis '{axes[-1]}' .* has no rule; known axes: .*'embed'"):
        resolve(axes, RULES["dp"])


def test_a_name_that_the_rules_forget_or_invent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'heads' .* has no rule"):
        resolve(("embed", "heads"), {"embed": WHOLE})
    with pytest.raises(ValueError, match=r"'colour' .* has no rule"):
        resolve(("colour",), {**RULES["dp"], "colour": WHOLE})


def test_two_dimensions_on_one_mesh_axis_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two dimensions .* on one mesh axis"):
        resolve(("heads", "feed_forward"), RULES["fsdp+tp"])
