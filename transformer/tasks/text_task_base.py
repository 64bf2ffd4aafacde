"""The base class of tasks over texts: batches of one width, a loss on hidden states, a probe of the validation text."""

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from transformer.attention.capture import Capture
from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.data.text_batches import SegmentBatches
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.models.model import Aux
from transformer.models.task_interface import LANGUAGE_MODELING, InputSpec, Signature, TaskInterface
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import (
    BaseTask,
    check_batch_size,
    check_input_texts,
    check_text_length,
    describe_splits,
    make_capture_function,
)
from transformer.tasks.losses import TokenLoss, add_z_loss, chunked_token_loss
from transformer.tasks.mask_filling import encode_with_special_tokens
from transformer.tasks.task import Batch, EncodedInputs, InputReader, InputTexts, Predictions, StateView
from transformer.tasks.text_data import (
    EncodedText,
    TextConfig,
    evenly_spaced_excerpts,
    label_repeated_sequences,
    make_repeated_sequences,
    pad_texts,
    token_axis_labels,
)

# The possible inputs of a model; every batch has some of them.
INPUTS = ("tokens", "lengths", "types", "segments", "positions", "memory", "past")
# Larger maps are no longer readable by eye.
MAX_PROBE_TOKENS = 128


class TextTask(BaseTask):
    """A task whose batches are rows of tokens.

    Args:
        config: The text and the shape of its batches.
        text: The text as token numbers.
        rows_multiple: Devices that share the batch x microbatches; the batch size must be a multiple.
        asks: The inputs and the output of the model.
        max_decoded_length: The greatest length that the task decodes, prompt included.
        repeated: The number of examples of repeated random tokens that are probed in addition to the text.

    Raises:
        UserError: If the batch size does not fit, or the validation text is shorter than a probe example.
    """

    def __init__(
        self,
        config: TextConfig,
        text: EncodedText,
        rows_multiple: int,
        *,
        asks: Signature,
        max_decoded_length: int = 0,
        repeated: int = 0,
    ):
        self.text, self.tokenizer, self._text_config = text, text.tokenizer, config
        check_batch_size(config.batch_size, rows_multiple)
        self.interface = make_text_task_interface(
            config, text.tokenizer, asks=asks, max_decoded_length=max_decoded_length
        )
        length = min(config.probe_length, config.context_length)
        self._repeats = make_repeated_sequences(text.tokenizer, repeated, length)
        excerpts = evenly_spaced_excerpts(text.splits[config.validation_split], config.num_probe_examples, length)
        probe_tokens = np.concatenate([excerpts, self._repeats.tokens])
        self.probe_batch = {
            "tokens": probe_tokens,
            "lengths": np.full(len(probe_tokens), probe_tokens.shape[1], np.int32),
        }

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every split's tokens."""
        return self.text.fingerprints

    @property
    def split_sizes(self) -> dict[str, int]:
        """The number of tokens of each split."""
        return self.text.split_sizes

    def _segment_batches(self, seed: int) -> SegmentBatches:
        """Return segments of the training text that follow one another."""
        config = self._text_config
        stream = self.text.train_stream(config.dataset)
        return SegmentBatches(stream, context_length=config.context_length, rows=config.batch_size, seed=seed)

    @property
    def data_summary(self) -> tuple[str, ...]:
        """The number of tokens of each split."""
        return (describe_splits(self._text_config.dataset, self.text.split_sizes, "tokens", self.text.split_note),)

    def probe(self, view: StateView, capture: Capture, key: Key[Array, ""]) -> Aux:
        """Capture maps of excerpts of the validation text and of repeated random tokens, unmasked."""
        inputs = {name: jnp.asarray(values) for name, values in self.probe_batch.items()}
        _, aux = view.model.apply(view.variables, inputs, method="hidden", train=False, capture=capture)
        return aux

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        return label_repeated_sequences(
            token_axis_labels(self.tokenizer, [list(row) for row in self.probe_batch["tokens"]]), self._repeats
        )

    def token_sums(
        self, view: StateView, batch: Batch, counts_BxT: Bool[Array, "B T"], key: Any, *, label_smoothing: float = 0.0
    ) -> tuple[TokenLoss, Aux]:
        """Sum the losses of the labels that count.

        Args:
            view: The state.
            batch: The inputs of the model and `labels` [B, T].
            counts_BxT: Which labels count.
            key: A PRNG key for dropout.
            label_smoothing: The label smoothing.

        Returns:
            The sums, and the model's auxiliary results.
        """
        inputs = {name: jnp.asarray(batch[name]) for name in INPUTS if name in batch}
        hidden_BxTxE, aux = view.model.apply(
            view.variables, inputs, method="hidden", train=view.train, key=key, capture=view.capture
        )
        sums = chunked_token_loss(
            functools.partial(view.model.logits, view.variables),
            hidden_BxTxE,
            jnp.asarray(batch["labels"]),
            counts_BxT,
            label_smoothing,
            num_tokens=self.interface.vocabularies["tokens"],
            logits_at_once=self._text_config.logits_at_once,
            has_z_loss=self._text_config.z_loss > 0,
        )
        return sums, add_z_loss(aux, sums, counts_BxT, self._text_config.z_loss)


