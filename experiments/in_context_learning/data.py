"""In-context episodes: letter-by-letter translation ("ab>QX;ba>XQ;"), string edits, and two authors' texts."""

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from transformer.config import UserError
from transformer.data.line_splitting import split_lines

ARROW, STOP = ">", ";"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# One thing in so many is kept for unseen episodes.
HELD_OUT = 8


class Pair(NamedTuple):
    """A word and its image under the episode's rule."""

    source: str
    target: str


class Episode(NamedTuple):
    """Pairs of distinct words under one rule, and the rule's name."""

    pairs: tuple[Pair, ...]
    rule_name: str


class EpisodeDistribution(Protocol):
    """A distribution over rules, and over episodes of them."""

    @property
    def alphabet(self) -> str:
        """Every character of words."""

    @property
    def max_pair_length(self) -> int:
        """The number of characters of the longest pair, with its two separators."""

    def sample(self, random: np.random.Generator, pairs: int, *, unseen: bool) -> Episode:
        """Sample an episode: pairs that follow one rule.

        Args:
            random: The random generator.
            pairs: The number of pairs.
            unseen: Whether the rule is one that is held out from training.

        Returns:
            The episode.
        """

    def bayes_optimal_accuracy(self, episode: Episode, num_shots: int) -> float:
        """Return the accuracy of the Bayes-optimal answer, which knows the problem but not the episode's rule.

        Args:
            episode: The episode.
            num_shots: The number of pairs seen before the one that is answered.

        Returns:
            The accuracy on pair `num_shots`, from 0 to 1.
        """


def format_pairs(pairs: Sequence[Pair]) -> str:
    """Format pairs as text: "ab>QX;ba>XQ;"."""
    return "".join(f"{source}{ARROW}{target}{STOP}" for source, target in pairs)


def shots_by_character(pairs: Sequence[Pair]) -> list[int]:
    """Return for every character of an answer (or its end) the number of pairs before it; -1 elsewhere."""
    return [
        shot
        for number, (source, target) in enumerate(pairs)
        for shot in [-1] * (len(source) + 1) + [number] * (len(target) + 1)
    ]


def parse_prompt(text: str) -> str:
    """Convert a user's prompt, "ab => QX ; ba =>" or one pair a line, to the characters of episodes.

    Empty lines are ignored.
    """
    lines = (line.strip().removesuffix(STOP) for line in split_lines(text))
    return "".join(STOP.join(line for line in lines if line).replace("=>", ARROW).split())


def is_held_out(text: str) -> bool:
    """Return whether a text is held out: one in `HELD_OUT`, the same in all runs."""
    return zlib.crc32(text.encode()) % HELD_OUT == 0


def sample_words(
    random: np.random.Generator,
    count: int,
    letters: str,
    min_word_length: int,
    max_word_length: int,
    *,
    unseen: bool | None = None,
) -> list[str]:
    """Sample distinct words, uniform in length and letters.

    Args:
        random: The random generator.
        count: The number of words.
        letters: The letters.
        min_word_length: The fewest letters of a word.
        max_word_length: The most letters of a word.
        unseen: Whether all words are held out, or none; None for either.

    Returns:
        The words.
    """
    words: dict[str, None] = {}
    while len(words) < count:
        lengths = random.integers(min_word_length, max_word_length + 1, count)
        numbers = random.integers(0, len(letters), (count, max_word_length))
        longest_words = ["".join(letters[number] for number in row) for row in numbers]
        cut = (word[:length] for word, length in zip(longest_words, lengths, strict=True))
        words |= dict.fromkeys(word for word in cut if unseen is None or is_held_out(word) == unseen)
    return list(words)[:count]


