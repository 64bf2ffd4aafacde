"""The page of an ablation in a real browser: its numbers are the result's, and it asks for nothing."""

import json
import re

import numpy as np
import pytest

from tests.maps.test_page import browser, visit  # noqa: F401  fixtures
from tests.studies.example_result import least_result, whole_result, write_page
from tests.waiting import wait_until

PANELS = [
    "verdict",
    "arms",
    "seeds",
    "profiles",
    "bands",
    "sensitivity",
    "map",
    "gradients",
    "heads",
    "configs",
    "cells",
]


@pytest.fixture(scope="module")
def result():
    return whole_result()


@pytest.fixture(scope="module")
def page_file(result, tmp_path_factory):
    return write_page(result, tmp_path_factory.mktemp("study") / "page.html")


@pytest.fixture
def page(page_file, visit):  # noqa: F811
    return visit(page_file)


def number_of(text: str) -> float:
    return float(re.search(r"[−+]?[\d,]+(?:\.\d+)?(?:e-?\d+)?", text)[0].replace("−", "-").replace(",", ""))


def assert_shown(found: list[tuple[str, str]], expected: list[float | None]) -> None:
    """Elements hold the very numbers, and what is read differs by no more than its last digit's half."""
    assert [float(value) for value, _ in found] == [number for number in expected if number is not None]
    for value, text in found:
        seen = re.search(r"[\d,]*\.?(\d*)", text.lstrip("−+< "))
        unit = 10.0 ** -len(seen[1])
        if "FLOP" in text:
            continue
        scale = 100 if "%" in text else 1
        assert abs(number_of(text) - scale * float(value)) <= (unit if "<" in text else unit / 2) * 1.001, (value, text)


def numbers_in(place) -> list[tuple[str, str]]:
    return place.locator("data").evaluate_all("all => all.map((each) => [each.value, each.textContent])")


def tip_of(page) -> str:
    assert page.locator("#tip").is_visible()
    return page.locator("#tip").inner_text()


def expected_in_row(result: dict, arm: dict) -> list[float | None]:
    pair = next((each for each in result["comparisons"] if each["arm"] == arm["name"] and each["task"] is None), None)
    row = [arm["mean"], *(arm["interval"] or ()), arm["iqm"]["value"], *(arm["iqm"]["interval"] or ())]
    if pair:
        row += [pair["difference"], *(pair["interval"] or ()), pair["p_adjusted"], pair["p"], pair["p_permutation"]]
        row += [pair["p_bootstrap"]]
        row += [pair["improvement"]["value"], *(pair["improvement"]["interval"] or ())]
    runs, target = arm["run_counts"], arm["to_target"]
    return [
        *row,
        runs["diverged"],
        *runs["interval"],
        target["reached"],
        target["steps"],
        target["flops"],
        arm["parameters"],
    ]


@pytest.mark.browser
def test_the_table_of_arms_is_the_result(result, page):
    rows = page.locator("#arms-table tbody tr")
    assert rows.count() == len(result["arms"])
    for number, arm in enumerate(result["arms"]):
        found = numbers_in(rows.nth(number))
        assert_shown(found, expected_in_row(result, arm))
        assert "covers 90%" in rows.nth(number).inner_text() or arm["iqm"]["interval"] is None
    verdicts = [pair["verdict"] for pair in result["comparisons"] if pair["task"] is None]
    assert [words[1:] for words in page.locator("#arms-table .verdict").all_text_contents()] == verdicts
    assert set(verdicts) == {"better", "worse", "no difference seen", "not judged"}
    assert f"{result['arms'][1]['run_counts']['diverged']} of 120" in rows.nth(1).inner_text()
    assert page.locator("#summary li").all_inner_texts() == result["summary"]
    assert page.locator("#warnings li").all_inner_texts() == result["warnings"]
    page.get_by_text("Each task by itself").first.click()
    pairs = [pair for pair in result["comparisons"] if pair["task"] is not None]
    for row, pair in zip(page.locator("#tasks-table tbody tr").all(), pairs, strict=True):
        probabilities = [pair[name] for name in ("p_adjusted", "p", "p_permutation", "p_bootstrap")]
        assert_shown(numbers_in(row), [pair["difference"], *(pair["interval"] or ()), *probabilities])


@pytest.mark.browser
def test_a_study_with_seeds_that_were_added_says_so_beside_every_verdict(visit, tmp_path):  # noqa: F811
    result = whole_result(arms=("pre", "post"), tasks=("phrases",), first_judged_seeds=(1, 2, 3))
    page = visit(write_page(result, tmp_path / "exploratory.html"))
    assert "Exploratory: seeds 4 and 5 were added" in page.locator("#summary li").first.inner_text()
    (cell,) = page.locator("#arms-table td:has(.verdict)").all_inner_texts()
    assert "better" in cell
    assert "exploratory" in cell


