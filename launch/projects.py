"""Write the pages of docs/ that are collected from the READMEs of the projects."""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from launch.cli import run
from launch.command import Arguments, Command, Flag
from transformer.config import UserError
from transformer.installation import checkout

COMMAND = Command(
    name="projects",
    description=(
        "Print a page that is collected from experiments/*/README.md: all results tables, or the table of projects."
    ),
    example="--page=results > docs/results.md",
    flags=(Flag("page", "which page", required=True, choices=("results", "projects")),),
)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
_RESULTS = """# Results

Written by `make docs` (`python -m launch.projects --page=results > docs/results.md`) from the section "Results" of each
project's README: edit these. A test checks that every number of a table is in the record that its row links. The
record has the command, the commit, the hardware and the details; the curve is the run's `metrics.jsonl`.

Where a setting has several seeds, a cell has the mean and, in parentheses, each seed: 0.888 (0.889, 0.905, 0.871).
Seeds without a mean are listed alone. Intervals say so: "1.658 (1.589 to 1.727)" is a mean with its 95 % interval.
"""
_PROJECTS = """# Projects

Written by `make docs` (`python -m launch.projects --page=projects > docs/projects.md`) from the READMEs of the
projects: edit those. A project is a folder under [experiments](../experiments). Its README has the commands, the
configs and their arguments, the time and hardware, the model, and the results; [results.md](results.md) has all results
on one page. The first experiment is the demo, [experiments/demo.py](../experiments/demo.py): `make demo`.

| project | what it is |
| --- | --- |
"""
_SENTENCE = re.compile(r".*?\.(?= [A-Z]|$)")


class Readme(NamedTuple):
    """The README of a project: the name of its folder, its title, its first paragraph, and the section "Results"."""

    project: str
    title: str
    summary: str
    results: str


def read(folder: Path) -> Readme:
    """The README of a project's folder.

    Raises:
        UserError: if it has no title, no paragraph below that, or no results.
    """
    text = (folder / "README.md").read_text(encoding="utf-8")
    head = re.match(r"# (.+)\n\n((?:.+\n)+)", text)
    results = re.search(r"^## Results\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if head is None or results is None:
        raise UserError(f"{folder / 'README.md'} must begin with a title and a paragraph, and have '## Results'")
    summary = " ".join(head[2].split())
    return Readme(folder.name, head[1], _from_docs(summary, folder.name), _from_docs(results[1], folder.name).rstrip())


def results_page(readmes: Iterator[Readme]) -> str:
    """The page of all results."""
    sections = [
        f"## {each.title}\n\n[experiments/{each.project}](../experiments/{each.project}/README.md)\n\n{each.results}\n"
        for each in readmes
    ]
    return "\n".join([_RESULTS, *sections])


def projects_page(readmes: Iterator[Readme]) -> str:
    """The table of projects."""
    rows = []
    for each in readmes:
        sentence = _SENTENCE.match(each.summary)
        what = sentence[0] if sentence else each.summary
        rows.append(f"| [{each.title}](../experiments/{each.project}/README.md) | {what} |\n")
    return _PROJECTS + "".join(rows)


def _from_docs(text: str, project: str) -> str:
    """A text of a project's README, with its relative links as docs/ has them."""
    folder = f"../experiments/{project}"

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        return f"]({path.removeprefix('../docs/')})"

    return _LINK.sub(moved, text)


def main(arguments: Arguments) -> None:
    """Print the page."""
    root = checkout()
    if root is None:
        raise UserError(
            "projects reads the READMEs in experiments/ of a checkout, and this is none: clone the repository"
        )
    folders = sorted(path.parent for path in root.glob("experiments/*/README.md"))
    pages = {"results": results_page, "projects": projects_page}
    print(pages[arguments.page](map(read, folders)), end="")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
