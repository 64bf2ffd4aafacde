"""The maximal update parametrization: what changes with the width, against the table of the paper."""

import dataclasses
import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.positions import PositionCombination
from transformer.attention.scores import Score
from transformer.config import UserError
from transformer.layers.feed_forward import Activation
from transformer.layers.functional_module import Precision
from transformer.layers.initialization import Initialization
from transformer.layers.lora import LoraConfig, LoraTarget
from transformer.layers.mixture_of_experts import MixtureOfExpertsConfig
from transformer.layers.norm import NormKind
from transformer.layers.residual import NormPlacement
from transformer.layers.transformer_config import PositionEncoding
from transformer.models.decoder import DecoderConfig
from transformer.models.model import Model, Variables, leaves_by_path
from transformer.models.registry import build
from transformer.models.task_interface import TaskInterface
from transformer.models.transformer_xl import TransformerXLConfig
from transformer.training.learning_rate import LearningRateSchedule
from transformer.training.optimizer import (
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
    return jax.jit(lambda variables: model.apply(variables, {"tokens": tokens}, train=False)[0])(variables)


def test_the_base_width_itself_is_the_standard_parametrization() -> None:
    key = jax.random.key(2)
    standard, at_base = decoder(BASE_WIDTH, None), decoder(BASE_WIDTH, BASE_WIDTH)
    variables = jax.jit(standard.init)(key)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(at_base.init)(key), variables)
    np.testing.assert_array_equal(logits_of(at_base, variables), logits_of(standard, variables))
    assert width_rate_factors(standard) is None
    assert width_rate_factors(at_base) is None


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_divided_by_the_ratio_of_the_widths(tied: bool) -> None:
    standard = decoder(4 * BASE_WIDTH, None, tie_embeddings=tied)
    scaled = decoder(4 * BASE_WIDTH, BASE_WIDTH, tie_embeddings=tied)
    variables = jax.jit(standard.init)(jax.random.key(3))
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


def test_matrices_from_the_width_to_a_fixed_number_of_features_have_a_quarter_of_the_rate() -> None:
    """Their products sum over the width: the logits of experts saturate their gates, which hides it in the output."""
    factors = width_rate_factors(model_of(OPTIONS["experts and LoRA"], 4 * BASE_WIDTH))
    assert factors is not None
    for name in ("experts/router/kernel", "experts/noise/kernel", "attention/query/lora/down"):
        assert factors[f"layers/{name}"] == 0.25
    assert factors["layers/attention/query/lora/up"] == 1
    assert factors["layers/attention/relative/content"] == 1


def test_a_step_has_the_factor_and_weight_decay_has_not() -> None:
    config = OptimizerConfig(
        algorithm=OptimizerAlgorithm.ADAMW,
        learning_rate=0.1,
        schedule=LearningRateSchedule.CONSTANT,
        warmup_steps=0,
        weight_decay=0.5,
    )
    optimizer = make_optimizer(config, 10, rate_factors={"hidden": 0.25, "table": 1.0})
    params = {name: np.full((2, 2), 3.0, np.float32) for name in ("hidden", "table")}
    gradients = {name: np.full((2, 2), -2.0, np.float32) for name in params}

    @jax.jit
    def first_updates(params: Any, gradients: Any) -> Any:
        return optimizer.update(gradients, optimizer.init(params), params, 0, hyperparameters(config))[0]

    updates = first_updates(params, gradients)
    # Adam's first step is the sign of the gradient.
    np.testing.assert_allclose(updates["table"], 0.1 * (1 - 0.5 * 3), rtol=1e-5)
    np.testing.assert_allclose(updates["hidden"], 0.1 * (0.25 - 0.5 * 3), rtol=1e-5)


def change_of_logits(width: int, base_width: int | None) -> float:
    """Train three steps on one batch and return the root mean square change of the logits."""
    model, config = decoder(width, base_width), dataclasses.replace(CONSTANT_RATE, learning_rate=3e-3)
    optimizer, hyper = make_optimizer(config, 10, rate_factors=width_rate_factors(model)), hyperparameters(config)
    labels = np.random.default_rng(5).integers(0, TOKENS, (4, 16, 1))

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


# Each option that has parameters of its own, as few models as they fit into; a number of key heads is that of the base.
OPTIONS: dict[str, dict[str, Any]] = {
    "experts and LoRA": {
        "experts": MixtureOfExpertsConfig(count=4),
        "lora": LoraConfig(4, targets=(LoraTarget.QUERY, LoraTarget.KEY, LoraTarget.VALUE, LoraTarget.OUTPUT)),
        "positions": PositionEncoding.TRANSFORMER_XL,
    },
    "LoRA of the network": {
        "lora": LoraConfig(4, targets=(LoraTarget.FEED_FORWARD,)),
        "positions": PositionEncoding.T5,
        "score": Score.ADDITIVE,
        "activation": Activation.SWIGLU,
    },
    "untied": {
        "tie_embeddings": False,
        "output_bias": True,
        "embedding_norm": True,
        "kv_heads": 1,
        "score": Score.GENERAL,
    },
    "shaw": {"positions": PositionEncoding.SHAW, "norm": NormKind.RMS},
    "disentangled": {
        "positions": PositionEncoding.DISENTANGLED,
        "relative_attention_num_buckets": 8,
        "relative_embedding_norm": True,
    },
    "concat": {"score": Score.CONCAT, "initialization": Initialization.T5},
    "mlp": {
        "score": Score.MLP,
        "norm_placement": NormPlacement.DEEPNORM,
        "initialization": Initialization.DEEPNORM,
    },
    "cosine": {"score": Score.COSINE, "norm_placement": NormPlacement.PARALLEL},
    "squared distance": {"score": Score.SQUARED_DISTANCE, "norm_placement": NormPlacement.POST},
    "location": {"score": Score.LOCATION, "norm_placement": NormPlacement.SANDWICH},
}


