"""The README of each project: its configs, files and keys, and the pages of docs/ collected from them."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from docs.generate import TOPICS, generated_pages
from launch.config_files import load_config
from tests.experiments.variants import CHECKOUT, FILES, arguments_of
from transformer.config import flatten_config
from transformer.overrides import value_keys
from transformer.training.config import config_schema

PROJECTS = sorted(path for path in (CHECKOUT / "experiments").iterdir() if (path / "__init__.py").is_file())
KEY_TABLE = re.compile(r"^\| key \| meaning \|\n\| --- \| --- \|\n((?:\|.*\n)+)", re.MULTILINE)


def project_of(file: Path) -> Path:
    """The project of a config file, which lies in its folder `configs`."""
    return file.parent.parent


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
    for file in sorted([*project.glob("*.py"), *project.glob("configs/*.py")]):
        if file.name != "__init__.py" and f"]({file.relative_to(project)})" not in page:
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
    configs = (
        "[show_attend_tell.py](configs/show_attend_tell.py), `show_attend_tell.py:soft`, `show_attend_tell.py:hard`, "
        "`show_attend_tell.py:none`"
    )
    page = f"[model.py](model.py) is `experiments.captioning.model`. {configs} [data.py](data.py)"
    assert unnamed(project, page) == ["metrics.py", "task.py", "experiments.captioning.task"]
    sagan = CHECKOUT / "experiments" / "sagan"
    assert "sagan.py:classifier" in unnamed(sagan, readme(sagan).replace(":classifier`", "`"))


def keys_of(project: Path) -> set[str]:
    """Every key of the configs of a project, and its groups, with "model." and "task." before it and without."""
    files = [file for file in FILES if project_of(file) == project]
    names = [f"{file}{argument}" for file in files for argument in arguments_of(file)]
    configs = [load_config(name).to_dict() for name in names]
    keys = {key for values in configs for key in (*value_keys(config_schema(values)), *flatten_config(values))}
    keys |= {key[:end] for key in keys for end, letter in enumerate(key) if letter == "."}
    return keys | {key.removeprefix("model.").removeprefix("task.") for key in keys}


def said_keys(page: str) -> Iterator[str]:
    """The keys that a README names: `config.KEY`, and those of tables, where `.strides` is of the group before it."""
    yield from re.findall(r"`(?:--)?config\.([\w.]*\w)", page)
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
    table = "| key | meaning |\n| --- | --- |\n| `encoder.channels`, `.strids` | x |\n| `attention` | y |\n"
    assert list(said_keys(f"`--config.task.one=2`\n{table}")) == [
        "task.one",
        "encoder.channels",
        "encoder.strids",
        "attention",
    ]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_a_readme_links_every_record_of_its_project(project: Path) -> None:
    page = readme(project)
    assert [
        record.name for record in sorted(project.glob("results/*.md")) if f"](results/{record.name})" not in page
    ] == []


@pytest.mark.parametrize("file", [file for file in FILES if project_of(file) in PROJECTS], ids=lambda file: file.stem)
def test_a_record_that_a_docstring_names_lies_beside_its_config(file: Path) -> None:
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    named = re.findall(r"([\w/]*\bresults/\w+\.md)", said)
    assert [name for name in named if not (project_of(file) / name).is_file()] == []


@functools.cache
def collected_pages() -> Mapping[str, str]:
    return generated_pages()


@pytest.mark.parametrize(
    "page", ["projects.md", "results.md", "guides/metrics.md", *(f"results/{topic}.md" for topic in TOPICS)]
)
def test_the_collected_pages_are_up_to_date(page: str) -> None:
    shown = (CHECKOUT / "docs" / page).read_text(encoding="utf-8")
    assert collected_pages()[page] == shown, f"docs/{page} is out of date: run make docs"
