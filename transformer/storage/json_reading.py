"""Read JSON that somebody else may have written: every error is one line that names the file.

The content of one of our own files is a frozen dataclass next to the code that writes it; `read_dataclass` and
`parse_dataclass` compare a file with it, field by field, by the rules of configs (transformer.config.convert_value).
"""

import collections
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from transformer.config import UserError, from_config

MAX_NESTING = 100
"""The largest nesting of lists and objects, so that readers of a value may recurse."""
MAX_BYTES = 1 << 28
"""The largest size in bytes of a file that is read whole, unless the reader has another limit."""
_GREATEST = 10**40  # of integers: tokenizers have lengths of 10^30
_SHOWN = 200


def read_dataclass[T](schema: type[T], path: Path, max_bytes: int = MAX_BYTES) -> T:
    """Read a JSON file as a dataclass.

    Args:
        schema: The dataclass.
        path: The file.
        max_bytes: The largest size of the file in bytes.

    Raises:
        UserError: If the file is missing, unreadable, too large or not JSON, or does not fit the dataclass; the message
            names the file and the field.
    """
    return parse_dataclass(schema, read_json(path, max_bytes), str(path))


def parse_dataclass[T](schema: type[T], value: Any, what: str) -> T:
    """Convert a parsed JSON object to a dataclass.

    Args:
        schema: The dataclass.
        value: The object.
        what: What messages call the object.

    Raises:
        UserError: If it does not fit the dataclass; the message names the field.
    """
    try:
        return from_config(schema, require_object(value, "it"), "")
    except UserError as error:
        raise UserError(f"{what} is not usable: {error}") from error


def read_json_object(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Args:
        path: The file.
        max_bytes: The largest size of the file in bytes.

    Raises:
        UserError: If the file is missing, unreadable, too large or not a JSON object.
    """
    return require_object(read_json(path, max_bytes), str(path))


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        max_bytes: The largest size of the file in bytes.

    Raises:
        UserError: If the file is missing, unreadable, too large or not JSON.
    """
    try:
        content = read_regular_file(path, max_bytes)
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} holds no {path.name}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    return parse_json(content, str(path))


def read_regular_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a regular file; reading a pipe or a device might never end.

    Args:
        path: The file.
        max_bytes: The largest size of the file in bytes.

    Raises:
        UserError: If it is another kind of file, or larger than `max_bytes`.
        OSError: If it is missing or cannot be read.
    """
    if not isinstance(path, Path):  # an object in a bucket
        content = path.read_bytes()
        _check_size(path, len(content), max_bytes)
        return content
    with open_regular_file(path) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, max_bytes)
        return file.read()


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file on a disk for reading.

    Raises:
        UserError: If it is another kind of file.
        OSError: If it is missing or cannot be opened.
    """
    # Opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UserError(f"{path} is no regular file{', but a folder' if stat.S_ISDIR(mode) else ''}: it is not read")
    return open(descriptor, "rb")


def _check_size(path: Path, size: int, most: int) -> None:
    if size > most:
        raise UserError(f"{path} has {size} bytes; at most {most} are read")


def parse_json(content: bytes | str, what: str, *, surrogates: bool = False) -> Any:
    """Parse JSON text.

    Args:
        content: The text.
        what: What messages call it.
        surrogates: Whether texts may hold halves of surrogate pairs, which no file or terminal takes as text.

    Raises:
        UserError: If it is not JSON in UTF-8, is nested more than `MAX_NESTING` deep, has a key twice in one object or
            an integer of more than 40 digits, or, unless allowed, half a surrogate pair.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        value = json.loads(text, object_pairs_hook=refuse_repeated_keys)
    except RecursionError:
        raise UserError(f"{what} is not usable: its lists and objects stand too deep in one another") from None
    except RepeatedKeyError as error:
        raise UserError(f"{what} is not usable: it has the key {str(error)[:_SHOWN]} twice in one object") from None
    except ValueError as error:
        raise UserError(f"{what} is not JSON: {str(error)[:_SHOWN]}") from error
    level, values = 0, [value]
    while values:
        _check_integers(values, what)
        inner = [
            container.values() if isinstance(container, dict) else container
            for container in values
            if isinstance(container, dict | list)
        ]
        if inner and level >= MAX_NESTING:
            raise UserError(f"{what} is not usable: its lists and objects stand more than {MAX_NESTING} deep")
        level, values = level + 1, [item for items in inner for item in items]
    # A surrogate can only be written as an escape.
    if not surrogates and ("\\ud" in text or "\\uD" in text):
        _check_text(value, what)
    return value


class RepeatedKeyError(ValueError):
    """An object of a JSON text has a key twice, of which a parser would keep one without a word."""


def refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its keys and values, as the `object_pairs_hook` of a JSON parser.

    Raises:
        RepeatedKeyError: If a key stands twice; the message is its repr.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        raise RepeatedKeyError(next(repr(name) for name, count in counts.items() if count > 1))
    return values


def _check_integers(values: Iterable[Any], what: str) -> None:
    for value in values:
        if type(value) is int and not -_GREATEST < value < _GREATEST:
            raise UserError(f"{what} is not usable: it holds an integer of more than 40 digits")


def _check_text(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{what} is not usable: it holds half a surrogate pair, which is no text") from error


def require_object(value: Any, what: str) -> dict[str, Any]:
    """Return the value if it is an object.

    Raises:
        UserError: If it is not.
    """
    if not isinstance(value, dict):
        raise UserError(f"{what} is no JSON object but a {type(value).__name__}")
    return value
