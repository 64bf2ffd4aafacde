"""Orders of factorization and segments that follow one another, by counting."""

import itertools
import math

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.factorization_orders import ContextAttention, OrderSampler, PermutedBatches, PermutedSegments
from transformer.data.text_batches import SegmentBatches

LENGTH, ROWS = 24, 20_000
# Written down when each host still made the whole batch: of seed 1, step 5 and four texts of 12 tokens.
PREDICTED = [[2, 3, 6, 7], [1, 4, 9, 10], [3, 4, 10, 11], [3, 4, 5, 9]]
ORDER = [
    [4, 5, 9, 11, 1, 8, 10, 3, 2, 6, 7, 0],
    [10, 0, 2, 3, 6, 8, 1, 9, 11, 4, 7, 5],
    [11, 1, 5, 9, 6, 0, 7, 10, 3, 2, 8, 4],
    [9, 5, 8, 10, 4, 3, 1, 0, 6, 7, 2, 11],
]


@pytest.mark.parametrize("context_attention", ContextAttention)
def test_every_order_is_as_likely_as_any_other(context_attention: ContextAttention) -> None:
    permutations = OrderSampler(LENGTH, partial_prediction_k=6, context_attention=context_attention)
    order, predicted = permutations.draw(np.random.default_rng(1), ROWS)
    assert permutations.num_predicted == 4
    assert predicted.shape == (ROWS, 4)
    assert (np.diff(predicted, axis=1) > 0).all()
    asked = np.zeros((ROWS, LENGTH), bool)
    np.put_along_axis(asked, predicted, True, axis=1)
    # Five standard deviations of a share of 1/6, and of 1/2.
    np.testing.assert_allclose(asked.mean(0), 1 / 6, atol=5 * math.sqrt(5 / 36 / ROWS))
    both = asked[:, 3] & asked[:, 11]
    assert both.mean() == pytest.approx(4 * 3 / (24 * 23), abs=5 * math.sqrt(0.022 / ROWS))
    assert (order[both, 3] < order[both, 11]).mean() == pytest.approx(0.5, abs=5 * math.sqrt(0.25 / both.sum()))
    # What is predicted comes last, each at a place of its own.
    of_asked = np.sort(np.take_along_axis(order, predicted, axis=1), axis=1)
    known = order[~asked].reshape(ROWS, -1)
    assert (known.max(1) < of_asked[:, 0]).all()
    if context_attention is ContextAttention.BIDIRECTIONAL:
        assert not known.any()
        np.testing.assert_array_equal(of_asked, np.broadcast_to([1, 2, 3, 4], of_asked.shape))
    else:
        np.testing.assert_array_equal(np.sort(order, axis=1), np.broadcast_to(np.arange(LENGTH), order.shape))


def test_spans_have_the_lengths_that_are_asked_for() -> None:
    """Of 1 to 3 neighbors, each in a context of six times as many: a sixth of all, lengths about as likely."""
    rows, length = 3000, 180
    permutations = OrderSampler(length, partial_prediction_k=6, max_span_length=3)
    _, predicted = permutations.draw(np.random.default_rng(1), rows)
    assert predicted.shape == (rows, 30)
    asked = np.zeros((rows, length), bool)
    np.put_along_axis(asked, predicted, True, axis=1)
    assert (asked.sum(1) == 30).all()
    edges = np.diff(np.pad(asked, ((0, 0), (1, 1))).astype(int), axis=1)
    runs = np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
    # Two spans may touch, and single positions fill up what spans leave: 1, 2 and 3 lie near a third, more are rare.
    shares = np.bincount(runs, minlength=4)[1:4] / len(runs)
    assert (np.abs(shares - 1 / 3) < 0.08).all(), shares
    assert (runs > 3).mean() < 0.08
    plain = OrderSampler(length, partial_prediction_k=6).draw(np.random.default_rng(1), rows).predicted
    assert np.mean(np.diff(plain, axis=1) == 1) == pytest.approx(29 / 179, abs=0.02)
    assert np.mean(np.diff(predicted, axis=1) == 1) > 0.4


