"""JSON of strangers: whatever is wrong with it is one line that names the file."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

from transformer.config import MatchesPattern, NonNegativeInt, UserError
from transformer.storage.json_reading import (
    MAX_NESTING,
    parse_dataclass,
    parse_json,
    read_dataclass,
    read_json,
    read_json_object,
    read_regular_file,
)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1]", "is no JSON object but a list"),
        (b"null", "is no JSON object but a NoneType"),
        (b'{"a"', "is not JSON"),
        (b"\xff", "is not JSON: 'utf-8' codec"),
        (b"[" * 100_000, "stand too deep"),
        (b'{"a": ' + b"[" * MAX_NESTING + b"]" * MAX_NESTING + b"}", f"stand more than {MAX_NESTING} deep"),
        (b"[" * 500 + b"]" * 500, f"stand more than {MAX_NESTING} deep"),
        (b"1" * 5000, "is not JSON: Exceeds the limit"),
        (b'{"a": [%s]}' % (b"1" * 41), "an integer of more than 40 digits"),
        (b'{"a": "\\ud800"}', "half a surrogate pair"),
        (b'{"seed": 1, "steps": 2, "seed": 3}', "has the key 'seed' twice in one object"),
        (b'{"a": [{"b": 1, "b": 1}]}', "has the key 'b' twice in one object"),
    ],
)
def test_what_is_no_object_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_json_object(tmp_path / "x.json")
    assert says in str(caught.value)
    assert "x.json" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no x\.json"):
        read_json(tmp_path / "x.json")
    with pytest.raises(UserError, match="is no regular file, but a folder: it is not read"):
        read_json(tmp_path)


def test_values_come_back_as_they_are(tmp_path: Path) -> None:
    assert parse_json('{"a": [1, {"b": null}]}', "x") == {"a": [1, {"b": None}]}
    for inside in (b"", b"1"):
        assert parse_json(b"[" * MAX_NESTING + inside + b"]" * MAX_NESTING, "x")


class Pair(NamedTuple):
    """Two values, a list of two in a file."""

    number: NonNegativeInt
    name: str


@dataclasses.dataclass(frozen=True)
class Inner:
    """What the lists of a file hold."""

    digest: Annotated[str, MatchesPattern("[0-9a-f]{4}", "4 hexadecimal digits")]


@dataclasses.dataclass(frozen=True)
class Outer:
    """A file."""

    inner: tuple[Inner, ...]
    pairs: Mapping[str, Pair]
    sides: tuple[int, int] = (1, 1)
    free: Any = None


RIGHT = {"inner": [{"digest": "00ff"}], "pairs": {"a": [1, "x"]}, "free": {"anything": [1]}}


def test_a_file_comes_back_as_its_dataclass(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(str(RIGHT).replace("'", '"'))
    assert read_dataclass(Outer, tmp_path / "x.json") == Outer(
        (Inner("00ff"),), {"a": Pair(1, "x")}, free={"anything": [1]}
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inner": 3}, "inner=3 is a int"),
        ({"inner": [3]}, r"inner\[0\]=3 is a int; it must be a Inner"),
        ({"inner": [{"digest": "00FF"}]}, r"inner\[0\]\.digest='00FF' must be 4 hexadecimal digits"),
        ({"inner": [{"digest": "00ff\n"}]}, r"digest='00ff\\n' must be"),
        ({"inner": [{}]}, r"inner\[0\]\.digest is missing"),
        ({"pairs": []}, r"pairs=\[\] is a list"),
        ({"pairs": {"a": [1]}}, r"pairs\['a'\]=\[1\] has 1 values; it must have 2"),
        ({"pairs": {"a": [-1, "x"]}}, r"pairs\['a'\]\[0\]=-1 must be at least 0"),
        ({"pairs": {"a": {"number": 1}}}, r"pairs\['a'\]=\{'number': 1\} is a dict"),
        ({"sides": [1, 2, 3]}, r"sides=\[1, 2, 3\] has 3 values; it must have 2"),
        ({"sides": [1, True]}, r"sides\[1\]=True is a bool"),
        ({"more": 1}, "unknown key more"),
    ],
)
def test_what_is_wrong_with_a_field_is_said(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"^x.json is not usable: .*{says}"):
        parse_dataclass(Outer, {**RIGHT, **change}, "x.json")


def test_only_regular_files_of_a_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UserError, match="has 5 bytes; at most 4 are read"):
        read_regular_file(tmp_path / "file", 4)
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises((UserError, IsADirectoryError), match=r"no regular file|directory"):
            read_regular_file(path)
