"""Archives of published sets: which members are read, and damage wherever it lies."""

import io
import re
import zipfile
from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.data.datasets.local_files import read_members, reraise_archive_errors

NAME = re.compile(r"(\w+)\.txt")


def archive(content: bytes = b"words " * 9) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("b.txt", "a.txt", "notes.md"):
            file.writestr(name, content)
    return written.getvalue()


def test_members_whose_names_match_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    path.write_bytes(archive(b"words"))
    members = [(match[1], where, content) for match, where, content in read_members(path, NAME, 5)]
    assert members == [(name, f"{path}: {name}.txt", b"words") for name in ("a", "b")]
    with pytest.raises(UserError, match=re.escape(f"{path}: a.txt has 5 bytes, where 4 are the most")):
        list(read_members(path, NAME, 4))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (-22, 0xFF),  # of the mark of the directory's end
        (30 + len("b.txt"), 0xFF),  # where the packed bytes begin: no kind of block
        (14, 0xFF),  # of the sum that is checked
        (6, 0x01),  # packed with a password
        (8, 0x63),  # packed in an unknown way
    ],
)
def test_damage_is_told_in_one_line_wherever_it_lies(tmp_path: Path, place: int, value: int) -> None:
    path = tmp_path / "set.zip"
    damaged = bytearray(archive())
    damaged[place] ^= value
    # What a member's own head says, the directory says again.
    directory = damaged.index(b"PK\x01\x02")
    if place in (6, 8, 14):
        damaged[directory + place + 2] = damaged[place]
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r"set\.zip cannot be read as an archive: ."):
        list(read_members(path, NAME, 100))


def test_nothing_and_an_absent_file_are_no_archives(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    with pytest.raises(UserError, match="cannot be read as an archive"):
        list(read_members(path, NAME, 100))
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as an archive"):
        list(read_members(path, NAME, 100))


def test_what_a_reader_refuses_stays_as_it_was_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^no such digit$"), reraise_archive_errors(tmp_path / "set.zip"):
        raise UserError("no such digit")
