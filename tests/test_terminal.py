"""What a stranger's file holds is shown on a terminal and never obeyed; pipes and files get it as it is."""

import io
import sys

import pytest

from launch import cli
from launch.command import Command
from transformer.terminal import escape_control_characters, escape_terminal_output, raw_terminal_stream
from transformer.training.writers.console import ConsoleWriter

ESCAPES = "a\x1b]0;title\x07b\r\x9bc\u202ed"
SHOWN = r"a\x1b]0;title\x07b\r\x9bc\u202ed"


class Screen(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True


def test_control_characters_are_written_out_and_letters_stay() -> None:
    assert escape_control_characters(ESCAPES) == SHOWN
    assert escape_control_characters("größer 漢字 €", "") == "größer 漢字 €"
    assert escape_control_characters("a\tb\n", "\n\t") == "a\tb\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_prints_names_to_a_terminal_as_text(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, stream, screen)

    def main(arguments: object) -> None:
        print(f"{ESCAPES}\nsecond\tline", file=getattr(sys, stream))

    assert cli.run(Command("x", "X.", "x", ()), main, []) == 0
    assert screen.getvalue() == f"{SHOWN}\nsecond\tline\n"
    assert getattr(sys, stream) is screen


def test_a_pipe_gets_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    with escape_terminal_output():
        print(ESCAPES)
    assert pipe.getvalue() == f"{ESCAPES}\n"


def test_the_bar_still_draws_and_samples_beside_it_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    with escape_terminal_output():
        assert raw_terminal_stream(sys.stdout) is screen
        console = ConsoleWriter(3, sys.stdout)
        console.report_progress(1, 3)
        console.write_samples(1, "validation", [{"source": ESCAPES, "output": "b", "target": "b"}])
        console.close()
    shown = screen.getvalue()
    assert SHOWN in shown
    assert "title\x07" not in shown
    assert "\x1b[" in shown  # of the bar itself
