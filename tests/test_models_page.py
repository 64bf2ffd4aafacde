"""docs/models.md names the library's families and tasks; each family has a page, whose keys exist."""

import dataclasses
import re
from pathlib import Path

import pytest

from transformer.models.registry import FAMILIES
from transformer.overrides import value_keys
from transformer.tasks.registry import TASKS
from transformer.training.config import config_schema

DOCS = Path(__file__).resolve().parents[1] / "docs"
INDEX = (DOCS / "models.md").read_text(encoding="utf-8")
KEY_TABLE = re.compile(r"^\| key \| meaning \|\n\| --- \| --- \|\n((?:\|.*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("task", TASKS.names())
def test_every_task_has_a_row(task: str) -> None:
    assert re.search(rf"^\| `{task}` \|", INDEX.partition("\n## Tasks\n")[2], re.MULTILINE)


@pytest.mark.parametrize("family", FAMILIES.names())
def test_every_family_has_a_row_and_a_page(family: str) -> None:
    assert f"[`{family}`](models/{family}.md)" in INDEX
    assert f"`{family}`" in (DOCS / "models" / f"{family}.md").read_text(encoding="utf-8")


def keys_of(page: str) -> list[str]:
    """The keys that the tables of a page explain; `.strides` is of the group of the key before it."""
    found, group = [], ""
    for table in KEY_TABLE.findall(page):
        for row in table.splitlines():
            for key in re.findall(r"`([\w.]+)`", row.split(" | ")[0]):
                found.append(group + key if key.startswith(".") else key)
                group = found[-1].rpartition(".")[0]
    return found


@pytest.mark.parametrize("page", sorted((DOCS / "models").glob("*.md")), ids=lambda path: path.stem)
def test_the_keys_that_a_page_explains_exist(page: Path) -> None:
    family = page.stem if page.stem in FAMILIES.names() else "decoder"
    task = "permutation_lm" if family == "xlnet" else "language_modeling"
    known = set(value_keys(config_schema({"task": {"name": task}, "model": {"family": family}})))
    wrong = [key for key in keys_of(page.read_text(encoding="utf-8")) if not {key, f"model.{key}"} & known]
    assert wrong == []


def test_a_key_of_a_group_is_read_with_its_group() -> None:
    page = "| key | meaning |\n| --- | --- |\n| `encoder.channels`, `.strides` | x |\n| `width` | y |\n"
    assert keys_of(page) == ["encoder.channels", "encoder.strides", "width"]


@pytest.mark.parametrize("family", FAMILIES.names())
def test_every_key_of_a_family_is_named_on_its_page(family: str) -> None:
    """Or on the pages of the keys that Transformers and decoders share."""
    pages = (f"{family}.md", "encoder_decoder.md", "decoder.md")
    text = "".join((DOCS / "models" / page).read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"`([\w.]+)`", text))
    keys = {field.name for field in dataclasses.fields(FAMILIES[family].config_class)}
    assert keys - {name.partition(".")[0] for name in named} == set()
