"""A NaN that is planted in one array of one layer is traced to it: jitted, rematerialized, and on a mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.random_models import random_variables
from transformer.layers.functional_module import Precision
from transformer.models.model import Model, Variables
from transformer.models.non_finite_values import first_non_finite_value
from transformer.models.registry import build, model_config
from transformer.models.task_interface import TaskInterface
from transformer.training.partitioning import ShardingConfig, make_placement, shard_batch, trace_with_placement

LAYERS = 4
TOKENS = np.arange(48, dtype=np.int32).reshape(8, 6) % 11
# What is set to a value in a layer, and the activation that has it first.
PLANTED = {
    ("attention", "query", "kernel"): "decoder/self/queries",
    ("attention", "value", "bias"): "decoder/self/values",
    ("attention", "output", "kernel"): "decoder/self/output",
    ("feed_forward", "expand", "bias"): "decoder/feed_forward/before_activation",
    ("feed_forward", "contract", "kernel"): "decoder/feed_forward/output",
}


def decoder(**options: Any) -> Model:
    sizes = {"layers": LAYERS, "heads": 2, "width": 8, "feed_forward": 16, "max_length": 8}
    config = model_config({"family": "decoder", **sizes, **options})
    return build(config, TaskInterface({}, {"tokens": 11}), Precision())


def planted(variables: Variables, path: tuple[str, ...], layer: int, value: float) -> Variables:
    """The variables with one entry of a layer's parameter set."""
    params = jax.tree.map(np.array, variables.params)
    leaf = params["layers"]
    for name in path:
        leaf = leaf[name]
    leaf[(layer, *(0 for _ in leaf.shape[1:]))] = value
    return variables._replace(params=params)


@pytest.mark.parametrize(("path", "layer"), [(path, layer) for path in PLANTED for layer in (0, 3)])
def test_the_layer_and_the_array_are_named(path: tuple[str, ...], layer: int) -> None:
    model = decoder(remat="full" if layer else "none")
    variables = planted(random_variables(model), path, layer, np.nan if layer else np.inf)

    def loss(variables: Variables, tokens: Any) -> Any:
        return jnp.mean(model.apply(variables, {"tokens": tokens}, train=True, key=jax.random.key(0))[0])

    found = first_non_finite_value(loss, variables, TOKENS)
    assert found is not None
    assert (found.name, found.layer, found.entry[0]) == (PLANTED[path], layer, 0)
    assert str(found).startswith(f"{PLANTED[path]}, layer {layer} (example 0, position 0")


def test_a_pass_that_is_finite_has_none() -> None:
    model = decoder()
    assert (
        first_non_finite_value(lambda v: model.apply(v, {"tokens": TOKENS}, train=False)[0], random_variables(model))
        is None
    )


def test_an_input_is_named_where_it_is_read() -> None:
    """A row of the table that only the third example has: it is named with its place."""
    model = decoder()
    variables = random_variables(model)
    params = jax.tree.map(np.array, variables.params)
    params["embedding"]["table"][9, 3] = np.nan
    tokens = np.zeros((4, 5), np.int32)
    tokens[2, 4] = 9
    found = first_non_finite_value(
        lambda v: model.apply(v, {"tokens": tokens}, train=False)[0], variables._replace(params=params)
    )
    assert str(found) == "decoder/token_embeddings (example 2, position 4, feature 3)"


def test_it_is_named_on_a_mesh() -> None:
    model, path = decoder(), ("feed_forward", "contract", "kernel")
    variables = planted(random_variables(model), path, 2, np.nan)
    placement = make_placement(ShardingConfig(data=2, fsdp=2, tensor=2, rules="fsdp+tp"), jax.devices()[:8])
    batch = shard_batch({"tokens": TOKENS}, placement)
    apply = trace_with_placement(placement, lambda v, inputs: model.apply(v, inputs, train=False)[0])
    found = first_non_finite_value(apply, variables, batch)
    assert found is not None
    assert (found.name, found.layer) == (PLANTED[path], 2)
