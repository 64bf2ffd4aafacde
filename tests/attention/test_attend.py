"""attend() against NumPy float64: values, gradients, masks, heads, types and what is captured."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.oracles import attention as oracle
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec, Backend
from transformer.attention.blockwise import LogitScaling, LogitTerms, attend_blockwise
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.normalizers import Normalizer
from transformer.attention.positions import sinusoidal_positions
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
SEEN_AND_UNSEEN = {"causal": True, "query_offset": np.int32([-2, 1, 4]), "key_lengths": np.int32([7, 4, 6])}
HERE = Capture(("here",))

each_backend = pytest.mark.parametrize(
    "backend", [Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA], ids=lambda backend: backend.value
)


def arrays(seed: int = 0, dtype: Any = np.float32, heads: int = H, groups: int = H) -> list[np.ndarray]:
    """Random q, k, v and the cotangent of the output."""
    normal = np.random.default_rng(seed).normal
    shapes = ((B, Q, heads, D), (B, K, groups, D), (B, K, groups, D), (B, Q, heads, D))
    return [normal(size=shape).astype(dtype) for shape in shapes]


def seen(facts: dict[str, Any]) -> np.ndarray:
    return oracle.visible(B, Q, K, **facts)


def mask_of(facts: dict[str, Any]) -> Mask:
    lengths = {name: jax.device_put(fact) for name, fact in facts.items() if name != "causal"}
    return Mask(causal=facts.get("causal", False), **lengths)


@jax.jit(static_argnames="spec")
def output_and_weights(q: Any, k: Any, v: Any, mask: Mask, spec: AttentionSpec) -> tuple[jax.Array, jax.Array]:
    """What one attention gives, and the map that it captured."""
    output, attended = attend(q, k, v, spec=spec, mask=mask, capture=HERE)
    assert attended.captured is not None
    assert attended.captured.weights is not None
    return output, attended.captured.weights


@jax.jit(static_argnames="spec")
def everything(q: Any, k: Any, v: Any, cotangent: Any, mask: Mask, spec: AttentionSpec) -> tuple[Any, Any, Any]:
    """Output, captured weights and gradients of one compiled attention."""
    output, pull_back, weights = jax.vjp(lambda q, k, v: output_and_weights(q, k, v, mask, spec), q, k, v, has_aux=True)
    return output, weights, pull_back(cotangent)


def run(*inputs: Any, facts: dict[str, Any], backend: Backend, score: Score = Score.SCALED_DOT) -> tuple[Any, Any, Any]:
    """`everything` at the highest precision, as NumPy arrays."""
    with jax.default_matmul_precision("highest"):
        found = everything(*inputs, mask_of(facts), AttentionSpec(score, backend=backend))
    return jax.tree.map(np.asarray, found)


# No fact, all facts and rows that see nothing at every backend; each fact alone at one of them, in turn.
BACKENDS = (Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA)
CASES = [(Score.SCALED_DOT, named, backend) for named in ("none", "all", "unseen") for backend in BACKENDS]
CASES += [(Score.DOT, named, backend) for named in ("all", "unseen") for backend in BACKENDS]
CASES += [
    (Score.SCALED_DOT, named, BACKENDS[number % 3])
    for number, named in enumerate(("causal", "causal_offset", "lengths", "causal_lengths"))
]


@pytest.mark.parametrize(
    ("score", "named", "backend"), CASES, ids=lambda value: value if isinstance(value, str) else value.value
)
def test_values_and_gradients_are_the_oracles(score: Score, named: str, backend: Backend) -> None:
    facts = FACTS[named]
    q, k, v, cotangent = arrays()
    q = q * 2
    output, weights, gradients = run(q, k, v, cotangent, facts=facts, backend=backend, score=score)
    options: dict[str, Any] = {"scaled": score is Score.SCALED_DOT, "seen_BxQxK": seen(facts)}
    expected = oracle.attention(q, k, v, **options)
    tolerance = 1e-6 * max(1, np.abs(expected.logits).max())
    np.testing.assert_allclose(weights, expected.weights, rtol=0, atol=tolerance)
    np.testing.assert_allclose(output, expected.output, rtol=0, atol=tolerance)
    np.testing.assert_allclose(weights.sum(-1), expected.weights.sum(-1), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(weights == 0, expected.weights == 0)
    unseen_BxQ, hidden_BxK = ~seen(facts).any(-1), ~seen(facts).any(1)
    nothing = (unseen_BxQ, hidden_BxK, hidden_BxK)
    expected_gradients = oracle.gradients(q, k, v, cotangent, **options)
    for ours, theirs, zero in zip(gradients, expected_gradients, nothing, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())
        assert not ours[zero].any()
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


@each_backend
def test_a_query_that_sees_nothing_gives_exactly_zero(backend: Backend) -> None:
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
    output, weights, (of_q, of_k, of_v) = run(q, k, v, cotangent, facts=facts, backend=backend)
    assert all(np.isfinite(x).all() for x in (output, weights, of_q, of_k, of_v))
    assert not output[unseen_BxQ].any()
    assert not of_q[unseen_BxQ].any()
    assert not np.moveaxis(weights, 1, 2)[unseen_BxQ].any()
    assert not of_k[hidden_BxK].any()
    assert not of_v[hidden_BxK].any()
    assert np.abs(output[~unseen_BxQ]).min() > 0


@each_backend
@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_shared_key_and_value_heads_are_as_good_as_repeated_ones(groups: int, backend: Backend) -> None:
    heads, facts = 4, FACTS["all"]
    q, k, v, cotangent = arrays(3, heads=heads, groups=groups)
    output, weights, gradients = run(q, k, v, cotangent, facts=facts, backend=backend)
    repeated = [np.repeat(x, heads // groups, axis=2) for x in (k, v)]
    options: dict[str, Any] = {"scaled": True, "seen_BxQxK": seen(facts)}
    expected = oracle.attention(q, *repeated, **options)
    tolerance = 1e-6 * max(1, np.abs(expected.logits).max())
    np.testing.assert_allclose(output, expected.output, rtol=0, atol=tolerance)
    np.testing.assert_allclose(weights, expected.weights, rtol=0, atol=tolerance)
    of_q, *of_repeated = oracle.gradients(q, *repeated, cotangent, **options)
    # What a shared head gets is the sum of what its copies would get.
    shared = [x.reshape(B, K, groups, heads // groups, D).sum(3) for x in of_repeated]
    for ours, theirs in zip(gradients, (of_q, *shared), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())


@each_backend
def test_bfloat16_is_computed_with_a_float32_softmax(backend: Backend) -> None:
    inputs = arrays(dtype=jnp.bfloat16)
    output, weights, gradients = run(*inputs, facts=FACTS["all"], backend=backend)
    q, k, v, cotangent = (x.astype(np.float32) for x in inputs)
    options: dict[str, Any] = {"scaled": True, "seen_BxQxK": seen(FACTS["all"])}
    expected = oracle.attention(q, k, v, **options)
    assert (weights.dtype, output.dtype) == (np.float32, jnp.bfloat16)
    # Rows of a bfloat16 softmax sum to 0.985 ... 1.016.
    np.testing.assert_allclose(weights.sum(-1), expected.weights.sum(-1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(weights, expected.weights, rtol=0, atol=1e-2)
    np.testing.assert_allclose(output.astype(np.float32), expected.output, rtol=0, atol=1e-2 * np.abs(v).max())
    for ours, theirs in zip(gradients, oracle.gradients(q, k, v, cotangent, **options), strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(ours.astype(np.float32), theirs, rtol=0, atol=1e-1 * np.abs(theirs).max())


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE], ids=lambda backend: backend.value)
def test_float64_stays_float64(backend: Backend) -> None:
    q, k, v, cotangent = arrays(2, np.float64)
    with jax.enable_x64(True):
        output, weights, gradients = run(q, k, v, cotangent, facts=SEEN_AND_UNSEEN, backend=backend)
    assert output.dtype == weights.dtype == np.float64
    options: dict[str, Any] = {"scaled": True, "seen_BxQxK": seen(SEEN_AND_UNSEEN)}
    expected = oracle.attention(q, k, v, **options)
    np.testing.assert_allclose(output, expected.output, rtol=0, atol=1e-14)
    np.testing.assert_allclose(weights, expected.weights, rtol=0, atol=1e-14)
    for ours, theirs in zip(gradients, oracle.gradients(q, k, v, cotangent, **options), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_float64_is_refused_where_it_would_become_float32() -> None:
    with jax.enable_x64(True), pytest.raises(ValueError, match="backend=xla computes in float32, not float64"):
        run(*arrays(2, np.float64), facts={}, backend=Backend.XLA)


@pytest.mark.parametrize("named", ["causal_lengths", "unseen"])
def test_blocks_smaller_than_the_lengths_change_nothing(named: str) -> None:
    facts = FACTS[named]
    q, k, v, cotangent = arrays(2, np.float64)

    @jax.jit
    def in_blocks(q: Any, k: Any, v: Any) -> Any:
        output, pull_back = jax.vjp(
            lambda *x: attend_blockwise(*x, LogitTerms(mask_of(facts)), LogitScaling(scale=D**-0.5), 3)[0], q, k, v
        )
        return output, pull_back(jnp.asarray(cotangent))

    with jax.enable_x64(True):
        output, gradients = in_blocks(q, k, v)
    options: dict[str, Any] = {"scaled": True, "seen_BxQxK": seen(facts)}
    np.testing.assert_allclose(output, oracle.attention(q, k, v, **options).output, rtol=0, atol=1e-14)
    for ours, theirs in zip(gradients, oracle.gradients(q, k, v, cotangent, **options), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def with_einsum(q: Any, k: Any, v: Any, bias: Any) -> Any:
    spec = AttentionSpec(backend=Backend.EINSUM, temperature=0.8)
    return attend(q, k, v, spec=spec, mask=mask_of(SEEN_AND_UNSEEN), bias=bias)[0]


def in_small_blocks(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Blocks of 3, which divide neither length, with the log-sum-exp of the rows that see a key."""
    terms = LogitTerms(mask_of(SEEN_AND_UNSEEN), bias)
    output, log_sum = attend_blockwise(q, k, v, terms, LogitScaling(scale=D**-0.5, temperature=0.8), 3)
    return output, jnp.where(jnp.isfinite(log_sum), log_sum, 0)


