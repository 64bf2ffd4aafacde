"""Every layer against NumPy float64, with its own weights."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs
from tests.oracles import transformer as oracle
from transformer.attention.capture import Capture
from transformer.attention.inverted_dropout import dropout
from transformer.attention.masks import Mask
from transformer.attention.scores import Score
from transformer.config import UserError
from transformer.layers.embedding import Embedding, LearnedPositions
from transformer.layers.feed_forward import Activation, FeedForward
from transformer.layers.functional_module import FunctionalModule, store_inputs_alone
from transformer.layers.linear import Linear, product
from transformer.layers.lora import LoraConfig
from transformer.layers.multi_head_attention import MultiHeadAttention
from transformer.layers.norm import LayerNorm, RmsNorm
from transformer.layers.residual import (
    DropRates,
    LayerScale,
    NormPlacement,
    Residual,
    dropout_and_stochastic_depth,
)
from transformer.layers.transformer_config import Biases, PositionEncoding, Projections, TransformerConfig
from transformer.logical_axes import use_placement
from transformer.training.partitioning import ShardingConfig, make_placement


def close(ours: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


def random_weights(functional: FunctionalModule, seed: int = 0) -> dict[str, Any]:
    """Parameters none of which is left at its plain start, where a missing one would go unseen."""
    normal = np.random.default_rng(seed).normal
    return jax.tree.map(lambda leaf: (1 + normal(size=leaf.shape) * 0.5).astype(leaf.dtype), functional.shapes())


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_layer_norm_is_the_equation() -> None:
    functional = FunctionalModule(lambda builder: LayerNorm(16, builder=builder))
    weights = random_weights(functional)
    # A large mean: a variance from E[x^2] - E[x]^2 would lose it in float32.
    x = random(2, 3, 16) * 3 + 100
    close(programs.call(functional, weights, x), oracle.layer_norm(weights, x.astype(np.float64)), 3e-5)
    tiny = x * np.float32(1e-4)
    close(programs.call(functional, weights, tiny), oracle.layer_norm(weights, tiny.astype(np.float64)), 3e-5)
    fresh = programs.initial(functional.init)
    assert (np.asarray(fresh["scale"]) == 1).all()
    assert (np.asarray(fresh["bias"]) == 0).all()


def test_layer_norm_without_a_bias_has_a_scale_alone() -> None:
    functional = FunctionalModule(lambda builder: LayerNorm(16, builder=builder, epsilon=0.1, bias=False))
    weights, x = random_weights(functional), random(2, 16)
    assert set(weights) == {"scale"}
    close(programs.call(functional, weights, x), oracle.layer_norm(weights, x.astype(np.float64), 0.1))


def test_layer_scale_multiplies_each_feature_by_a_factor_that_begins_as_said() -> None:
    functional = FunctionalModule(lambda builder: LayerScale(16, 0.25, builder=builder))
    np.testing.assert_array_equal(functional.init(jax.random.key(0))["scale"], np.full(16, 0.25))
    factors, x = random(16), random(2, 3, 16)
    close(functional.bind({"scale": factors})(jnp.asarray(x)), x * factors)
    half = functional.bind({"scale": factors})(jnp.asarray(x, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16


def test_rms_norm_is_the_equation() -> None:
    functional = FunctionalModule(lambda builder: RmsNorm(16, builder=builder, epsilon=1e-3))
    weights = random_weights(functional)
    assert set(weights) == {"scale"}
    for x in (random(2, 3, 16) + 2, random(2, 3, 16) * np.float32(1e-2)):
        close(programs.call(functional, weights, x), oracle.rms_norm(weights, x.astype(np.float64), 1e-3))
    half = programs.call(functional, programs.initial(functional.init), np.full((2, 16), 300.0, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(half, np.float32), 1)


def test_layer_norm_of_bfloat16_has_float32_statistics() -> None:
    functional = FunctionalModule(lambda builder: LayerNorm(64, builder=builder))
    x = (random(4, 64) + 30).astype(jnp.bfloat16)
    y = programs.call(functional, programs.initial(functional.init), x)
    exact = oracle.layer_norm({"scale": 1.0, "bias": 0.0}, np.asarray(x, np.float64))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=1e-2, atol=1e-2)


def sizes_between_passes(function: Callable[[Any], Any], x: np.ndarray) -> list[str]:
    """Type and shape of what the gradient of `function` stores of x's size."""
    backward = jax.eval_shape(lambda x: jax.vjp(function, x)[1], x)
    return sorted(f"{leaf.dtype.name}{leaf.shape}" for leaf in jax.tree.leaves(backward) if leaf.size >= x.size)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "gelu_tanh", "silu"])
