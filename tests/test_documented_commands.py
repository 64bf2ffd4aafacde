"""Every command of a page and of a config's docstring names a launcher, a config and flags that exist."""

import ast
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from launch.flag_parsing import parse_arguments
from tests.experiments.variants import FILES
from tests.markdown import PAGES, ROOT, commands, commands_of
from transformer.config import UserError

# These have files of their own, which their own tests write.
OTHERS = tuple(ROOT / "docs" / "guides" / name for name in ("recipes.md", "your_own_model.md", "your_own_task.md"))
# What stands for the reader's own config.
PLACEHOLDERS = ("--config=...", "--config=FILE", "--config=FILE.py")
PAGES_OF_COMMANDS = [page for page in PAGES if page not in OTHERS and commands(page.read_text(encoding="utf-8"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the checkout's experiments, and with runs that commands begin with."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for run in (
        "attention",
        "articles",
        "documentation",
        "gpt1",
        "gpt1_lstm",
        "gpt2",
        "classifier",
        "questions",
    ):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "config.json").write_text(json.dumps({"name": run}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(module: str, words: Sequence[str]) -> None:
    """Parse a command as its launcher does, and that behind -- as launch.train does.

    Raises:
        UserError: for a config, a key, a flag or a value that does not exist.
        ModuleNotFoundError: for a launcher that does not exist.
    """
    imported = importlib.import_module(module)
    if hasattr(imported, "__path__"):  # of a package, its main module is the launcher
        imported = importlib.import_module(f"{module}.__main__")
    command = imported.COMMAND
    if "--help" in words:
        return
    if "--" in words:
        behind = words.index("--")
        parse_arguments(command, words[:behind])
        return check("launch.train", words[behind + 1 :])
    words = ["--config=experiments/demo.py" if word in PLACEHOLDERS else word for word in words]
    if "..." in words:
        words = ["--workdir=runs/new", *(word for word in words if word != "...")]
    if command.takes_config and not command.reads_run and not any(word.startswith("--config=") for word in words):
        words = ["--config=experiments/demo.py", *words]
    arguments = parse_arguments(command, words)
    if command.takes_config and not command.reads_run:
        assert arguments.config["steps"] > 0  # every key is one of the schema


@pytest.mark.parametrize("page", PAGES_OF_COMMANDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_its_launcher_takes(page: Path, folder: Path) -> None:
    for module, words in commands(page.read_text(encoding="utf-8")):
        check(module, words)


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_docstring_is_one_that_its_launcher_takes(file: Path, folder: Path) -> None:
    found = commands_of(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")
    assert found
    for module, words in found:
        check(module, words)


@pytest.mark.parametrize(
    "text",
    [
        "python -m launch.trian --config=experiments/demo.py",
        "python -m launch.train --config=experiments/gone.py --workdir=x",
        "python -m launch.train --config=experiments/demo.py --workdri=x",
        "python -m launch.train --config=experiments/demo.py --workdir=x --config.model.haeds=2",
        "python -m launch.train --config=experiments/sagan/configs/sagan.py:nobody --workdir=x",
        "python -m launch.clusters.local --num_processes=2 -- --config=experiments/gone.py --workdir=x",
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, folder: Path) -> None:
    with pytest.raises((UserError, ModuleNotFoundError)):
        check(*commands(f"```\n{text}\n```\n")[0])
