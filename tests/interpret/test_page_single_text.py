"""The page of a sentence in a real browser: nothing of steps or curves, readable labels, and the same in a frame."""

import csv
import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transformer
from tests.downloads import downloaded
from tests.maps.test_page import browser, visit  # noqa: F401  fixtures
from tests.waiting import wait_until
from transformer.attention.capture import Capture, CapturedAttention
from transformer.interpret.load import LoadedModel
from transformer.interpret.show import AttentionPage
from transformer.tasks.base_task import make_capture_function

pytestmark = pytest.mark.browser
TEXT = "the qu 🙂 the qu the qu the qu"


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> LoadedModel:
    return transformer.load(folders["gpt2"])


@pytest.fixture(scope="module")
def looked(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> AttentionPage:
    return model.show_attention(TEXT, page=tmp_path_factory.mktemp("page") / "page.html", query_key_vectors=True)


@pytest.fixture(scope="module")
def captured(model: LoadedModel) -> CapturedAttention:
    """What lies beneath the page's maps."""
    reading, _ = model._encode_texts(TEXT, None, None)
    capture = Capture(("decoder/self",), value_norms=True, query_key_vectors=True)
    return make_capture_function(model.view(), reading.inputs, method=reading.method)(capture)["decoder/self"]


def test_a_page_of_one_sentence_is_of_that_sentence(looked: AttentionPage, visit: Any) -> None:  # noqa: F811
    page = visit(looked.path)
    assert page.locator("h1").inner_text() == "tiny-gpt2"
    assert page.locator("#text").inner_text() == TEXT
    hidden = ("#steps", "#examples", "#compare-strategy", "#curves-panel", "#head-history-panel", "#samples-panel")
    for selector in hidden:
        assert page.locator(selector).is_hidden(), selector
    words = page.locator("body").inner_text()
    for absent in ("step", "gold", "gold alignments", "example", "config "):
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
def test_slanted_labels_do_not_run_into_each_other(looked: AttentionPage, visit: Any, width: int) -> None:  # noqa: F811
    page = visit(looked.path, shown=False)
    page.set_viewport_size({"width": width, "height": 800})
    wait_until(page, "width => document.querySelector('#detail svg')?.clientWidth < width", arg=width)
    page.wait_for_timeout(300)
    places = page.locator("#detail text.token[transform]").evaluate_all(
        "all => all.map((label) => Number(/translate\\(([\\d.]+)/.exec(label.getAttribute('transform'))[1]))"
    )
    assert len(places) >= 4
    assert min(b - a for a, b in itertools.pairwise(places)) >= 16
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_weights_times_values_are_shown_as_shares_of_their_rows(
    looked: AttentionPage,
    captured: CapturedAttention,
    visit: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    page = visit(looked.path, "#layer=1&head=1")
    page.keyboard.press("w")
    wait_until(page, "location.hash.includes('view=value_weighted') && document.body.dataset.shown === location.hash")
    assert "|weight × value|, as a fraction of its row" in page.locator("#detail-title").inner_text()
    assert page.locator("#value-weighted").is_checked()
    vectors = np.asarray(captured.weights)[1, 0, 1] * np.asarray(captured.value_norms)[1, 0, 1]
    shares = (vectors / vectors.sum(-1, keepdims=True))[:12, :12]
    rows = list(csv.DictReader(io.StringIO(saved_table(page, tmp_path), newline="")))
    assert list(rows[0])[-1] == "share"
    assert [float(row["share"]) for row in rows] == pytest.approx(shares[np.tri(12, dtype=bool)], abs=0.01)
    assert np.abs(shares - np.asarray(captured.weights)[1, 0, 1, :12, :12]).max() > 0.05
    page.locator("#value-weighted").click()
    wait_until(page, "!location.hash.includes('view') && document.body.dataset.shown === location.hash")


def saved_table(page: Any, directory: Path) -> str:
    return downloaded(page, lambda: page.keyboard.press("c"), directory).read_text("utf-8-sig")


def test_a_querys_products_sum_to_logits_beside_the_maps_own_weights(
    looked: AttentionPage,
    captured: CapturedAttention,
    visit: Any,  # noqa: F811
) -> None:
    page = visit(looked.path, "#layer=1&head=1&row=5")
    assert page.locator("#neurons-title").inner_text() == "Query × key: layer 1 · head 1"
    assert "0.3536 × the sum of the 8 products" in page.locator("#neurons-note").inner_text()
    table = page.locator(".neurons tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('.figure')].map(cell => cell.textContent.replace('−', '-')))"
    )
    found = np.array(table, float)
    assert captured.query_key_vectors is not None
    q, k = (np.asarray(side, np.float64)[1, 0, :, 1] for side in captured.query_key_vectors[:2])
    products = q[4] * k[:5]
    bound = 2.01 * 2**-11 * np.abs(products).sum(-1).max() + 6e-4  # half precision, and three figures
    np.testing.assert_allclose(found[:, 0], products.sum(-1), atol=bound)
    np.testing.assert_allclose(found[:, 1], products.sum(-1) / np.sqrt(8), atol=bound)
    np.testing.assert_allclose(found[:, 2], np.asarray(captured.weights)[1, 0, 1, 4, :5], atol=0.005)
    # A component is read beneath the pointer; another row is another query.
    page.locator(".neurons tbody tr").nth(2).locator("canvas").nth(1).hover(position={"x": 13, "y": 5})
    words = page.locator("#tip").inner_text().replace("−", "-")
    first, second, both = map(float, re.findall(r"-?\d+\.\d+", words))
    assert words.startswith("component 2: ")
    assert (first, second, both) == pytest.approx((q[4, 1], k[2, 1], products[2, 1]), abs=0.003)
    page.keyboard.press("j")
    wait_until(page, "document.querySelectorAll('.neurons tbody tr').length === 6")


@pytest.mark.slow
def test_a_page_says_where_no_product_was_made_and_is_silent_where_none_was_asked_for(
    model: LoadedModel,
    looked: AttentionPage,
    visit: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    text = looked.html.replace('"queryKeyVectors":{"depth":8', '"queryKeyVectors":null,"unused":{"depth":8')
    assert text != looked.html
    (tmp_path / "page.html").write_text(text)
    page = visit(tmp_path / "page.html")
    assert page.locator("#neurons-note").inner_text() == (
        "The score function of this module is not a dot product, so it has no components."
    )
    assert page.locator(".neurons").count() == 0
    page = visit(model.show_attention("the qu", page=tmp_path / "plain.html").path)
    assert page.locator("#neurons-panel").is_hidden()
    assert page.locator("#value-weighted-toggle").is_visible()


def test_the_page_works_in_a_frame_as_notebooks_show_it(
    looked: AttentionPage,
    visit: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "frame.html").write_text(looked._repr_html_())
    page = visit(tmp_path / "frame.html", shown=False)
    frame = page.frame_locator("iframe")
    frame.locator("body[data-shown]").wait_for(state="attached")
    frame.locator(".thumbnail").nth(3).click()
    frame.locator("#detail-title", has_text="layer 1 · head 1").wait_for()


@pytest.mark.parametrize("width", [1200, 500])
def test_in_a_notebook_the_frame_is_as_high_as_its_page(
    looked: AttentionPage,
    visit: Any,  # noqa: F811
    tmp_path: Path,
    width: int,
) -> None:
    (tmp_path / "frame.html").write_text(f"<p>A cell.</p>{looked._repr_html_()}{looked._repr_html_()}")
    page = visit(tmp_path / "frame.html", shown=False)
    page.set_viewport_size({"width": width, "height": 700})
    for number in range(2):
        page.frame_locator("iframe").nth(number).locator("body[data-shown]").wait_for(state="attached")
    frames, inner = page.locator("iframe"), page.frames[1]
    settled = (
        "() => document.documentElement.scrollHeight <= innerHeight && document.body.offsetHeight > innerHeight - 2"
    )
    wait_until(inner, settled)
    before = frames.first.bounding_box()["height"]
    assert before > 900
    # Each follows its own page: one that opens a fold grows, and shrinks again, by itself.
    other = frames.nth(1).bounding_box()["height"]
    inner.locator(".roles-panel summary").click()
    wait_until(page, "(before) => document.querySelector('iframe').offsetHeight > before + 100", before)
    wait_until(inner, settled)
    assert frames.nth(1).bounding_box()["height"] == other
    inner.locator(".roles-panel summary").click()
    wait_until(page, "(before) => Math.abs(document.querySelector('iframe').offsetHeight - before) < 2", before)
