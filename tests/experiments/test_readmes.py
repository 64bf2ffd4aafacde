"""The README of each project: its configs, files and keys, and the pages of docs/ collected from them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.config_files import load_config
from tests.experiments.test_configs import CHECKOUT, FILES, arguments_of
from transformer.overrides import leaves
from transformer.training.config import schema_of

PROJECTS = sorted(path for path in (CHECKOUT / "experiments").iterdir() if (path / "__init__.py").is_file())
KEY_TABLE = re.compile(r"^\| key \| values \|\n\| --- \| --- \|\n((?:\|.*\n)+)", re.MULTILINE)


def readme(project: Path) -> str:
    return (project / "README.md").read_text(encoding="utf-8")


def exports(file: Path) -> bool:
    """Whether a module exports a TASK or a FAMILY."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    names = [
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    return file not in FILES and bool({"TASK", "FAMILY"} & set(names))


def unnamed(project: Path, page: str) -> list[str]:
    """The files, arguments, tasks and families of a project that its README does not name."""
    missing = []
    for file in sorted(project.glob("*.py")):
        if file.name != "__init__.py" and f"]({file.name})" not in page:
            missing.append(file.name)
        if file in FILES:
            arguments = [argument for argument in arguments_of(file) if argument]
            missing += [f"{file.name}{each}" for each in arguments if not re.search(rf"{re.escape(each)}`", page)]
        if exports(file) and f"`experiments.{project.name}.{file.stem}`" not in page:
            missing.append(f"experiments.{project.name}.{file.stem}")
    return missing


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_a_readme_names_every_file_argument_task_and_family(project: Path) -> None:
    assert unnamed(project, readme(project)) == []


def test_what_a_readme_does_not_name_is_found() -> None:
    project = CHECKOUT / "experiments" / "captioning"
    page = "[model.py](model.py) is `experiments.captioning.model`. [captions.py](captions.py) [data.py](data.py)"
    assert unnamed(project, page) == ["metrics.py", "task.py", "experiments.captioning.task"]
    sagan = CHECKOUT / "experiments" / "sagan"
    assert "sagan.py:judge" in unnamed(sagan, readme(sagan).replace(":judge`", "`"))


def keys_of(project: Path) -> set[str]:
    """Every key of the configs of a project, without "model." and "task."."""
    files = [file for file in FILES if file.parent == project]
    names = [f"{file}{argument}" for file in files for argument in arguments_of(file)]
    keys = {key for name in names for key in leaves(schema_of(load_config(name).to_dict()))}
    return {key.removeprefix("model.").removeprefix("task.") for key in keys}


def said_keys(page: str) -> Iterator[str]:
    """The keys that the tables of keys of a README explain; `.strides` goes on with the group of the key before."""
    for table in KEY_TABLE.findall(page):
        for row in table.splitlines():
            group = ""
            for key in re.findall(r"`([\w.]+)`", row.split(" | ")[0]):
                yield group + key if key.startswith(".") else key
                group = key.rpartition(".")[0] if not key.startswith(".") else group


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_the_keys_that_a_readme_explains_exist(project: Path) -> None:
    said = set(said_keys(readme(project)))
    assert said - (keys_of(project) if said else set()) == set()


def test_a_key_that_is_none_is_found() -> None:
    table = "| key | values |\n| --- | --- |\n| `encoder.channels`, `.strids` | x |\n| `looking` | y |\n"
    assert list(said_keys(table)) == ["encoder.channels", "encoder.strids", "looking"]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_a_readme_links_every_record_of_its_project(project: Path) -> None:
    page = readme(project)
    assert [
        record.name for record in sorted(project.glob("results/*.md")) if f"](results/{record.name})" not in page
    ] == []


@pytest.mark.parametrize("page", ["results", "experiments"])
def test_the_collected_pages_are_up_to_date(page: str) -> None:
    written = subprocess.run(
        [sys.executable, "-m", "launch.projects", f"--page={page}"], cwd=CHECKOUT, capture_output=True, check=True
    ).stdout.decode()
    shown = (CHECKOUT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert written == shown, f"docs/{page}.md is out of date: run make docs"
