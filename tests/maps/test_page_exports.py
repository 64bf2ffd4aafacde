"""What leaves the page and what must never enter it: files that it hands out, and strings that would be more."""

import csv
import dataclasses
import io
import json
import re
import xml.etree.ElementTree

import numpy as np
import pytest

from tests.downloads import downloaded
from tests.maps.test_page import address, browser, cell_center, report, visit, wait_for  # noqa: F401  fixtures and helpers
from transformer.maps.capture_plan import quantize_maps
from transformer.maps.report.page import write_report
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ATTACK = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"
# Fifty strings that a page, an address, an XML file or a spreadsheet could take for more than text.
HOSTILE = (
    ATTACK,
    SCRIPT,
    "<!--<script>",
    "-->",
    "]]>",
    "<![CDATA[",
    "<?xml version='1.0'?>",
    "<svg onload=alert(3)>",
    "<style>*{display:none}</style>",
    "</style><b>",
    "</title><h1>",
    "</textarea>",
    "<base href=//example.org>",
    "<meta http-equiv=refresh content=0>",
    "<iframe srcdoc='<script>alert(4)</script>'>",
    "<a href=javascript:alert(5)>",
    "{{script}}",
    "{{data}}",
    "${alert(6)}",
    "'\"`${alert(7)}",
    "`",
    '" onfocus=alert(8) autofocus="',
    "' onmouseover='alert(9)",
    "\\",
    "\\u003cscript>",
    "\\x3cimg src=x>",
    "&lt;b&gt;",
    "&#60;b&#62;",
    "&",
    "javascript:alert(10)",
    "data:text/html,<script>alert(11)</script>",
    "#site=nowhere&row=1",
    "%3Cscript%3E",
    "../../etc/passwd",
    "__proto__",
    "constructor",
    "=1+1",
    "+1",
    "-1",
    "@SUM(1)",
    "\t=1",
    '=HYPERLINK("x")',
    'a"b,c',
    "one\r\ntwo",
    "\x00",
    "\x1b[31m",
    "\ud800",
    "\udc00x",
    "\ufffe",
    "\u202eabc",
    "שלום",
    "\u2028\u2029",
    "\U0001f469\u200d\U0001f467",
    "e" + "\u0301" * 50,
    "\ufdfd",
    "",
    "   ",
    "x" * 10_000,
)


def saved(page, kind, directory, key=None):
    """What the page hands out when its button, or a key, is pressed."""
    button = page.locator(f"#export-{kind}")
    path = downloaded(page, button.click if key is None else lambda: page.keyboard.press(key), directory)
    assert path.suffix == f".{kind}"
    return path


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_what_is_seen_can_be_saved(run, report, visit, scheme, tmp_path):  # noqa: F811
    page = visit(report, "#site=decoder/cross&example=3&layer=1&head=2&step=1600", scheme)
    weights = run.maps[1600]["decoder/cross"][1, 2, 2, :5, :8]
    path = saved(page, "csv", tmp_path, key="c")
    assert path.name == "demo_decoder-cross_layer-1_head-2_step-1600_example-3.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    assert list(rows[0]) == ["query", "query_token", "key", "key_token", "weight"]
    assert (rows[11]["query_token"], rows[11]["key_token"]) == ("▁acht", "▁seven")
    assert np.array([float(row["weight"]) for row in rows]) == pytest.approx(weights.ravel(), abs=0.005)

    drawing = xml.etree.ElementTree.parse(saved(page, "svg", tmp_path)).getroot()
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert {"layer 1 · head 2", "▁acht", "▁seven", "weight, on a square-root scale"} <= set(texts)
    assert any("step 1,600" in text and "demo" in text for text in texts)
    cells = next(element for element in drawing.iter() if element.tag.endswith("}g") and len(element) == weights.size)
    order = np.argsort(weights.ravel())
    brightness = [sum(map(int, re.findall(r"\d+", cells[index].get("fill")))) for index in order]
    assert (np.diff(brightness) * (-1 if scheme == "light" else 1) >= -3).all()

    image = saved(page, "png", tmp_path).read_bytes()
    assert image.startswith(b"\x89PNG")
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == tuple(round(2 * float(drawing.get(side))) for side in ("width", "height"))


