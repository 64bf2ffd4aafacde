"""Edits of words, alone and two at a time: programs that are said by examples alone ("programming by prompt")."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from transformer.data.episodes import LETTERS, Episode, Pair, draw_words

EDITS = MappingProxyType(
    {
        "capitalise": lambda word: word[0].upper() + word[1:],
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
