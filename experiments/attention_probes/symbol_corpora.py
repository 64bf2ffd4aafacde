"""Probe corpora of symbols: copying from two offsets, key-value retrieval, sorting, brackets, repeated motifs."""

import dataclasses
import string
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from experiments.attention_probes.probe_corpus import Question, Words, choose, most_frequent, shuffled
from transformer.config import Config, Positive, Range

COLORS = ("red", "blue", "green", "black", "white", "gold", "grey", "pink")
SHAPES = ("circle", "square", "star", "cross", "ring", "moon", "heart", "arrow")
QUESTION = "?"


NumQuestions = Annotated[int, Range(1, 30)]
"""A number of questions that are asked of one text."""


@dataclasses.dataclass(frozen=True)
class TwoOffsetCopy(Config):
    """Copy from two offsets: the color of the item `near_offset` back and the shape of that `far_offset` back.

    Items are words such as "red-circle", of `num_kinds` colors and as many shapes; each of `num_questions` question
    marks follows `far_offset` to `far_offset` + 2 of them.

    One head cannot always be right where a linear map reads what the head has read, and an item t that stands d places
    back has the weight b_d w(t), before all weights are divided by their sum (as with T5's positions and ALiBi's). Up
    to a positive factor an answer c = (color, shape) to the items a, near, and b, far, then has the score b_near E_c(a)
    + b_far E_c(b) + k_c, with one E for both: w(t) times a score of t. Say that b_near >= b_far, and take two items of
    the same color, 0 and 1 by their shapes, F being E of 0 less E of 1, and k the same of k_c. Right answers need
    (b_near + b_far) F(0) + k > 0 > (b_near + b_far) F(1) + k where both items are the same, so that F(0) > F(1); and
    b_near F(1) + b_far F(0) + k > 0 > b_near F(0) + b_far F(1) + k where they differ, so that (b_near - b_far) (F(1) -
    F(0)) > 0, which is not so. One of these four texts is answered wrong. If b_far >= b_near, one of four with the same
    shape is.

    Of two colors and two shapes there are two such fours among the 16 pairs of items: one head is right on 14 of 16 at
    most, whatever else the text says, and on all of four questions in (14 / 16)^4, 59 of 100 texts. Of more kinds it
    may get more, and 13 of 16 of four are in reach. Two heads have an E each. (After a nonlinear network one head is
    enough: an uneven mixture of two items is unlike any other.)
    """

    num_kinds: Annotated[int, Range(2, len(COLORS))] = 4
    near_offset: Annotated[int, Range(1, 30)] = 1
    far_offset: Annotated[int, Range(2, 31)] = 4
    num_questions: NumQuestions = 4

    sources: ClassVar[Mapping[str, str]] = {"near": "the nearer item", "far": "the farther item"}
    needs_future: ClassVar[bool] = False

    def _check(self) -> None:
        if self.far_offset <= self.near_offset:
            raise ValueError(f"far_offset={self.far_offset} must be above near_offset={self.near_offset}")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The question mark and all items."""
        items = (f"{color}-{shape}" for color in COLORS[: self.num_kinds] for shape in SHAPES[: self.num_kinds])
        return (QUESTION, *items)

    @property
    def max_length(self) -> int:
        """The longest stretch before each question."""
        return self.num_questions * (self.far_offset + 3)

    def sample(self, random: np.random.Generator) -> list[str]:
        """Stretches of items, each with its question."""
        items, words = self.vocabulary[1:], []
        for _ in range(self.num_questions):
            count = self.far_offset + int(random.integers(0, 3))
            words += [*(choose(random, items) for _ in range(count)), QUESTION]
        return words

    def find_questions(self, words: Words) -> list[Question]:
        """Every question mark that has items at both places."""
        found = []
        for position, word in enumerate(words):
            sources = position - self.near_offset, position - self.far_offset
            if word == QUESTION and min(sources) >= 0 and all(words[at] != QUESTION for at in sources):
                (color, _), (_, shape) = (words[at].split("-") for at in sources)
                found.append(Question(position, f"{color}-{shape}", tuple((at,) for at in sources)))
        return found

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """The item at one of the two places."""
        return {"near_item": words[position - self.near_offset], "far_item": words[position - self.far_offset]}


@dataclasses.dataclass(frozen=True)
class Retrieval(Config):
    """Key-value retrieval: "c=4 a=2 h=1 ? a" asks for 2.

    Two to `max_pairs` different keys of the first `letters` letters, each with one of the first `num_digits` digits,
    and `num_questions` of them asked for.
    """

    max_pairs: Annotated[int, Range(2)] = 8
    num_questions: NumQuestions = 4
    letters: Annotated[int, Range(2, 26)] = 8
    num_digits: Annotated[int, Range(2, 10)] = 6

    sources: ClassVar[Mapping[str, str]] = {"value": "the value of the key"}
    needs_future: ClassVar[bool] = False

    def _check(self) -> None:
        if self.max_pairs > self.letters:
            raise ValueError(f"max_pairs={self.max_pairs} must be at most letters={self.letters}")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The question mark, digits, letters, and all pairs of these."""
        keys, values = string.ascii_lowercase[: self.letters], string.digits[: self.num_digits]
        return (QUESTION, *values, *keys, *(f"{key}={value}" for key in keys for value in values))

    @property
    def max_length(self) -> int:
        """Pairs, and questions of two words."""
        return self.max_pairs + 2 * self.num_questions

    def sample(self, random: np.random.Generator) -> list[str]:
        """Pairs, and keys of them."""
        keys = shuffled(random, string.ascii_lowercase[: self.letters])[: random.integers(2, self.max_pairs + 1)]
        shown = [f"{key}={choose(random, string.digits[: self.num_digits])}" for key in keys]
        return [*shown, *(word for _ in range(self.num_questions) for word in (QUESTION, choose(random, keys)))]

    def find_questions(self, words: Words) -> list[Question]:
        """Every key behind a question mark; of a key with several values the last is asked for."""
        positions: dict[str, int] = {}
        found = []
        for position, word in enumerate(words):
            if "=" in word:
                positions[word[0]] = position
            elif word in positions and words[position - 1] == QUESTION:
                found.append(Question(position, words[positions[word]][2:], ((positions[word],),)))
        return found

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """The value that was shown last, and the most frequent."""
        values = [word[2:] for word in words[:position] if "=" in word]
        return {"last_value": values[-1], "most_values": most_frequent(values)}


