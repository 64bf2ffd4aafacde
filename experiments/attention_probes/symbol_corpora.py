"""Corpora of symbols: copies from two places, values by their keys, sorted letters, brackets, repeated motifs."""

import dataclasses
import string
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from experiments.attention_probes.marked_texts import Mark, Words, most_frequent, pick, shuffled
from transformer.config import Config, Positive, Range

COLORS = ("red", "blue", "green", "black", "white", "gold", "grey", "pink")
SHAPES = ("circle", "square", "star", "cross", "ring", "moon", "heart", "arrow")
QUESTION = "?"


Questions = Annotated[int, Range(1, 30)]
"""A number of questions that are asked of one text."""


@dataclasses.dataclass(frozen=True)
class TwoPlaces(Config):
    """The color of the item `near` places back and the shape of that `far` places back: both are to be read at once.

    Items are words such as "red-circle", of `kinds` colors and as many shapes; each of `questions` question marks
    stands behind `far` to `far` + 2 of them.

    One head cannot always be right where a linear map reads what the head has read, and an item t that stands d places
    back has the weight b_d w(t), before all weights are divided by their sum (as with T5's positions and ALiBi's). Up
    to a positive factor an answer c = (color, shape) to the items a, near, and b, far, then has the score b_near
    E_c(a) + b_far E_c(b) + k_c, with one E for both: w(t) times a score of t. Say that b_near >= b_far, and take two
    items of the same color, 0 and 1 by their shapes, F being E of 0 less E of 1, and k the same of k_c. Right answers
    need (b_near + b_far) F(0) + k > 0 > (b_near + b_far) F(1) + k where both items are the same, so that F(0) > F(1);
    and b_near F(1) + b_far F(0) + k > 0 > b_near F(0) + b_far F(1) + k where they differ, so that
    (b_near - b_far) (F(1) - F(0)) > 0, which is not so. One of these four texts is answered wrong. If b_far >= b_near,
    one of four with the same shape is.

    Of two colors and two shapes there are two such fours among the 16 pairs of items: one head is right on 14 of 16
    at most, whatever else the text says, and on all of four questions in (14 / 16)^4, 59 of 100 texts. Of more kinds
    it may get more, and 13 of 16 of four are in reach. Two heads have an E each. (Behind a network that is not linear
    one head is enough: an uneven mixture of two items is unlike any other.)
    """

    kinds: Annotated[int, Range(2, len(COLORS))] = 4
    near: Annotated[int, Range(1, 30)] = 1
    far: Annotated[int, Range(2, 31)] = 4
    questions: Questions = 4

    sources: ClassVar[Mapping[str, str]] = {"near": "the nearer item", "far": "the farther item"}
    ahead: ClassVar[bool] = False

    def _check(self) -> None:
        if self.far <= self.near:
            raise ValueError(f"far={self.far} must be above near={self.near}")

    @property
    def words(self) -> tuple[str, ...]:
        """The question mark and all items."""
        items = (f"{color}-{shape}" for color in COLORS[: self.kinds] for shape in SHAPES[: self.kinds])
        return (QUESTION, *items)

    @property
    def longest(self) -> int:
        """The longest stretch before each question."""
        return self.questions * (self.far + 3)

    def draw(self, random: np.random.Generator) -> list[str]:
        """Stretches of items, each with its question."""
        items, words = self.words[1:], []
        for _ in range(self.questions):
            count = self.far + int(random.integers(0, 3))
            words += [*(pick(random, items) for _ in range(count)), QUESTION]
        return words

    def marks(self, words: Words) -> list[Mark]:
        """Every question mark that has items at both places."""
        found = []
        for place, word in enumerate(words):
            sources = place - self.near, place - self.far
            if word == QUESTION and min(sources) >= 0 and all(words[at] != QUESTION for at in sources):
                (color, _), (_, shape) = (words[at].split("-") for at in sources)
                found.append(Mark(place, f"{color}-{shape}", tuple((at,) for at in sources)))
        return found

    def guesses(self, words: Words, place: int) -> dict[str, str]:
        """The item at one of the two places."""
        return {"near_item": words[place - self.near], "far_item": words[place - self.far]}


