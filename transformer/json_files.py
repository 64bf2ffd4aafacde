"""Reading JSON that somebody else may have written: whatever is wrong with it is one line that names the file.

What one of our own files holds is a frozen dataclass beside the code that writes it; `read_as` and `checked` compare a
file with it, field by field, by the rules of configs (transformer.config.convert).
"""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from transformer.config import UserError, from_config

DEEPEST = 100
"""How many lists and objects may stand in one another: what reads a value after this may recurse."""
LARGEST = 1 << 28
"""Bytes of a file that is read whole, where a reader says no other limit."""
_GREATEST = 10**40  # of integers: tokenizers have lengths of 10^30
_SHOWN = 200


def read_as[T](schema: type[T], path: Path, most: int = LARGEST) -> T:
    """The dataclass that a JSON file holds.

    Raises:
        UserError: As `read_value`; naming the file and the field where the file is not as the dataclass says.
    """
    return checked(schema, read_value(path, most), str(path))


def checked[T](schema: type[T], value: Any, what: str) -> T:
    """The dataclass that a parsed JSON object describes; `what` is how messages call the object.

    Raises:
        UserError: Naming `what` and the field, for another value than the dataclass's.
    """
    try:
        return from_config(schema, as_object(value, "it"), "")
    except UserError as error:
        raise UserError(f"{what} is not usable: {error}") from error


def read_object(path: Path, most: int = LARGEST) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        UserError: As `read_value`, and for any other value.
    """
    return as_object(read_value(path, most), str(path))


def read_value(path: Path, most: int = LARGEST) -> Any:
    """The JSON value that a file holds.

    Raises:
        UserError: As `read_regular`, for a file that is missing, and as `parse`.
    """
    try:
        content = read_regular(path, most)
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} holds no {path.name}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    return parse(content, str(path))


def read_regular(path: Path, most: int = LARGEST) -> bytes:
    """The content of a regular file: of a pipe or a device, reading might never end.

    Raises:
        UserError: For another kind of file, and for one of more than `most` bytes.
        OSError: As `Path.read_bytes`.
    """
    if not isinstance(path, Path):  # an object in a bucket
        content = path.read_bytes()
        _check_size(path, len(content), most)
        return content
    with open_regular(path) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, most)
        return file.read()


def open_regular(path: Path) -> BinaryIO:
    """A regular file of a disk, open to be read.

    Raises:
        UserError: For another kind of file.
        OSError: As `Path.open`.
    """
    # Opening a pipe would wait for its writer.
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path} is no regular file: it is not read")
    return file


def _check_size(path: Path, size: int, most: int) -> None:
    if size > most:
        raise UserError(f"{path} has {size} bytes; at most {most} are read")


def parse(content: bytes | str, what: str, *, surrogates: bool = False) -> Any:
    """The JSON value of a text; `what` is how messages call it.

    With `surrogates`, its texts may hold halves of surrogate pairs, which no file or terminal takes as text.

    Raises:
        UserError: For what is no JSON in UTF-8, for one with more than `DEEPEST` levels, and for one with an integer of
            more than 40 digits or, unless allowed, half a surrogate pair.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        value = json.loads(text)
    except RecursionError:
        raise UserError(f"{what} is not usable: its lists and objects stand too deep in one another") from None
    except ValueError as error:
        raise UserError(f"{what} is not JSON: {str(error)[:_SHOWN]}") from error
    level, held = 0, [value]
    while held:
        if level > DEEPEST:
            raise UserError(f"{what} is not usable: its lists and objects stand more than {DEEPEST} deep")
        _check_integers(held, what)
        inner = [each.values() if isinstance(each, dict) else each for each in held if isinstance(each, dict | list)]
        level, held = level + 1, [item for items in inner for item in items]
    # A surrogate can only be written as an escape.
    if not surrogates and ("\\ud" in text or "\\uD" in text):
        _check_text(value, what)
    return value


def _check_integers(values: Iterable[Any], what: str) -> None:
    for value in values:
        if type(value) is int and not -_GREATEST < value < _GREATEST:
            raise UserError(f"{what} is not usable: it holds an integer of more than 40 digits")


def _check_text(value: Any, what: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{what} is not usable: it holds half a surrogate pair, which is no text") from error


def as_object(value: Any, what: str) -> dict[str, Any]:
    """The value, if it is an object.

    Raises:
        UserError: For any other.
    """
    if not isinstance(value, dict):
        raise UserError(f"{what} is no JSON object but a {type(value).__name__}")
    return value
