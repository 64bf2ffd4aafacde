"""Questions as numbers, and what their words alone tell."""

import numpy as np
import pytest

from experiments.visual_question_answering.data import (
    NOWHERE,
    Question,
    QuestionVocabulary,
    question_only_accuracy,
    tokenize_question,
)
from transformer.config import UserError
from transformer.data.images import scale_pixels, unscale_pixels

QUESTION_VOCABULARY = QuestionVocabulary(
    ("?", "is", "it", "red", "what"), ("no", "red", "yes"), ("yes_no", "color"), 4, 2, 3, ("color",)
)


KIND = "yes_no"


def asked(text: str, answer: str, kind: str = KIND, *cells: int) -> Question:
    return Question(tokenize_question(text), answer, kind, cells)


def test_a_batch_holds_every_question_as_numbers_and_fills_up_with_rows_of_none() -> None:
    questions = [
        asked("Is it red?", "yes"),
        asked("what is it ?", "red", "color", 4, 7),
        asked("red ?", "no", "yes_no", 5),
    ]
    images = np.arange(36).reshape(3, 2, 2, 3).astype(np.uint8)
    batch = QUESTION_VOCABULARY.make_batch(questions, images, 4)
    assert batch["tokens"].tolist() == [[2, 3, 4, 1], [5, 2, 3, 1], [4, 1, 0, 0], [0, 0, 0, 0]]
    assert batch["lengths"].tolist() == [4, 4, 2, 0]
    assert batch["labels"].tolist() == [2, 1, 0, 0]
    assert batch["kinds"].tolist() == [0, 1, 0, 0]
    assert batch["cells"].tolist() == [[NOWHERE] * 2, [4, 7], [5, 5], [NOWHERE] * 2]
    assert batch["index"].tolist() == [0, 1, 2, -1]
    assert batch["image"].dtype == np.float32
    np.testing.assert_array_equal(batch["image"][:3], images / np.float32(127.5) - 1)
    assert (batch["image"][3] == 0).all()
    assert QUESTION_VOCABULARY.vocab_size == 6


def test_every_pixel_comes_back_from_its_scale() -> None:
    pixels = np.arange(256, dtype=np.uint8)
    assert (scale_pixels(pixels).min(), scale_pixels(pixels).max()) == (-1, 1)
    np.testing.assert_array_equal(unscale_pixels(scale_pixels(pixels)), pixels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 words"),
        ("is it red red red", "has 5 words: a question has 1 to 4"),
        ("is it rad", "did you mean 'red'"),
    ],
)
def test_questions_that_no_set_has_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        QUESTION_VOCABULARY.encode(tokenize_question(text))


def test_words_alone_answer_what_training_answered_most() -> None:
    training = [asked("is it red ?", "no")] * 2 + [asked("is it red ?", "yes")] + [asked("what ?", "yes", "color")] * 3
    held_out = [
        asked("is it red ?", "no"),
        asked("is it red ?", "yes"),
        asked("what ?", "yes", "color"),
        asked("is it ?", "yes"),  # never asked before: the commonest answer of all
    ]
    assert question_only_accuracy(training, held_out) == {
        "yes_no": pytest.approx(2 / 3),
        "color": 1,
        "": pytest.approx(3 / 4),
    }