@pytest.mark.browser
def test_a_whole_study_has_every_panel_and_each_figure_its_words(result, page):
    assert page.locator("section.panel").evaluate_all("all => all.map((each) => each.id)") == PANELS
    assert page.locator("h1").inner_text() == result["question"]
    facts = page.locator("#facts").inner_text()
    assert all(words in facts for words in ("5 arms × 5 seeds × 2 tasks", "600 runs", "1 x cpu", "commit 0123456789ab"))
    assert result["about"]["command"] in page.locator(".command code").inner_text()
    figures = page.locator("figure")
    assert figures.count() == 2 + 1 + 1 + 3 + 1 + 6 + 6
    for svg in page.locator("figure > svg").all():
        name, description = svg.get_attribute("aria-labelledby"), svg.get_attribute("aria-describedby")
        assert page.locator(f"#{name}").inner_text().strip()
        assert len(page.locator(f"#{description}").text_content()) > 30
        assert svg.get_attribute("tabindex") == "0"
    drawn = page.locator("figure > svg").evaluate_all("all => all.map((each) => each.outerHTML)")
    assert not any(words in each for each in drawn for words in ("NaN", "undefined", "Infinity"))


@pytest.mark.browser
def test_what_differs_is_said_in_full(result, page):
    blocks = page.locator(".arm-config")
    assert "The reference." in blocks.nth(0).inner_text()
    for number, arm in enumerate(result["arms"][1:], 1):
        cells = blocks.nth(number).locator("tbody tr").first.locator("th, td").all_inner_texts()
        assert [cells] == [[each["key"], each["reference"], each["arm"]] for each in arm["differences"]]
    assert "All 96 arrays of parameters begin with the reference's values." in blocks.nth(1).inner_text()
    assert "Of 96 arrays of parameters 90 begin" in blocks.nth(2).inner_text()
    blocks.nth(2).get_by_text("6 arrays with no counterpart in the reference").click()
    paths = blocks.nth(2).locator("li").all_inner_texts()
    assert paths == result["arms"][2]["shared"]["unmatched_paths"]
    page.get_by_text("Base configuration").click()
    base = page.locator("#configs .config").last.inner_text()
    assert "model.norm_placement" in base
    assert "optimizer.warmup_steps" in base


@pytest.mark.browser
def test_a_least_study_has_no_empty_panel(visit, tmp_path):  # noqa: F811
    page = visit(write_page(least_result(), tmp_path / "least.html"))
    shown = page.locator("section.panel").evaluate_all("all => all.map((each) => each.id)")
    assert shown == ["verdict", "arms", "seeds", "sensitivity", "configs", "cells"]
    heads = page.locator("#arms-table thead th").all_inner_texts()
    assert heads == ["arm", "test/loss", "difference", "verdict", "diverged"]
    assert "not judged" in page.locator("#arms-table").inner_text()
    assert "1 seed only" in page.locator("#warnings").inner_text()
    assert page.locator("figure").count() == 3
    assert not any(words in page.locator("body").inner_text() for words in ("NaN", "undefined", "null"))


@pytest.mark.browser
def test_every_seed_is_drawn_where_it_lies(result, page):
    pairs = [pair for pair in result["comparisons"] if pair["differences"]]
    order = [arm["name"] for arm in result["arms"]]
    pairs.sort(key=lambda pair: (order.index(pair["arm"]), pair["task"] is not None))
    values = [each["value"] for pair in pairs for each in pair["differences"]]
    places = page.locator("#differences circle.seed").evaluate_all("all => all.map((each) => +each.getAttribute('cx'))")
    assert len(places) == len(values) == 4 * 15 - 2
    slope, offset = np.polyfit(values, places, 1)
    assert np.abs(np.array(values) * slope + offset - places).max() < 0.01
    zero = float(page.locator("#differences .zero").get_attribute("x1"))
    assert offset == pytest.approx(zero, abs=0.01)
    page.locator("#seeds select").select_option("reversal")
    # The pair that is lost: in one facet a cross stands for it.
    assert page.locator("#values .cross").count() == 1
    assert page.locator("#values .join").count() == 4 * 5 - 1
    svg = page.locator("#values > svg")
    svg.focus()
    page.keyboard.press("ArrowRight")
    mine, theirs = (
        next(each["value"] for each in result["arms"][n]["seeds"] if (each["task"], each["seed"]) == ("reversal", 1))
        for n in (0, 1)
    )
    words = tip_of(page)
    assert "seed 1, reversal" in words
    shown = [number_of(text) for text in page.locator("#tip b").all_inner_texts()]
    assert shown == pytest.approx([mine, theirs], abs=6e-5)
    assert number_of(words.split("difference")[1]) == pytest.approx(theirs - mine, abs=6e-5)


