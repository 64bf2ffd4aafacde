"""Batches of token shards: a random order found in O(1), the same for any number of hosts, and exact proportions."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.token_mixture import TokenMixture, TokenRange, TokenShardBatches, permute
from transformer.data.token_shards import ShardIndex, TokenShards

END = 9


class ArrayShards:
    """Tokens in memory, in place of those of a folder."""

    folder = Path("shards")
    index = ShardIndex(2, "0" * 64, "0" * 64, 10**9, END, (), (), (), (), "0" * 64)

    def __init__(self, tokens: np.ndarray):
        self.tokens, self.reads = tokens, 0

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start <= stop <= len(self.tokens)
        self.reads += stop - start
        return self.tokens[start:stop].astype(np.int32)


def token_range(tokens: np.ndarray, start: int = 0) -> TokenRange:
    return TokenRange(cast(TokenShards, ArrayShards(tokens)), start, len(tokens))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 1000, 4097])
def test_the_order_is_a_permutation_of_every_size(size: int) -> None:
    found = permute(np.arange(size), size, (1, 2, 3))
    assert sorted(found) == list(range(size))
    if size > 16:
        assert not np.array_equal(found, permute(np.arange(size), size, (1, 2, 4)))
        # Neither fixed points nor neighbors beyond chance.
        assert np.mean(found == np.arange(size)) < 0.5
        assert np.mean(np.abs(np.diff(found)) == 1) < 0.3
    np.testing.assert_array_equal(permute(np.arange(size)[::-1].reshape(1, -1), size, (1, 2, 3))[0], found[::-1])


def test_the_permutation_of_large_sizes_is_even() -> None:
    size = 10**12 + 39
    found = permute(np.arange(20_000), size, (5,))
    assert len(set(found.tolist())) == 20_000
    counts = np.histogram(found, bins=20, range=(0, size))[0]
    assert np.sum((counts - 1000) ** 2 / 1000) < 43.8  # of chi squared with 19 degrees of freedom beyond 0.1%
    correlation = np.corrcoef(found, np.arange(20_000))[0, 1]
    assert abs(correlation) < 0.03


def test_an_epoch_has_every_window_once_and_the_next_another_order() -> None:
    tokens = np.arange(1000, 1000 + 53)
    batches = TokenShardBatches(TokenMixture((token_range(tokens),)), context_length=5, rows=2, seed=3)
    rows = np.concatenate([batches[step]["tokens"] for step in range(10)])
    labels = np.concatenate([batches[step]["labels"] for step in range(10)])
    np.testing.assert_array_equal(labels, rows + 1)
    epochs = rows[:10], rows[10:]
    for epoch in epochs:
        first = epoch.min()
        assert 1000 <= first <= 1002  # three windows' beginnings leave 52 = 10 x 5 + 2 labels
        np.testing.assert_array_equal(np.sort(epoch.reshape(-1)), np.arange(first, first + 50))
    assert not np.array_equal(epochs[0] - epochs[0].min(), epochs[1] - epochs[1].min())


@pytest.mark.parametrize("packed", [False, True])
def test_hosts_together_read_the_batch_of_one_host_and_each_its_rows_only(packed: bool) -> None:
    random = np.random.default_rng(0)
    sets = tuple(token_range(random.integers(0, 50, size), start) for size, start in ((5000, 0), (3000, 100)))
    batches = TokenShardBatches(TokenMixture(sets, (0.3, 0.7)), context_length=16, rows=8, seed=7, packed=packed)
    for step in (0, 3, 1_000_000):
        whole = batches[step]
        for hosts in (1, 2, 4):
            parts = []
            for host in range(hosts):
                before = sum(cast(ArrayShards, each.shards).reads for each in sets)
                parts.append(batches.read_rows(step, host * 8 // hosts, (host + 1) * 8 // hosts))
                read = sum(cast(ArrayShards, each.shards).reads for each in sets) - before
                if not packed:
                    assert read == 8 // hosts * 17
            for name, values in whole.items():
                np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
    again = TokenShardBatches(TokenMixture(sets, (0.3, 0.7)), context_length=16, rows=8, seed=7, packed=packed)
    np.testing.assert_array_equal(again[1_000_000]["tokens"], batches[1_000_000]["tokens"])
    other = TokenShardBatches(TokenMixture(sets, (0.3, 0.7)), context_length=16, rows=8, seed=8, packed=packed)
    assert not np.array_equal(other[0]["tokens"], batches[0]["tokens"])


def test_a_mixture_has_its_sets_in_proportion_and_each_in_epochs_of_its_own() -> None:
    sizes, weights = (41, 801, 8001), (0.5, 0.3, 0.2)
    sets = tuple(token_range(1000 * number + np.arange(size) % 500) for number, size in enumerate(sizes))
    batches = TokenShardBatches(TokenMixture(sets, weights), context_length=4, rows=4096, seed=1)
    batch = batches[0]
    sets_of_rows = batch["tokens"][:, 0] // 1000
    assert np.bincount(sets_of_rows).tolist() == [2048, 1229, 819]  # of 4,096 rows, to the nearest
    for start in (0, 2000):  # and about as many anywhere
        few = np.bincount(sets_of_rows[start : start + 64], minlength=3)
        assert np.all(np.abs(few - 64 * np.array(weights)) < 20)
    index = batch["index"]
    # 2,048 rows are 204 epochs of ten windows and eight more; 1,229 are six of 200 and 29; 819 of 2,000 are not one.
    for number, most in ((0, 205), (1, 7), (2, 1)):
        counts = np.bincount(index[sets_of_rows == number], minlength=(sizes[number] - 1) // 4)
        assert set(counts) == {most - 1, most}
    assert len(np.unique(index[sets_of_rows == 2])) == 819


def test_a_weight_too_small_for_a_row_in_4096_still_has_one() -> None:
    sets = tuple(token_range(np.full(100, number)) for number in range(2))
    batches = TokenShardBatches(TokenMixture(sets, (1 - 1e-9, 1e-9)), context_length=4, rows=4096, seed=0)
    assert np.bincount(batches[2]["tokens"][:, 0]).tolist() == [4095, 1]


def test_packed_documents_are_segments_whose_last_label_does_not_count() -> None:
    tokens = np.array([1, 2, END, 3, END, END, 4, 5, 6, 7, 8])
    batch = TokenShardBatches(TokenMixture((token_range(tokens),)), context_length=10, rows=1, seed=0, packed=True)[0]
    assert batch["tokens"].tolist() == [tokens[:10].tolist()]
    assert batch["labels"].tolist() == [tokens[1:].tolist()]
    assert batch["segments"].tolist() == [[1, 1, 1, 2, 2, 3, 4, 4, 4, 4]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0, 1, 0, 0, 1, 2, 3]]
    assert batch["counts"].tolist() == [[True, True, False, True, False, False, True, True, True, True]]


def documents_of(sizes: list[int]) -> np.ndarray:
    """Documents of tokens that tell them apart, each with its end token; its own tokens follow one another."""
    return np.concatenate([np.append(1000 * (number + 1) + np.arange(size), END) for number, size in enumerate(sizes)])


def test_packed_rows_hold_whole_documents_and_every_token_once() -> None:
    random = np.random.default_rng(0)
    sizes = [*random.integers(1, 30, 900).tolist(), 150]
    tokens = documents_of(sizes)
    context, rows = 64, 4
    batches = TokenShardBatches(
        TokenMixture((token_range(tokens),)), context_length=context, rows=rows, seed=0, packed=True
    )
    (windows,) = batches._windows
    assert 16 <= windows.num_rows <= 32
    assert windows.size >= 0.98 * windows.num_rows * context
    epoch, num_read = windows.num_windows * windows.num_rows, windows.num_windows * windows.size
    assert num_read > 0.98 * len(tokens)
    found = [batches.read_rows(step, row, row + 1) for step in range(-(-epoch // rows)) for row in range(rows)][:epoch]
    assert sorted(int(each["index"][0]) for each in found) == list(range(epoch))
    assert all(np.any(each["counts"]) for each in found)
    read = np.concatenate([each["tokens"][each["segments"] > 0] for each in found])
    first = int(np.flatnonzero(tokens == min(read[read != END]))[0])
    np.testing.assert_array_equal(np.sort(read), np.sort(tokens[first : first + num_read]))
    following = dict(zip(tokens.tolist(), tokens[1:].tolist(), strict=False))
    pieces = 0
    for each in found:
        row = {name: values[0] for name, values in each.items()}
        np.testing.assert_array_equal(row["counts"], (row["segments"] > 0) & (row["tokens"] != END))
        for segment in range(1, row["segments"].max() + 1):
            inside = row["segments"] == segment
            pieces += 1
            # One document, in its order, the position 0 first, and every label its next token.
            assert np.all(np.diff(np.flatnonzero(inside)) == 1)
            own = row["tokens"][inside]
            np.testing.assert_array_equal(row["positions"][inside], np.arange(len(own)))
            np.testing.assert_array_equal(own[1:], row["labels"][inside][:-1])
            assert END not in own[:-1]
            for token, label in zip(own, row["labels"][inside], strict=True):
                assert token == END or label == following[int(token)]
    # Rows of 64 successive tokens would cut one document each.
    assert pieces - len(sizes) < 0.2 * epoch


def test_packed_rows_are_found_at_any_step_and_read_by_windows() -> None:
    tokens = documents_of(np.random.default_rng(1).integers(1, 30, 2000).tolist())
    mixture = TokenMixture((token_range(tokens),))
    batches = TokenShardBatches(mixture, context_length=16, rows=32, seed=0, packed=True)
    shards = cast(ArrayShards, mixture.sets[0].shards)
    batches[10**9]
    (windows,) = batches._windows
    assert shards.reads <= (32 // windows.num_rows + 2) * (windows.size + 1)
    again = TokenShardBatches(mixture, context_length=16, rows=32, seed=0, packed=True)
    for step in (7, 3, 10**9):
        np.testing.assert_array_equal(again[step]["tokens"], batches[step]["tokens"])


def test_a_set_without_one_window_is_refused() -> None:
    with pytest.raises(UserError, match="shards has 8 tokens for training and a window needs 9"):
        TokenShardBatches(TokenMixture((token_range(np.arange(8)),)), context_length=8, rows=1, seed=0)
