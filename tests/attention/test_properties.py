"""What holds of attention whatever its inputs: each property over 50 drawn cases of a pool of eight shapes."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import attention_equations as oracle
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.blockwise import LogitScaling, LogitTerms, attend_blockwise
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.normalizers import SAMPLING_NORMALIZERS, Normalizer
from transformer.attention.positions import T5, AttentionPosition, Disentangled, Shaw, TransformerXL
from transformer.attention.scores import Score

Facts = dict[str, Any]


class Shape(NamedTuple):
    """The sizes of q, k and v; `groups` heads of k and v are shared by `heads` of q."""

    batch: int
    queries: int
    keys: int
    heads: int
    groups: int
    depth: int
    value_depth: int


# To compile is what costs time here. So each kind of mask has one shape, at which every backend computes it, and one
# program gives value, weights and gradients of all examples of all properties.
SHAPES = (
    Shape(2, 5, 7, 4, 2, 4, 4),
    Shape(2, 9, 4, 3, 3, 6, 6),
    Shape(4, 4, 10, 2, 1, 2, 5),
    Shape(2, 1, 9, 2, 1, 4, 4),
    Shape(2, 17, 17, 2, 2, 4, 3),
    Shape(2, 12, 7, 2, 1, 8, 8),
    Shape(1, 16, 16, 4, 1, 4, 4),
    Shape(1, 3, 13, 6, 3, 2, 2),
)
CAUSAL = [
    ("causal", "key_lengths", *more) for more in ((), ("window",), ("prefix",), ("query_offset", "query_lengths"))
]
FREE = [
    ("key_lengths", *more)
    for more in (("query_lengths",), ("window", "query_offset"), ("segments", "order"), ("window", "center", "allowed"))
]
MASKS = CAUSAL + FREE
BACKENDS = (Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA)
NORMALIZERS = (Normalizer.SPARSEMAX, Normalizer.ENTMAX15, Normalizer.HARD, Normalizer.STRAIGHT_THROUGH)
BLOCKS = (1, 2, 3, 5, 16)


def turn(choices: Sequence[Any], number: int) -> Any:
    """The choice whose turn it is at this shape."""
    return choices[number % len(choices)]


class Place(NamedTuple):
    """One mask, which has a shape of its own, and what computes it."""

    number: int
    backend: Backend
    normalizer: Normalizer = Normalizer.SOFTMAX

    @property
    def facts(self) -> tuple[str, ...]:
        return MASKS[self.number]

    @property
    def shape(self) -> Shape:
        shape = SHAPES[self.number]
        # XLA takes values of the keys' depth only.
        return shape._replace(value_depth=shape.depth) if self.backend is Backend.XLA else shape


# Of the other two backends each mask has the one whose turn it is; tests/attention/test_backend_support.py has all.
MASKED = [
    Place(number, backend)
    for number in range(len(MASKS))
    for backend in (Backend.EINSUM, turn(BACKENDS[1:], number + number // 4))
]
FORWARD = [place for place in MASKED if "causal" in place.facts]
# Square, and masked by nothing that a fact's values cannot lift.
SYMMETRIC = [place for place in MASKED if place.facts in (FREE[0], FREE[2])]

SEEDS, LARGEST = st.integers(0, 2**32 - 1), st.floats(0, 60)


class Found(NamedTuple):
    """What an attention gave: output, captured weights and gradients."""

    output: np.ndarray
    weights: np.ndarray
    of_q: np.ndarray
    of_k: np.ndarray
    of_v: np.ndarray


@functools.cache
def compiled(spec: AttentionSpec, causal: bool, window: tuple[int, int] | None) -> Any:
    """The jitted attention of these static choices, compiled once for each shape that it meets."""

    @jax.jit
    def run(q: Any, k: Any, v: Any, facts: Facts, bias: Any, cotangent: Any, key: Any) -> Found:
        def forward(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
            mask, capture = Mask(causal=causal, window=window, **facts), Capture(("here",))
            sampled = {"key": key, "train": key is not None}
            output, attended = attend(q, k, v, spec=spec, mask=mask, bias=bias, capture=capture, **sampled)
            return output, attended.captured.weights

        output, pull_back, weights = jax.vjp(forward, q, k, v, has_aux=True)
        return Found(output, weights, *pull_back(cotangent))

    return run


@functools.cache
def compiled_output(spec: AttentionSpec, causal: bool) -> Any:
    """The output alone, with the parameters of positions."""

    @jax.jit
    def run(q: Any, k: Any, v: Any, facts: Facts, params: AttentionParameters) -> jax.Array:
        return attend(q, k, v, spec=spec, mask=Mask(causal=causal, **facts), params=params)[0]

    return run


def traced_facts(facts: Facts) -> Facts:
    return {name: fact for name, fact in facts.items() if name not in ("causal", "window")}


def attention(
    spec: AttentionSpec,
    facts: Facts,
    qkv: Sequence[np.ndarray],
    cotangent: np.ndarray,
    bias: np.ndarray | None = None,
    key: Any = None,
) -> Found:
    """All that an attention gives; without a bias with one of zeros, which is the same program."""
    (batch, queries, heads, _), keys = qkv[0].shape, qkv[1].shape[1]
    bias = np.zeros((batch, heads, queries, keys), np.float32) if bias is None else bias
    run = compiled(spec, "causal" in facts, facts.get("window"))
    with jax.default_matmul_precision("highest"):
        return jax.tree.map(np.asarray, run(*qkv, traced_facts(facts), bias, cotangent, key))


def output_of(spec: AttentionSpec, facts: Facts, qkv: Sequence[np.ndarray], params: AttentionParameters) -> np.ndarray:
    with jax.default_matmul_precision("highest"):
        return np.asarray(compiled_output(spec, "causal" in facts)(*qkv, traced_facts(facts), params))


def products(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.einsum("bqhd,bkhd->bhqk", q, oracle.of_query_heads(k, q.shape[2]))


def random_arrays(random: np.random.Generator, shape: Shape, largest: float) -> tuple[list[np.ndarray], np.ndarray]:
    """q, k and v whose largest scaled logit is `largest`, and a cotangent of the output."""
    batch, queries, keys, heads, groups, depth, value_depth = shape
    q = random.normal(size=(batch, queries, heads, depth))
    k = random.normal(size=(batch, keys, groups, depth))
    v = random.normal(size=(batch, keys, groups, value_depth))
    q *= largest / np.abs(products(q, k) / np.sqrt(depth)).max()
    cotangent = random.normal(size=(batch, queries, heads, value_depth))
    return [array.astype(np.float32) for array in (q, k, v)], cotangent.astype(np.float32)


def random_facts(random: np.random.Generator, shape: Shape, kind: tuple[str, ...]) -> Facts:
    """Facts of any strength, from forbidding nothing to forbidding all."""
    batch, queries, keys, heads = shape[:4]

    def whole(low: int, high: int, *size: int) -> np.ndarray:
        return random.integers(low, high, size, endpoint=True).astype(np.int32)

    facts: Facts = {
        "causal": True,
        "window": (2, 1),
        "query_offset": whole(-queries, keys, batch),
        "query_lengths": whole(0, queries, batch),
        "key_lengths": whole(0, keys, batch),
        "prefix": whole(0, keys, batch),
        "segments": (whole(0, 1, batch, queries), whole(0, 1, batch, keys)),
        "order": (whole(0, keys, batch, queries), whole(0, keys, batch, keys)),
        # Quarters, so that no key lies beyond a window's edge by rounding alone.
        "center": whole(-4, 4 * keys, batch, heads, queries).astype(np.float32) / 4,
        "allowed": random.uniform(size=(batch, heads, queries, keys)) < 0.6,
    }
    return {name: facts[name] for name in kind}


def masked_case(seed: int, largest: float, shape: Shape, kind: tuple[str, ...]) -> tuple:
    """The source of further draws; q, k and v; the cotangent; the facts of the mask."""
    random = np.random.default_rng(seed)
    return random, *random_arrays(random, shape, largest), random_facts(random, shape, kind)


def seen_keys(facts: Facts, shape: Shape) -> np.ndarray:
    """Which keys each query sees, `B H Q K`, by the oracle."""
    arrays = {"k": np.zeros((1, shape.keys)), **({"center": facts["center"]} if "center" in facts else {})}
    seen = oracle.visible(facts, arrays, oracle.positions(facts, shape.batch, shape.queries))
    return np.broadcast_to(seen, (shape.batch, shape.heads, shape.queries, shape.keys))


def close(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def agree(ours: Found, theirs: Found, largest: float) -> None:
    """Values within 1e-6 times the largest logit, gradients within 2e-3 of their largest."""
    rounding = 1e-6 * max(1, largest)
    close(ours.output, theirs.output, rounding)
    close(ours.weights, theirs.weights, rounding)
    for of_ours, of_theirs in zip(ours[2:], theirs[2:], strict=True):
        # A row of one key, or a saturated one, has the gradient 0 as a difference of rounded numbers.
        close(of_ours, of_theirs, 2e-3 * np.abs(of_theirs).max() + rounding)


@settings(max_examples=50)
@given(st.sampled_from(FORWARD), SEEDS, LARGEST)
def test_no_gradient_reaches_a_key_that_no_row_so_far_may_see(place: Place, seed: int, largest: float) -> None:
    random, qkv, cotangent, facts = masked_case(seed, largest, place.shape, place.facts)
    last = int(random.integers(place.shape.queries))
    cotangent[:, last + 1 :] = 0
    found = attention(AttentionSpec(backend=place.backend), facts, qkv, cotangent)
    seen_BxK = seen_keys(facts, place.shape)[:, :, : last + 1].any(axis=(1, 2))
    position_B = last + facts.get("query_offset", np.zeros(place.shape.batch, int))
    later_BxK = np.arange(place.shape.keys) > np.maximum(position_B, facts.get("prefix", position_B) - 1)[:, None]
    assert not found.of_k[later_BxK | ~seen_BxK].any()
    assert not found.of_v[later_BxK | ~seen_BxK].any()
    assert not found.of_q[:, last + 1 :].any()
    np.testing.assert_array_equal(found.of_v.any(axis=(1, 2, 3)), seen_BxK.any(axis=1))


def exact_arrays(random: np.random.Generator, shape: Shape, largest: float) -> tuple[list[np.ndarray], np.ndarray]:
    """q, k and v for score=dot, and a bias, all in eighths: no logit is rounded, nor its sum with a whole number."""
    (q, k, v), _ = random_arrays(random, shape, largest)
    bias_BxHxQxK = random.normal(size=(shape.batch, shape.heads, shape.queries, shape.keys)).astype(np.float32)
    eighths = [np.round(8 * x) / 8 for x in (q / np.float32(np.sqrt(shape.depth)), k, v, bias_BxHxQxK)]
    return eighths[:3], eighths[3]


def all_seen(place: Place) -> Facts:
    """The facts of a place, with values that hide nothing."""
    batch, queries, keys, *_ = place.shape
    facts = {
        "query_lengths": np.full(batch, queries),
        "key_lengths": np.full(batch, keys),
        "segments": (np.zeros((batch, queries)), np.zeros((batch, keys))),
        "order": (np.ones((batch, queries)), np.zeros((batch, keys))),
    }
    return {name: jax.tree.map(np.int32, facts[name]) for name in place.facts}


@settings(max_examples=50)
@given(st.sampled_from(SYMMETRIC), SEEDS, LARGEST)
def test_self_attention_without_positions_permutes_with_its_inputs(place: Place, seed: int, largest: float) -> None:
    random = np.random.default_rng(seed)
    (q, k, v), bias = exact_arrays(random, place.shape, largest)
    cotangent = random.normal(size=(*q.shape[:3], v.shape[-1])).astype(np.float32)
    order = random.permutation(place.shape.keys)
    # Of depth 4: the scale, 1 / 2, rounds nothing.
    spec, facts = AttentionSpec(backend=place.backend), all_seen(place)
    before = attention(spec, facts, (q, k, v), cotangent, bias)
    moved = [x[:, order] for x in (q, k, v, cotangent)]
    after = attention(spec, facts, moved[:3], moved[3], bias[:, :, order][..., order])
    of_weights = before.weights[:, :, order][..., order]
    permuted = Found(before.output[:, order], of_weights, *(gradient[:, order] for gradient in before[2:]))
    agree(after, permuted, np.abs(products(q, k) / 2 + bias).max())


@pytest.mark.parametrize("what", ["causal", "rotary", "rotary_halves", "alibi"])
def test_a_causal_mask_and_relative_positions_break_it(what: str) -> None:
    facts, position = ({what: True}, "none") if what == "causal" else ({}, what)
    shape = SHAPES[6]
    _, qkv, *_ = masked_case(0, 3.0, shape, ())
    order = np.random.default_rng(1).permutation(shape.keys)
    spec = AttentionSpec(position=AttentionPosition(position))
    before, after = (
        output_of(spec, facts, arrays, AttentionParameters()) for arrays in (qkv, [x[:, order] for x in qkv])
    )
    assert np.abs(after - before[:, order]).max() >= 1e-1


@settings(max_examples=50)
@given(st.sampled_from(MASKED), SEEDS, LARGEST)
def test_what_stands_in_the_padding_changes_nothing(place: Place, seed: int, largest: float) -> None:
    random, (q, k, v), cotangent, facts = masked_case(seed, largest, place.shape, place.facts)
    spec = AttentionSpec(backend=place.backend)
    before = attention(spec, facts, (q, k, v), cotangent)
    key_padding = np.arange(place.shape.keys) >= facts["key_lengths"][:, None]
    k[key_padding] = 1e15 * random.uniform(-1, 1, k[key_padding].shape)
    v[key_padding] = 1e30 * random.uniform(-1, 1, v[key_padding].shape)
    if "query_lengths" in facts:
        query_padding = np.arange(place.shape.queries) >= facts["query_lengths"][:, None]
        q[query_padding] = 1e15 * random.uniform(-1, 1, q[query_padding].shape)
    after = attention(spec, facts, (q, k, v), cotangent)
    for name in Found._fields:
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)


def position_parameters(random: np.random.Generator, shape: Shape, position: AttentionPosition) -> AttentionParameters:
    def normal(*size: int) -> jax.Array:
        return jax.device_put(random.normal(size=size).astype(np.float32))

    size = (shape.heads, shape.depth)
    match position:
        case AttentionPosition.T5:
            return AttentionParameters(position=T5(normal(8, shape.heads), max_distance=16))
        case AttentionPosition.SHAW:
            return AttentionParameters(position=Shaw(normal(5, shape.depth), normal(5, shape.value_depth)))
        case AttentionPosition.TRANSFORMER_XL:
            return AttentionParameters(position=TransformerXL(normal(4, *size), normal(*size), normal(*size)))
        case AttentionPosition.DISENTANGLED:
            return AttentionParameters(position=Disentangled(normal(8, *size), normal(8, *size)))
    return AttentionParameters()


DENSE = (AttentionPosition.SHAW, AttentionPosition.TRANSFORMER_XL, AttentionPosition.DISENTANGLED)
PACKED = [
    (position, Backend.EINSUM if position in DENSE else turn(BACKENDS, number))
    for number, position in enumerate(AttentionPosition)
]


@settings(max_examples=50)
@given(st.sampled_from(PACKED), SEEDS, LARGEST)
def test_a_packed_segment_gives_what_it_gives_alone(
    choice: tuple[AttentionPosition, Backend], seed: int, largest: float
) -> None:
    position, backend = choice
    random, number = np.random.default_rng(seed), list(AttentionPosition).index(position)
    shape = Shape(2, 9, 9, 4, 2, 4, 4)
    qkv, _ = random_arrays(random, shape, largest)
    spec = AttentionSpec(backend=backend, position=position)
    params = position_parameters(random, shape, position)
    static = {"causal": True} if number % 2 else {}
    edges_Bx1x2 = random.integers(0, shape.keys, (shape.batch, 1, 2), endpoint=True)
    segment_BxK = np.sum(np.arange(shape.keys)[:, None] >= edges_Bx1x2, axis=-1, dtype=np.int32)
    whole = {"key_lengths": np.full(shape.batch, shape.keys, np.int32)}
    packed = output_of(spec, static | whole | {"segments": (segment_BxK, segment_BxK)}, qkv, params)
    one_BxK = np.zeros_like(segment_BxK)
    for segment in range(3):
        # Alone: moved to the front, all else padding.
        here_BxK = segment_BxK == segment
        order_BxKx1x1 = np.argsort(~here_BxK, axis=1, kind="stable")[..., None, None]
        front_BxK = np.take_along_axis(here_BxK, order_BxKx1x1[..., 0, 0], axis=1)
        moved = [np.take_along_axis(x, order_BxKx1x1, axis=1) for x in (*qkv, packed)]
        lengths = {"key_lengths": here_BxK.sum(axis=1, dtype=np.int32)}
        alone = output_of(spec, static | lengths | {"segments": (one_BxK, one_BxK)}, moved[:3], params)
        # The same angle of a rotation is another difference of two rounded angles here.
        close(alone[front_BxK], moved[3][front_BxK], 1e-5 * max(1, largest))


@settings(max_examples=50)
@given(st.sampled_from(MASKED), SEEDS, LARGEST)
def test_a_row_that_sees_nothing_is_exactly_zero(place: Place, seed: int, largest: float) -> None:
    _, qkv, cotangent, facts = masked_case(seed, largest, place.shape, place.facts)
    if seen_keys(facts, place.shape).any(axis=-1).all():
        facts["key_lengths"][0] = 0
    unseen_BxHxQ = ~seen_keys(facts, place.shape).any(axis=-1)
    unseen_BxQxH = np.moveaxis(unseen_BxHxQ, 1, 2)
    spec = AttentionSpec(backend=place.backend)
    found = attention(spec, facts, qkv, cotangent)
    assert all(np.isfinite(part).all() for part in found)
    assert not found.output[unseen_BxQxH].any()
    assert not found.weights[unseen_BxHxQ].any()
    close(found.weights.sum(axis=-1), ~unseen_BxHxQ, 1e-5)
    assert not found.of_q[unseen_BxQxH].any()
    from_these = attention(spec, facts, qkv, np.where(unseen_BxQxH[..., None], cotangent, 0))
    assert not any(gradient.any() for gradient in from_these[2:])


ROWS = MASKED + [Place(4 + number, Backend.EINSUM, one) for number, one in enumerate(NORMALIZERS)]


@settings(max_examples=50)
@given(st.sampled_from(ROWS), SEEDS, LARGEST)
def test_rows_sum_to_one_and_do_not_feel_a_constant(place: Place, seed: int, largest: float) -> None:
    random, shape = np.random.default_rng(seed), place.shape
    (q, k, v), bias = exact_arrays(random, shape, largest)
    facts = random_facts(random, shape, place.facts)
    # A row that is not softmax's has edges, from which no logit may be moved by rounding.
    score = Score.SCALED_DOT if place.normalizer is Normalizer.SOFTMAX else Score.DOT
    spec = AttentionSpec(score, place.normalizer, backend=place.backend)
    key = jax.random.key(seed) if place.normalizer is Normalizer.STRAIGHT_THROUGH else None
    constant_BxHxQx1 = random.integers(-56, 57, bias[..., :1].shape).astype(np.float32)
    cotangent = np.zeros((*q.shape[:3], v.shape[-1]), np.float32)
    found, moved = (attention(spec, facts, (q, k, v), cotangent, one, key) for one in (bias, bias + constant_BxHxQx1))
    seen = seen_keys(facts, shape)
    for weights in (found.weights, moved.weights):
        close(weights.sum(axis=-1), seen.any(axis=-1), 1e-5)
        assert (weights >= 0).all()
        assert not weights[~seen].any()
        if place.normalizer in SAMPLING_NORMALIZERS:
            np.testing.assert_array_equal((weights != 0).sum(axis=-1), seen.any(axis=-1))
    # A draw near a tie may fall on the other side, since its noise is rounded in the sum.
    if key is None:
        tolerance = 1e-6 * max(1, np.abs(products(q, k) + bias + constant_BxHxQx1).max())
        close(moved.weights, found.weights, tolerance)
        close(moved.output, found.output, tolerance)


@settings(max_examples=50)
@given(st.sampled_from([place for place in MASKED if place.backend is not Backend.EINSUM]), SEEDS, LARGEST)
def test_every_backend_gives_the_same(place: Place, seed: int, largest: float) -> None:
    _, qkv, cotangent, facts = masked_case(seed, largest, place.shape, place.facts)
    ours = attention(AttentionSpec(backend=place.backend), facts, qkv, cotangent)
    theirs = attention(AttentionSpec(backend=Backend.EINSUM), facts, qkv, cotangent)
    agree(ours, theirs, largest)


@functools.cache
def compiled_blocks(causal: bool, window: tuple[int, int] | None, scaling: LogitScaling, block: int) -> Any:
    @jax.jit
    def run(q: Any, k: Any, v: Any, facts: Facts, cotangent: Any) -> Any:
        terms = LogitTerms(Mask(causal=causal, window=window, **facts))
        output, pull_back = jax.vjp(lambda q, k, v: attend_blockwise(q, k, v, terms, scaling, block)[0], q, k, v)
        return output, pull_back(cotangent)

    return run


# Six of the masks bring all five sizes.
@pytest.mark.slow
@settings(max_examples=50)
@given(st.integers(2, len(MASKS) - 1), SEEDS, LARGEST)
def test_the_size_of_the_blocks_changes_nothing(number: int, seed: int, largest: float) -> None:
    shape = SHAPES[number]
    _, qkv, cotangent, facts = masked_case(seed, largest, shape, MASKS[number])
    theirs = attention(AttentionSpec(backend=Backend.EINSUM), facts, qkv, cotangent)
    scaling = LogitScaling(scale=shape.depth**-0.5)
    run = compiled_blocks("causal" in facts, facts.get("window"), scaling, turn(BLOCKS, number))
    with jax.default_matmul_precision("highest"):
        output, gradients = jax.tree.map(np.asarray, run(*qkv, traced_facts(facts), cotangent))
    agree(Found(output, theirs.weights, *gradients), theirs, largest)
