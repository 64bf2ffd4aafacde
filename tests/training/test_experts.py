"""A mixture of experts, and a family with a logical axis of its own: divided as said, and the numbers of one device."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.training.test_partitioning import LENGTH, ROWS, VOCABULARY, abstract_state, batch_of, numbers, on, two_steps
from transformer.config import UserError
from transformer.layers.functional_module import FunctionalModule, Module, ParameterBuilder
from transformer.logical_axes import RULES, Placement, use_placement, with_logical_constraint
from transformer.models.model import Aux, ForwardPass, Model, leaves_by_path
from transformer.training.partitioning import (
    ShardingConfig,
    add_family_axes,
    probe_placement,
    shard_batch,
    state_shardings,
)

EXPERTS, WIDTH, HIDDEN, SLOTS = 4, 8, 12, 8
# What a family would say as FAMILY.logical_axes.
OWN: Mapping[str, tuple[str, ...]] = {"slots": ("expert",), "facts": ()}
AXES = {
    "table": ("vocabulary", "embed"),
    "router": ("embed", "facts"),
    "expand": ("experts", "embed", "feed_forward"),
    "contract": ("experts", "feed_forward", "embed"),
    "memory": ("slots", "embed"),
}
SHAPES = {
    "table": (VOCABULARY, WIDTH),
    "router": (WIDTH, EXPERTS),
    "expand": (EXPERTS, WIDTH, HIDDEN),
    "contract": (EXPERTS, HIDDEN, WIDTH),
    "memory": (SLOTS, WIDTH),
}
MESHES = {
    "dp": ShardingConfig(data=2, expert=4),
    "fsdp": ShardingConfig(data=1, fsdp=2, expert=4, rules="fsdp"),
    "fsdp+tp": ShardingConfig(data=2, expert=2, tensor=2, rules="fsdp+tp"),
}


class Mixture(Module):
    """Every token asks every expert, and a memory: y = sum_x p(x | token) expert_x(token) + attention to the slots."""

    def __init__(self, builder: ParameterBuilder, axes: Mapping[str, tuple[str, ...]] = AXES):
        for name, shape in SHAPES.items():
            setattr(self, name, builder.parameter(jax.nn.initializers.normal(0.5), shape, axes[name]))

    def initial_state(self, key: Any) -> dict[str, Any]:
        return {}

    def forward(self, state: Any, inputs: Any, forward_pass: ForwardPass) -> tuple[jax.Array, Aux]:
        x_BxTxE = with_logical_constraint(self.table[...][inputs["target"]], "batch", "length", None)
        chosen_BxTxX = jax.nn.softmax(x_BxTxE @ self.router[...])
        hidden_XxBxTxF = jax.nn.relu(jnp.einsum("bte,xef->xbtf", x_BxTxE, self.expand[...]))
        hidden_XxBxTxF = with_logical_constraint(hidden_XxBxTxF, "experts", "expert_batch", "length", "feed_forward")
        y_XxBxTxE = jnp.einsum("xbtf,xfe->xbte", hidden_XxBxTxF, self.contract[...])
        y_XxBxTxE = with_logical_constraint(y_XxBxTxE, "experts", "expert_batch", "length", None)
        y_BxTxE = with_logical_constraint(jnp.einsum("btx,xbte->bte", chosen_BxTxX, y_XxBxTxE), "batch", "length", None)
        read_BxTxS = with_logical_constraint(
            jax.nn.softmax(x_BxTxE @ self.memory[...].T), "expert_batch", "length", "slots"
        )
        y_BxTxE = with_logical_constraint(y_BxTxE + read_BxTxS @ self.memory[...], "batch", "length", None)
        return with_logical_constraint(y_BxTxE @ self.table[...].T, "batch", "length", "vocabulary"), Aux({}, {}, state)


def mixture(**axes: tuple[str, ...]) -> Model:
    return Model(FunctionalModule(functools.partial(Mixture, axes={**AXES, **axes})), ())


def with_own(config: ShardingConfig, devices: int = 8) -> Placement:
    return add_family_axes(on(config, devices), OWN)


@pytest.fixture(scope="module")
def of_one() -> Any:
    return two_steps(mixture(), with_own(ShardingConfig(), 1))


@pytest.mark.slow
@pytest.mark.parametrize("rules", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("dp", "fsdp")), "fsdp+tp"])
def test_divided_experts_make_the_step_of_one_device(rules: str, of_one: Any) -> None:
    state, found, step = two_steps(mixture(), with_own(MESHES[rules]))
    one, expected, _ = of_one
    for metrics, others in zip(found, expected, strict=True):
        assert numbers(metrics) == pytest.approx(numbers(others), rel=1e-5)
    # Plain descent: what differs after two steps is the gradients.
    begun = leaves_by_path(jax.jit(mixture().init)(jax.random.key(0)).params)
    for path, leaf in leaves_by_path(one.variables.params).items():
        assert float(jnp.abs(leaf - begun[path]).max()) > 1e-3
        np.testing.assert_allclose(state.variables.params[path], leaf, rtol=0, atol=1e-6, err_msg=path)
    assert step._cache_size() == 1


@pytest.mark.parametrize("rules", MESHES)
def test_experts_and_a_familys_own_axis_lie_where_they_are_said_to(rules: str) -> None:
    placement, model = with_own(MESHES[rules]), mixture()
    sizes = {axis: size for axis, size in MESHES[rules].sizes().items()}
    fsdp, tensor, expert = (sizes[axis] for axis in ("fsdp", "tensor", "expert"))
    shardings = state_shardings(model, abstract_state(model), placement)
    found = {path: each.shard_shape(SHAPES[path]) for path, each in leaves_by_path(shardings.variables.params).items()}
    assert found == {
        "table": (VOCABULARY // tensor, WIDTH // fsdp),
        "router": (WIDTH // fsdp, EXPERTS),
        "expand": (EXPERTS // expert, WIDTH // fsdp, HIDDEN // tensor),
        "contract": (EXPERTS // expert, HIDDEN // tensor, WIDTH // fsdp),
        "memory": (SLOTS // expert, WIDTH // fsdp),
    }
    moments = [each.spec for path, each in leaves_by_path(shardings.optimizers).items() if path.endswith("expand")]
    assert moments == [shardings.variables.params["expand"].spec] * 2
    for array in shard_batch(batch_of(0), placement).values():
        assert {shard.data.shape for shard in array.addressable_shards} == {(ROWS // (8 // tensor), LENGTH)}


def test_each_device_computes_its_own_experts_for_all_rows_that_are_sent_to_it() -> None:
    placement, model = with_own(MESHES["dp"]), mixture()
    shardings = state_shardings(model, abstract_state(model), placement).variables

    def forward(variables: Any, batch: Any) -> jax.Array:
        with use_placement(placement):
            return model.apply(variables, batch, train=False)[0]

    variables = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        jax.eval_shape(model.init, jax.random.key(0)),
        shardings,
    )
    text = jax.jit(forward).lower(variables, shard_batch(batch_of(0), placement)).compile().as_text() or ""
    # One of four experts; and half of the rows, which no device has whole, nor all experts of its own rows.
    assert f"f32[1,{ROWS // 2},{LENGTH},{HIDDEN}]" in text
    assert f"f32[1,{ROWS},{LENGTH},{HIDDEN}]" not in text
    assert f"f32[{EXPERTS},{ROWS // 8},{LENGTH},{HIDDEN}]" not in text


def test_a_pass_over_examples_keeps_experts_and_own_axes_apart_from_them() -> None:
    own = {"slots": ("sequence",), "frames": ("expert", "sequence")}
    here = probe_placement(add_family_axes(on(ShardingConfig(data=2, expert=2, sequence=2, rules="sp"), 8), own))
    assert here.partition_spec(("batch", "length", "slots")) == PartitionSpec(
        ("data", "expert", "sequence"), None, None
    )
    assert here.partition_spec(("experts", "expert_batch")) == PartitionSpec("expert", ("data", "sequence"))
    assert here.partition_spec(("expert_batch", "frames")) == PartitionSpec(("data", "sequence"), "expert")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (
            {"heads": ()},
            r"FAMILY\.logical_axes=\{'heads': \(\)\} names a logical axis that has its place already, \(\)",
        ),
        ({"slots": ("experts",)}, r"'slots': \('experts',\).* lies on 'experts', .* did you mean 'expert'\?"),
        ({"slots": ("tensor", "model")}, r"lies on 'model', which is no axis of the mesh: known: data, expert, fsdp"),
        ({"slots": "expert"}, r"'slots': 'expert'\} is no tuple of mesh axes: say \('expert',\), or \(\)"),
        ({"slots": ("fsdp", "fsdp")}, r"names a mesh axis twice"),
    ],
)
def test_an_own_axis_that_shadows_another_or_lies_nowhere_is_refused(own: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        add_family_axes(on(ShardingConfig(), 8), own)


def test_own_axes_change_the_rules_of_no_other_placement() -> None:
    before = dict(RULES["dp"])
    assert add_family_axes(on(ShardingConfig(), 1), OWN).rules == {**before, **OWN}
    assert RULES["dp"] == before


@pytest.mark.parametrize("devices", [1, 8])
def test_a_parameter_with_an_unknown_axis_is_named_with_the_nearest_and_the_way_to_name_ones_own(devices: int) -> None:
    says = (
        r"^the parameter memory \(8, 8\) with logical axes \('slots', 'embed'\): logical axis 'slots' has no rule; "
        r"known, the nearest first: .*; a family names one of its own .*FAMILY\.logical_axes=\{'slots': \(\)\}$"
    )
    model = mixture(router=("embed", "features"))
    with pytest.raises(UserError, match=says):
        state_shardings(model, abstract_state(model), on(ShardingConfig(), devices))
    model = mixture(expand=("expert", "embed", "feed_forward"))
    with pytest.raises(UserError, match=r"^the parameter expand .*: logical axis 'expert' .* first: experts, "):
        state_shardings(model, abstract_state(model), with_own(ShardingConfig(), devices))


def test_a_parameter_that_names_too_few_dimensions_is_named() -> None:
    class Unnamed(Mixture):
        def __init__(self, builder: ParameterBuilder):
            super().__init__(builder)
            # As a family makes it that leaves the builder out.
            self.memory = type(self.memory)(self.memory[...])

    model = Model(FunctionalModule(Unnamed), ())
    with pytest.raises(
        UserError, match=r"the parameter memory \(8, 8\) .*: 0 logical axes \(\) for the 2 dimensions of"
    ):
        state_shardings(model, abstract_state(model), with_own(ShardingConfig()))


def test_dimensions_of_a_parameter_that_meet_on_one_mesh_axis_are_refused_by_name() -> None:
    model = mixture(memory=("slots", "experts"))
    with pytest.raises(
        UserError, match=r"the parameter memory .* two dimensions of \('slots', 'experts'\) on one mesh"
    ):
        state_shardings(model, abstract_state(model), with_own(MESHES["dp"]))


def test_experts_that_cannot_be_divided_are_refused_by_name() -> None:
    with pytest.raises(
        UserError, match=r"config\.sharding\.expert=8 does not divide the 4 of experts in the parameter"
    ):
        state_shardings(mixture(), abstract_state(mixture()), with_own(ShardingConfig(data=1, expert=8)))
