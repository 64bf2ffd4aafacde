"""Where things stand on the page in a real browser: controls stay put, nothing is cut, and room is used."""

import json
import shutil

import pytest

from tests.maps.conftest import write_image_run
from tests.maps.test_page import browser, report, visit, wait_for  # noqa: F401  fixtures and helpers
from tests.waiting import wait_until
from transformer.maps.report.page import write_report

pytestmark = pytest.mark.browser
# Of every control of the head card that is seen, its place in the card: left, top, width, height.
CONTROL_BOXES = """() => {
    const card = document.querySelector(".detail-panel").getBoundingClientRect();
    const names = ["#drawing button", "#exports button", ".detail-panel label"];
    const controls = [...document.querySelectorAll(names.join(","))];
    return controls.filter((each) => each.getClientRects().length).map((each) => {
        const box = each.getBoundingClientRect();
        return [each.textContent.trim(), box.left - card.left, box.top - card.top, box.width, box.height];
    });
}"""


@pytest.mark.parametrize("width", [1400, 900, 400])
def test_the_controls_of_the_head_card_stay_where_they_are(report, visit, width):  # noqa: F811
    page = visit(report, "#site=encoder/self&layer=0&head=0", shown=False)
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_selector("body[data-shown]")
    boxes = {}
    for site in ("encoder/self", "decoder/self", "decoder/cross"):
        for drawn in ("map", "lines"):
            lines = "&draw=lines" if drawn == "lines" else ""
            page.evaluate(
                "(hash) => (location.hash = hash)", f"#site={site}&layer=1&head=2&step=800&compare=100{lines}"
            )
            wait_until(page, f"document.querySelector('#drawing [aria-pressed=true]').textContent === '{drawn}'")
            wait_for(page, "site", site)
            boxes[site, drawn] = page.evaluate(CONTROL_BOXES)
    first, *others = boxes.values()
    assert {name for name, *_ in first} >= {"map", "lines", "PNG", "SVG", "CSV", "gold alignments", "attention rollout"}
    assert all(each == first for each in others), boxes


@pytest.mark.parametrize("address", ["", "&draw=lines", "&row=3"])
def test_no_hint_is_cut_on_a_narrow_page(report, visit, address):  # noqa: F811
    page = visit(report, f"#site=decoder/cross&layer=1&head=2{address}", shown=False)
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_selector("body[data-shown]")
    page.wait_for_timeout(200)
    hints = page.locator(".note:visible")
    cut = hints.evaluate_all(
        "all => all.filter((each) => each.scrollHeight > each.clientHeight + 1).map((each) => each.id)"
    )
    assert hints.count() > 3
    assert cut == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_focus_follows_the_choice(report, visit):  # noqa: F811
    page = visit(report, "#site=encoder/self&layer=0&head=0")
    focused = "document.activeElement.getAttribute('aria-pressed')"
    page.locator("#drawing button", has_text="map").focus()
    page.keyboard.press("t")
    wait_for(page, "draw", "lines")
    assert page.evaluate("document.activeElement.textContent") == "lines"
    for place, key, part, value in (
        ("#sites button[aria-pressed=true]", "s", "site", "decoder/self"),
        (".thumbnail[aria-pressed=true]", "l", "head", "2"),
        (".head-chip[aria-pressed=true]", "l", "head", "3"),
    ):
        page.locator(place).focus()
        page.keyboard.press(key)
        wait_for(page, part, value) if part == "site" else page.wait_for_timeout(300)
        assert page.evaluate(focused) == "true", place
    # Who has gone on with Tab to another keeps it while the maps play.
    page.locator(".thumbnail").nth(5).focus()
    page.keyboard.press("ArrowLeft")
    wait_for(page, "step", "1300")
    assert page.evaluate(focused) == "false"


def test_thumbnails_of_few_heads_use_the_room(visit, tmp_path):  # noqa: F811
    write_image_run(tmp_path / "run")
    page = visit(write_report(tmp_path / "run"))
    grid = page.locator("#head-grid").bounding_box()
    last = page.locator(".thumbnail").nth(2).bounding_box()
    assert last["x"] + last["width"] > grid["x"] + 0.75 * grid["width"]
    assert last["x"] + last["width"] <= grid["x"] + grid["width"] + 1


def test_curves_that_few_need_are_under_the_fold(run, visit, tmp_path):  # noqa: F811
    copy = tmp_path / "run"
    shutil.copytree(run.directory, copy)
    speeds = ("flops_per_step", "batch_wait", "steps_per_second", "mfu", "skipped_updates")
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        if line["split"] == "train":
            line.update({name: 0.0 if name == "skipped_updates" else 1.0 + number for name in speeds})
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = visit(write_report(copy))
    main = page.locator("#curves strong").all_inner_texts()
    assert main[0] == "loss"
    folded = page.locator("#more-curves strong").all_text_contents()
    assert {name.replace("_", " ") for name in speeds} <= set(folded)
    assert not set(main) & set(folded)
    assert page.locator("#more-curves summary").inner_text().startswith(f"{len(folded)} more: ")
    page.locator("#metric-meanings summary").click()
    meanings = dict(
        zip(*(page.locator(f"#metric-meanings {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True)
    )
    assert meanings["batch wait"] == "Share of the time in which the loop waited for the next batch"
    # Updates that were skipped are news.
    lines[-1].update(skipped_updates=2.0, split="train")
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = visit(write_report(copy))
    assert "skipped updates" in page.locator("#curves strong").all_inner_texts()