def test_of_cheap_functions_in_bfloat16_the_input_alone_is_stored(name: str) -> None:
    match name:
        case "layer_norm" | "rms_norm":
            make = LayerNorm if name == "layer_norm" else RmsNorm
            module = FunctionalModule(lambda builder: make(24, builder=builder))
            function = module.bind(programs.initial(module.init))
        case _:
            function = functools.partial(store_inputs_alone, Activation(name).function)
    x, cotangent = random(3, 5, 24), random(3, 5, 24, seed=2)
    narrow = x.astype(jnp.bfloat16)
    assert sizes_between_passes(function, narrow) == ["bfloat16(3, 5, 24)"]
    # In float32 the program is autodiff's own, which stores as it did when results were recorded.
    assert "remat" not in str(jax.make_jaxpr(function)(x))
    assert "remat" in str(jax.make_jaxpr(function)(narrow))
    pulled_back = jax.jit(lambda x, cotangent: jax.vjp(function, x)[1](cotangent)[0])
    exact = pulled_back(narrow.astype(np.float32), cotangent.astype(jnp.bfloat16).astype(np.float32))
    rounded = pulled_back(narrow, cotangent.astype(jnp.bfloat16))
    np.testing.assert_allclose(np.asarray(rounded, np.float32), exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("activation", "hidden"), [(Activation.GELU_TANH, 1), (Activation.SWIGLU, 2)])
def test_of_a_feed_forward_network_in_bfloat16_the_activations_inputs_are_stored(
    activation: Activation, hidden: int
) -> None:
    make = functools.partial(FeedForward, 24, 240, activation=activation, bias=True)
    module = FunctionalModule(lambda builder: make(builder=builder))
    stored = sizes_between_passes(module.bind(random_weights(module)), random(3, 5, 24).astype(jnp.bfloat16))
    assert stored.count("bfloat16(3, 5, 240)") == hidden
    assert len([each for each in stored if "5, 240)" in each]) == hidden


@pytest.mark.parametrize(
    ("inputs", "outputs", "equation"),
    [
        ((("embed", 6),), (("heads", 2), ("head_dim", 5)), "bqi,ihd->bqhd"),
        ((("heads", 2), ("head_dim", 5)), (("embed", 6),), "bqhd,hdo->bqo"),
    ],
)
def test_linear_contracts_the_last_axes_and_starts_within_xaviers_bounds(
    inputs: Any, outputs: Any, equation: str
) -> None:
    functional = FunctionalModule(lambda builder: Linear(inputs, outputs, bias=True, builder=builder))
    weights = random_weights(functional)
    x = random(3, 4, *(size for _, size in inputs))
    close(programs.call(functional, weights, x), np.einsum(equation, x, weights["kernel"]) + weights["bias"])
    bare = FunctionalModule(lambda builder: Linear(inputs, outputs, bias=False, builder=builder))
    assert set(bare.shapes()) == {"kernel"}
    assert functional.axes()["kernel"] == tuple(name for name, _ in (*inputs, *outputs))
    # 6 numbers come in or go out, 2 x 5 on the other side.
    bound = np.sqrt(6 / (6 + 10))
    keys = jax.random.split(jax.random.key(0), 20)
    fresh = jax.tree.map(np.asarray, jax.jit(jax.vmap(functional.init))(keys))
    kernels = fresh["kernel"]
    assert 0.97 * bound < np.abs(kernels).max() <= bound
    assert np.std(kernels) == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert not fresh["bias"].any()


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("contracted", [1, 2])
def test_a_product_is_the_sum_over_the_contracted_axes(devices: int, contracted: int) -> None:
    normal = np.random.default_rng(4).normal
    x, weights = normal(size=(4, 3, 2, 6)), normal(size=(*(2, 6)[2 - contracted :], 5, 2))

    @jax.jit
    def multiplied(x: jax.Array, weights: jax.Array) -> jax.Array:
        with use_placement(make_placement(ShardingConfig(), jax.devices()[:devices])):
            return product(x, weights, contracted, jnp.float32)

    found = multiplied(x.astype(np.float32), weights.astype(np.float32))
    np.testing.assert_allclose(found, np.tensordot(x, weights, contracted), atol=1e-5)
    rounded = jax.eval_shape(multiplied, x.astype(jnp.bfloat16), weights.astype(jnp.bfloat16))
    assert rounded.dtype == jnp.float32


