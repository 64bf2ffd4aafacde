"""Episodes shown by examples alone: word maps such as "ab>QX;ba>XQ;", edits of words, and two authors' letters."""

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

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

    Raises:
        UserError: As described above.
    """
    maps = math.comb(symbols, letters) * math.perm(symbols, letters)
    if maps < HELD_OUT:
        raise UserError(
            f"config.task.letters={letters} of symbols={symbols} have {maps} maps, too few for one in {HELD_OUT} to be "
            "unseen: say more symbols"
        )


def check_words(symbols: int, letters: int, shortest: int, longest: int, *, least: int, words: int) -> None:
    """Refuse words of less than `least` letters, and fewer of them than `words`.

    Raises:
        UserError: As described above.
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


EDITS = MappingProxyType(
    {
        "capitalize": lambda word: word[0].upper() + word[1:],
        "shout": str.upper,
        "reverse": lambda word: word[::-1],
        "swap ends": lambda word: word[-1] + word[1:-1] + word[0],
        "delete the first": lambda word: word[1:],
        "double the last": lambda word: word + word[-1],
        "rotate": lambda word: word[1:] + word[0],
    }
)
# Edits that are one on words of so many lengths from the shortest on are one on all.
_LENGTHS = 4
# Of the edits that take two, every so many-th is unseen.
_UNSEEN = 4


def apply(names: tuple[str, ...], word: str) -> str:
    """The word behind these edits, one after the other."""
    return functools.reduce(lambda word, name: EDITS[name](word), names, word)


@functools.cache
def programs(shortest: int, longest: int) -> Mapping[bool, tuple[tuple[str, ...], ...]]:
    """The edits that training sees (False) and those that it does not (True), of words of these lengths.

    All single edits are seen, and so are most of those that two of them make. Which order makes the same of every word
    is one edit, held out as a whole, and what one edit does alone, or nobody notices, is none of two. Of words of three
    letters swapping the ends is reversing: what is one edit depends on the lengths.
    """
    nothing = tuple(LETTERS[:length] for length in range(shortest, min(longest, shortest + _LENGTHS - 1) + 1))
    singles = [(name,) for name in EDITS]
    does = {tuple(apply(names, word) for word in nothing): names for names in reversed(singles)}
    twos: dict[tuple[str, ...], tuple[str, ...]] = {}
    for first in EDITS:
        for second in EDITS:
            made = tuple(apply((first, second), word) for word in nothing)
            if made not in does and made != nothing:
                twos.setdefault(made, (first, second))
    unseen = tuple(twos.values())[::_UNSEEN]
    seen = (*singles, *(names for names in twos.values() if names not in unseen))
    return MappingProxyType({False: seen, True: unseen})


class RuleEdits(NamedTuple):
    """An edit an episode. Unseen are combinations of two known edits, on words that are held out as well."""

    symbols: int
    shortest: int
    longest: int

    @property
    def alphabet(self) -> str:
        """Small letters and their capitals."""
        return LETTERS[: self.symbols] + LETTERS[: self.symbols].upper()

    @property
    def widest(self) -> int:
        """Two words of which the second may have two letters more, and the marks."""
        return 2 * self.longest + 4

    @property
    def programs(self) -> Mapping[bool, tuple[tuple[str, ...], ...]]:
        """The seen edits and the unseen ones."""
        return programs(self.shortest, self.longest)

    def draw(self, random: np.random.Generator, pairs: int, *, unseen: bool) -> Episode:
        """Words under one program, all programs equally likely."""
        known = self.programs[unseen]
        names = known[random.integers(len(known))]
        letters = LETTERS[: self.symbols]
        words = draw_words(random, pairs, letters, self.shortest, self.longest, unseen=unseen)
        return Episode(tuple(Pair(word, apply(names, word)) for word in words), ", ".join(names))

    def best(self, episode: Episode, known: int) -> float:
        """1 where the likeliest answer is right, of those that the programs give which fit what is shown; else 0.

        Who knows the problem takes all its programs, seen and unseen, for equally likely.
        """
        shown, (asked, target) = episode.pairs[:known], episode.pairs[known]
        fitting = [
            apply(names, asked)
            for of_split in self.programs.values()
            for names in of_split
            if all(apply(names, source) == made for source, made in shown)
        ]
        likeliest = max(set(fitting), key=lambda answer: (fitting.count(answer), answer))
        return float(likeliest == target)


CONSONANTS, VOWELS, SPACE, COMMA, PERIOD = "bdklmnrstv", "aeiou", " ", ",", "."
CHARACTERS = CONSONANTS + VOWELS + SPACE + COMMA + PERIOD


class Habits(NamedTuple):
    """What an author likes: letters, taken `favored` times as often as others, and how words and sentences go on.

    Behind a vowel follow another syllable (`goes_on`), a closing consonant (`closes`), or the word's end; a word ends
    in a comma, a period, or neither.
    """

    letters: str
    favored: float
    goes_on: float
    closes: float
    comma: float
    period: float


AUTHORS = {
    "soft": Habits("lmnvou", 3.0, 0.45, 0.05, 0.20, 0.05),
    "hard": Habits("bdkrti", 3.0, 0.25, 0.40, 0.03, 0.20),
}
# What neither author writes: the same for both, so that it says nothing.
NEVER = -20.0


@functools.cache
def chain(habits: Habits) -> Float[np.ndarray, "C C"]:
    """The probability of each character behind each: syllables of consonant and vowel, words, and marks behind them."""
    table = np.zeros((len(CHARACTERS), len(CHARACTERS)))
    weights = np.array([habits.favored if letter in habits.letters else 1.0 for letter in CHARACTERS])

    def among(letters: str) -> np.ndarray:
        chosen = weights * [letter in letters for letter in CHARACTERS]
        return chosen / chosen.sum()

    marked = habits.comma + habits.period
    end = habits.comma * among(COMMA) + habits.period * among(PERIOD) + (1 - marked) * among(SPACE)
    for number, character in enumerate(CHARACTERS):
        if character in CONSONANTS:
            # A consonant that closes a syllable is one that a word's end follows.
            table[number] = (1 - habits.closes) * among(VOWELS) + habits.closes * end
        elif character in VOWELS:
            table[number] = (habits.goes_on + habits.closes) * among(CONSONANTS)
            table[number] += (1 - habits.goes_on - habits.closes) * end
        elif character in (COMMA, PERIOD):
            table[number] = among(SPACE)
        else:
            table[number] = among(CONSONANTS)
    return table


def write(habits: Habits, random: np.random.Generator, length: int) -> str:
    """A text of so many characters, which begins with a word."""
    cumulative, at, text = np.cumsum(chain(habits), axis=1), CHARACTERS.index(SPACE), []
    for drawn in random.random(length):
        # Rounding may leave the last sum below what is drawn.
        at = min(int(np.searchsorted(cumulative[at], drawn, side="right")), len(CHARACTERS) - 1)
        text.append(CHARACTERS[at])
    return "".join(text)


def log_likelihood(habits: Habits, before: str, text: str) -> float:
    """Log p(text | the character before it), in nats; `NEVER` for a step that the author never takes."""
    table = chain(habits)
    steps = zip(before[-1] + text, text, strict=False)
    of_steps = [table[CHARACTERS.index(first), CHARACTERS.index(second)] for first, second in steps]
    return float(sum(np.log(step) if step > 0 else NEVER for step in of_steps))


def author_of(before: str, text: str) -> str:
    """Who writes such a text with the greatest probability: no judge of both is right more often."""
    return max(AUTHORS, key=lambda name: log_likelihood(AUTHORS[name], before, text))
