"""Rings of keys and values: written at one slot, and read by the rows that share one as if each had its own."""

from typing import Any

import jax
import numpy as np
import pytest

from transformer.attention.attention_spec import AttentionSpec
from transformer.layers.kv_cache import (
    IN_PLACE,
    MOST_SHARED,
    attend_to_cache,
    fill_cache,
    gather_from_writers,
    initial_ancestors,
    repeat_cache,
    slot_positions,
    slot_writers,
    update_ancestors,
    write_slot,
)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shares", [3, IN_PLACE + 1])
def test_a_ring_is_written_at_each_rows_own_slot_and_nowhere_else(shares: int) -> None:
    cache, new, position = random(shares, 2, 4, 5, 6), random(4 * shares, 1, 2, 6), [4, 10, 7] * (shares // 3)
    expected = cache.copy()
    for row in range(4 * shares):
        expected[row // 4, :, row % 4, position[row // 4] % 5] = new[row, 0]
    written = jax.jit(write_slot)(cache, new, np.repeat(np.int32(position), 4))
    np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize("slots", [1, 3, 7])
def test_a_ring_holds_the_newest_positions_as_if_written_one_by_one(slots: int) -> None:
    values, last = random(4, 7, 1, 2), np.int32([6, 0, 3, -1])
    expected, held = np.zeros((4, slots, 1, 2), np.float32), np.full((4, slots), -1)
    for row, newest in enumerate(last):
        for position in range(newest + 1):
            expected[row, position % slots] = values[row, position]
            held[row, position % slots] = position
    filled, positions = jax.jit(lambda values, last: (fill_cache(values, last, slots), slot_positions(last, slots)))(
        values, last
    )
    np.testing.assert_array_equal(filled, expected)
    np.testing.assert_array_equal(np.maximum(positions, -1), held)


@pytest.mark.parametrize(
    "num_beams", [pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow), MOST_SHARED + 1]
)
def test_beams_read_the_history_of_their_ancestors(num_beams: int) -> None:
    """Beside lists of keys that are copied from parent to child, over more positions than a cache has slots."""
    examples, groups, heads, depth, slots, steps = 2, 2, 4, 3, 4, 7
    rows, shared = examples * num_beams, num_beams if num_beams <= MOST_SHARED else 1
    draws = np.random.default_rng(num_beams)
    empty = jax.jit(repeat_cache, static_argnums=1)(np.zeros((examples, slots, groups, depth), np.float32), num_beams)
    caches, ancestors = (empty, empty), jax.jit(initial_ancestors, static_argnums=(0, 1, 2))(rows, num_beams, steps)

    @jax.jit
    def advance(caches: Any, ancestors: Any, position: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        ancestors = update_ancestors(ancestors, position, shared)
        caches = tuple(write_slot(cache, new, position) for cache, new in zip(caches, (k, v), strict=True))
        held = slot_positions(position, slots)
        writers = slot_writers(ancestors, held)
        found = attend_to_cache(q, caches, held >= 0, writers, AttentionSpec(), bias)
        return caches, ancestors, found, gather_from_writers(caches[0], writers)

    histories: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(rows)]
    for step in range(steps):
        k, v = (random(rows, 1, groups, depth, seed=10 * step + side) for side in (1, 2))
        q, bias = random(rows, 1, heads, depth, seed=10 * step), random(rows, heads, 1, slots, seed=10 * step + 3)
        caches, ancestors, found, copied = jax.device_get(
            advance(caches, ancestors, np.full(rows, step, np.int32), q, k, v, bias)
        )
        for row, history in enumerate(histories):
            history.append((k[row, 0], v[row, 0]))
            newest = history[-slots:]
            places = [(len(history) - len(newest) + number) % slots for number in range(len(newest))]
            for head in range(heads):
                group = head // (heads // groups)
                scores = [one @ q[row, 0, head] / depth**0.5 for one in (key[group] for key, _ in newest)]
                weights = np.exp(np.array(scores) + bias[row, head, 0, places])
                expected = sum(w * value[group] for w, (_, value) in zip(weights / weights.sum(), newest, strict=True))
                np.testing.assert_allclose(found[row, 0, head], expected, atol=1e-5)
            np.testing.assert_array_equal(copied[row, places], [key for key, _ in newest])
        if num_beams > 1:
            parents = np.concatenate(
                [draws.integers(0, num_beams, num_beams) + num_beams * number for number in range(examples)]
            )
            histories = [list(histories[parent]) for parent in parents]
            ancestors = ancestors[parents]
            if shared == 1:
                caches = tuple(cache[parents] for cache in caches)


@pytest.mark.parametrize("num_beams", [1, 3, 9])
def test_every_beam_begins_with_the_cache_of_its_own_example(num_beams: int) -> None:
    """Whether beams share one cache or, where there are many, have one each."""
    values = (10.0 * np.arange(2)[:, None] + np.arange(4))[..., None, None]
    shares = np.asarray(jax.jit(repeat_cache, static_argnums=1)(values.astype(np.float32), num_beams))
    rows = np.moveaxis(shares, 2, 1).reshape(2 * num_beams, 4)
    np.testing.assert_array_equal(rows, np.repeat(values[..., 0, 0], num_beams, axis=0))
