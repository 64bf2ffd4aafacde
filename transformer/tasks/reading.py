"""How language models read new texts by a tokenizer alone: as prompts, or between the tokens of begin and end."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from transformer.data.any_tokenizer import AnyTokenizer
from transformer.models.interface import CONTINUATION, Input, Interface, Signature
from transformer.tasks.contract import Answers, Reader, Reading, Sentences, View
from transformer.tasks.filling import encode_framed
from transformer.tasks.plain import check_fits, check_sentences, look_over
from transformer.tasks.text_data import TextConfig, describe, padded


def text_interface(config: TextConfig, tokenizer: AnyTokenizer, *, asks: Signature, decoded: int = 0) -> Interface:
    """What a task over rows of tokens asks of a model."""
    return Interface(
        inputs={
            name: Input((config.rows,) if name == "lengths" else (config.rows, config.context)) for name in asks.inputs
        },
        vocabularies={"tokens": tokenizer.vocabulary},
        pad=tokenizer.pad,
        begin=tokenizer.begin,
        end=tokenizer.end,
        output=asks.output,
        decoded=decoded,
    )


def reading_of(tokenizer: AnyTokenizer, rows: Sequence[Sequence[int]]) -> Reading:
    """Rows of tokens as a model reads them."""
    return Reading(padded(rows, tokenizer), "hidden", describe(tokenizer, rows))


def answers_of(view: View, lines: Sequence[str], reading: Reading) -> Answers:
    """Answers, and a pass over what they are read from."""
    return Answers(lines, reading.labels, look_over(view, reading.inputs, method=reading.method))


def prompt(tokenizer: AnyTokenizer, text: str) -> list[int]:
    """A text behind whatever the tokenizer opens a text with."""
    return [*tokenizer.opening, *tokenizer.encode([text])[0]]


def _read(
    encode: Callable[[AnyTokenizer, str], list[int]],
    config: Any,
    view: View,
    tokenizer: AnyTokenizer,
    sentences: Sentences,
) -> Reading:
    """Texts, each encoded by itself.

    Errors: UserError for texts that are empty or longer than the model's positions, a target, and a language.
    """
    check_sentences(sentences)
    rows = [encode(tokenizer, text) for text in sentences.texts]
    check_fits(sentences.texts, rows, view.model.max_length)
    return reading_of(tokenizer, rows)


CONTINUING = Reader(functools.partial(text_interface, asks=CONTINUATION), functools.partial(_read, prompt))
read_framed = functools.partial(_read, encode_framed)