def model_of(options: dict[str, Any], width: int, base_width: int | None = BASE_WIDTH) -> Model:
    # With GPT-2's deviation of 0.02 what sub-layers add is so small that a narrow model is far from the limit.
    options = {"initialization": Initialization.XAVIER} | options
    heads = options.get("kv_heads")
    return decoder(width, base_width, **options | ({"kv_heads": heads * width // BASE_WIDTH} if heads else {}))


def effects_of_parameters(model: Model) -> dict[str, float]:
    """Train three steps; by how much the logits change if the change of one parameter is taken back, root mean square.

    That of every parameter is the coordinate check of each (Yang et al. 2022, appendix D.1).
    """
    optimizer = make_optimizer(CONSTANT_RATE, 10, rate_factors=width_rate_factors(model))
    hyper = hyperparameters(dataclasses.replace(CONSTANT_RATE, learning_rate=3e-3))
    random, key = np.random.default_rng(1), jax.random.key(4)
    tokens, labels = (random.integers(0, TOKENS, shape) for shape in ((4, 16), (4, 16, 1)))
    before = jax.jit(model.init)(key)
    structure, first = jax.tree.structure(before.params), leaves_by_path(before.params)

    @jax.jit
    def logits(flat: Any, key: jax.Array) -> jax.Array:
        variables = before._replace(params=jax.tree.unflatten(structure, list(flat.values())))
        return model.apply(variables, {"tokens": tokens}, train=True, key=key)[0]

    @jax.jit
    def step(flat: Any, state: Any, number: jax.Array) -> tuple[Any, Any]:
        def loss(flat: Any) -> jax.Array:
            chosen = jax.nn.log_softmax(logits(flat, jax.random.fold_in(key, number)))
            return -jnp.mean(jnp.take_along_axis(chosen, labels, axis=-1))

        updates, state = optimizer.update(jax.grad(loss)(flat), state, flat, number, hyper)
        return {path: flat[path] + updates[path] for path in flat}, state

    last, state = first, jax.jit(optimizer.init)(first)
    for number in range(3):
        last, state = step(last, state, np.int32(number))
    end = np.asarray(logits(last, key))
    return {
        path: float(np.sqrt(np.mean((np.asarray(logits({**last, path: first[path]}, key)) - end) ** 2)))
        for path in first
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if number else []) for number, name in enumerate(OPTIONS)]
)
def test_every_parameter_moves_the_logits_no_further_where_the_model_is_wider(name: str) -> None:
    narrow, wide = (effects_of_parameters(model_of(OPTIONS[name], width)) for width in (BASE_WIDTH, 8 * BASE_WIDTH))
    # A rate that does not fall is eight times too much; rounding is all that a key's bias changes.
    further = {path: (narrow[path], wide[path]) for path in wide if wide[path] > 1.5 * narrow[path] + 1e-6}
    assert not further


@pytest.mark.slow
def test_every_parameter_that_an_option_has_is_in_one_of_these_models() -> None:
    def paths(model: Model) -> set[str]:
        return set(leaves_by_path(model.functional.shapes()))

    covered = set().union(*(paths(model_of(options, BASE_WIDTH)) for options in OPTIONS.values()))
    plain = DecoderConfig(layers=2, width=32, heads=2, feed_forward=64, max_length=16, base_width=16)
    seen = 0
    for field in dataclasses.fields(plain):
        default = getattr(plain, field.name)
        values = type(default) if isinstance(default, enum.Enum) else [not default] if default is bool(default) else []
        for value in values:
            try:
                changed = dataclasses.replace(plain, **{field.name: value})
                found = paths(build(changed, TaskInterface({}, {"tokens": TOKENS}), Precision()))
            except UserError:
                continue
            assert found <= covered, f"{field.name}={value}"
            seen += 1
    assert seen > 50


def test_the_segment_models_of_the_same_config_have_its_rates() -> None:
    config = TransformerXLConfig(layers=2, width=128, heads=8, feed_forward=256, max_length=16, base_width=BASE_WIDTH)
    factors = width_rate_factors(build(config, TaskInterface({}, {"tokens": TOKENS}), Precision()))
    assert factors is not None
    assert factors["layers/attention/query/kernel"] == 0.25


def test_concatenated_positions_are_refused() -> None:
    with pytest.raises(UserError, match="base_width=32 has no rule for the matrix of position_join=concatenated"):
        DecoderConfig(base_width=32, position_join=PositionCombination.CONCATENATED)
