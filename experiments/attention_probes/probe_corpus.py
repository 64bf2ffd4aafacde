"""The protocol of a probe corpus: texts with questions at known positions, and baselines without attention."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

Words = Sequence[str]


class Question(NamedTuple):
    """A position of a text that asks a question.

    Attributes:
        position: The position.
        answer: The answer.
        attended_positions: For each of the corpus's `attended_position_descriptions` the positions that it describes.
    """

    position: int
    answer: str
    attended_positions: tuple[tuple[int, ...], ...]


class Corpus(Protocol):
    """A distribution of texts, whose questions and answers follow from the words alone."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words of texts and answers."""

    @property
    def max_length(self) -> int:
        """The number of words of the longest text."""

    @property
    def attended_position_descriptions(self) -> Mapping[str, str]:
        """The positions that must be attended to: a description of each by name, {"antecedent": "the antecedent"}."""

    @property
    def needs_future(self) -> bool:
        """Whether answers depend on words after the question."""

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample a text with at least one question."""

    def find_questions(self, words: Words) -> list[Question]:
        """Return the questions of a text in order; empty if it has none."""

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return the answers at a question of heuristics that ignore the source, by name, such as the nearest noun."""


class FrequencyBaselines(NamedTuple):
    """The most frequent answers in some texts.

    Attributes:
        majority_answer: The most frequent answer of all.
        majority_answer_by_word: The most frequent answer at each word that asks a question.
    """

    majority_answer: str
    majority_answer_by_word: Mapping[str, str]

    @classmethod
    def fit(cls, corpus: Corpus, texts: Sequence[Words]) -> "FrequencyBaselines":
        """Count the answers of some texts; of equally frequent ones the first in alphabetical order is taken.

        Args:
            corpus: The corpus.
            texts: The words of each text.

        Returns:
            The baselines.
        """
        pairs = [
            (words[question.position], question.answer) for words in texts for question in corpus.find_questions(words)
        ]
        answers_by_word: dict[str, list[str]] = {}
        for word, answer in pairs:
            answers_by_word.setdefault(word, []).append(answer)
        bigram = {word: most_frequent_word(answers) for word, answers in answers_by_word.items()}
        return cls(most_frequent_word([answer for _, answer in pairs]), bigram)

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return both answers at a position."""
        return {
            "majority": self.majority_answer,
            "bigram": self.majority_answer_by_word.get(words[position], self.majority_answer),
        }


def choose_word(random: np.random.Generator, words: Words) -> str:
    """Return one of the words, uniformly."""
    return words[int(random.integers(len(words)))]


def shuffle_words(random: np.random.Generator, words: Words) -> list[str]:
    """Return the words in a uniformly random order."""
    return [words[number] for number in random.permutation(len(words))]


def most_frequent_word(words: Words) -> str:
    """Return the word that occurs most often; ties go to the first in alphabetical order."""
    counts = Counter(words)
    return min(counts, key=lambda word: (-counts[word], word))


def baseline_accuracies(corpus: Corpus, counted: FrequencyBaselines, texts: Sequence[Words]) -> dict[str, float]:
    """Compute the accuracy of each baseline over the questions of some texts.

    Args:
        corpus: The corpus, with its own baselines.
        counted: The frequency baselines.
        texts: The texts.

    Returns:
        The accuracy by the name of the baseline.
    """
    right: dict[str, list[bool]] = {}
    for words in texts:
        for question in corpus.find_questions(words):
            baseline_answers = counted.baseline_answers(words, question.position) | corpus.baseline_answers(
                words, question.position
            )
            for name, guess in baseline_answers.items():
                right.setdefault(name, []).append(guess == question.answer)
    return {name: float(np.mean(hits)) for name, hits in right.items()}
