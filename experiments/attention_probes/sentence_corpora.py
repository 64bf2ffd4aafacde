"""Probe corpora of sentences: pronoun coreference and subject-verb agreement."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from experiments.attention_probes.probe_corpus import Question, Words, choose_word, most_frequent_word, shuffle_words
from transformer.config import Config, Range

Kinds = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]

# Of each kind nouns, and the pronoun that can stand for them.
BY_PRONOUN: Kinds = {
    "man": (("boy", "king", "uncle", "monk", "waiter", "prince"), ("he",)),
    "woman": (("girl", "queen", "aunt", "nun", "waitress", "princess"), ("she",)),
    "animal": (("dog", "cat", "horse", "cow", "fox", "goat"), ("it",)),
    "several": (("children", "neighbours", "soldiers", "pupils", "twins", "guests"), ("they",)),
}
# Of each kind nouns, and what only such a thing can be.
BY_CLUE: Kinds = {
    "animal": (("dog", "cat", "horse", "cow", "fox", "goat"), ("tired", "hungry", "afraid")),
    "vehicle": (("truck", "bus", "car", "tram", "van", "taxi"), ("parked", "crowded", "speeding")),
    "way": (("street", "bridge", "road", "path", "lane", "alley"), ("steep", "paved", "winding")),
    "plant": (("tree", "rose", "fern", "oak", "vine", "hedge"), ("blooming", "withered", "rooted")),
}
VERBS = ("passed", "left", "reached", "followed", "touched")
PREPOSITIONS = ("near", "behind", "beside", "under")


@dataclasses.dataclass(frozen=True)
class _Antecedents(Config):
    """Sentences of two or three nouns, and a pronoun: its antecedent is the last noun that fits.

    No noun occurs twice in a text, and the pronoun's kind is one that the text has: usually several nouns fit, of which
    the last is the antecedent, and other nouns follow it.

    Attributes:
        sentences: The most sentences of a text, which has at least two.
    """

    sentences: Annotated[int, Range(2, 7)] = 3

    attended_position_descriptions: ClassVar[Mapping[str, str]] = {"antecedent": "the antecedent"}
    kinds: ClassVar[Kinds]
    # What stands before the word that tells the kind, from the pronoun on if that is another.
    ending: ClassVar[tuple[str, ...]]
    needs_future: ClassVar[bool]

    @functools.cached_property
    def noun_kinds(self) -> dict[str, str]:
        """The kind of each noun."""
        return {noun: kind for kind, (nouns, _) in self.kinds.items() for noun in nouns}

    @functools.cached_property
    def cue_kinds(self) -> dict[str, str]:
        """The kind that each cue word refers to."""
        return {word: kind for kind, (_, words) in self.kinds.items() for word in words}

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word."""
        return ("the", ".", *self.ending, *VERBS, *PREPOSITIONS, *self.noun_kinds, *self.cue_kinds)

    @property
    def max_length(self) -> int:
        """Sentences of nine words, and the ending."""
        return 9 * self.sentences + len(self.ending) + 1

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample sentences, followed by a pronoun for one of the kinds of noun in them."""
        nouns = iter(shuffle_words(random, list(self.noun_kinds)))
        words: list[str] = []
        for _ in range(random.integers(2, self.sentences + 1)):
            words += ["the", next(nouns), choose_word(random, VERBS), "the", next(nouns)]
            if random.random() < 0.5:
                words += [choose_word(random, PREPOSITIONS), "the", next(nouns)]
            words.append(".")
        kind = choose_word(random, sorted({self.noun_kinds[word] for word in words if word in self.noun_kinds}))
        return [*words, *self.ending, choose_word(random, self.kinds[kind][1])]

    def find_questions(self, words: Words) -> list[Question]:
        """Return each pronoun whose kind is known and that follows such a noun."""
        questions = []
        for at, word in enumerate(words):
            if word in self.cue_kinds:
                position = at - 2 if self.needs_future else at
                fitting = [noun for noun in range(position) if self.noun_kinds.get(words[noun]) == self.cue_kinds[word]]
                if fitting and (not self.needs_future or words[position] == "it"):
                    questions.append(Question(position, words[fitting[-1]], ((fitting[-1],),)))
        return questions

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return the last noun before the pronoun, and the first of the text."""
        nouns = [word for word in words[:position] if word in self.noun_kinds]
        return {"nearest_noun": nouns[-1], "first_noun": nouns[0]}


