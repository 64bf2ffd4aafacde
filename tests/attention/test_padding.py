"""What stands in padding has no effect, be it NaN: not on the output, not on a gradient, not on what is captured.

Other numbers in the same places are the truth: all must be the same to the last bit.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from tests.oracles import attention as oracle
from transformer.attention import (
    T5,
    Additive,
    AttentionParameters,
    AttentionPosition,
    AttentionSpec,
    Backend,
    Capture,
    Concat,
    Cosine,
    General,
    Location,
    Mask,
    Mlp,
    Normalizer,
    Score,
    SquaredDistance,
    attend,
    capture_weights,
    dense_mask,
    normalize,
    prepare_keys,
    score,
    weighted_sum,
    zero_hidden_keys,
    zero_padded_queries,
)
from transformer.logical_axes import MESH_AXES, RULES, Placement, SequenceParallel, use_placement

B, Q, K, H, G, D, A = 2, 3, 5, 2, 1, 4, 3
QUERIES, KEYS = np.array([3, 2]), np.array([3, 5])
WEIGHT = np.random.default_rng(0).normal(size=(H, 2 * D, A)).astype(np.float32)
PARTS: dict[Score, Any] = {
    Score.GENERAL: General(jax.device_put(WEIGHT[:, :D, :1] * WEIGHT[:, None, D:, 0])),
    Score.ADDITIVE: Additive(*jax.device_put((WEIGHT[:, :D], WEIGHT[:, D:], WEIGHT[:, 0]))),
    Score.CONCAT: Concat(jax.device_put(WEIGHT), jax.device_put(WEIGHT[:, 0])),
    Score.MLP: Mlp(jax.device_put(WEIGHT), jax.device_put(WEIGHT[:, 1]), jax.device_put(WEIGHT[:, 0])),
    Score.COSINE: Cosine(jax.device_put(np.full((1, 1, 1), 2, np.float32))),
    Score.SQUARED_DISTANCE: SquaredDistance(jax.device_put(np.full((1, 1, 1), 2, np.float32))),
    Score.LOCATION: Location(jax.device_put(np.repeat(WEIGHT[:, :D, :1], K, axis=2))),
}
MASKS: dict[str, Callable[[], Mask]] = {
    "lengths": lambda: Mask(query_lengths=jax.device_put(QUERIES), key_lengths=jax.device_put(KEYS)),
    "allowed": lambda: Mask(
        query_lengths=jax.device_put(QUERIES), allowed=jax.device_put((np.arange(K) < KEYS[:, None])[:, None, None])
    ),
}


def inputs(filling: float) -> tuple[jax.Array, ...]:
    """Queries, keys and values with this number in all padding."""
    random = np.random.default_rng(1)
    arrays = []
    for shape, lengths in (((B, Q, H, D), QUERIES), ((B, K, G, D), KEYS), ((B, K, G, D), KEYS)):
        array = random.normal(size=shape).astype(np.float32)
        array[np.arange(shape[1]) >= lengths[:, None]] = filling
        arrays.append(jax.device_put(array))
    return tuple(arrays)


def check(call: Callable[..., Any], params: AttentionParameters, mask: Mask) -> None:
    """Compare the output, what was captured, and the gradients of q, k, v and all parameters."""

    @jax.jit
    def run(params: AttentionParameters, *arrays: jax.Array, mask: Mask) -> Any:
        def loss(params: AttentionParameters, *arrays: jax.Array) -> tuple[jax.Array, Any]:
            output, captured = call(*arrays, params, mask)
            return jnp.sum(jnp.sin(output)), (output, captured)

        (_, found), gradients = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(params, *arrays)
        return found, gradients

    wild, tame = (run(params, *inputs(filling), mask=mask) for filling in (np.nan, 1.0))
    for one, other in zip(jax.tree.leaves(wild), jax.tree.leaves(tame), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


CASES = [
    *((kind, Normalizer.SOFTMAX, Backend.EINSUM) for kind in Score),
    *((Score.DOT, kind, Backend.EINSUM) for kind in Normalizer if kind is not Normalizer.SOFTMAX),
    *((Score.SCALED_DOT, Normalizer.SOFTMAX, backend) for backend in (Backend.BLOCKWISE, Backend.XLA)),
]


# `make test` takes the two masks in turn.
@pytest.mark.parametrize(
    ("kind", "normalizer", "backend", "mask"),
    [
        pytest.param(
            *case,
            mask,
            id="-".join((*(choice.value for choice in case), mask)),
            marks=[pytest.mark.slow] if (number + turn) % 2 else [],
        )
        for number, case in enumerate(CASES)
        for turn, mask in enumerate(MASKS)
    ],
)
def test_attend_does_not_see_what_stands_in_padding(
    kind: Score, normalizer: Normalizer, backend: Backend, mask: str
) -> None:
    def call(q: jax.Array, k: jax.Array, v: jax.Array, params: AttentionParameters, mask: Mask) -> Any:
        spec = AttentionSpec(kind, normalizer, backend=backend)
        output, attended = attend(q, k, v, spec=spec, mask=mask, params=params, capture=Capture(("here",)))
        return output, attended.captured

    check(call, AttentionParameters(PARTS.get(kind)), MASKS[mask]())


QUERY_SEGMENTS, KEY_SEGMENTS = np.array([[1, 1, 2], [1, 2, 2]]), np.array([[1, 1, 2, 9, 9], [9, 1, 2, 2, 9]])
PREFIX, NO_KEY = np.array([2, 3]), np.array([0, 5])
QUERY_ORDER, KEY_ORDER = np.array([[3, 2, 1], [2, 2, 2]]), np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
FACTS: dict[str, Callable[[], Mask]] = {
    "causal": lambda: Mask(causal=True),
    "causal-lengths": lambda: Mask(causal=True, query_lengths=jax.device_put(QUERIES)),
    "prefix": lambda: Mask(causal=True, query_lengths=jax.device_put(QUERIES - 2), prefix=jax.device_put(PREFIX)),
    "window": lambda: Mask(window=(2, 1), query_lengths=jax.device_put(QUERIES)),
    "causal-window": lambda: Mask(causal=True, window=(1, 0)),
    "segments": lambda: Mask(segments=jax.device_put((QUERY_SEGMENTS, KEY_SEGMENTS))),
    "order": lambda: Mask(order=jax.device_put((QUERY_ORDER, KEY_ORDER))),
    "no key": lambda: Mask(key_lengths=jax.device_put(NO_KEY)),
}


BACKENDS = (Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA)


# `make test` takes the backends in turn.
@pytest.mark.parametrize(
    ("fact", "backend"),
    [
        pytest.param(fact, backend, id=f"{fact}-{backend.value}", marks=[pytest.mark.slow] if (at + turn) % 3 else [])
        for at, fact in enumerate(FACTS)
        for turn, backend in enumerate(BACKENDS)
    ],
)
def test_a_key_that_a_fact_hides_from_every_query_may_hold_anything(fact: str, backend: Backend) -> None:
    mask = FACTS[fact]()
    hidden_BxK = ~np.broadcast_to(jax.jit(dense_mask, static_argnums=(1, 2))(mask, Q, K), (B, 1, Q, K)).any((1, 2))
    assert hidden_BxK.any()
    q, k, v = inputs(1.0)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def loss(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask) -> tuple[jax.Array, jax.Array]:
        output, _ = attend(q, k, v, spec=AttentionSpec(backend=backend), mask=mask)
        return jnp.sum(jnp.sin(output)), output

    def run(filling: float) -> Any:
        return loss(q, *(np.where(hidden_BxK[:, :, None, None], np.float32(filling), x) for x in (k, v)), mask)

    jax.tree.map(np.testing.assert_array_equal, run(np.nan), run(1.0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run(np.inf)))


@pytest.mark.parametrize("mask", [Mask(causal=True), Mask(window=(2, 0))], ids=["causal", "window"])
def test_keys_that_position_alone_hides_behind_an_offset_are_read(mask: Mask) -> None:
    """They are a cache's own zeros, and to copy them at every step would take as long as the step."""
    q, k, v = inputs(1.0)
    behind = dataclasses.replace(mask, query_offset=jnp.asarray([0, 1]))
    assert not np.broadcast_to(np.asarray(dense_mask(behind, 1, K)), (B, 1, 1, K))[..., 2:].any()

    @jax.jit
    def output(mask: Mask) -> jax.Array:
        return attend(q[:, :1], k, v.at[:, 2:].set(jnp.nan), mask=mask)[0]

    assert np.isnan(output(behind)).all()
    assert np.isfinite(output(dataclasses.replace(behind, key_lengths=jnp.asarray([2, 2])))).all()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda choice: choice.value)
