"""`launch.runs`: what is printed where, mistakes in one line, commands that run as printed, the page that is served."""

import importlib
import io
import json
import shlex
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from launch import cli, runs
from launch.flag_parsing import parse_arguments
from tests.studies.written_runs import write_run
from transformer.maps.report import report_server

NAME = """it's "my" runs"""


def line(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "split": "validation", "loss": loss}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / NAME
    write_run(folder / "a", {"seed": 1}, lines=[line(1000, 2.0)])
    write_run(folder / "b", {"seed": 2}, lines=[line(500, 1.0)])
    return folder


def call(*words: str) -> int:
    return cli.run(runs.COMMAND, runs.main, words)


def test_lines_go_to_the_output_and_the_page_and_hints_to_the_errors(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(f"--workdir={folder}", "--sort=validation/loss", "--group=config.model.width") == 0
    said = capsys.readouterr()
    listed, groups = said.out.split("\n\n")
    cells = [text.split("\t") for text in listed.splitlines()]
    assert [row[0] for row in cells] == ["run", "b", "a"]
    assert [row[cells[0].index("config.seed")] for row in cells[1:]] == ["2", "1"]
    assert groups.splitlines() == ["config.model.width\truns\tvalidation/loss", "128\t2\t1.5 ± 0.71"]
    assert f"Open this page in a browser: {folder.resolve()}/runs.html\n" in said.err
    assert (folder / "runs.html").read_text().startswith("<!doctype html>")


def test_a_terminal_gets_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    terminal.fileno = lambda: 1  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    assert call(f"--workdir={folder}") == 0
    text = terminal.getvalue()
    assert "\t" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "finished" in text


def test_json_is_printed_alone_and_writes_no_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"--workdir={folder}", "--json", "--filter=state=stopped") == 0
    said = capsys.readouterr()
    assert [run["name"] for run in json.loads(said.out)["runs"]] == ["b"]
    assert said.err == ""
    assert not (folder / "runs.html").exists()


def test_commands_that_are_printed_run_as_they_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"--workdir={folder}", "--sort=-name") == 0
    (command,) = [text for text in capsys.readouterr().err.splitlines() if "python -m launch." in text]
    # b, which is listed first, has stopped: a is finished.
    module, *words = shlex.split(command.partition("python -m ")[2])
    arguments = parse_arguments(importlib.import_module(module).COMMAND, words)
    assert (module, arguments.workdir) == ("launch.maps", str(folder / "a"))
    (folder / "empty").mkdir()
    assert call(f"--workdir={folder / 'empty'}") == 2
    command = capsys.readouterr().err.partition("make one with ")[2]
    module, *words = shlex.split(command.partition("python -m ")[2])
    arguments = parse_arguments(importlib.import_module(module).COMMAND, words)
    assert (module, arguments.workdir) == ("launch.train", str(folder / "empty" / "demo"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "error: runs needs --workdir=VALUE"),
        (("--workdir=absent",), "error: --workdir=absent is missing: name a folder with runs"),
        (("--workdir=FOLDER", "--sort=los"), "error: unknown key 'los'"),
        (("--workdir=FOLDER", "--filter=state"), "is no condition: write KEY=VALUE"),
        (("--workdir=FOLDER", "--group=config.sed"), "did you mean 'config.seed'?"),
        (("--workdir=FOLDER", "--metric=loss"), "--metric=loss is no metric: write split/name"),
        (("--workdir=FOLDER", "--metric=validation/los"), "no run has logged it: did you mean 'validation/loss'?"),
        (("--workdir=FOLDER", "--direction=maximize"), "--direction=maximize needs --metric"),
        (("--workdir=FOLDER", "--json", "--serve"), "--serve"),
        (("--workdir=FOLDER", "--port=3"), "--port=3 needs --serve"),
    ],
)
def test_mistakes_are_told_in_one_line(
    folder: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*(word.replace("FOLDER", str(folder)) for word in words)) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err


def test_a_direction_that_is_given_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "a" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line(1001, 1.9)) + "\n")
    words = (f"--workdir={folder}", "--metric=validation/loss", "--json", "--filter=name=a")
    for direction, best in ((), 1.9), (("--direction=maximize",), 2.0):
        assert call(*words, *direction) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert run["metrics"]["validation/loss"]["best"]["value"] == best


def test_a_folder_that_cannot_be_written_is_listed_all_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "runs.html").mkdir()
    assert call(f"--workdir={folder}") == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 3
    assert "the page is not written: " in said.err


def until(true: Any) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_served_page_follows_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_page, urls = report_server.serve_page, []

    class StoppedError(Exception):
        """What ends the server of this test."""

    def serve(source: report_server.PageSource, **settings: Any) -> None:
        def read_version() -> Any:
            if stopped:
                raise StoppedError
            return source.read_version()

        serve_page(source._replace(read_version=read_version), port=0, announce=urls.append, pause=0.02, quiet=0.02)

    stopped: list[bool] = []
    monkeypatch.setattr(report_server, "serve_page", serve)
    arguments = parse_arguments(runs.COMMAND, [f"--workdir={tmp_path}", "--serve"])

    def run() -> None:
        with pytest.raises(StoppedError):
            runs.main(arguments)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: urls)

    def page() -> str:
        return urllib.request.urlopen(urls[0]).read().decode()  # noqa: S310

    until(lambda: "the first run in" in page())
    write_run(tmp_path / "first", lines=[line(1, 0.123456)])
    until(lambda: "0.12346" in page())
    with (tmp_path / "first" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line(2, 0.654321)) + "\n")
    until(lambda: "0.65432" in page())
    assert "following the runs" in page()
    stopped.append(True)
    thread.join(timeout=60)
    assert not thread.is_alive()
