"""The fence around Flax NNX: modules as pure functions of nested dicts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from transformer.layers.feed_forward import Activation, FeedForward
from transformer.layers.functional_module import (
    FunctionalModule,
    Module,
    ParameterBuilder,
    Precision,
    group_layers,
    scan_layers,
)
from transformer.layers.initialization import Initialization, InitializationRule
from transformer.layers.linear import Linear
from transformer.logical_axes import LOGICAL_AXES, RULES, partition_spec

WIDTH, LAYERS = 8, 4


def feed_forward(builder: ParameterBuilder) -> FeedForward:
    return FeedForward(WIDTH, 12, activation=Activation.RELU, bias=True, builder=builder)


class Tower(Module):
    """A stack of feed-forward layers, scanned, behind one linear map."""

    def __init__(self, builder: ParameterBuilder):
        self.first = Linear((("embed", WIDTH),), (("embed", WIDTH),), bias=True, builder=builder)
        self.layers = builder.stack(feed_forward, LAYERS)

    def __call__(self, x: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(block: Any, x: jax.Array, one: jax.Array) -> tuple[jax.Array, jax.Array]:
            return x + block(x) * one, jnp.sum(x)

        return scan_layers(layer, self.layers, self.first(x), inputs)


@pytest.fixture(scope="module")
def tower() -> FunctionalModule:
    return FunctionalModule(Tower)


@pytest.fixture(scope="module")
def params(tower: FunctionalModule) -> dict[str, Any]:
    """As arrays of NumPy, which are indexed without a program."""
    return jax.device_get(tower.init(jax.random.key(0)))


X = jax.device_put(np.random.default_rng(0).normal(size=(2, WIDTH)).astype(np.float32))
INPUTS = jax.device_put(np.float32([1.0, -2.0, 0.5, 0.7]))


def test_a_scanned_stack_is_a_loop_over_its_layers(tower: FunctionalModule, params: dict[str, Any]) -> None:
    ours, sums = programs.call(tower, params, X, INPUTS)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x, expected_sums = np.asarray(X) @ weights["first"]["kernel"] + weights["first"]["bias"], []
    for index in range(LAYERS):
        expected_sums.append(np.sum(x))
        expand, contract = (
            {key: leaf[index] for key, leaf in weights["layers"][name].items()} for name in ("expand", "contract")
        )
        hidden = np.maximum(x @ expand["kernel"] + expand["bias"], 0)
        x = x + (hidden @ contract["kernel"] + contract["bias"]) * float(INPUTS[index])
    np.testing.assert_allclose(ours, x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=0, atol=1e-5)


@pytest.mark.parametrize("period", [1, 2, 4])
def test_groups_hold_the_layers_in_their_order(tower: FunctionalModule, params: dict[str, Any], period: int) -> None:

    @jax.jit
    def kernels_in_order(params: dict[str, Any]) -> list[jax.Array]:
        bind, grouped = group_layers(tower.bind(params).layers, period)
        assert grouped["expand"]["bias"].shape[:2] == (LAYERS // period, period)
        groups = [
            bind(jax.tree.map(lambda leaf, number=number: leaf[number], grouped)) for number in range(LAYERS // period)
        ]
        return [layer.expand.kernel[...] for group in groups for layer in group]

    np.testing.assert_array_equal(kernels_in_order(params), params["layers"]["expand"]["kernel"])


def test_stacked_layers_start_differently(params: dict[str, Any]) -> None:
    kernel = np.asarray(params["layers"]["expand"]["kernel"])
    assert kernel.shape == (LAYERS, WIDTH, 12)
    assert all(not np.array_equal(kernel[i], kernel[j]) for i in range(LAYERS) for j in range(i))
    # The bound of one layer, not of all of them stacked.
    bound = np.sqrt(6 / (WIDTH + 12))
    assert 0.9 * bound < np.abs(kernel).max() <= bound


def test_init_agrees_with_shapes_and_axes(tower: FunctionalModule, params: dict[str, Any]) -> None:
    shapes, axes = tower.shapes(), tower.axes()
    assert isinstance(params, dict)
    assert jax.tree.structure(params) == jax.tree.structure(shapes)
    is_axes = {"is_leaf": lambda leaf: isinstance(leaf, tuple)}
    assert jax.tree.structure(axes, **is_axes) == jax.tree.structure(shapes)
    for leaf, shape, names in zip(
        jax.tree.leaves(params), jax.tree.leaves(shapes), jax.tree.leaves(axes, **is_axes), strict=True
    ):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)
        assert len(names) == leaf.ndim
        assert set(names) <= LOGICAL_AXES
        partition_spec(names, RULES["dp"])
    assert axes["layers"]["expand"]["kernel"] == ("layers", "embed", "feed_forward")
    assert axes["layers"]["contract"]["bias"] == ("layers", "features")


def test_init_is_a_pure_function_of_its_key(tower: FunctionalModule, params: dict[str, Any]) -> None:
    jax.tree.map(np.testing.assert_array_equal, tower.init(jax.random.key(0)), params)
    compiled = jax.jit(tower.init)
    jax.tree.map(
        lambda ours, leaf: np.testing.assert_allclose(ours, leaf, rtol=1e-6), compiled(jax.random.key(0)), params
    )
    other = compiled(jax.random.key(1))
    assert not np.array_equal(other["first"]["kernel"], params["first"]["kernel"])
    assert not np.array_equal(params["first"]["kernel"][:, 0], params["layers"]["expand"]["kernel"][0, :, 0])


def test_bound_parameters_are_the_ones_that_are_differentiated(tower: FunctionalModule, params: dict[str, Any]) -> None:
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(tower.bind(params)(X, INPUTS)[0])))(params)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


def test_parameters_have_the_type_that_was_asked_for() -> None:
    half = FunctionalModule(Tower, Precision(parameters="bfloat16"))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half.shapes())} == {"bfloat16"}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(half.init, jax.random.key(0)))} == {"bfloat16"}


def test_a_parameter_names_every_dimension() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\) has 2 dimensions and 1 logical axes \('embed',\)"):
        ParameterBuilder(jax.random.key(0)).parameter(jax.nn.initializers.zeros, (2, 3), ("embed",))


def test_no_two_parameters_of_a_builder_begin_with_one_key() -> None:
    builder = ParameterBuilder(jax.random.key(0))
    both = (builder, builder.with_rule(InitializationRule(Initialization.T5)))
    drawn = [float(each.parameter(jax.nn.initializers.normal(), (), ())[...]) for each in both for _ in range(5)]
    assert len(set(drawn)) == 10
