"""Logical axes: every name has a rule, and no rule is bent in silence."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from transformer.logical_axes import (
    LOGICAL_AXES,
    MESH_AXES,
    RULES,
    Placement,
    partition_spec,
    target_device,
    use_placement,
    with_logical_constraint,
)

WHOLE: tuple[str, ...] = ()


@pytest.mark.parametrize("name", RULES)
def test_rules_name_every_logical_axis_and_axes_of_the_mesh_alone(name: str) -> None:
    assert set(RULES[name]) == LOGICAL_AXES
    assert {axis for axes in RULES[name].values() for axis in axes} <= set(MESH_AXES)


OF_EXPERTS = {"batch", "expert_batch", "experts"}


def test_data_parallel_divides_the_batch_and_experts_alone() -> None:
    assert {name for name, axes in RULES["dp"].items() if axes} == OF_EXPERTS
    assert partition_spec(("batch", None), RULES["dp"]) == PartitionSpec(("data", "expert"), None)
    for name in LOGICAL_AXES - OF_EXPERTS:
        assert partition_spec((name,), RULES["dp"]) == PartitionSpec(None)


@pytest.mark.parametrize("name", RULES)
def test_experts_lie_apart_under_all_rules_and_their_devices_share_the_batch(name: str) -> None:
    rules = RULES[name]
    assert rules["experts"] == ("expert",)
    assert set(rules["batch"]) == {*rules["expert_batch"], "expert"}
    # Beside its experts an array's rows lie as they would on a mesh that has no axis for experts.
    fsdp, tensor = "embed" in {key for key, axes in rules.items() if axes == ("fsdp",)}, rules["feed_forward"]
    rows = ("data", "fsdp") if fsdp else "data"
    assert partition_spec(("experts", "expert_batch", None), rules) == PartitionSpec("expert", rows, None)
    kernel = PartitionSpec("expert", "fsdp" if fsdp else None, *(tensor or (None,)))
    assert partition_spec(("experts", "embed", "feed_forward"), rules) == kernel


def test_each_dimension_follows_the_rule_of_its_name() -> None:
    rules = RULES["fsdp+tp"]
    assert partition_spec((), rules) == PartitionSpec()
    assert partition_spec(("layers", "embed", "heads", "head_dim"), rules) == PartitionSpec(
        None, "fsdp", "tensor", None
    )
    assert partition_spec(("batch", "length", None), rules) == PartitionSpec(("data", "fsdp", "expert"), None, None)
    assert partition_spec(("batch", "length", None), RULES["sp"]) == PartitionSpec(
        ("data", "fsdp", "expert"), "sequence", None
    )
    # Two dimensions may be whole on every device.
    assert partition_spec(("head_dim", "head_dim"), rules) == PartitionSpec(None, None)


@pytest.mark.parametrize(
    ("axes", "first"), [(("embed", "head"), "heads"), (("Embed",), "embed"), (("expert", None), "experts")]
)
def test_a_misspelt_axis_is_refused_not_replicated_and_the_nearest_named_first(
    axes: tuple[str | None, ...], first: str
) -> None:
    wrong = next(name for name in axes if name is not None and name not in LOGICAL_AXES)
    says = f"^logical axis '{wrong}' has no rule; known, the nearest first: {first}, .*vocabulary.*FAMILY.logical_axes="
    with pytest.raises(ValueError, match=says):
        partition_spec(axes, RULES["dp"])
    here = on_devices(8)
    for ask in (here.mesh_axes, here.num_shards, here.even_mesh_axes):
        with pytest.raises(ValueError, match=says):
            ask(wrong)
    with pytest.raises(ValueError, match=says):
        here.even_partition_spec(axes, (8,) * len(axes))


def test_names_are_judged_by_the_rules_that_are_asked() -> None:
    with pytest.raises(ValueError, match=r"'heads' has no rule"):
        partition_spec(("embed", "heads"), {"embed": WHOLE})
    assert partition_spec(("color",), {**RULES["dp"], "color": ("tensor",)}) == PartitionSpec("tensor")


def on_devices(count: int) -> Placement:
    """A placement on so many devices that divide the batch."""
    sizes = [count, *[1] * (len(MESH_AXES) - 1)]
    types = (AxisType.Auto,) * len(MESH_AXES)
    return Placement(jax.make_mesh(sizes, MESH_AXES, axis_types=types, devices=jax.devices()[:count]), RULES["dp"])


# A fault is to be told on a laptop, not on the pod.
@pytest.mark.parametrize("count", [1, 8])
def test_an_activation_with_a_name_that_is_none_is_refused_on_one_device_as_on_many(count: int) -> None:
    x = jnp.zeros((8, 3))
    with use_placement(on_devices(count)):
        assert with_logical_constraint(x, "batch", None).shape == x.shape
        with pytest.raises(
            ValueError,
            match=r"^with_logical_constraint\(x, 'batch', 'lenght'\) of an array of shape \(8, 3\): .*: length,",
        ):
            with_logical_constraint(x, "batch", "lenght")


def test_what_does_not_divide_evenly_is_whole_on_every_device() -> None:
    here = on_devices(8)
    axes = here.mesh_axes("batch")
    assert axes
    assert here.even_mesh_axes("batch", 16, 8) == axes
    assert here.even_mesh_axes("batch", 16, 12) == ()
    assert here.even_partition_spec(("batch", None), (12, 8)) == PartitionSpec(None, None)


@pytest.mark.parametrize("count", [None, 1, 8])
def test_an_activation_has_a_name_for_each_dimension(count: int | None) -> None:
    call = r"^with_logical_constraint\(x, 'batch'\) of an array of shape \(8, 3\): "
    says = call + r"1 logical axes \('batch',\) for the 2 dimensions"
    within = contextlib.nullcontext() if count is None else use_placement(on_devices(count))
    with within, pytest.raises(ValueError, match=says):
        with_logical_constraint(jnp.zeros((8, 3)), "batch")


def test_two_dimensions_on_one_mesh_axis_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two dimensions .* on one mesh axis"):
        partition_spec(("heads", "feed_forward"), RULES["fsdp+tp"])


def test_the_target_is_the_placements_device_or_else_the_processs_own() -> None:
    assert target_device() == jax.local_devices()[0]
    last = Placement(jax.make_mesh((1,), ("data",), devices=jax.devices()[-1:]), RULES["dp"])
    with use_placement(last):
        assert target_device() == jax.devices()[-1]