@pytest.mark.parametrize("attention", [pytest.param(with_einsum, marks=pytest.mark.slow), in_small_blocks])
# The second order looks at the first as well.
@pytest.mark.parametrize(("order", "within"), [(1, 1e-7), pytest.param(2, 1e-5, marks=pytest.mark.slow)])
def test_float64_gradients_are_those_of_finite_differences(attention: Any, order: int, within: float) -> None:
    q, k, v, _ = arrays(2, np.float64)
    bias = np.random.default_rng(4).normal(size=(1, H, Q, K))
    with jax.enable_x64(True):
        # A step of 1e-5 is wrong by about 1e-10, by its curvature as much as by its rounding.
        inputs = jax.device_put((q, k, v, bias))
        compiled = jax.jit(attention)
        found, expected = jax.tree.leaves(compiled(*inputs))[0], jax.jit(with_einsum)(*inputs)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
        check_grads(compiled, inputs, order, modes=["rev"], atol=within, rtol=within, eps=1e-5)


@each_backend
def test_nothing_is_captured_unless_asked_and_what_is_captured_has_no_gradient(backend: Backend) -> None:
    q, k, v, _ = jax.device_put(arrays())
    spec = AttentionSpec(backend=backend)
    attended = jax.eval_shape(lambda: attend(q, k, v, spec=spec, mask=Mask())[1])
    assert attended.captured is None
    assert attended.log_prob is None
    of_weights = jax.jit(jax.grad(lambda q: jnp.sum(output_and_weights(q, k, v, Mask(), spec)[1] ** 2)))
    assert not np.any(of_weights(q))


