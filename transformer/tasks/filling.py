"""Filling in the hidden places of a text with a trained masked language model."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.models.contract import Variables
from transformer.tasks.contract import Batch, View
from transformer.tasks.text_data import padded


def encode_hidden(tokenizer: AnyTokenizer, text: str) -> list[int]:
    """A text as token numbers, in which the mask token's own name stands for a hidden place.

    Errors: UserError for a text without one.
    """
    tokens = encode_framed(tokenizer, text)
    if tokenizer.mask not in tokens:
        name = tokenizer.pieces([tokenizer.mask or 0])[0]
        raise UserError(f"{text[:40]!r} hides nothing: write {name} where the model shall fill in a token")
    return tokens


def encode_framed(tokenizer: AnyTokenizer, text: str) -> list[int]:
    """A text between the tokens of begin and end, in which the mask token's own name stands for that token."""
    parts = [text] if tokenizer.mask is None else text.split(tokenizer.pieces([tokenizer.mask])[0])
    inner = [number for part in tokenizer.encode(parts) for number in (tokenizer.mask, *part)][1:]
    return [number for number in (tokenizer.begin, *inner, _closing(tokenizer)) if number is not None]


def fill_in(view: View, tokenizer: AnyTokenizer, texts: Sequence[str], max_length: int) -> list[list[int]]:
    """The texts' token numbers with the most probable token at every hidden place.

    `max_length` is the model's number of positions.

    Errors: UserError for a text that hides nothing or has more tokens.
    """
    encoded = [encode_hidden(tokenizer, text) for text in texts]
    for text, tokens in zip(texts, encoded, strict=True):
        if len(tokens) > max_length:
            raise UserError(f"{text[:40]!r}... has {len(tokens)} tokens, more than the model's {max_length} positions")
    batch = padded(encoded, tokenizer)
    # No special tokens, and no rows of the vocabulary that the tokenizer does not know.
    allowed = np.setdiff1d(np.arange(tokenizer.vocabulary), sorted(tokenizer.special))

    @jax.jit
    def best(variables: Variables, batch: Batch) -> Array:
        logits, _ = view.model.apply(variables, batch, train=False)
        return jnp.take(jnp.asarray(allowed), jnp.argmax(logits[..., allowed], axis=-1))

    predicted = np.asarray(best(view.variables, batch))
    filled = np.where(batch["tokens"] == tokenizer.mask, predicted, batch["tokens"])
    return [list(row[:length]) for row, length in zip(filled, batch["lengths"], strict=True)]


def _closing(tokenizer: AnyTokenizer) -> int | None:
    """The end token closes a text only where a begin token opened it: the model never saw it otherwise."""
    return tokenizer.end if tokenizer.begin is not None else None
