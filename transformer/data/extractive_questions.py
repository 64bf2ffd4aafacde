"""Questions whose answers are spans of a context, their windows of tokens, and the scores of answers."""

import collections
import re
import string
from collections.abc import Sequence
from typing import NamedTuple

from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens
from transformer.data.tokenizers.tokenizer import EncodedTextWithOffsets

_ARTICLES = re.compile(r"\b(a|an|the)\b")


class Answer(NamedTuple):
    """A text of a context, and its first character there."""

    text: str
    start: int


class ExtractiveQuestion(NamedTuple):
    """A question about a context.

    Attributes:
        question: The question.
        context: The text that holds its answer.
        answers: The answers, of which the first is trained on; none if the context does not have the answer.
    """

    question: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def texts(self) -> tuple[str, str]:
        """The texts that a model reads."""
        return self.question, self.context


class QuestionWindow(NamedTuple):
    """A sequence of a question and a part of its context.

    Attributes:
        question: The question.
        number: The number of the question in its split.
        row: The token numbers.
        context_start: The place in `row` of the first token of the context.
        offsets: The characters of the context that each of its tokens in `row` is of.
        label: The places in `row` of the answer's first and last token; both are that of the begin token if the window
            does not hold it.
    """

    question: ExtractiveQuestion
    number: int
    row: list[int]
    context_start: int
    offsets: list[tuple[int, int]]
    label: tuple[int, int]

    @property
    def texts(self) -> tuple[str, ...]:
        """The question, its context and its answers, like the texts of a `LabeledExample`."""
        return (self.question.question, self.question.context, *(answer.text for answer in self.question.answers))

    @property
    def holds_answer(self) -> bool:
        """Whether the window holds the whole of the answer."""
        return 0 <= self.label[0] - self.context_start < len(self.offsets)

    def text_of_span(self, first: int, last: int) -> str:
        """Return the text of the context from the token at place `first` to that at place `last`."""
        start, stop = self.offsets[first - self.context_start][0], self.offsets[last - self.context_start][1]
        return self.question.context[start:stop]


def question_windows(
    question: ExtractiveQuestion,
    number: int,
    question_ids: Sequence[int],
    context: EncodedTextWithOffsets,
    delimiters: DelimiterTokens,
    *,
    max_length: int,
    stride: int,
) -> list[QuestionWindow]:
    """Cut a question's context into windows that overlap (Devlin et al. 2019, their code for SQuAD).

    The question stands before its context. In XLNet's sequences it stands behind it, as the shorter text of a pair in
    pre-training (Yang et al. 2019, their code for SQuAD).

    Args:
        question: The question.
        number: Its number in its split.
        question_ids: Its token numbers.
        context: The token numbers of its context, with their characters.
        delimiters: The tokens around and between texts.
        max_length: The number of tokens in a window, special tokens included.
        stride: The number of tokens of the context between the starts of two windows.
    """
    room = max_length - len(question_ids) - delimiters.num_special_tokens(2)
    before = (*delimiters.start_ids, *question_ids, *delimiters.between_ids)
    context_start = 0 if delimiters.begin_is_last else len(before)
    windows, start = [], 0
    answer = _find_answer_tokens(question, context.offsets)
    while True:
        stop = min(start + room, len(context.ids))
        part = context.ids[start:stop]
        row = delimiters.join_texts([part, question_ids] if delimiters.begin_is_last else [question_ids, part])
        label = (len(row) - 1,) * 2 if delimiters.begin_is_last else (0, 0)
        if answer is not None and start <= answer[0] and answer[1] < stop:
            label = (answer[0] - start + context_start, answer[1] - start + context_start)
        windows.append(QuestionWindow(question, number, row, context_start, context.offsets[start:stop], label))
        if stop == len(context.ids):
            return windows
        start += min(stride, room)


def _find_answer_tokens(question: ExtractiveQuestion, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the numbers of the first and the last token of the context that have a character of the answer."""
    if not question.answers:
        return None
    text, start = question.answers[0]
    touched = [
        token
        for token, (first, stop) in enumerate(offsets)
        if first < stop and first < start + len(text) and stop > start
    ]
    return (touched[0], touched[-1]) if touched else None


def normalize_answer(text: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra spaces (Rajpurkar et al. 2016, 6.1)."""
    without_punctuation = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def answer_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of a predicted answer (Rajpurkar et al. 2016, section 6.1; 2018 for no answer).

    F1 is over the words that both have, each as often as both have it; both are the best over the true answers. A
    question without an answer has 1 for an empty prediction, and 0 for any other.

    Args:
        predicted: The predicted answer; "" for none.
        answers: The true answers; none if there is no answer.
    """
    normalized = normalize_answer(predicted)
    # An answer of articles and punctuation alone is left out, as in the authors' script of 2018.
    references = [answer for answer in map(normalize_answer, answers) if answer] or [""]
    return float(normalized in references), max(_word_f1(normalized.split(), answer.split()) for answer in references)


def _word_f1(predicted: Sequence[str], reference: Sequence[str]) -> float:
    if not predicted or not reference:
        return float(predicted == reference)
    common = sum((collections.Counter(predicted) & collections.Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference))
