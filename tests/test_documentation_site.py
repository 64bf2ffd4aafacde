"""The documentation site: its navigation has every page, nothing asks the network, and what its answers show runs."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.markdown import ROOT

DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
# Pages of the site that are written elsewhere in the repository (.ci/mkdocs_hooks.py).
ELSEWHERE = {"contributing.md": ROOT / "CONTRIBUTING.md", "changelog.md": ROOT / "CHANGELOG.md"}
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])


def entries(nav: Any) -> Iterator[str]:
    """The pages and folders of a navigation, in their order."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from entries(part)


def missing_pages(named: set[str], pages: list[str]) -> list[str]:
    """The pages that neither the navigation nor one of its folders names."""
    return [page for page in pages if page not in named and f"{page.rpartition('/')[0]}/" not in named]


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
