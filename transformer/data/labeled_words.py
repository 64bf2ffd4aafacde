"""Texts with a label for every word, the entities that labels mark, and batches of tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer.data.batches import Batch
from transformer.data.labeled_text_batches import LabeledTextBatches


class LabeledWords(NamedTuple):
    """A text in words, and the number of each word's class."""

    words: tuple[str, ...]
    label: tuple[int, ...]

    @property
    def texts(self) -> tuple[str]:
        """The text as a tuple, like the texts of a `LabeledExample`."""
        return (" ".join(self.words),)


class EntitySpan(NamedTuple):
    """An entity: its type, its first word, and the word after its last."""

    type: str
    start: int
    stop: int


# What the first letters of labels mean: B begins an entity, I continues it, E is its last word, S its only one. In the
# scheme BILOU the last two are L and U, in BMES the middle is M.
_MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}


def is_entity_label(name: str) -> bool:
    """Whether a label marks a word as part of an entity, as "B-PER" does, or of none, "O"."""
    return name == "O" or (name[:1] in _MARKS and name[1:2] == "-")


def marks_entities(classes: Sequence[str]) -> bool:
    """Whether labels mark entities, as "B-PER", "I-PER" and "O" do, or those of the schemes IOBES and BILOU."""
    return "O" in classes and all(map(is_entity_label, classes))


def entity_spans(labels: Sequence[str]) -> list[EntitySpan]:
    """Return the entities that the labels of a text mark (Tjong Kim Sang and De Meulder 2003, its conlleval).

    "B-X" begins an entity of type X. "I-X" continues one of the same type, and begins one behind anything else. "E-X"
    does as "I-X" and ends the entity; "S-X" is a whole one.

    Args:
        labels: The label of every word.
    """
    spans: list[EntitySpan] = []
    ended = True
    for number, label in enumerate(labels):
        if label == "O":
            continue
        mark, entity_type = _MARKS[label[0]], label[2:]
        last = spans[-1] if spans else None
        if mark in "IE" and last is not None and not ended and (last.type, last.stop) == (entity_type, number):
            spans[-1] = last._replace(stop=number + 1)
        else:
            spans.append(EntitySpan(entity_type, number, number + 1))
        ended = mark in "ES"
    return spans


class EncodedWords(NamedTuple):
    """A text's token numbers between the special tokens, and the token that each word begins with.

    Attributes:
        text: The text.
        row: The token numbers.
        first_tokens: The place in `row` of each word's first token; -1 for a word without one, as one that is cut off.
    """

    text: LabeledWords
    row: list[int]
    first_tokens: list[int]

    @property
    def texts(self) -> tuple[str]:
        """The text as a tuple, like the texts of a `LabeledExample`."""
        return self.text.texts

    @property
    def label(self) -> tuple[int, ...]:
        """The number of each word's class."""
        return self.text.label

    def cut(self, longest: int, end: Sequence[int]) -> "EncodedWords":
        """Return the text cut to `longest` tokens, the last of which are `end`."""
        if len(self.row) <= longest:
            return self
        stop = longest - len(end)
        first_tokens = [place if place < stop else -1 for place in self.first_tokens]
        return EncodedWords(self.text, [*self.row[:stop], *end], first_tokens)


class TokenLabelBatches(LabeledTextBatches):
    """`LabeledTextBatches` whose `labels` [B, T] are those of tokens: of each word at its first token.

    `counts` [B, T] are the tokens that have a label.

    Args:
        texts: The encoded texts.
        options: The options of `LabeledTextBatches`.
    """

    def __init__(self, texts: Sequence[EncodedWords], **options: Any):
        super().__init__([text.row for text in texts], [0] * len(texts), **options)
        self._encoded_texts = texts

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of one step."""
        batch = super().__getitem__(step)
        labels, counts = np.zeros_like(batch["tokens"]), np.zeros(batch["tokens"].shape, bool)
        for row, index in enumerate(batch["index"]):
            if index < 0:
                continue
            text = self._encoded_texts[index]
            places = np.array(text.first_tokens)
            labels[row, places[places >= 0]] = np.array(text.label)[places >= 0]
            counts[row, places[places >= 0]] = True
        return {**batch, "labels": labels, "counts": counts}