@dataclasses.dataclass(frozen=True)
class Retrieval(Config):
    """The value of a key: "c=4 a=2 h=1 ? a" asks for 2.

    Two to `pairs` different ones of the first `letters` letters, each with one of the first `digits` digits, and
    `questions` of them asked for.
    """

    pairs: Annotated[int, Range(2)] = 8
    questions: Questions = 4
    letters: Annotated[int, Range(2, 26)] = 8
    digits: Annotated[int, Range(2, 10)] = 6

    sources: ClassVar[Mapping[str, str]] = {"value": "the value of the key"}
    ahead: ClassVar[bool] = False

    def _check(self) -> None:
        if self.pairs > self.letters:
            raise ValueError(f"pairs={self.pairs} must be at most letters={self.letters}")

    @property
    def words(self) -> tuple[str, ...]:
        """The question mark, digits, letters, and all pairs of these."""
        keys, values = string.ascii_lowercase[: self.letters], string.digits[: self.digits]
        return (QUESTION, *values, *keys, *(f"{key}={value}" for key in keys for value in values))

    @property
    def longest(self) -> int:
        """Pairs, and questions of two words."""
        return self.pairs + 2 * self.questions

    def draw(self, random: np.random.Generator) -> list[str]:
        """Pairs, and keys of them."""
        keys = shuffled(random, string.ascii_lowercase[: self.letters])[: random.integers(2, self.pairs + 1)]
        shown = [f"{key}={pick(random, string.digits[: self.digits])}" for key in keys]
        return [*shown, *(word for _ in range(self.questions) for word in (QUESTION, pick(random, keys)))]

    def marks(self, words: Words) -> list[Mark]:
        """Every key behind a question mark; of a key with several values the last is asked for."""
        places: dict[str, int] = {}
        found = []
        for place, word in enumerate(words):
            if "=" in word:
                places[word[0]] = place
            elif word in places and words[place - 1] == QUESTION:
                found.append(Mark(place, words[places[word]][2:], ((places[word],),)))
        return found

    def guesses(self, words: Words, place: int) -> dict[str, str]:
        """The value that was shown last, and the most frequent."""
        values = [word[2:] for word in words[:place] if "=" in word]
        return {"last_value": values[-1], "most_values": most_frequent(values)}


@dataclasses.dataclass(frozen=True)
class Sorting(Config):
    """Letters in any order, and behind the colon in the alphabet's: "k c a : a c" asks for a, c and k.

    Three to `letters` different ones.
    """

    letters: Annotated[int, Range(3, 26)] = 10

    sources: ClassVar[Mapping[str, str]] = {"next": "the letter that comes next"}
    ahead: ClassVar[bool] = False
    words: ClassVar[tuple[str, ...]] = (":", *string.ascii_lowercase)

    @property
    def longest(self) -> int:
        """The letters, the colon, and all but the last of them again."""
        return 2 * self.letters

    def draw(self, random: np.random.Generator) -> list[str]:
        """Letters, and their order but for its last."""
        count = random.integers(3, self.letters + 1)
        given = shuffled(random, string.ascii_lowercase)[:count]
        return [*given, ":", *sorted(given)[:-1]]

    def marks(self, words: Words) -> list[Mark]:
        """The colon, and each letter behind it that is not the last."""
        colon = words.index(":") if ":" in words else len(words)
        found = []
        for place in range(colon, len(words)):
            later = [letter for letter in words[:colon] if place == colon or letter > words[place]]
            if later:
                found.append(Mark(place, min(later), (_places(words[:colon], min(later)),)))
        return found

    def guesses(self, words: Words, place: int) -> dict[str, str]:
        """The letter that was given at this number, and the one that follows in the alphabet."""
        colon = words.index(":")
        following = string.ascii_lowercase.find(words[place]) + 1
        given = words[min(place - colon, colon - 1)]
        return {"as_given": given, "next_of_alphabet": string.ascii_lowercase[following % 26]}


PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclasses.dataclass(frozen=True)
class Brackets(Config):
    """Which bracket closes: a Dyck language of `kinds` brackets, open at most `depth` deep, in `length` words or fewer.

    Asked behind every closing bracket that leaves one open: the last opening bracket is then a closed one.
    """

    kinds: Annotated[int, Range(2, len(PAIRS))] = 4
    depth: Annotated[int, Range(2, 100)] = 6
    length: Annotated[int, Range(8, 1000)] = 32

    sources: ClassVar[Mapping[str, str]] = {"opening": "the bracket that is open"}
    ahead: ClassVar[bool] = False

    @property
    def longest(self) -> int:
        """As it says."""
        return self.length

    @property
    def words(self) -> tuple[str, ...]:
        """All brackets."""
        return tuple(bracket for pair in list(PAIRS.items())[: self.kinds] for bracket in pair)

    def draw(self, random: np.random.Generator) -> list[str]:
        """The beginning of a word of the language, opening and closing with equal chance where both can be."""
        opening = list(PAIRS)[: self.kinds]
        while True:
            words: list[str] = []
            stack: list[str] = []
            for _ in range(random.integers(self.length // 2, self.length + 1)):
                if not stack or (len(stack) < self.depth and random.random() < 0.5):
                    stack.append(pick(random, opening))
                    words.append(stack[-1])
                else:
                    words.append(PAIRS[stack.pop()])
            if self.marks(words):
                return words

    def marks(self, words: Words) -> list[Mark]:
        """Every closing bracket that leaves another open, up to the first that closes what is not open."""
        found, stack = [], []
        for place, word in enumerate(words):
            if word in PAIRS:
                stack.append(place)
                continue
            if not stack or PAIRS[words[stack.pop()]] != word:
                break
            if stack:
                found.append(Mark(place, PAIRS[words[stack[-1]]], ((stack[-1],),)))
        return found

    def guesses(self, words: Words, place: int) -> dict[str, str]:
        """What closes the last opening bracket, though it be closed, and the closing bracket before once more."""
        last = next(word for word in reversed(words[:place]) if word in PAIRS)
        return {"nearest_opening": PAIRS[last], "again": words[place]}


@dataclasses.dataclass(frozen=True)
class Motifs(Config):
    """A motif of different letters that comes `times` times, other letters before each, at most `gap`.

    It has `motif` letters, or as few as half of them. Where it comes again each of them tells the next one. All other
    letters stand once.
    """

    motif: Annotated[int, Range(4, 40)] = 16
    times: Annotated[int, Range(2, 8)] = 3
    gap: Positive = 4

    sources: ClassVar[Mapping[str, str]] = {"continuation": "what followed in the motif before"}
    ahead: ClassVar[bool] = False
    words: ClassVar[tuple[str, ...]] = tuple(string.ascii_letters)

    def _check(self) -> None:
        if self.gap > (most := (len(self.words) - self.motif) // self.times):
            raise ValueError(f"gap={self.gap} must be at most {most} with motif={self.motif} and times={self.times}")

    @property
    def longest(self) -> int:
        """As many motifs with the longest gaps."""
        return self.times * (self.motif + self.gap)

    def draw(self, random: np.random.Generator) -> list[str]:
        """Gaps and motifs in turn, the last of which breaks off within."""
        count = int(random.integers(self.motif // 2, self.motif + 1))
        letters = shuffled(random, self.words)
        motif, others = letters[:count], iter(letters[count:])
        words: list[str] = []
        for _ in range(self.times):
            words += [next(others) for _ in range(random.integers(1, self.gap + 1))] + motif
        return words[: len(words) - int(random.integers(1, count))]

    def marks(self, words: Words) -> list[Mark]:
        """Every letter that stood before, and was followed by what follows now, if anything does."""
        found = []
        for place, word in enumerate(words):
            before = [at for at in range(place) if words[at] == word]
            answer = words[before[-1] + 1] if before else None
            if answer is not None and {*words[place + 1 : place + 2]} <= {answer}:
                sources = tuple(at + 1 for at in before if words[at + 1] == answer)
                found.append(Mark(place, answer, (sources,)))
        return found

    def guesses(self, words: Words, place: int) -> dict[str, str]:
        """No rule of its own: a letter that no motif has told is any of all."""
        return {}


def _places(words: Words, word: str) -> tuple[int, ...]:
    return tuple(place for place, each in enumerate(words) if each == word)
