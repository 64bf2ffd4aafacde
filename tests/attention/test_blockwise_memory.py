"""The memory of attention in blocks at length 16,384, by XLA's own analysis and by running it."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionSpec, Backend
from transformer.attention.capture import Capture
from transformer.attention.masks import Mask
from transformer.attention.statistics import STATISTICS

LENGTH, HEADS, DEPTH = 16_384, 8, 64
EVERY_STATISTIC = Capture(("here",), maps=False, statistics=tuple(STATISTICS.values()))


def forward_and_backward(backend: Backend, capture: Capture | None) -> Any:
    """(q, k, v, cotangent) -> output, what was captured, and the gradients of q, k and v; causal, batch 1."""

    def step(q: Any, k: Any, v: Any, cotangent: Any) -> Any:
        def forward(q: Any, k: Any, v: Any) -> Any:
            output, attended = attend(
                q, k, v, spec=AttentionSpec(backend=backend), mask=Mask(causal=True), capture=capture
            )
            return output, attended.captured

        output, pull_back, captured = jax.vjp(forward, q, k, v, has_aux=True)
        return output, captured, pull_back(cotangent)

    return jax.jit(step)


def peak(backend: Backend, capture: Capture | None = None) -> int:
    """Bytes of arguments, results and all between, of a program that is compiled and never run."""
    one = jax.ShapeDtypeStruct((1, LENGTH, HEADS, DEPTH), jnp.float32)
    analysis = forward_and_backward(backend, capture).lower(one, one, one, one).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes + analysis.argument_size_in_bytes


@pytest.fixture(scope="module")
def blockwise_peak() -> int:
    return peak(Backend.BLOCKWISE)


def test_blocks_take_a_twentieth_of_the_memory_of_the_whole_map(blockwise_peak: int) -> None:
    whole = peak(Backend.EINSUM)
    # The reference keeps its map: without this the comparison would be with nothing.
    assert whole > HEADS * LENGTH**2 * 4
    # The arguments, the results and their gradients alone.
    assert blockwise_peak > 8 * LENGTH * HEADS * DEPTH * 4
    assert blockwise_peak <= whole / 20


def test_statistics_of_every_head_add_at_most_a_tenth(blockwise_peak: int) -> None:
    assert peak(Backend.BLOCKWISE, EVERY_STATISTIC) <= 1.1 * blockwise_peak


def largest_array(compiled: Any) -> int:
    """The number of entries of the largest array that a compiled program names."""
    shapes = re.findall(r"\b(?:pred|[a-z]+\d+)\[([\d,]+)\]", compiled.as_text())
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


@pytest.mark.parametrize(
    "checkpoint", [pytest.param(True, marks=pytest.mark.slow), False], ids=["checkpoint", "all_kept"]
)
def test_layers_in_a_scan_hold_nothing_of_the_size_of_a_map(checkpoint: bool) -> None:
    """What no layer changes, such as the masks of all blocks, JAX takes out of a loop and keeps for the gradient."""
    layers, length, width = 2, 4096, HEADS * DEPTH

    def loss(weights_Lx3xExE: Any, x_1xNxE: Any, lengths: Any, observe: Any) -> Any:
        mask = Mask(causal=True, query_lengths=lengths, key_lengths=lengths)
        capture = Capture(("here",), maps=False, statistics=tuple(STATISTICS.values()), observe=observe)

        def layer(x: Any, weights_3xExE: Any) -> Any:
            q, k, v = (jnp.reshape(x @ weight, (1, length, HEADS, DEPTH)) for weight in weights_3xExE)
            spec = AttentionSpec(backend=Backend.BLOCKWISE)
            output, attended = attend(q, k, v, spec=spec, mask=mask, capture=capture)
            return x + output.reshape(x.shape), attended.captured

        x_1xNxE, captured = jax.lax.scan(jax.checkpoint(layer) if checkpoint else layer, x_1xNxE, weights_Lx3xExE)
        return jnp.sum(x_1xNxE), captured

    shapes = (((layers, 3, width, width), jnp.float32), ((1, length, width), jnp.float32), ((1,), jnp.int32))
    arguments = [jax.ShapeDtypeStruct(*shape) for shape in (*shapes, ((), jnp.bool))]
    compiled = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(*arguments).compile()
    assert largest_array(compiled) < length**2
    assert compiled.memory_analysis().temp_size_in_bytes < HEADS * length**2 * 4


@pytest.mark.slow
def test_blocks_really_run_at_that_length() -> None:
    rows = (0, 1, 511, 512, 9_999, *range(LENGTH - 32, LENGTH))
    normal = np.random.default_rng(0).normal
    q, k, v, cotangent = (normal(size=(1, LENGTH, HEADS, DEPTH)).astype(np.float32) for _ in range(4))
    capture = Capture(("here",), rows=rows, statistics=tuple(STATISTICS.values()))
    output, captured, (of_q, of_k, of_v) = jax.tree.map(
        np.asarray, forward_and_backward(Backend.BLOCKWISE, capture)(q, k, v, cotangent)
    )
    chosen = np.array(rows)
    q, k, v, cotangent = (x[0].astype(np.float64).transpose(1, 0, 2) for x in (q, k, v, cotangent))
    logits_HxRxK = q[:, chosen] @ k.transpose(0, 2, 1) / np.sqrt(DEPTH)
    powers = np.where(np.arange(LENGTH) <= chosen[:, None], np.exp(logits_HxRxK), 0)
    weights_HxRxK = powers / powers.sum(-1, keepdims=True)
    tolerance = 1e-6 * max(1, np.abs(logits_HxRxK).max())
    np.testing.assert_allclose(captured.weights[0], weights_HxRxK, rtol=0, atol=tolerance)
    np.testing.assert_allclose(output[0, chosen].transpose(1, 0, 2), weights_HxRxK @ v, rtol=0, atol=tolerance)
    of_weights = cotangent[:, chosen] @ v.transpose(0, 2, 1)
    of_logits = weights_HxRxK * (of_weights - np.sum(weights_HxRxK * of_weights, axis=-1, keepdims=True))
    # The last keys are seen by the last queries alone, all of which are among the chosen rows.
    last, scale = slice(LENGTH - 32, LENGTH), 1 / np.sqrt(DEPTH)
    to_last = of_logits[:, -32:, last].transpose(0, 2, 1)
    read_back = weights_HxRxK[:, -32:, last].transpose(0, 2, 1)
    for ours, theirs in (
        (of_q[0, chosen], of_logits @ k * scale),
        (of_k[0, last], to_last @ q[:, last] * scale),
        (of_v[0, last], read_back @ cotangent[:, last]),
    ):
        np.testing.assert_allclose(ours.transpose(1, 0, 2), theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())
    counts = dict.fromkeys(STATISTICS, LENGTH) | {"previous_token": LENGTH - 1}
    assert {name: set(count) for name, count in captured.counts.items()} == {n: {c} for n, c in counts.items()}
