"""Attention by JAX's own kernels against NumPy float64: splash interpreted, XLA; of cuDNN, what it is told."""

import dataclasses
import re
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention

from transformer.attention import backends, kernels
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.backends import AttentionVariant, CallShape, choose_backend
from transformer.attention.blockwise import LogitScaling, LogitTerms
from transformer.attention.capture import Capture
from transformer.attention.indexed_function import index_function
from transformer.attention.logit_modification import Softcap
from transformer.attention.masks import Mask
from transformer.attention.positions import T5, AttentionPosition

STATIC = ("causal", "window")
OF_EXAMPLES = ("query_offset", "query_lengths", "key_lengths", "prefix")


class Shape(NamedTuple):
    """The sizes of one attention; `depth` of keys, `values` of values, `groups` heads of both."""

    queries: int
    keys: int
    depth: int = 64
    values: int = 64
    heads: int = 4
    groups: int = 2
    batch: int = 2


class Answer(NamedTuple):
    """Everything about one attention in float64; `gradients` of q, k and v."""

    logits: np.ndarray
    weights: np.ndarray
    output: np.ndarray
    log_sum: np.ndarray
    gradients: tuple[np.ndarray, np.ndarray, np.ndarray]


def arrays(shape: Shape, dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:
    """Random q, k, v and the cotangent of the output."""
    normal = np.random.default_rng(seed).normal
    queries, keys = (shape.batch, shape.queries, shape.heads), (shape.batch, shape.keys, shape.groups)
    sizes = ((*queries, shape.depth), (*keys, shape.depth), (*keys, shape.values), (*queries, shape.values))
    return [normal(size=size).astype(dtype) for size in sizes]


def seen_by(facts: dict[str, Any], shape: Shape) -> np.ndarray:
    """Which key each query of each head may see, `B H Q K`, from the facts' definitions."""
    seen = np.ones((shape.batch, shape.heads, shape.queries, shape.keys), bool)
    query, key = np.arange(shape.queries)[:, None], np.arange(shape.keys)[None]
    by_example = {name: np.reshape(fact, (-1, 1, 1, 1)) for name, fact in facts.items() if name in OF_EXAMPLES}
    position = query + by_example.get("query_offset", 0)
    if facts.get("causal", False):
        seen &= (key <= position) | (key < by_example.get("prefix", 0))
    if facts.get("window") is not None:
        before, after = facts["window"]
        center = facts["center"][..., None] if "center" in facts else position
        seen &= (center - before <= key) & (key <= center + after)
    seen &= query < by_example.get("query_lengths", shape.queries)
    seen &= key < by_example.get("key_lengths", shape.keys)
    if "segments" in facts:
        of_query, of_key = facts["segments"]
        seen &= (of_query[:, :, None] == of_key[:, None])[:, None]
    if "order" in facts:
        of_query, of_key = facts["order"]
        seen &= (of_key[:, None] < of_query[:, :, None])[:, None]
    return seen & facts.get("allowed", True)


def expected(
    inputs: list[np.ndarray], seen: np.ndarray, *, scale: float | None = None, bias: Any = 0, temperature: float = 1
) -> Answer:
    """softmax((q k^T scale + bias) / temperature) v over the seen keys, and its gradients by hand.

    dV = W^T dO, dW = dO V^T, dS = W (dW - rowsum(W dW)), dQ = dS K, dK = dS^T Q.
    """
    q, k, v, d_output = (np.moveaxis(np.asarray(x, np.float64), 1, 2) for x in inputs)
    share = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, share, axis=1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    logits = (q @ k.mT * scale + bias) / temperature
    hidden = np.where(seen, logits, -np.inf)
    some = seen.any(-1, keepdims=True)
    largest = np.where(some, hidden.max(-1, keepdims=True), 0)
    powers = np.exp(hidden - largest)
    total = powers.sum(-1, keepdims=True)
    weights = powers / np.where(some, total, 1)
    log_sum = np.where(some, np.log(np.where(some, total, 1)) + largest, -np.inf)[..., 0]
    d_weights = d_output @ v.mT
    d_logits = weights * (d_weights - np.sum(weights * d_weights, axis=-1, keepdims=True)) * scale / temperature
    by_head = (d_logits.mT @ q, weights.mT @ d_output)
    d_k, d_v = (x.reshape(x.shape[0], -1, share, *x.shape[2:]).sum(2) for x in by_head)
    output, d_q, d_k, d_v = (np.moveaxis(x, 1, 2) for x in (weights @ v, d_logits @ k, d_k, d_v))
    return Answer(logits, weights, output, log_sum, (d_q, d_k, d_v))


def mask_of(facts: dict[str, Any]) -> Mask:
    traced = {name: jax.device_put(fact) for name, fact in facts.items() if name not in STATIC}
    return Mask(**{name: facts[name] for name in STATIC if name in facts}, **traced)


@jax.jit
def by_splash(q: Any, k: Any, v: Any, cotangent: Any, mask: Mask) -> tuple[Any, Any, Any]:
    """Output, log-sum-exp and gradients of the interpreted kernel."""
    scale = q.shape[-1] ** -0.5
    output, pull_back = jax.vjp(lambda q, k, v: kernels.splash_attention(q, k, v, mask, scale, interpret=True), q, k, v)
    return output, kernels.splash_log_sum(q, k, v, mask, scale, interpret=True), pull_back(cotangent)


@jax.jit(static_argnames=("position", "temperature"))
def by_xla(
    q: Any,
    k: Any,
    v: Any,
    cotangent: Any,
    mask: Mask,
    bias: Any,
    table: Any,
    position: AttentionPosition,
    temperature: float,
) -> tuple[Any, Any]:
    """Output and gradients of attend() on XLA's attention."""
    spec = AttentionSpec(backend=Backend.XLA, position=position, temperature=temperature)
    params = AttentionParameters(position=None if table is None else T5(table))
    output, pull_back = jax.vjp(
        lambda q, k, v: attend(q, k, v, spec=spec, mask=mask, bias=bias, params=params)[0], q, k, v
    )
    return output, pull_back(cotangent)


def assert_gradients_are(gradients: Any, answer: Answer, seen: np.ndarray) -> None:
    """As the oracle's, and exactly zero for every query that sees nothing and every key that nobody sees."""
    for ours, theirs in zip(gradients, answer.gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-5 * np.abs(theirs).max())
    blind_BxQxH = np.moveaxis(~seen.any(-1), 1, 2)
    # A key head is hidden where it is from all of the query heads that it serves.
    batch, heads, _, keys = seen.shape
    groups = gradients[1].shape[2]
    hidden_BxKxG = np.moveaxis(~seen.reshape(batch, groups, heads // groups, -1, keys).any((2, 3)), 1, 2)
    assert not np.asarray(gradients[0])[blind_BxQxH].any()
    assert not np.asarray(gradients[1])[hidden_BxKxG].any()
    assert not np.asarray(gradients[2])[hidden_BxKxG].any()


# Three blocks of 128 a side: a first, a last, and one between them.
LONG = Shape(384, 384)
ENDS = np.random.default_rng(3).integers(1, 4, (2, 384)).cumsum(axis=1) // 240
SPLASH_FACTS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": (70, 3)},
    # The whole second example is padding, once of queries and once of keys.
    "lengths": {"query_lengths": np.int32([345, 384]), "key_lengths": np.int32([130, 0])},
    "segments": {"segments": (ENDS.astype(np.int32), np.roll(ENDS, 9, axis=1).astype(np.int32))},
}
PAIRS = ("causal window", "causal lengths", "causal segments", "window lengths", "window segments", "lengths segments")
SPLASH_CASES: dict[str, tuple[Shape, dict[str, Any]]] = {
    "none_filled_up": (Shape(256, 640, depth=80, values=160), {}),
    "window_beyond_the_keys": (Shape(640, 128, depth=80, values=48, groups=4), {"window": (5, 0)}),
    **{name: (LONG, facts) for name, facts in SPLASH_FACTS.items()},
    **{
        pair.replace(" ", "_"): (LONG._replace(groups=1), SPLASH_FACTS[pair.split()[0]] | SPLASH_FACTS[pair.split()[1]])
        for pair in PAIRS
    },
}
# Between them two sizes of heads and two kinds of masks; some cells of test_backend_support.py have the others.
QUICK = ("lengths_segments",)


@pytest.mark.parametrize(
    ("shape", "facts"),
    [
        pytest.param(*case, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name, case in SPLASH_CASES.items()
    ],
)
def test_splash_has_the_oracles_values_log_sums_and_gradients(shape: Shape, facts: dict[str, Any]) -> None:
    inputs = arrays(shape)
    seen = seen_by(facts, shape)
    output, log_sum, gradients = by_splash(*inputs, mask_of(facts))
    answer = expected(inputs, seen)
    tolerance = 1e-6 * max(1, np.abs(answer.logits).max())
    np.testing.assert_allclose(output, answer.output, rtol=0, atol=tolerance)
    np.testing.assert_allclose(log_sum, answer.log_sum, rtol=0, atol=tolerance)
    assert_gradients_are(gradients, answer, seen)
    assert not np.asarray(output)[np.moveaxis(~seen.any(-1), 1, 2)].any()


@pytest.mark.parametrize(("causal", "after"), [(True, 0), (False, 3)], ids=["causal", "both ways"])
def test_splash_is_told_how_far_a_query_sees(causal: bool, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    local, windows = splash_attention.LocalMask, []

    def record(shape: Any, window: Any, offset: int) -> Any:
        windows.append(window)
        return local(shape, window, offset)

    monkeypatch.setattr(splash_attention, "LocalMask", record)
    kernels.splash_kernel(Mask(causal=causal, window=(70, 3)), 256, 256, 1, interpret=True)
    assert windows == [(70, after)]


def test_splash_is_told_the_cap_of_logits_that_a_temperature_has_divided() -> None:
    cap, temperature, logits = 30.0, 0.5, np.linspace(-80, 80, 9)
    softcap = kernels.find_softcap(
        LogitTerms(Mask(), modification=index_function(Softcap(cap), 1, 1)), LogitScaling(1.0, temperature)
    )
    capped = softcap * np.tanh(logits / temperature / softcap)
    np.testing.assert_allclose(capped, cap * np.tanh(logits / cap) / temperature, rtol=1e-12)


def test_most_cases_of_splash_have_queries_that_see_nothing() -> None:
    blind = {name for name, (shape, facts) in SPLASH_CASES.items() if not seen_by(facts, shape).any(-1).all()}
    assert blind == {
        *("window_beyond_the_keys", "lengths", "causal_lengths", "causal_segments", "window_lengths"),
        *("window_segments", "lengths_segments"),
    }


def test_splash_lets_nothing_through_from_a_hidden_key() -> None:
    # The case whose program is compiled above.
    shape, facts = SPLASH_CASES[QUICK[0]]
    facts = facts | {"key_lengths": np.int32([130, 300])}
    inputs = arrays(shape)
    seen = seen_by(facts, shape)
    hidden_BxK = ~seen.any((1, 2))
    assert hidden_BxK.any()
    output, log_sum, gradients = by_splash(*inputs, mask_of(facts))
    inputs[1][hidden_BxK], inputs[2][hidden_BxK] = 3e38, -1e30
    for ours, before in zip(
        jax.tree.leaves(by_splash(*inputs, mask_of(facts))), jax.tree.leaves((output, log_sum, gradients)), strict=True
    ):
        np.testing.assert_array_equal(ours, before)


@pytest.mark.slow
def test_splash_is_exact_to_a_hundredth_in_bfloat16() -> None:
    shape, facts = LONG._replace(depth=80, values=80), SPLASH_FACTS["causal"] | SPLASH_FACTS["lengths"]
    inputs = arrays(shape, jnp.bfloat16)
    output, log_sum, gradients = by_splash(*inputs, mask_of(facts))
    rounded = [np.asarray(x, np.float32) for x in inputs]
    answer = expected(rounded, seen_by(facts, shape))
    assert {x.dtype for x in (output, *gradients)} == {np.dtype(jnp.bfloat16)}
    np.testing.assert_allclose(output.astype(np.float32), answer.output, rtol=0, atol=1e-2 * np.abs(rounded[2]).max())
    for ours, theirs in zip(gradients, answer.gradients, strict=True):
        np.testing.assert_allclose(ours.astype(np.float32), theirs, rtol=0, atol=1e-1 * np.abs(theirs).max())
    # Not the kernel's own: 1 / sqrt(80) rounds its queries.
    assert log_sum.dtype == np.float32
    np.testing.assert_allclose(log_sum, answer.log_sum, rtol=0, atol=1e-6 * np.abs(answer.logits).max())


@pytest.mark.parametrize(("dtype", "depth"), [("float32", 80), ("bfloat16", 64), ("bfloat16", 80)])
def test_maps_beside_splash_are_the_oracles_and_sum_to_one(dtype: str, depth: int) -> None:
    shape = Shape(128, 128, depth=depth, values=depth)
    q, k, v, cotangent = arrays(shape, jnp.dtype(dtype))
    capture = Capture(("here",), rows=(0, 5, 100, 127))
    spec = AttentionSpec(backend=Backend.SPLASH)
    found = jax.jit(lambda *qkv: attend(*qkv, spec=spec, mask=Mask(causal=True), capture=capture)[1].captured)(q, k, v)
    rounded = [np.asarray(x, np.float32) for x in (q, k, v, cotangent)]
    weights = expected(rounded, seen_by({"causal": True}, shape)).weights[:, :, capture.rows]
    np.testing.assert_allclose(found.weights, weights, rtol=0, atol=1e-6 if dtype == "float32" else 1e-3)
    np.testing.assert_allclose(np.asarray(found.weights).sum(-1), 1, rtol=0, atol=1e-5)


SMALL = Shape(5, 7, depth=4, values=4)
NORMAL = np.random.default_rng(9).normal
XLA_CASES: dict[str, dict[str, Any]] = {
    "lengths": {"causal": True, "query_lengths": np.int32([5, 2]), "key_lengths": np.int32([0, 7])},
    "window": {"window": (1, 2)},
    "offset": {"causal": True, "query_offset": np.int32([2, -3])},
    "prefix": {"causal": True, "prefix": np.int32([3, 0]), "key_lengths": np.int32([7, 4])},
    "segments": {"segments": (np.int32([[0, 0, 1, 1, 2]] * 2), np.int32([[0, 0, 0, 1, 1, 1, 1]] * 2))},
    "order": {"order": (np.int32([[0, 1, 2, 3, 4]] * 2), np.int32([[4, 2, 0, 6, 1, 3, 5]] * 2))},
    "center": {"window": (1, 1), "center": np.float32(NORMAL(size=(2, 4, 5)) * 3 + 3)},
    "allowed": {"allowed": np.random.default_rng(1).random((2, 4, 5, 7)) < 0.4},
}


@pytest.mark.parametrize(
    ("facts", "biased"),
    [
        *(pytest.param(XLA_CASES[name], False, id=name) for name in ("lengths", "window", "order")),
        *(
            pytest.param(facts, True, id=f"{name}_and_bias", marks=pytest.mark.slow if number % 2 else ())
            for number, (name, facts) in enumerate(XLA_CASES.items())
        ),
    ],
)
def test_xla_has_the_oracles_values_and_gradients(facts: dict[str, Any], biased: bool) -> None:
    inputs = arrays(SMALL)
    seen = seen_by(facts, SMALL)
    bias = NORMAL(size=(2, 1, 5, 7)).astype(np.float32) if biased else None
    position, temperature = (AttentionPosition.ALIBI, 0.7) if biased else (AttentionPosition.NONE, 1.0)
    with jax.default_matmul_precision("highest"):
        output, gradients = by_xla(*inputs, mask_of(facts), bias, None, position, temperature)
    total: Any = 0
    if bias is not None:
        distance = np.arange(7) - np.arange(5)[:, None] - np.reshape(facts.get("query_offset", 0), (-1, 1, 1, 1))
        total = bias - np.reshape(2.0 ** (-8 / 4 * np.arange(1, 5)), (4, 1, 1)) * np.abs(distance)
    answer = expected(inputs, seen, bias=total, temperature=temperature)
    tolerance = 1e-6 * max(1, np.abs(answer.logits).max())
    np.testing.assert_allclose(output, answer.output, rtol=0, atol=tolerance)
    assert_gradients_are(gradients, answer, seen)
    assert not np.asarray(output)[np.moveaxis(~seen.any(-1), 1, 2)].any()


def test_xla_takes_t5s_table_as_a_bias() -> None:
    inputs = arrays(SMALL)
    table = NORMAL(size=(32, 4)).astype(np.float32)
    distance = np.arange(7) - np.arange(5)[:, None]
    # So near, every distance has a bucket of its own; those of keys behind the query start at 16.
    bucket = np.where(distance > 0, 16, 0) + np.abs(distance)
    output, gradients = by_xla(*inputs, Mask(), None, table, AttentionPosition.T5, 1.0)
    answer = expected(inputs, seen_by({}, SMALL), bias=np.moveaxis(table[bucket], -1, 0))
    np.testing.assert_allclose(output, answer.output, rtol=0, atol=1e-6 * np.abs(answer.logits).max())
    assert_gradients_are(gradients, answer, seen_by({}, SMALL))


CUDNN_SHAPE = Shape(256, 256)
LENGTHS = np.int32([256, 100])
CUDNN_CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    # Facts; the kind of mask that cuDNN is told; its window, which counts the query's own key (0 is none).
    "none": ({}, "NO_MASK", 0),
    "causal": ({"causal": True}, "CAUSAL", 0),
    "causal_window": ({"causal": True, "window": (7, 0)}, "CAUSAL", 8),
    "causal_window_both_ways": ({"causal": True, "window": (7, 3)}, "CAUSAL", 8),
    "key_lengths": ({"key_lengths": LENGTHS}, "PADDING", 0),
    "query_lengths": ({"query_lengths": LENGTHS}, "PADDING", 0),
    "causal_lengths": ({"causal": True, "query_lengths": LENGTHS, "key_lengths": LENGTHS}, "PADDING_CAUSAL", 0),
    "all": ({"causal": True, "window": (7, 3), "key_lengths": LENGTHS}, "PADDING_CAUSAL", 8),
}


def by_cudnn(q: Any, k: Any, v: Any, mask: Mask) -> jax.Array:
    scaling = LogitScaling(scale=0.125, temperature=0.5)
    return kernels.dot_product_attention(q, k, v, LogitTerms(mask), scaling, Backend.CUDNN)


@pytest.mark.parametrize("facts", [facts for facts, _, _ in CUDNN_CASES.values()], ids=CUDNN_CASES)
def test_cudnn_is_called_with_the_facts_and_no_dense_array(facts: dict[str, Any], monkeypatch: Any) -> None:
    calls = []

    def record(q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None, **told: Any) -> Any:
        calls.append((bias, mask, told))
        return jnp.ones_like(q)

    monkeypatch.setattr(jax.nn, "dot_product_attention", record)

    @jax.jit
    def output_and_lengths(q: Any, k: Any, v: Any, mask: Mask) -> tuple[jax.Array, tuple[Any, Any]]:
        output = by_cudnn(q, k, v, mask)
        ((_, _, told),) = calls
        return output, (told["query_seq_lengths"], told["key_value_seq_lengths"])

    output, (query_lengths, key_lengths) = output_and_lengths(*arrays(CUDNN_SHAPE, jnp.bfloat16)[:3], mask_of(facts))
    ((bias, mask, told),) = calls
    assert bias is None
    assert mask is None
    assert told["implementation"] == "cudnn"
    assert told["scale"] == 0.25
    assert told["is_causal"] == facts.get("causal", False)
    window = told["local_window_size"]
    assert (window and window[0]) == facts.get("window", (None,))[0]
    for name, given in (("query_lengths", query_lengths), ("key_lengths", key_lengths)):
        assert (given is None) == (name not in facts)
        assert given is None or (given.dtype == np.int32 and (np.asarray(given) == facts[name]).all())
    # Padded queries are zero whatever the kernel leaves there.
    rows = seen_by(facts, CUDNN_SHAPE).any(-1)
    np.testing.assert_array_equal(np.asarray(output, np.float32)[..., 0], np.moveaxis(rows, 1, 2))


@pytest.mark.parametrize(("facts", "kind", "window"), CUDNN_CASES.values(), ids=CUDNN_CASES)
def test_cudnn_lowers_for_a_gpu_with_its_gradient(
    facts: dict[str, Any], kind: str, window: int, monkeypatch: Any
) -> None:
    from jax._src.cudnn import fused_attention_stablehlo as fused

    # Which version is installed is all that lowering asks of the machine.
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91300)
    inputs = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in arrays(CUDNN_SHAPE)[:3]]

    def loss(q: Any, k: Any, v: Any) -> jax.Array:
        return jnp.sum(by_cudnn(q, k, v, mask_of(facts)).astype(jnp.float32))

    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    text = step.trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    # With a bias or a dense mask it would be ScaleBiasSoftmax.
    assert re.findall(r"custom_call @__cudnn\$(\w+)", text) == ["fmhaSoftmax", "fmhaSoftmaxBackward"]
    told = {name: set(re.findall(rf"{name}\\22: (?:\\22)?([\w.]+)", text)) for name in ("mask_type", "fmha_scale")}
    assert told == {"mask_type": {kind}, "fmha_scale": {"0.25"}}
    assert set(re.findall(r"sliding_window_length\\22: (\d+)", text)) == {str(window)}


@pytest.mark.parametrize("lengths", [(257, 257), (1, 33), (256, 33), (33, 256)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_cudnn_lowers_for_a_gpu_with_its_gradient_at_odd_lengths(
    lengths: tuple[int, int], causal: bool, monkeypatch: Any
) -> None:
    from jax._src.cudnn import fused_attention_stablehlo as fused

    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91300)
    inputs = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in arrays(Shape(*lengths))[:3]]

    def loss(q: Any, k: Any, v: Any) -> jax.Array:
        return jnp.sum(by_cudnn(q, k, v, Mask(causal=causal)).astype(jnp.float32))

    text = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    assert re.findall(r"custom_call @__cudnn\$(\w+)", text) == ["fmhaSoftmax", "fmhaSoftmaxBackward"]


ODD_CASES: dict[str, tuple[Shape, dict[str, Any]]] = {
    "both": (Shape(7, 7), {}),
    "causal": (Shape(7, 7), {"causal": True}),
    "causal_window": (Shape(9, 9), {"causal": True, "window": (2, 0)}),
    "causal_more_queries": (Shape(8, 5), {"causal": True}),
    "causal_more_keys": (Shape(5, 8), {"causal": True}),
    "queries": (Shape(5, 8), {"query_lengths": np.int32([5, 3])}),
    "keys": (Shape(8, 5), {"query_lengths": np.int32([8, 3])}),
    "lengths": (Shape(7, 5), {"causal": True, "query_lengths": np.int32([7, 4]), "key_lengths": np.int32([5, 0])}),
}


@pytest.mark.parametrize(("shape", "facts"), ODD_CASES.values(), ids=ODD_CASES)
def test_positions_that_cudnn_gets_to_make_lengths_even_change_nothing(
    shape: Shape, facts: dict[str, Any], monkeypatch: Any
) -> None:
    attention = jax.nn.dot_product_attention
    lengths = []

    def by_xla_instead(q: Any, k: Any, v: Any, *arrays: Any, **options: Any) -> Any:
        lengths.extend([q.shape[1], k.shape[1], v.shape[1]])
        return attention(q, k, v, *arrays, **{**options, "implementation": "xla"})

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla_instead)
    inputs = arrays(shape)

    @jax.jit
    def output_and_gradients(q: Any, k: Any, v: Any, cotangent: Any, mask: Mask) -> tuple[Any, Any]:
        output, pull_back = jax.vjp(lambda q, k, v: by_cudnn(q, k, v, mask), q, k, v)
        return output, pull_back(cotangent)

    output, gradients = output_and_gradients(*inputs, mask_of(facts))
    assert [length % 2 for length in lengths] == [0, 0, 0]
    seen = seen_by(facts, shape)
    answer = expected(inputs, seen, scale=0.125, temperature=0.5)
    np.testing.assert_allclose(output, answer.output, rtol=0, atol=1e-5)
    assert_gradients_are(gradients, answer, seen)


