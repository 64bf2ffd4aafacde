"""What the configs of fine-tuning tasks share: the format in which a model reads texts."""

import abc
import dataclasses

from transformer.config import UserError
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.models.task_interface import Signature
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
        return DelimiterTokens.of_format(self.sequence_format, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id)

    def separator(self, tokenizer: AnyTokenizer) -> int | None:
        """Return the token between two texts that token types tell apart; None if the model reads no token types."""
        return self.delimiters(tokenizer).between_ids[0] if "types" in self.signature.inputs else None


@dataclasses.dataclass(frozen=True)
class EncoderFineTuningConfig(FormattedTextConfig):
    """Texts whose words have a meaning each, as their class, for encoders alone.

    Attributes:
        sequence_format: The special tokens around and between texts, `bert` or `roberta`.

    Raises:
        UserError: If a value is out of range.
    """

    def _check(self) -> None:
        super()._check()
        if self.sequence_format is SequenceFormat.GPT:
            raise UserError(
                "config.task.sequence_format=gpt is for models that read from left to right: say bert or roberta"
            )