@pytest.mark.browser
def test_lines_are_read_by_pointer_and_by_keys(result, page):
    svg = page.locator("#bands-figure > svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 100)
    step = number_of(page.locator("#tip .tip-head").inner_text())
    bands = [arm["bands"]["validation/loss"] for arm in result["arms"]]
    expected = [band["middle"][band["steps"].index(step)] for band in bands]
    assert [number_of(text) for text in page.locator("#tip b").all_inner_texts()] == pytest.approx(expected, rel=1e-3)
    low, high = (bands[0][end][bands[0]["steps"].index(step)] for end in ("low", "high"))
    said = page.locator("#tip i").first.inner_text()
    assert [float(text) for text in re.findall(r"\d+\.\d+", said)] == pytest.approx([low, high], rel=1e-3)
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()
    svg.focus()
    page.keyboard.press("ArrowLeft")
    assert number_of(page.locator("#tip .tip-head").inner_text()) == bands[0]["steps"][-1]
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    # Another metric, and the other scale.
    assert page.locator("#bands-log").is_checked()
    page.locator("#bands select").select_option("train/loss (phrases)")
    assert page.locator("#bands-figure strong").inner_text() == "train/loss (phrases)"
    before = svg.locator(".stroke").first.get_attribute("d")
    page.locator("#bands-log").uncheck()
    assert svg.locator(".stroke").first.get_attribute("d") != before
    assert "(log)" not in svg.text_content()


@pytest.mark.browser
def test_the_bar_hides_and_shows_an_arm_everywhere(page):
    post = page.locator(".arm-button", has_text="post")
    drawn = page.locator("figure > svg .series-1")
    before = drawn.count()
    assert before > 50
    post.click()
    assert post.get_attribute("aria-pressed") == "false"
    assert drawn.count() == 0
    assert page.locator("figure > svg .series-2").count() > 50
    page.locator("#all-arms").click()
    assert (post.get_attribute("aria-pressed"), drawn.count()) == ("true", before)
    # The reference goes last: it alone differs from nothing.
    for button in page.locator(".arm-button").all()[1:]:
        button.focus()
        page.keyboard.press("Enter")
    assert page.locator("#differences > svg").is_hidden()
    page.locator(".arm-button").first.click()
    # Without the last one nothing would be left: all are shown again.
    assert page.locator(".arm-button[aria-pressed=true]").count() == 5
    assert (page.locator("#differences > svg").is_visible(), drawn.count()) == (True, before)


@pytest.mark.browser
def test_the_map_marks_what_diverged_and_says_its_means(result, page):
    maps = [arm["heatmap"] for arm in result["arms"]]
    cells = [cell for each in maps for row in each["cells"] for cell in row]
    crossed = sum(cell["diverged"] > 0 for cell in cells)
    assert crossed > 3
    assert page.locator("#maps .cell-cross").count() == crossed
    # Where some did not diverge, the others are counted beside their mean.
    some = [cell["diverged"] for cell in cells if cell["diverged"] and cell["n"]]
    assert some
    assert sorted(map(int, page.locator("#maps .cell-count").all_text_contents())) == sorted(some)
    assert page.locator("#maps .taken").count() == sum(
        len({json.dumps(chosen) for chosen in arm["selected_hyperparameters"].values()}) for arm in result["arms"]
    )
    means = [cell["mean"] for row in maps[0]["cells"] for cell in row]
    shown = [number_of(text) for text in page.locator("#maps .cell-value").all_text_contents()[: len(means)]]
    assert shown == pytest.approx(means, rel=5e-3)
    # One scale for all arms: a larger mean is darker, whichever map it stands in.
    fills = page.locator("#maps rect[fill^=rgb]").evaluate_all("all => all.map((each) => each.getAttribute('fill'))")
    every = [cell["mean"] for cell in cells if cell["mean"] is not None]
    brightness = np.array([sum(map(int, re.findall(r"\d+", fill))) for fill in fills[: len(every)]])
    assert (np.diff(brightness[np.argsort(every)]) <= 3).all()
    page.locator("#maps > svg").focus()
    page.keyboard.press("ArrowRight")
    assert "learning rate 3e-4, warmup steps 0" in tip_of(page)


@pytest.mark.browser
def test_the_runs_are_all_there_and_sort(result, page):
    rows = page.locator("#cells-table tbody tr")
    assert rows.count() == len(result["runs"])

    def column(number: int) -> list[float | None]:
        texts = page.locator(f"#cells-table tbody td:nth-child({number})").evaluate_all(
            "all => all.map((each) => each.querySelector('data')?.value ?? each.textContent)"
        )
        return [None if text == "–" else float(text) for text in texts]

    assert column(8) == [cell["reported_value"] for cell in result["runs"]]
    head = page.locator("#cells-table th", has_text="test/loss")
    values = sorted(cell["reported_value"] for cell in result["runs"] if cell["reported_value"] is not None)
    missing = [None] * (len(result["runs"]) - len(values))
    for direction, expected in (("ascending", values), ("descending", values[::-1])):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == direction
        assert column(8) == [*expected, *missing]
    page.locator("#cells-table th button").first.click()
    assert rows.first.locator(".arm-name").inner_text() == "deepnorm"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    rows.first.locator(".copy").last.click()
    rows.first.get_by_text("copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == rows.first.locator("code").last.inner_text()
    shown = set(page.locator("#cells-table code").all_inner_texts())
    assert {cell["command"] for cell in result["runs"]} <= shown
    # The heads of a run beside those of the reference with its task, seed and values.
    places = {
        (cell["arm"], cell["task"], cell["seed"], *cell["hyperparameters"].values()): cell for cell in result["runs"]
    }
    expected = set()
    for (arm, *where), cell in places.items():
        if cell["state"] == "done":
            beside = "" if arm == "pre" else f" --compare_to=runs/norms/{places['pre', *where]['directory']}"
            trust = " --trust=lab.mine" if arm == "deepnorm" else ""
            expected.add(f"python -m launch.maps --workdir=runs/norms/{cell['directory']}{beside}{trust}")
    assert shown == expected | {cell["command"] for cell in result["runs"]}


@pytest.mark.browser
def test_the_differences_stand_above_the_words_of_the_verdict(page):
    box, words = (page.locator(each).bounding_box() for each in ("#forest figure", "#summary"))
    assert box["y"] + box["height"] <= words["y"]


@pytest.mark.slow
@pytest.mark.browser
def test_a_narrow_page_needs_no_scrolling_sideways(page):
    wide = page.locator("#bands-figure > svg").bounding_box()["width"]
    page.set_viewport_size({"width": 400, "height": 900})
    wait_until(page, "() => document.querySelector('#bands-figure > svg').clientWidth < 400")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    for svg in page.locator("figure > svg").all():
        assert svg.bounding_box()["width"] <= 376
        outside = svg.evaluate(
            """(svg) => {
                const box = svg.getBoundingClientRect();
                return [...svg.querySelectorAll("text")].filter((text) => {
                    const own = text.getBoundingClientRect();
                    return own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
                }).map((text) => text.textContent);
            }"""
        )
        assert outside == []
    page.set_viewport_size({"width": 1360, "height": 1000})
    wait_until(page, "() => document.querySelector('#bands-figure > svg').clientWidth > 400")
    assert page.locator("#bands-figure > svg").bounding_box()["width"] == wide


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_profiles_are_steps(result, tmp_path, visit, direction):  # noqa: F811
    page = visit(write_page({**result, "direction": direction}, tmp_path / "page.html"))
    paths = page.locator("#profiles-figure path.stroke").evaluate_all(
        "all => all.map((each) => each.getAttribute('d'))"
    )
    assert len(paths) == len(result["arms"])
    for path in paths:
        places = [tuple(map(float, place.split())) for place in path.removeprefix("M").split("L")]
        points, corners = places[::2], places[1::2]
        assert len(corners) == len(points) - 1 > 10
        assert len({y for _, y in points}) > 3
        # Of "at most x" the share rises at a value and stays until the next; of "at least x" it falls behind a value.
        for (x, y), corner, (next_x, next_y) in zip(points[:-1], corners, points[1:], strict=True):
            assert corner == ((next_x, y) if direction == "minimize" else (x, next_y))


def test_the_axis_of_one_evaluation_begins_with_training(result, tmp_path, visit):  # noqa: F811
    last = {"steps": [40], "middle": [0.5], "low": [0.4], "high": [0.6], "n": [5]}
    arms = [
        {
            **arm,
            "bands": {"validation/loss": last},
            "heads": {name: dict.fromkeys(sites, last) for name, sites in arm["heads"].items()},
        }
        for arm in result["arms"]
    ]
    page = visit(write_page({**result, "arms": arms}, tmp_path / "page.html"))
    for figure in ("#bands-figure", "#heads-0-0"):
        beneath = page.locator(f"{figure} text.tick[text-anchor=middle], {figure} text.tick[x][text-anchor=end]")
        texts = beneath.all_text_contents()
        assert {"0", "40"} <= set(texts), figure
        assert not {"38", "42"} & set(texts), figure
