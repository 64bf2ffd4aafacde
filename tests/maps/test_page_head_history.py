"""Heads over training in a real browser: the heat map, its doors, the curve beneath, and the roles in words."""

import json

import numpy as np
import pytest

from tests.maps.conftest import write_record
from tests.maps.test_page import address, browser, visit, wait_for  # noqa: F401  fixtures and helpers
from tests.waiting import wait_until
from transformer.attention.sites import Axis, Site
from transformer.maps.capture_plan import quantize_maps
from transformer.maps.report.head_history import change_points, last_step_roles
from transformer.maps.report.page import write_report
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SITE = "#site=encoder/self&example=2&layer=1&head=2&step=800"


@pytest.fixture(scope="module")
def store(run) -> MapStore:
    return MapStore.open_existing(run.directory / "maps")


@pytest.fixture(scope="module")
def report(run):
    """The page of a run that measured its training batches too, more often than its probe."""
    with (run.directory / "heads.jsonl").open("w") as file:
        for step in range(0, 1601, 50):
            heads = [[step / 100 + layer + head / 10 for head in range(4)] for layer in range(3)]
            importance = [[step + 10 * layer + head for head in range(4)] for layer in range(3)]
            record = {"step": step, "site": "encoder/self", "entropy": heads, "importance": importance}
            file.write(json.dumps(record) + "\n")
    path = write_report(run.directory)
    (run.directory / "heads.jsonl").unlink()
    return path


def values_of(store: MapStore, site: str, statistic: str) -> np.ndarray:
    """The mean over examples: [step, layer, head]."""
    names, values = store.statistics(site)
    return np.asarray(values, np.float64)[..., names.index(statistic)].mean(axis=1)


