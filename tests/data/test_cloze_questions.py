"""Questions of running text: candidates that stand before the gap, answers that do not follow it, and their room."""

import numpy as np

from transformer.data.cloze_questions import NUM_CANDIDATES, WORD, ClozeQuestion, WordFrequencies, make_cloze_questions
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.train_tokenizer import byte_tokenizer

NAMES = ["Ada", "Bela", "Cora", "Dora", "Edna", "Fred", "Gina", "Hugo", "Ines", "Jens", "Kurt", "Lena"]
THINGS = ["apple", "bread", "chair", "drums", "eagle", "flute", "grape", "house", "igloo", "jelly", "knife", "lemon"]
# So many words more often than any other that they are the common ones.
COMMON = " ".join(chr(97 + number // 10) * 2 + chr(97 + number % 10) for number in range(100))


def sentences(count: int, seed: int) -> str:
    random = np.random.default_rng(seed)

    def one() -> str:
        name, other = random.choice(NAMES, 2, replace=False)
        return f"{name} gave {other} the {random.choice(THINGS)} and the {random.choice(THINGS)}"

    return ". ".join(one() for _ in range(count)) + "."


FREQUENT = f"{COMMON} {COMMON} gave gave and and the the the " * 50


def lexicon() -> WordFrequencies:
    return WordFrequencies.count_words([FREQUENT, sentences(40, 0)])


def made(*, room: int, last: bool = False) -> tuple[list[ClozeQuestion], FastTokenizer]:
    tokenizer = byte_tokenizer()
    return make_cloze_questions([sentences(60, 1)], lexicon(), tokenizer, count=40, room=room, last=last), tokenizer


def test_the_frequent_and_the_short_are_not_asked_for() -> None:
    words = lexicon()
    assert [words.is_informative(word) for word in ("apple", "Ada", "the", "The", "aaa", "gave", "ox")] == [
        *[True] * 2,
        *[False] * 5,
    ]
    assert words.counts["the"] == 50 * 3 + sentences(40, 0).count(" the ")


def test_a_gap_has_ten_candidates_of_its_kind_that_stand_before_it() -> None:
    asked, tokenizer = made(room=600)
    assert len(asked) == 40
    text, places = sentences(60, 1), []
    for question in asked:
        assert question.completed_text(question.answer) in text
        assert len(set(question.candidates)) == NUM_CANDIDATES
        assert question.answer in question.candidates
        before = WORD.findall(question.before)
        assert set(question.candidates) <= set(before)
        assert len({word[0].isupper() for word in question.candidates}) == 1
        assert question.answer not in WORD.findall(question.after)
        assert question.after.endswith(".")
        assert max(len(tokenizer.encode([question.completed_text(word)])[0]) for word in question.candidates) <= 600
        places.append(question.candidates.index(question.answer))
    # The place among the candidates does not tell the answer.
    assert len(set(places)) > 5
    assert len({question.answer for question in asked}) > 10


def test_last_words_end_a_sentence_and_stand_before_it() -> None:
    asked, _ = made(room=300, last=True)
    text = sentences(60, 1)
    for question in asked:
        assert question.completed_text(question.answer) + "." in text
        assert question.after == ""
        assert set(question.candidates) <= set(WORD.findall(question.before))
        assert question.answer in THINGS


def test_nothing_is_asked_where_there_is_no_room() -> None:
    assert made(room=60)[0] == []


def test_the_most_frequent_candidate_by_hand() -> None:
    words = WordFrequencies({"owl": 9, "fox": 2, "hen": 2}, frozenset())
    question = ClozeQuestion("owl fox hen fox hen cat ", " runs.", ("owl", "hen", "fox"), "fox")
    assert question.most_frequent_candidate(words, in_context=False) == "owl"
    assert question.most_frequent_candidate(words, in_context=True) == "hen"
    assert question._replace(candidates=("cat", "owl")).most_frequent_candidate(words, in_context=True) == "owl"
    assert question.completed_text("fox") == "owl fox hen fox hen cat fox runs."
