"""Every layer against NumPy float64, with its own weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.oracles import transformer as oracle
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.spec import AttentionSpec
from transformer.layers.attention import MultiHeadAttention, write_cache
from transformer.layers.dropout import dropout
from transformer.layers.embedding import Embedding, LearnedPositions
from transformer.layers.feed_forward import FeedForward
from transformer.layers.linear import Linear
from transformer.layers.module import Functional, Module, Parameter
from transformer.layers.norm import LayerNorm
from transformer.layers.residual import NormPlacement, Residual

FLOAT32 = Parameter()


def close(ours: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


def random_weights(functional: Functional, seed: int = 0) -> dict[str, Any]:
    """Parameters none of which is left at its plain start, where a missing one would go unseen."""
    normal = np.random.default_rng(seed).normal
    return jax.tree.map(lambda leaf: (1 + normal(size=leaf.shape) * 0.5).astype(leaf.dtype), functional.shapes())


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_layer_norm_is_the_equation() -> None:
    functional = Functional(lambda keys: LayerNorm(16, parameter=FLOAT32, keys=keys))
    weights = random_weights(functional)
    # A large mean: a variance from E[x^2] - E[x]^2 would lose it in float32.
    x = random(2, 3, 16) * 3 + 100
    close(functional.bind(weights)(jnp.asarray(x)), oracle.layer_norm(weights, x.astype(np.float64)), 3e-5)
    tiny = x * 1e-4
    close(functional.bind(weights)(jnp.asarray(tiny)), oracle.layer_norm(weights, tiny.astype(np.float64)), 3e-5)
    fresh = functional.init(jax.random.key(0))
    assert (np.asarray(fresh["scale"]) == 1).all()
    assert (np.asarray(fresh["bias"]) == 0).all()


def test_layer_norm_of_bfloat16_has_float32_statistics() -> None:
    functional = Functional(lambda keys: LayerNorm(64, parameter=FLOAT32, keys=keys))
    x = jnp.asarray(random(4, 64) + 30, jnp.bfloat16)
    y = functional.bind(functional.init(jax.random.key(0)))(x)
    exact = oracle.layer_norm({"scale": 1.0, "bias": 0.0}, np.asarray(x, np.float64))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("inputs", "outputs", "equation"),
    [
        ((("embed", 6),), (("heads", 2), ("head_depth", 5)), "bqi,ihd->bqhd"),
        ((("heads", 2), ("head_depth", 5)), (("embed", 6),), "bqhd,hdo->bqo"),
    ],
)
def test_linear_contracts_the_last_axes_and_starts_within_xaviers_bounds(
    inputs: Any, outputs: Any, equation: str
) -> None:
    functional = Functional(lambda keys: Linear(inputs, outputs, bias=True, parameter=FLOAT32, keys=keys))
    weights = random_weights(functional)
    x = random(3, 4, *(size for _, size in inputs))
    close(functional.bind(weights)(jnp.asarray(x)), np.einsum(equation, x, weights["kernel"]) + weights["bias"])
    bare = Functional(lambda keys: Linear(inputs, outputs, bias=False, parameter=FLOAT32, keys=keys))
    assert set(bare.shapes()) == {"kernel"}
    assert functional.axes()["kernel"] == tuple(name for name, _ in (*inputs, *outputs))
    # 6 numbers come in or go out, 2 x 5 on the other side.
    bound = np.sqrt(6 / (6 + 10))
    kernels = np.stack([functional.init(jax.random.key(seed))["kernel"] for seed in range(20)])
    assert 0.97 * bound < np.abs(kernels).max() <= bound
    assert np.std(kernels) == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert not np.asarray(functional.init(jax.random.key(0))["bias"]).any()


def test_linear_computes_in_the_type_of_its_input() -> None:
    functional = Functional(
        lambda keys: Linear((("embed", 4),), (("embed", 4),), bias=True, parameter=FLOAT32, keys=keys)
    )
    assert functional.bind(random_weights(functional))(jnp.ones((2, 4), jnp.bfloat16)).dtype == jnp.bfloat16


def test_feed_forward_is_the_equation() -> None:
    functional = Functional(lambda keys: FeedForward(8, 12, parameter=FLOAT32, keys=keys))
    weights = random_weights(functional)
    x = random(2, 5, 8)
    close(functional.bind(weights)(jnp.asarray(x)), oracle.feed_forward(weights, x))


def test_dropout_without_a_key_or_a_rate_is_the_identity() -> None:
    x = jnp.asarray(random(3, 4))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_dropout_zeroes_at_the_rate_and_keeps_the_mean(rate: float) -> None:
    ones = jnp.ones((500, 1000))
    y = np.asarray(dropout(ones, rate, jax.random.key(3)))
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
    assert (np.asarray(dropout(ones, rate, jax.random.key(3))) == y).all()
    assert (np.asarray(dropout(ones, rate, jax.random.key(4))) != y).any()


def test_dropout_keeps_the_type_and_silences_what_it_drops() -> None:
    x = jnp.full((64, 64), jnp.inf, jnp.bfloat16)
    y = dropout(x, 0.5, jax.random.key(0))
    assert y.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(y, np.float32))) == {0, np.inf}
    gradient = jax.grad(lambda x: jnp.sum(dropout(x, 0.25, jax.random.key(0))))(jnp.ones((64, 64)))
    np.testing.assert_array_equal(gradient, dropout(jnp.ones((64, 64)), 0.25, jax.random.key(0)))


def test_embedding_is_scaled_and_its_table_also_scores() -> None:
    functional = Functional(lambda keys: Embedding(11, 16, parameter=FLOAT32, keys=keys))
    weights = random_weights(functional)
    assert set(weights) == {"table"}
    embedding = functional.bind(weights)
    tokens = np.int32([[3, 0, 10], [7, 7, 1]])
    close(embedding(jnp.asarray(tokens), jnp.dtype("float32")), weights["table"][tokens] * 4)
    x = random(2, 3, 16)
    close(embedding.logits(jnp.asarray(x)), np.einsum("bte,ve->btv", x, weights["table"].astype(np.float64)))
    assert embedding.logits(jnp.asarray(x, jnp.bfloat16)).dtype == np.float32
    wide = Functional(lambda keys: Embedding(1000, 64, parameter=FLOAT32, keys=keys))
    assert np.std(wide.init(jax.random.key(0))["table"]) == pytest.approx(1 / 8, rel=0.02)


def test_learned_positions_are_a_table() -> None:
    functional = Functional(lambda keys: LearnedPositions(9, 4, parameter=FLOAT32, keys=keys))
    weights = random_weights(functional)
    places = np.int32([[0, 8, 3]])
    np.testing.assert_array_equal(functional.bind(weights)(jnp.asarray(places)), weights["table"][places])


@pytest.mark.parametrize("bias", [True, False])
def test_multi_head_attention_is_the_oracles(bias: bool) -> None:
    functional = Functional(
        lambda keys: MultiHeadAttention(12, 3, bias=bias, spec=AttentionSpec(), longest=8, parameter=FLOAT32, keys=keys)
    )
    weights = jax.tree.map(lambda leaf: (leaf - 1) * 0.7, random_weights(functional))
    x, memory = random(2, 4, 12), random(2, 6, 12, seed=2)
    lengths = np.int32([6, 2])
    output, captured = functional.bind(weights)(
        jnp.asarray(x), jnp.asarray(memory), mask=Mask(key_lengths=jnp.asarray(lengths)), capture=Capture(("a",))
    )
    for example in range(2):
        seen = np.arange(6)[None] < lengths[example]
        expected, maps = oracle.multi_head(weights, x[example], memory[example], seen)
        close(output[example], expected)
        close(captured.weights[example], maps)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="width=12 is not divisible by heads=5"):
        Functional(
            lambda keys: MultiHeadAttention(
                12, 5, bias=False, spec=AttentionSpec(), longest=8, parameter=FLOAT32, keys=keys
            )
        )


def test_a_cache_is_written_at_each_rows_own_position_and_nowhere_else() -> None:
    cache, new = random(3, 5, 2, 4), random(3, 1, 2, 4, seed=2)
    expected = cache.copy()
    for row, position in enumerate((4, 0, 2)):
        expected[row, position] = new[row, 0]
    written = write_cache(jnp.asarray(cache), jnp.asarray(new), jnp.array([4, 0, 2]))
    np.testing.assert_array_equal(written, expected)


def sub_layer(x: Any) -> Any:
    """A sub-layer that is neither linear nor odd, in NumPy and in JAX alike."""
    return x * x * 0.5 + 1


EQUATIONS: dict[NormPlacement, Callable[[Any, Any], Any]] = {
    NormPlacement.POST: lambda norm, x: norm(x + sub_layer(x)),
    NormPlacement.PRE: lambda norm, x: x + sub_layer(norm(x)),
}


def follows_its_equation(placement: NormPlacement, make: Callable[..., Module] = Residual, rate: float = 0.0) -> None:
    """Hold a residual connection against the equation of its placement in NumPy."""
    functional = Functional(lambda keys: make(16, placement, parameter=FLOAT32, keys=keys))
    weights = random_weights(functional)
    x = random(2, 3, 16)
    ours, extra = functional.bind(weights)(jnp.asarray(x), lambda y: (sub_layer(y), "extra"), rate, None)
    close(ours, EQUATIONS[placement](lambda y: oracle.layer_norm(weights["norm"], y), x.astype(np.float64)))
    assert extra == "extra"


@pytest.mark.parametrize("placement", list(NormPlacement), ids=lambda placement: placement.value)
def test_each_norm_placement_is_its_equation(placement: NormPlacement) -> None:
    # A rate without a key: evaluation drops nothing.
    follows_its_equation(placement, rate=0.5)


class NormBeforeTheAdd(Residual):
    """The fault that a peer calls post-norm: x + norm(F(x))."""

    def __call__(self, x: Any, function: Any, rate: float, key: Any) -> Any:
        y, extra = function(x)
        return x + self.norm(y), extra


@pytest.mark.parametrize("placement", list(NormPlacement), ids=lambda placement: placement.value)
def test_the_norm_before_the_add_is_neither_placement(placement: NormPlacement) -> None:
    with pytest.raises(AssertionError):
        follows_its_equation(placement, NormBeforeTheAdd)


@pytest.mark.parametrize("placement", list(NormPlacement), ids=lambda placement: placement.value)
def test_residual_dropout_acts_on_the_sub_layer_alone(placement: NormPlacement) -> None:
    """Section 5.4: on the output of each sub-layer, before it is added and normalised."""
    functional = Functional(lambda keys: Residual(16, placement, parameter=FLOAT32, keys=keys))
    weights, x, key = random_weights(functional), random(2, 3, 16), jax.random.key(5)

    def norm(y: Any) -> Any:
        return oracle.layer_norm(weights["norm"], y)

    inner = x.astype(np.float64) if placement is NormPlacement.POST else norm(x.astype(np.float64))
    dropped = np.asarray(dropout(jnp.asarray(sub_layer(inner), jnp.float32), 0.5, key), np.float64)
    assert 0.3 < np.mean(dropped == 0) < 0.7
    expected = norm(x + dropped) if placement is NormPlacement.POST else x + dropped
    ours, _ = functional.bind(weights)(jnp.asarray(x), lambda y: (sub_layer(y), None), 0.5, key)
    close(ours, expected)
