"""Words as numbers, those that a vocabulary lacks by the text that they stand in (See et al. 2017, section 2.2)."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """The `words` of a vocabulary by number, one of which, `unknown`, stands for all words that it lacks.

    With `copies` such a word has a number beside: the vocabulary's size and on, in the order in which a text first says
    them; the same number is another word in another text.
    """

    words: tuple[str, ...]
    unknown: int
    copies: bool

    @functools.cached_property
    def known(self) -> Mapping[str, int]:
        """The number of each word of the vocabulary."""
        return {word: number for number, word in enumerate(self.words)}

    def beyond(self, text: Sequence[str]) -> tuple[str, ...]:
        """The words of a text that the vocabulary lacks, each once."""
        return tuple(dict.fromkeys(word for word in text if word not in self.known))

    def read(self, texts: Sequence[Sequence[str]], longest: int, pad: int) -> dict[str, Int[np.ndarray, "B S"]]:
        """Texts as numbers: `source`, all unknown words alike, and with copies `copied`, each of them by its own."""
        source, copied = np.full((2, len(texts), longest), pad, np.int32)
        for row, text in enumerate(texts):
            source[row, : len(text)] = [self.known.get(word, self.unknown) for word in text]
            copied[row, : len(text)] = self.say(text, text)
        return {"source": source, **({"copied": copied} if self.copies else {})}

    def say(self, words: Sequence[str], text: Sequence[str]) -> list[int]:
        """Words that are said about a text as numbers."""
        beyond = self.beyond(text) if self.copies else ()
        own = {word: number for number, word in enumerate(beyond, len(self.words))}
        return [self.known.get(word, own.get(word, self.unknown)) for word in words]

    def said(self, numbers: Sequence[int], text: Sequence[str]) -> list[str]:
        """The words that these numbers say about a text: the inverse of `say`, but for what was unknown."""
        words = (*self.words, *(self.beyond(text) if self.copies else ()))
        return [words[number] if number < len(words) else self.words[self.unknown] for number in numbers]
