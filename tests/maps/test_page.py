"""The page in a real browser: it asks for nothing, complains of nothing, and does what it says."""

import contextlib
import json
import shutil
from urllib.parse import parse_qs

import numpy as np
import pytest

from tests.maps.conftest import write_run
from tests.waiting import wait_until
from transformer.maps.capture_plan import quantize_maps
from transformer.maps.report.page import write_report
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

pytestmark = pytest.mark.browser
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("no chromium on PATH: install Debian's package chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """A function that opens a page's file; in the end no other request and no complaint may have come."""
    with contextlib.ExitStack() as stack:

        def open_page(path, address="", scheme="light", shown=True):
            page = browser.new_page(viewport={"width": 1360, "height": 1000}, color_scheme=scheme)
            requests, complaints = [], []
            page.on("request", lambda request: requests.append(request.url))
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
            page.goto(path.as_uri() + address)
            if shown:
                page.wait_for_selector("body[data-shown]")

            def check():
                assert complaints == []
                # A page of what still runs reads itself again.
                assert {url.split("#")[0] for url in requests} == {path.as_uri()}
                page.close()

            stack.callback(check)
            return page

        yield open_page


@pytest.fixture(scope="module")
def report(run):
    return write_report(run.directory)


def address(page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(page.evaluate("location.hash.slice(1)")).items()}


def wait_for(page, name: str, value: str) -> None:
    """Until the address has this value and the maps on the page are those of the address."""
    wait_until(
        page,
        """([name, value]) =>
            new URLSearchParams(location.hash.slice(1)).get(name) === value &&
            document.body.dataset.shown === location.hash""",
        arg=[name, value],
    )


def luminances(page, cells: list[tuple[int, int]], queries: int) -> list[float]:
    """How bright the large map is in the middle of each (query, key)."""
    return page.evaluate(
        """([cells, queries]) => {
            const canvas = document.querySelector("#detail canvas");
            const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const cell = canvas.height / queries;
            return cells.map(([query, key]) => {
                const [x, y] = [key, query].map((at) => Math.floor((at + 0.5) * cell));
                const at = 4 * (y * canvas.width + x);
                const [red, green, blue] = image.data.slice(at, at + 3);
                return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
            });
        }""",
        [cells, queries],
    )


def corner_of(canvas) -> list[int]:
    """The color near the upper left corner of a canvas, read off a copy of it."""
    return canvas.evaluate(
        """canvas => {
            const copy = document.createElement("canvas");
            Object.assign(copy, { width: canvas.width, height: canvas.height });
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            return Array.from(context.getImageData(2, 2, 1, 1).data.slice(0, 3));
        }"""
    )


def gray_of(canvas, side: int) -> tuple[list[float], int]:
    """How near each patch is to the fog's gray, row by row, and how wide the canvas is."""
    return canvas.evaluate(
        """(canvas, across) => {
            const copy = document.createElement("canvas");
            Object.assign(copy, { width: canvas.width, height: canvas.height });
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const side = canvas.width / across;
            const gray = (row, column) => {
                const cut = context.getImageData(column * side, row * side, side, side).data;
                const away = cut.filter((_, at) => at % 4 < 3).reduce((sum, value) => sum + Math.abs(value - 128), 0);
                return -away / cut.length;
            };
            const patches = Array.from({ length: across ** 2 }, (_, at) => gray(Math.floor(at / across), at % across));
            return [patches, canvas.width];
        }""",
        side,
    )


def cell_center(page, query: int, key: int) -> tuple[float, float]:
    box = page.locator("#detail canvas").bounding_box()
    queries, keys = page.locator(".chip.query").count(), page.locator(".chip.key").count()
    return box["x"] + box["width"] * (key + 0.5) / keys, box["y"] + box["height"] * (query + 0.5) / queries


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_it_opens_on_the_last_step_of_cross_attention(report, visit, scheme, tmp_path):
    page = visit(report, scheme=scheme)
    assert page.locator("h1").inner_text() == "demo"
    assert page.locator("#step-shown").inner_text() == "step 1,600"
    assert page.locator("#sites button[aria-pressed=true]").inner_text() == "decoder · cross"
    assert page.locator(".thumbnail").count() == 12
    assert page.locator(".thumbnail[aria-pressed=true]").count() == 1
    assert page.locator("#curves .chart").count() >= 5
    assert page.locator("#samples tbody tr").count() == 8
    assert page.locator("#left-out").is_hidden()
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_the_slider_moves_the_step_and_the_map(run, report, visit):
    page = visit(report)
    before = page.locator("#head-grid canvas").first.evaluate("canvas => canvas.toDataURL()")
    page.locator("#step").fill("0")
    wait_for(page, "step", "100")
    assert page.locator("#step-shown").inner_text() == "step 100"
    assert page.locator("#head-grid canvas").first.evaluate("canvas => canvas.toDataURL()") != before
    assert page.locator("#samples-title").inner_text() == "Samples at step 200"


def test_hover_names_the_tokens_and_their_weight(run, report, visit):
    page = visit(report, "#site=decoder/cross&example=3&layer=1&head=2&step=1600")
    x, y = cell_center(page, 1, 3)
    page.mouse.move(x, y)
    weight = run.maps[1600]["decoder/cross"][1, 2, 2, 1, 3]
    tip = page.locator("#tip").inner_text()
    assert "▁acht" in tip
    assert "▁seven" in tip
    assert float(tip.split()[-1]) == pytest.approx(weight, abs=0.01)
    assert "“▁acht” attends to “▁seven”" in page.locator("#reading").inner_text()
    assert page.locator(".token.lit").all_inner_texts()[:1] != []
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_a_larger_weight_is_darker_on_light_and_lighter_on_dark(run, report, visit):
    place = "#site=decoder/cross&example=1&layer=0&head=1&step=1600"
    queries, keys = (len(run.labels.tokens[axis][0]) for axis in ("target", "source"))
    weights = run.maps[1600]["decoder/cross"][0, 0, 1]
    order = sorted((weights[q, k], q, k) for q in range(queries) for k in range(keys))[::10]
    for scheme, sign in (("light", -1), ("dark", 1)):
        page = visit(report, place, scheme)
        luminance = luminances(page, [(q, k) for _, q, k in order], queries)
        assert (np.diff(luminance) * sign >= -1).all()
        assert abs(luminance[-1] - luminance[0]) > 60


def test_a_click_holds_a_row_and_a_chip_shows_it(report, visit):
    page = visit(report, "#site=decoder/cross&example=1")
    page.mouse.click(*cell_center(page, 3, 4))
    wait_for(page, "row", "4")
    page.mouse.move(5, 5)
    assert "“tausend” attends to" in page.locator("#reading").inner_text()
    page.keyboard.press("Escape")
    wait_until(page, "!location.hash.includes('row') && document.body.dataset.shown === location.hash")
    page.locator(".chip.query").nth(1).hover()
    assert "“und” (2) attends to" in page.locator("#reading").inner_text()


def test_the_keyboard_goes_everywhere(report, visit):
    page = visit(report, "#site=encoder/self&example=1&layer=0&head=0&step=600")
    for key, name, value in (
        ("ArrowRight", "step", "800"),
        ("ArrowLeft", "step", "600"),
        ("ArrowDown", "layer", "1"),
        ("ArrowUp", "layer", "0"),
        ("ArrowUp", "layer", "2"),
        ("l", "head", "1"),
        ("h", "head", "0"),
        ("h", "head", "3"),
        ("e", "example", "2"),
        ("E", "example", "1"),
        ("s", "site", "decoder/self"),
        ("g", "gold_alignments", "0"),
    ):
        page.keyboard.press(key)
        wait_for(page, name, value)
        assert address(page)[name] == value


def test_the_space_bar_plays_whatever_was_clicked_before(report, visit):
    page = visit(report, "#site=decoder/cross&step=100")
    sites = {
        ".thumbnail >> nth=5": "decoder/cross",
        "#sites button >> nth=0": "encoder/self",
        "#rollout": "encoder/self",
    }
    for clicked, site in sites.items():
        page.locator(clicked).click()
        wait_for(page, "site", site)
        page.keyboard.press(" ")
        page.wait_for_selector("#play.playing")
        page.keyboard.press(" ")
        page.wait_for_selector("#play:not(.playing)")
    assert page.locator("#rollout").is_checked()
    # What the keyboard has reached, it pushes.
    page.locator("#sites button").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press(" ")
    wait_for(page, "site", "decoder/self")
    assert page.locator("#play.playing").count() == 0


def keys_named(page) -> dict[str, str]:
    """The keys that the page names, and what it says that they do."""
    parts = page.locator("#keys").evaluate("p => [...p.childNodes].map((each) => [each.nodeName, each.textContent])")
    named, keys = {}, []
    for kind, text in parts:
        keys, named = ([*keys, text], named) if kind == "KBD" else ([], {**named, text.strip(): " ".join(keys)})
    return named


def test_the_keys_that_are_named_are_those_that_act(report, long_run, visit):
    everywhere = {"step": "← →", "play": "space", "layer": "↑ ↓", "head": "h l", "row": "j k", "column": ", ."}
    everywhere |= {"release": "esc", "difference": "d", "lines": "t", "lines of all heads": "a"}
    everywhere |= {"save as PNG, SVG, CSV": "p v c"}
    here = {"site": "s", "example": "e", "gold alignments": "g", "attention rollout": "r"}
    page = visit(report)
    assert keys_named(page) == everywhere | here
    page.keyboard.press("t")
    wait_for(page, "draw", "lines")
    assert {"map", "add the row to the sum"} == keys_named(page).keys() - (everywhere | here).keys()
    assert {"lines", "gold alignments"} == (everywhere | here).keys() - keys_named(page).keys()
    # One site, one text, no links, and no whole maps that layers could be combined of.
    assert keys_named(visit(write_report(long_run.directory))) == everywhere


def test_no_word_of_the_trade_stands_where_a_plain_one_does(report, visit):
    words = visit(report, "#site=decoder/cross&compare=200").locator("body").inner_text()
    for jargon in ("known link", "hollow", "minus nothing", "its level", "probe"):
        assert jargon not in words, jargon


def test_play_runs_through_the_steps_and_stops(report, visit):
    page = visit(report, "#step=100")
    page.keyboard.press("Space")
    wait_for(page, "step", "400")
    page.locator("#play").click()
    shown = address(page)["step"]
    page.wait_for_timeout(800)
    assert address(page)["step"] == shown


def test_the_address_keeps_what_is_seen(report, visit):
    page = visit(report, "#site=decoder/self&example=3&layer=1&head=2&step=400&gold_alignments=0")
    assert page.locator("#detail-title").inner_text() == "layer 1 · head 2"
    assert page.locator("#step-shown").inner_text() == "step 400"
    assert page.locator("#example").input_value() == "2"
    page.evaluate("location.hash = '#site=encoder/self&step=800'")
    wait_for(page, "step", "800")
    assert page.locator("#step-shown").inner_text() == "step 800"
    # An address of another run, or a broken one, opens on something that is there.
    page = visit(report, "#site=nowhere&example=99&layer=x&head=&step=soon&row=7.5")
    assert address(page)["example"] == "8"


def test_gold_links_are_drawn_where_there_are_any(report, visit):
    page = visit(report, "#site=decoder/cross&example=3")
    assert page.locator(".link.sure").count() == 4
    assert page.locator(".link.possible").count() == 2
    page.locator("#gold-alignments").uncheck()
    page.wait_for_selector(".link", state="detached")
    page.locator("#sites button").first.click()
    wait_for(page, "site", "encoder/self")
    # Elsewhere the box keeps its place and says why it does nothing.
    assert page.locator("#gold-alignments").is_disabled()
    assert not page.locator("#gold-alignments").is_checked()
    assert page.locator("#gold-alignments-toggle").get_attribute("title") == "This site has no gold alignments."


def test_a_thumbnail_and_a_curve_are_doors(report, visit):
    page = visit(report)
    page.locator(".thumbnail").nth(6).click()
    wait_for(page, "layer", "1")
    assert page.locator("#detail-title").inner_text() == "layer 1 · head 2"
    chart = page.locator("#curves .chart > svg").first
    box = chart.bounding_box()
    chart.hover(position={"x": box["width"] / 2, "y": 60})
    assert 700 < int(page.locator("#tip .tip-head").inner_text().removeprefix("step ")) < 800
    assert page.locator("#tip .tip-row").first.inner_text().startswith("train")
    # Splits that were not measured at that step are read at their nearest.
    assert "at step 800" in page.locator("#tip .tip-row").nth(1).inner_text()
    chart.click(position={"x": 44, "y": 60})
    wait_for(page, "step", "100")
    assert page.locator("#once").inner_text() == ""
    page.locator("#more-curves summary").click()
    # The browser tells of the opening a moment later.
    page.locator("#more-curves .chart svg[role=img]").nth(1).wait_for()
    assert page.locator("#more-curves .chart svg[role=img]").count() == 2


def test_a_column_is_held_by_its_label_and_by_shift(run, report, visit):
    page = visit(report, "#site=decoder/cross&example=1&layer=2&head=3")
    x, y = cell_center(page, 3, 4)
    page.keyboard.down("Shift")
    page.mouse.click(x, y)
    page.keyboard.up("Shift")
    wait_for(page, "column", "5")
    page.mouse.move(5, 5)
    assert page.locator("#reading").inner_text().startswith("“▁thousand” is read by “tausend”")
    page.keyboard.press(".")
    wait_for(page, "column", "6")
    page.keyboard.press("j")
    wait_for(page, "row", "1")
    page.keyboard.press("j")
    wait_for(page, "row", "2")
    assert address(page)["column"] == "6"
    assert "“und” (2) attends to" in page.locator("#reading").inner_text()
    page.keyboard.press("Escape")
    wait_until(page, "!location.hash.includes('row') && !location.hash.includes('column')")
    top = page.locator("#detail canvas").first.bounding_box()["y"]
    page.mouse.click(x, top - 8)
    wait_for(page, "column", "5")
    # Once more lets go.
    page.mouse.click(x, top - 8)
    wait_until(page, "!location.hash.includes('column')")


def test_a_pooled_map_says_what_its_cells_are(long_run, visit):
    page = visit(write_report(long_run.directory), "#layer=1&head=2&step=40")
    assert "largest weight of 8 × 8 positions" in page.locator("#head-grid-note").inner_text()
    assert page.locator("#level-note").inner_text() == "Pooled: each cell is the largest weight of 4 × 4 positions."
    box = page.locator("#detail canvas").first.bounding_box()
    cells = 125
    page.mouse.move(box["x"] + box["width"] * 25.5 / cells, box["y"] + box["height"] * 50.5 / cells)
    tip = page.locator("#tip").inner_text()
    assert "“▁word200” … “▁word203” (201–204) → “▁word100” … “▁word103” (101–104)" in tip
    largest = long_run.maps[40]["decoder/self"][1, 0, 2, 200:204, 100:104].max()
    assert float(tip.split()[-1]) == pytest.approx(largest, abs=0.006)
    page.mouse.click(box["x"] + box["width"] * 25.5 / cells, box["y"] + box["height"] * 50.5 / cells)
    wait_for(page, "row", "201")
    page.locator(".key-list li").nth(4).wait_for()
    row = long_run.maps[40]["decoder/self"][1, 0, 2, 200]
    first = page.locator(".key-list li").first.inner_text().split()
    assert first[0] == f"▁word{row.argmax()}"
    assert float(first[-1]) == pytest.approx(row.max(), abs=0.006)
    # A row that is kept whole lists more keys than its five largest, and draws them all.
    page.locator(".whole-row-buttons button").nth(1).click()
    page.locator(".row-strip").wait_for()
    assert page.locator(".key-list li").count() == 12
    page.keyboard.press("J")
    wait_for(page, "row", "171")


def test_each_row_lies_over_the_image_of_its_own_step(agent_run, visit):
    page = visit(write_report(agent_run.directory), "#example=2&layer=0&head=0&step=1&row=1")
    images = agent_run.labels.images["region"][1]
    page.locator(".image-figure .note", has_text="the clearest patch").wait_for()
    for row, key in ((0, None), (1, "j")):
        if key:
            page.keyboard.press(key)
        wait_for(page, "row", str(row + 1))
        # Weights are even: no patch is dimmed.
        assert corner_of(page.locator("#image-overlay canvas")) == images[row, 0, 0].tolist()


def test_a_patch_of_the_image_is_a_query(image_run, visit):
    page = visit(write_report(image_run.directory), "#example=1&layer=0&head=0&step=40")
    frame = page.locator("#image-overlay svg")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    unheld = page.locator("#image-overlay canvas").evaluate("canvas => canvas.toDataURL()")
    frame.click(position={"x": box["width"] * 0.6, "y": box["height"] * 0.1})
    wait_for(page, "row", "4")
    page.mouse.move(5, 5)
    assert "“patch 1,3” attends to “patch 3,2”" in page.locator("#reading").inner_text()
    weights = image_run.maps[40]["encoder/self"][0, 0, 0, 3]
    caption = page.locator(".image-figure .note").inner_text()
    assert f"the clearest patch has weight {weights[1:].max():.3f}"[:-1] in caption
    assert page.locator("#image-overlay canvas").evaluate("canvas => canvas.toDataURL()") != unheld
    # The patch with the largest weight is as bright or dark as it was; where nothing is read, all is gray.
    gray, width = gray_of(page.locator("#image-overlay canvas"), 4)
    assert int(np.argmin(gray)) == int(weights[1:].argmax())
    assert width > 200
    # The class token stands in front of the patches.
    page.locator(".chip.query").first.click()
    wait_for(page, "row", "1")
    page.keyboard.down("Shift")
    frame.click(position={"x": box["width"] * 0.6, "y": box["height"] * 0.1})
    page.keyboard.up("Shift")
    wait_for(page, "column", "4")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_frames_have_a_time_axis_and_their_spectrogram(speech_run, visit, scheme):
    page = visit(write_report(speech_run.directory), "#site=encoder/self&example=2&layer=0&head=0", scheme)
    page.locator("canvas.strip").nth(1).wait_for()
    labels = page.locator("#detail .token.number").all_text_contents()
    assert {"0 s", "0.5 s", "1 s", "1.5 s"} <= set(labels)
    assert "2 s" not in labels
    box = page.locator("#detail .sheet > canvas:not(.strip)").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 10.5 / 45, box["y"] + box["height"] * 20.5 / 45)
    assert page.locator("#tip").inner_text().startswith("0.80 s → 0.40 s")
    strip = page.locator("canvas.strip").last.bounding_box()
    assert strip["width"] == pytest.approx(box["width"], abs=1) or strip["height"] == pytest.approx(
        box["height"], abs=1
    )
    page.locator("#sites button").nth(1).click()
    wait_for(page, "site", "decoder/cross")
    wait_until(page, "document.querySelectorAll('canvas.strip').length === 1")


