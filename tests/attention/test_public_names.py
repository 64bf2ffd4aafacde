"""The public names of attention: all from the package, each the thing itself, whatever is imported in which order."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import transformer.attention

SUBMODULES = sorted(module.name for module in pkgutil.iter_modules(transformer.attention.__path__))
STAGES = {"attend", "prepare_keys", "score", "normalize", "weighted_sum", "capture_weights", "dropout"}
# Each name of the package must be the function or class of that name, once these modules are there too.
PROGRAM = """
import importlib, inspect
for name in {first}: importlib.import_module(f"transformer.attention.{{name}}")
import transformer.attention as attention
for name in {then}: importlib.import_module(f"transformer.attention.{{name}}")
print([name for name in attention.__all__ if inspect.ismodule(getattr(attention, name))])
print([name for name in {stages} if not inspect.isfunction(getattr(attention, name))])
"""


def shadows(first: list[str], then: list[str], root: Path) -> str:
    program = PROGRAM.format(first=first, then=then, stages=sorted(STAGES))
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("first", "then"),
    [([], SUBMODULES), (SUBMODULES[::-1], [])],
    ids=["the package first", "its submodules first, the last of them first"],
)
def test_a_public_name_is_never_a_submodule(first: list[str], then: list[str], root: Path) -> None:
    assert shadows(first, then, root) == "[]\n[]\n"


def test_no_submodule_has_a_public_name() -> None:
    assert set(SUBMODULES) & set(transformer.attention.__all__) == set()
    assert set(transformer.attention.__all__) >= STAGES


def test_every_name_that_the_page_imports_is_public(root: Path) -> None:
    guides = root / "docs" / "guides"
    page = (guides / "attention.md").read_text() + (guides / "attention_capture.md").read_text()
    lines = re.findall(r"^from (transformer\.attention[\w.]*) import (\([^)]*\)|.*)$", page, re.MULTILINE)
    assert {module for module, _ in lines} == {"transformer.attention"}
    assert {name for _, names in lines for name in re.findall(r"\w+", names)} <= set(transformer.attention.__all__)
