"""What the configs of fine-tuning tasks share: the format in which a model reads texts."""

import abc
import dataclasses

from transformer.config import UserError
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat
from transformer.data.labeled_text_batches import TokenTypeRule
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.models.task_interface import InputSpec, Signature
from transformer.tasks.labeled_text_task_base import LabeledTextConfig


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
    @abc.abstractmethod
    def signature(self) -> Signature:
        """What the task requires of a model."""

    @property
    def special_roles(self) -> tuple[str, ...]:
        """The roles of the special tokens of a newly trained tokenizer."""
        return () if self.sequence_format is SequenceFormat.GPT else ("begin", "end")

    def delimiters(self, tokenizer: AnyTokenizer) -> DelimiterTokens:
        """Return the tokens around and between texts.

        Raises:
            UserError: If the tokenizer lacks one.
        """
        return DelimiterTokens.from_format(
            self.sequence_format, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id
        )

    def token_types(self, tokenizer: AnyTokenizer) -> TokenTypeRule | None:
        """Return the rule of the token types; None if the model reads none."""
        if "types" not in self.signature.inputs:
            return None
        last = self.sequence_format.num_token_types - 1 if self.sequence_format is SequenceFormat.XLNET else None
        return TokenTypeRule(self.delimiters(tokenizer).between_ids[0], last)

    def input_specs(self, rows: int) -> dict[str, InputSpec]:
        """Return the inputs that the model reads, of so many sequences of the greatest length."""
        sequences = InputSpec((rows, self.max_text_length))
        specs = {"tokens": sequences, "types": sequences, "lengths": InputSpec((rows,))}
        return {name: spec for name, spec in specs.items() if name in self.signature.inputs}

    @property
    def type_vocabulary(self) -> dict[str, int]:
        """The number of token types, as `types`; empty if the model reads none."""
        return {"types": self.sequence_format.num_token_types} if "types" in self.signature.inputs else {}


@dataclasses.dataclass(frozen=True)
class EncoderFineTuningConfig(FormattedTextConfig):
    """Texts whose words have a meaning each, as their class, for encoders alone.

    Attributes:
        sequence_format: The special tokens around and between texts, `bert`, `roberta` or `xlnet`.

    Raises:
        UserError: If a value is out of range.
    """

    def _check(self) -> None:
        super()._check()
        if self.sequence_format is SequenceFormat.GPT:
            raise UserError(
                "config.task.sequence_format=gpt is for models that read from left to right: say bert, roberta or xlnet"
            )
