"""Probe corpora of symbols: copying from two offsets, key-value retrieval, sorting, brackets, repeated motifs."""

import dataclasses
import string
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from experiments.attention_probes.probe_corpus import Question, Words, choose_word, most_frequent_word, shuffle_words
from transformer.config import Config, PositiveInt, Range

COLORS = ("red", "blue", "green", "black", "white", "gold", "grey", "pink")
SHAPES = ("circle", "square", "star", "cross", "ring", "moon", "heart", "arrow")
QUESTION = "?"


NumQuestions = Annotated[int, Range(1, 30)]
"""A number of questions that are asked of one text."""


@dataclasses.dataclass(frozen=True)
class TwoOffsetCopy(Config):
    """Copy from two offsets: the color of the item `near_offset` back and the shape of the item `far_offset` back.

    Items are words such as "red-circle". Each question mark follows `far_offset` to `far_offset` + 2 items.

    A single head with a linear map of its output cannot always be right if an item t that stands d positions back has
    the weight b_d w(t) before weights are normalized (as with T5's relative positions and ALiBi). Up to a positive
    factor an answer c = (color, shape) to the items a, near, and b, far, then has the score b_near E_c(a) + b_far
    E_c(b) + k_c, with one E for both: w(t) times a score of t. Say that b_near >= b_far, and take two items of the same
    color, 0 and 1 by their shapes, F being E of 0 minus E of 1, and k the same of k_c. Right answers need (b_near +
    b_far) F(0) + k > 0 > (b_near + b_far) F(1) + k where both items are the same, so that F(0) > F(1); and b_near F(1)
    + b_far F(0) + k > 0 > b_near F(0) + b_far F(1) + k where they differ, so that (b_near - b_far) (F(1) - F(0)) > 0, a
    contradiction. One of these four texts is answered wrong. If b_far >= b_near, one of four with the same shape is.

    With two colors and two shapes there are two such groups of four among the 16 pairs of items: one head is right on
    at most 14 of 16, whatever else the text says, and on all of four questions in (14 / 16)^4, 59 % of texts. With more
    kinds it may reach more, and 13 of 16 with four. Two heads have an E each. (After a nonlinear network one head is
    enough: an uneven mixture of two items is unlike any other.)

    Attributes:
        num_kinds: The number of colors, and of shapes.
        near_offset: The distance of the item whose color is copied.
        far_offset: The distance of the item whose shape is copied.
        num_questions: The number of questions of a text.

    Raises:
        ValueError: If `far_offset` is not above `near_offset`.
    """

    num_kinds: Annotated[int, Range(2, len(COLORS))] = 4
    near_offset: Annotated[int, Range(1, 30)] = 1
    far_offset: Annotated[int, Range(2, 31)] = 4
    num_questions: NumQuestions = 4

    attended_position_descriptions: ClassVar[Mapping[str, str]] = {"near": "the nearer item", "far": "the farther item"}
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
        """The longest run of items and its question mark, for each question."""
        return self.num_questions * (self.far_offset + 3)

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample runs of items, each followed by a question mark."""
        items, words = self.vocabulary[1:], []
        for _ in range(self.num_questions):
            count = self.far_offset + int(random.integers(0, 3))
            words += [*(choose_word(random, items) for _ in range(count)), QUESTION]
        return words

    def find_questions(self, words: Words) -> list[Question]:
        """Return every question mark that has items at both offsets."""
        questions = []
        for position, word in enumerate(words):
            sources = position - self.near_offset, position - self.far_offset
            if word == QUESTION and min(sources) >= 0 and all(words[at] != QUESTION for at in sources):
                (color, _), (_, shape) = (words[at].split("-") for at in sources)
                questions.append(Question(position, f"{color}-{shape}", tuple((at,) for at in sources)))
        return questions

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return the item at one of the two offsets."""
        return {"near_item": words[position - self.near_offset], "far_item": words[position - self.far_offset]}


