"""Question sets about images: vocabulary, batches, and the question-only baseline."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import UInt8

from transformer.config import UserError, suggest_nearest
from transformer.data.batches import Batch, BatchSource
from transformer.data.images import scale_pixels

PAD = 0
# The cell of a batch's row whose question has none that is known.
NOWHERE = -1
_TOKENS = re.compile(r"\?|[^\s?]+")


class Question(NamedTuple):
    """A question about an image.

    Attributes:
        words: Its words.
        answer: Its answer.
        kind: Its kind.
        cells: The cells of the image that lead to the answer, in order; empty if unknown.
    """

    words: tuple[str, ...]
    answer: str
    kind: str
    cells: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class QuestionVocabulary:
    """The words, answers and kinds of a question set, each numbered by its index.

    Attributes:
        words: The words of questions.
        answers: The answers.
        kinds: The kinds of questions.
        max_question_length: The most words of a question.
        image_size: The side of an image in pixels.
        cells_per_side: The number of cells along it; 0 if cells are unknown.
        relational_kinds: The kinds that lead from one cell to another.
    """

    words: tuple[str, ...]
    answers: tuple[str, ...]
    kinds: tuple[str, ...]
    max_question_length: int
    image_size: int
    cells_per_side: int = 0
    relational_kinds: tuple[str, ...] = ()

    @property
    def vocab_size(self) -> int:
        """The number of tokens: the words and, as number 0, padding."""
        return len(self.words) + 1

    def encode(self, words: Sequence[str]) -> list[int]:
        """Return the token of each word.

        Raises:
            UserError: If there are no words or more than `longest`, or a word is unknown.
        """
        if not 1 <= len(words) <= self.max_question_length:
            raise UserError(
                f"{' '.join(words)!r} has {len(words)} words: a question has 1 to {self.max_question_length}"
            )
        for word in words:
            if word not in self.words:
                raise UserError(f"{word!r} is no word of these questions: {suggest_nearest(word, self.words)}")
        return [self.words.index(word) + 1 for word in words]

    def make_batch(
        self, questions: Sequence[Question], images: UInt8[np.ndarray, "B size size 3"], rows: int | None = None
    ) -> Batch:
        """Encode questions with an image each.

        Args:
            questions: The questions.
            images: The image of each.
            rows: The number of rows; empty ones, whose `index` is -1, follow the questions. By default there are none.

        Returns:
            `image`, `tokens`, `lengths`, `labels`, `kinds`, `index`, and `cells`, the first and the last to attend to.
        """
        count = len(questions)
        rows = count if rows is None else rows
        tokens = np.full((rows, self.max_question_length), PAD, np.int32)
        lengths, labels, kinds = np.zeros((3, rows), np.int32)
        cells, index = np.full((rows, 2), NOWHERE, np.int32), np.full(rows, -1, np.int32)
        index[:count] = np.arange(count)
        for row, question in enumerate(questions):
            encoded = self.encode(question.words)
            tokens[row, : len(encoded)], lengths[row] = encoded, len(encoded)
            labels[row] = self.answers.index(question.answer)
            kinds[row] = self.kinds.index(question.kind)
            if question.cells:
                cells[row] = question.cells[0], question.cells[-1]
        scaled_images = np.zeros((rows, *images.shape[1:]), np.float32)
        scaled_images[:count] = scale_pixels(images)
        encoded_questions = {"tokens": tokens, "lengths": lengths, "labels": labels}
        return {"image": scaled_images, **encoded_questions, "kinds": kinds, "cells": cells, "index": index}


class QuestionSet(Protocol):
    """A set of questions about images, synthetic or from files."""

    @property
    def question_vocabulary(self) -> QuestionVocabulary:
        """The vocabulary of the questions."""

    @property
    def description(self) -> str:
        """A line that describes the set."""

    def training_batches(self, rows: int, seed: int) -> BatchSource:
        """Return the training batches in the order of a seed."""

    def held_out_batches(self, split: str, rows: int) -> Sequence[Batch]:
        """Return all questions of the split "validation" or "test"."""

    def split_questions(self, split: str) -> Sequence[Question]:
        """Return the questions of a split without their images; a sample of them for an endless training split."""

    def test_image(self, number: int) -> UInt8[np.ndarray, "size size 3"]:
        """Return an image of the test split, numbered from 0.

        Raises:
            UserError: If there is no such image.
        """

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every split that was read; empty if nothing was."""


def tokenize_question(text: str) -> tuple[str, ...]:
    """Return the lowercase words of a question; a question mark is a word."""
    return tuple(_TOKENS.findall(text.lower()))


def question_only_accuracy(training: Iterable[Question], held_out: Iterable[Question]) -> dict[str, float]:
    """Compute the accuracy of the most frequent training answer to the same words, without the image.

    A question that training does not contain gets the most frequent answer of all.

    Args:
        training: The training questions.
        held_out: The questions to answer.

    Returns:
        The accuracy by kind, and of all as "".
    """
    counted: dict[tuple[str, ...], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    all_answers: collections.Counter[str] = collections.Counter()
    for question in training:
        counted[question.words][question.answer] += 1
        all_answers[question.answer] += 1
    most_frequent = {words: answers.most_common(1)[0][0] for words, answers in counted.items()}
    commonest = all_answers.most_common(1)[0][0]
    right: collections.Counter[str] = collections.Counter()
    num_questions: collections.Counter[str] = collections.Counter()
    for question in held_out:
        for name in (question.kind, ""):
            num_questions[name] += 1
            right[name] += most_frequent.get(question.words, commonest) == question.answer
    return {name: right[name] / num_questions[name] for name in num_questions}
