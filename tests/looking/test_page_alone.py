"""The page of a sentence in a real browser: nothing of steps or curves, readable labels, and the same in a frame."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import transformer
from tests.maps.test_page import browser, visit  # noqa: F401  fixtures
from transformer.looking.loaded import Loaded
from transformer.looking.looked import Looked

pytestmark = pytest.mark.browser
TEXT = "the qu 🙂 the qu the qu the qu"


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> Loaded:
    return transformer.load(folders["gpt2"])


@pytest.fixture(scope="module")
def looked(model: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Looked:
    return model.look(TEXT, page=tmp_path_factory.mktemp("page") / "page.html")


def test_a_page_of_one_sentence_is_of_that_sentence(looked: Looked, visit: Any) -> None:  # noqa: F811
    page = visit(looked.path)
    assert page.locator("h1").inner_text() == "tiny-gpt2"
    assert page.locator("#text").inner_text() == TEXT
    for selector in ("#steps", "#examples", "#compare-chooser", "#curves-panel", "#timeline-panel", "#samples-panel"):
        assert page.locator(selector).is_hidden(), selector
    words = page.locator("body").inner_text()
    for absent in ("step", "gold", "known links", "example", "config "):
        assert absent not in words, absent
    assert "head" in page.locator("#keys").inner_text()
    assert "step" not in page.evaluate("location.hash")
    labels = page.locator(".chip.query").all_inner_texts()
    assert labels == ["the", "▁qu", "▁", "🙂⟨1/3⟩", "🙂⟨2/3⟩", "🙂⟨3/3⟩", *("▁the", "▁qu") * 3]
    page.keyboard.press(" ")
    page.keyboard.press("ArrowRight")
    assert page.locator("#play.playing").count() == 0
    # Equal tokens are told apart in words.
    page.locator(".chip.query").nth(7).hover()
    words = page.locator("#reading").inner_text()
    assert words.startswith("“▁qu” (8) attends to ")
    assert not re.search("“▁(qu|the)” [^(]", words)


@pytest.mark.parametrize("width", [400, pytest.param(1400, marks=pytest.mark.slow)])
def test_slanted_labels_do_not_run_into_each_other(looked: Looked, visit: Any, width: int) -> None:  # noqa: F811
    page = visit(looked.path, shown=False)
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_function("width => document.querySelector('#detail svg')?.clientWidth < width", arg=width)
    page.wait_for_timeout(300)
    places = page.locator("#detail text.token[transform]").evaluate_all(
        "all => all.map((label) => Number(/translate\\(([\\d.]+)/.exec(label.getAttribute('transform'))[1]))"
    )
    assert len(places) >= 4
    assert min(b - a for a, b in itertools.pairwise(places)) >= 16
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_works_in_a_frame_as_notebooks_show_it(
    looked: Looked,
    visit: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "frame.html").write_text(looked._repr_html_())
    page = visit(tmp_path / "frame.html", shown=False)
    frame = page.frame_locator("iframe")
    frame.locator("body[data-shown]").wait_for(state="attached")
    frame.locator(".thumbnail").nth(3).click()
    frame.locator("h2", has_text="layer 1 · head 1").wait_for()
