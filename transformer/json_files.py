"""Reading JSON that somebody else may have written: whatever is wrong with it is one line that names the file."""

import json
from pathlib import Path
from typing import Any

from transformer.config import UserError

DEEPEST = 100
"""How many lists and objects may stand in one another: what reads a value after this may recurse."""
_SHOWN = 200


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Errors: UserError as `read_value`, and for any other value.
    """
    return as_object(read_value(path), str(path))


def read_value(path: Path) -> Any:
    """The JSON value that a file holds.

    Errors: UserError for a file that is missing, that cannot be read, and that is no JSON in UTF-8.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} holds no {path.name}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    return parse(content, str(path))


def parse(content: bytes | str, what: str) -> Any:
    """The JSON value of a text; `what` is how messages call it.

    Errors: UserError for what is no JSON in UTF-8, and for one with more than `DEEPEST` levels.
    """
    try:
        value = json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except RecursionError:
        raise UserError(f"{what} is not usable: its lists and objects stand too deep in one another") from None
    except ValueError as error:
        raise UserError(f"{what} is not JSON: {str(error)[:_SHOWN]}") from error
    level, held = 0, [value]
    while held:
        if level > DEEPEST:
            raise UserError(f"{what} is not usable: its lists and objects stand more than {DEEPEST} deep")
        inner = [each.values() if isinstance(each, dict) else each for each in held if isinstance(each, dict | list)]
        level, held = level + 1, [item for items in inner for item in items]
    return value


def as_object(value: Any, what: str) -> dict[str, Any]:
    """The value, if it is an object.

    Errors: UserError for any other.
    """
    if not isinstance(value, dict):
        raise UserError(f"{what} is no JSON object but a {type(value).__name__}")
    return value
