"""Windows of a stream: crops drawn from seed and step, and every token once to evaluate."""

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.batches import OneEpoch, iterate_batches
from transformer.data.text_batches import SpecialTokenFrame, WindowBatches, join_documents

TOKENS = np.arange(100, 157, dtype=np.int32)


def test_documents_are_joined_with_the_end_behind_each() -> None:
    documents = [np.int32([5, 6]), np.int32([]), np.int32([7])]
    assert join_documents(documents, 9).tolist() == [5, 6, 9, 9, 7, 9]
    assert join_documents(documents, None).tolist() == [5, 6, 7]
    assert join_documents([], None).tolist() == []


def test_crops_are_a_pure_function_of_seed_and_step_and_reach_every_place() -> None:
    made = WindowBatches(TOKENS, context_length=8, rows=4, seed=3)
    starts = set()
    for step in range(200):
        batch = made[step]
        assert set(batch) == {"tokens", "labels", "index"}
        np.testing.assert_array_equal(batch["tokens"], 100 + batch["index"][:, None] + np.arange(8))
        np.testing.assert_array_equal(batch["labels"], batch["tokens"] + 1)
        np.testing.assert_array_equal(
            WindowBatches(TOKENS, context_length=8, rows=4, seed=3)[step]["index"], batch["index"]
        )
        starts |= set(batch["index"].tolist())
    assert starts == set(range(len(TOKENS) - 8))
    assert not np.array_equal(made[0]["index"], WindowBatches(TOKENS, context_length=8, rows=4, seed=4)[0]["index"])


@pytest.mark.parametrize("size", [2, 8, 9, 10, 33, 57])
def test_an_evaluation_predicts_every_token_but_the_first_once(size: int) -> None:
    made = WindowBatches(TOKENS[:size], context_length=8, rows=3, seed=None, pad=1)
    told, read = [], []
    for batch in OneEpoch(made):
        assert batch["tokens"].shape == batch["labels"].shape == (3, 8)
        assert ((batch["index"] < 0) == (batch["lengths"] == 0)).all()
        for row, length in enumerate(batch["lengths"]):
            read += batch["tokens"][row, :length].tolist()
            told += batch["labels"][row, :length].tolist()
            assert (batch["tokens"][row, length:] == 1).all()
            assert (batch["labels"][row, length:] == 1).all()
    assert told == TOKENS[1:size].tolist()
    assert read == TOKENS[: size - 1].tolist()


@pytest.mark.parametrize(("begin", "end"), [(1, 2), (None, None), (None, 2)])
def test_windows_read_whole_stand_in_their_frame(begin: int | None, end: int | None) -> None:
    made = WindowBatches(TOKENS, context_length=10, rows=4, seed=None, frame=SpecialTokenFrame(begin, end))
    found = []
    for batch in OneEpoch(made):
        assert set(batch) == {"tokens", "lengths", "index"}
        for tokens, length in zip(batch["tokens"], batch["lengths"], strict=True):
            inner = tokens[:length].tolist()
            if length and begin is not None:
                assert inner.pop(0) == begin
            if length and end is not None:
                assert inner.pop() == end
            found += inner
    assert found == TOKENS.tolist()
    crop = WindowBatches(TOKENS, context_length=10, rows=4, seed=1, frame=SpecialTokenFrame(begin, end))[5]
    assert set(crop) == {"tokens", "index"}
    assert (np.diff(crop["tokens"][:, 1:-1]) == 1).all()


def test_windows_in_epochs_come_once_each_in_an_order_of_seed_and_epoch() -> None:
    made = WindowBatches(TOKENS, context_length=10, rows=3, seed=1, frame=SpecialTokenFrame(1, 2), crops=False)
    epochs = []
    for epoch in range(3):
        batches = [made[epoch * made.batches_per_epoch + number] for number in range(made.batches_per_epoch)]
        index = np.concatenate([batch["index"] for batch in batches])
        tokens = np.concatenate([batch["tokens"] for batch in batches])
        lengths = np.concatenate([batch["lengths"] for batch in batches])
        assert sorted(index[index >= 0]) == list(range(8))
        for number, row, length in zip(index, tokens, lengths, strict=True):
            inner = row[1 : length - 1] if number >= 0 else row[:0]
            np.testing.assert_array_equal(inner, TOKENS[8 * number : 8 * number + 8] if number >= 0 else [])
        epochs.append(index.tolist())
    assert epochs[0] != epochs[1] != epochs[2]
    assert (
        made[4]["index"].tolist()
        == WindowBatches(TOKENS, context_length=10, rows=3, seed=1, frame=SpecialTokenFrame(1, 2), crops=False)[4][
            "index"
        ].tolist()
    )


def test_the_stream_of_batches_is_the_indexing() -> None:
    made = WindowBatches(TOKENS, context_length=8, rows=2, seed=1)
    for step, batch in enumerate(iterate_batches(made, 4, 9), start=4):
        np.testing.assert_array_equal(batch["tokens"], made[step]["tokens"])


def test_too_short_a_text_is_refused() -> None:
    WindowBatches(TOKENS[:9], context_length=8, rows=2, seed=1)
    with pytest.raises(UserError, match="the text has 8 tokens and a window needs 9"):
        WindowBatches(TOKENS[:8], context_length=8, rows=2, seed=1)
    with pytest.raises(UserError, match="the text has 1 tokens"):
        WindowBatches(TOKENS[:1], context_length=8, rows=2, seed=None)
    with pytest.raises(UserError, match="leaves no room"):
        WindowBatches(TOKENS, context_length=2, rows=2, seed=1, frame=SpecialTokenFrame(1, 2))
