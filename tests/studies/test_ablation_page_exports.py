"""What leaves the page of an ablation, what must never run in it, and what can be said of it without a browser."""
# ruff: noqa: F811  fixtures are named as the imports that bring them

import csv
import io
import json
import re
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from tests.downloads import downloaded
from tests.maps.test_page import browser, visit  # noqa: F401  fixtures
from tests.studies.example_result import RATE, WARMUP, whole_report, whole_result, write_page
from tests.studies.test_ablation_page import page, page_file, result, tip_of  # noqa: F401  fixtures and a helper
from transformer.studies.ablations.formatting import format_runs_csv
from transformer.studies.ablations.page import render

ATTACK = "<img src=x onerror=alert(1)>"
HOSTILE = (
    "</script><script>alert(2)</script>",
    "__proto__",
    "constructor",
    "'\"`${alert(3)}{{data}}",
    "\u2028\x1b",
    "",
)


def drawing_of(page, button, directory: Path) -> xml.etree.ElementTree.Element:
    """The drawing that is saved when `button` is clicked."""
    return xml.etree.ElementTree.parse(downloaded(page, button.click, directory)).getroot()


@pytest.mark.browser
def test_the_data_can_be_saved(result, page, tmp_path):
    path = downloaded(page, page.locator("#save-json").click, tmp_path)
    assert path.name == "norm-placement.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(result))
    path = downloaded(page, page.locator("#save-csv").click, tmp_path)
    rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline="")))
    expected = list(csv.DictReader(io.StringIO(format_runs_csv(whole_report()))))
    assert list(rows[0]) == list(expected[0])
    for row, other in zip(rows, expected, strict=True):
        for name in row:
            numeric = name in ("selection_value", "reported_value", RATE, WARMUP) and row[name]
            assert (float(row[name]), float(other[name])) if numeric else row[name] == other[name]
            assert not numeric or float(row[name]) == float(other[name])


@pytest.mark.browser
@pytest.mark.parametrize("scheme", [pytest.param(each, marks=pytest.mark.slow) for each in ("light", "dark")])
def test_every_figure_can_be_saved(page_file, visit, scheme, tmp_path):
    page = visit(page_file, scheme=scheme)
    # In the dark one of each kind is enough.
    kinds = "figure" if scheme == "light" else "#values, #differences, #bands-figure, #maps"
    for figure in page.locator(kinds).all():
        drawing = xml.etree.ElementTree.parse(
            downloaded(page, figure.locator("[data-save=svg]").click, tmp_path)
        ).getroot()
        tags = {element.tag.partition("}")[2] for element in drawing.iter()}
        assert tags <= {"svg", "g", "title", "rect", "line", "path", "circle", "text"}
        assert not any(name in ("class", "style") or "href" in name for each in drawing.iter() for name in each.attrib)
        texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
        assert {"pre", "post", "sandwich", "deepnorm", "parallel"} <= set(texts)
        assert figure.locator("strong").inner_text() in texts
        inks = {element.get("stroke") for element in drawing.iter() if element.tag.endswith(("line", "path"))}
        assert len(inks) >= 5
    path = downloaded(page, page.locator("#differences [data-save=png]").click, tmp_path)
    image = path.read_bytes()
    drawing = xml.etree.ElementTree.parse(
        downloaded(page, page.locator("#differences [data-save=svg]").click, tmp_path)
    ).getroot()
    assert path.name == "norm-placement_differences.png"
    size = tuple(int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    assert size == tuple(2 * int(drawing.get(side)) for side in ("width", "height"))
    assert len(image) > 10_000


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    """A study whose every string is hostile."""
    arms = (ATTACK, *HOSTILE)
    text = json.dumps(whole_result(arms=arms, tasks=(ATTACK, "__proto__")))
    for word in ("encoder/self", "decoder-only", "validation/loss", "trials/", "0123456789abcdef", "norm_placement"):
        text = text.replace(word, json.dumps(ATTACK + HOSTILE[0] + word)[1:-1])
    result = json.loads(text)
    result["question"] = result["about"]["hardware"] = ATTACK + HOSTILE[0]
    result["summary"] = result["warnings"] = [ATTACK, *HOSTILE]
    return write_page(result, tmp_path_factory.mktemp("hostile") / "page.html")


@pytest.mark.browser
def test_hostile_strings_are_shown_and_never_run(hostile_page, visit, tmp_path):
    page = visit(hostile_page)
    assert page.locator("h1").inner_text() == ATTACK + HOSTILE[0]
    assert page.locator("#summary li").nth(1).inner_text() == HOSTILE[0]
    names = page.locator(".arm-button .arm-name").all_text_contents()
    assert names[:4] == [ATTACK, *HOSTILE[:3]]
    assert names[-1] == "∅"
    for tag in ("img", "iframe", "body script script", "h1 *"):
        assert page.locator(tag).count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("#arms-table tbody tr").count() == len(HOSTILE) + 1
    for figure in ("values", "bands-figure", "maps"):
        page.locator(f"#{figure} > svg").focus()
        page.keyboard.press("ArrowRight")
        assert tip_of(page)
    page.locator("#cells-table th button").first.click()
    rows = list(
        csv.reader(
            io.StringIO(downloaded(page, page.locator("#save-csv").click, tmp_path).read_text("utf-8-sig"), newline="")
        )
    )
    assert len(rows) == page.locator("#cells-table tbody tr").count() + 1
    assert not any(cell.lstrip().startswith(("=", "+", "@")) for row in rows for cell in row)
    for figure in page.locator("#values, #maps").all():
        drawing = xml.etree.ElementTree.parse(
            downloaded(page, figure.locator("[data-save=svg]").click, tmp_path)
        ).getroot()
        assert not any(name.startswith("on") for each in drawing.iter() for name in each.attrib)


# --- without a browser


def test_a_page_is_one_file_with_all_its_data(result, page_file):
    text = page_file.read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    assert json.loads(data) == json.loads(json.dumps(result))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r'(?:src|href|url\()\s*=?\s*["\']?(?:https?:)?//', text)
    with pytest.raises(ValueError, match="JSON compliant"):
        render(result | {"target": float("nan")})


VISIONS = {  # Machado et al. 2009, linear RGB: all cones, no long ones, no middle ones
    "all": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize(("scheme", "panel"), [("light", "#ffffff"), ("dark", "#171a20")])
def test_the_colors_of_the_arms_are_told_apart(result, scheme, panel):
    pairs = re.findall(r"--series-\d: light-dark\((#\w{6}), (#\w{6})\);", render(result))
    colors = [pair[scheme == "dark"] for pair in pairs]
    assert len(colors) == 8
    linear = np.array([linear_light(color) for color in (*colors, panel)])
    luminance = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    contrast = np.maximum(luminance[:-1], luminance[-1]) / np.minimum(luminance[:-1], luminance[-1])
    assert contrast.min() >= 3
    for matrix in VISIONS.values():
        # CIE Lab of D65; about 2.3 is the least difference that is seen.
        xyz = np.clip(linear[:-1] @ np.transpose(matrix), 0, 1) @ TO_XYZ.T / TO_XYZ.sum(axis=1)
        f = np.cbrt(xyz)
        lab = np.stack([116 * f[:, 1], 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)
        apart = np.linalg.norm(lab[:, None] - lab, axis=-1)[np.triu_indices(8, 1)]
        assert apart.min() >= 15


TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear_light(color: str) -> np.ndarray:
    value = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
