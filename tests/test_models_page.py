"""docs/models.md: it names the library's families and tasks, and its opening leads to each family's section."""

import re
from pathlib import Path

import pytest

from transformer.models.registry import FAMILIES
from transformer.tasks.registry import TASKS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", TASKS.names())
def test_every_task_has_a_row(task: str) -> None:
    assert re.search(rf"^\| `{task}` \|", PAGE.partition("\n## Tasks\n")[2], re.MULTILINE)


@pytest.mark.parametrize("family", FAMILIES.names())
def test_every_family_is_named(family: str) -> None:
    assert f"`{family}`" in PAGE


def test_the_opening_leads_to_every_section_of_families() -> None:
    opening, *sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    of_families = [text.partition("\n")[0] for text in sections if re.search(r"^`\w+` \(\[\w+\.py\]\(", text, re.M)]
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in of_families]
    assert len(anchors) > 5
    assert [anchor for anchor in anchors if f"(#{anchor})" not in opening] == []