def make_text_task_interface(
    config: TextConfig, tokenizer: Tokenizer, *, asks: Signature, max_decoded_length: int = 0
) -> TaskInterface:
    """Return what a task over rows of tokens requires of a model.

    Args:
        config: The shape of the batches.
        tokenizer: The tokenizer.
        asks: The inputs and the output of the model.
        max_decoded_length: The greatest length that the task decodes, prompt included.
    """
    return TaskInterface(
        inputs={
            name: InputSpec((config.batch_size,) if name == "lengths" else (config.batch_size, config.context_length))
            for name in asks.inputs
        },
        vocabularies={"tokens": tokenizer.vocab_size},
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        output=asks.output,
        max_decoded_length=max_decoded_length,
    )


def make_encoded_inputs(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> EncodedInputs:
    """Return rows of token numbers as a model reads them."""
    return EncodedInputs(pad_texts(rows, tokenizer), "hidden", token_axis_labels(tokenizer, rows))


def predictions_with_maps(view: StateView, lines: Sequence[str], reading: EncodedInputs) -> Predictions:
    """Combine answers with a pass that captures the maps of what was read.

    Args:
        view: The state.
        lines: The answers.
        reading: The inputs to map.
    """
    return Predictions(lines, reading.labels, make_capture_function(view, reading.inputs, method=reading.method))


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text, with the tokenizer's opening tokens in front."""
    return [*tokenizer.leading_ids, *tokenizer.encode([text])[0]]


def _read_texts(
    encode: Callable[[Tokenizer, str], list[int]],
    config: Any,
    view: StateView,
    tokenizer: Tokenizer,
    sentences: InputTexts,
) -> EncodedInputs:
    """Encode texts, each on its own; token numbers in their place stay as they are.

    Raises:
        UserError: If a text is empty or longer than the model's positions, a token number is outside of the vocabulary,
            or a target or a language is given.
    """
    check_input_texts(sentences)
    rows = [list(row) for row in sentences.token_rows] or [encode(tokenizer, text) for text in sentences.texts]
    for number in itertools.chain(*rows):
        if not 0 <= number < tokenizer.vocab_size:
            raise UserError(f"token number {number} is outside of the vocabulary: 0 to {tokenizer.vocab_size - 1}")
    check_text_length(sentences.texts, rows, view.model.max_length)
    return make_encoded_inputs(tokenizer, rows)


def _read_to_continue(config: Any, view: StateView, tokenizer: Tokenizer, sentences: InputTexts) -> EncodedInputs:
    """Encode texts of which each token predicts the next."""
    encoded = _read_texts(encode_prompt, config, view, tokenizer, sentences)
    tokens_BxT, lengths_B = (np.asarray(encoded.inputs[name]) for name in ("tokens", "lengths"))
    next_BxT = np.pad(tokens_BxT[:, 1:], ((0, 0), (0, 1)))
    has_next_BxT = np.arange(tokens_BxT.shape[1]) < lengths_B[:, None] - 1
    return encoded._replace(predicted_BxT=np.where(has_next_BxT, next_BxT, -1))


CONTINUATION_READER = InputReader(
    functools.partial(make_text_task_interface, asks=LANGUAGE_MODELING), _read_to_continue, reads_tokens=True
)
read_framed = functools.partial(_read_texts, encode_with_special_tokens)


def real_positions(batch: Batch) -> Bool[Array, "B T"]:
    """Return which positions of a batch hold a token: those below `lengths`, or all without it."""
    shape = batch["tokens"].shape
    if "lengths" not in batch:
        return jnp.ones(shape, bool)
    return jnp.arange(shape[1])[None] < jnp.asarray(batch["lengths"])[:, None]


def max_input_length(view: StateView) -> int:
    """Return the model's number of positions, or `sys.maxsize` if it has no limit."""
    return sys.maxsize if view.model.max_length is None else view.model.max_length
