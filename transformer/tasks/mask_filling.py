"""Fill in the masked positions of a text with a trained masked language model."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.config import UserError
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.models.model import Variables
from transformer.tasks.task import Batch, StateView
from transformer.tasks.text_data import pad_texts


def encode_masked_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text in which the mask token's name, such as "[MASK]", stands for a masked position.

    Raises:
        UserError: If the text has no mask token.
    """
    tokens = encode_with_special_tokens(tokenizer, text)
    if tokenizer.mask_id not in tokens:
        name = tokenizer.pieces([tokenizer.mask_id or 0])[0]
        raise UserError(f"{text[:40]!r} hides nothing: write {name} where the model shall fill in a token")
    return tokens


def encode_with_special_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text between the begin and end tokens; the mask token's name stands for that token.

    As around the windows of training, either may be missing: T5 has an end token alone.
    """
    framed = (tokenizer.bos_id, *tokenizer.encode_masked(text), tokenizer.eos_id)
    return [number for number in framed if number is not None]


class FilledText(NamedTuple):
    """A text with its masked positions filled in.

    Attributes:
        tokens: The token numbers.
        probabilities: The probability of each word at each masked position.
    """

    tokens: list[int]
    probabilities: Float[np.ndarray, "places words"]


def fill_masks(
    view: StateView, tokenizer: Tokenizer, texts: Sequence[str], max_length: int, words: Sequence[str] = ()
) -> list[FilledText]:
    """Fill in the most probable token at every masked position.

    Args:
        view: The state.
        tokenizer: The tokenizer.
        texts: Texts with the mask token's name at the masked positions.
        max_length: The model's number of positions.
        words: Words whose probabilities at the masked positions are returned. A word's probability is that of its token
            among all ordinary tokens, with and without a leading space taken together.

    Raises:
        UserError: If a text has no mask token or more than `max_length` tokens, or a word is not a single token.
    """
    encoded = [encode_masked_text(tokenizer, text) for text in texts]
    for text, tokens in zip(texts, encoded, strict=True):
        if len(tokens) > max_length:
            raise UserError(f"{text[:40]!r}... has {len(tokens)} tokens, more than the model's {max_length} positions")
    (mask,) = tokenizer.pieces([tokenizer.mask_id or 0])
    tokenizer.warn_of_unknown_parts([part for text in texts for part in text.split(mask)])
    word_token_ids = [_single_token_ids(tokenizer, word) for word in words]
    batch = pad_texts(encoded, tokenizer)
    # No special tokens, and no rows of the vocabulary that the tokenizer does not know.
    allowed = np.setdiff1d(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))

    @jax.jit
    def predict(variables: Variables, batch: Batch) -> tuple[Array, list[Array]]:
        logits, _ = view.model.apply(variables, batch, train=False)
        best = jnp.take(jnp.asarray(allowed), jnp.argmax(logits[..., allowed], axis=-1))
        log_total = jax.nn.logsumexp(logits[..., allowed], axis=-1)
        return best, [
            jnp.exp(jax.nn.logsumexp(logits[..., token_ids], axis=-1) - log_total) for token_ids in word_token_ids
        ]

    best, weights = predict(view.variables, batch)
    hidden = batch["tokens"] == tokenizer.mask_id
    filled = np.where(hidden, best, batch["tokens"])
    probabilities = (
        np.stack([np.asarray(word_probabilities) for word_probabilities in weights], -1)
        if weights
        else np.zeros((*hidden.shape, 0))
    )
    return [
        FilledText(list(row[:length]), row_probabilities[places])
        for row, length, row_probabilities, places in zip(filled, batch["lengths"], probabilities, hidden, strict=True)
    ]


def describe_word_probabilities(words: Sequence[str], probabilities: Float[np.ndarray, "places words"]) -> str:
    """Describe the probabilities of words at masked positions, as in " | dog 0.12, ran 0.001"; "" without words."""
    places = (", ".join(f"{word} {p:.3g}" for word, p in zip(words, place, strict=True)) for place in probabilities)
    return "".join(f" | {place}" for place in places) if words else ""


def _single_token_ids(tokenizer: Tokenizer, word: str) -> np.ndarray:
    """Return the tokens of a word, with and without a leading space.

    Raises:
        UserError: If neither is a single token.
    """
    single = {tokens[0] for tokens in tokenizer.encode([word, f" {word}"]) if len(tokens) == 1}
    if not word or not single - tokenizer.special_ids:
        raise UserError(f"--score_words names {word!r}, which is no single token of the run's tokenizer")
    return np.array(sorted(single - tokenizer.special_ids))
