"""What the tasks share by which an encoder is fine-tuned on the words of a text: their config and their tokenizer."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.config import UserError
from transformer.data.fine_tuning_sequence_layouts import DelimiterTokens, SequenceFormat
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.data.tokenizers.tokenizer import EncodedTextWithOffsets, Tokenizer
from transformer.tasks.labeled_text_task_base import LabeledTextConfig
from transformer.tasks.synthetic_data import synthetic_tokenizer_of_kind
from transformer.tasks.text_data import load_or_train_tokenizer

_ROLES = ("begin", "end")


@dataclasses.dataclass(frozen=True)
class EncoderFineTuningConfig(LabeledTextConfig):
    """Texts whose words have a meaning each, as their class, and the format in which an encoder reads them.

    Attributes:
        sequence_format: The special tokens around and between texts, `bert` or `roberta`.

    Raises:
        UserError: If a value is out of range.
    """

    sequence_format: SequenceFormat = SequenceFormat.BERT

    def _check(self) -> None:
        super()._check()
        if self.sequence_format is SequenceFormat.GPT:
            raise UserError(
                "config.task.sequence_format=gpt is for models that read from left to right: say bert or roberta"
            )

    def delimiters(self, tokenizer: AnyTokenizer) -> DelimiterTokens:
        """Return the tokens around and between texts.

        Raises:
            UserError: If the tokenizer lacks one.
        """
        return DelimiterTokens.of_format(self.sequence_format, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id)


def load_tokenizer_of_texts(
    config: EncoderFineTuningConfig, directory: Path, texts: Mapping[str, Sequence[str]]
) -> AnyTokenizer:
    """Load the run's tokenizer, or train one with tokens of begin and end on the texts of the splits."""
    return load_or_train_tokenizer(directory, config.tokenizer, config.vocab_size, texts, _ROLES)


def synthetic_tokenizer_of_encoder(config: EncoderFineTuningConfig) -> AnyTokenizer:
    """Return a tokenizer of the config's kind and size without reading data."""
    return synthetic_tokenizer_of_kind(config.tokenizer, config.vocab_size, _ROLES)


def encode_with_offsets(tokenizer: AnyTokenizer, texts: Sequence[str]) -> list[EncodedTextWithOffsets]:
    """Encode texts, and tell which characters each token is of.

    Raises:
        UserError: If the tokenizer does not tell, as those of Marian.
    """
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(
            "the run's tokenizer is one of SentencePiece, which does not tell the characters of a token: use one in "
            "tokenizer.json"
        )
    return tokenizer.encode_with_offsets(texts)
