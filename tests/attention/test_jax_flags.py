"""Attention and layers under the flags by which JAX finds mistakes: as clean as jax.nn is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contracts.case import Case
from tests.contracts.cases import CASES
from transformer.attention import (
    STATISTICS,
    AttentionPosition,
    AttentionSpec,
    Backend,
    Capture,
    Mask,
    Normalizer,
    Reweighting,
    attend,
    local_predictive,
)
from transformer.layers.functional_module import FunctionalModule
from transformer.layers.linear import Linear
from transformer.layers.norm import LayerNorm, RmsNorm
from transformer.tasks.synthetic_data import abstract_batch
from transformer.training.build import build_components, make_jitted_train_step
from transformer.training.optimizer import OptimizerAlgorithm
from transformer.training.partitioning import ShardingConfig, make_placement

LENGTH = 4
# The second example is padded; the last query of it sees no key.
LENGTHS = jax.device_put(np.int32([LENGTH, LENGTH - 1]))
ZEROS, ONES = jax.device_put((np.zeros((2, LENGTH), np.int32), np.ones((2, LENGTH), np.int32)))
MASKS = {
    "none": Mask(),
    "causal": Mask(causal=True),
    "padded": Mask(query_lengths=LENGTHS, key_lengths=LENGTHS),
    "window": Mask(causal=True, window=(1, 0), query_offset=jax.device_put(np.zeros(2, np.int32))),
    "prefix": Mask(causal=True, prefix=LENGTHS),
    "segments": Mask(segments=(ZEROS, ZEROS)),
    "order": Mask(order=(ZEROS, ONES)),
    "allowed": Mask(allowed=jax.device_put(np.arange(LENGTH)[:, None] != np.full((1, 1, 1, LENGTH), 1))),
    "center": local_predictive(jax.device_put(np.zeros((2, 2, LENGTH), np.float32)), 1),
}
EVERYTHING = Capture(("here",), statistics=tuple(STATISTICS.values()))


def arrays() -> list[jax.Array]:
    random = np.random.default_rng(0)
    return [jax.device_put(random.normal(size=(2, LENGTH, 2, 8)).astype(np.float32)) for _ in range(3)]


@pytest.mark.parametrize(
    "named", [name if name in ("causal", "padded") else pytest.param(name, marks=pytest.mark.slow) for name in MASKS]
)
def test_attention_raises_the_rank_of_no_array_in_silence(named: str) -> None:
    """Of every backend that a CPU has, with its gradient and what is captured; nothing is compiled."""
    mask = MASKS[named]
    choices: list[dict[str, Any]] = [{"backend": backend} for backend in (Backend.BLOCKWISE, Backend.XLA)]
    choices += [{**choice, "position": AttentionPosition.ALIBI} for choice in choices]
    choices += [{"normalizer": normalizer} for normalizer in Normalizer] + [{"position": AttentionPosition.ROTARY}]
    if mask.center is not None:
        choices += [{"reweighting": Reweighting.GAUSSIAN}]
    for choice in choices:

        def total(*arrays: jax.Array, choice: dict[str, Any] = choice) -> Any:
            output, attended = attend(
                *arrays, spec=AttentionSpec(**choice), mask=mask, capture=EVERYTHING, train=True, key=jax.random.key(0)
            )
            return jnp.sum(output), attended

        with jax.numpy_rank_promotion("raise"):
            jax.eval_shape(jax.grad(total, (0, 1, 2), has_aux=True), *arrays())


@pytest.mark.parametrize("named", ["causal", "padded"])
@pytest.mark.parametrize(
    "choice",
    [
        {"backend": Backend.EINSUM},
        {"backend": Backend.EINSUM, "normalizer": Normalizer.SPARSEMAX},
        {"backend": Backend.EINSUM, "normalizer": Normalizer.ENTMAX15},
        {"backend": Backend.EINSUM, "normalizer": Normalizer.HARD},
        {"backend": Backend.BLOCKWISE},
        {"backend": Backend.XLA},
    ],
    ids=lambda choice: "-".join(value.value for value in choice.values()),
)
def test_infinities_never_leave_attention(choice: dict[str, Any], named: str) -> None:
    """Outside of jit, where JAX looks at the result of every single operation."""

    def total(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(attend(*arrays, spec=AttentionSpec(**choice), mask=MASKS[named])[0] ** 2)

    inputs = arrays()
    with jax.debug_infs(True):
        found = [total(*inputs), *jax.grad(total, (0, 1, 2))(*inputs)]
    assert all(np.isfinite(each).all() for each in found)


@pytest.mark.parametrize(
    "build",
    [
        lambda builder: LayerNorm(8, builder=builder),
        lambda builder: RmsNorm(8, builder=builder),
        lambda builder: Linear((("embed", 8),), (("heads", 2), ("head_dim", 4)), bias=True, builder=builder),
    ],
)
def test_layers_raise_the_rank_of_no_array_in_silence(build: Callable[..., Any]) -> None:
    functional = FunctionalModule(build)
    with jax.numpy_rank_promotion("raise"):
        params = functional.init(jax.random.key(0))
        jax.eval_shape(lambda params, x: functional.bind(params)(x), params, jnp.ones((2, 3, 8)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_familys_training_step_raises_the_rank_of_an_array_in_silence(case: Case) -> None:
    experiment = case.experiment(OptimizerAlgorithm.ADAM, 0.01)
    with jax.numpy_rank_promotion("raise"):
        components = build_components(
            experiment, Path(), make_placement(ShardingConfig(), jax.devices()[:1]), synthetic=True
        )
        step = make_jitted_train_step(experiment, components)
        step.trace(components.abstract_state, abstract_batch(components.task), False)