@pytest.mark.parametrize("given", [None, [9, 3]], ids=["none", "lengths"])
def test_queries_whose_window_lies_beyond_all_keys_are_padding_to_cudnn(
    given: list[int] | None, monkeypatch: Any
) -> None:
    attention = jax.nn.dot_product_attention
    lengths = []

    def by_xla_instead(*arrays: Any, **options: Any) -> Any:
        lengths.append(options["query_seq_lengths"])
        return attention(*arrays, **{**options, "implementation": "xla"})

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla_instead)
    shape, facts = Shape(12, 4), {"causal": True, "window": (2, 0)}
    facts |= {} if given is None else {"query_lengths": np.int32(given)}
    inputs = arrays(shape)

    @jax.jit
    def output_and_lengths(q: Any, k: Any, v: Any, mask: Mask) -> tuple[jax.Array, jax.Array]:
        return by_cudnn(q, k, v, mask), lengths[0]

    output, query_lengths = output_and_lengths(*inputs[:3], mask_of(facts))
    # The last key is seen from positions 3 to 5.
    np.testing.assert_array_equal(query_lengths, [6, 6] if given is None else [6, 3])
    answer = expected(inputs, seen_by(facts, shape), scale=0.125, temperature=0.5)
    np.testing.assert_allclose(output, answer.output, rtol=0, atol=1e-5)