@dataclasses.dataclass(frozen=True)
class Sorting(Config):
    """Sorting: "k c a : a c" asks for a, c and k, which are the letters before the colon in alphabetical order.

    Three to `letters` different letters.
    """

    letters: Annotated[int, Range(3, 26)] = 10

    sources: ClassVar[Mapping[str, str]] = {"next": "the letter that comes next"}
    needs_future: ClassVar[bool] = False
    vocabulary: ClassVar[tuple[str, ...]] = (":", *string.ascii_lowercase)

    @property
    def max_length(self) -> int:
        """The letters, the colon, and all but the last of them again."""
        return 2 * self.letters

    def sample(self, random: np.random.Generator) -> list[str]:
        """Letters, and their order but for its last."""
        count = random.integers(3, self.letters + 1)
        given = shuffled(random, string.ascii_lowercase)[:count]
        return [*given, ":", *sorted(given)[:-1]]

    def find_questions(self, words: Words) -> list[Question]:
        """The colon, and each letter behind it that is not the last."""
        colon = words.index(":") if ":" in words else len(words)
        found = []
        for position in range(colon, len(words)):
            later = [letter for letter in words[:colon] if position == colon or letter > words[position]]
            if later:
                found.append(Question(position, min(later), (_positions_of(words[:colon], min(later)),)))
        return found

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """The letter that was given at this number, and the one that follows in the alphabet."""
        colon = words.index(":")
        following = string.ascii_lowercase.find(words[position]) + 1
        given = words[min(position - colon, colon - 1)]
        return {"as_given": given, "next_of_alphabet": string.ascii_lowercase[following % 26]}


PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclasses.dataclass(frozen=True)
class Brackets(Config):
    """Which bracket closes: a Dyck language of `num_kinds` brackets, nested at most `max_depth` deep.

    A text has at most `max_length` brackets. Asked after every closing bracket that leaves one open: the last opening
    bracket is then a closed one.
    """

    num_kinds: Annotated[int, Range(2, len(PAIRS))] = 4
    max_depth: Annotated[int, Range(2, 100)] = 6
    max_length: Annotated[int, Range(8, 1000)] = 32

    sources: ClassVar[Mapping[str, str]] = {"opening": "the bracket that is open"}
    needs_future: ClassVar[bool] = False

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All brackets."""
        return tuple(bracket for pair in list(PAIRS.items())[: self.num_kinds] for bracket in pair)

    def sample(self, random: np.random.Generator) -> list[str]:
        """The beginning of a word of the language, opening and closing with equal chance where both can be."""
        opening = list(PAIRS)[: self.num_kinds]
        while True:
            words: list[str] = []
            stack: list[str] = []
            for _ in range(random.integers(self.max_length // 2, self.max_length + 1)):
                if not stack or (len(stack) < self.max_depth and random.random() < 0.5):
                    stack.append(choose(random, opening))
                    words.append(stack[-1])
                else:
                    words.append(PAIRS[stack.pop()])
            if self.find_questions(words):
                return words

    def find_questions(self, words: Words) -> list[Question]:
        """Every closing bracket that leaves another open, up to the first that closes what is not open."""
        found, stack = [], []
        for position, word in enumerate(words):
            if word in PAIRS:
                stack.append(position)
                continue
            if not stack or PAIRS[words[stack.pop()]] != word:
                break
            if stack:
                found.append(Question(position, PAIRS[words[stack[-1]]], ((stack[-1],),)))
        return found

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """What closes the last opening bracket, though it be closed, and the closing bracket before once more."""
        last = next(word for word in reversed(words[:position]) if word in PAIRS)
        return {"nearest_opening": PAIRS[last], "again": words[position]}


@dataclasses.dataclass(frozen=True)
class Motifs(Config):
    """Induction: a motif of different letters occurs `repeats` times, each time after up to `max_gap` other letters.

    It has `motif` letters, or as few as half of them. When it occurs again, each of its letters predicts the next one.
    All other letters occur once.
    """

    motif: Annotated[int, Range(4, 40)] = 16
    repeats: Annotated[int, Range(2, 8)] = 3
    max_gap: Positive = 4

    sources: ClassVar[Mapping[str, str]] = {"continuation": "what followed in the motif before"}
    needs_future: ClassVar[bool] = False
    vocabulary: ClassVar[tuple[str, ...]] = tuple(string.ascii_letters)

    def _check(self) -> None:
        if self.max_gap > (most := (len(self.vocabulary) - self.motif) // self.repeats):
            raise ValueError(
                f"max_gap={self.max_gap} must be at most {most} with motif={self.motif} and repeats={self.repeats}"
            )

    @property
    def max_length(self) -> int:
        """As many motifs with the longest gaps."""
        return self.repeats * (self.motif + self.max_gap)

    def sample(self, random: np.random.Generator) -> list[str]:
        """Gaps and motifs in turn, the last of which breaks off within."""
        count = int(random.integers(self.motif // 2, self.motif + 1))
        letters = shuffled(random, self.vocabulary)
        motif, others = letters[:count], iter(letters[count:])
        words: list[str] = []
        for _ in range(self.repeats):
            words += [next(others) for _ in range(random.integers(1, self.max_gap + 1))] + motif
        return words[: len(words) - int(random.integers(1, count))]

    def find_questions(self, words: Words) -> list[Question]:
        """Every letter that stood before, and was followed by what follows now, if anything does."""
        found = []
        for position, word in enumerate(words):
            before = [at for at in range(position) if words[at] == word]
            answer = words[before[-1] + 1] if before else None
            if answer is not None and {*words[position + 1 : position + 2]} <= {answer}:
                sources = tuple(at + 1 for at in before if words[at + 1] == answer)
                found.append(Question(position, answer, (sources,)))
        return found

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """No rule of its own: a letter that no motif has told is any of all."""
        return {}


def _positions_of(words: Words, word: str) -> tuple[int, ...]:
    return tuple(position for position, each in enumerate(words) if each == word)
