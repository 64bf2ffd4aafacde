"""`launch.maps`: sizes, mistakes told in one line, the page, and the page that is served until Ctrl-C."""

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import cli, maps
from tests.interpret.conftest import folders  # noqa: F401  a fixture
from tests.maps.conftest import write_long_run, write_run
from transformer.config import UserError


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "demo", steps=(100, 200)).directory


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a call with a mistake prints."""
    assert cli.run(maps.COMMAND, maps.main, words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("25MB", 25_000_000),
        ("500kB", 500_000),
        ("500KB", 500_000),
        ("1GB", 1_000_000_000),
        ("1.5 mb", 1_500_000),
        ("25", 25_000_000),
        ("0.5", 500_000),
    ],
)
def test_a_budget_is_a_size(text, size):
    assert maps.parse_size(text) == size


NO_SIZES = (
    "",
    "9" * 47 + "GB",
    "9" * 400 + "GB",
    "MB",
    "25MiB",
    "-1MB",
    "1e3MB",
    "nan",
    "inf",
    "0",
    "0.0000001",
    "25 MB big",
    "²MB",
)


@pytest.mark.parametrize("text", NO_SIZES)
def test_what_is_no_size_is_refused_in_one_line(text, capsys, directory):
    with pytest.raises(UserError, match="is not a size: write 25MB, 500kB or 1GB; a bare number is megabytes"):
        maps.parse_size(text)
    assert "--max_page_size=" in refusal(capsys, f"--workdir={directory}", f"--max_page_size={text}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workdir=RUN", "--port=8000"), "--port=8000 needs --serve: add --serve, or omit --port"),
        (("--workdir=RUN", "--compare_to=RUN"), "is --workdir itself: pass another run"),
        (("--workdir=RUN", "--compare_to=RUN/maps"), "is not a run directory: it has no config.json"),
        (("--workdir=RUN/maps",), "is not a run directory"),
        (("--workdir=RUN", "--max_page_size=1kB"), "too small"),
        (("--workdir=RUN", "--serve", "--port=99999"), "port=99999 cannot be used"),
        (("--workdir=RUN", "--serve=yes"), "--serve"),
        (
            ("--from_pretrained=RUN",),
            "--from_pretrained=RUN needs --text, as it is read instead of a run",
        ),
        (
            ("--from_pretrained=RUN", "--workdir=RUN", "--text=a"),
            "--workdir has no effect on --from_pretrained, as it is read instead of a run",
        ),
        (("--workdir=RUN", "--target_text=a"), "--target_text=a needs --text"),
        (("--workdir=RUN", "--output=a"), "--output=a needs --text"),
        (("--workdir=RUN", "--query_key_vectors"), "--query_key_vectors needs --text"),
        (("--workdir=RUN", "--text=a", "--serve"), "--serve has no effect on --text: omit one of them"),
        (("--workdir=RUN", "--text=a", "--compare_to=b"), "--compare_to has no effect on --text: omit one of them"),
        (
            ("--from_pretrained=nowhere", "--text=a"),
            "nowhere is no folder with a config.json: name one that has, a run or a published model",
        ),
        ((), "maps needs --workdir=VALUE"),
    ],
)
def test_mistakes_are_told_in_one_line(words, says, capsys, directory):
    run = str(directory)
    assert says.replace("RUN", run) in refusal(capsys, *(word.replace("RUN", run) for word in words))


@pytest.mark.slow
def test_a_text_is_read_by_a_published_model(folders, capsys, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    words = (f"--from_pretrained={folders['t5']}", "--text=the fox", "--target_text=der Fuchs")
    for number in (1, 2):
        assert cli.run(maps.COMMAND, maps.main, words) == 0
        page = tmp_path / f"tiny-t5-{number:04d}.html"
        assert capsys.readouterr().out == f"Open this page in a browser: {page}\n"
        assert page.is_file()
    assert "der Fuchs" in page.read_text()
    assert "target='x' is for models that translate" in refusal(
        capsys, f"--from_pretrained={folders['bert']}", "--text=the", "--target_text=x"
    )
    absent = refusal(capsys, f"--from_pretrained={folders['bert']}", "--text=the", "--output=absent/page.html")
    assert "page=" in absent
    assert "cannot be written" in absent


def test_a_taken_port_is_told_in_one_line(capsys, directory):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port={port} cannot be used" in refusal(capsys, f"--workdir={directory}", "--serve", f"--port={port}")


def test_it_writes_the_page(capsys, directory):
    assert cli.run(maps.COMMAND, maps.main, [f"--workdir={directory}", "--max_page_size=2MB"]) == 0
    assert str(directory / "report.html") in capsys.readouterr().out
    page = (directory / "report.html").read_text()
    assert len(page.encode()) <= 2_000_000
    # A file asks for nothing and follows nothing.
    assert "connect-src" not in page
    assert "fetch" not in page
    assert "data-version" not in page.partition("<body")[0]


def test_a_branch_is_compared_with_its_parent_while_that_is_there_and_comparable(capsys, directory, tmp_path):
    parent, branch = tmp_path / "parent", write_run(tmp_path / "branch", steps=(200,), seed=1).directory
    shutil.copytree(directory, parent)
    starts = json.loads((branch / "environment.json").read_text())
    starts[-1]["branched_from"] = {
        "run": str(parent),
        "step": 100,
        "overrides": {"seed": 2},
        "left_out_batches": [7, 9],
    }
    (branch / "environment.json").write_text(json.dumps(starts))

    def write() -> tuple[str, str, str]:
        assert cli.run(maps.COMMAND, maps.main, [f"--workdir={branch}"]) == 0
        said = capsys.readouterr()
        return said.out, said.err, (branch / "report.html").read_text()

    out, err, page = write()
    assert (f"compared with {parent}, which it was branched off\n" in out, err) == (True, "")
    assert f"{parent} at step 100: config.seed=2, without batches 7 to 8" in page
    assert '"otherRun": null' not in page
    shutil.rmtree(parent)
    write_long_run(parent)
    out, err, page = write()
    assert err.startswith(f"not compared with {parent}, which it was branched off: ")
    assert "compared with" not in out
    shutil.rmtree(parent)
    out, err, page = write()
    assert ("compared with" in out, err) == (False, "")


def test_ctrl_c_ends_the_server_quietly(directory, tmp_path, root):
    run = tmp_path / "run"
    shutil.copytree(directory, run)
    command = [sys.executable, "-m", "launch.maps", f"--workdir={run}", "--serve", "--port=0"]
    # Who starts the tests in the background may have told them, and so their children, to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            port = int(told.partition("http://127.0.0.1:")[2].partition("/")[0])
            page = until_page(port)
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, complaints) == (0, "")
    assert "connect-src 'self'" in page
    assert "fetch" in page
    # What is followed is no file: the run's own page stays as it was.
    assert (run / "report.html").exists() == (directory / "report.html").exists()


SERVING = """
import os, sys
from pathlib import Path
from transformer.training.writers.live_page import LivePageWriter
from transformer.training.writers.writer import ProbeMaps
page = LivePageWriter(Path(sys.argv[1]))
page.write(ProbeMaps(0, {}))  # of a model without attention: nothing to serve
page.write(ProbeMaps(0, {"a site": None}))
page.write(ProbeMaps(1, {"a site": None}))
sys.stdin.read()
page.close() if sys.argv[2] == "close" else os._exit(1)
"""


@pytest.mark.parametrize("end", ["close", "killed"])
def test_a_training_run_serves_its_page_until_it_ends(end, directory, root):
    command = [sys.executable, "-c", SERVING, str(directory), end]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().partition("http://127.0.0.1:")[2].partition("/")[0])
            assert "connect-src 'self'" in until_page(port)
            # Until both processes have ended the pipe stays open.
            assert process.communicate("", timeout=60) == ("", None)
        finally:
            process.kill()
    with pytest.raises(ConnectionRefusedError):
        until_page(port)


def until_page(port: int) -> str:
    """The page, once it is no longer the one that waits."""
    for _ in range(600):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/")
        text = connection.getresponse().read().decode()
        if "refresh" not in text[:1000]:
            return text
        time.sleep(0.1)
    raise AssertionError("the page did not come")