def test_a_bias_of_minus_infinity_hides_as_a_mask_does(backend: Backend) -> None:
    allowed = np.random.default_rng(3).random((B, H, Q, K)) < 0.6
    allowed[:, :, 1], allowed[..., 2] = False, False  # a query that sees no key, a key that no query sees
    drawn = np.random.default_rng(4).normal(size=(B, H, Q, K)).astype(np.float32)
    q, k, v = inputs(1.0)
    wild = [np.where(np.arange(K)[:, None, None] == 2, np.float32(np.nan), x) for x in (k, v)]

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
    def run(q: Any, k: Any, v: Any, bias: Any, mask: Mask) -> tuple[jax.Array, jax.Array]:
        output, _ = attend(q, k, v, spec=AttentionSpec(backend=backend), mask=mask, bias=bias)
        return jnp.sum(jnp.sin(output)), output

    hiding = run(q, *wild, np.where(allowed, drawn, -np.inf), Mask())
    masked = run(q, k, v, drawn, Mask(allowed=jax.device_put(allowed)))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), hiding, masked)
    assert not np.any(hiding[0][1][:, 1])


@pytest.mark.slow
def test_splash_does_not_see_what_stands_in_padding() -> None:
    random, size = np.random.default_rng(5), 128
    q, k, v = (jax.device_put(random.normal(size=(2, size, 1, 128)).astype(np.float32)) for _ in range(3))
    mask = Mask(causal=True, key_lengths=jnp.asarray([100, 128]), query_lengths=jnp.asarray([100, 0]))
    hidden = np.arange(size) >= np.array([[100], [0]])

    def run(filling: float) -> Any:
        def loss(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
            output, _ = attend(*arrays, spec=AttentionSpec(backend=Backend.SPLASH), mask=mask)
            return jnp.sum(jnp.sin(output)), output

        filled = (np.where(hidden[:, :, None, None], np.float32(filling), x) for x in (q, k, v))
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*filled)

    wild, tame = run(np.nan), run(1.0)
    jax.tree.map(np.testing.assert_array_equal, wild, tame)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(wild))


