"""Texts with answers at marked places: the form of all corpora that ask one thing of attention."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

Words = Sequence[str]


class Mark(NamedTuple):
    """A place of a text, the one right answer there, and for each source of the corpus the places where it stands."""

    place: int
    answer: str
    sources: tuple[tuple[int, ...], ...]


class Corpus(Protocol):
    """Texts that are drawn, and what is asked of them, computed from their words alone."""

    @property
    def words(self) -> tuple[str, ...]:
        """All that a text or an answer can have."""

    @property
    def longest(self) -> int:
        """The words of the longest text."""

    @property
    def sources(self) -> Mapping[str, str]:
        """What has to be read, by short names in words, as in {"antecedent": "the antecedent"}."""

    @property
    def ahead(self) -> bool:
        """Whether answers depend on what stands behind their places."""

    def draw(self, random: np.random.Generator) -> list[str]:
        """A text that has a mark at least."""

    def marks(self, words: Words) -> list[Mark]:
        """What is asked of a text, in the order of its places; nothing of words that ask nothing."""

    def guesses(self, words: Words, place: int) -> dict[str, str]:
        """By name the answers of rules that do not read what should be read, as the nearest noun."""


class Counted(NamedTuple):
    """What counting many answers teaches: the most frequent of all, and behind each word that stands at a mark."""

    majority: str
    bigram: Mapping[str, str]

    @classmethod
    def of(cls, corpus: Corpus, texts: Sequence[Words]) -> "Counted":
        """Count the answers of these texts; of equally frequent ones the first in the alphabet counts as the most."""
        pairs = [(words[mark.place], mark.answer) for words in texts for mark in corpus.marks(words)]
        behind: dict[str, list[str]] = {}
        for word, answer in pairs:
            behind.setdefault(word, []).append(answer)
        bigram = {word: most_frequent(answers) for word, answers in behind.items()}
        return cls(most_frequent([answer for _, answer in pairs]), bigram)

    def guesses(self, words: Words, place: int) -> dict[str, str]:
        """Both answers at a place."""
        return {"majority": self.majority, "bigram": self.bigram.get(words[place], self.majority)}


def pick(random: np.random.Generator, words: Words) -> str:
    """One of the words, each as likely as the others."""
    return words[int(random.integers(len(words)))]


def shuffled(random: np.random.Generator, words: Words) -> list[str]:
    """The words in an order of which every one is as likely."""
    return [words[number] for number in random.permutation(len(words))]


def most_frequent(words: Words) -> str:
    """The word that occurs most often; of several the first in the alphabet."""
    counts = Counter(words)
    return min(counts, key=lambda word: (-counts[word], word))


def accuracies(corpus: Corpus, counted: Counted, texts: Sequence[Words]) -> dict[str, float]:
    """How many marks of these texts each rule answers right, by its name."""
    right: dict[str, list[bool]] = {}
    for words in texts:
        for mark in corpus.marks(words):
            guesses = counted.guesses(words, mark.place) | corpus.guesses(words, mark.place)
            for name, guess in guesses.items():
                right.setdefault(name, []).append(guess == mark.answer)
    return {name: float(np.mean(each)) for name, each in right.items()}
