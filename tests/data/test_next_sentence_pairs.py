"""Pairs of texts: whole sentences, half of them followed by what stands behind them, never by a neighbor's label."""

import itertools
from collections import Counter

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.next_sentence_pairs import ELSEWHERE, FOLLOWS, NextSentenceBatches, SentenceBoundaryDetector
from transformer.data.text_batches import SpecialTokenFrame

FRAME = SpecialTokenFrame(256, 257)
BYTES = [bytes([number]) for number in range(256)] + [b"", b""]
CONTEXT = 64


def document(number: int) -> np.ndarray:
    """Sentences that say where they stand: "7-0. 7-1. ..."."""
    text = " ".join(f"{number}-{sentence}{'-' * (sentence % 5)}." for sentence in range(3 + number % 4))
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


DOCUMENTS = [document(number) for number in range(40)]


def pairs(**values: object) -> NextSentenceBatches:
    given: dict[str, object] = {"context_length": CONTEXT, "rows": 8, "seed": 3, "frame": FRAME}
    return NextSentenceBatches(DOCUMENTS, SentenceBoundaryDetector(BYTES), **{**given, **values})  # type: ignore[arg-type]


def test_sentences_end_with_their_mark_and_with_their_paragraph() -> None:
    text = "One. Two 3.14! Why?\n\nA head\n\nEnd"
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    starts = SentenceBoundaryDetector(BYTES).starts(tokens, most=100)
    cuts = [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]
    assert cuts == ["One.", " Two 3.14!", " Why?", "\n\nA head", "\n\nEnd"]
    assert SentenceBoundaryDetector(BYTES).starts(tokens, most=6).tolist() == [0, 4, 10, 14, 19, 25, 27]
    assert SentenceBoundaryDetector(BYTES).starts(tokens[:0], most=6).tolist() == []


def rows(batch: dict[str, np.ndarray]) -> list[tuple[str, str, int]]:
    """Both texts of every row, read by the special tokens, and what they are said to be."""
    found = []
    for tokens, types, length, follows in zip(
        *(batch[k] for k in ("tokens", "types", "lengths", "follows")), strict=True
    ):
        first = int(np.flatnonzero(tokens == 257)[0])
        assert tokens[0] == 256
        assert tokens[length - 1] == 257
        assert (tokens == 257).sum() == 2
        assert not tokens[length:].any()
        np.testing.assert_array_equal(types, (np.arange(CONTEXT) > first) & (np.arange(CONTEXT) < length))
        texts = (bytes(part.astype(np.uint8)).decode() for part in (tokens[1:first], tokens[first + 1 : length - 1]))
        found.append((*texts, int(follows)))
    return found


def test_every_other_second_text_follows_the_first_and_the_rest_do_not() -> None:
    made, whole = pairs(), {bytes(each.astype(np.uint8)).decode() for each in DOCUMENTS}
    seen = [row for step in range(250) for row in rows(made[step])]
    for first, second, follows in seen:
        assert first.endswith(".")
        assert any(first + second in text for text in whole) == (follows == FOLLOWS)
    share = np.mean([follows == FOLLOWS for *_, follows in seen])
    # 2,000 throws of a coin: three standard errors.
    assert abs(share - 0.5) < 0.034
    # The length alone must not give the answer away.
    sizes = {kind: np.mean([len(b) for _, b, follows in seen if follows == kind]) for kind in (FOLLOWS, ELSEWHERE)}
    assert abs(sizes[FOLLOWS] - sizes[ELSEWHERE]) < 2.5
    assert len({first.split("-")[0].strip() for first, *_ in seen}) == len(DOCUMENTS)
    assert max(Counter(first for first, *_ in seen).values()) < 60


def test_pairs_are_a_function_of_seed_and_step_and_come_again_only_where_asked() -> None:
    made, other, again = pairs(), pairs(seed=4), pairs(repeats=True)
    epoch = again.batches_per_epoch
    assert epoch == sum(map(len, DOCUMENTS)) // (8 * (CONTEXT - 3))
    np.testing.assert_array_equal(made[2]["tokens"], pairs()[2]["tokens"])
    assert (made[2]["tokens"] != other[2]["tokens"]).any()
    for name, values in again[1].items():
        np.testing.assert_array_equal(values, again[1 + 3 * epoch][name])
    assert (made[1]["tokens"] != made[1 + epoch]["tokens"]).any()
    numbers = np.concatenate([again[step]["index"] for step in range(epoch)])
    assert numbers.tolist() == list(range(8 * epoch))


def test_what_holds_no_pairs_is_refused() -> None:
    with pytest.raises(UserError, match="no two sentences"):
        NextSentenceBatches(
            [DOCUMENTS[0][:3]], SentenceBoundaryDetector(BYTES), context_length=20, rows=1, seed=0, frame=FRAME
        )
    with pytest.raises(UserError, match="leaves no room for two texts"):
        pairs(context_length=4)
    with pytest.raises(UserError, match="tokenizer lacks one"):
        pairs(frame=SpecialTokenFrame(None, 257))
