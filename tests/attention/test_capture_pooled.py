"""Long maps: pooled, their rows and the top of each, and statistics example by example, beside any backend."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.test_capture import BACKENDS, B, D, H, K, Q, arrays, blocks_and_map, expected_map, mask, run
from transformer.attention.attention_spec import Backend
from transformer.attention.blockwise import LogitScaling, LogitTerms
from transformer.attention.capture import (
    Capture,
    capture_from_queries_and_keys,
    evenly_spaced_positions,
    max_pool_map,
    pooling_block_size,
)
from transformer.attention.masks import Mask
from transformer.attention.statistics import STATISTICS

SIZES = ((8, (4, 4)), (5, (4, 8)), (20, (1, 2)), (1, (32, 32)))


def pooled_by_hand(weights: np.ndarray, query_block: int, key_block: int) -> np.ndarray:
    rows = [weights[:, :, i : i + query_block].max(axis=2) for i in range(0, weights.shape[2], query_block)]
    rows = np.stack(rows, axis=2)
    return np.stack([rows[..., j : j + key_block].max(axis=3) for j in range(0, rows.shape[3], key_block)], axis=3)


# Behind XLA's attention the same is captured as behind the blocks: one size of cells shows that it is.
@pytest.mark.parametrize(
    ("cells", "blocks", "backend"),
    [
        *((*size, backend) for size in SIZES for backend in (Backend.EINSUM, Backend.BLOCKWISE)),
        (*SIZES[0], Backend.XLA),
    ],
)
def test_pooled_maps_rows_and_tops_are_the_oracles(cells: int, blocks: tuple[int, int], backend: Backend) -> None:
    inputs = arrays()
    weights, logits = expected_map(*inputs[:2])
    within = 1e-6 * np.abs(logits).max()
    capture = Capture(("here",), max_map_size=cells, rows=3, top_k=4, heads=(2, 0))
    assert capture.blocks(Q, K) == blocks
    found = run(*inputs, backend=backend, capture=capture)[1]
    weights = weights[:, [2, 0]]
    np.testing.assert_allclose(found.pooled, pooled_by_hand(weights, *blocks), rtol=0, atol=within)
    np.testing.assert_allclose(found.weights, weights[:, :, [0, 9, 18]], rtol=0, atol=within)
    np.testing.assert_allclose(found.top_weights.weights, -np.sort(-weights, axis=-1)[..., :4], rtol=0, atol=within)
    at_keys = np.take_along_axis(weights, np.asarray(found.top_weights.keys), axis=-1)
    np.testing.assert_allclose(found.top_weights.weights, at_keys, rtol=0, atol=within)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.value)
def test_a_map_of_no_more_positions_than_cells_is_whole(backend: Backend) -> None:
    inputs = arrays()
    found = run(*inputs, backend=backend, capture=Capture(("here",), max_map_size=K, rows=3, top_k=4))[1]
    assert found.pooled is None
    assert found.top_weights is None
    np.testing.assert_array_equal(found.weights, run(*inputs, backend=backend, capture=Capture(("here",)))[1].weights)


@pytest.mark.parametrize("at_once", [1, 8, 128])
def test_a_map_is_pooled_a_few_rows_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer.attention.capture.ROW_CHUNK_SIZE", at_once)
    q, k, _ = arrays()
    weights, logits = expected_map(q, k)
    request = Capture(("here",), max_map_size=10, rows=2, top_k=2)
    scaling = LogitScaling(scale=D**-0.5)
    with jax.default_matmul_precision("highest"):
        found = jax.jit(
            lambda q, k: capture_from_queries_and_keys(q, k, request, terms=LogitTerms(mask()), scaling=scaling)
        )(q, k)
    within = 1e-6 * np.abs(logits).max()
    np.testing.assert_allclose(found.pooled, pooled_by_hand(weights, 2, 4), rtol=0, atol=within)
    np.testing.assert_allclose(found.top_weights.weights, -np.sort(-weights, axis=-1)[..., :2], rtol=0, atol=within)


def test_no_array_of_the_size_of_a_long_map_exists() -> None:
    length, heads = 8192, 8
    one = jax.ShapeDtypeStruct((1, length, heads, 4), jnp.float32)
    request = Capture(("here",), max_map_size=256, rows=8, top_k=8)

    def found(q: jax.Array, k: jax.Array) -> Any:
        return capture_from_queries_and_keys(q, k, request, terms=LogitTerms(Mask(causal=True)), scaling=LogitScaling())

    assert jax.eval_shape(found, one, one).pooled.shape == (1, heads, 256, 256)
    compiled = jax.jit(found).lower(one, one).compile()
    # 128 whole rows of every head and their copies are what is there at once.
    assert compiled.memory_analysis().temp_size_in_bytes < heads * length**2 * 4 / 8


@blocks_and_map
def test_statistics_by_example_add_up_to_those_of_the_batch(backend: Backend) -> None:
    inputs = arrays()
    statistics = tuple(STATISTICS.values())
    whole = run(*inputs, backend=backend, capture=Capture(("here",), maps=False, statistics=statistics))[1]
    apart = run(
        *inputs, backend=backend, capture=Capture(("here",), maps=False, statistics=statistics, by_example=True)
    )[1]
    for name, total in whole.sums.items():
        assert apart.sums[name].shape == (B, H)
        np.testing.assert_allclose(apart.sums[name].sum(axis=0), total, rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(apart.counts[name].sum(axis=0), whole.counts[name])
    weights, _ = expected_map(*inputs[:2])
    np.testing.assert_allclose(
        apart.means()["largest_weight"][1], weights[1, :, :9].max(axis=-1).mean(axis=-1), atol=1e-5
    )


def test_blocks_are_powers_of_two_so_that_levels_nest() -> None:
    for positions in (1, 2, 63, 64, 65, 100, 700, 8191, 8192):
        for cells in (1, 5, 64, 256, 8192):
            block = pooling_block_size(positions, cells)
            assert block & (block - 1) == 0
            assert -(-positions // block) <= cells
            assert block == 1 or -(-positions // (block // 2)) > cells
    weights = np.random.default_rng(0).random((2, 37, 53)).astype(np.float32)
    np.testing.assert_array_equal(max_pool_map(max_pool_map(weights, 2, 4), 4, 2), max_pool_map(weights, 8, 8))
    with pytest.raises(ValueError, match="cells=0"):
        pooling_block_size(5, 0)


def test_rows_are_spread_evenly() -> None:
    assert evenly_spaced_positions(19, 3) == (0, 9, 18)
    assert evenly_spaced_positions(8, 4) == (0, 2, 5, 7)
    assert evenly_spaced_positions(3, 8) == (0, 1, 2)
    assert evenly_spaced_positions(5, 1) == (0,)
    assert evenly_spaced_positions(5, 0) == ()
