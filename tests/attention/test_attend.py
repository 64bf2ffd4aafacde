"""attend() against NumPy float64: values, gradients, masks, types and what is captured."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from tests.oracles import attention as oracle
from transformer.attention.attend import AttentionSpec, attend
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask, dense
from transformer.attention.normalise import softmax
from transformer.attention.positions import sinusoidal
from transformer.attention.scores import Score

B, Q, K, H, D = 3, 5, 7, 2, 4
FACTS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "causal_offset": {"causal": True, "query_offset": np.int32([2, 0, 4])},
    "lengths": {"key_lengths": np.int32([7, 3, 1])},
    "causal_lengths": {"causal": True, "key_lengths": np.int32([7, 3, 2])},
    "all": {"causal": True, "query_offset": np.int32([2, 0, 4]), "key_lengths": np.int32([7, 4, 6])},
    "unseen": {"causal": True, "query_offset": np.int32([-2, 1, -9]), "key_lengths": np.int32([7, 0, 7])},
}


def arrays(seed: int = 0, dtype: Any = np.float32) -> list[np.ndarray]:
    """Random q, k, v and the cotangent of the output."""
    normal = np.random.default_rng(seed).normal
    shapes = ((B, Q, H, D), (B, K, H, D), (B, K, H, D), (B, Q, H, D))
    return [normal(size=shape).astype(dtype) for shape in shapes]


def seen(facts: dict[str, Any]) -> np.ndarray:
    return oracle.visible(B, Q, K, **facts)


def run(
    q: Any, k: Any, v: Any, cotangent: Any, facts: dict[str, Any], score: Score = Score.SCALED_DOT
) -> tuple[Any, Any, Any]:
    """Output, captured weights and gradients of one compiled attention."""
    static = {name: fact for name, fact in facts.items() if name == "causal"}
    traced = {name: fact for name, fact in facts.items() if name != "causal"}

    @jax.jit
    def everything(q: Any, k: Any, v: Any, cotangent: Any, traced: Any) -> tuple[Any, Any, Any]:
        def forward(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
            output, captured = attend(
                q, k, v, spec=AttentionSpec(score), mask=Mask(**static, **traced), capture=Capture(("here",))
            )
            return output, captured.weights

        output, pull_back, weights = jax.vjp(forward, q, k, v, has_aux=True)
        return output, weights, pull_back(cotangent)

    with jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, everything(q, k, v, cotangent, traced))


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize("score", list(Score), ids=lambda score: score.value)
def test_values_and_gradients_are_the_oracles(score: Score, facts: dict[str, Any]) -> None:
    q, k, v, cotangent = arrays()
    q = q * 2
    output, weights, gradients = run(q, k, v, cotangent, facts, score)
    options: dict[str, Any] = {"scaled": score is Score.SCALED_DOT, "seen_BxQxK": seen(facts)}
    expected = oracle.attention(q, k, v, **options)
    tolerance = 1e-6 * max(1, np.abs(expected.logits).max())
    np.testing.assert_allclose(weights, expected.weights, rtol=0, atol=tolerance)
    np.testing.assert_allclose(output, expected.output, rtol=0, atol=tolerance)
    np.testing.assert_allclose(weights.sum(-1), expected.weights.sum(-1), rtol=0, atol=1e-5)
    for ours, theirs in zip(gradients, oracle.gradients(q, k, v, cotangent, **options), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())
        np.testing.assert_array_equal(ours == 0, theirs == 0)
    assert weights.dtype == output.dtype == np.float32


def test_the_oracles_gradient_is_that_of_its_values() -> None:
    *inputs, cotangent = arrays(1, np.float64)
    options: dict[str, Any] = {"scaled": True, "seen_BxQxK": seen(FACTS["all"])}
    gradients = oracle.gradients(*inputs, cotangent, **options)
    for which, place in ((0, (0, 1, 0, 2)), (0, (2, 4, 1, 3)), (1, (1, 2, 0, 0)), (2, (0, 3, 1, 1))):
        losses = []
        for step in (1e-6, -1e-6):
            moved = [array.copy() for array in inputs]
            moved[which][place] += step
            losses.append(np.sum(cotangent * oracle.attention(*moved, **options).output))
        np.testing.assert_allclose((losses[0] - losses[1]) / 2e-6, gradients[which][place], rtol=1e-6, atol=1e-9)


def test_a_query_that_sees_nothing_gives_exactly_zero() -> None:
    facts = FACTS["unseen"]
    unseen_BxQ = ~seen(facts).any(-1)
    hidden_BxK = ~seen(facts).any(1)
    assert unseen_BxQ.any()
    assert hidden_BxK.any()
    assert not unseen_BxQ.all()
    q, k, v, cotangent = arrays()
    # Far beyond what exp can take; q . k even overflows to infinity.
    k[hidden_BxK] = 3e38
    v[hidden_BxK] = -1e30
    q = q * 10
    output, weights, (of_q, of_k, of_v) = run(q, k, v, cotangent, facts)
    assert all(np.isfinite(x).all() for x in (output, weights, of_q, of_k, of_v))
    assert not output[unseen_BxQ].any()
    assert not of_q[unseen_BxQ].any()
    assert not np.moveaxis(weights, 1, 2)[unseen_BxQ].any()
    assert not of_k[hidden_BxK].any()
    assert not of_v[hidden_BxK].any()
    assert np.abs(output[~unseen_BxQ]).min() > 0


@pytest.mark.parametrize("forbidden", [np.inf, -np.inf, np.nan, 3e38])
def test_forbidden_logits_never_reach_softmax_or_its_gradient(forbidden: float) -> None:
    logits = np.array([[[[1.0, 2, 3], [1, 2, 3]]]], np.float32)
    allowed = np.array([[[[True, True, False], [False, False, False]]]])
    logits[~allowed] = forbidden

    def weighted(logits: jax.Array) -> jax.Array:
        return jnp.sum(softmax(logits, jnp.asarray(allowed)) * jnp.array([1.0, 3, 9]))

    weights = softmax(jnp.asarray(logits), jnp.asarray(allowed))[0, 0]
    first = 1 / (1 + np.e)
    np.testing.assert_allclose(weights, [[first, 1 - first, 0], [0, 0, 0]], atol=1e-7)
    slope = 2 * first * (1 - first)
    gradient = jax.grad(weighted)(jnp.asarray(logits))[0, 0]
    np.testing.assert_allclose(gradient, [[-slope, slope, 0], [0, 0, 0]], atol=1e-6)
    assert not np.asarray(gradient)[~allowed[0, 0]].any()


def test_a_mask_without_facts_is_absent_and_the_rest_is_what_the_oracle_sees() -> None:
    assert dense(Mask(), Q, K) is None
    for facts in list(FACTS.values())[1:]:
        allowed = dense(Mask(**jax.tree.map(jnp.asarray, facts) | {"causal": facts.get("causal", False)}), Q, K)
        np.testing.assert_array_equal(np.broadcast_to(allowed, (B, 1, Q, K))[:, 0], seen(facts))


def test_bfloat16_inputs_have_a_float32_softmax() -> None:
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in arrays()]
    output, weights, _ = run(*inputs, FACTS["all"])
    q, k, v, _ = (np.asarray(x.astype(jnp.float32)) for x in inputs)
    expected = oracle.attention(q, k, v, scaled=True, seen_BxQxK=seen(FACTS["all"]))
    assert (weights.dtype, output.dtype) == (np.float32, jnp.bfloat16)
    # Rows of a bfloat16 softmax sum to 0.985 ... 1.016.
    np.testing.assert_allclose(weights.sum(-1), expected.weights.sum(-1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(weights, expected.weights, rtol=0, atol=1e-2)
    np.testing.assert_allclose(output.astype(np.float32), expected.output, rtol=0, atol=1e-2 * np.abs(v).max())


def test_float64_stays_float64() -> None:
    q, k, v, cotangent = arrays(2, np.float64)
    facts = FACTS["all"]
    with jax.enable_x64(True):
        output, _, gradients = run(q, k, v, cotangent, facts)
        mask = Mask(**jax.tree.map(jnp.asarray, facts) | {"causal": True})
        check_grads(
            jax.jit(lambda q, k, v: attend(q, k, v, spec=AttentionSpec(), mask=mask)[0]),
            (q, k, v),
            order=1,
            modes=["rev"],
        )
    assert output.dtype == np.float64
    options: dict[str, Any] = {"scaled": True, "seen_BxQxK": seen(facts)}
    np.testing.assert_allclose(output, oracle.attention(q, k, v, **options).output, rtol=0, atol=1e-14)
    for ours, theirs in zip(gradients, oracle.gradients(q, k, v, cotangent, **options), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_nothing_is_captured_unless_asked_and_what_is_captured_has_no_gradient() -> None:
    q, k, v, _ = map(jnp.asarray, arrays())
    assert attend(q, k, v, spec=AttentionSpec(), mask=Mask())[1] is None

    def captured(q: jax.Array) -> jax.Array:
        found = attend(q, k, v, spec=AttentionSpec(), mask=Mask(), capture=Capture(("here",)))[1]
        assert found is not None
        return jnp.sum(found.weights**2)

    assert not jax.grad(captured)(q).any()


def test_six_steps_of_one_query() -> None:
    """Scores 112 and 96, divided by sqrt(64): 14 and 12; softmax: 0.880797 and 0.119203."""
    q = jnp.ones((1, 1, 1, 64))
    k = jnp.stack([jnp.full((1, 64), 112 / 64), jnp.full((1, 64), 96 / 64)])[None]
    v = jnp.zeros((1, 2, 1, 64)).at[0, 0].set(1.0)
    output, captured = attend(q, k, v, spec=AttentionSpec(), mask=Mask(), capture=Capture(("here",)))
    assert captured is not None
    np.testing.assert_allclose(captured.weights[0, 0, 0], [0.880797, 0.119203], atol=5e-7)
    np.testing.assert_allclose(output[0, 0, 0, 0], 0.880797, atol=5e-7)


def test_a_permutation_of_the_inputs_permutes_the_outputs() -> None:
    normal = np.random.default_rng(0).normal
    x = jnp.asarray(normal(size=(1, 10, 1, 16)), jnp.float32)
    order = np.random.default_rng(1).permutation(10)

    def change(x: jax.Array, permuted: jax.Array, mask: Mask) -> float:
        before, after = (attend(y, y, y, spec=AttentionSpec(), mask=mask)[0] for y in (x, permuted))
        return float(np.abs(before[:, order] - after).max())

    waves = sinusoidal(jnp.arange(10), 16)[None, :, None]
    assert change(x, x[:, order], Mask()) <= 1e-5
    assert change(x + waves, x[:, order] + waves, Mask()) >= 1e-1
    assert change(x, x[:, order], Mask(causal=True)) >= 1e-1


@pytest.mark.parametrize(("score", "largest"), [(Score.DOT, 0.900), (Score.SCALED_DOT, 0.107)])
def test_unscaled_products_of_many_dimensions_saturate_the_softmax(score: Score, largest: float) -> None:
    normal = np.random.default_rng(0).normal
    q = jnp.asarray(normal(size=(500, 1, 1, 256)), jnp.float32)
    k = jnp.asarray(normal(size=(500, 64, 1, 256)), jnp.float32)
    found = attend(q, k, k, spec=AttentionSpec(score), mask=Mask(), capture=Capture(("here",)))[1]
    assert found is not None
    assert float(found.weights.max(-1).mean()) == pytest.approx(largest, abs=0.02)


@jax.jit
def causal_with_lengths(q: Any, k: Any, v: Any, lengths: Any) -> tuple[Any, Any, Any]:
    """Weights and output, and the derivative of every output by every key and value."""
    mask = Mask(causal=True, key_lengths=lengths)

    def forward(k: Any, v: Any) -> tuple[Any, Any]:
        output, captured = attend(q, k, v, spec=AttentionSpec(), mask=mask, capture=Capture(("here",)))
        assert captured is not None
        return jnp.sum(output, axis=(0, 2, 3)), (captured.weights, output)

    return *forward(k, v)[1], jax.jacrev(forward, (0, 1), has_aux=True)(k, v)[0]


@settings(max_examples=25)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 30),
    st.lists(st.integers(0, K), min_size=B, max_size=B),
)
def test_rows_sum_to_one_and_no_query_depends_on_a_hidden_key(seed: int, scale: float, sizes: list) -> None:
    q, k, v, _ = arrays(seed)
    lengths = np.int32(sizes)
    weights, output, derivatives = causal_with_lengths(q * np.float32(scale), k, v, lengths)
    visible_BxQxK = oracle.visible(B, Q, K, causal=True, key_lengths=lengths)
    rows = np.broadcast_to(visible_BxQxK.any(-1)[:, None], (B, H, Q))
    np.testing.assert_allclose(np.asarray(weights).sum(-1), rows, rtol=0, atol=1e-5)
    assert np.isfinite(output).all()
    for derivative in derivatives:
        leak_QxBxK = np.abs(derivative).sum(axis=(-1, -2))
        assert not leak_QxBxK[~visible_BxQxK.transpose(1, 0, 2)].any()
