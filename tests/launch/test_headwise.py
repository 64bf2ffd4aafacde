"""The console script: it finds every command by its name, says which there are, and names itself in what is printed."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import headwise
from launch.train import describe_next_commands
from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was started as `headwise`, whose path of imports is its own."""
    monkeypatch.setenv("HEADWISE_COMMAND", "headwise")
    monkeypatch.setattr(sys, "path", [*sys.path])


def sources(root: Path) -> list[Path]:
    return [file for folder in ("transformer", "launch") for file in sorted((root / folder).rglob("*.py"))]


def test_every_command_is_found_by_its_name(root: Path) -> None:
    declaring = [file for file in sources(root) if "\nCOMMAND = Command(" in file.read_text(encoding="utf-8")]
    modules = {".".join(file.relative_to(root).with_suffix("").parts) for file in declaring}
    assert {f"launch.{name}" for name in headwise.COMMANDS} == modules
    assert {module.__name__ for module in headwise.COMMANDS.values()} == modules


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert headwise.run_command(["--help"]) == 0
    page = capsys.readouterr().out
    assert "  train                 Train a model, or resume a run that was stopped.\n" in page
    assert [line.split()[0] for line in page.splitlines() if line.startswith("  ")] == list(headwise.COMMANDS)
    assert all(len(line.split()) > 4 and line.endswith(".") for line in page.splitlines() if line.startswith("  "))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tarin"], "unknown command 'tarin': did you mean 'train'? (headwise --help lists them all)"),
        (["clusters"], "unknown command 'clusters': did you mean 'clusters."),
        (["launch.train", "--workdir=x"], "unknown command 'launch.train': did you mean 'train'?"),
        (["qqq"], "unknown command 'qqq': known: ablate, ablate_heads, "),
        ([""], "unknown command '': known: ablate, ablate_heads, "),
        (["\x1b[2J\udcff\n"], "unknown command '\\x1b[2J\\udcff\\n': known: "),
        ([], "headwise needs a command, as headwise train --config=FILE --workdir=DIR; headwise --help lists them all"),
        (["--workdir=a b", "train"], "--workdir=a b stands before the command: write headwise train '--workdir=a b'"),
        (["--steps=3"], "--steps=3 is no command, which comes first, as headwise train --steps=3; headwise --help"),
    ],
)
def test_a_command_that_there_is_not_is_refused_in_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headwise.run_command(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"error: {says}")


@pytest.mark.usefixtures("started")
def test_a_command_takes_its_own_words(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headwise.run_command(["maps", "--help"]) == 0
    assert "usage: headwise maps (--workdir=VALUE | --from_pretrained=VALUE)" in capsys.readouterr().out
    assert headwise.run_command(["maps"]) == 2
    assert "(the run directory); for example: headwise maps --workdir=" in capsys.readouterr().err
    demo = f"--config={root / 'experiments' / 'demo.py'}"
    assert headwise.run_command(["clusters.local", demo]) == 2
    assert "write it after --, as in headwise clusters.local --num_processes=2" in capsys.readouterr().err
    assert headwise.run_command(["clusters.local", "--num_processes=1", "--dry_run", "--", demo, "--workdir=x"]) == 0
    words = f"{sys.executable} -P -m launch.headwise train {demo} --workdir=x --coordinator_address="
    assert words in capsys.readouterr().out


@pytest.mark.usefixtures("started")
def test_what_is_printed_names_the_console_script(tmp_path: Path) -> None:
    config = {"task": {"name": "translation"}, "model": {"family": "lab.mine"}}
    assert describe_next_commands(Path("my run"), config) == (
        "complete; write the page of its heads: headwise maps '--workdir=my run' --trust=lab.mine\n"
        "          evaluate it again: headwise evaluate '--workdir=my run' --trust=lab.mine"
    )
    with pytest.raises(UserError, match=r"is missing; make a run with headwise train --config=FILE"):
        RunDirectory.open(tmp_path / "nothing")


def test_commands_are_named_in_one_place(root: Path) -> None:
    """Messages are built from `shell_command`: what stands in a text of the code is not what everybody has started."""
    allowed = {
        "transformer/system/command_invocation.py",
        "transformer/system/module_registry.py",  # the advice to work in a clone
    }
    named = set()
    for file in sources(root):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documents = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        said = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documents)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in said:
                named |= {file.relative_to(root).as_posix()} if "launch." in node.value else set()
    assert named == allowed
    web = [file for file in (root / "transformer").rglob("*.js") if "-m launch." in file.read_text(encoding="utf-8")]
    assert web == []


def test_the_working_directory_is_looked_in_last(root: Path, tmp_path: Path) -> None:
    for name in ("transformer", "launch", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the working directory')")
    (tmp_path / "lab_mine.py").write_text("print('mine')")
    program = "import sys\nfrom launch.headwise import run_command\nassert run_command(['maps', '--help']) == 0\n"
    program += "import lab_mine\n"
    program += "print('jax' in sys.modules)"
    words, environment = [sys.executable, "-P", "-c", program], {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, ["mine", "False"]), done.stderr
