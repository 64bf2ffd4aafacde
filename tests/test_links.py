"""Every link of the Markdown pages leads somewhere, and names what it leads to."""

from pathlib import Path

import pytest

from tests.markdown import PAGES, ROOT, dead_links, dead_paths, misnamed_links


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_and_path_leads_to_what_it_names(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert list(dead_links(page)) == []
    assert list(misnamed_links(text)) == []
    assert list(dead_paths(text)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One [word](x.md) more\n")
    (tmp_path / "a.md").write_text("# A\n[x](b.md#one-word-more) [y](b.md#two) [z](c.md) [w](#a) [v](https://x.y)\n")
    assert list(dead_links(tmp_path / "a.md")) == ["b.md#two", "c.md"]


def test_names_of_what_was_moved_are_found() -> None:
    assert list(misnamed_links("[a.py](../b/a.py) [a.py](../b/c.py) [the record](c.md)")) == ["[a.py](../b/c.py)"]
    assert list(dead_paths("`experiments/demo.py` `transformer/models/gone.py:x` `launch/`")) == [
        "transformer/models/gone.py"
    ]
