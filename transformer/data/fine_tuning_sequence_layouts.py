"""The sequences on which a model is fine-tuned.

Those of GPT-1 (Radford et al. 2018, section 3.3), BERT (Devlin et al. 2019, section 4), RoBERTa (Liu et al. 2019) and
XLNet (Yang et al. 2019, their code).
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from transformer.config import UserError


class SequenceFormat(enum.Enum):
    """The special tokens around and between the texts of a sequence.

    Attributes:
        GPT: Start, delimiter and extract tokens, whose numbers follow the tokenizer's (Radford et al. 2018, figure 1).
        BERT: The tokenizer's begin and end tokens: [CLS] a [SEP], or [CLS] a [SEP] b [SEP], where the token types of b
            and its [SEP] are 1 (Devlin et al. 2019, figure 4).
        ROBERTA: The same with two end tokens between the texts, and without token types: <s> a </s></s> b </s> (Liu et
            al. 2019).
        XLNET: BERT's tokens with the begin token at the end: a <sep> <cls>, or a <sep> b <sep> <cls>. The token types
            of b and its <sep> are 1, and that of <cls> is 2 (Yang et al. 2019, their code). Behind <cls> is padding,
            which XLNet has in front of classified texts; since it knows only distances, both give the same values.
        BART: RoBERTa's tokens where the decoder begins with another token than a text: the first is the one that the
            tokenizer itself puts before a text (Lewis et al. 2020, their code).
        T5: An end token after each text: a </s>, or a </s> b </s> (Raffel et al. 2020, their code).
        PLAIN: The texts alone, one behind the other, after the begin token where the tokenizer itself puts one: a b. So
            published language models are fine-tuned, whose head reads the last token of a text.
    """

    GPT = "gpt"
    BERT = "bert"
    ROBERTA = "roberta"
    XLNET = "xlnet"
    BART = "bart"
    T5 = "t5"
    PLAIN = "plain"

    @property
    def num_new_tokens(self) -> int:
        """The number of tokens that the vocabulary has beside the tokenizer's."""
        return 3 if self is SequenceFormat.GPT else 0

    @property
    def num_token_types(self) -> int:
        """The number of token types in sequences that have them."""
        return 3 if self is SequenceFormat.XLNET else 2

    def has_token_types(self, texts: int) -> bool:
        """Return whether sequences of so many texts have token types."""
        return self is SequenceFormat.XLNET or (self is SequenceFormat.BERT and texts > 1)


class SequenceLayout(enum.Enum):
    """The sequences that an example's texts make; `s`, `$` and `e` are the tokens before, between and after texts.

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

    def canonical_texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return an example's texts, sorted where their order means nothing: both of a pair, or the answers."""
        match self:
            case SequenceLayout.SINGLE | SequenceLayout.PAIR:
                return tuple(texts)
            case SequenceLayout.UNORDERED:
                return tuple(sorted(texts))
            case SequenceLayout.CHOICE:
                context, *answers = texts
                return (context, *sorted(answers))

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
    """The numbers of the tokens around and between texts.

    Attributes:
        start_ids: The tokens before the first text.
        between_ids: The tokens between two texts.
        end_ids: The tokens after the last text.
    """

    start_ids: tuple[int, ...]
    between_ids: tuple[int, ...]
    end_ids: tuple[int, ...]

    @classmethod
    def from_format(
        cls, sequence_format: SequenceFormat, vocabulary: int, bos_id: int | None, eos_id: int | None
    ) -> "DelimiterTokens":
        """Return the tokens of a format.

        Args:
            sequence_format: The format.
            vocabulary: The number of tokens of the tokenizer.
            bos_id: Its begin token; for PLAIN and BART, the one that it puts before a text, None if it puts none.
            eos_id: Its end token.

        Raises:
            UserError: If the tokenizer lacks a token of the format.
        """
        if sequence_format is SequenceFormat.GPT:
            return cls((vocabulary,), (vocabulary + 1,), (vocabulary + 2,))
        if sequence_format is SequenceFormat.PLAIN:
            return cls(() if bos_id is None else (bos_id,), (), ())
        if sequence_format is SequenceFormat.T5 and eos_id is not None:
            return cls((), (eos_id,), (eos_id,))
        if bos_id is None or eos_id is None:
            raise UserError(
                f"config.task.sequence_format={sequence_format.value} puts texts between tokens of begin and end, and "
                "the run's tokenizer lacks one: use config.task.sequence_format=gpt, or another tokenizer"
            )
        if sequence_format is SequenceFormat.XLNET:
            return cls((), (eos_id,), (eos_id, bos_id))
        doubled = sequence_format in (SequenceFormat.ROBERTA, SequenceFormat.BART)
        return cls((bos_id,), (eos_id,) * (2 if doubled else 1), (eos_id,))

    @property
    def begin_is_last(self) -> bool:
        """Whether a sequence has its begin token at its end, as XLNet's have."""
        return not self.start_ids and len(self.end_ids) > 1

    def join_texts(self, texts: Sequence[Sequence[int]], longest: int | None = None) -> list[int]:
        """Return the token numbers of one sequence.

        Args:
            texts: The token numbers of its texts.
            longest: The number of tokens to which the sequence is cut: the longest text, the last of equal ones, loses
                tokens at its end, as in BERT's code. None cuts nothing.
        """
        sizes = [len(text) for text in texts]
        room = sum(sizes) if longest is None else max(longest - self.num_special_tokens(len(texts)), 0)
        while sum(sizes) > room:
            sizes[len(sizes) - 1 - sizes[::-1].index(max(sizes))] -= 1
        row = list(self.start_ids)
        for number, (text, size) in enumerate(zip(texts, sizes, strict=True)):
            row += [*(self.between_ids if number else ()), *text[:size]]
        return [*row, *self.end_ids]

    def num_special_tokens(self, texts: int) -> int:
        """Return the number of special tokens in a sequence of so many texts."""
        return len(self.start_ids) + (texts - 1) * len(self.between_ids) + len(self.end_ids)
