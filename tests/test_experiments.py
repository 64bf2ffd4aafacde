"""Every experiment's config is whole, and its docstring says how to run it."""

import ast
from pathlib import Path

import pytest

from launch.config_files import load_config
from transformer.training.experiment import resolve

CHECKOUT = Path(__file__).resolve().parents[1]
FILES = sorted(path for path in (CHECKOUT / "experiments").rglob("*.py") if path.name != "__init__.py")
ARGUMENTS = {"wmt14.py": (":base", ":big")}


def test_there_are_experiments() -> None:
    assert len(FILES) >= 8


@pytest.mark.parametrize(
    "name",
    [f"{file.relative_to(CHECKOUT)}{argument}" for file in FILES for argument in ARGUMENTS.get(file.name, ("",))],
)
def test_a_config_resolves(name: str) -> None:
    experiment = resolve(load_config(str(CHECKOUT / name)).to_dict())
    assert resolve(experiment.to_config()).to_config() == experiment.to_config()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_docstring_gives_the_command_and_the_time_or_the_machine(file: Path) -> None:
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    assert f"python -m launch.train --config={file.relative_to(CHECKOUT)}" in said
    assert any(word in said for word in ("minute", "hour", "accelerator", "GPU", "TPU"))
