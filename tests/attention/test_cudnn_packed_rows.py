"""Packed rows on cuDNN: the sequences that are found, what the kernel is told, and where blocks compute instead.

The kernel itself runs in tests/accelerator. Here a NumPy program stands for it, which reads the flat offsets that JAX
makes of ours.
"""

import re
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused

from tests.attention.test_jax_kernels import Shape, arrays, expected, mask_of, seen_by
from transformer.attention import api, backends, kernels
from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec, Backend
from transformer.attention.blockwise import LogitScaling, LogitTerms
from transformer.attention.cudnn_packed_rows import packed_sequences
from transformer.attention.masks import Mask
from transformer.logical_axes import VMAPPED_RUNS

LENGTH = 192  # three sequences in a row
SHAPE = Shape(LENGTH, LENGTH, depth=8, values=8, heads=2, groups=1, batch=3)


def rows_of(*sizes: tuple[int, ...]) -> np.ndarray:
    """Rows of sequences of these sizes, numbered from 1, and 0 after the last."""
    rows = np.zeros((len(sizes), LENGTH), np.int32)
    for row, row_sizes in zip(rows, sizes, strict=True):
        numbered = np.repeat(np.arange(1, len(row_sizes) + 1), row_sizes)
        row[: len(numbered)] = numbered
    return rows


def facts_of(segments: np.ndarray) -> dict[str, Any]:
    """The facts of the mask that a decoder has for them."""
    lengths = np.sum(segments > 0, axis=1).astype(np.int32)
    return {"causal": True, "segments": (segments, segments), "query_lengths": lengths, "key_lengths": lengths}


FULL, PADDED, EMPTY = (100, 60, 32), (50, 70), ()
sequences = jax.jit(packed_sequences, static_argnums=1, static_argnames="max_sequences")


def test_sequences_have_starts_and_lengths_as_jax_documents_them() -> None:
    found = sequences(mask_of(facts_of(rows_of(FULL, PADDED, EMPTY))), LENGTH, max_sequences=3)
    assert found.starts.tolist() == [[0, 100, 160, -1], [0, 50, -1, -1], [-1, -1, -1, -1]]
    assert found.lengths.tolist() == [[100, 60, 32], [50, 70, -1], [-1, -1, -1]]
    assert found.starts.dtype == found.lengths.dtype == jnp.int32
    assert bool(found.describe_mask)


@pytest.mark.parametrize("fault", ["too many", "a segment in two runs", "other keys", "other lengths of keys"])
def test_segments_that_are_no_sequences_are_found(fault: str) -> None:
    segments = rows_of(FULL, PADDED, EMPTY)
    facts = facts_of(segments)
    if fault == "too many":
        facts = facts_of(rows_of(FULL, (10, 10, 10, 10), EMPTY))
    elif fault == "a segment in two runs":
        facts = facts_of(np.where(segments == 3, 1, segments))
    elif fault == "other keys":
        facts["segments"] = (segments, np.roll(segments, 1, axis=1))
    else:
        facts["key_lengths"] = facts["key_lengths"] - np.int32([0, 1, 0])
    assert not bool(sequences(mask_of(facts), LENGTH, max_sequences=3).describe_mask)