@pytest.mark.parametrize("kind", [Score.DOT, Score.ADDITIVE, Score.COSINE], ids=lambda kind: kind.value)
def test_the_stages_do_not_see_what_stands_in_padding(kind: Score) -> None:
    def call(q: jax.Array, k: jax.Array, v: jax.Array, params: AttentionParameters, mask: Mask) -> Any:
        q, k, v = zero_padded_queries(mask, q), zero_hidden_keys(mask, k), zero_hidden_keys(mask, v)
        logits = score(q, prepare_keys(k, kind, params=params), kind, params=params)
        weights = normalize(logits, dense_mask(mask, Q, K)).values
        return weighted_sum(weights, v), capture_weights(weights, Capture(("here",)), logits=logits, mask=mask)

    check(call, AttentionParameters(PARTS.get(kind)), MASKS["lengths"]())


def test_a_hidden_logit_that_is_nan_has_no_effect_on_any_weight() -> None:
    """Whoever scores by other means hides by `allowed` alone."""
    allowed = jax.device_put((np.arange(K) < KEYS[:, None])[:, None, None])
    logits = np.random.default_rng(2).normal(size=(B, H, Q, K)).astype(np.float32)

    for kind in (Normalizer.SOFTMAX, Normalizer.SPARSEMAX, Normalizer.ENTMAX15, Normalizer.STRAIGHT_THROUGH):

        def loss(logits: jax.Array, kind: Normalizer = kind) -> tuple[jax.Array, jax.Array]:
            weights = normalize(logits, allowed, kind, key=jax.random.key(0), train=True).values
            return jnp.sum(jnp.sin(weights * jnp.arange(K))), weights

        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        wild, tame = (run(np.where(allowed, logits, np.float32(filling))) for filling in (np.nan, 0.0))
        jax.tree.map(np.testing.assert_array_equal, wild, tame)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(wild))


# More queries than one block has, and not a multiple of it: rows of zeros fill the last block.
LARGE_TERMS = {
    "a bias of 100": (100.0, 1.0, None),
    "a bias of 10 at temperature 0.1": (10.0, 0.1, None),
    "a position bias of 100": (0.0, 1.0, 100.0),
}


@pytest.mark.parametrize(("bias", "temperature", "position"), LARGE_TERMS.values(), ids=LARGE_TERMS)
def test_the_rows_that_fill_the_last_block_have_no_gradient(
    bias: float, temperature: float, position: float | None
) -> None:
    """Nor has NaN, which is 0 times a weight of exp(100)."""
    compare_large_terms(600, bias, temperature, position, None)


@pytest.mark.slow
def test_the_rows_that_fill_the_last_block_of_each_device_of_a_ring_have_no_gradient() -> None:
    devices = jax.devices()[:4]
    sizes = [4 if axis == "sequence" else 1 for axis in MESH_AXES]
    mesh = jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices)
    compare_large_terms(2400, 100.0, 1.0, None, Placement(mesh, RULES["sp"], SequenceParallel.RING))


def compare_large_terms(
    length: int, bias: float, temperature: float, position: float | None, here: Placement | None
) -> None:
    """Compare output and gradients of q, k and v in blocks with the equations in float64."""
    random = np.random.default_rng(6)
    q, k, v, cotangent = (random.normal(size=(1, length, 1, 4)).astype(np.float32) for _ in range(4))
    bias_K = (bias + random.normal(size=(1, 1, 1, length))).astype(np.float32)
    spec = AttentionSpec(backend=Backend.BLOCKWISE, temperature=temperature)
    params = AttentionParameters()
    if position is not None:
        spec = dataclasses.replace(spec, position=AttentionPosition.T5)
        params = AttentionParameters(position=T5(jnp.full((32, 1), position, jnp.float32), bidirectional=True))

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def run(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        with use_placement(here) if here else contextlib.nullcontext():
            output, _ = attend(q, k, v, spec=spec, bias=bias, params=params)
        return jnp.sum(cotangent * output), output

    with jax.default_matmul_precision("highest"):
        (_, output), gradients = run(q, k, v, bias_K)
    terms: dict[str, Any] = {
        "scaled": True,
        "seen_BxQxK": np.ones((1, length, length), bool),
        "bias": bias_K.astype(np.float64) + (position or 0),
        "temperature": temperature,
    }
    np.testing.assert_allclose(output, oracle.attention(q, k, v, **terms).output, atol=1e-4)
    for found, expected in zip(gradients, oracle.gradients(q, k, v, cotangent, **terms), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
