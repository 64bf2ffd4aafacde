"""Two authors whose letters fall differently: Markov chains over characters, so that who wrote a text is computed."""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

CONSONANTS, VOWELS, SPACE, COMMA, PERIOD = "bdklmnrstv", "aeiou", " ", ",", "."
CHARACTERS = CONSONANTS + VOWELS + SPACE + COMMA + PERIOD


class Habits(NamedTuple):
    """What an author likes: letters, taken `favoured` times as often as others, and how words and sentences go on.

    Behind a vowel follow another syllable (`goes_on`), a closing consonant (`closes`), or the word's end; a word ends
    in a comma, a period, or neither.
    """

    letters: str
    favoured: float
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
    weights = np.array([habits.favoured if letter in habits.letters else 1.0 for letter in CHARACTERS])

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
