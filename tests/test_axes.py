"""Logical axes: every name has a rule, and no rule is bent in silence."""

import pytest
from jax.sharding import PartitionSpec

from transformer.axes import DATA_PARALLEL, LOGICAL_AXES, resolve

TENSOR_PARALLEL = {**DATA_PARALLEL, "heads": "model", "feed_forward": "model", "vocabulary": "model"}


def test_data_parallel_divides_the_batch_alone() -> None:
    assert set(DATA_PARALLEL) == LOGICAL_AXES
    assert {name for name, place in DATA_PARALLEL.items() if place is not None} == {"batch"}
    assert resolve(("batch", None), DATA_PARALLEL) == PartitionSpec("data", None)
    for name in LOGICAL_AXES - {"batch"}:
        assert resolve((name,), DATA_PARALLEL) == PartitionSpec(None)


def test_each_dimension_follows_the_rule_of_its_name() -> None:
    assert resolve((), TENSOR_PARALLEL) == PartitionSpec()
    assert resolve(("layers", "embed", "heads", "head_depth"), TENSOR_PARALLEL) == PartitionSpec(
        None, None, "model", None
    )
    # Two dimensions may be whole on every device.
    assert resolve(("embed", "embed"), TENSOR_PARALLEL) == PartitionSpec(None, None)


@pytest.mark.parametrize("axes", [("embed", "head"), ("Embed",), ("",)])
def test_a_misspelt_axis_is_refused_not_replicated(axes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"logical axis '{axes[-1]}' .* has no rule; known axes: .*'embed'"):
        resolve(axes, DATA_PARALLEL)


def test_a_name_that_the_rules_forget_or_invent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'heads' .* has no rule"):
        resolve(("embed", "heads"), {"embed": None})
    with pytest.raises(ValueError, match=r"'colour' .* has no rule"):
        resolve(("colour",), {**DATA_PARALLEL, "colour": "model"})


def test_two_dimensions_on_one_mesh_axis_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two dimensions .* on one mesh axis"):
        resolve(("heads", "feed_forward"), TENSOR_PARALLEL)
