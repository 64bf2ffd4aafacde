"""The sequences on which a language model is fine-tuned (Radford et al. 2018, section 3.3)."""

import enum
from collections.abc import Sequence
from typing import NamedTuple


class SequenceLayout(enum.Enum):
    """The sequences that an example's texts make; `s`, `$` and `e` are the start, delimiter and extract tokens.

    Attributes:
        SINGLE: s text e.
        PAIR: s premise $ hypothesis e, for two texts whose order counts.
        UNORDERED: s a $ b e and s b $ a e, whose last states are added.
        CHOICE: s context $ answer e for each answer, one of which is correct.
    """

    SINGLE = "single"
    PAIR = "pair"
    UNORDERED = "unordered"
    CHOICE = "choice"

    def num_sequences(self, texts: int) -> int:
        """Return how many sequences an example of so many texts makes."""
        return {SequenceLayout.UNORDERED: 2, SequenceLayout.CHOICE: texts - 1}.get(self, 1)

    def arrange_texts[T](self, texts: Sequence[T]) -> list[tuple[T, ...]]:
        """Return the texts of each sequence, in order."""
        match self:
            case SequenceLayout.SINGLE | SequenceLayout.PAIR:
                return [tuple(texts)]
            case SequenceLayout.UNORDERED:
                first, second = texts
                return [(first, second), (second, first)]
            case SequenceLayout.CHOICE:
                context, *answers = texts
                return [(context, answer) for answer in answers]


class DelimiterTokens(NamedTuple):
    """The numbers of the tokens around and between texts."""

    start_id: int
    delimiter_id: int
    extract_id: int

    @classmethod
    def after_vocabulary(cls, vocabulary: int) -> "DelimiterTokens":
        """Return the three numbers after those of a tokenizer, which a pre-trained model has not seen."""
        return cls(vocabulary, vocabulary + 1, vocabulary + 2)

    def join_texts(self, texts: Sequence[Sequence[int]], longest: int | None = None) -> list[int]:
        """Return the token numbers of one sequence: s a e, or s a $ b e.

        Args:
            texts: The token numbers of its texts.
            longest: The number of tokens to which the sequence is cut: the longer text, the first of two equal ones,
                loses tokens at its end. None cuts nothing.
        """
        sizes = [len(text) for text in texts]
        room = sum(sizes) if longest is None else max(longest - self.num_special_tokens(len(texts)), 0)
        while sum(sizes) > room:
            sizes[sizes.index(max(sizes))] -= 1
        row = [self.start_id]
        for text, size in zip(texts, sizes, strict=True):
            row += [*text[:size], self.delimiter_id]
        return [*row[:-1], self.extract_id]

    @staticmethod
    def num_special_tokens(texts: int) -> int:
        """Return the number of special tokens in a sequence of so many texts."""
        return texts + 1