def test_a_curve_is_read_by_keys_is_a_door_and_can_be_saved(report, visit, tmp_path):  # noqa: F811
    page = visit(report, "#step=800")
    figure = page.locator("#curves .chart").first
    figure.locator("> svg").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#tip .tip-head").inner_text() == "step 1,600"
    # The arrow keys are the figure's own while it is read.
    assert address(page)["step"] == "800"
    page.keyboard.press("Enter")
    wait_for(page, "step", "1600")
    kinds = figure.locator("[data-save]")
    assert kinds.all_inner_texts() == ["PNG", "SVG", "CSV"]
    path = downloaded(page, kinds.nth(2).click, tmp_path)
    assert path.name == "demo_loss.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    assert [row["step"] for row in rows if row["series"] == "validation"] == [
        str(step) for step in range(200, 1601, 200)
    ]
    drawing = xml.etree.ElementTree.parse(downloaded(page, kinds.nth(1).click, tmp_path))
    texts = [each.text for each in drawing.iter() if each.tag.endswith("text")]
    assert {"loss", "train", "validation", "step"} <= set(texts)


@pytest.fixture(scope="module")
def hostile_report(run, tmp_path_factory):
    """A page whose every string is hostile."""
    directory = tmp_path_factory.mktemp("hostile")
    site = dataclasses.replace(run.sites[0], layers=("<b>",), heads=(ATTACK,))
    labels = AxisLabels(tokens={"source": (HOSTILE,) * len(HOSTILE)}, titles=HOSTILE)
    store = MapStore.open(directory / "maps", (site,), labels, ATTACK)
    count = len(HOSTILE)
    weights = np.full((1, count, 1, count, count), 1 / count, np.float32)
    store.write(1, {site.name: quantize_maps(weights, store.levels(site.name))})
    # Half a surrogate pair is refused in a run's config and in its records.
    texts = [text for text in HOSTILE if not any("\ud800" <= each <= "\udfff" for each in text)]
    (directory / "config.json").write_text(json.dumps({"name": ATTACK, **{text: text for text in texts}}))
    (directory / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": 1, "split": text, ATTACK: 1.0, text: 2.0}) + "\n" for text in HOSTILE[:20])
    )
    samples = [{"step": 1, "split": ATTACK, "source": t, "target": t, "output": t + " </table>"} for t in texts]
    (directory / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return write_report(directory)


def as_seen(text: str) -> str:
    """How the page shows a token: emptiness, spaces and control characters by signs, half a pair by its own."""
    seen = "∅" if text == "" else "␣" * len(text) if set(text) == {" "} else text
    seen = "".join(chr(0x2400 + ord(c)) if c < " " else c for c in seen).encode("utf-8", "replace").decode()
    return seen if len(seen) <= 40 else seen[:39] + "…"


def test_hostile_strings_are_shown_and_never_run(hostile_report, visit):  # noqa: F811
    assert len(set(HOSTILE)) >= 50
    page = visit(hostile_report)
    assert page.locator("h1").inner_text() == ATTACK
    chips = page.locator(".chip.query").all_text_contents()
    assert [chip.encode("utf-8", "replace").decode() for chip in chips] == [
        as_seen(text).replace("\ufffd", "?") if "\ud800" <= text[:1] <= "\udfff" else as_seen(text) for text in HOSTILE
    ]
    assert page.locator("#samples tbody tr").count() == 24
    assert page.locator("#example option").count() == len(HOSTILE)
    # Measured once: a figure, no curve.
    assert f"{ATTACK}, {ATTACK}, step 1" in page.locator("#once").inner_text()
    for number, text in enumerate(HOSTILE):
        page.mouse.move(*cell_center(page, number, 1))
        tip = page.locator("#tip").text_content()
        assert SCRIPT in tip
        assert text.startswith(("\ud800", "\udc00")) or as_seen(text)[:30] in tip
    for tag in ("img", "iframe", "base", "b b", "a", "svg script", "h1 h1"):
        assert page.locator(f"body {tag}").count() == 0
    assert page.locator("script").count() == page.evaluate("document.querySelectorAll('body > script').length")


def test_hostile_strings_stay_text_in_what_is_saved(hostile_report, visit, tmp_path):  # noqa: F811
    page = visit(hostile_report)
    rows = list(csv.reader(io.StringIO(saved(page, "csv", tmp_path).read_text("utf-8-sig"), newline="")))
    cells = {cell for row in rows[1:] for cell in (row[1], row[3])}
    assert len(rows) == len(HOSTILE) ** 2 + 1
    assert {"'=1+1", "'+1", "'-1", "'@SUM(1)", "'\t=1", 'a"b,c', ATTACK, "␀"} <= cells
    assert not any(cell.lstrip().startswith(("=", "+", "-", "@")) for cell in cells)
    drawing = xml.etree.ElementTree.parse(saved(page, "svg", tmp_path)).getroot()
    tags = {element.tag.partition("}")[2] for element in drawing.iter()}
    assert tags <= {"svg", "g", "title", "rect", "line", "path", "text"}
    assert not any(name.startswith("on") or "href" in name for each in drawing.iter() for name in each.attrib)
