"""The line view in a real browser: a line where there is a weight, sums over tokens and heads, keys for it all."""

import csv
import io
import re
import xml.etree.ElementTree

import numpy as np
import pytest

from tests.downloads import downloaded
from tests.maps.test_page import address, browser, report, visit, wait_for  # noqa: F401  fixtures and helpers
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SITE, EXAMPLE, LAYER = "decoder/cross", 2, 1
PLACE = f"#site={SITE}&example={EXAMPLE + 1}&layer={LAYER}&head=2&step=1600&draw=lines"
INK = """(side) => {
    const canvas = document.querySelector(".strands canvas");
    const copy = document.createElement("canvas");
    Object.assign(copy, { width: canvas.width, height: canvas.height });
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const image = context.getImageData(0, 0, canvas.width, canvas.height);
    const labels = [...document.querySelectorAll(`.strands text.token[text-anchor=${side ? "start" : "end"}]`)];
    const x = Math.round(Number(labels[0].getAttribute("x")) + (side ? -12 : 12));
    return labels.map((label) => {
        const y = Math.round(Number(label.getAttribute("y")) - 4);
        return Math.max(...[-2, -1, 0, 1].map((by) => image.data[4 * ((y + by) * canvas.width + x) + 3]));
    });
}"""


def ink(page, keys: bool) -> np.ndarray:
    """How much of a line is drawn at each key, or at each query."""
    return np.array(page.evaluate(INK, keys))


def weights_of(run, head: int, step: int = 1600) -> np.ndarray:
    """The exact weights of the example: [query, key]."""
    queries, keys = (len(run.labels.tokens[axis][EXAMPLE]) for axis in ("target", "source"))
    return run.maps[step][SITE][LAYER, EXAMPLE, head, :queries, :keys]


def test_the_lines_of_a_query_are_its_weights(run, report, visit):  # noqa: F811
    page = visit(report, f"{PLACE}&row=2")
    row = weights_of(run, 2)[1]
    drawn = ink(page, keys=True)
    assert len(drawn) == len(row)
    assert (drawn[row > 0.03] > 0).all()
    assert (drawn[row < 0.01] == 0).all()
    assert drawn.argmax() == row.argmax()
    # Of the other queries nothing is drawn, until none is held.
    assert (ink(page, keys=False) > 0).tolist() == [False, True, False, False, False]
    assert f"{row.max():.1f}"[:3] in page.locator("#reading").inner_text()
    page.keyboard.press("Escape")
    wait_until(page, "!location.hash.includes('row') && document.body.dataset.shown === location.hash")
    assert (ink(page, keys=False) > 0).all()


def test_several_tokens_and_heads_are_summed(run, report, visit):  # noqa: F811
    page = visit(report, PLACE)
    for token in (0, 3):
        page.locator(".strands text.token[text-anchor=end]").nth(token).click(force=True)
    wait_for(page, "tokens", "1,4")
    page.mouse.move(5, 5)
    assert (ink(page, keys=False) > 0).tolist() == [True, False, False, True, False]
    summed = weights_of(run, 2)[[0, 3]].sum(axis=0)
    words = page.locator("#reading").inner_text()
    assert words.startswith("“▁halb” + “▁Abend” together read ")
    first = run.labels.tokens["source"][EXAMPLE][int(summed.argmax())]
    assert float(re.search(rf"“{first}” ([\d.]+)", words)[1]) == pytest.approx(summed.max(), abs=0.02)
    page.keyboard.press("a")
    wait_for(page, "also", "1,2,4")
    assert page.locator(".line-head[aria-pressed=true]").count() == 4
    mean = np.mean([weights_of(run, head)[[0, 3]].sum(axis=0) for head in range(4)], axis=0)
    words = page.locator("#reading").inner_text()
    assert "summed, mean of 4 heads" in words
    first = run.labels.tokens["source"][EXAMPLE][int(mean.argmax())]
    assert float(re.search(rf"“{first}” ([\d.]+)", words)[1]) == pytest.approx(mean.max(), abs=0.02)
    # Who is sent the address sees the same.
    again = visit(report, page.evaluate("location.hash"))
    assert again.locator("#reading").inner_text() == words
    # A head is taken away, and the one that leads may be it.
    page.locator(".line-head").nth(2).click()
    wait_for(page, "head", "0")
    assert address(page)["also"] == "2,4"


