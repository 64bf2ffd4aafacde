"""Episodes: a rule that nobody says, shown by pairs of words, such as "ab>QX;ba>XQ;" where letters are translated.

Each problem is one class. A training episode never has what `unseen` episodes are made of, so that those ask for
rules that no parameter has met.
"""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from transformer.config import UserError
from transformer.text_lines import split_lines

ARROW, STOP = ">", ";"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# One thing in so many is kept for unseen episodes.
HELD_OUT = 8


class Pair(NamedTuple):
    """A word, and what the episode's rule makes of it."""

    source: str
    target: str


class Episode(NamedTuple):
    """Pairs of different words under one rule, and what the rule is called."""

    pairs: tuple[Pair, ...]
    rule: str


class Problem(Protocol):
    """What the rules of episodes are, and how they are drawn."""

    @property
    def alphabet(self) -> str:
        """Every character that a word can have."""

    @property
    def widest(self) -> int:
        """The most characters of a pair with its two marks."""

    def draw(self, random: np.random.Generator, pairs: int, *, unseen: bool) -> Episode:
        """An episode of so many pairs."""

    def best(self, episode: Episode, known: int) -> float:
        """How probably who knows the problem, but not the rule, is right about a pair behind so many pairs."""


def text_of(pairs: Sequence[Pair]) -> str:
    """The pairs as they are read: "ab>QX;ba>XQ;"."""
    return "".join(f"{source}{ARROW}{target}{STOP}" for source, target in pairs)


def shots_of(pairs: Sequence[Pair]) -> list[int]:
    """For every character of their text the pairs before it, where it is of an answer or ends one; else -1."""
    return [
        shot
        for number, (source, target) in enumerate(pairs)
        for shot in [-1] * (len(source) + 1) + [number] * (len(target) + 1)
    ]


def prompt_of(text: str) -> str:
    """A prompt as people write it, "ab => QX ; ba =>" or a pair a line, in the characters of episodes.

    Empty lines are left out.
    """
    lines = (line.strip().removesuffix(STOP) for line in split_lines(text))
    return "".join(STOP.join(line for line in lines if line).replace("=>", ARROW).split())


def is_held_out(text: str) -> bool:
    """Whether this is kept for unseen episodes: one text in `HELD_OUT`, the same in all runs."""
    return zlib.crc32(text.encode()) % HELD_OUT == 0


def draw_words(
    random: np.random.Generator, count: int, letters: str, shortest: int, longest: int, *, unseen: bool | None = None
) -> list[str]:
    """So many different words, lengths and letters equally likely; all held out or none, where `unseen` is given."""
    words: dict[str, None] = {}
    while len(words) < count:
        lengths = random.integers(shortest, longest + 1, count)
        numbers = random.integers(0, len(letters), (count, longest))
        drawn = ["".join(letters[number] for number in row) for row in numbers]
        cut = (word[:length] for word, length in zip(drawn, lengths, strict=True))
        words |= dict.fromkeys(word for word in cut if unseen is None or is_held_out(word) == unseen)
    return list(words)[:count]


class WordMaps(NamedTuple):
    """A language an episode, which translates letter by letter: `letters` small letters of `symbols`, to capital ones.

    One language in `HELD_OUT` is unseen. No word stands twice, so that an answer is never in the prompt: it is put
    together from the letters of other words.
    """

    symbols: int
    letters: int
    shortest: int
    longest: int

    @property
    def alphabet(self) -> str:
        """Small letters and their capitals."""
        return LETTERS[: self.symbols] + LETTERS[: self.symbols].upper()

    @property
    def widest(self) -> int:
        """Two words as long and the marks."""
        return 2 * self.longest + 2

    def draw(self, random: np.random.Generator, pairs: int, *, unseen: bool) -> Episode:
        """Words of one language, all equally likely."""
        rule = ""
        while not rule or is_held_out(rule) != unseen:
            chosen, image = (random.permutation(self.symbols)[: self.letters] for _ in range(2))
            letters = "".join(LETTERS[number] for number in np.sort(chosen))
            made = "".join(LETTERS[number] for number in image).upper()
            rule = f"{letters} to {made}"
        table = str.maketrans(letters, made)
        words = draw_words(random, pairs, letters, self.shortest, self.longest)
        return Episode(tuple(Pair(word, word.translate(table)) for word in words), rule)

    def best(self, episode: Episode, known: int) -> float:
        """1 / (u (u - 1) ...), a factor for each letter that no pair has shown, of the u images that are left."""
        shown = {letter for source, _ in episode.pairs[:known] for letter in source}
        asked = set(episode.pairs[known].source) - shown
        return 1 / math.perm(self.symbols - len(shown), len(asked))


def check_maps(symbols: int, letters: int) -> None:
    """Refuse sizes of which there are too few maps for some to be held out.

    Errors: UserError.
    """
    maps = math.comb(symbols, letters) * math.perm(symbols, letters)
    if maps < HELD_OUT:
        raise UserError(
            f"config.task.letters={letters} of symbols={symbols} have {maps} maps, too few for one in {HELD_OUT} to be "
            "unseen: say more symbols"
        )


def check_words(symbols: int, letters: int, shortest: int, longest: int, *, least: int, words: int) -> None:
    """Refuse words of less than `least` letters, and fewer of them than `words`.

    Errors: UserError.
    """
    if not 2 <= letters <= symbols <= len(LETTERS):
        raise UserError(
            f"config.task.letters={letters} and symbols={symbols} must rise, from 2 to at most {len(LETTERS)} letters"
        )
    if not least <= shortest <= longest:
        raise UserError(
            f"config.task.shortest={shortest} and longest={longest} must rise, from at least {least} letters"
        )
    if sum(letters**length for length in range(shortest, longest + 1)) < words:
        raise UserError(
            f"{letters} letters and config.task.longest={longest} give too few words for config.task.shots: at least "
            f"{words} are needed"
        )
