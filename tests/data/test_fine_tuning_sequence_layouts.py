"""Input forms: the sequences of the paper's figure 1, token by token, and what a cut takes away."""

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat, SequenceLayout

MARKS = DelimiterTokens.from_format(SequenceFormat.GPT, 10, None, None)
(S,), (D,), (E,) = MARKS
A, B, C = [1, 2, 3], [4, 5], [6]


@pytest.mark.parametrize(
    ("form", "texts", "expected"),
    [
        (SequenceLayout.SINGLE, [A], [[S, 1, 2, 3, E]]),
        (SequenceLayout.PAIR, [A, B], [[S, 1, 2, 3, D, 4, 5, E]]),
        (SequenceLayout.UNORDERED, [A, B], [[S, 1, 2, 3, D, 4, 5, E], [S, 4, 5, D, 1, 2, 3, E]]),
        (SequenceLayout.CHOICE, [A, B, C], [[S, 1, 2, 3, D, 4, 5, E], [S, 1, 2, 3, D, 6, E]]),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
def test_sequences_are_those_of_the_paper(
    form: SequenceLayout, texts: list[list[int]], expected: list[list[int]]
) -> None:
    assert [MARKS.join_texts(each) for each in form.arrange_texts(texts)] == expected
    assert form.num_sequences(len(texts)) == len(expected)
    assert (S, D, E) == (10, 11, 12)


def test_a_cut_takes_the_ends_of_the_longest_texts_and_never_a_mark() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        texts = [random.integers(0, 10, size).tolist() for size in random.integers(1, 9, 2)]
        longest = int(random.integers(5, 14))
        row = MARKS.join_texts(texts, longest)
        assert (row[0], row[-1]) == (S, E)
        assert len(row) == min(longest, len(texts[0]) + len(texts[1]) + 3)
        first, second = row[1 : row.index(D)], row[row.index(D) + 1 : -1]
        for kept, text in zip((first, second), texts, strict=True):
            assert kept == text[: len(kept)]
        if len(first) < len(texts[0]) or len(second) < len(texts[1]):
            # What is cut is no shorter than what is whole, within the token that is left over.
            cut = [len(kept) for kept, text in zip((first, second), texts, strict=True) if len(kept) < len(text)]
            assert max(len(first), len(second)) - min(cut) <= 1
    assert MARKS.join_texts([A], 4) == [S, 1, 2, E]


def test_sequences_of_encoders_stand_between_the_tokenizers_own_tokens() -> None:
    bert = DelimiterTokens.from_format(SequenceFormat.BERT, 10, 8, 9)
    roberta = DelimiterTokens.from_format(SequenceFormat.ROBERTA, 10, 8, 9)
    assert (bert.join_texts([A]), bert.join_texts([A, B])) == ([8, *A, 9], [8, *A, 9, *B, 9])
    assert (roberta.join_texts([A]), roberta.join_texts([A, B])) == ([8, *A, 9], [8, *A, 9, 9, *B, 9])
    assert roberta.join_texts([A, B], 7) == [8, 1, 2, 9, 9, 4, 9]
    xlnet = DelimiterTokens.from_format(SequenceFormat.XLNET, 10, 8, 9)
    assert (xlnet.join_texts([A]), xlnet.join_texts([A, B])) == ([*A, 9, 8], [*A, 9, *B, 9, 8])
    assert xlnet.join_texts([A, B], 7) == [1, 2, 9, 4, 5, 9, 8]
    bart = DelimiterTokens.from_format(SequenceFormat.BART, 10, 8, 9)
    assert bart == roberta
    t5 = DelimiterTokens.from_format(SequenceFormat.T5, 10, None, 9)
    assert (t5.join_texts([A]), t5.join_texts([A, B]), t5.begin_is_last) == ([*A, 9], [*A, 9, *B, 9], False)
    plain, begun = (DelimiterTokens.from_format(SequenceFormat.PLAIN, 10, begin, 9) for begin in (None, 8))
    assert (plain.join_texts([A]), plain.join_texts([A, B]), begun.join_texts([A, B])) == (A, [*A, *B], [8, *A, *B])
    assert [each.begin_is_last for each in (bert, roberta, xlnet, plain, begun)] == [False, False, True, False, False]
    with pytest.raises(UserError, match=r"sequence_format=bert puts texts between .* the run's tokenizer lacks one"):
        DelimiterTokens.from_format(SequenceFormat.BERT, 10, 8, None)


def test_of_two_equal_texts_the_second_is_cut_as_in_berts_code() -> None:
    bert = DelimiterTokens((0,), (9,), (9,))
    for first in range(8):
        for second in range(8):
            one, other = list(range(1, first + 1)), list(range(11, second + 11))
            row = bert.join_texts([one, other], 9)
            while len(one) + len(other) > 9 - 3:
                if len(one) > len(other):
                    one.pop()
                else:
                    other.pop()
            assert row == [0, *one, 9, *other, 9]
