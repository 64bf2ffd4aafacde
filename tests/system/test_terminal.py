"""What a stranger's file holds is shown on a terminal and never obeyed; pipes and files get it as it is."""

import io
import sys

import pytest

from launch import cli
from launch.command import Arguments, Command
from transformer.system.terminal import (
    escape_control_characters,
    escape_terminal_output,
    format_size,
    is_watched,
    raw_terminal_stream,
)
from transformer.training.writers.console import ConsoleWriter
from transformer.training.writers.writer import Metrics, Progress, Samples

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


@pytest.mark.parametrize(
    ("num_bytes", "short", "exact"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1_000, "1.0 kB", "1.000 kB"),
        (20_480, "20 kB", "20.48 kB"),
        (3_458_816, "3.5 MB", "3.459 MB"),
        (999_800_000, "1.0 GB", "1.000 GB"),
        (125_400_000_000, "125 GB", "125.4 GB"),
        (2_778_800_000_000, "2.8 TB", "2.779 TB"),
        (5_000_000_000_000_000, "5,000 TB", "5,000 TB"),
    ],
)
def test_a_size_keeps_its_digits_whatever_its_unit(num_bytes: int, short: str, exact: str) -> None:
    assert format_size(num_bytes) == short
    assert format_size(num_bytes, 4) == exact


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_prints_names_to_a_terminal_as_text(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, stream, screen)

    def main(arguments: object) -> None:
        print(f"{ESCAPES}\nsecond\tline", file=getattr(sys, stream))

    assert cli.run(Command("x", "X.", "x", Arguments), main, []) == 0
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

    def main(arguments: object) -> None:
        console = ConsoleWriter(3, sys.stdout)
        console.write(Progress(1, 3))
        console.write(Samples(1, "validation", [{"source": ESCAPES, "output": "b", "target": "b"}]))
        console.close()

    with escape_terminal_output():  # as headwise does around every command
        assert raw_terminal_stream(sys.stdout) is screen
        assert cli.run(Command("x", "X.", "x", Arguments), main, []) == 0
    shown = screen.getvalue()
    assert SHOWN in shown
    assert "title\x07" not in shown
    assert "\x1b[" in shown  # of the bar itself
    assert r"\x1b[" not in shown


def test_mpirun_is_no_terminal_though_its_processes_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_watched(Screen())
    assert not is_watched(io.StringIO())
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert not is_watched(Screen())
    console = ConsoleWriter(3, screen := Screen())
    console.write(Progress(1, 3))
    console.write(Metrics(1, "train", {"loss": 2.0}))
    console.close()
    assert screen.getvalue().split() == ["step", "1/3", "train", "loss", "2"]