def test_linear_computes_in_the_type_of_its_input() -> None:
    functional = FunctionalModule(lambda builder: Linear((("embed", 4),), (("embed", 4),), bias=True, builder=builder))
    ones = np.ones((2, 4), jnp.bfloat16)
    assert jax.eval_shape(functional.bind(random_weights(functional)), ones).dtype == jnp.bfloat16


@pytest.mark.parametrize("activation", list(Activation), ids=lambda activation: activation.value)
def test_feed_forward_is_the_equation(activation: Activation) -> None:
    clamped = activation is Activation.SWIGLU_CLAMPED
    x = random(2, 5, 8) * (6 if clamped else 2)
    for bias in (True, False):
        functional = FunctionalModule(
            lambda builder, bias=bias: FeedForward(8, 12, activation=activation, bias=bias, builder=builder)
        )
        weights = jax.tree.map(lambda leaf: leaf - 1, random_weights(functional))
        gated = clamped or activation.value in ("swiglu", "geglu", "geglu_tanh")
        assert set(weights) == {"expand", "contract"} | ({"gate"} if gated else set())
        assert {name for linear in weights.values() for name in linear} == {"kernel"} | ({"bias"} if bias else set())
        if clamped:
            # The bounds are reached on every side.
            gates, linear = (oracle.affine(weights[name], x) for name in ("gate", "expand"))
            assert min(gates.max(), linear.max(), -linear.min()) > 8
        close(programs.call(functional, weights, x), oracle.feed_forward(weights, x, activation.value))


def test_the_two_gelus_are_told_apart() -> None:
    x = np.linspace(-4, 4, 200, dtype=np.float32)
    exact, approximate = (oracle.activated(name, x.astype(np.float64)) for name in ("gelu", "gelu_tanh"))
    assert 1e-4 < np.abs(exact - approximate).max() < 1e-3
    close(jax.jit(Activation.GELU.function)(x), exact, 2e-6)
    close(jax.jit(Activation.GELU_TANH.function)(x), approximate, 2e-6)


@pytest.mark.parametrize("activation", [Activation.GELU, Activation.GELU_TANH])
def test_the_derivative_of_an_activation_in_bfloat16_is_the_slope_in_float64(activation: Activation) -> None:
    x = np.linspace(-12, 12, 2001).astype(jnp.bfloat16)
    value, derivative = jax.jit(lambda x: jax.jvp(activation.function, (x,), (jnp.ones_like(x),)))(x)
    wide, step = np.asarray(x, np.float64), 1e-4
    activated = functools.partial(oracle.activated, activation.value)
    slope = (activated(wide + step) - activated(wide - step)) / (2 * step)
    # Half of the last of eight significant bits.
    np.testing.assert_allclose(np.asarray(derivative, np.float64), slope, rtol=2**-8 + 1e-6, atol=1e-6)
    np.testing.assert_array_equal(value, jax.jit(activation.function)(x))


