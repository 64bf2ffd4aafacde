"""Continue texts with a trained decoder."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer.config import UserError
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.constraints import Prompt
from transformer.decoding.generation import DecodedSequences, SpecialTokens, generate
from transformer.decoding.stop_sequences import cut_at_stop
from transformer.models.model import Variables
from transformer.tasks.decoding_config import DecodingConfig
from transformer.tasks.task import Batch, Evaluation, EvaluationReport, PredictionRequest, Predictions, StateView
from transformer.tasks.text_data import pad_texts
from transformer.tasks.text_task_base import (
    MAX_PROBE_TOKENS,
    make_encoded_inputs,
    max_input_length,
    predictions_with_maps,
)


def encode_prompts(tokenizer: Tokenizer, texts: Sequence[str], *, is_chat: bool = False) -> dict[str, np.ndarray]:
    """Encode prompts as one batch.

    A prompt begins with the tokenizer's opening tokens; an empty text becomes the begin token, or else the end token.

    Args:
        tokenizer: The tokenizer.
        texts: The prompts.
        is_chat: Whether a chat template has written them, with all their special tokens.

    Returns:
        `tokens` [B, P], padded after their `lengths` [B].

    Raises:
        UserError: If a text is empty and the tokenizer has neither token.
    """
    opening = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    if is_chat:
        encoded = [tokenizer.encode_chat(text) for text in texts]
    else:
        encoded = [[*tokenizer.leading_ids, *ids] for ids in tokenizer.encode(texts)]
    encoded = [[opening] if not ids and opening is not None else ids for ids in encoded]
    if not all(encoded):
        raise UserError("no text to continue: give one by --text, or one a line on standard input")
    return pad_texts(encoded, tokenizer)


def generate_continuations(
    view: StateView, tokenizer: Tokenizer, prompts: Batch, decoding: DecodingConfig, *, begins: bool = False
) -> DecodedSequences:
    """Continue the prompts: a pure function that can run under jit.

    Args:
        view: The state.
        tokenizer: The tokenizer.
        prompts: The batch of `encode_prompts`.
        decoding: The decoding options.
        begins: Whether all prompts are empty, so that the generated text begins a text.
    """
    inputs = {name: jnp.asarray(prompts[name]) for name in ("tokens", "lengths")}
    return generate(
        view.model,
        view.variables,
        inputs,
        strategy=decoding.strategy,
        length=decoding.max_new_tokens,
        tokens=SpecialTokens(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, other_end_ids=decoding.end_ids),
        key=jax.random.key(decoding.seed),
        prompt=Prompt(inputs["tokens"], inputs["lengths"]),
        constraints=decoding.constraints(
            tokenizer, output_vocabulary_size(view, inputs), begins=begins, stop_sequences=decoding.stop_sequences
        ),
    )


def continuation_evaluation(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: Batch, decoding: DecodingConfig, *, split: str
) -> Evaluation:
    """Return an evaluation that continues texts, as samples to read.

    Args:
        tokenizer: The tokenizer.
        texts: The prompts.
        prompts: `encode_prompts` of them.
        decoding: The decoding options.
        split: The split under which the samples are reported.
    """

    def step(view: StateView, batch: Batch, key: Any) -> tuple[dict, dict]:
        return {}, {"tokens": generate_continuations(view, tokenizer, batch, decoding).tokens[:, 0]}

    def finish(sums: Any, rows: Mapping[str, np.ndarray]) -> EvaluationReport:
        rows_of_texts = zip(texts, prompt_tokens(prompts), rows["tokens"].tolist(), strict=True)
        samples = [
            {"prompt": text, "output": _make_continuation(tokenizer, text, prompt, row, decoding).text}
            for text, prompt, row in rows_of_texts
        ]
        return EvaluationReport({}, samples, note=f"{len(samples)} prompts continued")

    return Evaluation("continuations", split, [prompts], step, finish)


class Continuation(NamedTuple):
    """A generated continuation.

    Attributes:
        text: The text after the prompt.
        tokens: The tokens of prompt and continuation.
    """

    text: str
    tokens: list[int]


def continue_texts(
    view: StateView,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    prompts: Batch,
    decoding: DecodingConfig,
    max_length: int,
) -> list[list[Continuation]]:
    """Continue texts.

    Args:
        view: The state.
        tokenizer: The tokenizer.
        texts: The prompts.
        prompts: `encode_prompts` of them.
        decoding: The decoding options.
        max_length: The model's number of positions.

    Returns:
        For each text its continuations, best first, cut before a stop string.

    Raises:
        UserError: If a prompt and `decoding.max_new_tokens` more tokens exceed the model's positions.
    """
    for text, length in zip(texts, prompts["lengths"], strict=True):
        if length + decoding.max_new_tokens > max_length:
            advice = f", or give --max_new_tokens={max_length - length}" if length < max_length else ""
            raise UserError(
                f"{text[:40]!r}... has {length} tokens: with {decoding.max_new_tokens} more it exceeds the model's "
                f"{max_length} positions; shorten it{advice}"
            )
    begins = all(tokenizer.special_ids.issuperset(row) for row in prompt_tokens(prompts))

    @jax.jit
    def run(variables: Variables, batch: Batch) -> DecodedSequences:
        return generate_continuations(view._replace(variables=variables), tokenizer, batch, decoding, begins=begins)

    rollout = run(view.variables, prompts)
    tokens, lengths = np.asarray(rollout.tokens), np.asarray(rollout.lengths)
    return [
        [
            _make_continuation(tokenizer, text, prompt, row[:length].tolist(), decoding)
            for row, length in zip(rows, row_lengths, strict=True)
        ]
        for text, prompt, rows, row_lengths in zip(texts, prompt_tokens(prompts), tokens, lengths, strict=True)
    ]


def prompt_tokens(prompts: Batch) -> list[list[int]]:
    """Return the tokens of each prompt, without padding."""
    rows = zip(np.asarray(prompts["tokens"]), np.asarray(prompts["lengths"]), strict=True)
    return [row[:length].tolist() for row, length in rows]


def predict_continuations(
    view: StateView, tokenizer: Tokenizer, request: PredictionRequest, texts: Sequence[str], **own: Any
) -> Predictions:
    """Answer a request to continue texts.

    Args:
        view: The state.
        tokenizer: The tokenizer.
        request: The request, for its decoding options.
        texts: The texts to continue.
        **own: The task's own decoding options, which the request overrides. Without `max_new_tokens`, the default of
            `DecodingConfig` or as many as fit the model's positions.

    Returns:
        The texts with their continuations; of a chat, the continuations alone.

    Raises:
        UserError: If the request has a language or a coverage penalty, or a text leaves no room for new tokens.
    """
    if request.language is not None:
        raise UserError(f"--target_language={request.language} is for runs that translate")
    if request.decoding.get("coverage_penalty"):
        raise UserError(f"--coverage_penalty={request.decoding['coverage_penalty']} is for runs that translate")
    max_length = max_input_length(view)
    if not request.is_chat:  # whose special tokens are written in the text
        tokenizer.warn_of_unknown_parts(texts)
    prompts = encode_prompts(tokenizer, texts, is_chat=request.is_chat)
    room = max(max_length - int(prompts["lengths"].max()), 1)
    own["max_new_tokens"] = min(own.get("max_new_tokens", DecodingConfig.max_new_tokens), room)
    decoding = DecodingConfig.with_request(request.decoding, **own)
    continuations = continue_texts(view, tokenizer, texts, prompts, decoding, max_length)
    lines = [
        continuation.text if request.is_chat else text + continuation.text
        for text, samples in zip(texts, continuations, strict=True)
        for continuation in samples
    ]
    rows = [samples[0].tokens[: min(MAX_PROBE_TOKENS, max_length)] for samples in continuations]
    return predictions_with_maps(view, lines, make_encoded_inputs(tokenizer, rows))


def _make_continuation(
    tokenizer: Tokenizer, text: str, prompt: list[int], generated: list[int], decoding: DecodingConfig
) -> Continuation:
    ends = (tokenizer.eos_id, *decoding.end_ids)
    generated = list(itertools.takewhile(lambda token: token not in ends, generated))
    full_text = tokenizer.continuation(prompt, generated)
    # A final space, shown only with the next word, may already complete a stop string.
    ends_in_space = (
        bool(generated) and tokenizer.token_bytes()[generated[-1]].endswith(b" ") and not full_text.endswith(" ")
    )
    added = cut_at_stop(full_text + " " * ends_in_space, decoding.stop_sequences)[: len(full_text)]
    while (
        len(added) < len(full_text) and len(tokenizer.continuation(prompt, generated[:-1])) >= len(added) and generated
    ):
        generated = generated[:-1]
    # If the tokenizer drops trailing white space, the prompt's own is already there.
    if text[-1:].isspace() and tokenizer.encode([text]) == tokenizer.encode([text.rstrip()]):
        added = added.removeprefix(" ")
    return Continuation(added, prompt + generated)


def output_vocabulary_size(view: StateView, inputs: Batch) -> int:
    """Return how many tokens a model scores at each step, which may be more than its tokenizer knows.

    Args:
        view: The state.
        inputs: The inputs of one batch.
    """

    def logits(variables: Variables, inputs: Batch) -> Array:
        cache, first = view.model.init_cache(variables, inputs, num_beams=1, length=1)
        return view.model.step(variables, cache, first)[0]

    return jax.eval_shape(logits, view.variables, dict(inputs)).shape[-1]
