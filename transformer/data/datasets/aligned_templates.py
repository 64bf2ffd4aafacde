"""Templates of labeled words, and the word alignment that follows from their labels.

A template is a line of items: `{field}` stands for the spans of that field, `word/slot` is a word that belongs to a
slot, and a plain `word` belongs to none. Words of one slot on both sides correspond.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Span = tuple[str, str | None]
"""One or more words and the slot that they fill; None if the other language has no counterpart."""


class WordAlignment(NamedTuple):
    """Word links (source word, target word), 0-based.

    Attributes:
        sure: The sure links.
        possible: The possible links, which include the sure ones.
    """

    sure: tuple[tuple[int, int], ...]
    possible: tuple[tuple[int, int], ...]

    @classmethod
    def from_text(cls, text: str) -> "WordAlignment":
        """Parse gold alignments as they are usually written: "0-1" is a sure link, "2p3" one that is only possible."""
        sure, possible = [], []
        for item in text.split():
            is_sure = "-" in item
            i, j = item.split("-" if is_sure else "p")
            link = int(i), int(j)
            possible.append(link)
            if is_sure:
                sure.append(link)
        return cls(tuple(sure), tuple(possible))


class AlignedPair(NamedTuple):
    """A sentence pair with its known word alignment."""

    source: str
    target: str
    word_alignment: WordAlignment


@functools.cache
def _parse_template(template: str) -> tuple[tuple[str, str | None, bool], ...]:
    items: list[tuple[str, str | None, bool]] = []
    for item in template.split():
        if item.startswith("{"):
            items.append((item[1:-1], None, True))
        else:
            word, _, slot = item.partition("/")
            items.append((word, slot or None, False))
    return tuple(items)


def fill_template(template: str, fields: Mapping[str, Sequence[Span]]) -> list[Span]:
    """Fill in the fields of a template.

    Args:
        template: The template.
        fields: The spans of each field.

    Raises:
        KeyError: If the template names a field that `fields` lacks.
    """
    spans: list[Span] = []
    for word, slot, is_field in _parse_template(template):
        if is_field:
            spans.extend(fields[word])
        else:
            spans.append((word, slot))
    return spans


def merge_spans(spans: Sequence[Span], slot: str) -> list[Span]:
    """Put the same words into one slot, for a language that writes them as a single word."""
    return [(text, slot) for text, _ in spans]


def _split_into_words(spans: Sequence[Span]) -> tuple[list[str], dict[str, list[int]]]:
    words: list[str] = []
    places: dict[str, list[int]] = {}
    for text, slot in spans:
        for word in text.split():
            if slot is not None:
                places.setdefault(slot, []).append(len(words))
            words.append(word)
    return words, places


def align_spans(source: Sequence[Span], target: Sequence[Span]) -> AlignedPair:
    """Return the sentence pair that two labeled sides spell, linked slot by slot.

    A slot of one word on both sides gives a sure link; any other slot links each of its source words with each of its
    target words as possible. A slot on only one side gives none.

    Args:
        source: The spans of the source.
        target: The spans of the target.
    """
    source_words, source_places = _split_into_words(source)
    target_words, target_places = _split_into_words(target)
    sure, possible = [], []
    for slot, source_indices in source_places.items():
        target_indices = target_places.get(slot, ())
        links = [(i, j) for i in source_indices for j in target_indices]
        possible += links
        if len(links) == 1:
            sure += links
    return AlignedPair(
        " ".join(source_words), " ".join(target_words), WordAlignment(tuple(sorted(sure)), tuple(sorted(possible)))
    )