@pytest.mark.slow
def test_the_sound_plays_offline_and_shows_which_frame_is_heard(speech_run, visit):
    page = visit(write_report(speech_run.directory), "#site=decoder/cross&example=2&layer=0&head=0")
    wait_until(page, "document.querySelector('#player audio')?.readyState >= 1")
    audio = "document.querySelector('#player audio')"
    assert page.evaluate(f"{audio}.duration") == pytest.approx(45 * 0.04, abs=0.01)
    page.evaluate(f"{audio}.muted = true, {audio}.currentTime = 1.0, {audio}.play()")
    wait_until(page, "document.querySelector('#detail rect.frame') !== null")
    page.evaluate(f"{audio}.pause()")
    wait_until(page, "document.querySelector('#detail rect.frame') === null")


def test_what_was_left_out_is_said(run, visit):
    whole = write_report(run.directory).stat().st_size
    path = write_report(run.directory, budget=whole // 2)
    page = visit(path)
    said = page.locator("#left-out").inner_text()
    assert "of 8 stored steps of maps are left out" in said
    write_report(run.directory)


def test_long_sequences_scroll_inside_their_panel(run, visit, tmp_path):
    words = tuple(f"word{n}" for n in range(128))
    site = run.sites[0]
    store = MapStore.open(tmp_path / "maps", (site,), AxisLabels({"source": (words,)}, ("long",)), "abc")
    store.write(
        1, {site.name: quantize_maps(np.full((3, 1, 4, 128, 128), 1 / 128, np.float32), store.levels(site.name))}
    )
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(run.directory / name, tmp_path / name)
    page = visit(write_report(tmp_path))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_narrow_page_needs_no_scrolling_sideways(report, visit):
    page = visit(report)
    page.set_viewport_size({"width": 400, "height": 900})
    wait_until(page, "document.querySelector('#curves .chart > svg').clientWidth < 360")
    wait_until(page, "document.documentElement.scrollWidth === 400")  # every figure is drawn anew by itself
    # Samples are cards that name their cells.
    assert page.locator("#samples thead").bounding_box()["height"] <= 1


def test_ticks_of_large_numbers_that_differ_little_differ(visit, tmp_path):
    write_run(tmp_path, steps=(100,))
    values = enumerate((6.3001e15, 6.3002e15, 6.3004e15, 6.30045e15), 1)
    lines = [{"step": 100 * at, "split": "train", "flops": value, "loss": 0.5**at} for at, value in values]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = visit(write_report(tmp_path))
    figure = page.locator("#curves .chart, #curves figure").filter(has_text="flops").first
    ticks = [tick for tick in figure.locator("svg .tick").all_text_contents() if tick.endswith("P")]
    assert len(ticks) >= 4
    assert len(set(ticks)) == len(ticks)


def test_a_page_of_one_step_has_no_slider_and_asks_for_no_other(visit, tmp_path):
    write_run(tmp_path, steps=(100,))
    page = visit(write_report(tmp_path))
    assert page.locator("#steps").is_hidden()
    assert page.locator("#compare-strategy").is_hidden()
    assert page.locator("#curves .chart").count() > 0
