"""Masks as facts against NumPy, one place at a time; and the windows of local attention."""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.attention import blockwise, kernels
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.capture import Capture
from transformer.attention.kernels import rows_with_visible_keys
from transformer.attention.masks import (
    MASK_FIELDS,
    Mask,
    dense_mask,
    local_monotonic,
    local_predictive,
    predicted_center,
    visible_keys,
    with_indexed_function,
)
from transformer.attention.normalizers import Reweighting
from transformer.attention.positions import Alibi, AttentionPosition

B, H, Q, K, D = 2, 3, 5, 6, 4
NEEDS = {"prefix": "causal", "center": "window"}


def leaves_out_fifths(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A rule of places as a caller writes it."""
    return (batch + 2 * head + 3 * query + 2 * key) % 5 < 3


def facts_of(names: Any, seed: int) -> dict[str, Any]:
    """Facts of these names and what they need, drawn so that most hide something and few hide everything."""
    random = np.random.default_rng(seed)
    drawn = {
        "causal": True,
        "window": [(2, 1), (0, 3), (3, 0), (1, 1), (9, 9)][random.integers(5)],
        "head_windows": (random.integers(0, 3, H), random.integers(0, 4, H)),
        "query_offset": random.integers(-3, 5, B),
        "query_lengths": random.integers(0, Q + 2, B),
        "key_lengths": random.integers(0, K + 2, B),
        "prefix": random.integers(0, K + 1, B),
        "segments": (random.integers(0, 3, (B, Q)), random.integers(0, 3, (B, K))),
        "order": (random.integers(0, 4, (B, Q)), random.integers(0, 4, (B, K))),
        # Quarters, so that no rounding decides what lies on the edge of a window.
        "center": random.integers(-4, 4 * K, (B, H, Q)) / 4,
        "allowed": random.random([random.choice([1, size]) for size in (B, H, Q, K)]) < 0.7,
    }
    drawn["function"] = leaves_out_fifths
    wanted = {*names, *(NEEDS[name] for name in names if name in NEEDS)}
    return {name: fact for name, fact in drawn.items() if name in wanted}


def mask_of(facts: dict[str, Any]) -> Mask:
    def as_array(fact: np.ndarray) -> jax.Array:
        return jax.device_put(fact.astype({"i": np.int32, "f": np.float32, "b": bool}[fact.dtype.kind]))

    static = {name: fact for name, fact in facts.items() if name in ("causal", "window", "function")}
    return Mask(**static, **{name: jax.tree.map(as_array, fact) for name, fact in facts.items() if name not in static})


def sees(facts: dict[str, Any], b: int, h: int, q: int, k: int) -> bool:
    """Whether query q of one head sees key k, from what each fact means."""
    position = q + (facts["query_offset"][b] if "query_offset" in facts else 0)
    if "causal" in facts and k > position and not ("prefix" in facts and k < facts["prefix"][b]):
        return False
    if "window" in facts:
        before, after = facts["window"]
        center = facts["center"][b, h, q] if "center" in facts else position
        if k < center - before or k > center + after:
            return False
    if "head_windows" in facts:
        before, after = (sizes[h] for sizes in facts["head_windows"])
        if k < position - before or k > position + after:
            return False
    if "query_lengths" in facts and q >= facts["query_lengths"][b]:
        return False
    if "key_lengths" in facts and k >= facts["key_lengths"][b]:
        return False
    if "segments" in facts and facts["segments"][0][b, q] != facts["segments"][1][b, k]:
        return False
    if "order" in facts and facts["order"][1][b, k] >= facts["order"][0][b, q]:
        return False
    if "function" in facts and (b + 2 * h + 3 * position + 2 * k) % 5 >= 3:
        return False
    return "allowed" not in facts or bool(np.broadcast_to(facts["allowed"], (B, H, Q, K))[b, h, q, k])


def expected(facts: dict[str, Any]) -> np.ndarray:
    """`sees` of every place, `B H Q K`."""
    return np.array([sees(facts, *place) for place in np.ndindex(B, H, Q, K)]).reshape(B, H, Q, K)


def whole(found: Any, *shape: int) -> np.ndarray:
    """What `visible_keys` says of a grid of this shape; None allows everything."""
    return np.ones(shape, bool) if found is None else np.broadcast_to(found, shape)


def check_grid_and_pairs(facts: dict[str, Any], seed: int) -> None:
    """On the whole grid, on some queries and keys in another order, and on keys that each query chose itself."""
    mask, answer, random = mask_of(facts), expected(facts), np.random.default_rng(seed)
    np.testing.assert_array_equal(whole(dense_mask(mask, Q, K, batch=B, heads=H), B, H, Q, K), answer)
    mask = with_indexed_function(mask, B, H)
    query, key = random.permutation(Q)[:4], random.permutation(K)[:3]
    found = visible_keys(mask, *jax.device_put((np.int32(query), np.int32(key[None, None]))))
    np.testing.assert_array_equal(whole(found, B, H, 4, 3), answer[:, :, query][..., key])
    key_BxQxN = random.integers(0, K, (B, 4, 2))
    found = visible_keys(mask, *jax.device_put((np.int32(query), np.int32(key_BxQxN))))
    chosen = np.take_along_axis(answer[:, :, query], np.broadcast_to(key_BxQxN[:, None], (B, H, 4, 2)), axis=3)
    np.testing.assert_array_equal(whole(found, B, H, 4, 2), chosen)


@pytest.mark.parametrize("name", MASK_FIELDS)
def test_each_fact_hides_what_it_says(name: str) -> None:
    hidden = 0
    for seed in range(5):
        facts = facts_of([name], seed)
        check_grid_and_pairs(facts, seed)
        hidden += np.sum(~expected(facts))
    # An offset alone hides nothing; any other fact that hid nothing here would not have been tested.
    assert (hidden > 0) == (name != "query_offset")


@settings(max_examples=40)
@given(st.sets(st.sampled_from(MASK_FIELDS), min_size=2), st.integers(0, 2**32 - 1))
def test_facts_together_hide_what_any_of_them_hides(names: set[str], seed: int) -> None:
    check_grid_and_pairs(facts_of(sorted(names), seed), seed)


def test_a_mask_without_facts_allows_everything() -> None:
    assert dense_mask(Mask(), Q, K) is None
    assert visible_keys(Mask(), *jax.device_put((np.arange(Q), np.arange(K)[None, None]))) is None
    assert rows_with_visible_keys(Mask(), Q, K) is None
    assert Mask().present_fields() == frozenset()


def test_facts_are_told_by_their_names() -> None:
    for name in MASK_FIELDS:
        assert mask_of(facts_of([name], 0)).present_fields() == {name} | ({NEEDS[name]} if name in NEEDS else set())
    assert mask_of(facts_of(MASK_FIELDS, 0)).present_fields() == set(MASK_FIELDS)
    # A fact that happens to hide nothing is still there.
    assert Mask(window=(0, 0), key_lengths=jax.device_put(np.full(B, K))).present_fields() == {"window", "key_lengths"}
    assert set(MASK_FIELDS) == {field.name for field in dataclasses.fields(Mask)}


def test_rows_that_see_are_those_with_any_key_in_the_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two blocks of keys, the second not full.
    monkeypatch.setattr(kernels, "BLOCK", 4)
    single = [[name] for name in MASK_FIELDS]
    pairs = [["causal", "query_offset"], ["window", "query_offset"], ["segments", "key_lengths"], ["allowed", "order"]]
    rows_of = jax.jit(lambda mask: rows_with_visible_keys(mask, Q, K))
    blind = 0
    for names, seed in itertools.product([*single, *pairs, MASK_FIELDS], range(2)):
        facts = facts_of(names, seed) | ({"window": (0, 1)} if "window" in names else {})
        found = rows_of(with_indexed_function(mask_of(facts), B, H))
        rows = expected(facts).any(-1)
        blind += np.sum(~rows)
        np.testing.assert_array_equal(whole(found, B, H, Q), rows, err_msg=str(facts))
    assert blind, "every row saw something, so nothing was tested"


def inputs(seed: int = 0) -> list[jax.Array]:
    normal = np.random.default_rng(seed).normal
    shapes = ((B, Q, H, D), (B, K, H, D), (B, K, H, D))
    return [jax.device_put(normal(size=shape).astype(np.float32)) for shape in shapes]


@jax.jit(static_argnames="spec")
def attention(q: Any, k: Any, v: Any, mask: Mask, spec: AttentionSpec) -> tuple[jax.Array, jax.Array]:
    """The output, and the weights that made it."""
    output, attended = attend(q, k, v, spec=spec, mask=mask, capture=Capture(("here",)))
    assert attended.captured is not None
    assert attended.captured.weights is not None
    return output, attended.captured.weights


def softmax_of(q: jax.Array, k: jax.Array, seen: np.ndarray) -> np.ndarray:
    """Scaled products through a softmax over the keys that are seen, in float64."""
    logits = np.einsum("bqhd,bkhd->bhqk", np.asarray(q, np.float64), np.asarray(k, np.float64)) / np.sqrt(D)
    powers = np.where(seen, np.exp(logits), 0)
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total > 0, total, 1)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA], ids=lambda one: one.value)
def test_local_monotonic_attention_is_zero_outside_its_window(backend: Backend) -> None:
    q, k, v = inputs()
    half_width = 1
    weights = np.asarray(attention(q, k, v, local_monotonic(half_width), AttentionSpec(backend=backend))[1])
    inside = np.abs(np.arange(K) - np.arange(Q)[:, None]) <= half_width
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(inside, weights.shape))
    np.testing.assert_allclose(weights, softmax_of(q, k, inside), rtol=0, atol=1e-6)


@pytest.mark.parametrize("reweighting", Reweighting, ids=lambda one: one.value)
def test_local_predictive_attention_is_zero_outside_its_window(reweighting: Reweighting) -> None:
    q, k, v = inputs()
    half_width = 2
    center = np.random.default_rng(1).uniform(0, K - 1, (B, H, Q)).astype(np.float32)
    mask = local_predictive(jax.device_put(center), half_width)
    output, weights = (np.asarray(x) for x in attention(q, k, v, mask, AttentionSpec(reweighting=reweighting)))
    distance = np.arange(K) - center.astype(np.float64)[..., None]
    inside = np.abs(distance) <= half_width
    np.testing.assert_array_equal(weights > 0, inside)
    assert not inside.all()
    wanted = softmax_of(q, k, inside)
    if reweighting is Reweighting.GAUSSIAN:
        wanted = wanted * np.exp(-(distance**2) / (2 * (half_width / 2) ** 2))
    np.testing.assert_allclose(weights, wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(output, np.einsum("bhqk,bkhd->bqhd", wanted, np.asarray(v)), rtol=0, atol=1e-5)


def test_a_window_as_wide_as_the_text_is_global_attention() -> None:
    q, k, v = inputs()
    everything = attention(q, k, v, Mask(), AttentionSpec())
    center = jax.device_put(np.random.default_rng(1).uniform(0, K - 1, (B, H, Q)).astype(np.float32))
    for mask in (local_monotonic(K), local_predictive(center, K)):
        for ours, theirs in zip(attention(q, k, v, mask, AttentionSpec()), everything, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_gaussian_of_a_lopsided_window_is_finite() -> None:
    """D is half of the window's width: 1.5 for (0, 3)."""
    q, k, v = inputs()
    center = np.full((B, H, Q), 2, np.float32)
    mask = Mask(window=(0, 3), center=jax.device_put(center))
    weights = attention(q, k, v, mask, AttentionSpec(reweighting=Reweighting.GAUSSIAN))[1]
    distance = np.arange(K) - 2
    inside = np.broadcast_to((distance >= 0) & (distance <= 3), (B, H, Q, K))
    wanted = softmax_of(q, k, inside) * np.exp(-(distance**2) / (2 * (1.5 / 2) ** 2))
    np.testing.assert_allclose(weights, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("reweighting", Reweighting, ids=lambda one: one.value)
def test_the_gradient_reaches_the_prediction_through_the_gaussian_alone(reweighting: Reweighting) -> None:
    q, k, v = inputs()
    normal = np.random.default_rng(2).normal
    parts = [normal(size=shape).astype(np.float32) for shape in ((H, D, 3), (H, 3))]
    lengths = jnp.asarray([K, K - 2], jnp.int32)

    @jax.jit
    @jax.grad
    def of_parts(parts: list[Any]) -> jax.Array:
        mask = local_predictive(predicted_center(q, *parts, lengths), 2)
        mask = dataclasses.replace(mask, key_lengths=lengths)
        return jnp.sum(jnp.sin(attend(q, k, v, spec=AttentionSpec(reweighting=reweighting), mask=mask)[0]))

    for gradient in map(np.asarray, of_parts(parts)):
        assert np.isfinite(gradient).all()
        assert np.any(gradient, axis=tuple(range(1, gradient.ndim))).all() == (reweighting is Reweighting.GAUSSIAN)
        assert np.any(gradient) == (reweighting is Reweighting.GAUSSIAN)


@pytest.mark.parametrize("spread", [0.1, 1, 100])
def test_a_predicted_center_is_the_equations_and_lies_on_the_text(spread: float) -> None:
    """p_t = (S - 1) sigmoid(v_p' tanh(W_p h_t)): positions count from 0."""
    normal = np.random.default_rng(3).normal
    q, weight, score = (spread * normal(size=shape) for shape in ((B, Q, H, D), (H, D, 3), (H, 3)))
    lengths = np.array([K, 1])
    found = np.asarray(jax.jit(predicted_center)(*(x.astype(np.float32) for x in (q, weight, score)), lengths))
    wanted = np.zeros((B, H, Q))
    for b, h, i in np.ndindex(B, H, Q):
        inner = sum(score[h, a] * math.tanh(q[b, i, h] @ weight[h, :, a]) for a in range(3))
        wanted[b, h, i] = (lengths[b] - 1) / (1 + math.exp(-inner))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    assert np.min(found) >= 0
    assert (np.asarray(found) <= lengths[:, None, None] - 1).all()


def test_a_center_that_is_predicted_in_bfloat16_is_no_whole_number_beyond_256() -> None:
    """bfloat16 has 8 bits: between 512 and 1024 every fourth number."""
    places, one = np.linspace(-3, 3, 50).astype(jnp.bfloat16), np.ones((1, 1, 1), jnp.bfloat16)
    found = np.asarray(jax.jit(predicted_center)(places[None, :, None, None], one, one[0], np.array([1001])))
    hidden = np.tanh(np.float64(places)).astype(jnp.bfloat16).astype(np.float64)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[0, 0], 1000 / (1 + np.exp(-hidden)), rtol=0, atol=1e-3)


@dataclasses.dataclass(frozen=True)
class Document:
    """Keys of the query's own text of `size` tokens, up to its own."""

    size: int

    def __call__(self, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (query // self.size == key // self.size) & (key <= query)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE])
def test_a_function_hides_what_it_says_in_every_program(backend: Backend) -> None:
    """Output and gradients are those of the same mask said by segments, whose programs share no rule with it."""
    q, k, v = inputs()
    k, v = (np.asarray(x)[:, :Q] for x in (k, v))
    numbers = jax.device_put(np.broadcast_to(np.arange(Q, dtype=np.int32)[None] // 3, (B, Q)))
    spec = AttentionSpec(backend=backend)

    def loss(q: Any, k: Any, v: Any, mask: Mask) -> jax.Array:
        return jnp.sum(attend(q, k, v, spec=spec, mask=mask)[0] ** 2)

    by_function, by_segments = (
        jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v, mask)
        for mask in (Mask(function=Document(3)), Mask(causal=True, segments=(numbers, numbers)))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), by_function, by_segments)


TEXTS = jax.device_put(np.arange(3 * blockwise.BLOCK, dtype=np.int32)[None] // blockwise.BLOCK)


@pytest.mark.parametrize(
    "mask",
    [Mask(function=Document(blockwise.BLOCK)), Mask(segments=(TEXTS, TEXTS))],
    ids=["function", "segments"],
)
def test_blocks_that_are_hidden_whole_are_not_computed(mask: Mask) -> None:
    """Their products would be NaN: keys of another text are infinite here, and no weight of 0 could undo that."""
    length = 3 * blockwise.BLOCK
    q, k, v = (np.ones((1, length, 1, 8), np.float32) for _ in range(3))
    k[:, blockwise.BLOCK :] = np.inf
    spec = AttentionSpec(backend=Backend.BLOCKWISE)

    def loss(q: Any, k: Any, v: Any) -> jax.Array:
        return jnp.sum(attend(q, k, v, spec=spec, mask=mask)[0][:, : blockwise.BLOCK])

    value, slope = jax.jit(jax.value_and_grad(loss))(q, k, v)
    assert np.isfinite(value)
    assert np.isfinite(np.asarray(slope)[:, : blockwise.BLOCK]).all()


def differs_by_head(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """Only the second head of three sees the keys of the last third, and of these only the second example."""
    return (key // 4 == query // 4) & (key < 8) | (head == 1) & (batch == 1) & (key > 9) & (query < 4)


def hidden_from_blocks() -> dict[str, Mask]:
    lengths, texts = np.int32([12, 5]), np.int32([[0] * 6 + [1] * 6, [0] * 4 + [1] * 8])
    allowed = np.zeros((2, 1, 12, 12), bool)
    allowed[1, 0, 2, 7] = allowed[0, 0, 11, 0] = True
    return {
        "causal": Mask(causal=True),
        "window": Mask(window=(2, 1)),
        "causal window": Mask(causal=True, window=(3, 0)),
        "segments": Mask(segments=(jax.device_put(texts), jax.device_put(texts))),
        "lengths and causal": Mask(causal=True, key_lengths=jax.device_put(lengths - 5)),
        "prefix": Mask(causal=True, prefix=jax.device_put(lengths - 5)),
        "allowed": Mask(allowed=jax.device_put(allowed)),
        "function": Mask(function=differs_by_head),
        "function and window": Mask(function=differs_by_head, window=(12, 1)),
    }


@pytest.mark.parametrize("name", hidden_from_blocks())
def test_a_block_is_left_out_where_none_of_its_queries_sees_a_key(name: str) -> None:
    mask = with_indexed_function(hidden_from_blocks()[name], 2, 3)
    seen = whole(dense_mask(mask, 12, 12), 2, 3, 12, 12).any((0, 1))
    left_out = 0
    for query, key in itertools.product(np.arange(12).reshape(-1, 4), np.arange(12).reshape(-1, 3)):
        found = blockwise.any_key_visible(mask, *jax.device_put((np.int32(query), np.int32(key))))
        assert bool(found) == seen[np.ix_(query, key)].any()
        left_out += not found
    assert left_out


def test_a_window_of_nothing_but_the_query_itself_gives_its_value() -> None:
    q, k, v = inputs()
    for backend in (Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA):
        output = np.asarray(attention(q, k, v, Mask(window=(0, 0)), AttentionSpec(backend=backend))[0])
        shared = min(Q, K)
        np.testing.assert_allclose(output[:, :shared], np.asarray(v)[:, :shared], rtol=1e-6)


@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE])
def test_alibi_takes_slopes_of_ones_own(backend: Backend) -> None:
    q, k, v = inputs()
    slopes = np.float32([0.3, 1.7, 0.01, 2.0][:H])
    spec = AttentionSpec(position=AttentionPosition.ALIBI, backend=backend)

    @jax.jit
    def with_slopes(slopes_H: jax.Array) -> jax.Array:
        return attend(q, k, v, spec=spec, params=AttentionParameters(position=Alibi(slopes_H)))[0]

    output = with_slopes(slopes)
    distance = np.abs(np.arange(Q)[:, None] - np.arange(K))
    logits = np.einsum("bqhd,bkhd->bhqk", np.asarray(q, np.float64), np.asarray(k, np.float64)) / np.sqrt(D)
    weights = np.exp(logits - slopes[:, None, None] * distance)
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(output, np.einsum("bhqk,bkhd->bqhd", weights, v), rtol=2e-5, atol=2e-6)
    with pytest.raises(ValueError, match=r"slopes_H has shape \(1,\)"):
        with_slopes(slopes[:1])
