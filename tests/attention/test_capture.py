"""What is captured: the map that was used, in float32 and without gradient, by a switch that compiles nothing."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.attention.api import attend
from transformer.attention.attention_spec import AttentionParameters, AttentionSpec, Backend
from transformer.attention.blockwise import LogitScaling, LogitTerms, attend_blockwise
from transformer.attention.capture import Capture, CapturedAttention, capture_from_queries_and_keys
from transformer.attention.masks import Mask
from transformer.attention.positions import T5, AttentionPosition
from transformer.attention.statistics import STATISTICS, ReductionStatistic, add_states, finish_first_array

# Two key heads for four query heads; a block of 8 divides neither length. Of the second example nothing is seen by
# queries from 9 on, or from keys from 6 on.
B, Q, K, H, G, D, BLOCK = 2, 19, 21, 4, 2, 8, 8
QUERY_LENGTHS, KEY_LENGTHS = np.int32([19, 9]), np.int32([21, 6])
BACKENDS = (Backend.EINSUM, Backend.BLOCKWISE, Backend.XLA)

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.value)
blocks_and_map = pytest.mark.parametrize(
    "backend", [Backend.EINSUM, Backend.BLOCKWISE], ids=lambda backend: backend.value
)


def arrays(dtype: Any = np.float32, scale: float = 3.0) -> list[np.ndarray]:
    """Random q, k and v; `scale` makes the logits large enough for a float32 softmax to show its rounding."""
    normal = np.random.default_rng(3).normal
    shapes = ((B, Q, H, D), (B, K, G, D), (B, K, G, D))
    return [normal(size=shape, scale=scale).astype(np.float32).astype(dtype) for shape in shapes]


def mask() -> Mask:
    return Mask(causal=True, query_lengths=jax.device_put(QUERY_LENGTHS), key_lengths=jax.device_put(KEY_LENGTHS))


def expected_map(q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Softmax of scaled products in float64 over the keys that are seen, and the logits, `B H Q K`."""
    q_BxQxHxD, k_BxKxGxD = q.astype(np.float64), k.astype(np.float64)
    logits = np.einsum("bqhd,bkhd->bhqk", q_BxQxHxD, np.repeat(k_BxKxGxD, H // G, axis=2)) / np.sqrt(D)
    weights = np.zeros_like(logits)
    for b, h, i in np.ndindex(B, H, Q):
        stop = min(i + 1, KEY_LENGTHS[b]) if i < QUERY_LENGTHS[b] else 0
        if stop:
            powers = np.exp(logits[b, h, i, :stop] - logits[b, h, i, :stop].max())
            weights[b, h, i, :stop] = powers / powers.sum()
    return weights, logits


def run(*qkv: np.ndarray, backend: Backend, capture: Capture | None) -> tuple[np.ndarray, Any]:
    """Output and what was captured of one attention under the mask above, as NumPy arrays."""
    return jax.tree.map(np.asarray, compiled_run(*qkv, backend, capture))


@jax.jit(static_argnames=("backend", "capture"))
def compiled_run(q: Any, k: Any, v: Any, backend: Backend, capture: Capture | None) -> tuple[jax.Array, Any]:
    with jax.default_matmul_precision("highest"):
        output, attended = attend(q, k, v, spec=AttentionSpec(backend=backend), mask=mask(), capture=capture)
    return output, attended.captured


@jax.jit(static_argnames=("capture", "lse_dtype"))
def run_in_small_blocks(q: Any, k: Any, v: Any, capture: Capture, lse_dtype: Any = jnp.float32) -> CapturedAttention:
    """What is captured beside blocks of 8, its log-sum-exp rounded to `lse_dtype`."""
    terms, scaling = LogitTerms(mask()), LogitScaling(scale=D**-0.5)
    with jax.default_matmul_precision("highest"):
        _, log_sum = attend_blockwise(q, k, v, terms, scaling, BLOCK)
        log_sum = log_sum.astype(lse_dtype).astype(jnp.float32)
        captured = capture_from_queries_and_keys(
            q, k, capture, terms=terms, scaling=scaling, log_sum=log_sum, block=BLOCK
        )
    assert captured is not None
    return captured


WHOLE = Capture(("here",))


@pytest.mark.parametrize("backend", [*BACKENDS, None], ids=lambda backend: backend.value if backend else "small_blocks")
@pytest.mark.parametrize(("dtype", "within"), [(jnp.float32, 1e-6), (jnp.bfloat16, 1e-3)], ids=["float32", "bfloat16"])
def test_captured_rows_are_the_oracles_and_sum_to_one(backend: Backend | None, dtype: Any, within: float) -> None:
    inputs = arrays(dtype)
    weights, logits = expected_map(*inputs[:2])
    if backend is None:
        captured = jax.tree.map(np.asarray, run_in_small_blocks(*inputs, WHOLE))
    else:
        _, captured = run(*inputs, backend=backend, capture=WHOLE)
    assert captured.weights.dtype == jnp.float32
    tolerance = within * (max(1, np.abs(logits).max()) if dtype == jnp.float32 else 1)
    np.testing.assert_allclose(captured.weights, weights, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(captured.weights == 0, weights == 0)
    np.testing.assert_allclose(np.sum(captured.weights, axis=-1), weights.sum(-1), rtol=0, atol=1e-5)


def test_a_log_sum_exp_in_bfloat16_would_be_seen() -> None:
    """What jax.nn.dot_product_attention returns as its residual is in the inputs' type."""
    inputs = arrays(jnp.bfloat16)
    weights, _ = expected_map(*inputs[:2])
    rounded = np.asarray(run_in_small_blocks(*inputs, WHOLE, jnp.bfloat16).weights)
    assert np.abs(rounded - weights).max() > 1e-2
    assert np.abs(np.sum(rounded, axis=-1) - weights.sum(-1)).max() > 1e-2


@each_backend
def test_chosen_rows_and_heads_are_those_of_the_whole_map(backend: Backend) -> None:
    inputs = arrays()
    whole = run(*inputs, backend=backend, capture=WHOLE)[1].weights
    rows, heads = (17, 0, 5), (3, 1)
    chosen = run(*inputs, backend=backend, capture=Capture(("here",), heads=heads, rows=rows))[1].weights
    np.testing.assert_allclose(chosen, whole[:, heads, :][:, :, rows], rtol=0, atol=1e-6)


@blocks_and_map
@pytest.mark.parametrize(
    ("capture", "says"),
    [
        (Capture(("here",), rows=(0, Q)), rf"capture.rows=.*\[{Q}\]; there are queries 0 ... {Q - 1}"),
        (Capture(("here",), heads=(-1,)), rf"capture.heads=.*\[-1\]; there are heads 0 ... {H - 1}"),
    ],
)
def test_rows_and_heads_that_do_not_exist_are_refused(backend: Backend, capture: Capture, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(lambda *inputs: compiled_run(*inputs, backend, capture), *arrays())


@pytest.mark.parametrize("layer", [-1, 3])
def test_layers_that_do_not_exist_are_refused(layer: int) -> None:
    captured = CapturedAttention(jnp.zeros((3, B, H, Q, K)), {}, {})
    with pytest.raises(ValueError, match=rf"capture.layers=.*\[{layer}\]; there are layers 0 ... 2"):
        captured.select_layers((0, layer))


def test_a_capture_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="rows=0 must be at least 1; maps=False captures none"):
        Capture(("here",), rows=0)


def loss_of(backend: Backend, capture: Capture | None, used: bool) -> Any:
    """The loss of an attention with everything that carries gradient; with `used`, of its captured parts alone."""

    def loss(given: dict[str, Any]) -> tuple[jax.Array, Any]:
        spec = AttentionSpec(position=AttentionPosition.T5, backend=backend)
        output, attended = attend(
            *(given["q"], given["k"], given["v"]),
            spec=spec,
            mask=mask(),
            bias=given["bias"],
            params=AttentionParameters(position=T5(given["table"])),
            capture=capture,
        )
        if not used:
            return jnp.sum(jnp.sin(output)), (output, attended.captured)
        captured = attended.captured
        parts = [captured.weights, *captured.sums.values()]
        return sum((jnp.sum(part**2) for part in parts), jnp.sum(output) * 0), None

    return loss


def everything_with_gradient() -> dict[str, np.ndarray]:
    normal = np.random.default_rng(4).normal
    q, k, v = arrays(scale=1.0)
    bias, table = (normal(size=shape).astype(np.float32) for shape in ((1, H, Q, K), (8, H)))
    return {"q": q, "k": k, "v": v, "bias": bias, "table": table}


ALL = Capture(("here",), statistics=tuple(STATISTICS.values()))


@each_backend
def test_nothing_captured_carries_gradient(backend: Backend) -> None:
    gradients, _ = jax.jit(jax.grad(loss_of(backend, ALL, used=True), has_aux=True))(everything_with_gradient())
    for name, gradient in jax.device_get(gradients).items():
        assert not np.any(gradient), name


# Behind XLA's attention the same is captured as behind the blocks.
@pytest.mark.parametrize(
    "backend", [Backend.EINSUM, pytest.param(Backend.BLOCKWISE, marks=pytest.mark.slow)], ids=lambda each: each.value
)
def test_capture_changes_neither_output_nor_gradient_by_a_bit(backend: Backend) -> None:
    given = everything_with_gradient()
    (_, (plain, nothing)), gradients = jax.jit(jax.value_and_grad(loss_of(backend, None, False), has_aux=True))(given)
    (_, (output, captured)), beside = jax.jit(jax.value_and_grad(loss_of(backend, ALL, False), has_aux=True))(given)
    assert nothing is None
    assert captured.weights.shape == (B, H, Q, K)
    np.testing.assert_array_equal(plain, output)
    for name, gradient in jax.device_get(gradients).items():
        assert np.any(gradient), name
        np.testing.assert_array_equal(gradient, beside[name], err_msg=name)


LAYERS, HIDDEN = 3, H * D


class Layers:
    """A stack of self-attentions, scanned under jax.checkpoint as models do it; it counts how often it is traced."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.traces = backend, 0
        self.step = jax.jit(jax.value_and_grad(self.loss, has_aux=True))

    def loss(self, weights_Lx3xExE: Any, x_BxQxE: Any, capture: Capture) -> tuple[jax.Array, CapturedAttention]:
        self.traces += 1
        causal = Mask(causal=True, key_lengths=jnp.asarray(QUERY_LENGTHS))

        @jax.checkpoint
        def layer(x: Any, weights_3xExE: Any) -> Any:
            q, k, v = (jnp.reshape(x @ weight, (B, Q, H, D)) for weight in weights_3xExE)
            output, attended = attend(q, k, v, spec=AttentionSpec(backend=self.backend), mask=causal, capture=capture)
            return x + output.reshape(x.shape), attended.captured

        x_BxQxE, captured = jax.lax.scan(layer, x_BxQxE, weights_Lx3xExE)
        return jnp.sum(jnp.sin(x_BxQxE)), captured


def inputs_of_layers() -> tuple[np.ndarray, np.ndarray]:
    normal = np.random.default_rng(6).normal
    shapes = ((LAYERS, 3, HIDDEN, HIDDEN), (B, Q, HIDDEN))
    weights, x = (normal(size=shape).astype(np.float32) for shape in shapes)
    return weights / np.sqrt(np.float32(HIDDEN)), x


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Backend.EINSUM, Backend.BLOCKWISE])
def test_one_compilation_serves_the_switch_on_and_off(backend: Backend) -> None:
    switched, always = Layers(backend), Layers(backend)
    capture = Capture(("here",), rows=(2, 18), statistics=tuple(STATISTICS.values()))

    def step(observe: bool) -> Any:
        return switched.step(*inputs_of_layers(), dataclasses.replace(capture, observe=jnp.asarray(observe)))

    off, on, off_again, _ = step(False), step(True), step(False), step(True)
    assert switched.traces == 1
    assert switched.step._cache_size() == 1
    expected = always.step(*inputs_of_layers(), capture)
    for (loss, captured), gradient in (off, on, off_again):
        np.testing.assert_array_equal(loss, expected[0][0])
        np.testing.assert_array_equal(gradient, expected[1])
        assert jax.tree.structure(captured) == jax.tree.structure(expected[0][1])
    for (_, captured), _ in (off, off_again):
        leaves = jax.tree.leaves(captured)
        assert len(leaves) == 1 + 2 * len(STATISTICS)
        assert not any(np.any(leaf) for leaf in leaves)
    _, captured = on[0]
    for found, wanted in zip(jax.tree.leaves(captured), jax.tree.leaves(expected[0][1]), strict=True):
        # Another program around it may fuse otherwise; the rounding of float32 is all that may differ.
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    for name, counts in expected[0][1].counts.items():
        np.testing.assert_array_equal(captured.counts[name], counts)
    assert captured.weights.shape == (LAYERS, B, H, 2, Q)
    assert captured.select_layers((2, 0)).weights.shape == (2, B, H, 2, Q)
    np.testing.assert_array_equal(captured.select_layers((2, 0)).weights[0], captured.weights[2])
    assert captured.select_layers((0,)).sums["entropy"].shape == captured.means()["entropy"].shape == (LAYERS, H)


@blocks_and_map
def test_what_is_switched_off_is_not_computed(backend: Backend) -> None:
    runs: list[int] = []

    def finish(state: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return finish_first_array(state)

    witness = ReductionStatistic(
        "witness", (0.0,), lambda block: (jnp.sum(block.weights_BxHxQxK, -1),), add_states, finish
    )
    layers = Layers(backend)
    for observe in (False, True, False):
        capture = Capture(("here",), maps=False, statistics=(witness,), observe=jnp.asarray(observe))
        jax.block_until_ready(layers.step(*inputs_of_layers(), capture))
        jax.effects_barrier()
        assert bool(runs) == observe
        runs.clear()


def test_means_of_a_statistic_that_no_row_counts_are_zero() -> None:
    captured = CapturedAttention(None, {"x": jnp.asarray([0.0, 6.0])}, {"x": jnp.asarray([0.0, 4.0])})
    np.testing.assert_array_equal(captured.means()["x"], [0, 1.5])


def test_statistics_beside_blocks_hold_nothing_of_the_size_of_a_map() -> None:
    length, heads, depth = 4096, 8, 16
    capture = Capture(("here",), maps=False, statistics=tuple(STATISTICS.values()))

    def step(q: Any, k: Any, v: Any, observe: Any) -> Any:
        request = dataclasses.replace(capture, observe=observe)
        spec = AttentionSpec(backend=Backend.BLOCKWISE)
        return attend(q, k, v, spec=spec, mask=Mask(causal=True), capture=request)

    one = jax.ShapeDtypeStruct((1, length, heads, depth), jnp.float32)
    compiled = jax.jit(step).lower(one, one, one, jax.ShapeDtypeStruct((), jnp.bool)).compile()
    shapes = re.findall(r"\b(?:pred|[a-z]+\d+)\[([\d,]+)\]", compiled.as_text())
    assert max(math.prod(map(int, shape.split(","))) for shape in shapes) < length**2
    # Blocks of 512 x 512 of every head are what is there at once: a few of them are far below one map.
    assert compiled.memory_analysis().temp_size_in_bytes < heads * length**2 * 4 / 8
