"""Log-likelihoods and continuations of texts by a loaded language model, as lm-evaluation-harness asks for them."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.config import UserError
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.interpret.load import LoadedModel
from transformer.models.model import Model, Variables
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.registry import task_name
from transformer.tasks.text_generation import continue_texts, encode_prompts

_UNLIMITED_WINDOW = 2048  # tokens that are read at once by a model without a largest number of positions


class LogLikelihood(NamedTuple):
    """The log-likelihood of some tokens.

    Attributes:
        value: log p(tokens | context), in nats.
        is_greedy: Whether each of them is the most probable one.
    """

    value: float
    is_greedy: bool


class TextScorer:
    """Scores and continues texts with a loaded model that predicts next tokens.

    Args:
        loaded: The model.
        batch_size: Sequences that are read at once.

    Raises:
        UserError: If the model predicts no next tokens.
    """

    def __init__(self, loaded: LoadedModel, batch_size: int = 8):
        if task_name(loaded.experiment.task) != "language_modeling":
            raise UserError(f"{loaded.name} predicts no next tokens: name a language model, such as a GPT or a LLaMA")
        self.loaded, self.batch_size = loaded, batch_size
        self.tokenizer: Tokenizer = loaded.preprocessor
        self.max_length = loaded.model.max_length or _UNLIMITED_WINDOW
        self._score_tokens = jax.jit(functools.partial(_score_next_tokens, loaded.model))

    @property
    def prefix_id(self) -> int:
        """The token in front of what has no context: the begin token, else the end token."""
        number = self.tokenizer.bos_id if self.tokenizer.bos_id is not None else self.tokenizer.eos_id
        if number is None:
            raise UserError(f"the tokenizer of {self.loaded.name} has neither a begin token nor an end token")
        return number

    def log_likelihoods(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[LogLikelihood]:
        """Return log p(continuation | context) of pairs of tokens; a context that is too long loses its beginning.

        Args:
            pairs: A context of at least one token and a continuation of at least one, each.
        """
        rows = [
            ([*context, *continuation][-self.max_length - 1 :], len(continuation)) for context, continuation in pairs
        ]
        results: dict[int, LogLikelihood] = {}
        # Sequences of like lengths are padded to one length, of which there are few.
        by_length = sorted(range(len(rows)), key=lambda row: len(rows[row][0]))
        for numbers in itertools.batched(by_length, self.batch_size):
            longest = max(len(rows[number][0]) for number in numbers) - 1
            width = min(max(16, 1 << (longest - 1).bit_length()), max(self.max_length, longest))
            tokens = np.zeros((self.batch_size, width + 1), np.int32)
            lengths = np.ones(self.batch_size, np.int32)
            for row, number in enumerate(numbers):
                sequence = rows[number][0]
                tokens[row, : len(sequence)] = sequence
                lengths[row] = len(sequence) - 1
            scores = self._score_tokens(self.loaded.variables, tokens[:, :-1], lengths, tokens[:, 1:])
            log_probs, is_greedy = jax.device_get(scores)
            for row, number in enumerate(numbers):
                end, count = lengths[row], rows[number][1]
                part = slice(end - count, end)
                results[number] = LogLikelihood(float(log_probs[row, part].sum()), bool(is_greedy[row, part].all()))
        return [results[number] for number in range(len(rows))]

    def text_log_likelihood(self, text: str) -> float:
        """Return log p(text), of windows as long as the model's positions."""
        (tokens,) = self.tokenizer.encode([text])
        return sum(score.value for score in self.log_likelihoods(list(self._windows(tokens))))

    def _windows(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield the tokens of each window with the context that fits beside them: the first has the prefix alone."""
        for start in range(0, len(tokens), self.max_length):
            end = min(start + self.max_length, len(tokens))
            context = tokens[max(end - self.max_length - 1, 0) : start] if start else [self.prefix_id]
            yield context, tokens[start:end]

    def continue_text(self, text: str, max_new_tokens: int, stop: Sequence[str], **decoding: object) -> str:
        """Return a continuation of a text up to a stop text; a text that is too long loses its beginning.

        Args:
            text: The text.
            max_new_tokens: The largest number of new tokens.
            stop: The texts before which it ends.
            **decoding: Further fields of `DecodingConfig`; by default it is greedy.
        """
        room = self.max_length - max_new_tokens
        if room < 1:
            raise UserError(
                f"max_new_tokens={max_new_tokens} leaves no room in {self.max_length} positions: make it less"
            )
        (tokens,) = self.tokenizer.encode([text])
        if len(tokens) >= room:  # a begin token may be added
            text = self.tokenizer.decode(tokens[-room + 1 :])
        options = DecodingConfig.with_request({}, max_new_tokens=max_new_tokens, stop_sequences=tuple(stop), **decoding)
        view = self.loaded.view()
        ((continuation,),) = continue_texts(
            view, self.tokenizer, [text], encode_prompts(self.tokenizer, [text]), options, self.max_length
        )
        return continuation.text


def _score_next_tokens(
    model: Model,
    variables: Variables,
    tokens_BxT: Int[Array, "B T"],
    lengths_B: Int[Array, " B"],
    next_BxT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Return the log-probability of each next token, and whether it is the most probable one."""
    logits, _ = model.apply(variables, {"tokens": tokens_BxT, "lengths": lengths_B}, train=False)
    wide = jnp.promote_types(logits.dtype, jnp.float32)
    log_probs = jax.nn.log_softmax(logits.astype(wide), axis=-1)
    chosen_BxT = jnp.take_along_axis(log_probs, next_BxT[..., None], axis=-1)[..., 0]
    return chosen_BxT, jnp.argmax(logits, axis=-1) == next_BxT
