"""Read a tokenizer of the `tokenizers` library that a stranger may have written.

The library is written in Rust. What it does not expect ends in a panic, which is a BaseException in Python and reports
itself on the standard error stream; and replacements that each write a text longer fill the memory.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import normalizers

from transformer.config import UserError

MAX_GROWTH = 100
"""The largest factor by which a tokenizer may write a text longer."""

_MAX_STEPS = 1000  # normalizers and decoders that replace text
_MAX_BY_EXPRESSIONS = 1000  # the same as MAX_GROWTH, where it is only known what may happen
_PANIC = "PanicException"
# Regular expressions that may match between two characters, and so add to a text without replacing any of it.
_MAY_BE_EMPTY = re.compile(r"[*?^$|{]|\\[bBAzZG]")


def parse_backend(content: str) -> tokenizers.Tokenizer:
    """Parse the content of a tokenizer.json.

    Raises:
        UserError: If the library cannot read it, or it writes texts more than MAX_GROWTH times as long.
    """
    with library_errors(), without_stderr():
        described = json.loads(content)
        if not isinstance(described, dict):
            raise UserError("it is no JSON object")
        for part in ("normalizer", "decoder"):
            _check_growth(part, described.get(part))
        _check_templates(described.get("post_processor"))
        backend = tokenizers.Tokenizer.from_str(content)
        # The library gives added tokens the next free numbers, whatever the file says.
        for token in described.get("added_tokens") or ():
            if backend.token_to_id(token["content"]) != token["id"]:
                raise UserError(
                    f"it adds the token {token['content']!r:.80} as number {token['id']}, which is not the next"
                )
        return backend


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Turn every error of the library, panics included, into a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(_describe_in_one_line(error)) from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise UserError(f"the tokenizers library fails: {_describe_in_one_line(error)}") from error


def _describe_in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


@contextlib.contextmanager
def without_stderr() -> Iterator[None]:
    """Send what native code writes to the standard error stream nowhere, such as the report of a panic."""
    try:
        sys.stderr.flush()
        stream = os.dup(2)
    except (OSError, ValueError, AttributeError):  # there is no such stream, or it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(stream, 2)
        os.close(stream)


def _check_growth(part: str, described: Any) -> None:
    """Refuse replacements that together write a text too long, one at a time, before the memory is taken.

    Every pattern that is a string is tried as a text of its own. What a regular expression matches is not known: each
    is taken to write what it inserts for every character, and between them if it may match there.

    Args:
        part: "normalizer" or "decoder".
        described: Its description in tokenizer.json.

    Raises:
        UserError: If a text could grow by more than MAX_GROWTH.
    """
    steps = list(_iterate_replacements(described))
    if len(steps) > _MAX_STEPS:
        raise UserError(f"its {part} replaces text in {len(steps):,} steps; at most {_MAX_STEPS:,} are read")
    by_expressions = 1
    for pattern, content, is_expression in steps:
        if not pattern:
            raise UserError(f"its {part} replaces an empty pattern, which matches everywhere")
        if len(content) > MAX_GROWTH * len(pattern):
            raise UserError(f"its {part} replaces {pattern[:40]!r} by {len(content):,} characters")
        if is_expression and content:
            by_expressions *= len(content) + (_MAY_BE_EMPTY.search(pattern) is not None)
    if by_expressions > _MAX_BY_EXPRESSIONS:
        raise UserError(f"its {part} may write a text {by_expressions:,} times as long")
    chain = [
        normalizers.Replace(tokenizers.Regex(pattern) if is_expression else pattern, content)
        for pattern, content, is_expression in steps
    ]
    for text in dict.fromkeys(pattern[:200] for pattern, _, is_expression in steps if not is_expression):
        grown = text
        for step in chain:
            grown = step.normalize_str(grown)
            if len(grown) > MAX_GROWTH * len(text):
                raise UserError(f"its {part} writes {text[:40]!r} more than {MAX_GROWTH} times as long")


def _check_templates(part: Any) -> None:
    """Refuse templates that repeat a text, or put tokens around it, more than _MAX_STEPS times."""
    if not isinstance(part, dict):
        return
    for inner in part["processors"] if isinstance(part.get("processors"), list) else ():
        _check_templates(inner)
    for name in ("single", "pair"):
        if isinstance(part.get(name), list | str) and len(part[name]) > _MAX_STEPS:
            raise UserError(f"its post_processor has {len(part[name]):,} pieces; at most {_MAX_STEPS:,} are read")


def _iterate_replacements(part: Any) -> Iterator[tuple[str, str, bool]]:
    """Yield the pattern, the content, and whether the pattern is a regular expression, of every replacement."""
    if not isinstance(part, dict):
        return
    for name in ("normalizers", "decoders"):
        if isinstance(part.get(name), list):
            for inner in part[name]:
                yield from _iterate_replacements(inner)
    pattern, content = part.get("pattern"), part.get("content")
    # The library also reads one without a type.
    if isinstance(pattern, dict) and isinstance(content, str):
        for kind in ("String", "Regex"):
            if isinstance(pattern.get(kind), str):
                yield pattern[kind], content, kind == "Regex"
