"""Where launch.generate takes its texts from."""

import io
from pathlib import Path

import pytest

from launch import cli
from launch.command import Arguments, Command
from launch.flag_parsing import parse_arguments
from launch.generate import COMMAND, arrange_answers_by_line, print_as_utf8, read_texts
from transformer.config import UserError


def given(*words: str) -> list[str]:
    return read_texts(parse_arguments(COMMAND, ["--workdir=run", *words]))


def typed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Standard input as in a C locale, where what is no UTF-8 passes as surrogates."""
    stream = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", stream)


def test_a_file_is_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("sea => mer\nnight => nuit\ncheese =>\n", encoding="utf-8")
    assert given(f"--prompt_file={file}") == ["sea => mer\nnight => nuit\ncheese =>"]
    assert given("--text=one") == ["one"]
    typed(monkeypatch, "one\nzwölf\r\n".encode())
    assert given() == ["one", "zwölf"]


def test_answers_are_printed_as_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(content, encoding="ascii"))

    def main(arguments: object) -> None:
        print_as_utf8()
        print("zwölf")

    assert cli.run(Command("x", "X.", "x", Arguments), main, []) == 0
    assert content.getvalue() == "zwölf\n".encode()


def test_a_text_and_a_file_and_what_is_no_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompt.txt"
    with pytest.raises(UserError, match=r"--prompt_file=.*prompt\.txt cannot be read"):
        given(f"--prompt_file={file}")
    file.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match="is not UTF-8"):
        given(f"--prompt_file={file}")
    file.write_text(" \n\n")
    with pytest.raises(UserError, match=r"--prompt_file=.*prompt\.txt is empty"):
        given(f"--prompt_file={file}")
    with pytest.raises(UserError, match="--text has no effect on --prompt_file, as it holds the text"):
        given(f"--prompt_file={file}", "--text=one")
    typed(monkeypatch, b"caf\xe9\n")
    with pytest.raises(UserError, match=r"^standard input is not UTF-8: .*; convert it, for example with iconv"):
        given()


def test_an_answer_is_one_line_whatever_ends_lines_it_has() -> None:
    answers = ["one\ntwo", "a\rb", "c\r\nd"]
    lines = arrange_answers_by_line(["x", "", "y", "z"], answers)
    assert lines == [r"one\ntwo", "", r"a\rb", r"c\r\nd"]