def in_place_of_the_kernel(q: Any, k: Any, v: Any, *, q_offsets: Any, kv_offsets: Any, **told: Any) -> jax.Array:
    """Attention of each sequence by itself, from the arrays that XLA's call of cuDNN is given; NaN elsewhere."""
    sizes, _, starts, _ = fused._fix_seqlen_offsets(told["q_seqlen"], told["kv_seqlen"], q_offsets, kv_offsets, q, k)
    causal, window = told["mask_type"] == fused.MaskType.PADDING_CAUSAL, told["sliding_window_length"]

    def compute(q: Any, k: Any, v: Any, sizes: Any, starts: Any) -> Any:
        q, k, v, sizes, starts = map(np.asarray, (q, k, v, sizes, starts))
        share = q.shape[2] // k.shape[2]
        k, v = (np.repeat(x, share, axis=2) for x in (k, v))
        flat_q, flat_k, flat_v = (np.float64(x).reshape(-1, *x.shape[2:]) for x in (q, k, v))
        output = np.full_like(flat_q, np.nan)
        for size, start in zip(sizes.ravel(), starts.ravel() // (q.shape[2] * q.shape[3]), strict=False):
            here = slice(start, start + size)
            logits = np.einsum("qhd,khd->hqk", flat_q[here], flat_k[here]) * told["scale"]
            is_seen = np.tri(size) if causal else np.ones((size, size))
            if window is not None:
                is_seen = is_seen - np.tri(size, k=-window)
            weights = np.exp(np.where(is_seen, logits, -np.inf))
            weights /= weights.sum(-1, keepdims=True)
            output[here] = np.einsum("hqk,khd->qhd", weights, flat_v[here])
        return output.reshape(q.shape).astype(q.dtype)

    return jax.pure_callback(compute, jax.ShapeDtypeStruct(q.shape, q.dtype), q, k, v, sizes, starts)


@jax.jit(static_argnames=("scaling", "kernel"))
def by_kernel(q: Any, k: Any, v: Any, mask: Mask, scaling: LogitScaling, kernel: Any) -> jax.Array:
    """Attention by cuDNN, with a function in place of its kernel."""
    with mock.patch.object(fused, "dot_product_attention", kernel):
        return kernels.dot_product_attention(q, k, v, LogitTerms(mask), scaling, Backend.CUDNN)


@pytest.mark.parametrize("seen", [{"causal": True}, {"causal": False}, {"causal": True, "window": (7, 0)}], ids=str)
@pytest.mark.parametrize("sizes", [(FULL, PADDED, FULL), (PADDED, EMPTY, FULL), (FULL, (20,) * 9, PADDED)], ids=str)
def test_the_kernel_is_told_the_sequences_of_the_mask(sizes: Any, seen: dict[str, Any]) -> None:
    """Also where a row before has fewer sequences; nine in a row are too many, and are computed in blocks."""
    facts = facts_of(rows_of(*sizes)) | seen
    inputs = arrays(SHAPE)
    answer = expected(inputs, seen_by(facts, SHAPE), scale=0.3, temperature=0.5)
    output = by_kernel(*inputs[:3], mask_of(facts), LogitScaling(0.3, 0.5), in_place_of_the_kernel)
    np.testing.assert_allclose(output, answer.output, atol=2e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_a_position_in_no_sequence_makes_odd_lengths_even(causal: bool) -> None:
    """Rows of 191 positions, the first without padding."""
    lengths = []

    def note(q: Any, k: Any, v: Any, *, q_offsets: Any, kv_offsets: Any, **told: Any) -> jax.Array:
        lengths.extend([q.shape[1], k.shape[1], v.shape[1]])
        return in_place_of_the_kernel(q, k, v, q_offsets=q_offsets, kv_offsets=kv_offsets, **told)

    shape = SHAPE._replace(queries=LENGTH - 1, keys=LENGTH - 1)
    facts = facts_of(rows_of((100, 91), PADDED, EMPTY)[:, :-1]) | {"causal": causal}
    inputs = arrays(shape)
    answer = expected(inputs, seen_by(facts, shape), scale=0.3)

    output = by_kernel(*inputs[:3], mask_of(facts), LogitScaling(0.3), note)
    assert lengths == [LENGTH] * 3
    np.testing.assert_allclose(output, answer.output, atol=2e-5)


def test_other_lengths_of_keys_are_computed_in_blocks() -> None:
    facts = facts_of(rows_of(FULL, PADDED, FULL)) | {"causal": False, "query_lengths": np.int32([90, 110, 192])}
    inputs = arrays(SHAPE)
    output = by_kernel(*inputs[:3], mask_of(facts), LogitScaling(), in_place_of_the_kernel)
    answer = expected(inputs, seen_by(facts, SHAPE), scale=1.0)
    np.testing.assert_allclose(output, answer.output, atol=2e-5)


@pytest.mark.parametrize("length", [LENGTH, LENGTH - 1])
def test_nothing_undefined_leaves_the_kernel_or_its_gradient(length: int, monkeypatch: Any) -> None:
    """Padding is zero in the output and in the gradients, whatever the kernel leaves there."""

    @jax.custom_vjp
    def undefined(q: Any, k: Any, v: Any) -> Any:
        return jnp.full_like(q, jnp.nan)

    undefined.defvjp(lambda *inputs: (undefined(*inputs), inputs), lambda inputs, _: tuple(x * jnp.nan for x in inputs))
    monkeypatch.setattr(
        fused, "dot_product_attention", lambda q, k, v, q_offsets, kv_offsets, **told: undefined(q, k, v)
    )
    facts = facts_of(rows_of((100, 92), PADDED, EMPTY)[:, :length])

    @jax.jit
    def output_and_gradients(q: Any, k: Any, v: Any, cotangent: Any, mask: Mask) -> list[jax.Array]:
        def attention(q: Any, k: Any, v: Any) -> jax.Array:
            return kernels.dot_product_attention(q, k, v, LogitTerms(mask), LogitScaling(1.0), Backend.CUDNN)

        output, pull_back = jax.vjp(attention, q, k, v)
        return [output, *pull_back(cotangent)]

    for x in output_and_gradients(*arrays(SHAPE._replace(queries=length, keys=length)), mask_of(facts)):
        padding = ~(np.asarray(facts["segments"][0]) > 0)
        assert not np.asarray(x)[padding].any()
        assert np.isnan(np.asarray(x)[~padding]).all()


@pytest.mark.parametrize("window", [None, (7, 0)])
@pytest.mark.parametrize("length", [LENGTH, LENGTH - 1])
def test_packed_rows_lower_for_a_gpu_with_their_gradient(
    length: int, window: tuple[int, int] | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(fused, "check_compute_capability", lambda least: True)
    facts = facts_of(rows_of((100, 92), PADDED, EMPTY)[:, :length]) | {"window": window}

    def loss(q: Any, k: Any, v: Any) -> jax.Array:
        scaling = LogitScaling(0.125)
        return jnp.sum(kernels.dot_product_attention(q, k, v, LogitTerms(mask_of(facts)), scaling, Backend.CUDNN))

    shape = SHAPE._replace(queries=length, keys=length)
    inputs = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in arrays(shape)[:3]]
    text = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    assert re.findall(r"custom_call @__cudnn\$(\w+)", text) == ["fmhaSoftmax", "fmhaSoftmaxBackward"]
    assert set(re.findall(r"max_seg_per_batch\\22: (\d+)", text)) == {str(length // 64)}
    assert set(re.findall(r"mask_type\\22: (?:\\22)?(\w+)", text)) == {"PADDING_CAUSAL"}
    # cuDNN's window counts the query's own position.
    assert set(re.findall(r"sliding_window_length\\22: (\d+)", text)) == {str(0 if window is None else 8)}


def test_a_jax_without_offsets_is_refused() -> None:
    mask = mask_of(facts_of(rows_of(FULL, FULL, FULL)))
    with pytest.raises(ValueError, match="offsets of mask"):
        by_kernel(*arrays(SHAPE)[:3], mask, LogitScaling(1.0), lambda q, k, v, **told: q)


@pytest.mark.parametrize(
    ("keys", "facts", "says"),
    [
        (64, {}, "as many keys as queries, not 192 and 64"),
        (LENGTH, {"window": (7, 0)}, "mask.window without mask.causal"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused_by_name(keys: int, facts: dict[str, Any], says: str) -> None:
    segments = rows_of(FULL, FULL, FULL)
    q, k, v, _ = jax.device_put(arrays(SHAPE._replace(keys=keys)))
    mask = mask_of({"segments": (segments, segments[:, :keys]), **facts})
    with pytest.raises(ValueError, match=re.escape(says)):
        kernels.dot_product_attention(q, k, v, LogitTerms(mask), LogitScaling(1.0), Backend.CUDNN)


def attend_rows(q: Any, k: Any, v: Any, spec: AttentionSpec) -> jax.Array:
    """Causal attention within one sequence of four positions and another of two."""
    segments = jnp.asarray([[1, 1, 1, 1, 2, 2]] * 2)
    return attend(q, k, v, spec=spec, mask=Mask(causal=True, segments=(segments, segments)))[0]


def test_vmapped_training_computes_packed_rows_in_blocks(monkeypatch: Any) -> None:
    """By `auto`, which chooses cuDNN for the same arrays without vmap; one that is named is refused."""
    monkeypatch.setattr(backends, "target_platform", lambda: "gpu")
    monkeypatch.setattr(backends, "MAX_DENSE_LOGITS", 0)
    names = []
    monkeypatch.setattr(api, "log_backend_choice", lambda backend, *_: names.append(backend))
    monkeypatch.setattr(fused, "dot_product_attention", in_place_of_the_kernel)
    runs_of_qkv = jax.device_put(np.random.default_rng(0).normal(size=(3, 3, 2, 6, 2, 8)).astype(jnp.bfloat16))

    def attention(qkv: Any, backend: Backend) -> jax.Array:
        return attend_rows(*qkv, spec=AttentionSpec(backend=backend))

    # Compiled, because what was compiled without vmap must not be taken under it.
    compiled = jax.jit(attention, static_argnums=1)
    alone = [compiled(qkv, Backend.AUTO) for qkv in runs_of_qkv]
    assert names == [Backend.CUDNN]
    together = jax.vmap(lambda qkv: compiled(qkv, Backend.AUTO), axis_name=VMAPPED_RUNS)(runs_of_qkv)
    assert names == [Backend.CUDNN, Backend.BLOCKWISE]
    together, alone = (np.asarray(output, np.float32) for output in (together, alone))
    np.testing.assert_allclose(together, alone, atol=2e-2)
    with pytest.raises(ValueError, match=re.escape("mask.segments in vmapped training")):
        jax.vmap(lambda qkv: compiled(qkv, Backend.CUDNN), axis_name=VMAPPED_RUNS)(runs_of_qkv)


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad, jax.checkpoint], ids=["values", "gradient", "remat"])
def test_the_kernel_under_another_vmap_is_refused_by_name(transform: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(fused, "dot_product_attention", in_place_of_the_kernel)
    segments = rows_of(FULL, PADDED, FULL)
    runs_of_qkv = np.stack([np.stack(arrays(SHAPE._replace(groups=2))[:3])] * 2)

    def loss(qkv: Any) -> jax.Array:
        terms = LogitTerms(mask_of(facts_of(segments)))
        return jnp.sum(kernels.dot_product_attention(*qkv, terms, LogitScaling(), Backend.CUDNN))

    with pytest.raises(ValueError, match=re.escape("mask.segments under jax.vmap")):
        jax.jit(jax.vmap(transform(loss)))(runs_of_qkv)
