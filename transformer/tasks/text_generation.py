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
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, PredictionRequest, Predictions, StateView
from transformer.tasks.text_data import pad_texts
from transformer.tasks.text_task import MAX_PROBE_TOKENS, encoded_inputs, make_predictions, max_length_of


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
    return pad_texts(encoded, tokenizer)


def generate_continuations(
    view: StateView, tokenizer: AnyTokenizer, prompts: Batch, decoding: DecodingConfig, *, begins: bool = False
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
        constraints=decoding.constraints(tokenizer, output_vocabulary_size(view, inputs), begins=begins),
    )


def continuation_evaluation(
    tokenizer: AnyTokenizer, texts: Sequence[str], prompts: Batch, length: int, *, split: str
) -> Evaluation:
    """What a model makes of texts by greedy decoding, as samples to read; `prompts` is `encode_prompts` of them."""
    decoding = DecodingConfig(max_new_tokens=length)

    def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict]:
        return {}, {"tokens": generate_continuations(view, tokenizer, batch, decoding).tokens[:, 0]}

    def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        said = zip(texts, prompt_tokens(prompts), rows["tokens"].tolist(), strict=True)
        samples = [{"prompt": text, "output": _continued(tokenizer, text, *tokens).text} for text, *tokens in said]
        return EvaluationReport({}, samples, note=f"{len(samples)} prompts continued")

    return Evaluation("continuations", split, [prompts], step, finish)


class Continuation(NamedTuple):
    """What a model says behind a prompt, and the tokens of both, as it read and chose them."""

    text: str
    tokens: list[int]


def continue_texts(
    view: StateView, tokenizer: AnyTokenizer, texts: Sequence[str], decoding: DecodingConfig, max_length: int
) -> list[list[Continuation]]:
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
    begins = all(tokenizer.special.issuperset(row) for row in prompt_tokens(prompts))

    @jax.jit
    def run(variables: Variables, batch: Batch) -> DecodedSequences:
        return generate_continuations(view._replace(variables=variables), tokenizer, batch, decoding, begins=begins)

    rollout = run(view.variables, prompts)
    tokens, lengths = np.asarray(rollout.tokens), np.asarray(rollout.lengths)
    return [
        [
            _continued(tokenizer, text, prompt, row[:length].tolist(), decoding.stop_sequences)
            for row, length in zip(rows, row_lengths, strict=True)
        ]
        for text, prompt, rows, row_lengths in zip(texts, prompt_tokens(prompts), tokens, lengths, strict=True)
    ]


def prompt_tokens(prompts: Batch) -> list[list[int]]:
    """The tokens of each prompt, without padding."""
    rows = zip(np.asarray(prompts["tokens"]), np.asarray(prompts["lengths"]), strict=True)
    return [row[:length].tolist() for row, length in rows]


def predict_continuations(
    view: StateView, tokenizer: AnyTokenizer, request: PredictionRequest, texts: Sequence[str], **own: Any
) -> Predictions:
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
    decoding = DecodingConfig.asked(
        request.decoding, **({"max_new_tokens": min(DecodingConfig.max_new_tokens, room)} | own)
    )
    said = continue_texts(view, tokenizer, texts, decoding, max_length)
    lines = [text + each.text for text, several in zip(texts, said, strict=True) for each in several]
    rows = [several[0].tokens[: min(MAX_PROBE_TOKENS, max_length)] for several in said]
    return make_predictions(view, lines, encoded_inputs(tokenizer, rows))


def _continued(
    tokenizer: AnyTokenizer, text: str, prompt: list[int], chosen: list[int], stops: Sequence[str] = ()
) -> Continuation:
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
    return Continuation(said, prompt + chosen)


def output_vocabulary_size(view: StateView, inputs: Batch) -> int:
    """How many tokens a model scores at each step, which may be more than its tokenizer knows."""

    def logits(variables: Variables, inputs: Batch) -> Array:
        cache, first = view.model.init_cache(variables, inputs, beams=1, length=1)
        return view.model.step(variables, cache, first)[0]

    return jax.eval_shape(logits, view.variables, dict(inputs)).shape[-1]