@dataclasses.dataclass(frozen=True)
class Retrieval(Config):
    """Key-value retrieval: "c=4 a=2 h=1 ? a" asks for 2.

    Attributes:
        max_pairs: The most pairs of a text, which has at least two.
        num_questions: The number of keys asked for.
        num_letters: The number of letters that may be keys.
        num_digits: The number of digits that may be values.

    Raises:
        ValueError: If `max_pairs` is above `num_letters`.
    """

    max_pairs: Annotated[int, Range(2)] = 8
    num_questions: NumQuestions = 4
    num_letters: Annotated[int, Range(2, 26)] = 8
    num_digits: Annotated[int, Range(2, 10)] = 6

    attended_position_descriptions: ClassVar[Mapping[str, str]] = {"value": "the value of the key"}
    needs_future: ClassVar[bool] = False

    def _check(self) -> None:
        if self.max_pairs > self.num_letters:
            raise ValueError(f"max_pairs={self.max_pairs} must be at most num_letters={self.num_letters}")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The question mark, digits, letters, and all pairs of these."""
        keys, values = string.ascii_lowercase[: self.num_letters], string.digits[: self.num_digits]
        return (QUESTION, *values, *keys, *(f"{key}={value}" for key in keys for value in values))

    @property
    def max_length(self) -> int:
        """The length of the most pairs, and of questions of two words."""
        return self.max_pairs + 2 * self.num_questions

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample pairs, and keys of them to ask for."""
        keys = shuffle_words(random, string.ascii_lowercase[: self.num_letters])[
            : random.integers(2, self.max_pairs + 1)
        ]
        pairs = [f"{key}={choose_word(random, string.digits[: self.num_digits])}" for key in keys]
        return [*pairs, *(word for _ in range(self.num_questions) for word in (QUESTION, choose_word(random, keys)))]

    def find_questions(self, words: Words) -> list[Question]:
        """Return every key after a question mark; if a key has several values, the last counts."""
        positions: dict[str, int] = {}
        questions = []
        for position, word in enumerate(words):
            if "=" in word:
                positions[word[0]] = position
            elif word in positions and words[position - 1] == QUESTION:
                questions.append(Question(position, words[positions[word]][2:], ((positions[word],),)))
        return questions

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return the last value shown, and the most frequent one."""
        values = [word[2:] for word in words[:position] if "=" in word]
        return {"last_value": values[-1], "most_values": most_frequent_word(values)}


@dataclasses.dataclass(frozen=True)
class Sorting(Config):
    """Sorting: "k c a : a c" asks for a, c and k, the letters before the colon in alphabetical order.

    Attributes:
        num_letters: The most letters of a text, which has at least three, all different.
    """

    num_letters: Annotated[int, Range(3, 26)] = 10

    attended_position_descriptions: ClassVar[Mapping[str, str]] = {"next": "the letter that comes next"}
    needs_future: ClassVar[bool] = False
    vocabulary: ClassVar[tuple[str, ...]] = (":", *string.ascii_lowercase)

    @property
    def max_length(self) -> int:
        """The length of the letters, the colon, and all letters again except the last."""
        return 2 * self.num_letters

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample letters, followed by their order without its last."""
        count = random.integers(3, self.num_letters + 1)
        letters = shuffle_words(random, string.ascii_lowercase)[:count]
        return [*letters, ":", *sorted(letters)[:-1]]

    def find_questions(self, words: Words) -> list[Question]:
        """Return the colon, and each letter after it except the last of the alphabetical order."""
        colon = words.index(":") if ":" in words else len(words)
        questions = []
        for position in range(colon, len(words)):
            later = [letter for letter in words[:colon] if position == colon or letter > words[position]]
            if later:
                questions.append(Question(position, min(later), (_find_word(words[:colon], min(later)),)))
        return questions

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return the letter given at the same index, and the next letter of the alphabet."""
        colon = words.index(":")
        following = string.ascii_lowercase.find(words[position]) + 1
        same_index_letter = words[min(position - colon, colon - 1)]
        return {"as_given": same_index_letter, "next_of_alphabet": string.ascii_lowercase[following % 26]}


PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclasses.dataclass(frozen=True)
class Brackets(Config):
    """Bracket matching: which bracket closes next in a Dyck language of several kinds of brackets.

    The question is asked after every closing bracket that leaves one open, so that the last opening bracket is already
    closed.

    Attributes:
        num_kinds: The number of kinds of brackets.
        max_depth: The deepest nesting.
        max_length: The most brackets of a text.
    """

    num_kinds: Annotated[int, Range(2, len(PAIRS))] = 4
    max_depth: Annotated[int, Range(2, 100)] = 6
    max_length: Annotated[int, Range(8, 1000)] = 32

    attended_position_descriptions: ClassVar[Mapping[str, str]] = {"opening": "the bracket that is open"}
    needs_future: ClassVar[bool] = False

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All brackets."""
        return tuple(bracket for pair in list(PAIRS.items())[: self.num_kinds] for bracket in pair)

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample a prefix of a word of the language; opening and closing are equally likely where both are possible."""
        opening = list(PAIRS)[: self.num_kinds]
        while True:
            words: list[str] = []
            stack: list[str] = []
            for _ in range(random.integers(self.max_length // 2, self.max_length + 1)):
                if not stack or (len(stack) < self.max_depth and random.random() < 0.5):
                    stack.append(choose_word(random, opening))
                    words.append(stack[-1])
                else:
                    words.append(PAIRS[stack.pop()])
            if self.find_questions(words):
                return words

    def find_questions(self, words: Words) -> list[Question]:
        """Return every closing bracket that leaves another open, up to the first bracket that does not match."""
        questions, stack = [], []
        for position, word in enumerate(words):
            if word in PAIRS:
                stack.append(position)
                continue
            if not stack or PAIRS[words[stack.pop()]] != word:
                break
            if stack:
                questions.append(Question(position, PAIRS[words[stack[-1]]], ((stack[-1],),)))
        return questions

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return the bracket that closes the last opening one, even if closed, and the last closing one again."""
        last = next(word for word in reversed(words[:position]) if word in PAIRS)
        return {"nearest_opening": PAIRS[last], "again": words[position]}


