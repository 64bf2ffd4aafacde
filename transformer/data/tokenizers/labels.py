"""Tokens as a person reads them, whatever their vocabulary writes: the labels of maps."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer.data.tokenizers.pieces import WORD_START

# Bytes of a character of UTF-8, by the first of them; no character begins with any other.
_SIZES = ((0x00, 0x7F, 1), (0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))


class _Character(NamedTuple):
    """A character of a text, or the name of a byte that belongs to none; where its bytes begin and end."""

    shown: str
    start: int
    end: int


def label_tokens(tokens: Sequence[str | bytes]) -> list[str]:
    """The label of every token of a text: one without bytes is its own label, bytes are the text that they add.

    A space is "▁". A character that several tokens share is shown by each, with the number of its part: of two tokens
    that make up "é" the first is "é⟨1/2⟩". A byte that belongs to no character, such as at the end of a text that was
    cut, is shown by its number, as "<0xF0>".
    """
    labels: list[str] = []
    stretch: list[bytes] = []
    for token in tokens:
        if isinstance(token, bytes):
            stretch.append(token)
        else:
            labels += [*_text_labels(stretch), token]
            stretch = []
    return labels + _text_labels(stretch)


def _text_labels(tokens: Sequence[bytes]) -> list[str]:
    spans = list(itertools.pairwise(itertools.accumulate(map(len, tokens), initial=0)))
    labels = [""] * len(tokens)
    at = 0
    for shown, start, end in _characters(b"".join(tokens)):
        while spans[at][1] <= start:
            at += 1
        last = at
        while spans[last][1] < end:
            last += 1
        # Tokens without bytes may stand between those that share a character.
        sharing = [token for token in range(at, last + 1) if spans[token][0] < spans[token][1]]
        for part, token in enumerate(sharing, 1):
            labels[token] += shown if len(sharing) == 1 else f"{shown}⟨{part}/{len(sharing)}⟩"
    return labels


def _characters(text: bytes) -> Iterator[_Character]:
    at = 0
    while at < len(text):
        size = next((size for low, high, size in _SIZES if low <= text[at] <= high), 1)
        try:
            shown = text[at : at + size].decode().replace(" ", WORD_START)
        except UnicodeDecodeError:
            shown, size = f"<0x{text[at]:02X}>", 1
        yield _Character(shown, at, at + size)
        at += size