@pytest.mark.parametrize("activation", [Activation.GELU, Activation.GELU_TANH])
def test_no_transcendental_function_is_common_to_an_activation_in_bfloat16_and_its_derivative(
    activation: Activation,
) -> None:
    """Or the compiler for GPUs makes an array of it. In float32 the program is autodiff's."""
    common = ("tanh", "logistic", "erf", "erfc", "exp")

    def called(dtype: Any) -> list[str]:
        slope = lambda x: jax.jvp(activation.function, (x,), (jnp.ones_like(x),))  # noqa: E731
        text = str(jax.make_jaxpr(slope)(np.ones(3, dtype)))
        return [name for name in common for _ in re.findall(rf"= {name}\b", text)]

    assert len(called(jnp.bfloat16)) == len(set(called(jnp.bfloat16))) >= 2
    of_jax = {"gelu": functools.partial(jax.nn.gelu, approximate=False), "gelu_tanh": jax.nn.gelu}
    gradients = [
        str(jax.make_jaxpr(jax.grad(lambda x, function=function: function(x).sum()))(np.ones(3, np.float32)))
        for function in (activation.function, of_jax[activation.value])
    ]
    assert gradients[0] == gradients[1]


def test_dropout_without_a_key_or_a_rate_is_the_identity() -> None:
    x = jax.device_put(random(3, 4))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_dropout_zeroes_at_the_rate_and_keeps_the_mean(rate: float) -> None:
    run = jax.jit(lambda key: dropout(jnp.ones((500, 1000)), rate, key))
    y = np.asarray(run(jax.random.key(3)))
    kept, scales = y != 0, np.unique(y)
    assert scales.size == 2
    assert scales[0] == 0
    assert scales[1] == pytest.approx(1 / (1 - rate), rel=1e-4)
    # Four deviations of 500,000 draws.
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs(1 - kept.mean() - rate) < 4 * deviation
    # No row or column of its own: the draws are independent.
    assert np.abs(kept.mean(0) - kept.mean()).max() < 6 * np.sqrt(rate * (1 - rate) / 500)
    assert abs(np.corrcoef(kept[:-1].ravel(), kept[1:].ravel())[0, 1]) < 0.01
    assert (np.asarray(run(jax.random.key(3))) == y).all()
    assert (np.asarray(run(jax.random.key(4))) != y).any()


