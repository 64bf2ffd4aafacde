"""Continuing texts with a trained decoder."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.decode.constraints import Prompt
from transformer.decode.generate import Rollout, Tokens, generate
from transformer.decode.stops import cut
from transformer.models.contract import Variables
from transformer.tasks.contract import Answers, Batch, Evaluation, Report, Request, View
from transformer.tasks.decoding import Decoding
from transformer.tasks.reading import answers_of, reading_of
from transformer.tasks.text_data import padded
from transformer.tasks.text_task import MAPPED_TOKENS, max_length_of


def encode_prompts(tokenizer: AnyTokenizer, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Prompts as one batch of `tokens` [B, P], padded behind their `lengths` [B].

    They begin with the tokenizer's opening tokens; an empty text becomes the begin token, or else the end token.

    Errors: UserError for an empty text where the tokenizer has neither token.
    """
    opening = tokenizer.begin if tokenizer.begin is not None else tokenizer.end
    encoded = [[*tokenizer.opening, *ids] for ids in tokenizer.encode(texts)]
    encoded = [[opening] if not ids and opening is not None else ids for ids in encoded]
    if not all(encoded):
        raise UserError("no text to continue: give one by --text, or one a line on standard input")
    return padded(encoded, tokenizer)


def roll_out(view: View, tokenizer: AnyTokenizer, prompts: Batch, decoding: Decoding) -> Rollout:
    """The model's continuations of the prompts, a pure function that can run under jit."""
    inputs = {name: jnp.asarray(prompts[name]) for name in ("tokens", "lengths")}
    return generate(
        view.model,
        view.variables,
        inputs,
        chooser=decoding.chooser,
        length=decoding.length,
        tokens=Tokens(tokenizer.pad, tokenizer.begin, tokenizer.end),
        key=jax.random.key(decoding.seed),
        prompt=Prompt(inputs["tokens"], inputs["lengths"]),
        constraints=decoding.constraints(tokenizer, generated_tokens(view, inputs)),
    )


def continuations(
    tokenizer: AnyTokenizer, texts: Sequence[str], prompts: Batch, length: int, *, split: str
) -> Evaluation:
    """What a model makes of texts by greedy decoding, as samples to read; `prompts` is `encode_prompts` of them."""
    decoding = Decoding(length=length)

    def step(view: View, batch: Batch, key: Any) -> tuple[dict, dict]:
        return {}, {"tokens": roll_out(view, tokenizer, batch, decoding).tokens[:, 0]}

    def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> Report:
        pairs = zip(texts, rows["tokens"], strict=True)
        samples = [{"prompt": text, "output": tokenizer.decode(tokens)} for text, tokens in pairs]
        return Report({}, samples, note=f"{len(samples)} prompts continued")

    return Evaluation("continuations", split, [prompts], step, finish)


class Continued(NamedTuple):
    """What a model says behind a prompt, and the tokens of both, as it read and chose them."""

    text: str
    tokens: list[int]


def continue_texts(
    view: View, tokenizer: AnyTokenizer, texts: Sequence[str], decoding: Decoding, max_length: int
) -> list[list[Continued]]:
    """For each text its continuations, best first, cut before a stop string.

    `max_length` is the model's number of positions.

    Errors: UserError for a prompt that leaves no room for `decoding.length` more tokens.
    """
    prompts = encode_prompts(tokenizer, texts)
    for text, length in zip(texts, prompts["lengths"], strict=True):
        if length + decoding.length > max_length:
            advice = f", or give --length={max_length - length}" if length < max_length else ""
            raise UserError(
                f"{text[:40]!r}... has {length} tokens: with {decoding.length} more it exceeds the model's "
                f"{max_length} positions; shorten it{advice}"
            )
    run = jax.jit(lambda variables, batch: roll_out(view._replace(variables=variables), tokenizer, batch, decoding))
    rollout = run(view.variables, prompts)
    tokens, lengths = np.asarray(rollout.tokens), np.asarray(rollout.lengths)
    read = [row[:length] for row, length in zip(prompts["tokens"], prompts["lengths"], strict=True)]
    return [
        [
            _continued(tokenizer, list(prompt), [int(number) for number in row[:length]], decoding.stops)
            for row, length in zip(rows, row_lengths, strict=True)
        ]
        for prompt, rows, row_lengths in zip(read, tokens, lengths, strict=True)
    ]


def answers_by_continuing(
    view: View, tokenizer: AnyTokenizer, request: Request, texts: Sequence[str], **own: Any
) -> Answers:
    """The texts with what the model says behind them, up to its last position where no length is given.

    `own` are the task's ways of decoding, where a request says nothing else.

    Errors: UserError for a language, a coverage penalty, and texts that leave no room.
    """
    if request.language is not None:
        raise UserError(f"--language={request.language} is for runs that translate")
    if request.decoding.get("coverage_penalty"):
        raise UserError(f"--coverage_penalty={request.decoding['coverage_penalty']} is for runs that translate")
    max_length = max_length_of(view)
    prompts = encode_prompts(tokenizer, texts)
    room = max(max_length - int(prompts["lengths"].max()), 1)
    decoding = Decoding.asked(request.decoding, **({"length": min(Decoding.length, room)} | own))
    said = continue_texts(view, tokenizer, texts, decoding, max_length)
    lines = [text + each.text for text, several in zip(texts, said, strict=True) for each in several]
    rows = [several[0].tokens[: min(MAPPED_TOKENS, max_length)] for several in said]
    return answers_of(view, lines, reading_of(tokenizer, rows))


def _continued(tokenizer: AnyTokenizer, prompt: list[int], chosen: list[int], stops: Sequence[str]) -> Continued:
    if tokenizer.end in chosen:
        chosen = chosen[: chosen.index(tokenizer.end)]
    whole = tokenizer.decode(chosen)
    text = cut(whole, stops)
    while len(text) < len(whole) and len(tokenizer.decode(chosen[:-1])) >= len(text) and chosen:
        chosen = chosen[:-1]
    return Continued(text, prompt + chosen)


def generated_tokens(view: View, inputs: Batch) -> int:
    """How many tokens a model scores at each step, which may be more than its tokenizer knows."""

    def logits(variables: Variables, inputs: Batch) -> Array:
        cache, first = view.model.init_cache(variables, inputs, beams=1, length=1)
        return view.model.step(variables, cache, first)[0]

    return jax.eval_shape(logits, view.variables, dict(inputs)).shape[-1]
