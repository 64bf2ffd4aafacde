"""Attention on an NVIDIA GPU against NumPy float64: values, gradients, log-sum-exps and maps of every backend."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.test_jax_kernels import LENGTHS, Shape, arrays, expected, mask_of, seen_by
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.backends import AttentionVariant, CallShape, choose_backend
from transformer.attention.blockwise import LogitScaling, LogitTerms
from transformer.attention.capture import Capture
from transformer.attention.kernels import dot_product_attention

SQUARE = Shape(256, 256)
BOTH = {"query_lengths": LENGTHS, "key_lengths": LENGTHS}
SEGMENTS = np.sort(np.random.default_rng(5).integers(1, 6, (2, 256)), axis=1).astype(np.int32)
CASES: dict[str, tuple[Shape, dict[str, Any]]] = {
    "none": (SQUARE, {}),
    "causal": (SQUARE, {"causal": True}),
    "causal_window": (SQUARE, {"causal": True, "window": (31, 0)}),
    "causal_window_lengths": (SQUARE, {"causal": True, "window": (31, 0), **BOTH}),
    "lengths": (SQUARE, BOTH),
    "no_keys": (SQUARE, {"key_lengths": np.array([130, 0], np.int32)}),
    "causal_empty_example": (SQUARE, {"causal": True, **dict.fromkeys(BOTH, np.array([256, 0], np.int32))}),
    "cross": (Shape(100, 300), {"key_lengths": np.array([300, 77], np.int32)}),
    "one_key_head": (SQUARE._replace(groups=1), {"causal": True}),
    "depth_40": (SQUARE._replace(depth=40, values=40), {"causal": True}),
    "depth_128": (SQUARE._replace(depth=128, values=128), {"causal": True}),
    "long": (Shape(2048, 2048, heads=2, groups=2, batch=1), {"causal": True}),
    "odd": (Shape(257, 257), {"causal": True}),
    "odd_keys": (Shape(64, 197), {}),
    "odd_lengths": (Shape(257, 257), {"causal": True, **BOTH}),
    "window_without_keys": (Shape(300, 100), {"causal": True, "window": (31, 0)}),
    "packed": (SQUARE, {"causal": True, "segments": (SEGMENTS, SEGMENTS), **BOTH}),
    "packed_window": (SQUARE, {"causal": True, "window": (31, 0), "segments": (SEGMENTS, SEGMENTS), **BOTH}),
    "window": (SQUARE, {"window": (31, 15)}),
}
# The products of float32 are TensorFloat-32 there unless a precision is set.
TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-3, "float32 highest": 1e-5}


def relative_error(found: Any, wanted: np.ndarray) -> float:
    """|found - wanted| / |wanted| in float64, of all entries together; NaN where one is not finite."""
    difference = np.asarray(found, np.float32).astype(np.float64) - wanted
    return float(np.linalg.norm(difference) / np.linalg.norm(wanted))


def check(backend: Backend, name: str, kind: str) -> None:
    """Compare a case of an attention with float64, and print its errors."""
    shape, facts = CASES[name]
    dtype, *precision = kind.split()
    inputs = [jnp.asarray(x, dtype) for x in arrays(shape)]
    rows = (0, shape.queries - 1)
    capture = Capture(("here",), rows=rows)

    @jax.jit
    def run(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        def attention(q: Any, k: Any, v: Any) -> Any:
            spec, mask = AttentionSpec(backend=backend), mask_of(facts)
            output, aux = attend(q, k, v, spec=spec, mask=mask, log_sum_exp=True, capture=capture)
            assert aux.captured is not None
            return output, (aux.log_sum_exp, aux.captured.weights)

        output, pull_back, aux = jax.vjp(attention, q, k, v, has_aux=True)
        return output, *pull_back(cotangent), *aux

    with jax.default_matmul_precision(precision[0]) if precision else contextlib.nullcontext():
        output, *gradients, log_sum, weights = jax.device_get(run(*inputs))
    seen = seen_by(facts, shape)
    answer = expected([np.asarray(x, np.float32) for x in inputs], seen)
    errors = {"output": relative_error(output, answer.output)}
    for x, found, wanted in zip("qkv", gradients, answer.gradients, strict=True):
        errors[f"d{x}"] = relative_error(found, wanted)
    print(name, kind, {key: f"{error:.1e}" for key, error in errors.items()})
    tolerance = TOLERANCE[kind]
    assert all(error < tolerance for error in errors.values()), errors
    blind = ~seen.any(-1)
    assert not np.asarray(output)[np.moveaxis(blind, 1, 2)].any()
    np.testing.assert_array_equal(np.isneginf(log_sum), blind)
    # The logits' own rounding: that of the products alone, which is none for factors in bfloat16 and float16.
    exact = 2e-3 if kind == "float32" else 1e-5
    np.testing.assert_allclose(log_sum[~blind], answer.log_sum[~blind], rtol=0, atol=exact)
    np.testing.assert_allclose(weights, answer.weights[:, :, rows], rtol=0, atol=exact)


def takes(backend: Backend, name: str, dtype: str) -> bool:
    """Whether the backend takes the case on a GPU."""
    shape, facts = CASES[name]
    sizes = (shape.batch, shape.heads, shape.queries, shape.keys, shape.depth, shape.values)
    variant = AttentionVariant(features=frozenset(facts))
    try:
        choose_backend(AttentionSpec(backend=backend), variant, CallShape("gpu", dtype, *sizes))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in CASES if takes(Backend.CUDNN, name, "bfloat16")])
def test_cudnn_in_bfloat16(name: str) -> None:
    shape, facts = CASES[name]
    q, k, v, _ = (jnp.asarray(x, jnp.bfloat16) for x in arrays(shape))
    chosen = choose_backend(
        AttentionSpec(),
        AttentionVariant.from_call(AttentionSpec(), mask_of(facts), AttentionParameters(), bias=False),
        CallShape.from_arrays(q, k, v),
    )
    assert chosen is Backend.CUDNN
    check(Backend.CUDNN, name, "bfloat16")


@pytest.mark.parametrize("name", ["causal", "causal_window_lengths", "odd_lengths"])
def test_cudnn_in_float16(name: str) -> None:
    check(Backend.CUDNN, name, "float16")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("packed", "bfloat16"),
        ("packed", "float32 highest"),
        ("causal_empty_example", "float32 highest"),
        ("causal", "float32"),
        ("window", "float16"),
    ],
)
@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA], ids=lambda each: each.value)
def test_the_other_backends(backend: Backend, name: str, kind: str) -> None:
    check(backend, name, kind)


PACKED_SIZES: dict[str, tuple[Shape, list[list[int]]]] = {
    # The sizes of the sequences in each row, which need not fill it.
    "full": (SQUARE, [[100, 60, 96], [256]]),
    "padded": (SQUARE, [[50, 70], [30, 30, 30, 30]]),
    "empty_row": (SQUARE._replace(batch=3), [[128, 128], [], [200, 17]]),
    "single_tokens": (SQUARE, [[1, 1, 254], [255, 1]]),
    "one_key_head": (SQUARE._replace(groups=1), [[100, 156], [3, 250]]),
    "depth_128": (SQUARE._replace(depth=128, values=128), [[100, 156], [3, 250]]),
    "odd": (Shape(257, 257), [[100, 157], [3, 250]]),
    "long": (Shape(1024, 1024, heads=12, groups=12, batch=4), [[700, 300], [1024], [64] * 16, [5, 1000]]),
    "too_many": (SQUARE, [[20] * 12, [256]]),
}


@pytest.mark.parametrize(
    "seen", [{"causal": True}, {"causal": False}, {"causal": True, "window": (31, 0)}], ids=["causal", "all", "window"]
)
@pytest.mark.parametrize("name", PACKED_SIZES)
def test_cudnn_in_packed_rows(name: str, seen: dict[str, Any]) -> None:
    """Sequences of all kinds, of which twelve in a row of 256 positions are too many for the kernel."""
    shape, sizes = PACKED_SIZES[name]
    segments = np.zeros((shape.batch, shape.queries), np.int32)
    for row, of_row in zip(segments, sizes, strict=True):
        row[: sum(of_row)] = np.repeat(np.arange(1, len(of_row) + 1), of_row)
    lengths = np.sum(segments > 0, axis=1).astype(np.int32)
    facts = {"segments": (segments, segments), "query_lengths": lengths, "key_lengths": lengths, **seen}
    *inputs, cotangent = (jnp.asarray(x, jnp.bfloat16) for x in arrays(shape))

    @jax.jit
    def run(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        scaling = LogitScaling(shape.depth**-0.5)
        attention = lambda *inputs: dot_product_attention(  # noqa: E731
            *inputs, LogitTerms(mask_of(facts)), scaling, Backend.CUDNN
        )
        output, pull_back = jax.vjp(attention, q, k, v)
        return output, *pull_back(cotangent)

    found = jax.device_get(run(*inputs, cotangent))
    answer = expected([np.asarray(x, np.float32) for x in (*inputs, cotangent)], seen_by(facts, shape))
    errors = [relative_error(*pair) for pair in zip(found, (answer.output, *answer.gradients), strict=True)]
    print(name, [f"{error:.1e}" for error in errors])
    assert max(errors) < TOLERANCE["bfloat16"], errors
    assert not any(np.asarray(x)[segments == 0].any() for x in found)


def test_cudnns_kernels_are_called() -> None:
    shape, facts = CASES["causal"]
    q, k, v, _ = (jnp.asarray(x, jnp.bfloat16) for x in arrays(shape))
    program = jax.jit(lambda q, k, v: attend(q, k, v, mask=mask_of(facts))[0]).lower(q, k, v).compile()
    assert "__cudnn$fmhaSoftmax" in (program.as_text() or "")
