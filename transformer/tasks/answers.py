"""Letting a trained run speak, whatever its task: what it says to texts, and what its heads attend to meanwhile."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer.attention.capture import Capture, Captured
from transformer.config import UserError
from transformer.data.any_tokenizer import AnyTokenizer
from transformer.tasks.continuation import continue_texts, encode_prompts
from transformer.tasks.contract import Task, View
from transformer.tasks.decoding import Decoding
from transformer.tasks.filling import fill_in
from transformer.tasks.labels import Labels
from transformer.tasks.language_modelling import LanguageModelling
from transformer.tasks.masked_language_modelling import MaskedLanguageModelling
from transformer.tasks.text_data import describe, padded
from transformer.tasks.translate import Look, reading, translate
from transformer.tasks.translation import Translation
from transformer.tasks.translation_data import describe as describe_pairs

# Beyond so many tokens a map is no longer read by eye.
MAPPED_TOKENS = 128


class Answers(NamedTuple):
    """What was said, a line each; what its positions are called; and a pass over it that captures what is asked for."""

    lines: list[str]
    labels: Labels
    look: Look


def answer(
    task: Task,
    view: View,
    texts: Sequence[str],
    *,
    longest: int,
    decoding: Mapping[str, Any],
    language: str | None = None,
) -> Answers:
    """Translate, continue or fill in the texts; `decoding` sets fields of Decoding that are not the task's own.

    `longest` is the model's number of positions; `language` the target's, where a translator has several.

    Errors: UserError for what the task cannot do, and for texts that do not fit.
    """
    texts = [text for text in texts if text.strip()] or [""]
    if isinstance(task, Translation):
        own = {"length": longest, "beams": task.config.beams, "length_penalty": task.config.length_penalty}
        if decoding.get("samples", 1) > 1:
            raise UserError(f"--samples={decoding['samples']} is for runs that continue texts: a translation is one")
        pairs = translate(task, view, texts, language, longest, Decoding(**own | _searching(decoding)))
        return Answers(
            [pair.target for pair in pairs], describe_pairs(task.tokenizer, pairs), reading(task, view, pairs)
        )
    if language is not None:
        raise UserError(f"--language={language} is for runs that translate")
    if isinstance(task, LanguageModelling):
        # Where no length is asked for, as much as the model has room for behind the longest prompt.
        prompts = encode_prompts(task.tokenizer, texts)
        room = max(longest - int(prompts["lengths"].max()), 1)
        chosen = Decoding(**{"length": min(Decoding.length, room), **decoding})
        said = continue_texts(view, task.tokenizer, texts, chosen, longest)
        lines = [text + more for text, several in zip(texts, said, strict=True) for more in several]
        best = [text + several[0] for text, several in zip(texts, said, strict=True)]
        read = encode_prompts(task.tokenizer, best)
        widest = min(MAPPED_TOKENS, longest)
        rows = [row[: min(length, widest)] for row, length in zip(read["tokens"], read["lengths"], strict=True)]
        return Answers(lines, describe(task.tokenizer, rows), _reading(view, task.tokenizer, rows))
    if isinstance(task, MaskedLanguageModelling):
        if decoding:
            raise UserError(f"--{next(iter(decoding))} is for runs that generate; this one fills in hidden tokens")
        rows = fill_in(view, task.tokenizer, texts, longest)
        lines = [task.tokenizer.decode(row) for row in rows]
        shown = [row[:MAPPED_TOKENS] for row in rows]
        return Answers(lines, describe(task.tokenizer, shown), _reading(view, task.tokenizer, shown))
    raise UserError("this run's task neither translates nor continues nor fills in texts")


def _searching(decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Asking for samples takes the place of the task's own beams, unless beams are asked for as well."""
    samples = any(name in decoding for name in ("temperature", "top_k", "top_p"))
    return ({"beams": 1} if samples else {}) | dict(decoding)


def _reading(view: View, tokenizer: AnyTokenizer, rows: Sequence[Sequence[int]]) -> Look:
    """The model reads texts."""
    inputs = padded(rows, tokenizer)

    def look(capture: Capture) -> Mapping[str, Captured]:
        return view.model.apply(view.variables, inputs, method="hidden", train=False, capture=capture)[1].maps

    return look
