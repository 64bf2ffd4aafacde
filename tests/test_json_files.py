"""JSON of strangers: whatever is wrong with it is one line that names the file."""

from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.json_files import DEEPEST, parse, read_object, read_value


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1]", "is no JSON object but a list"),
        (b"null", "is no JSON object but a NoneType"),
        (b'{"a"', "is not JSON"),
        (b"\xff", "is not JSON: 'utf-8' codec"),
        (b"[" * 100_000, "stand too deep"),
        (b"[" * 500 + b"]" * 500, f"stand more than {DEEPEST} deep"),
        (b"1" * 5000, "is not JSON: Exceeds the limit"),
    ],
)
def test_what_is_no_object_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_object(tmp_path / "x.json")
    assert says in str(caught.value)
    assert "x.json" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no x\.json"):
        read_value(tmp_path / "x.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_value(tmp_path)


def test_values_come_back_as_they_are(tmp_path: Path) -> None:
    assert parse('{"a": [1, {"b": null}]}', "x") == {"a": [1, {"b": None}]}
    whole = b"[" * DEEPEST + b"]" * DEEPEST
    assert parse(whole, "x")