@dataclasses.dataclass(frozen=True)
class Coreference(_Antecedents):
    """Pronoun coreference: in "the dog passed the queen . the cat left the twins . then it", "it" is the cat.

    The pronoun agrees with its antecedent: "he", "she", "they", or "it" for an animal. A text has two to `sentences`
    sentences.
    """

    kinds: ClassVar[Kinds] = BY_PRONOUN
    ending: ClassVar[tuple[str, ...]] = ("then",)
    needs_future: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class CoreferenceFromClue(_Antecedents):
    """Coreference of "it" that only later words resolve: "the dog left the street because it was tired".

    A causal model cannot know the answer. Any of the later words may gather it and pass it on to "it". A text has two
    to `sentences` sentences.
    """

    kinds: ClassVar[Kinds] = BY_CLUE
    ending: ClassVar[tuple[str, ...]] = ("because", "it", "was")
    needs_future: ClassVar[bool] = True


# Singular and plural.
NOUNS = (
    ("key", "keys"),
    ("door", "doors"),
    ("boy", "boys"),
    ("teacher", "teachers"),
    ("cabinet", "cabinets"),
    ("house", "houses"),
    ("tree", "trees"),
    ("lake", "lakes"),
    ("child", "children"),
    ("mouse", "mice"),
    ("table", "tables"),
    ("letter", "letters"),
)
VERB_OF = {noun: verb for pair in NOUNS for noun, verb in zip(pair, ("is", "are"), strict=True)}
FORMS = tuple(VERB_OF)
ADJECTIVES = ("old", "small", "green", "quiet")


@dataclasses.dataclass(frozen=True)
class Agreement(Config):
    """Subject-verb agreement: the subject may be far before the verb, with other nouns (attractors) between them.

    "near the old lakes , the key to the doors ...": nouns modify the subject, and another noun may come before it, with
    a comma. After each noun that follows the subject, the question is whether "is" or "are" could follow.

    Attributes:
        max_attractors: The most nouns that modify the subject.
    """

    max_attractors: Annotated[int, Range(1, 30)] = 4

    attended_position_descriptions: ClassVar[Mapping[str, str]] = {"subject": "the subject"}
    needs_future: ClassVar[bool] = False
    vocabulary: ClassVar[tuple[str, ...]] = ("the", ",", "is", "are", *PREPOSITIONS, *ADJECTIVES, *FORMS)

    @property
    def max_length(self) -> int:
        """Five words before the comma, three of the subject, four of each attractor."""
        return 8 + 4 * self.max_attractors

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample a noun phrase with at least one attractor."""

        def noun() -> list[str]:
            adjective = [choose_word(random, ADJECTIVES)] if random.random() < 0.5 else []
            return ["the", *adjective, choose_word(random, FORMS)]

        def hanging() -> list[str]:
            return [choose_word(random, PREPOSITIONS), *noun()]

        before = [*hanging(), ","] if random.random() < 0.5 else []
        attractors = [word for _ in range(random.integers(1, self.max_attractors + 1)) for word in hanging()]
        return [*before, *noun(), *attractors]

    def find_questions(self, words: Words) -> list[Question]:
        """Return every noun after the subject, which is the first noun after the comma, or of all."""
        start = words.index(",") if "," in words else 0
        subject, *later_nouns = [position for position in range(start, len(words)) if words[position] in VERB_OF] or [0]
        return [Question(position, VERB_OF[words[subject]], ((subject,),)) for position in later_nouns]

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return the verbs that agree with the noun here, with the first noun, and with most nouns so far."""
        verbs = [VERB_OF[word] for word in words[: position + 1] if word in VERB_OF]
        return {"nearest_noun": verbs[-1], "first_noun": verbs[0], "most_nouns": most_frequent_word(verbs)}