GPU = CallShape("gpu", "bfloat16", batch=2, heads=4, queries=256, keys=256, depth=64, value_depth=64)
CUDNN = AttentionSpec(backend=Backend.CUDNN)


@pytest.mark.parametrize(
    ("facts", "position", "says"),
    [
        ("window segments", AttentionPosition.NONE, "mask.window without mask.causal"),
        ("causal prefix", AttentionPosition.NONE, "mask.prefix"),
        ("causal query_offset", AttentionPosition.NONE, "mask.query_offset"),
        ("order", AttentionPosition.NONE, "mask.order"),
        ("allowed", AttentionPosition.NONE, "mask.allowed"),
        ("causal window center", AttentionPosition.NONE, "mask.center"),
        ("window", AttentionPosition.NONE, "mask.window without mask.causal"),
        ("bias", AttentionPosition.NONE, "does not take bias"),
        ("", AttentionPosition.ALIBI, "position=alibi"),
        ("", AttentionPosition.T5, "position=t5"),
    ],
)
def test_cudnn_refuses_by_name_what_it_does_not_take(facts: str, position: AttentionPosition, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        choose_backend(CUDNN, AttentionVariant(position=position, features=frozenset(facts.split())), GPU)


@pytest.mark.parametrize(
    ("capability", "says"),
    [("8.0", "compute capability 9.0 (Hopper) and later"), ("9.0", None), ("10.0", None)],
)
def test_packed_rows_ask_the_gpu_that_is_compiled_for(
    capability: str, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = types.SimpleNamespace(platform="gpu", compute_capability=capability)
    monkeypatch.setattr(backends, "target_device", lambda: device)
    variant = AttentionVariant(features=frozenset({"causal", "segments"}))
    with backends.record_backend_choices() as choices:
        chosen = choose_backend(AttentionSpec(), variant, GPU)
        backends.log_backend_choice(chosen, variant, GPU)
    backends.log_backend_choice(chosen, variant, GPU)
    assert choices == [backends.BackendChoice(Backend.CUDNN if says is None else Backend.EINSUM, variant, GPU)]
    reason = choices[0].reason_against(Backend.CUDNN)
    assert reason is None if says is None else says in str(reason)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"platform": "cpu"}, "needs an NVIDIA GPU; the platform is cpu"),
        ({"dtype": "float32"}, "takes bfloat16 and float16, not float32"),
        ({"depth": 60, "value_depth": 60}, "multiples of 8, not 60"),
        ({"depth": 136, "value_depth": 136}, "depths to 128"),
        ({"value_depth": 32}, "values of the keys' depth, 64, not 32"),
        ({"keys": 64}, "mask.segments of as many keys as queries, not 256 and 64"),
        ({"vmapped": True}, "does not take mask.segments in vmapped training"),
    ],
)
def test_cudnn_refuses_machines_and_arrays_that_it_has_no_kernel_for(changed: dict[str, Any], says: str) -> None:
    assert (
        choose_backend(CUDNN, AttentionVariant(features=frozenset({"causal", "window", "key_lengths"})), GPU)
        is Backend.CUDNN
    )
    with pytest.raises(ValueError, match=re.escape(says)):
        choose_backend(CUDNN, AttentionVariant(features=frozenset({"segments"})), dataclasses.replace(GPU, **changed))