@pytest.mark.parametrize("normalizer", [Normalizer.HARD, Normalizer.STRAIGHT_THROUGH], ids=lambda kind: kind.value)
def test_a_sample_in_training_needs_a_key_and_has_a_log_probability(normalizer: Normalizer) -> None:
    q, k, v, _ = jax.device_put(arrays())
    spec = AttentionSpec(normalizer=normalizer)

    def log_prob(**options: Any) -> Any:
        return jax.eval_shape(lambda: attend(q, k, v, spec=spec, mask=Mask(), **options)[1].log_prob)

    with pytest.raises(TypeError, match=f"normalizer={normalizer.value} draws a sample in training; .* a key"):
        log_prob(train=True)
    for options in ({}, {"train": True, "key": jax.random.key(0)}):
        found = log_prob(**options)
        assert (found.shape, found.dtype) == ((B, H, Q), jnp.float32)


@each_backend
def test_six_steps_of_one_query(backend: Backend) -> None:
    """Scores 112 and 96, divided by sqrt(64): 14 and 12; softmax: 0.880797 and 0.119203."""
    q = np.ones((1, 1, 1, 64), np.float32)
    k = np.repeat(np.float32([112 / 64, 96 / 64]), 64).reshape(1, 2, 1, 64)
    v = np.repeat(np.float32([1, 0]), 64).reshape(1, 2, 1, 64)
    output, weights = map(np.asarray, output_and_weights(q, k, v, Mask(), AttentionSpec(backend=backend)))
    np.testing.assert_allclose(weights[0, 0, 0], [0.880797, 0.119203], atol=5e-7)
    np.testing.assert_allclose(output[0, 0, 0, 0], 0.880797, atol=5e-7)


