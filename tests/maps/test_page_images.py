"""The panel over the image, in a real browser: strips of queries, layers and heads, gold cells, distances."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.maps.conftest import Run, make_kept, softmax, write_record
from tests.maps.test_page import browser, corner_of, gray_of, visit, wait_for  # noqa: F401  fixtures and helpers
from tests.oracles.rollout import read_rollout
from tests.waiting import wait_until
from transformer.attention.sites import Axis, AxisKind, Site
from transformer.data.png import encode_png
from transformer.maps.capture_plan import StoredResolutions
from transformer.maps.report.page import write_report
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WORDS = ("▁a", "▁red", "▁disc", "▁top", "▁left", "▁and", "▁a", "▁blue", "▁ring", "▁below", "▁it", "</s>")
GOLD = {2: (GoldAlignment(2, 5, True), GoldAlignment(2, 6, False)), 8: (GoldAlignment(8, 11, True),)}


def write_gaze_run(directory: Path) -> Run:
    """Twelve words that read an image of four by four patches in two layers of two heads; an answer in three hops."""
    words, grid = Axis("words"), Axis("grid", AxisKind.GRID, shape=(4, 4), stride=8.0)
    answer = Axis("answer", AxisKind.SLOTS, num_positions=1)
    sites = (
        Site("decoder/cross", words, grid, ("0", "1"), ("0", "1")),
        Site("answer/hops", answer, grid, ("0", "1", "2"), ("0",)),
    )
    images = np.random.default_rng(0).integers(0, 40, (1, 32, 32, 3)).astype(np.uint8)
    labels = AxisLabels(
        {"words": (WORDS,), "grid": (grid.names(),), "answer": (answer.names(),)},
        ("a scene",),
        {"decoder/cross": (tuple(link for links in GOLD.values() for link in links),)},
        images={"grid": images},
    )
    store = MapStore.open(directory / "maps", sites, labels, "0f" * 32)
    maps = {}
    for step in (10, 40):
        rng = np.random.default_rng(step)
        maps[step] = {
            "decoder/cross": softmax(rng.normal(size=(2, 1, 2, 12, 16)) * 2),
            "answer/hops": softmax(rng.normal(size=(3, 1, 1, 1, 16)) * 2),
        }
        store.write(step, make_kept(store, maps[step]))
    write_record(directory, "gazes")
    return Run(directory, sites, labels, maps)


@pytest.fixture(scope="module")
def gaze_run(tmp_path_factory) -> Run:
    return write_gaze_run(tmp_path_factory.mktemp("gazes"))


@pytest.fixture(scope="module")
def gazes(gaze_run):
    return write_report(gaze_run.directory)


@pytest.fixture(scope="module")
def patches(image_run):
    return write_report(image_run.directory)


def strip_of(page, number: int = 0):
    return page.locator(".image-strip").nth(number).locator(".strip-item")


def assert_drawn_over(item, row: np.ndarray) -> None:
    """The weights of one row lie over an image: the largest in no fog, its number beneath it."""
    gray, _ = gray_of(item.locator("canvas"), 4)
    assert int(np.argmin(gray)) == int(row.argmax())
    # The weaker a patch is read, the nearer it is to gray; an image's own shades make ties of what is alike.
    assert np.corrcoef(gray, -np.sqrt(row))[0, 1] > 0.9
    assert float(item.locator(".strip-weight").inner_text()) == pytest.approx(row.max(), abs=0.012)


def gold_of(item) -> list[int]:
    """The patches that an item outlines as linked, sure ones first."""
    boxes = item.locator("svg .link").evaluate_all(
        "all => all.map((box) => ['x', 'y', 'width'].map((name) => Number(box.getAttribute(name))))"
    )
    return [round(y / side) * 4 + round(x / side) for x, y, side in boxes]


def test_every_word_has_its_image_and_follows_the_step(gaze_run, gazes, visit):  # noqa: F811
    page = visit(gazes, "#site=decoder/cross&layer=1&head=0&step=10")
    items = strip_of(page)
    assert items.count() == len(WORDS)
    assert items.locator(".strip-name").all_inner_texts() == list(WORDS)
    title = page.locator(".image-strips .note").first.inner_text()
    assert title == "Every token of words, layer 1, head 0"
    for step, key in ((10, "Home"), (40, "End")):
        page.locator("#step").press(key)
        wait_for(page, "step", str(step))
        for word in (0, 5, 11):
            assert_drawn_over(items.nth(word), gaze_run.maps[step]["decoder/cross"][1, 0, 0, word])


def test_a_word_is_held_where_it_is_clicked_and_let_go_by_a_second_click(gazes, visit):  # noqa: F811
    page = visit(gazes, "#site=decoder/cross&layer=0&head=1&step=40")
    items = strip_of(page)
    assert page.locator(".image-strip").first.locator("[aria-pressed=true]").count() == 0
    items.nth(3).click()
    wait_for(page, "row", "4")
    assert items.nth(3).get_attribute("aria-pressed") == "true"
    assert page.locator(".image-figure .note").inner_text().startswith("What “▁top” reads; the clearest patch")
    # Keys go on from it, whether it is the page's own or the strip's.
    page.keyboard.press("ArrowRight")
    wait_for(page, "row", "5")
    assert items.nth(4).evaluate("item => item === document.activeElement")
    page.keyboard.press("j")
    wait_for(page, "row", "6")
    assert page.locator(".image-strip").first.locator("[aria-pressed=true]").inner_text().startswith("▁and")
    assert page.locator(".image-strip").first.locator("[tabindex='0']").count() == 1
    items.nth(5).click()
    wait_until(page, "!new URLSearchParams(location.hash.slice(1)).has('row')")


def test_heads_stand_side_by_side_for_the_held_query(gaze_run, gazes, visit):  # noqa: F811
    page = visit(gazes, "#site=decoder/cross&layer=0&head=0&step=40&row=3")
    items = strip_of(page, 1)
    assert items.locator(".strip-name").all_inner_texts() == ["0.0", "0.1", "1.0", "1.1"]
    assert page.locator(".image-strips .note").nth(1).inner_text() == "What “▁disc” reads, all heads"
    for number, (layer, head) in enumerate(np.ndindex(2, 2)):
        assert_drawn_over(items.nth(number), gaze_run.maps[40]["decoder/cross"][layer, 0, head, 2])
    items.nth(3).click()
    wait_for(page, "head", "1")
    wait_for(page, "layer", "1")
    assert items.nth(3).get_attribute("aria-pressed") == "true"


def test_gold_cells_are_outlined_for_the_query_that_is_shown(gazes, visit):  # noqa: F811
    page = visit(gazes, "#site=decoder/cross&layer=0&head=0&step=40")
    words = strip_of(page)
    assert [gold_of(words.nth(word)) for word in (1, 2, 8)] == [[], [5, 6], [11]]
    assert words.nth(2).locator(".link.possible").count() == 1
    large = page.locator("#image-overlay")
    assert gold_of(large) == []
    words.nth(8).click()
    wait_for(page, "row", "9")
    assert gold_of(large) == [11]
    assert gold_of(strip_of(page, 1).nth(2)) == [11]
    page.keyboard.press("g")
    wait_for(page, "gold_alignments", "0")
    assert page.locator("#image-panel .link").count() == 0


def test_where_a_layer_has_one_query_the_strip_is_of_layers(gaze_run, gazes, visit):  # noqa: F811
    page = visit(gazes, "#site=answer/hops&step=40")
    items = strip_of(page)
    assert items.locator(".strip-name").all_inner_texts() == ["layer 0", "layer 1", "layer 2"]
    assert page.locator(".image-strips .note").all_inner_texts() == ["What the answer reads, layer after layer, head 0"]
    for layer in range(3):
        assert_drawn_over(items.nth(layer), gaze_run.maps[40]["answer/hops"][layer, 0, 0, 0])
    items.nth(2).click()
    wait_for(page, "layer", "2")
    assert items.nth(2).get_attribute("aria-pressed") == "true"


def test_the_class_token_is_shown_until_a_patch_is_held(image_run, patches, visit):  # noqa: F811
    page = visit(patches, "#example=2&layer=0&head=0&step=40")
    items = strip_of(page)
    assert page.locator(".image-strips .note").all_inner_texts() == ["What “[CLS]” reads (the class token), all heads"]
    weights = image_run.maps[40]["encoder/self"][:, 1]
    for number, (layer, head) in enumerate(np.ndindex(2, 3)):
        item = items.nth(number)
        assert float(item.locator(".strip-weight").inner_text()) == pytest.approx(
            weights[layer, head, 0, 1:].max(), abs=0.012
        )
    words = page.locator(".image-figure .note").inner_text()
    assert words.startswith("What “[CLS]” reads (the class token; click the image to hold a patch)")
    assert f"“[CLS]” {weights[0, 0, 0, 0]:.3f}"[:-1] in words
    assert page.locator("#image-panel .frame").count() == 0
    frame = page.locator("#image-overlay svg")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    frame.click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.4})
    wait_for(page, "row", "9")
    assert page.locator(".image-strips .note").all_inner_texts() == ["What “patch 2,4” reads, all heads"]
    for number, (layer, head) in enumerate(np.ndindex(2, 3)):
        item = items.nth(number)
        assert float(item.locator(".strip-weight").inner_text()) == pytest.approx(
            weights[layer, head, 8, 1:].max(), abs=0.012
        )
        assert item.locator(".frame").count() == 1
    place = page.locator("#image-overlay .frame").first.evaluate(
        "box => [box.x, box.y, box.width].map((at) => at.baseVal.value)"
    )
    assert [round(place[0] / place[2]), round(place[1] / place[2])] == [3, 1]


def test_rollout_is_drawn_over_the_image_layer_after_layer(image_run, patches, visit):  # noqa: F811
    page = visit(patches, "#example=1&layer=1&head=0&step=40&view=rollout")
    items = strip_of(page)
    assert items.locator(".strip-name").all_inner_texts() == ["layer 0", "layer 1"]
    assert page.locator(".image-strips .note").all_inner_texts() == [
        "What “[CLS]” mixes in (the class token), layer after layer, all heads"
    ]
    mixed = read_rollout(MapStore.open_existing(image_run.directory / "maps"), "encoder/self", 40)
    for layer in range(2):
        weight = items.nth(layer).locator(".strip-weight").inner_text()
        assert float(weight) == pytest.approx(mixed[0, layer, 0, 1:].max(), abs=0.012)
        gray, _ = gray_of(items.nth(layer).locator("canvas"), 4)
        assert int(np.argmin(gray)) == int(mixed[0, layer, 0, 1:].argmax())
    assert "What “[CLS]” mixes in" in page.locator(".image-figure .note").inner_text()
    page.keyboard.press("r")
    wait_until(page, "!location.hash.includes('rollout')")
    wait_until(page, "document.querySelectorAll('.strip-item').length === 6")


def test_how_far_heads_look_is_drawn_told_and_a_measure(image_run, patches, visit):  # noqa: F811
    page = visit(patches, "#example=1&layer=0&head=0&step=40&statistic=distance_in_pixels")
    chart, told = page.locator("#distance-by-layer"), page.locator("#chosen-role")
    wait_until(page, "document.querySelectorAll('#distance-by-layer .marker').length === 6")
    assert page.locator("#statistic option:checked").inner_text() == "attention distance"
    assert "pixels" in page.locator("#head-history-legend").inner_text()
    reading = page.locator("#head-reading").inner_text()
    chart.locator("> svg").focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("head 0.0")
    (far,) = [words for words in tip.split("\n") if "pixels" in words]
    assert far in reading
    pixels = float(far.split()[0])
    assert f"; looks {round(pixels, 1):g} pixels far (uniform: " in told.inner_text()
    # The second head of the first layer looks nearby: its dot is chosen by a key.
    page.keyboard.press("ArrowRight")
    (nearer,) = [words for words in page.locator("#tip").inner_text().split("\n") if "pixels" in words]
    assert float(nearer.split()[0]) < 0.7 * pixels
    page.keyboard.press("Enter")
    wait_for(page, "head", "1")
    assert nearer in page.locator("#head-reading").inner_text()
    assert "reads the patches around its own" in told.inner_text()
    assert f"; looks {round(float(nearer.split()[0]), 1):g} pixels far (uniform: " in told.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_narrow_page_the_strip_alone_scrolls_sideways(gazes, visit, scheme):  # noqa: F811
    page = visit(gazes, "#site=decoder/cross&step=40", scheme, shown=False)
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_selector("body[data-shown]")
    strip = page.locator(".image-strip").first
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert strip.evaluate("strip => strip.scrollWidth > 2 * strip.clientWidth")
    before = page.evaluate("scrollY")
    for _ in range(12):
        page.keyboard.press("j")
    wait_for(page, "row", "12")
    # The held word is brought into sight within the strip; the page itself stays where it was.
    assert page.evaluate("scrollY") == before
    sides = [strip.bounding_box(), strip_of(page).nth(11).bounding_box()]
    assert sides[0]["x"] - 1 <= sides[1]["x"]
    assert sides[1]["x"] + sides[1]["width"] <= sides[0]["x"] + sides[0]["width"] + 1


def test_a_pooled_map_over_a_image_is_called_one(visit, tmp_path):  # noqa: F811
    grid = Axis("patches", AxisKind.GRID, shape=(4, 4), stride=8.0, num_leading_positions=1)
    site = Site("encoder/self", grid, grid, ("0",), ("0", "1"))
    images = {"patches": np.zeros((1, 32, 32, 3), np.uint8)}
    labels = AxisLabels({"patches": (grid.names(),)}, ("dark",), images=images)
    store = MapStore.open(tmp_path / "maps", (site,), labels, "0f" * 32, StoredResolutions((8,), num_rows=4, top_k=5))
    weights = softmax(np.random.default_rng(0).normal(size=(1, 1, 2, 17, 17)))
    store.write(10, make_kept(store, {site.name: weights}))
    write_record(tmp_path, "pooled")
    page = visit(write_report(tmp_path))
    pooled = "(pooled: each cell is the largest weight of 4 × 4 positions)"
    assert f"What “class” reads {pooled}" in page.locator(".image-figure .note").inner_text()
    assert pooled in page.locator(".image-strips .note").inner_text()


def test_each_query_has_a_image_of_its_own_beside_a_map_of_words(visit, tmp_path):  # noqa: F811
    """As who walks has one at each step, whose keys are the words of an instruction: no fog lies on these."""
    site = Site("decoder/attention", Axis("target"), Axis("source"), ("0",), ("0",))
    images = np.random.default_rng(0).integers(0, 255, (2, 3, 1, 1, 3), np.uint8).repeat(8, 2).repeat(8, 3)
    steps, words = (("forward", "left", "<end>"), ("left", "<end>")), (("turn", "left", "."),) * 2
    labels = AxisLabels({"target": steps, "source": words}, ("first", "second"), images={"target": images})
    weights = softmax(np.random.default_rng(1).normal(size=(1, 2, 1, 3, 3)))
    store = MapStore.open(tmp_path / "maps", (site,), labels, "0f" * 32)
    store.write(10, make_kept(store, {site.name: weights}))
    write_record(tmp_path, "walk")
    page = visit(write_report(tmp_path), "#example=1")

    page.locator(".strip-weight", has_text="0.").first.wait_for()
    items = strip_of(page)
    assert items.count() == 3
    for number in range(3):
        row = weights[0, 0, 0, number]
        assert items.nth(number).locator(".strip-name").inner_text() == steps[0][number]
        assert corner_of(items.nth(number).locator("canvas")) == images[0, number, 0, 0].tolist()
        word, weight = items.nth(number).locator(".strip-weight").inner_text().split()
        assert word == words[0][row.argmax()]
        assert float(weight) == pytest.approx(row.max(), abs=0.012)
    large = page.locator("#image-overlay canvas")
    assert corner_of(large) == images[0, 2, 0, 0].tolist()
    items.nth(1).click()
    wait_for(page, "row", "2")
    assert page.locator(".image-figure .note").inner_text() == "“left”, 2 of 3"
    assert corner_of(large) == images[0, 1, 0, 0].tolist()
    assert page.locator("#image-title").inner_text() == "Image by image"


def test_a_run_without_images_has_no_such_panel(run, visit):  # noqa: F811
    page = visit(write_report(run.directory))
    assert page.locator("#image-panel").is_hidden()


def test_the_image_of_the_samples_follows_the_step(run, visit, tmp_path):  # noqa: F811
    directory = tmp_path / "copy"
    shutil.copytree(run.directory, directory)
    (directory / "samples").mkdir()
    lines = []
    for step, width in ((200, 3), (1600, 5)):
        (directory / f"samples/test_{step}.png").write_bytes(encode_png(np.full((2, width), 200, np.uint8)))
        said = {"source": "sample 1", "target": "4", "output": "4", "image": f"samples/test_{step}.png"}
        lines.append({"step": step, "split": "test", **said})
    (directory / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = visit(write_report(directory))
    shown = page.locator("#sample-images img")
    width = "image => image.decode().then(() => image.naturalWidth)"
    assert [shown.count(), shown.evaluate(width), shown.get_attribute("alt")] == [1, 5, "images made at step 1,600"]
    page.locator("#step").fill("1")
    wait_for(page, "step", "200")
    assert [shown.count(), shown.evaluate(width)] == [1, 3]
    assert "samples/" not in page.locator("#samples").inner_text()


def test_samples_without_a_reference_are_neither_right_nor_wrong(run, visit, tmp_path):  # noqa: F811
    directory = tmp_path / "copy"
    shutil.copytree(run.directory, directory)
    lines = [{"prompt": "The ", "output": "value of the"}, {"source": "a b", "target": "b a", "output": "b c"}]
    path = directory / "samples.jsonl"
    path.write_text("".join(json.dumps({"step": 200, "split": "test", **line}) + "\n" for line in lines))
    page = visit(write_report(directory))
    rows = page.locator("#samples tbody tr")
    assert [row.locator(".mark").get_attribute("aria-label") for row in rows.all()] == ["no reference", "different"]
    assert rows.nth(0).locator("mark").count() == 0
    assert rows.nth(1).locator("mark").all_inner_texts() == ["c"]
    assert page.locator("#samples-note").inner_text().startswith("2 samples, 0 exactly as the reference;")
    path.write_text(json.dumps({"step": 200, "split": "test", **lines[0]}) + "\n")
    page = visit(write_report(directory))
    assert page.locator("#samples-note").inner_text() == "1 samples."
    assert page.locator("#samples thead").inner_text().split() == ["prompt", "output"]