def cell_center(page, row: int, column: int, rows: int = 12, columns: int = 8) -> tuple[float, float]:
    """The middle of a cell of the demo's heat map: layers of four heads stand four pixels apart."""
    page.locator("#head-history").scroll_into_view_if_needed()
    box = page.locator("#head-history canvas").bounding_box()
    height = (box["height"] - 4 * 2) / rows
    return box["x"] + box["width"] * (column + 0.5) / columns, box["y"] + height * (row + 0.5) + 4 * (row // 4)


def luminances(page, rows: int = 12, columns: int = 8) -> np.ndarray:
    flat = page.evaluate(
        """([rows, columns]) => {
            const canvas = document.querySelector("#head-history canvas");
            const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const [high, wide] = [(canvas.height - 8) / rows, canvas.width / columns];
            const found = [];
            for (let row = 0; row < rows; row++)
                for (let column = 0; column < columns; column++) {
                    const y = Math.floor((row + 0.5) * high + 4 * Math.floor(row / 4));
                    const at = 4 * (y * canvas.width + Math.floor((column + 0.5) * wide));
                    const [r, g, b] = image.data.slice(at, at + 3);
                    found.push(0.2126 * r + 0.7152 * g + 0.0722 * b);
                }
            return found;
        }""",
        [rows, columns],
    )
    return np.array(flat).reshape(rows, columns)


@pytest.mark.parametrize(("scheme", "sign"), [("light", -1), ("dark", 1)])
def test_luminance_carries_the_value_on_the_scale_that_is_printed(store, report, visit, scheme, sign, tmp_path):  # noqa: F811
    page = visit(report, f"{SITE}&statistic=previous_token", scheme)
    values = values_of(store, "encoder/self", "previous_token").reshape(8, 12).T
    shown = luminances(page)
    order = np.argsort(values, axis=None)
    assert (np.diff(shown.flatten()[order]) * sign >= -1).all()
    assert abs(np.ptp(shown)) > 60
    # A share is drawn on 0 to 1 whatever is there, an entropy from 0 to the largest that there is.
    assert page.locator("#head-history-legend .tick").all_text_contents() == ["0", "0.5", "1"]
    page.locator("#statistic").select_option("entropy")
    wait_for(page, "statistic", "entropy")
    page.locator("#head-history-legend", has_text="nats").wait_for()
    ends = page.locator("#head-history-legend .tick").all_text_contents()
    assert float(ends[0]) == 0
    assert float(ends[2]) == pytest.approx(values_of(store, "encoder/self", "entropy").max(), rel=0.01)
    page.locator("#head-history-panel").screenshot(path=tmp_path / "head-history.png")
    assert (tmp_path / "head-history.png").stat().st_size > 5_000


def test_hover_says_head_step_and_value(store, report, visit):  # noqa: F811
    page = visit(report, f"{SITE}&statistic=previous_token")
    values = values_of(store, "encoder/self", "previous_token")
    for row, column in ((0, 0), (6, 3), (11, 7)):
        page.mouse.move(*cell_center(page, row, column))
        layer, head = divmod(row, 4)
        tip = page.locator("#tip").inner_text().replace("\n", " ")
        assert tip.startswith(f"head {layer}.{head}, step {store.steps[column]:,} ")
        assert float(tip.split()[4]) == pytest.approx(values[column, layer, head], abs=1e-3)
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_a_click_goes_to_the_head_and_the_step(report, visit):  # noqa: F811
    page = visit(report, SITE)
    page.mouse.click(*cell_center(page, 9, 2))
    wait_for(page, "step", "400")
    assert (address(page)["layer"], address(page)["head"]) == ("2", "1")
    wait_until(page, "document.querySelector('#head-reading').textContent.includes('step 400')")
    assert page.locator("#head-reading b").inner_text() == "head 2.1"
    assert page.locator(".row-label.lit").all_text_contents() == ["2.1"]
    box = page.locator("#head-curve svg").bounding_box()
    page.mouse.click(box["x"] + 64 + 20, box["y"] + 40)
    wait_for(page, "step", "100")
    assert address(page)["head"] == "1"


def test_the_keyboard_goes_over_heads_and_steps(report, visit):  # noqa: F811
    page = visit(report, "#site=encoder/self&layer=0&head=3&step=800")
    page.locator("#head-history svg").focus()
    for key, name, value in (
        ("ArrowDown", "layer", "1"),
        ("ArrowUp", "head", "3"),
        ("ArrowLeft", "step", "600"),
        ("ArrowRight", "step", "800"),
        ("Home", "step", "100"),
        ("End", "step", "1600"),
    ):
        page.keyboard.press(key)
        wait_for(page, name, value)
    assert address(page)["layer"] == "0"
    # On another statistic too the keyboard stays where it is.
    assert page.evaluate("document.activeElement.closest('#head-history') !== null")


def test_roles_are_told_marked_and_doors(store, report, visit):  # noqa: F811
    page = visit(report, f"{SITE}&statistic=previous_token")
    roles = [role for role in last_step_roles(store) if role.site == "encoder/self"]
    assert page.locator(".role-mark").count() == len(roles)
    page.locator("#roles summary").click()
    said = page.locator("#roles .role").all_inner_texts()
    assert len(said) == len(roles)
    role = next(each for each in roles if (each.layer, each.head) == (0, 1))
    assert f"head 0.1 of encoder/self became a previous token head at step {role.onset_step}" in " ".join(said)
    page.locator("#roles .role", has_text="head 0.1 ").click()
    wait_for(page, "step", str(role.onset_step))
    assert (address(page)["layer"], address(page)["head"]) == ("0", "1")
    page.mouse.move(*cell_center(page, 1, store.steps.index(role.onset_step)))
    assert f"became a previous token head at step {role.onset_step}" in page.locator("#tip").inner_text()


def test_changes_of_level_are_marked_on_the_curve(store, report, visit):  # noqa: F811
    page = visit(report, "#site=encoder/self&layer=0&head=1&step=800&statistic=previous_token")
    curve = values_of(store, "encoder/self", "previous_token")[:, 0, 1]
    changes = change_points(store.steps, curve)
    assert changes
    assert page.locator(".change").count() == len(changes)
    assert f"a lasting change at step {changes[0].step}" in page.locator("#head-reading").inner_text()


def test_what_is_measured_on_can_be_chosen(report, visit, store):  # noqa: F811
    page = visit(report, f"{SITE}&statistic=entropy")
    buttons = page.locator("#sources button")
    assert buttons.all_inner_texts() == ["these examples (mean)", "this example", "training batches"]
    buttons.nth(1).click()
    page.locator("#sources button[aria-pressed=true]", has_text="this example").wait_for()
    page.mouse.move(*cell_center(page, 6, 4))
    one = np.asarray(store.statistics("encoder/self").values)[4, 1, 1, 2, 0]
    assert float(page.locator("#tip b").inner_text().split()[0]) == pytest.approx(one, abs=1e-3)
    buttons.nth(2).click()
    page.locator("#head-curve", has_text="stored step").wait_for()
    page.locator("#sources button[aria-pressed=true]", has_text="training batches").wait_for()
    page.mouse.move(*cell_center(page, 6, 32, columns=33))
    assert page.locator("#tip").inner_text().startswith("head 1.2, step 1,600 17.2")
    # Between two steps of the probe a click goes to the nearer one.
    page.mouse.click(*cell_center(page, 0, 17, columns=33))
    wait_for(page, "step", "800")
    # A site whose training batches were not measured falls back on what there is.
    page.locator("#sites button").nth(1).click()
    wait_for(page, "site", "decoder/self")
    wait_until(page, "document.querySelectorAll('#sources button').length === 2")
    assert page.locator("#sources button[aria-pressed=true]").inner_text() == "these examples (mean)"


def test_what_only_training_batches_have_is_chosen_like_the_rest(report, visit):  # noqa: F811
    page = visit(report, f"{SITE}&statistic=entropy")
    pressed = page.locator("#sources button[aria-pressed=true]")
    assert pressed.inner_text() == "these examples (mean)"
    page.locator("#statistic").select_option(label="importance of the head")
    page.locator("#sources button[aria-pressed=true]", has_text="training batches").wait_for()
    wait_until(page, "document.querySelector('#head-reading').textContent.includes('importance of the head 812')")
    # Another source has no importance: it shows what it has, and importance can be chosen again.
    page.locator("#sources button").nth(0).click()
    page.locator("#sources button[aria-pressed=true]", has_text="these examples").wait_for()
    assert page.locator("#statistic").input_value() != "importance"
    page.locator("#statistic").select_option("importance")
    page.locator("#sources button[aria-pressed=true]", has_text="training batches").wait_for()
    # The address alone says it too.
    page = visit(report, f"{SITE}&statistic=importance")
    assert page.locator("#sources button[aria-pressed=true]").inner_text() == "training batches"


def test_many_heads_are_compact_rows_in_a_panel_that_scrolls(visit, tmp_path):  # noqa: F811
    axis = Axis("text")
    site = Site("decoder/self", axis, axis, tuple(map(str, range(24))), tuple(map(str, range(16))), causal=True)
    store = MapStore.open(tmp_path / "maps", (site,), AxisLabels({"text": (("a", "b", "c"),)}, ("one",)), "abc")
    weights = np.broadcast_to(np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None], (24, 1, 16, 3, 3)).astype(np.float32)
    for step in (0, 10):
        entropy = np.arange(24 * 16, dtype=np.float32).reshape(24, 1, 16) + step
        store.write(step, {site.name: quantize_maps(weights, store.levels(site.name), {"entropy": entropy})})
    write_record(tmp_path, "many heads")
    page = visit(write_report(tmp_path), "#layer=20&head=7&step=10")
    page.wait_for_selector("#head-history[data-shown]")
    assert page.locator("#head-history").bounding_box()["height"] <= 430
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".row-label.lit").text_content() == "20.7"
    assert len(page.locator(".row-label:visible").all_text_contents()) <= 25
    # The chosen row is in sight.
    frame, panel = (page.locator(f"#head-history{part}").bounding_box() for part in (" .frame:not(.column)", ""))
    assert panel["y"] <= frame["y"] <= panel["y"] + panel["height"]
    assert float(page.locator("#head-reading").inner_text().split("entropy ")[1].split()[0]) == 20 * 16 + 7 + 10


def test_a_store_without_statistics_has_no_panel(run, visit, tmp_path):  # noqa: F811
    site = run.sites[0]
    store = MapStore.open(tmp_path / "maps", (site,), AxisLabels({"source": (("a", "b"),)}, ("one",)), "abc")
    store.write(1, {site.name: quantize_maps(np.full((3, 1, 4, 2, 2), 0.5, np.float32), store.levels(site.name))})
    write_record(tmp_path, "nothing measured")
    page = visit(write_report(tmp_path))
    assert page.locator("#head-history-panel").is_hidden()
