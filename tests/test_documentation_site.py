"""The documentation site: its navigation has every page, nothing asks the network, and pages and tables stay small."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.markdown import FENCE, ROOT

DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
# Pages of the site that are written elsewhere in the repository (.ci/mkdocs_hooks.py).
ELSEWHERE = {"contributing.md": ROOT / "CONTRIBUTING.md", "changelog.md": ROOT / "CHANGELOG.md"}
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
QUESTIONS = (
    "Train on 8 GPUs",
    "Resume a run",
    "Log to Weights & Biases",
    "Change the tokenizer",
    "Choose the attention backend",
    "Add a metric",
    "Add a score function",
    "Export to Hugging Face",
    "Fine-tune a BERT",
    "Read maps in Python",
    "Look at a head of a model outside Headwise",
    "Understand `heads.jsonl`",
    "Turn off maps, and what they cost",
    "Compare two runs",
    "Run one arm of an ablation",
    "Reduce memory",
    "Train in bfloat16, and check it",
    "Change the batch size",
    "Train on several Slurm nodes",
    "Train on a TPU pod in Google Cloud",
    "Sweep learning rates",
    "Use my own data",
    "Use my own attention mask",
    "Show attention for one sentence",
    "Add a model family",
    "Reproduce a run",
    "Cite Headwise",
)


def entries(nav: Any) -> Iterator[str]:
    """The pages and folders of a navigation, in their order."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from entries(part)


def missing_pages(named: set[str], pages: list[str]) -> list[str]:
    """The pages that neither the navigation nor one of its folders names."""
    return [page for page in pages if page not in named and f"{page.rpartition('/')[0]}/" not in named]


def wide_tables(page: str) -> list[str]:
    """The title rows of the tables with more than five columns."""
    lines = FENCE.sub("", page).splitlines()
    titles = [line for line, rule in itertools.pairwise(lines) if rule.startswith("| --")]
    return [line for line in titles if line.replace(r"\|", "").strip().strip("|").count("|") > 4]


def test_the_navigation_has_every_page_and_no_other() -> None:
    named = set(entries(SITE["nav"]))
    pages = [path.relative_to(DOCS).as_posix() for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]]
    assert missing_pages(named, pages) == []
    assert missing_pages({"a.md", "b/"}, ["a.md", "b/c.md", "d.md", "e/f.md"]) == ["d.md", "e/f.md"]
    gone = {name for name in named if not name.endswith("/") and not (DOCS / name).is_file()}
    assert gone == set(ELSEWHERE)
    assert all(path.is_file() for path in ELSEWHERE.values())


def test_the_site_asks_nothing_of_the_network() -> None:
    assert SITE["theme"]["font"] is False
    assert SITE["strict"] is True
    # The plugin "offline" loads a script from the network.
    assert not {"extra", "extra_css", "extra_javascript"} & set(SITE)
    assert "offline" not in SITE["plugins"]
    assert not [
        path for path in PAGES if re.search(r"<(script|link|iframe)|!\[[^]]*\]\(https?:", path.read_text("utf-8"))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_short_and_tables_narrow(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert wide_tables(text) == []
    if page.relative_to(ROOT).parts[1:2] != ("results",):
        assert text.count("\n") <= (80 if page.name == "README.md" else 350 if page.name == "how_do_i.md" else 250)


def test_a_wide_table_is_found() -> None:
    wide = "| a | b | c | d | e | f |\n| --- | --- | --- | --- | --- | --- |\n"
    assert wide_tables(f"x\n\n{wide}") == [wide.splitlines()[0]]
    assert wide_tables("| a | b `\\|` c | d | e | f |\n| --- | --- | --- | --- | --- |\n") == []


def test_every_question_has_an_answer_of_one_screen() -> None:
    page = (DOCS / "how_do_i.md").read_text(encoding="utf-8")
    answers = {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}
    assert tuple(answers) == QUESTIONS
    assert [title for title, answer in answers.items() if answer.count("\n") > 35] == []


def test_the_citation_is_that_of_the_citation_file() -> None:
    page = (DOCS / "how_do_i.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (author,) = citation["authors"]
    assert f"title = {{{citation['title']}}}" in page
    assert f"author = {{{{{author['name']}}}}}" in page
    assert f"version = {{{citation['version']}}}" in page
    assert citation["license"] in page


def test_the_mask_of_the_answers_runs() -> None:
    page = (DOCS / "how_do_i.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(import jax\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["output"].shape == (1, 4, 8, 16)
