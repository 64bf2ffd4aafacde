"""How texts become the sequences that a language model is fine-tuned on (Radford et al. 2018, section 3.3)."""

import enum
from collections.abc import Sequence
from typing import NamedTuple


class SequenceLayout(enum.Enum):
    """Which sequences an example's texts make; `s`, `$` and `e` are the start, delimiter and extract tokens.

    single: s text e. pair: s premise $ hypothesis e, of two texts whose order counts. unordered: s a $ b e and
    s b $ a e, whose last states are added. choice: s context $ answer e for each answer, one of which is right.
    """

    SINGLE = "single"
    PAIR = "pair"
    UNORDERED = "unordered"
    CHOICE = "choice"

    def sequences(self, texts: int) -> int:
        """How many sequences an example of so many texts makes."""
        return {SequenceLayout.UNORDERED: 2, SequenceLayout.CHOICE: texts - 1}.get(self, 1)

    def arranged[T](self, texts: Sequence[T]) -> list[tuple[T, ...]]:
        """The texts of each sequence, in their order."""
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
    """The numbers of the tokens that stand around and between texts: none stands for text."""

    start: int
    delimiter: int
    extract: int

    @classmethod
    def behind(cls, vocabulary: int) -> "DelimiterTokens":
        """The numbers that follow those of a tokenizer, as a pre-trained model has not seen them."""
        return cls(vocabulary, vocabulary + 1, vocabulary + 2)

    def sequence(self, texts: Sequence[Sequence[int]], longest: int | None = None) -> list[int]:
        """One sequence of token numbers: s a e, or s a $ b e.

        With `longest`, the longer text, the first of two equal ones, loses tokens at its end until that many are left.
        """
        sizes = [len(text) for text in texts]
        room = sum(sizes) if longest is None else max(longest - self.size(len(texts)), 0)
        while sum(sizes) > room:
            sizes[sizes.index(max(sizes))] -= 1
        row = [self.start]
        for text, size in zip(texts, sizes, strict=True):
            row += [*text[:size], self.delimiter]
        return [*row[:-1], self.extract]

    @staticmethod
    def size(texts: int) -> int:
        """The tokens of a sequence of so many texts that stand for none."""
        return texts + 1