class WordTranslation(NamedTuple):
    """Letter-by-letter translation into a new language in each episode.

    A language maps some lowercase letters to uppercase ones. One language in `HELD_OUT` is held out. No word occurs
    twice, so an answer is never in the prompt: it is composed from the letters of other words.

    Attributes:
        alphabet_size: The number of letters in the alphabet.
        num_letters: The number of letters that a language maps.
        min_word_length: The fewest letters of a word.
        max_word_length: The most letters of a word.
    """

    alphabet_size: int
    num_letters: int
    min_word_length: int
    max_word_length: int

    @property
    def alphabet(self) -> str:
        """Lowercase letters and their capitals."""
        return LETTERS[: self.alphabet_size] + LETTERS[: self.alphabet_size].upper()

    @property
    def max_pair_length(self) -> int:
        """The length of two longest words and the separators."""
        return 2 * self.max_word_length + 2

    def sample(self, random: np.random.Generator, pairs: int, *, unseen: bool) -> Episode:
        """Sample words of one language, all equally likely."""
        rule = ""
        while not rule or is_held_out(rule) != unseen:
            source_numbers, target_numbers = (
                random.permutation(self.alphabet_size)[: self.num_letters] for _ in range(2)
            )
            letters = "".join(LETTERS[number] for number in np.sort(source_numbers))
            target_letters = "".join(LETTERS[number] for number in target_numbers).upper()
            rule = f"{letters} to {target_letters}"
        table = str.maketrans(letters, target_letters)
        words = sample_words(random, pairs, letters, self.min_word_length, self.max_word_length)
        return Episode(tuple(Pair(word, word.translate(table)) for word in words), rule)

    def bayes_optimal_accuracy(self, episode: Episode, num_shots: int) -> float:
        """Return 1 / (u (u - 1) ...), a factor for each letter that no pair has shown, with u images left."""
        known_letters = {letter for source, _ in episode.pairs[:num_shots] for letter in source}
        new_letters = set(episode.pairs[num_shots].source) - known_letters
        return 1 / math.perm(self.alphabet_size - len(known_letters), len(new_letters))


def check_translation_sizes(alphabet_size: int, letters: int) -> None:
    """Check that there are enough languages to hold some out.

    Args:
        alphabet_size: The number of letters in the alphabet.
        letters: The number of letters that a language maps.

    Raises:
        UserError: If there are too few.
    """
    maps = math.comb(alphabet_size, letters) * math.perm(alphabet_size, letters)
    if maps < HELD_OUT:
        raise UserError(
            f"config.task.num_letters={letters} of alphabet_size={alphabet_size} have {maps} maps, "
            f"too few to hold out one in {HELD_OUT}: increase alphabet_size"
        )


