"""Experts that lie on eight devices: the values and gradients of one, each device computing its own experts alone."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from transformer.layers.feed_forward import Activation, FeedForward
from transformer.layers.functional_module import FunctionalModule, ParameterBuilder
from transformer.layers.mixture_of_experts import Gating, MixtureOfExperts, MixtureOfExpertsConfig
from transformer.logical_axes import Placement, use_placement
from transformer.training.partitioning import ShardingConfig, make_placement, probe_placement

ROWS, LENGTH, WIDTH, HIDDEN, COUNT = 16, 4, 8, 12, 4
CONFIG = MixtureOfExpertsConfig(count=COUNT, capacity_factor=1.0)
MESHES = {
    "expert": ShardingConfig(data=2, expert=4),
    "fsdp and tensor": ShardingConfig(data=1, fsdp=2, expert=2, tensor=2, rules="fsdp+tp"),
    "sequence": ShardingConfig(data=2, expert=2, sequence=2, rules="sp"),
}


def make(builder: ParameterBuilder) -> FeedForward:
    return FeedForward(WIDTH, HIDDEN, activation=Activation.SWIGLU, bias=True, builder=builder)


def module(config: MixtureOfExpertsConfig) -> FunctionalModule[MixtureOfExperts]:
    return FunctionalModule(lambda builder: MixtureOfExperts(config, WIDTH, make, builder=builder))


EXPERTS = module(CONFIG)
WITHOUT_NOISE = module(dataclasses.replace(CONFIG, gating=Gating.SOFTMAX, router_bias=True))


def given(rows: int = ROWS, experts: FunctionalModule[MixtureOfExperts] = EXPERTS) -> tuple[Any, ...]:
    """Parameters whose router favors one expert, so that it takes several turns; inputs, their lengths, a key."""
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(0, 0.5, leaf.shape).astype(np.float32), experts.shapes())
    x_BxTxE = random.normal(size=(rows, LENGTH, WIDTH)).astype(np.float32)
    x_BxTxE[..., 0], params["router"]["kernel"][0, 1] = 1, 4
    return params, x_BxTxE, np.arange(rows) % (LENGTH + 1), jax.random.key(2)


def loss(placement: Placement | None, params: Any, x_BxTxE: Any, lengths_B: Any, key: Any) -> Any:
    def run() -> Any:
        noisy = "noise" in params
        experts = EXPERTS if noisy else WITHOUT_NOISE
        y, _, balance = experts.bind(params)(x_BxTxE, lengths_B=lengths_B, key=key)
        unevenness = balance.importance + balance.load if noisy else balance.balance_loss()
        return jnp.sum(jnp.sin(y)) + unevenness, (y, balance)

    if placement is None:
        return run()
    with use_placement(placement):
        return run()


def program(placement: Placement | None) -> Any:
    return jax.jit(jax.value_and_grad(functools.partial(loss, placement), argnums=(0, 1), has_aux=True))


def on(placement: Placement, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, where a training step has them."""
    params, x_BxTxE, lengths_B, key = arguments
    is_names = lambda leaf: isinstance(leaf, tuple)  # noqa: E731
    experts = EXPERTS if "noise" in params else WITHOUT_NOISE
    specs = jax.tree.map(placement.partition_spec, experts.axes(), is_leaf=is_names)
    rows = placement.even_partition_spec(("batch",), (len(x_BxTxE),))
    places = (specs, rows, rows, PartitionSpec())
    return jax.tree.map(
        lambda spec, leaf: jax.device_put(leaf, NamedSharding(placement.mesh, spec)),
        places,
        (params, x_BxTxE, lengths_B, key),
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )


@pytest.fixture(scope="module")
def of_one() -> Any:
    return program(None)(*given())


@pytest.mark.parametrize(
    ("mesh", "looking"),
    [
        ("expert", False),
        pytest.param("fsdp and tensor", False, marks=pytest.mark.slow),
        pytest.param("sequence", False, marks=pytest.mark.slow),
        pytest.param("sequence", True, marks=pytest.mark.slow),
    ],
)
def test_divided_experts_compute_what_one_device_does(mesh: str, looking: bool, of_one: Any) -> None:
    placement = make_placement(MESHES[mesh])
    found = program(probe_placement(placement) if looking else placement)(*on(placement, given()))
    for ours, one in zip(*map(jax.tree.leaves, (found, of_one)), strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_divided_experts_without_noise_compute_what_one_device_does(mesh: str) -> None:
    placement, arguments = make_placement(MESHES[mesh]), given(experts=WITHOUT_NOISE)
    found = program(placement)(*on(placement, arguments))
    for ours, one in zip(*map(jax.tree.leaves, (found, program(None)(*arguments))), strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rows_that_the_devices_cannot_share_are_computed_as_well() -> None:
    placement = make_placement(MESHES["expert"])
    found = program(placement)(*on(placement, given(rows=3)))
    for ours, one in zip(*map(jax.tree.leaves, (found, program(None)(*given(rows=3)))), strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-5)


def test_rows_go_to_their_experts_and_come_back_by_an_all_to_all() -> None:
    placement = make_placement(MESHES["expert"])
    arguments = on(placement, given())
    forward = jax.jit(lambda *arguments: loss(placement, *arguments)[1][0])
    text = forward.lower(*arguments).compile().as_text()
    assert "all-to-all" in text
    assert "all-gather" not in text
    # A device has one of four experts, and 8 rows for it from each of the four devices that share half of the batch.
    products = set(re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text))
    assert products == {f"32,{HIDDEN}", f"32,{WIDTH}", f"8,{COUNT}"}