def test_batches_are_a_function_of_seed_and_step() -> None:
    lanes = SegmentBatches(np.arange(200), context_length=8, rows=3, seed=1)
    made = [PermutedBatches(lanes, OrderSampler(8, partial_prediction_k=2), seed=1)[step] for step in (4, 4, 5)]
    for name in ("tokens", "order", "predicted"):
        np.testing.assert_array_equal(made[0][name], made[1][name])
        assert (made[0][name] != made[2][name]).any(), name
    other = PermutedBatches(lanes, OrderSampler(8, partial_prediction_k=2), seed=2)[4]
    assert (other["order"] != made[0]["order"]).any()


class CountingStream:
    """A stream of tokens that counts those that are read."""

    def __init__(self) -> None:
        self.num_read = 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, stretch: slice) -> np.ndarray:
        self.num_read += stretch.stop - stretch.start
        return np.arange(200)[stretch]


@pytest.mark.parametrize("span", [1, 3])
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_together_make_the_batch_and_each_reads_and_permutes_its_rows_only(
    monkeypatch: pytest.MonkeyPatch, hosts: int, span: int
) -> None:
    stream = CountingStream()
    lanes = SegmentBatches(stream, context_length=12, rows=4, seed=1)
    source = PermutedSegments(lanes, OrderSampler(12, 3, span), seed=1)
    sorted_rows = []
    argsort = np.argsort
    monkeypatch.setattr(np, "argsort", lambda array, **axis: sorted_rows.append(len(array)) or argsort(array, **axis))
    for step in (0, 5, 10**6):
        whole = source[step]
        parts = []
        for start in range(0, 4, 4 // hosts):
            stream.num_read = 0
            sorted_rows.clear()
            parts.append(source.read_rows(step, start, start + 4 // hosts))
            assert stream.num_read == 4 // hosts * 13
            assert set(sorted_rows) == {4 // hosts}
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_orders_are_those_of_recorded_runs() -> None:
    lanes = SegmentBatches(np.arange(200), context_length=12, rows=4, seed=1)
    batch = PermutedSegments(lanes, OrderSampler(12, 3, 3), seed=1)[5]
    assert batch["predicted"].tolist() == PREDICTED
    plain = PermutedSegments(lanes, OrderSampler(12, 3, context_attention=ContextAttention.PERMUTED), seed=1)[5]
    assert plain["order"].tolist() == ORDER


def test_each_row_goes_on_where_it_ended() -> None:
    stream = np.arange(100) % 97
    lanes = SegmentBatches(stream, context_length=5, rows=3, seed=4)
    assert lanes.batches_per_epoch == 6
    epochs = [[lanes[epoch * 6 + number] for number in range(6)] for epoch in range(2)]
    for batches in epochs:
        for number, batch in enumerate(batches):
            np.testing.assert_array_equal(batch["past"], [5 * number] * 3)
            np.testing.assert_array_equal(batch["lane"], range(3))
            np.testing.assert_array_equal(batch["labels"][:, :-1], batch["tokens"][:, 1:])
            np.testing.assert_array_equal(batch["tokens"], stream[batch["index"][:, None] + np.arange(5)])
        for before, behind in itertools.pairwise(batches):
            np.testing.assert_array_equal(before["labels"][:, -1], behind["tokens"][:, 0])
        read = np.concatenate([batch["index"][:, None] + np.arange(5) for batch in batches]).ravel()
        assert len(np.unique(read)) == 90  # no place twice
    begins = {int(SegmentBatches(stream, context_length=5, rows=3, seed=seed)[0]["index"][0]) for seed in range(200)}
    assert begins == set(range(10))
    with pytest.raises(UserError, match="rows=30 of context_length=5"):
        SegmentBatches(stream, context_length=5, rows=30, seed=0)


def test_segments_are_cut_elsewhere_in_another_epoch() -> None:
    lanes = SegmentBatches(np.arange(100), context_length=5, rows=3, seed=4)
    assert len({int(lanes[6 * epoch]["index"][0]) for epoch in range(10)}) > 3


def test_the_same_texts_have_other_orders_in_another_epoch() -> None:
    class Same:
        batches_per_epoch = 2

        def __getitem__(self, step: int) -> dict[str, np.ndarray]:
            return {"tokens": np.arange(8)[None] + step % 2}

    source = PermutedBatches(Same(), OrderSampler(8, partial_prediction_k=2), seed=5)
    orders = [source[step]["order"].tobytes() for step in range(8)]
    assert len(set(orders)) == 8
    assert orders == [PermutedBatches(Same(), OrderSampler(8, 2), seed=5)[step]["order"].tobytes() for step in range(8)]