@each_backend
def test_a_permutation_of_the_inputs_permutes_the_outputs(backend: Backend) -> None:
    normal = np.random.default_rng(0).normal
    x = normal(size=(1, 10, 1, 16)).astype(np.float32)
    order = np.random.default_rng(1).permutation(10)
    spec = AttentionSpec(backend=backend)

    def change(x: np.ndarray, permuted: np.ndarray, mask: Mask) -> float:
        before, after = (np.asarray(output_and_weights(y, y, y, mask, spec)[0]) for y in (x, permuted))
        return float(np.abs(before[:, order] - after).max())

    waves = np.asarray(jax.jit(sinusoidal_positions, static_argnums=1)(np.arange(10), 16))[None, :, None]
    assert change(x, x[:, order], Mask()) <= 1e-5
    assert change(x + waves, x[:, order] + waves, Mask()) >= 1e-1
    assert change(x, x[:, order], Mask(causal=True)) >= 1e-1


@functools.cache
def wide_arrays() -> tuple[np.ndarray, ...]:
    """A query and 64 keys of 256 features, 500 times."""
    normal = np.random.default_rng(0).normal
    return tuple(normal(size=(500, length, 1, 256)).astype(np.float32) for length in (1, 64))


@each_backend
@pytest.mark.parametrize(
    ("score", "largest"), [pytest.param(Score.DOT, 0.900, marks=pytest.mark.slow), (Score.SCALED_DOT, 0.107)]
)
def test_unscaled_products_of_many_dimensions_saturate_the_softmax(
    score: Score, largest: float, backend: Backend
) -> None:
    q, k = wide_arrays()
    weights = np.asarray(output_and_weights(q, k, k, Mask(), AttentionSpec(score, backend=backend))[1])
    assert float(weights.max(-1).mean()) == pytest.approx(largest, abs=0.02)


@jax.jit
def slopes_of_output(q: Any, k: Any, v: Any) -> list[Any]:
    """|d o_q / d q| of each query for products unscaled and scaled; the values have one feature."""

    def output(q: Any, score: Score) -> Any:
        return jnp.sum(attend(q, k, v, spec=AttentionSpec(score), mask=Mask())[0])

    return [jnp.linalg.norm(jax.grad(output)(q, score), axis=-1) for score in (Score.DOT, Score.SCALED_DOT)]


def test_the_gradient_vanishes_with_the_depth_unless_products_are_scaled() -> None:
    """64 keys, all features standard normal: the typical slope at depths 4, 16, 64, 256 and 1024."""
    slopes = []
    for depth in (4, 16, 64, 256, 1024):
        normal = np.random.default_rng(depth).normal
        shapes = ((8, 32, 1, depth), (8, 64, 1, depth), (8, 64, 1, 1))
        found = slopes_of_output(*(normal(size=shape).astype(np.float32) for shape in shapes))
        slopes.append([np.median(slope) for slope in found])
    unscaled, scaled = np.array(slopes).T
    # A logit moves sqrt(D) times as far with the query where it is not scaled, and yet in the end nothing moves.
    assert unscaled[2] > unscaled[3] > unscaled[4]
    assert unscaled[4] < unscaled[0] / 50
    assert unscaled[4] < scaled[4] / 20
    assert scaled.max() < 2 * scaled.min()


@each_backend
def test_a_mask_passes_through_jit_and_scan_as_an_argument(backend: Backend) -> None:
    q, k, v, _ = jax.device_put(arrays())
    spec = AttentionSpec(backend=backend)
    traced = []

    @jax.jit
    def one_query_at_a_time(q_BxQxHxD: jax.Array, mask: Mask) -> jax.Array:
        traced.append(mask.causal)

        def step(mask: Mask, q_BxHxD: jax.Array) -> tuple[Mask, jax.Array]:
            assert mask.query_offset is not None
            output = attend(q_BxHxD[:, None], k, v, spec=spec, mask=mask)[0]
            return dataclasses.replace(mask, query_offset=mask.query_offset + 1), output[:, 0]

        return jnp.moveaxis(jax.lax.scan(step, mask, jnp.moveaxis(q_BxQxHxD, 1, 0))[1], 0, 1)

    for facts in (FACTS["all"], SEEN_AND_UNSEEN, FACTS["all"] | {"causal": False}):
        expected = oracle.attention(q, k, v, scaled=True, seen_BxQxK=seen(facts)).output
        np.testing.assert_allclose(one_query_at_a_time(q, mask_of(facts)), expected, rtol=0, atol=1e-5)
    # Other lengths compile nothing anew; another static fact does.
    assert traced == [True, False]
