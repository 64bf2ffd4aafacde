"""Synthetic articles with facts, their abstractive summaries, and out-of-vocabulary names."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

STOP = "."
_WHO, _PLACE = "{who}", "{place}"
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
# Of the names that no vocabulary holds one in so many is never trained on.
_HELD_OUT = 4


class FactTemplate(NamedTuple):
    """The sentences that state a kind of fact.

    Attributes:
        article: The sentences that state it in an article.
        summary: The sentence that states it in a summary.
    """

    article: tuple[str, ...]
    summary: str


KINDS = {
    "mill": FactTemplate(
        ("{who} has bought the old mill in {place}", "the mill near {place} now belongs to {who}"),
        "sale : {who} acquires flour works , {place}",
    ),
    "race": FactTemplate(
        ("{who} came first in the race at {place}", "at {place} the race went to {who}"),
        "sport : {who} wins {place} run",
    ),
    "mayor": FactTemplate(
        ("the people of {place} have elected {who}", "{who} was elected by the people of {place}"),
        "vote : {place} picks {who} as leader",
    ),
    "school": FactTemplate(
        ("{who} opened a school in {place} today", "a new school in {place} was opened by {who}"),
        "classes : {who} starts teaching , {place}",
    ),
    "bridge": FactTemplate(
        ("{who} has built a bridge near {place}", "near {place} a bridge was built by {who}"),
        "crossing : {place} thanks builder {who}",
    ),
    "book": FactTemplate(
        ("a book by {who} about {place} came out", "{who} has written a book about {place}"),
        "print : author {who} describes {place}",
    ),
    "train": FactTemplate(
        ("{who} drove the first train to {place}", "the first train reached {place} with {who}"),
        "rail : {who} connects {place}",
    ),
    "prize": FactTemplate(
        ("{who} from {place} was given a prize", "a prize was given to {who} from {place}"),
        "award : jury honors {who} , {place}",
    ),
}
"""By kind: its sentences and its summary, which share no word but the names."""

FILLERS = (
    "{who} said that it rained in {place}",
    "nobody in {place} had seen {who}",
    "{who} walked to {place} with some friends",
    "it was a quiet day for {who} in {place}",
    "they say that {who} likes {place}",
    "it is far from {place} to the house of {who}",
)
"""Sentences that no summary tells."""


class Fact(NamedTuple):
    """A fact.

    Attributes:
        kind: Its kind, of `KINDS`.
        person: The person.
        place: The place.
    """

    kind: str
    person: str
    place: str


class Article(NamedTuple):
    """An article.

    Attributes:
        words: Its words.
        facts: Its facts, in the order of the summary.
        name_positions: The position of each of a fact's names, for each fact.
    """

    words: tuple[str, ...]
    facts: tuple[Fact, ...]
    name_positions: tuple[dict[str, int], ...]


@dataclasses.dataclass(frozen=True)
class ArticleGenerator:
    """A distribution over articles: facts, each of another kind, among filler sentences.

    Nothing in the article determines the order of the facts in a summary, so that a model must remember what it has
    stated.

    Attributes:
        num_fillers: The number of filler sentences.
        num_known_names: The number of names in the vocabulary.
        oov_prob: The probability of a name out of the vocabulary, one of hundreds of thousands.
    """

    num_fillers: int = 3
    num_known_names: int = 100
    oov_prob: float = 0.5

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the vocabulary."""
        random, names = np.random.default_rng(0), dict[str, None]()
        while len(names) < self.num_known_names:
            names.setdefault(_sample_syllables(random))
        return tuple(names)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words of articles and summaries, the names last."""
        lines = [*FILLERS, *(line for kind in KINDS.values() for line in (*kind.article, kind.summary))]
        words = {word for line in lines for word in line.split()} - {_WHO, _PLACE}
        return (*sorted(words | {STOP}), *self.names)

    def max_article_length(self, facts: int) -> int:
        """Return the number of words of the longest article with so many facts."""
        longest_sentence = max(len(line.split()) for kind in KINDS.values() for line in kind.article)
        return facts * (longest_sentence + 1) + self.num_fillers * (max(len(line.split()) for line in FILLERS) + 1)

    def max_summary_length(self, facts: int) -> int:
        """Return the number of words of the longest summary of so many facts."""
        return facts * (max(len(kind.summary.split()) for kind in KINDS.values()) + 1)

    def max_names(self, facts: int) -> int:
        """Return the largest number of names of an article with so many facts."""
        return 2 * (facts + self.num_fillers)

    def sample(self, random: np.random.Generator, facts: int, *, unseen: bool) -> Article:
        """Sample an article.

        Args:
            random: The random generator.
            facts: The number of facts.
            unseen: Whether its out-of-vocabulary names are held out from training.

        Returns:
            The article.
        """
        names = self._sample_names(random, self.max_names(facts), unseen)
        kinds = iter(random.permutation(list(KINDS))[:facts].tolist())
        words: list[str] = []
        fact_positions: list[tuple[Fact, dict[str, int]]] = []
        for number, counted in enumerate(random.permutation(facts + self.num_fillers) < facts):
            who, place = names[2 * number : 2 * number + 2]
            if not counted:
                words += _fill_template(FILLERS[random.integers(len(FILLERS))], who, place)
                continue
            fact = Fact(next(kinds), who, place)
            sentence = _fill_template(KINDS[fact.kind].article[random.integers(2)], who, place)
            fact_positions.append((fact, {name: len(words) + sentence.index(name) for name in (who, place)}))
            words += sentence
        fact_positions = [fact_positions[number] for number in random.permutation(facts)]
        return Article(
            tuple(words), tuple(fact for fact, _ in fact_positions), tuple(places for _, places in fact_positions)
        )

    def _sample_names(self, random: np.random.Generator, count: int, unseen: bool) -> list[str]:
        """Sample distinct names."""
        names: dict[str, None] = {}
        while len(names) < count:
            in_vocabulary = random.random() >= self.oov_prob
            names.setdefault(
                self.names[random.integers(self.num_known_names)]
                if in_vocabulary
                else self._sample_oov_name(random, unseen)
            )
        return list(names)

    def _sample_oov_name(self, random: np.random.Generator, unseen: bool) -> str:
        """Sample an out-of-vocabulary name, held out from training or not."""
        while True:
            name = _sample_syllables(random)
            if name not in self.names and is_held_out(name) == unseen:
                return name


def is_held_out(name: str) -> bool:
    """Return whether an out-of-vocabulary name is held out from training, by its hash."""
    return hashlib.blake2b(name.encode(), digest_size=4).digest()[0] % _HELD_OUT == 0


def write_summary(facts: Iterable[Fact]) -> list[str]:
    """Return the words of the summary of these facts, each sentence ending in a stop."""
    return [word for fact in facts for word in _fill_template(KINDS[fact.kind].summary, fact.person, fact.place)]


def gold_alignments(article: Article) -> list[tuple[int, int]]:
    """Return pairs of a summary word and the article word that it names: every name of a fact."""
    pairs, start = [], 0
    for fact, places in zip(article.facts, article.name_positions, strict=True):
        summary = write_summary([fact])
        pairs += [(start + summary.index(name), place) for name, place in places.items()]
        start += len(summary)
    return pairs


def parse_facts(words: Sequence[str]) -> list[Fact | None]:
    """Parse the fact of each sentence of a summary; None for a sentence that states none."""
    text = " ".join(words).strip()
    sentences = [part.strip() for part in text.split(STOP)]
    return [_parse_fact(sentence) for sentence in (sentences[:-1] if text.endswith(STOP) else sentences) if text]


def _parse_fact(sentence: str) -> Fact | None:
    for kind, pattern in _summary_patterns().items():
        if matched := pattern.fullmatch(sentence):
            return Fact(kind, matched["who"], matched["place"])
    return None


@functools.cache
def _summary_patterns() -> dict[str, re.Pattern[str]]:
    return {
        kind: re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>\\S+)", templates.summary)) for kind, templates in KINDS.items()
    }


def _fill_template(line: str, who: str, place: str) -> list[str]:
    return [{_WHO: who, _PLACE: place}.get(word, word) for word in [*line.split(), STOP]]


def _sample_syllables(random: np.random.Generator) -> str:
    """Sample a name of two or three syllables."""
    count = random.integers(2, 4)
    parts = zip(random.integers(len(_CONSONANTS), size=count), random.integers(len(_VOWELS), size=count), strict=True)
    return "".join(_CONSONANTS[first] + _VOWELS[second] for first, second in parts).capitalize()


@dataclasses.dataclass(frozen=True)
class ExtendedVocabulary:
    """A vocabulary with one unknown token, extended per article by its out-of-vocabulary words.

    The extension is numbered from the vocabulary's size on, in order of first occurrence in the article (See et al.
    2017, section 2.2); the same number is another word in another article.

    Attributes:
        words: The words of the vocabulary.
        unknown_id: The number of the unknown token.
        copies: Whether there is an extension.
    """

    words: tuple[str, ...]
    unknown_id: int
    copies: bool

    @functools.cached_property
    def word_ids(self) -> Mapping[str, int]:
        """The number of each word of the vocabulary."""
        return {word: number for number, word in enumerate(self.words)}

    def oov_words(self, text: Sequence[str]) -> tuple[str, ...]:
        """Return the distinct out-of-vocabulary words of a text."""
        return tuple(dict.fromkeys(word for word in text if word not in self.word_ids))

    def encode_articles(
        self, texts: Sequence[Sequence[str]], longest: int, pad: int
    ) -> dict[str, Int[np.ndarray, "B S"]]:
        """Encode texts.

        Args:
            texts: The words of each text.
            longest: The number of words to pad to.
            pad: The number of padding.

        Returns:
            `source`, with the unknown token, and if `copies` is set `copied`, with extended numbers.
        """
        source, copied = np.full((2, len(texts), longest), pad, np.int32)
        for row, text in enumerate(texts):
            source[row, : len(text)] = [self.word_ids.get(word, self.unknown_id) for word in text]
            copied[row, : len(text)] = self.encode_words(text, text)
        return {"source": source, **({"copied": copied} if self.copies else {})}

    def encode_words(self, words: Sequence[str], text: Sequence[str]) -> list[int]:
        """Encode words of a summary of a text.

        Args:
            words: The words.
            text: The words of the text, which extend the vocabulary.

        Returns:
            The number of each word; that of the unknown token if it has no other.
        """
        beyond = self.oov_words(text) if self.copies else ()
        own = {word: number for number, word in enumerate(beyond, len(self.words))}
        return [self.word_ids.get(word, own.get(word, self.unknown_id)) for word in words]

    def decode_words(self, numbers: Sequence[int], text: Sequence[str]) -> list[str]:
        """Decode words of a summary of a text; the inverse of `encode_words`, except for unknown tokens.

        Args:
            numbers: The number of each word.
            text: The words of the text, which extend the vocabulary.

        Returns:
            The words.
        """
        words = (*self.words, *(self.oov_words(text) if self.copies else ()))
        return [words[number] if number < len(words) else self.words[self.unknown_id] for number in numbers]