@dataclasses.dataclass(frozen=True)
class Motifs(Config):
    """Induction: a motif of different letters occurs several times, each time after a gap of other letters.

    When the motif occurs again, each of its letters predicts the next one. All other letters occur once.

    Attributes:
        motif_length: The most letters of the motif, which has at least half as many.
        max_repeats: How often the motif occurs.
        max_gap: The longest gap.

    Raises:
        ValueError: If there are too few letters for gaps of `max_gap`.
    """

    motif_length: Annotated[int, Range(4, 40)] = 16
    max_repeats: Annotated[int, Range(2, 8)] = 3
    max_gap: PositiveInt = 4

    attended_position_descriptions: ClassVar[Mapping[str, str]] = {"continuation": "what followed in the motif before"}
    needs_future: ClassVar[bool] = False
    vocabulary: ClassVar[tuple[str, ...]] = tuple(string.ascii_letters)

    def _check(self) -> None:
        if self.max_gap > (most := (len(self.vocabulary) - self.motif_length) // self.max_repeats):
            raise ValueError(
                f"max_gap={self.max_gap} must be at most {most} with motif_length={self.motif_length} and "
                f"max_repeats={self.max_repeats}"
            )

    @property
    def max_length(self) -> int:
        """The length of the longest motifs with the longest gaps."""
        return self.max_repeats * (self.motif_length + self.max_gap)

    def sample(self, random: np.random.Generator) -> list[str]:
        """Sample gaps and motifs in turn; the last motif is cut short."""
        count = int(random.integers(self.motif_length // 2, self.motif_length + 1))
        letters = shuffle_words(random, self.vocabulary)
        motif, gap_letters = letters[:count], iter(letters[count:])
        words: list[str] = []
        for _ in range(self.max_repeats):
            words += [next(gap_letters) for _ in range(random.integers(1, self.max_gap + 1))] + motif
        return words[: len(words) - int(random.integers(1, count))]

    def find_questions(self, words: Words) -> list[Question]:
        """Return every letter that occurred before, followed by what follows now, if anything does."""
        questions = []
        for position, word in enumerate(words):
            before = [at for at in range(position) if words[at] == word]
            answer = words[before[-1] + 1] if before else None
            if answer is not None and {*words[position + 1 : position + 2]} <= {answer}:
                sources = tuple(at + 1 for at in before if words[at + 1] == answer)
                questions.append(Question(position, answer, (sources,)))
        return questions

    def baseline_answers(self, words: Words, position: int) -> dict[str, str]:
        """Return no baselines: a letter outside of a motif may be any."""
        return {}


def _find_word(words: Words, word: str) -> tuple[int, ...]:
    return tuple(position for position, candidate in enumerate(words) if candidate == word)