def check_word_sizes(
    alphabet_size: int, letters: int, min_word_length: int, max_word_length: int, *, min_length: int, words: int
) -> None:
    """Check the alphabet and word lengths.

    Args:
        alphabet_size: The number of letters in the alphabet.
        letters: The number of letters that words use.
        min_word_length: The fewest letters of a word.
        max_word_length: The most letters of a word.
        min_length: The shortest allowed word.
        words: The number of words that are needed.

    Raises:
        UserError: If the values are out of order, words are shorter than `min_length`, or there are fewer than `words`
            words.
    """
    if not 2 <= letters <= alphabet_size <= len(LETTERS):
        raise UserError(
            f"config.task.num_letters={letters} and alphabet_size={alphabet_size} must rise, "
            f"from 2 to at most {len(LETTERS)} letters"
        )
    if not min_length <= min_word_length <= max_word_length:
        raise UserError(
            f"config.task.min_word_length={min_word_length} and max_word_length={max_word_length} must rise, "
            f"from at least {min_length} letters"
        )
    if sum(letters**length for length in range(min_word_length, max_word_length + 1)) < words:
        raise UserError(
            f"{letters} letters and config.task.max_word_length={max_word_length} give too few words for "
            f"config.task.shots: at least {words} are needed"
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
_NUM_LENGTHS = 4
# Of the edits that take two, every so many-th is unseen.
_UNSEEN_STRIDE = 4


def edit_word(names: tuple[str, ...], word: str) -> str:
    """Apply edits to a word, one after the other.

    Args:
        names: The names of the edits, the first first.
        word: The word.

    Returns:
        The edited word.
    """
    return functools.reduce(lambda word, name: EDITS[name](word), names, word)


@functools.cache
def edit_programs(min_word_length: int, max_word_length: int) -> Mapping[bool, tuple[tuple[str, ...], ...]]:
    """Return the training programs (False) and the held-out ones (True).

    All single edits are for training, and so are most compositions of two. Compositions that give the same result on
    every word are one program, held out as a whole; one that equals a single edit, or no change, is no composition.
    Which programs are equal depends on the lengths: on words of three letters, swapping the ends is reversing.

    Args:
        min_word_length: The fewest letters of a word.
        max_word_length: The most letters of a word.

    Returns:
        The programs, each the names of its edits in the order in which they are applied.
    """
    unedited = tuple(
        LETTERS[:length]
        for length in range(min_word_length, min(max_word_length, min_word_length + _NUM_LENGTHS - 1) + 1)
    )
    singles = [(name,) for name in EDITS]
    shortest_programs = {tuple(edit_word(names, word) for word in unedited): names for names in reversed(singles)}
    twos: dict[tuple[str, ...], tuple[str, ...]] = {}
    for first in EDITS:
        for second in EDITS:
            edited = tuple(edit_word((first, second), word) for word in unedited)
            if edited not in shortest_programs and edited != unedited:
                twos.setdefault(edited, (first, second))
    unseen = tuple(twos.values())[::_UNSEEN_STRIDE]
    training = (*singles, *(names for names in twos.values() if names not in unseen))
    return MappingProxyType({False: training, True: unseen})


class StringEdits(NamedTuple):
    """String editing by a new program of one or two edits in each episode.

    Held out are compositions of two known edits, on held-out words.

    Attributes:
        alphabet_size: The number of letters in the alphabet.
        min_word_length: The fewest letters of a word.
        max_word_length: The most letters of a word.
    """

    alphabet_size: int
    min_word_length: int
    max_word_length: int

    @property
    def alphabet(self) -> str:
        """Lowercase letters and their capitals."""
        return LETTERS[: self.alphabet_size] + LETTERS[: self.alphabet_size].upper()

    @property
    def max_pair_length(self) -> int:
        """The length of two longest words, of which the second may have two letters more, and the separators."""
        return 2 * self.max_word_length + 4

    @property
    def programs(self) -> Mapping[bool, tuple[tuple[str, ...], ...]]:
        """The training programs (False) and the held-out ones (True)."""
        return edit_programs(self.min_word_length, self.max_word_length)

    def sample(self, random: np.random.Generator, pairs: int, *, unseen: bool) -> Episode:
        """Sample words edited by one program, all programs equally likely."""
        programs = self.programs[unseen]
        names = programs[random.integers(len(programs))]
        letters = LETTERS[: self.alphabet_size]
        words = sample_words(random, pairs, letters, self.min_word_length, self.max_word_length, unseen=unseen)
        return Episode(tuple(Pair(word, edit_word(names, word)) for word in words), ", ".join(names))

    def bayes_optimal_accuracy(self, episode: Episode, num_shots: int) -> float:
        """Return 1 if the most probable answer is right, else 0.

        The posterior is uniform over all programs, seen and unseen, that fit the pairs shown.
        """
        examples, (query, target) = episode.pairs[:num_shots], episode.pairs[num_shots]
        fitting = [
            edit_word(names, query)
            for programs in self.programs.values()
            for names in programs
            if all(edit_word(names, source) == edited for source, edited in examples)
        ]
        likeliest = max(set(fitting), key=lambda answer: (fitting.count(answer), answer))
        return float(likeliest == target)


CONSONANTS, VOWELS, SPACE, COMMA, PERIOD = "bdklmnrstv", "aeiou", " ", ",", "."
CHARACTERS = CONSONANTS + VOWELS + SPACE + COMMA + PERIOD


class AuthorStyle(NamedTuple):
    """An author's letters, and how words and sentences continue.

    A vowel is followed by another syllable, a closing consonant, or the word's end; a word ends in a comma, a period,
    or neither.

    Attributes:
        letters: The author's favored letters.
        favored_letter_weight: How many times as likely they are as others.
        another_syllable_prob: The probability of another syllable.
        closing_consonant_prob: The probability of a closing consonant.
        comma_prob: The probability of a comma after a word.
        period_prob: The probability of a period after a word.
    """

    letters: str
    favored_letter_weight: float
    another_syllable_prob: float
    closing_consonant_prob: float
    comma_prob: float
    period_prob: float


AUTHORS = {
    "soft": AuthorStyle("lmnvou", 3.0, 0.45, 0.05, 0.20, 0.05),
    "hard": AuthorStyle("bdkrti", 3.0, 0.25, 0.40, 0.03, 0.20),
}
# What neither author writes: the same for both, so that it says nothing.
NEVER = -20.0


@functools.cache
def character_transitions(style: AuthorStyle) -> Float[np.ndarray, "C C"]:
    """Return the transition matrix of a Markov chain over characters: syllables, words, punctuation."""
    table = np.zeros((len(CHARACTERS), len(CHARACTERS)))
    weights = np.array([style.favored_letter_weight if letter in style.letters else 1.0 for letter in CHARACTERS])

    def distribution_over(letters: str) -> np.ndarray:
        letter_weights = weights * [letter in letters for letter in CHARACTERS]
        return letter_weights / letter_weights.sum()

    marked = style.comma_prob + style.period_prob
    end = (
        style.comma_prob * distribution_over(COMMA)
        + style.period_prob * distribution_over(PERIOD)
        + (1 - marked) * distribution_over(SPACE)
    )
    for number, character in enumerate(CHARACTERS):
        if character in CONSONANTS:
            # A consonant that closes a syllable is one that a word's end follows.
            table[number] = (1 - style.closing_consonant_prob) * distribution_over(
                VOWELS
            ) + style.closing_consonant_prob * end
        elif character in VOWELS:
            table[number] = (style.another_syllable_prob + style.closing_consonant_prob) * distribution_over(CONSONANTS)
            table[number] += (1 - style.another_syllable_prob - style.closing_consonant_prob) * end
        elif character in (COMMA, PERIOD):
            table[number] = distribution_over(SPACE)
        else:
            table[number] = distribution_over(CONSONANTS)
    return table


def sample_text(style: AuthorStyle, random: np.random.Generator, length: int) -> str:
    """Sample a text of an author, which starts with a word.

    Args:
        style: The author's style.
        random: The random generator.
        length: The number of characters.

    Returns:
        The text.
    """
    cumulative, at, text = np.cumsum(character_transitions(style), axis=1), CHARACTERS.index(SPACE), []
    for uniform in random.random(length):
        # Rounding may leave the last sum below what is drawn.
        at = min(int(np.searchsorted(cumulative[at], uniform, side="right")), len(CHARACTERS) - 1)
        text.append(CHARACTERS[at])
    return "".join(text)


def log_likelihood(style: AuthorStyle, before: str, text: str) -> float:
    """Compute log p(text | the character before it), in nats.

    Args:
        style: The author's style.
        before: The text before, of which the last character counts.
        text: The text.

    Returns:
        The log-likelihood, with `NEVER` for each impossible transition.
    """
    table = character_transitions(style)
    steps = zip(before[-1] + text, text, strict=False)
    probabilities = [table[CHARACTERS.index(first), CHARACTERS.index(second)] for first, second in steps]
    return float(sum(np.log(step) if step > 0 else NEVER for step in probabilities))


def classify_author(before: str, text: str) -> str:
    """Return the most probable author of a text, the Bayes-optimal decision.

    Args:
        before: The text before it, whose last character is the first context.
        text: The text.

    Returns:
        The author's name.
    """
    return max(AUTHORS, key=lambda name: log_likelihood(AUTHORS[name], before, text))
