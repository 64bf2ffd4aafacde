"""Packing: first-fit, every token once an epoch, and labels that never cross a document."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import UserError
from transformer.data.batches import OneEpoch
from transformer.data.packing import Chunk, PackedBatches, fill_rows, first_fit

SIZES = (3, 20, 1, 8, 0, 5, 16, 2, 2, 7)


def documents_of(sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Documents whose tokens tell their document and place."""
    return [np.arange(100 * n, 100 * n + size, dtype=np.int32) for n, size in enumerate(sizes, start=1)]


@given(st.lists(st.integers(1, 12), max_size=60))
def test_each_item_goes_to_the_first_bin_with_room(sizes: list[int]) -> None:
    left: list[int] = []
    expected = []
    for size in sizes:
        fits = [number for number, room in enumerate(left) if room >= size]
        if not fits:
            left.append(12)
            fits = [len(left) - 1]
        left[fits[0]] -= size
        expected.append(fits[0])
    assert first_fit(sizes, 12) == expected


@pytest.mark.parametrize("end", [9, None])
@pytest.mark.parametrize("seed", [None, 4])
def test_every_token_comes_once_and_predicts_its_own_next(end: int | None, seed: int | None) -> None:
    documents = documents_of(SIZES)
    made = PackedBatches(documents, context_length=8, rows=3, seed=seed, end=end)
    after = {int(one): int(other) for d in documents for one, other in itertools.pairwise(d)}
    for epoch in range(2):
        found, pairs = [], {}
        for position in range(made.batches_per_epoch):
            batch = made[epoch * made.batches_per_epoch + position]
            real = batch["segments"] > 0
            found += batch["tokens"][real].tolist()
            assert not batch["counts"][~real].any()
            assert (batch["tokens"][~real] == 0).all()
            pairs |= dict(zip(batch["tokens"][batch["counts"]], batch["labels"][batch["counts"]], strict=True))
        assert sorted(found) == sorted(int(token) for document in documents for token in document)
        last = {int(d[-1]): end for d in documents if len(d)} if end is not None else {}
        assert {int(one): int(other) for one, other in pairs.items()} == after | last


def test_a_segment_is_one_chunk_with_positions_of_its_own() -> None:
    made = PackedBatches(documents_of(SIZES), context_length=8, rows=3, seed=4, end=9)
    positions = real = 0
    for batch in OneEpoch(made):
        for tokens, segments, places in zip(batch["tokens"], batch["segments"], batch["positions"], strict=True):
            assert set(segments.tolist()) - {0} == set(range(1, segments.max() + 1))
            for segment in range(1, segments.max() + 1):
                here = segments == segment
                assert np.array_equal(places[here], np.arange(here.sum()))
                assert (np.diff(np.flatnonzero(here)) == 1).all()
                assert len({int(token) // 100 for token in tokens[here]}) == 1
            positions += len(tokens)
            real += (segments > 0).sum()
    assert made.padding == pytest.approx(1 - real / positions)


def test_order_is_a_pure_function_of_seed_and_epoch() -> None:
    def order(seed: int | None, epoch: int) -> list[int]:
        made = PackedBatches(documents_of((8,) * 20), context_length=8, rows=3, seed=seed, end=None)
        steps = range(epoch * made.batches_per_epoch, (epoch + 1) * made.batches_per_epoch)
        return [int(number) for step in steps for number in made[step]["index"] if number >= 0]

    assert order(None, 1) == list(range(20))
    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="the text has no tokens"):
        PackedBatches(documents_of((0, 0)), context_length=8, rows=3, seed=None, end=None)


def test_what_fits_into_no_row_is_cut_to_fill_the_rows_with_the_most_room() -> None:
    assert fill_rows([4, 4, 3, 9, 0], 8, 3) == [
        [Chunk(0, 0, 4), Chunk(1, 0, 4)],
        [Chunk(2, 0, 3), Chunk(3, 8, 9)],
        [Chunk(3, 0, 8)],
    ]
    assert fill_rows([5, 6, 5, 8], 8, 3) == [
        [Chunk(0, 0, 5), Chunk(3, 0, 3)],
        [Chunk(1, 0, 6), Chunk(3, 6, 8)],
        [Chunk(2, 0, 5), Chunk(3, 3, 6)],
    ]
