"""Batches: a pure function of seed and step, in a few shapes, with every example once an epoch."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.data.batches import BucketedPairBatches, EncodedPairs, OneEpoch, iterate_batches

PAD, BEGIN, END = 0, 1, 2
LENGTHS, TOKENS = (4, 8, 12), 48


def pairs_of(sizes: list[tuple[int, int]]) -> EncodedPairs:
    """Pairs of these source and target lengths; every token tells its example, side and place."""
    made = [
        [
            np.array([*(1000 * n + 100 * side + i for i in range(10, 9 + size)), END], np.int32)
            for n, size in enumerate(column)
        ]
        for side, column in enumerate(zip(*sizes, strict=True))
    ]
    return EncodedPairs(made[0], made[1], pad_id=PAD, bos_id=BEGIN)


def drawn(count: int = 60, longest: int = 12) -> EncodedPairs:
    random = np.random.default_rng(0)
    return pairs_of([tuple(random.integers(1, longest + 1, 2)) for _ in range(count)])


PAIRS = drawn()


def batches(pairs: EncodedPairs = PAIRS, *, seed: int | None = 1, rows_multiple: int = 1) -> BucketedPairBatches:
    return BucketedPairBatches(pairs, lengths=LENGTHS, tokens=TOKENS, seed=seed, rows_multiple=rows_multiple)


def epoch(made: BucketedPairBatches, number: int = 0) -> list[dict[str, np.ndarray]]:
    count = made.batches_per_epoch
    return [made[number * count + position] for position in range(count)]


def indices(found: list[dict[str, np.ndarray]]) -> list[int]:
    return [int(index) for batch in found for index in batch["index"] if index >= 0]


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_every_example_comes_exactly_once_an_epoch(seed: int | None) -> None:
    made = batches(seed=seed)
    for number in range(3):
        assert sorted(indices(epoch(made, number))) == list(range(len(PAIRS)))


def test_a_batch_is_a_pure_function_of_seed_and_step() -> None:
    made, again = batches(), batches()
    steps = [*range(2 * made.batches_per_epoch)]
    forwards = [made[step] for step in steps]
    backwards = {step: again[step] for step in reversed(steps)}  # asked in another order
    assert all(same(batch, backwards[step]) for step, batch in zip(steps, forwards, strict=True))
    # The first batch that is asked for may be any.
    assert same(batches()[steps[-1]], forwards[-1])


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        tuple(indices(epoch(batches(seed=seed), number))) for seed, number in itertools.product((1, 2), (0, 1, 2))
    ]
    assert len(set(orders)) == len(orders)
    assert all(list(order) != sorted(order) for order in orders)


def test_shuffling_mixes_buckets_and_batch_mates() -> None:
    made = batches()
    shapes = [batch["source"].shape[1] for batch in epoch(made)]
    assert shapes != sorted(shapes)
    mates = [{frozenset(indices([batch])) for batch in epoch(made, number)} for number in (0, 1)]
    assert len(mates[0] & mates[1]) < len(mates[0]) / 2


def test_without_a_seed_the_order_is_the_datas() -> None:
    found = epoch(batches(seed=None))
    by_length = {length: indices([b for b in found if b["source"].shape[1] == length]) for length in LENGTHS}
    assert all(order == sorted(order) for order in by_length.values())
    assert [batch["source"].shape[1] for batch in found] == sorted(batch["source"].shape[1] for batch in found)


def test_shapes_are_those_of_the_buckets() -> None:
    found = epoch(batches())
    assert {batch["source"].shape for batch in found} == {(12, 4), (6, 8), (4, 12)}
    for batch in found:
        rows, length = batch["source"].shape
        assert rows * length == TOKENS
        assert batch["target"].shape == batch["labels"].shape == (rows, length)
        assert batch["index"].shape == (rows,)
        assert all(array.dtype == np.int32 for array in batch.values())


@pytest.mark.parametrize("multiple", [1, 4, 8, 5])
def test_rows_are_a_multiple_of_what_is_asked(multiple: int) -> None:
    made = batches(rows_multiple=multiple)
    found = epoch(made)
    for batch in found:
        rows, length = batch["source"].shape
        assert rows % multiple == 0
        # As many examples as one device's batch has, and rows of padding.
        examples = TOKENS // length
        assert rows - multiple < examples <= rows
        assert (batch["index"][examples:] == -1).all()
    assert [list(indices([batch])) for batch in found] == [list(indices([batch])) for batch in epoch(batches())]
    assert sorted(indices(found)) == list(range(len(PAIRS)))


def test_rows_hold_their_example_and_nothing_else() -> None:
    padding = 0
    for batch in epoch(batches()):
        length = batch["source"].shape[1]
        for row, index in enumerate(batch["index"]):
            source, target, labels = (batch[name][row] for name in ("source", "target", "labels"))
            if index < 0:
                padding += 1
                assert not source.any()
                assert not target.any()
                assert not labels.any()
                continue
            own, told = PAIRS.sources[index], PAIRS.targets[index]
            assert max(len(own), len(told)) <= length
            # The shortest length that holds both sides.
            assert length == min(one for one in LENGTHS if one >= max(len(own), len(told)))
            np.testing.assert_array_equal(source, [*own, *[PAD] * (length - len(own))])
            np.testing.assert_array_equal(labels, [*told, *[PAD] * (length - len(told))])
            np.testing.assert_array_equal(target, [BEGIN, *told[:-1], *[PAD] * (length - len(told))])
    assert padding > 0


def test_what_fits_no_length_is_left_out_and_counted() -> None:
    pairs = pairs_of([(3, 3), (13, 2), (2, 13), (12, 12), (40, 40)])
    made = batches(pairs)
    assert made.left_out == 3
    assert sorted(indices(epoch(made))) == [0, 3]
    with pytest.raises(ValueError, match=r"no example fits lengths=\(4, 8, 12\); the shortest has 13"):
        batches(pairs.select([1, 2]))


@given(
    sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 14)), min_size=1, max_size=30),
    seed=st.integers(0, 2**31),
    multiple=st.integers(1, 5),
)
def test_an_epoch_is_a_permutation(sizes: list[tuple[int, int]], seed: int, multiple: int) -> None:
    fit = [n for n, size in enumerate(sizes) if max(size) <= max(LENGTHS)]
    if not fit:
        return
    made = batches(pairs_of(sizes), seed=seed, rows_multiple=multiple)
    assert sorted(indices(epoch(made, 1))) == fit
    assert made.left_out == len(sizes) - len(fit)


def test_one_epoch_ends() -> None:
    made = batches()
    once = OneEpoch(made)
    assert len(once) == made.batches_per_epoch == len(list(once))
    for beyond in (len(once), -1):
        with pytest.raises(IndexError):
            once[beyond]


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (7, 31), (5, 6), (4, 4)])
def test_the_stream_is_the_indexing_from_anywhere(start: int, stop: int) -> None:
    made = batches()
    found = list(iterate_batches(made, start, stop))
    assert len(found) == stop - start
    assert all(same(batch, batches()[start + n]) for n, batch in enumerate(found))


def test_a_part_is_those_examples_in_that_order() -> None:
    part = PAIRS.select([7, 2])
    assert len(part) == 2
    np.testing.assert_array_equal(part.sources[0], PAIRS.sources[7])
    np.testing.assert_array_equal(part.targets[1], PAIRS.targets[2])