def test_dropout_keeps_the_type_and_silences_what_it_drops() -> None:
    key = jax.random.key(0)
    y = jax.jit(lambda x, key: dropout(x, 0.5, key))(np.full((64, 64), np.inf, jnp.bfloat16), key)
    assert y.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(y, np.float32))) == {0, np.inf}

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient_and_value(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        dropped = dropout(x, 0.25, key)
        return jnp.sum(dropped), dropped

    np.testing.assert_array_equal(*gradient_and_value(np.ones((64, 64), np.float32), key))


def test_embedding_is_a_table_that_also_scores() -> None:
    functional = FunctionalModule(lambda builder: Embedding(11, 16, builder=builder))
    weights = random_weights(functional)
    assert set(weights) == {"table"}
    embedding = functional.bind(weights)
    tokens = np.int32([[3, 0, 10], [7, 7, 1]])
    found = jax.jit(lambda tokens: embedding(tokens, jnp.dtype("float32")))(tokens)
    np.testing.assert_array_equal(found, weights["table"][tokens])
    x = random(2, 3, 16)
    logits = programs.call(functional, weights, x, method="logits")
    close(logits, np.einsum("bte,ve->btv", x, weights["table"].astype(np.float64)))
    assert jax.eval_shape(embedding.logits, x.astype(jnp.bfloat16)).dtype == np.float32


def test_learned_positions_are_a_table() -> None:
    functional = FunctionalModule(lambda builder: LearnedPositions(9, 4, builder=builder))
    weights = random_weights(functional)
    places = np.int32([[0, 8, 3]])
    np.testing.assert_array_equal(programs.call(functional, weights, places), weights["table"][places])


def attention_of(**changes: Any) -> FunctionalModule:
    config = TransformerConfig(width=12, feed_forward=8, max_length=8, positions=PositionEncoding.NONE, **changes)
    return FunctionalModule(lambda builder: MultiHeadAttention(config, cross=False, builder=builder))


@pytest.mark.parametrize(
    ("changes", "biased"),
    [
        ({"heads": 3}, True),
        ({"heads": 3, "biases": Biases.FEED_FORWARD}, False),
        ({"heads": 4, "kv_heads": 2, "head_dim": 5, "biases": Biases.NONE}, False),
        ({"heads": 4, "kv_heads": 1}, True),
    ],
)
def test_multi_head_attention_is_the_oracles(changes: dict[str, Any], biased: bool) -> None:
    functional = attention_of(**changes)
    weights = jax.tree.map(lambda leaf: (leaf - 1) * 0.7, random_weights(functional))
    heads, groups = changes["heads"], changes.get("kv_heads", changes["heads"])
    depth = changes.get("head_dim", 12 // heads)
    assert weights["query"]["kernel"].shape == (12, heads, depth)
    assert weights["key"]["kernel"].shape == weights["value"]["kernel"].shape == (12, groups, depth)
    assert weights["output"]["kernel"].shape == (heads, depth, 12)
    assert all(("bias" in weights[name]) == biased for name in ("query", "key", "value", "output"))
    x, memory = random(2, 4, 12), random(2, 6, 12, seed=2)
    lengths = np.int32([6, 2])
    mask = Mask(key_lengths=jax.device_put(lengths))
    output, captured = programs.call(functional, weights, x, memory, mask=mask, capture=Capture(("a",)))
    expected, maps = oracle.multi_head(weights, x, memory, {"key_lengths": lengths})
    close(output, expected)
    close(captured.weights, maps)


BARE = {"projections": Projections.NONE}


def bare_attention(x: np.ndarray, heads: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """softmax(scale V_h V_h') V_h of each head's part of the features of `T E`, side by side, and the maps `H T T`."""
    parts, maps = np.split(x.astype(np.float64), heads, axis=-1), []
    for part in parts:
        weights = np.exp(scale * part @ part.T)
        maps.append(weights / weights.sum(axis=-1, keepdims=True))
    return np.concatenate([weights @ part for weights, part in zip(maps, parts, strict=True)], axis=-1), np.stack(maps)


@pytest.mark.parametrize(
    ("heads", "score", "scale"), [(1, Score.DOT, 1.0), (1, Score.SCALED_DOT, 12**-0.5), (3, Score.SCALED_DOT, 0.5)]
)
def test_attention_without_projections_has_no_parameters_and_is_the_softmax_of_v_v_transposed_times_v(
    heads: int, score: Score, scale: float
) -> None:
    functional = attention_of(heads=heads, score=score, **BARE)
    assert jax.tree.leaves(functional.shapes()) == []
    x = random(2, 6, 12)
    lengths, capture = jax.device_put(np.int32([6, 4])), Capture(("a",), value_norms=True)

    def attend(x: Any) -> Any:
        mask = Mask(key_lengths=lengths, query_lengths=lengths)
        return programs.call(functional, functional.init(jax.random.key(0)), x, x, mask=mask, capture=capture)

    output, captured = attend(x)
    for row, length in enumerate((6, 4)):
        expected, maps = bare_attention(x[row, :length], heads, scale)
        close(output[row, :length], expected, 1e-6)
        close(captured.weights[row, :, :length, :length], maps, 1e-6)
        norms = np.linalg.norm(x[row, :length].astype(np.float64).reshape(length, heads, -1), axis=-1)
        close(captured.value_norms[row, :, :length], norms.T)
    # Equivariant to permutations: f(P x) = P f(x).
    order = np.array([3, 0, 5, 1, 4, 2])
    permuted, _ = attend(x[:1, order].repeat(2, axis=0))
    close(permuted[0], np.asarray(output)[0, order], 1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 2}, "kv_heads=2 shares projected keys and values, which config.model.projections=none has not"),
        ({"head_dim": 5}, "head_dim=5 does not cut the width 12 into config.model.heads=4 equal parts"),
        (
            {"lora": LoraConfig(rank=2)},
            "lora.rank=2 updates query, value, of which config.model.projections=none leaves no matrix",
        ),
    ],
)
def test_attention_without_projections_refuses_what_needs_them(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        attention_of(heads=4, **BARE, **changes)


def sub_layer(x: Any) -> Any:
    """A sub-layer that is neither linear nor odd, in NumPy and in JAX alike."""
    return x * x * 0.5 + 1


ALPHA = 1.7
Norms = dict[str, Callable[[Any], Any]]
EQUATIONS: dict[NormPlacement, Callable[[Norms, Any, Any], Any]] = {
    NormPlacement.POST: lambda norms, f, x: norms["norm"](x + f(x)),
    NormPlacement.PRE: lambda norms, f, x: x + f(norms["norm"](x)),
    NormPlacement.SANDWICH: lambda norms, f, x: x + norms["output_norm"](f(norms["norm"](x))),
    NormPlacement.DEEPNORM: lambda norms, f, x: norms["norm"](ALPHA * x + f(x)),
    NormPlacement.PARALLEL: lambda norms, f, x: x + f(norms["norm"](x)),
    NormPlacement.PARALLEL_NORMS: lambda norms, f, x: x + f(norms["norm"](x)),
    NormPlacement.OUTPUT: lambda norms, f, x: x + norms["norm"](f(x)),
    # Of the first block; those behind it are as PRE's.
    NormPlacement.PRE_NORMED_INPUT: lambda norms, f, x: norms["norm"](x) + f(norms["norm"](x)),
}
EVERY_PLACEMENT = pytest.mark.parametrize("placement", list(NormPlacement), ids=lambda placement: placement.value)


def residual(placement: NormPlacement, kind: type[Residual] = Residual) -> FunctionalModule:
    alpha = ALPHA if placement is NormPlacement.DEEPNORM else 1.0
    return FunctionalModule(lambda builder: kind("self", placement, lambda: LayerNorm(16, builder=builder), alpha))


def apply_residual(
    residual: Residual, sublayer: Callable[[Any], Any], x: Any, rates: DropRates, key: Any, is_first: bool = True
) -> Any:
    """The first sub-layer of a block with its residual connection, as a block has it."""

    @jax.jit
    def run(x: jax.Array, key: Any) -> jax.Array:
        read = residual.read(x)
        return residual.write(residual.stream(x, read, is_first), sublayer(read), rates, key)

    return run(x, key)


def follows_its_equation(placement: NormPlacement, kind: type[Residual] = Residual) -> None:
    """Hold a residual connection against the equation of its placement in NumPy."""
    functional = residual(placement, kind)
    weights = random_weights(functional)
    sandwich = placement is NormPlacement.SANDWICH
    assert set(weights) == {"norm"} | ({"output_norm"} if sandwich else set())
    x = random(2, 3, 16)
    # A rate without a key: evaluation drops nothing.
    ours = apply_residual(functional.bind(weights), sub_layer, x, DropRates(0.5, 0.5), None)
    norms = {name: lambda y, name=name: oracle.layer_norm(weights[name], y) for name in weights}
    close(ours, EQUATIONS[placement](norms, sub_layer, x.astype(np.float64)))


@EVERY_PLACEMENT
def test_each_norm_placement_is_its_equation(placement: NormPlacement) -> None:
    follows_its_equation(placement)


def test_blocks_behind_a_normed_input_are_those_of_pre_norm() -> None:
    functional = residual(NormPlacement.PRE_NORMED_INPUT)
    weights, x = random_weights(functional), random(2, 3, 16)
    ours = apply_residual(functional.bind(weights), sub_layer, x, DropRates(0.0, 0.0), None, is_first=False)
    norms = {"norm": lambda y: oracle.layer_norm(weights["norm"], y)}
    close(ours, EQUATIONS[NormPlacement.PRE](norms, sub_layer, x.astype(np.float64)))


class NormBeforeTheAdd(Residual):
    """The fault that a peer calls post-norm: x + norm(F(x)), which is `output` here."""

    def read(self, x: Any, first_read: Any = None) -> Any:
        return x

    def write(self, x: Any, y: Any, drop_rates: Any, key: Any) -> Any:
        return x + self.norm(y)


@EVERY_PLACEMENT
def test_the_norm_before_the_add_is_no_other_placement(placement: NormPlacement) -> None:
    if placement is NormPlacement.OUTPUT:
        follows_its_equation(placement, NormBeforeTheAdd)
        return
    with pytest.raises(AssertionError, match="Not equal"):
        follows_its_equation(placement, NormBeforeTheAdd)


@EVERY_PLACEMENT
def test_residual_dropout_acts_on_the_sub_layer_alone(placement: NormPlacement) -> None:
    """Vaswani et al. 2017, section 5.4: on the output of each sub-layer, before it is added and normalized."""
    functional = residual(placement)
    weights, x = random_weights(functional), random(2, 3, 16)
    norms = {name: lambda y, name=name: oracle.layer_norm(weights[name], y) for name in weights}

    bound = functional.bind(weights)
    answer = apply_residual(bound, sub_layer, x, DropRates(0.5, 0.0), jax.random.key(5))
    # What was dropped is found from a sub-layer of ones, with the same key.
    if placement in (NormPlacement.PRE, NormPlacement.PARALLEL, NormPlacement.PARALLEL_NORMS):
        ones = apply_residual(bound, jnp.ones_like, x, DropRates(0.5, 0.0), jax.random.key(5))
        factor = np.round(np.asarray(ones) - x)
        assert set(np.unique(factor)) == {0, 2}
        close(answer, EQUATIONS[placement](norms, lambda y: sub_layer(y) * factor, x.astype(np.float64)))
    else:
        plain = EQUATIONS[placement](norms, sub_layer, x.astype(np.float64))
        assert np.abs(np.asarray(answer) - plain).max() > 0.1


def test_stochastic_depth_leaves_out_whole_examples_and_keeps_the_mean() -> None:
    y, rate = np.ones((4000, 3, 2), np.float32), 0.3
    run = jax.jit(lambda rate, key: dropout_and_stochastic_depth(jnp.asarray(y), DropRates(0.0, rate), key))
    dropped = np.asarray(run(np.float32(rate), jax.random.key(0)))
    scales = np.unique(dropped)
    np.testing.assert_allclose(scales, [0, 1 / (1 - rate)], rtol=1e-6)
    assert (dropped == dropped[:, :1, :1]).all()
    share = (dropped[:, 0, 0] == 0).mean()
    assert abs(share - rate) < 4 * np.sqrt(rate * (1 - rate) / 4000)
    np.testing.assert_array_equal(dropped, run(np.float32(rate), jax.random.key(0)))
    placed = jax.device_put(y)
    assert (np.asarray(dropout_and_stochastic_depth(placed, DropRates(0.0, 0.0), jax.random.key(0))) == 1).all()
    assert dropout_and_stochastic_depth(placed, DropRates(0.5, 0.5), None) is placed


def test_which_features_are_dropped_says_nothing_of_which_examples_are() -> None:
    y = jnp.ones((4000, 2))
    left = np.asarray(dropout_and_stochastic_depth(y, DropRates(0.5, jnp.float32(0.5)), jax.random.key(0))) > 0
    # Each feature is left in a quarter of the examples, both in an eighth.
    assert np.abs(left.mean(axis=0) - 1 / 4).max() < 4 * np.sqrt(3 / 16 / 4000)
    assert abs(left.all(axis=1).mean() - 1 / 8) < 4 * np.sqrt(7 / 64 / 4000)