def test_the_lines_follow_the_step_and_the_keyboard(report, visit):  # noqa: F811
    page = visit(report, PLACE.replace("&draw=lines", ""))
    assert page.locator(".strands").count() == 0
    page.keyboard.press("t")
    wait_for(page, "draw", "lines")
    before = ink(page, keys=True)
    page.keyboard.press("ArrowLeft")
    wait_for(page, "step", "1300")
    page.locator("#step").fill("0")
    wait_for(page, "step", "100")
    assert (ink(page, keys=True) != before).any()
    for key in ("j", "x", "j", "j", "x"):
        page.keyboard.press(key)
    wait_for(page, "tokens", "1,3")
    assert page.locator(".strands text.token.lit").all_text_contents() == ["▁halb", "▁am"]
    page.keyboard.press("s")
    wait_for(page, "site", "encoder/self")
    assert "tokens" not in address(page)
    page.keyboard.press("t")
    wait_until(page, "!location.hash.includes('draw') && document.body.dataset.shown === location.hash")
    assert page.locator(".strands").count() == 0


def part(element) -> str:
    """The name of an element without its namespace."""
    return element.tag.partition("}")[2]


def test_the_lines_are_saved_as_they_are_seen(run, report, visit, tmp_path):  # noqa: F811
    page = visit(report, f"{PLACE}&also=4&row=2")
    rows = {head: weights_of(run, head)[1] for head in (2, 3)}
    path = downloaded(page, page.locator("#export-svg").click, tmp_path)
    assert path.name == "demo_decoder-cross_layer-1_head-2-3_lines_step-1600_example-3.svg"
    drawing = xml.etree.ElementTree.parse(path).getroot()
    texts = {element.text for element in drawing.iter() if part(element) == "text"}
    tokens = {token for axis in ("target", "source") for token in run.labels.tokens[axis][EXAMPLE]}
    assert {*tokens, "layer 1 · heads 2, 3", "head 2", "head 3", "source", "target"} <= texts
    # From the one query to each key a line of each head, where its weight is enough to be drawn.
    groups = [each for each in drawing.iter() if part(each) == "g" and each.get("stroke")]
    assert len({group.get("stroke") for group in groups}) == len(groups) == 2
    for group, row in zip(groups, rows.values(), strict=True):
        lines = [(line, shade) for shade in group for line in shade if part(line) == "line"]
        ends = {float(line.get("y2")): float(shade.get("stroke-width")) for line, shade in lines}
        assert {line.get("y1") for line, _ in lines} == {"62"}
        sure = np.flatnonzero((row > 0.03) | (row < 0.01))
        where = 26 + 24 * (np.arange(len(row)) + 0.5)
        assert [where[key] in ends for key in sure] == [bool(row[key] > 0.03) for key in sure]
        assert max(ends, key=ends.get) == where[row.argmax()]
    image = downloaded(page, lambda: page.keyboard.press("p"), tmp_path).read_bytes()
    assert image.startswith(b"\x89PNG")
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == tuple(round(2 * float(drawing.get(side))) for side in ("width", "height"))
    table = downloaded(page, lambda: page.keyboard.press("c"), tmp_path).read_text("utf-8-sig")
    cells = list(csv.DictReader(io.StringIO(table, newline="")))
    assert [cell["head"] for cell in cells[:: 5 * 8]] == ["2", "3"]
    of_row = [float(cell["weight"]) for cell in cells if cell["query"] == "2"]
    assert of_row == pytest.approx([*rows[2], *rows[3]], abs=0.005)


def test_a_narrow_page_has_room_for_the_lines(report, visit):  # noqa: F811
    page = visit(report, PLACE, shown=False)
    page.set_viewport_size({"width": 400, "height": 800})
    wait_until(page, "document.querySelector('.strands')?.clientWidth < 380")
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert (ink(page, keys=False) > 0).all()
