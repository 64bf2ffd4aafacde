"""The maximal update parametrization: what changes with the width, against the table of the paper."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.positions import PositionCombination
from transformer.config import UserError
from transformer.layers.functional_module import Precision
from transformer.models.decoder import DecoderConfig, build
from transformer.models.model import Model, Variables, leaves_by_path
from transformer.models.task_interface import TaskInterface
from transformer.training.optimizer import (
    LearningRateSchedule,
    OptimizerAlgorithm,
    OptimizerConfig,
    hyperparameters,
    make_optimizer,
    width_rate_factors,
)

TOKENS, BASE_WIDTH = 19, 32
CONSTANT_RATE = OptimizerConfig(schedule=LearningRateSchedule.CONSTANT, warmup_steps=0)


@functools.cache
def decoder(width: int, base_width: int | None, **changed: Any) -> Model:
    config = DecoderConfig(
        layers=2,
        width=width,
        heads=width // 16,
        feed_forward=2 * width,
        max_length=16,
        base_width=base_width,
        **changed,
    )
    return build(config, TaskInterface({}, {"tokens": TOKENS}), Precision())


def logits_of(model: Model, variables: Variables) -> jax.Array:
    tokens = np.random.default_rng(1).integers(0, TOKENS, (4, 16))
    return model.apply(variables, {"tokens": jnp.asarray(tokens)}, train=False)[0]


def test_the_base_width_itself_is_the_standard_parametrization() -> None:
    key = jax.random.key(2)
    standard, at_base = decoder(BASE_WIDTH, None), decoder(BASE_WIDTH, BASE_WIDTH)
    variables = standard.init(key)
    jax.tree.map(np.testing.assert_array_equal, at_base.init(key), variables)
    np.testing.assert_array_equal(logits_of(at_base, variables), logits_of(standard, variables))
    assert width_rate_factors(standard) is None
    assert width_rate_factors(at_base) is None


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_divided_by_the_ratio_of_the_widths(tied: bool) -> None:
    standard = decoder(4 * BASE_WIDTH, None, tie_embeddings=tied)
    scaled = decoder(4 * BASE_WIDTH, BASE_WIDTH, tie_embeddings=tied)
    variables = standard.init(jax.random.key(3))
    np.testing.assert_allclose(logits_of(scaled, variables), logits_of(standard, variables) / 4, rtol=1e-5, atol=1e-7)


def test_matrices_between_two_widths_have_a_quarter_of_the_rate() -> None:
    factors = width_rate_factors(decoder(4 * BASE_WIDTH, BASE_WIDTH, tie_embeddings=False))
    assert factors is not None
    hidden = {
        f"layers/{name}/kernel"
        for name in (
            "attention/query",
            "attention/key",
            "attention/value",
            "attention/output",
            "feed_forward/expand",
            "feed_forward/contract",
        )
    }
    assert {path for path, factor in factors.items() if factor == 0.25} == hidden
    assert {"embedding/table", "positions/table", "unembedding/kernel"} <= {
        path for path, factor in factors.items() if factor == 1
    }


def test_a_step_has_the_factor_and_weight_decay_has_not() -> None:
    config = OptimizerConfig(
        algorithm=OptimizerAlgorithm.ADAMW,
        learning_rate=0.1,
        schedule=LearningRateSchedule.CONSTANT,
        warmup_steps=0,
        weight_decay=0.5,
    )
    optimizer = make_optimizer(config, 10, rate_factors={"hidden": 0.25, "table": 1.0})
    params = {name: jnp.full((2, 2), 3.0) for name in ("hidden", "table")}
    gradients = {name: jnp.full((2, 2), -2.0) for name in params}
    hyper = hyperparameters(config)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params, 0, hyper)
    # Adam's first step is the sign of the gradient.
    np.testing.assert_allclose(updates["table"], 0.1 * (1 - 0.5 * 3), rtol=1e-5)
    np.testing.assert_allclose(updates["hidden"], 0.1 * (0.25 - 0.5 * 3), rtol=1e-5)


def change_of_logits(width: int, base_width: int | None) -> float:
    """Train three steps on one batch and return the root mean square change of the logits."""
    model, config = decoder(width, base_width), dataclasses.replace(CONSTANT_RATE, learning_rate=3e-3)
    optimizer, hyper = make_optimizer(config, 10, rate_factors=width_rate_factors(model)), hyperparameters(config)
    labels = jnp.asarray(np.random.default_rng(5).integers(0, TOKENS, (4, 16, 1)))

    @jax.jit
    def change(key: jax.Array) -> jax.Array:
        before = model.init(key)
        structure = jax.tree.structure(before.params)

        def logits(flat: Any) -> jax.Array:
            return logits_of(model, before._replace(params=jax.tree.unflatten(structure, list(flat.values()))))

        def loss(flat: Any) -> jax.Array:
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(flat)), labels, axis=-1))

        def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
            flat, state = carry
            updates, state = optimizer.update(jax.grad(loss)(flat), state, flat, number, hyper)
            return ({path: flat[path] + updates[path] for path in flat}, state), None

        first = leaves_by_path(before.params)
        (last, _), _ = jax.lax.scan(step, (first, optimizer.init(first)), jnp.arange(3))
        return jnp.sqrt(jnp.mean((logits(last) - logits(first)) ** 2))

    return float(change(jax.random.key(4)))


@pytest.mark.slow
def test_logits_move_as_far_at_every_width() -> None:
    # The coordinate check (Yang et al. 2022, appendix D.1): eight times the width.
    narrow, wide = (change_of_logits(width, BASE_WIDTH) for width in (BASE_WIDTH, 8 * BASE_WIDTH))
    assert wide == pytest.approx(narrow, rel=0.5)
    assert change_of_logits(8 * BASE_WIDTH, None) > 3 * narrow


def test_concatenated_positions_are_refused() -> None:
    with pytest.raises(UserError, match="base_width=32 has no rule for the matrix of position_join=concatenated"):
        DecoderConfig(base_width=32, position_join=PositionCombination.CONCATENATED)
