"""Questions about a text: windows, scores as their authors', files in the format of SQuAD, generated questions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer.config import UserError
from transformer.data.datasets.question_answering import open_questions, read_questions
from transformer.data.datasets.synthetic_questions import sample_question
from transformer.data.extractive_questions import (
    Answer,
    ExtractiveQuestion,
    answer_scores,
    normalize_answer,
    question_windows,
)
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat
from transformer.data.tokenizers.tokenizer import EncodedTextWithOffsets

CONTEXT = "ann met bob and eve"
WORDS = [(0, 3), (4, 7), (8, 11), (12, 15), (16, 19)]
ENCODED = EncodedTextWithOffsets([10, 11, 12, 13, 14], WORDS)
DELIMITERS, OF_XLNET = (
    DelimiterTokens.from_format(each, 50, 1, 2) for each in (SequenceFormat.BERT, SequenceFormat.XLNET)
)
NO_ANSWER = (0, 0)


def windows(
    answers: tuple[Answer, ...], max_length: int, stride: int, delimiters: DelimiterTokens = DELIMITERS
) -> list[Any]:
    question = ExtractiveQuestion("who", CONTEXT, answers)
    return question_windows(question, 7, [20], ENCODED, delimiters, max_length=max_length, stride=stride)


def test_a_context_that_fits_is_one_window() -> None:
    (window,) = windows((Answer("bob and", 8),), 9, 2)
    assert window.row == [1, 20, 2, 10, 11, 12, 13, 14, 2]
    assert window.label == (5, 6)
    assert window.text_of_span(5, 6) == "bob and"


@pytest.mark.parametrize(("stride", "starts"), [(1, [0, 1, 2, 3]), (2, [0, 2, 4]), (100, [0, 2, 4])])
def test_windows_overlap_and_cover_the_context(stride: int, starts: list[int]) -> None:
    # Two tokens of context fit beside the question.
    found = windows((Answer("bob and", 8),), 6, stride)
    assert [window.row for window in found] == [
        [1, 20, 2, *[10, 11, 12, 13, 14][start : start + 2], 2] for start in starts
    ]
    # The answer counts where a window holds the whole of it.
    assert [window.label for window in found] == [(3, 4) if start == 2 else NO_ANSWER for start in starts]
    assert [window.text_of_span(3, 3) for window in found] == [CONTEXT[slice(*WORDS[start])] for start in starts]


def test_xlnet_reads_the_context_first_and_the_begin_token_last() -> None:
    # Two tokens of context fit beside the question.
    found = windows((Answer("bob and", 8),), 6, 2, OF_XLNET)
    assert [window.row for window in found] == [[*part, 2, 20, 2, 1] for part in ([10, 11], [12, 13], [14])]
    assert [window.label for window in found] == [(5, 5), (0, 1), (4, 4)]
    assert found[1].text_of_span(0, 1) == "bob and"


def test_an_answer_within_a_token_is_the_whole_token() -> None:
    assert windows((Answer("ob", 9),), 9, 2)[0].label == (5, 5)
    assert windows((), 9, 2)[0].label == NO_ANSWER


@pytest.mark.parametrize(
    ("predicted", "answers", "expected"),
    [
        ("The Denver Broncos!", ["Denver Broncos", "the Broncos"], (1.0, 1.0)),
        ("Broncos", ["Denver Broncos"], (0.0, 2 / 3)),
        ("a cat a cat", ["cat dog"], (0.0, 0.5)),
        ("cat", ["dog"], (0.0, 0.0)),
        ("", [], (1.0, 1.0)),
        ("cat", [], (0.0, 0.0)),
        ("", ["cat"], (0.0, 0.0)),
        ("the", ["a"], (1.0, 1.0)),
    ],
)
def test_scores_are_those_of_squad(predicted: str, answers: list[str], expected: tuple[float, float]) -> None:
    assert answer_scores(predicted, answers) == pytest.approx(expected)


def test_answers_are_compared_without_articles_punctuation_and_case() -> None:
    assert normalize_answer("  An Apple,  the\tPEAR and 'a'theory. ") == "apple pear and atheory"


def squad(**changed: Any) -> dict[str, Any]:
    asked = {"id": "1", "question": "who met bob", "answers": [{"text": "ann", "answer_start": 0}], **changed}
    return {"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [asked]}]}]}


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(squad()))
    fields = {"question": "who met bob", "context": CONTEXT, "answers": {"text": ["ann"], "answer_start": [0]}}
    (tmp_path / "train.jsonl").write_text(json.dumps(fields) + "\n")
    expected = [ExtractiveQuestion("who met bob", CONTEXT, (Answer("ann", 0),))]
    assert read_questions(tmp_path / "train.json") == read_questions(tmp_path / "train.jsonl") == expected
    (tmp_path / "none.json").write_text(json.dumps(squad(is_impossible=True, answers=[])))
    assert read_questions(tmp_path / "none.json")[0].answers == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"version": "1.1"}, "has no list 'data', which the format of SQuAD has"),
        ({"data": []}, "has no questions"),
        (squad(question=" "), "has no text in 'question'"),
        (squad(answers=[{"text": "eve", "answer_start": 0}]), "character 0 of its context begins 'ann'"),
        (squad(answers=[{"text": "eve"}]), "the answer 'eve' at None: it needs a text and its first character"),
        (squad(answers=[{"text": "ann", "answer_start": False}]), "the answer 'ann' at False: it needs a text"),
        (squad(answers=[{"text": "ann", "answer_start": 0.0}]), "the answer 'ann' at 0.0: it needs a text"),
        (squad(is_impossible="false"), "is_impossible='false', which is neither true nor false"),
        (squad(is_impossible=0), "is_impossible=0, which is neither true nor false"),
        (squad(is_impossible=None), "is_impossible=None, which is neither true nor false"),
        (squad(is_impossible=True), "says is_impossible, and has the answer 'ann': remove one of the two"),
        (squad(answers=[]), "has no answers and does not say is_impossible: true"),
        (squad(is_impossible=False, answers=[]), "has no answers and does not say is_impossible: true"),
        (squad(is_impossible=True, answers=None), "has no list 'answers', which the format of SQuAD has"),
    ],
)
def test_malformed_files_are_refused_in_one_line(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        read_questions(tmp_path / "train.json")
    assert "\n" not in str(caught.value)


LINE = {"question": "who met bob", "context": CONTEXT, "answers": {"text": ["ann"], "answer_start": [0]}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"answers": ...}, "line 1 has no field 'answers'; its fields are question, context, answer"),
        ({"answers": None}, "line 1: answers is no JSON object but a NoneType"),
        ({"answers": [{"text": "ann", "answer_start": 0}]}, "line 1: answers is no JSON object but a list"),
        ({"answers": {"text": ["ann"]}}, "need two lists of one length, text and answer_start"),
        ({"answers": {"text": ["ann"], "answer_start": [True]}}, "the answer 'ann' at True: it needs a text"),
        ({"answers": {"text": [7], "answer_start": [0]}}, "the answer 7 at 0: it needs a text"),
        ({"is_impossible": "false"}, "is_impossible='false', which is neither true nor false"),
        ({"is_impossible": True}, "says is_impossible, and has the answer 'ann': remove one of the two"),
        ({"context": ["ann"]}, "has no text in 'context'"),
    ],
)
def test_lines_whose_answers_are_in_doubt_are_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    fields = {name: value for name, value in {**LINE, "answer": "ann", **changed}.items() if value is not ...}
    (tmp_path / "train.jsonl").write_text(json.dumps(fields) + "\n")
    with pytest.raises(UserError, match=message) as caught:
        read_questions(tmp_path / "train.jsonl")
    assert "\n" not in str(caught.value)


def test_a_line_with_empty_answers_has_none(tmp_path: Path) -> None:
    lines = [{**LINE, "answers": {"text": [], "answer_start": []}}, {**LINE, "is_impossible": False}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [each.answers for each in read_questions(tmp_path / "train.jsonl")] == [(), (Answer("ann", 0),)]


def test_names_are_checked() -> None:
    with pytest.raises(UserError, match=r"'grammar/question' is unknown: did you mean 'grammar/questions'"):
        open_questions("grammar/question")


def test_generated_answers_stand_in_the_fact_that_is_asked_about() -> None:
    random = np.random.default_rng(0)
    drawn = [sample_question(random, answerable=2 / 3)[0] for _ in range(600)]
    assert 0.28 < np.mean([not each.answers for each in drawn]) < 0.39
    for question, context, answers in drawn:
        asked = question.split(" ", 2)[2].removesuffix(" have")
        facts = [fact for fact in context.split(" . ") if asked in fact]
        assert len(facts) == len(answers)
        for (text, start), fact in zip(answers, facts, strict=True):
            assert context[start : start + len(text)] == text
            assert context.index(fact) <= start < context.index(fact) + len(fact)
