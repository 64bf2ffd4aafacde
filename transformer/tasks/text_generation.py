"""Continuing texts with a trained decoder."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer.config import UserError
from transformer.data.tokenizers.load import AnyTokenizer
from transformer.decoding.constraints import Prompt
from transformer.decoding.generate import DecodedSequences, SpecialTokens, generate
from transformer.decoding.stop_sequences import cut_at_stop
from transformer.models.model import Variables
from transformer.tasks.decoding_config import Decoding
from transformer.tasks.task import Answers, Batch, Evaluation, Report, Request, View
from transformer.tasks.text_data import padded
from transformer.tasks.text_task import MAPPED_TOKENS, answers_of, max_length_of, reading_of


def encode_prompts(tokenizer: AnyTokenizer, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Prompts as one batch of `tokens` [B, P], padded behind their `lengths` [B].

    They begin with the tokenizer's opening tokens; an empty text becomes the begin token, or else the end token.

    Raises:
        UserError: For an empty text where the tokenizer has neither token.
    """
    opening = tokenizer.begin if tokenizer.begin is not None else tokenizer.end
    encoded = [[*tokenizer.opening, *ids] for ids in tokenizer.encode(texts)]
    encoded = [[opening] if not ids and opening is not None else ids for ids in encoded]
    if not all(encoded):
        raise UserError("no text to continue: give one by --text, or one a line on standard input")
    return padded(encoded, tokenizer)


def roll_out(
    view: View, tokenizer: AnyTokenizer, prompts: Batch, decoding: Decoding, *, begins: bool = False
) -> DecodedSequences:
    """The model's continuations of the prompts, a pure function that can run under jit; `begins`: none has text."""
    inputs = {name: jnp.asarray(prompts[name]) for name in ("tokens", "lengths")}
    return generate(
        view.model,
        view.variables,
        inputs,
        strategy=decoding.strategy,
        length=decoding.max_new_tokens,
        tokens=SpecialTokens(tokenizer.pad, tokenizer.begin, tokenizer.end),
        key=jax.random.key(decoding.seed),
        prompt=Prompt(inputs["tokens"], inputs["lengths"]),
        constraints=decoding.constraints(tokenizer, generated_tokens(view, inputs), begins=begins),
    )


def continuations(
    tokenizer: AnyTokenizer, texts: Sequence[str], prompts: Batch, length: int, *, split: str
) -> Evaluation:
    """What a model makes of texts by greedy decoding, as samples to read; `prompts` is `encode_prompts` of them."""
    decoding = Decoding(max_new_tokens=length)

    def step(view: View, batch: Batch, key: Any) -> tuple[dict, dict]:
        return {}, {"tokens": roll_out(view, tokenizer, batch, decoding).tokens[:, 0]}

    def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> Report:
        said = zip(texts, read_prompts(prompts), rows["tokens"].tolist(), strict=True)
        samples = [{"prompt": text, "output": _continued(tokenizer, text, *tokens).text} for text, *tokens in said]
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

    Raises:
        UserError: For a prompt that leaves no room for `decoding.max_new_tokens` more tokens.
    """
    prompts = encode_prompts(tokenizer, texts)
    for text, length in zip(texts, prompts["lengths"], strict=True):
        if length + decoding.max_new_tokens > max_length:
            advice = f", or give --max_new_tokens={max_length - length}" if length < max_length else ""
            raise UserError(
                f"{text[:40]!r}... has {length} tokens: with {decoding.max_new_tokens} more it exceeds the model's "
                f"{max_length} positions; shorten it{advice}"
            )
    begins = all(tokenizer.special.issuperset(row) for row in read_prompts(prompts))

    @jax.jit
    def run(variables: Variables, batch: Batch) -> DecodedSequences:
        return roll_out(view._replace(variables=variables), tokenizer, batch, decoding, begins=begins)

    rollout = run(view.variables, prompts)
    tokens, lengths = np.asarray(rollout.tokens), np.asarray(rollout.lengths)
    return [
        [
            _continued(tokenizer, text, prompt, row[:length].tolist(), decoding.stop_sequences)
            for row, length in zip(rows, row_lengths, strict=True)
        ]
        for text, prompt, rows, row_lengths in zip(texts, read_prompts(prompts), tokens, lengths, strict=True)
    ]


def read_prompts(prompts: Batch) -> list[list[int]]:
    """The tokens of each prompt, without padding."""
    rows = zip(np.asarray(prompts["tokens"]), np.asarray(prompts["lengths"]), strict=True)
    return [row[:length].tolist() for row, length in rows]


def answers_by_continuing(
    view: View, tokenizer: AnyTokenizer, request: Request, texts: Sequence[str], **own: Any
) -> Answers:
    """The texts with what the model says behind them, up to its last position where no length is given.

    `own` are the task's ways of decoding, where a request says nothing else.

    Raises:
        UserError: For a language, a coverage penalty, and texts that leave no room.
    """
    if request.language is not None:
        raise UserError(f"--target_language={request.language} is for runs that translate")
    if request.decoding.get("coverage_penalty"):
        raise UserError(f"--coverage_penalty={request.decoding['coverage_penalty']} is for runs that translate")
    max_length = max_length_of(view)
    prompts = encode_prompts(tokenizer, texts)
    room = max(max_length - int(prompts["lengths"].max()), 1)
    decoding = Decoding.asked(request.decoding, **({"max_new_tokens": min(Decoding.max_new_tokens, room)} | own))
    said = continue_texts(view, tokenizer, texts, decoding, max_length)
    lines = [text + each.text for text, several in zip(texts, said, strict=True) for each in several]
    rows = [several[0].tokens[: min(MAPPED_TOKENS, max_length)] for several in said]
    return answers_of(view, lines, reading_of(tokenizer, rows))


def _continued(
    tokenizer: AnyTokenizer, text: str, prompt: list[int], chosen: list[int], stops: Sequence[str] = ()
) -> Continued:
    if tokenizer.end in chosen:
        chosen = chosen[: chosen.index(tokenizer.end)]
    whole = tokenizer.continuation(prompt, chosen)
    # A space that the next word would show may be the end of a stop string already.
    spaced = bool(chosen) and tokenizer.token_bytes()[chosen[-1]].endswith(b" ") and not whole.endswith(" ")
    said = cut_at_stop(whole + " " * spaced, stops)[: len(whole)]
    while len(said) < len(whole) and len(tokenizer.continuation(prompt, chosen[:-1])) >= len(said) and chosen:
        chosen = chosen[:-1]
    # Where a tokenizer drops the white space at the end of a text, that of the text itself stands there.
    if text[-1:].isspace() and tokenizer.encode([text]) == tokenizer.encode([text.rstrip()]):
        said = said.removeprefix(" ")
    return Continued(said, prompt + chosen)


def generated_tokens(view: View, inputs: Batch) -> int:
    """How many tokens a model scores at each step, which may be more than its tokenizer knows."""

    def logits(variables: Variables, inputs: Batch) -> Array:
        cache, first = view.model.init_cache(variables, inputs, beams=1, length=1)
        return view.model.step(variables, cache, first)[0]

    return jax.eval_shape(logits, view.variables, dict(inputs)).shape[-1]
