"""Wrong values for every field of a JSON document, by what its schema and the document itself say that there is.

A new field of a schema, or of what a run writes, is attacked without a word here.
"""

import copy
import dataclasses
import functools
import random
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# What no field of any file of ours is allowed to be, all of it JSON.
VALUES: Mapping[str, Any] = {
    "null": None,
    "true": True,
    "-1": -1,
    "0": 0,
    "half": 0.5,
    "10^12": 10**12,
    "10^39": 10**39,
    "10^300": 1e300,
    "no text": "",
    "a text": "x",
    "a path out": "../../../x",
    "a device": "/dev/zero",
    "a bucket": "gs://bucket/x",
    "a null character": "\0",
    "half a pair": "\ud800",
    "an escape": "\x1b[2J",
    "a long text": "x" * 5000,
    "an empty list": [],
    "a list": [[1], "x"],
    "an empty object": {},
    "an object": {"x": {"y": 1}},
    "numbers": [10**6] * 6,
}
DEEP = "deep"
"""Instead of a value: so many lists in one another that no reader may follow them."""
_MARK = "the place of what is deep"

Path = tuple[str | int, ...]


class Wrong(NamedTuple):
    """A document that is wrong in one place; it is made when it is asked for, as few of the thousands are."""

    name: str
    make: Callable[[], Any]

    @property
    def document(self) -> Any:
        """The document."""
        return self.make()

    def text(self) -> str:
        """The document as it stands in a file."""
        import json

        return json.dumps(self.document).replace(f'"{_MARK}"', "[" * 200_000 + "]" * 200_000)

    @property
    def deep(self) -> bool:
        """Whether it can only be written, and no digest of it computed."""
        return _MARK in repr(self.document)


def wrong(document: Any, schema: type | None = None, within: Path = ()) -> Iterator[Wrong]:
    """The document, wrong in each of its fields in each way; of lists and mappings the first entry is taken.

    `schema` is the dataclass of the object at `within`; fields that the object leaves out are put there.
    """
    for path in dict.fromkeys((*_places(_at(document, within), within), *_fields(schema, document, within))):
        for name, value in (*VALUES.items(), (DEEP, _MARK)):
            yield Wrong(f"{_written(path)} {name}", functools.partial(_with, document, path, value))
        if path and isinstance(path[-1], str) and _has(document, path):
            yield Wrong(f"{_written(path)} missing", functools.partial(_without, document, path))
    if isinstance(_at(document, within), dict):
        yield Wrong(f"{_written(within)} with more", functools.partial(_with, document, (*within, "unheard_of"), 1))


def some(cases: Sequence[Wrong], count: int, seed: int) -> list[Wrong]:
    """So many, each place before any twice."""
    drawn = random.Random(seed)
    places: dict[str, list[Wrong]] = {}
    for case in cases:
        places.setdefault(case.name.split(" ")[0], []).append(case)
    for each in places.values():
        drawn.shuffle(each)
    order = list(places.values())
    drawn.shuffle(order)
    chosen: list[Wrong] = []
    while len(chosen) < min(count, len(cases)):
        for each in order:
            if each and len(chosen) < count:
                chosen.append(each.pop())
    return chosen


def _places(value: Any, path: Path) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in list(value.items())[:12]:
            yield from _places(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from _places(value[0], (*path, 0))


def _fields(schema: type | None, document: Any, within: Path) -> Iterator[Path]:
    """The fields of a dataclass, and of the dataclasses in it, whether the document has them or not."""
    if schema is None:
        return
    for name, hint in typing.get_type_hints(schema).items():
        path = (*within, name)
        yield path
        for inner in _dataclasses(hint):
            at = path
            if _has(document, at) and isinstance(_at(document, at), list) and _at(document, at):
                at = (*at, 0)
            elif typing.get_origin(hint) in (dict, Mapping) and _has(document, at) and _at(document, at):
                at = (*at, next(iter(_at(document, at))))
            if _has(document, at) and isinstance(_at(document, at), dict):
                yield from _fields(inner, document, at)


def _dataclasses(hint: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for part in typing.get_args(hint):
        yield from _dataclasses(part)


def _at(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def _has(document: Any, path: Path) -> bool:
    try:
        _at(document, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _with(document: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    _at(changed, path[:-1])[path[-1]] = copy.deepcopy(value)
    return changed


def _without(document: Any, path: Path) -> Any:
    changed = copy.deepcopy(document)
    del _at(changed, path[:-1])[path[-1]]
    return changed


def _written(path: Path) -> str:
    return ".".join(str(step).replace(" ", "_") for step in path) or "all"
