"""The configs that tasks over labeled texts share: data, tokenizer, batches, and the tokens around texts."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence, Sized
from typing import Any, ClassVar, Self

from transformer.config import BatchSize, UserError, VocabSize
from transformer.data.datasets.fine_tuning import ExampleShape
from transformer.data.datasets.text_classification import has_own_labels
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat
from transformer.data.labeled_text_batches import TokenTypeRule
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.models.task_interface import InputSpec, Signature
from transformer.tasks.dataset_config import TextDatasetConfig
from transformer.tasks.text_data import TokenizerKind


@dataclasses.dataclass(frozen=True)
class LabeledTextConfig(TextDatasetConfig, abc.ABC):
    """Labeled texts, their tokenizer, and the shapes of their batches.

    Attributes:
        dataset: The data set (see the task's own config).
        classes: The names of the classes, for files of your own. Empty are the labels of the files, in alphabetical
            order (`with_classes_of_files`).
        tokenizer: The kind of tokenizer.
        vocab_size: The vocabulary size of a trained BPE.
        bucket_lengths: The lengths in tokens, special tokens included, that batches are padded to. A text longer than
            the largest is cut, and counted.
        batch_size: Examples in a batch.

    Raises:
        UserError: If a value is out of range.
    """

    dataset: str = "word_order"
    classes: tuple[str, ...] = ()
    tokenizer: TokenizerKind = TokenizerKind.BPE
    vocab_size: VocabSize = 8192
    bucket_lengths: tuple[int, ...] = (16, 32, 64)
    batch_size: BatchSize = 32

    least_length: ClassVar[int] = 3
    """The length of the shortest text in tokens, special tokens included."""

    def _check(self) -> None:
        if not self.bucket_lengths or min(self.bucket_lengths) < self.least_length:
            raise UserError(
                f"config.task.bucket_lengths={self.bucket_lengths} must name lengths of at least {self.least_length} "
                "tokens"
            )

    @property
    @abc.abstractmethod
    def shape(self) -> ExampleShape:
        """The shape of the examples: their texts, the sequences that these make, and the classes."""

    @property
    @abc.abstractmethod
    def signature(self) -> Signature:
        """What the task requires of a model."""

    @abc.abstractmethod
    def open_splits(self) -> Mapping[str, Sequence[Any]]:
        """Read the examples of the splits that are trained on and evaluated; each example has `texts`.

        Raises:
            UserError: If data are missing, or a split has no labels.
        """

    def select_splits[T](self, examples: Mapping[str, Sequence[T]]) -> dict[str, Sequence[T]]:
        """Return the examples of the splits that are trained on and evaluated.

        Raises:
            UserError: If a split is missing.
        """
        names = ("train", *self.eval_splits)
        for name in names:
            if name not in examples:
                raise UserError(f"{self.dataset} has no labeled split {name!r}: it has {', '.join(examples)}")
        return {name: examples[name] for name in names}

    def read_classes(self) -> tuple[str, ...]:
        """Return the labels of files of the user's own; () for data without such labels.

        Raises:
            UserError: If files are missing or malformed.
        """
        return ()

    def with_classes_of_files(self) -> Self:
        """Return the config with the labels of its files as `classes`, if it names none."""
        classes = () if self.classes else self.read_classes()
        return dataclasses.replace(self, classes=classes) if classes else self

    @property
    def reads_own_files(self) -> bool:
        """Whether the data are files of the user's own, which may have to be cut into splits."""
        return has_own_labels(self.dataset, self.data_dir)

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns of a .tsv or .csv of the user's own; () for data that are no tables."""
        return ()

    @property
    def max_text_length(self) -> int:
        """The largest length of a text in tokens, special tokens included."""
        return max(self.bucket_lengths)

    @property
    def special_roles(self) -> tuple[str, ...]:
        """The roles of the special tokens of a newly trained tokenizer."""
        return ("begin", "end")

    @property
    def num_new_tokens(self) -> int:
        """The number of tokens that the vocabulary has beside the tokenizer's."""
        return 0

    def encoded_text(self, text: str) -> str:
        """Return a text as it is encoded."""
        return text

    def delimiters(self, tokenizer: Tokenizer) -> DelimiterTokens:
        """Return the tokens around and between texts: those of begin and end, as far as the tokenizer has them."""
        begin, end = (() if number is None else (number,) for number in (tokenizer.bos_id, tokenizer.eos_id))
        return DelimiterTokens(begin, (), end)

    def token_types(self, tokenizer: Tokenizer) -> TokenTypeRule | None:
        """Return the rule of the token types; None if the model reads none."""
        return None

    @property
    def type_vocabulary(self) -> dict[str, int]:
        """The number of token types, as `types`; empty if the model reads none."""
        return {}

    @property
    def input_specs(self) -> dict[str, InputSpec]:
        """The inputs that the model reads, of a batch of sequences of the greatest length."""
        rows = self.shape.num_sequences * self.batch_size
        sequences = InputSpec((rows, self.max_text_length))
        specs = {"tokens": sequences, "types": sequences, "lengths": InputSpec((rows,))}
        return {name: spec for name, spec in specs.items() if name in self.signature.inputs}

    def check_fits(self, texts: Sequence[str], rows: Sequence[Sized]) -> None:
        """Refuse new texts that would have to be cut, since an answer is to a whole text.

        Args:
            texts: The texts, for the message.
            rows: Their tokens, of each text as many rows as an example has sequences.

        Raises:
            UserError: If a text has more tokens than the largest of `bucket_lengths`.
        """
        for number, row in enumerate(rows):
            if len(row) > self.max_text_length:
                raise UserError(
                    f"{texts[number // self.shape.num_sequences][:40]!r} has {len(row)} tokens, more than "
                    f"{self.max_text_length}, the greatest of config.task.bucket_lengths: shorten it"
                )


@dataclasses.dataclass(frozen=True)
class FormattedTextConfig(LabeledTextConfig, abc.ABC):
    """Labeled texts, and the special tokens around and between those of a sequence.

    Attributes:
        sequence_format: The special tokens around and between texts.

    Raises:
        UserError: If a value is out of range.
    """

    sequence_format: SequenceFormat = SequenceFormat.BERT

    @property
    def has_token_types(self) -> bool:
        """Whether the model reads token types."""
        return self.sequence_format.has_token_types(self.shape.num_texts)

    @property
    def special_roles(self) -> tuple[str, ...]:
        """The roles of the special tokens of a newly trained tokenizer."""
        return () if self.sequence_format is SequenceFormat.GPT else super().special_roles

    @property
    def num_new_tokens(self) -> int:
        """The number of tokens that the vocabulary has beside the tokenizer's."""
        return self.sequence_format.num_new_tokens

    def encoded_text(self, text: str) -> str:
        """Return a text as it is encoded.

        GPT's begins with a space, so that its first word has the token that it has within other text.
        """
        return f" {text}" if self.sequence_format is SequenceFormat.GPT else text

    def delimiters(self, tokenizer: Tokenizer) -> DelimiterTokens:
        """Return the tokens around and between texts.

        Raises:
            UserError: If the tokenizer lacks one.
        """
        match self.sequence_format:
            case SequenceFormat.PLAIN:
                bos_id = next(iter(tokenizer.leading_ids), None)
            case SequenceFormat.BART:
                bos_id = tokenizer.template_start_id
            case _:
                bos_id = tokenizer.bos_id
        return DelimiterTokens.from_format(self.sequence_format, tokenizer.vocab_size, bos_id, tokenizer.eos_id)

    def token_types(self, tokenizer: Tokenizer) -> TokenTypeRule | None:
        """Return the rule of the token types; None if the model reads none."""
        if not self.has_token_types:
            return None
        last = self.sequence_format.num_token_types - 1 if self.sequence_format is SequenceFormat.XLNET else None
        return TokenTypeRule(self.delimiters(tokenizer).between_ids[0], last)

    @property
    def type_vocabulary(self) -> dict[str, int]:
        """The number of token types, as `types`; empty if the model reads none."""
        return {"types": self.sequence_format.num_token_types} if self.has_token_types else {}


@dataclasses.dataclass(frozen=True)
class PositionTextConfig(FormattedTextConfig, abc.ABC):
    """Labeled texts of which every position is read.

    Attributes:
        sequence_format: The special tokens around and between texts, all but `gpt`.

    Raises:
        UserError: If a value is out of range.
    """

    def _check(self) -> None:
        super()._check()
        if self.sequence_format is SequenceFormat.GPT:
            raise UserError(
                "config.task.sequence_format=gpt is for classes of texts: say plain for a decoder, bert, roberta or "
                "xlnet for others"
            )
