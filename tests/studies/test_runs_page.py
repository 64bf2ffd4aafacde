"""The page of all runs in a real browser: its size and speed, what it draws, its address, and words of a stranger."""

import json
import os
import statistics
from urllib.parse import parse_qs

import numpy as np
import pytest

from tests.maps.test_page import browser, visit  # noqa: F401  fixtures
from tests.studies.written_runs import learning_curve, write_many_runs, write_run
from tests.waiting import wait_until
from transformer.runs.jsonl_reading import MetricName
from transformer.studies.run_listing.listing import RunIndex
from transformer.studies.run_listing.page import page_data, render, write_page
from transformer.studies.run_listing.selection import ListedRuns, differing_keys, sort_runs

HOSTILE = "</script><img src=x onerror=alert(1)>"
LOSS = MetricName("validation", "loss")


def listed(folder, metrics=None):
    listing = RunIndex(folder).read()
    runs = sort_runs(listing, listing.runs, "age")
    return ListedRuns(listing, runs, metrics or listing.main_metrics(), differing_keys(runs))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Three hundred runs, of which some train for long."""
    folder = write_many_runs(tmp_path_factory.mktemp("many"))
    write_run(folder / "long", {"seed": 99}, lines=learning_curve(0.2, 1000, 1, 99))
    return folder


@pytest.fixture(scope="module")
def page_of_many(many):
    return write_page(listed(many))


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Two pairs of runs, whose losses at step 100 are 1 and 3, 2 and 6; and one that has logged nothing."""
    folder = tmp_path_factory.mktemp("few") / "my runs"
    for name, norm, seed, end in (
        ("a", "pre", 0, 1.0),
        ("b", "pre", 1, 3.0),
        ("c", "post", 0, 2.0),
        ("d", "post", 1, 6.0),
    ):
        lines = [{"step": step, "split": "validation", "loss": end * 100 / step} for step in (10, 20, 50, 100)]
        write_run(folder / name, {"model.norm_placement": norm, "seed": seed, "steps": 100}, lines=lines)
    write_run(folder / "e", {"seed": 2})
    (folder / "a" / "report.html").write_text("<p>a report")
    return write_page(listed(folder))


def decoded(data, run, metric):
    """The steps and values of a curve in the data of a page."""
    index = [each["name"] for each in data["metrics"]].index(str(metric))
    steps, values = next(each for each in data["runs"] if each["name"] == run)["curves"][index]
    return np.cumsum(data["steps"][steps]), np.array(values)


def test_three_hundred_runs_are_under_two_megabytes_with_all_extremes(many, page_of_many):
    assert page_of_many.stat().st_size < 2_000_000
    chosen = listed(many)
    assert len(chosen.runs) == 301
    data = page_data(chosen)
    for run in chosen.runs:
        if LOSS in run.curves:
            curve, (steps, values) = run.curves[LOSS], decoded(data, run.name, LOSS)
            exact = dict(curve)
            np.testing.assert_allclose(values, [exact[step] for step in steps], rtol=5.1e-5)
            assert steps[-1] == curve[-1][0]
            low, high = (extreme(value for _, value in curve) for extreme in (min, max))
            assert (values.min(), values.max()) == pytest.approx((low, high), rel=5.1e-5)


def test_a_spike_in_a_long_curve_is_on_the_page(tmp_path):
    lines = [{"step": step, "split": "train", "loss": 1.0 + 50.0 * (step == 3333)} for step in range(1, 9000)]
    write_run(tmp_path / "spiky", lines=lines)
    data = page_data(listed(tmp_path))
    steps, values = decoded(data, "spiky", "train/loss")
    assert len(steps) <= 400
    assert values[list(steps).index(3333)] == 51


def test_metrics_that_do_not_fit_are_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer.studies.run_listing.page.CURVES_BUDGET", 20_000)
    write_many_runs(tmp_path, 24)
    data = page_data(listed(tmp_path))
    names = [metric["name"] for metric in data["metrics"]]
    assert names[:2] == ["validation/loss", "validation/accuracy"]
    assert "train/learning_rate" in data["left_out"]
    assert not set(names) & set(data["left_out"])
    assert len(json.dumps([run["curves"] for run in data["runs"]])) < 30_000


def test_metrics_of_runs_that_are_not_shown_are_not_named(tmp_path):
    for name, metric in (("a", "loss"), ("b", "bits_per_byte")):
        write_run(tmp_path / name, lines=[{"step": 10, "split": "validation", metric: 1.0}])
    everything = listed(tmp_path)
    shown = everything._replace(runs=[run for run in everything.runs if run.name == "a"], metrics=[LOSS])
    assert page_data(shown)["left_out"] == []
    assert page_data(everything)["metrics"][1]["name"] == "validation/bits_per_byte"


@pytest.mark.browser
def test_the_page_paints_within_a_second_and_asks_for_nothing(page_of_many, visit):  # noqa: F811
    page = visit(page_of_many)
    assert page.locator("#curves path.stroke").count() == 301
    assert page.locator("#runs-table tbody tr").count() == 301
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 1000
    assert "301 runs" in page.locator("#facts").inner_text()
    assert not any(words in page.locator("#curves > svg").inner_html() for words in ("NaN", "undefined", "Infinity"))


def rows(page):
    return page.locator("#runs-table tbody tr:visible th").all_inner_texts()


def address(page):
    return parse_qs(page.evaluate("location.hash.slice(1)"), keep_blank_values=True)


@pytest.mark.browser
def test_filter_states_and_sorting(few, visit):  # noqa: F811
    page = visit(few)
    assert len(rows(page)) == 5
    assert page.locator("#states").inner_text().split() == ["4", "finished", "1", "stopped"]
    page.locator("#filter").fill("norm_placement=post -seed=1")
    assert [name.split()[0] for name in rows(page)] == ["c"]
    assert page.locator("#curves path.stroke").count() == 1
    assert page.locator("#num-shown").inner_text() == "1 of 5"
    page.locator("#filter").fill("")
    page.locator("#states button", has_text="stopped").click()
    assert [name.split()[0] for name in rows(page)] == ["e"]
    assert page.locator("#curves.empty").count() == 1
    page.locator("#states button", has_text="stopped").click()
    page.locator("#runs-table th button", has_text="best").click()
    assert [name.split()[0] for name in rows(page)] == ["a", "c", "b", "d", "e"]
    page.locator("#runs-table th button", has_text="best").click()
    assert [name.split()[0] for name in rows(page)] == ["d", "b", "c", "a", "e"]
    assert address(page) == {"sort": ["-best"]}


@pytest.mark.browser
def test_groups_are_means_with_a_band_from_the_lowest_to_the_highest(few, visit):  # noqa: F811
    page = visit(few)
    page.get_by_label("group by").select_option("model.norm_placement")
    lines, bands = page.locator("#curves path.stroke"), page.locator("#curves path.band")
    assert (lines.count(), bands.count()) == (2, 2)
    description = page.locator("#curves desc").text_content()
    assert "norm_placement post 4 at 100; norm_placement pre 2 at 100" in description
    page.locator("#curves > svg").focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator("#tip").inner_text().split()
    assert tip[tip.index("40") :][:6] == ["40", "20", "–", "60,", "2", "seeds"]
    page.get_by_label("band").select_option("deviation")
    page.locator("#curves > svg").focus()
    page.keyboard.press("ArrowRight")
    deviation = statistics.stdev([20, 60])
    assert f"{40 - deviation:.2f}".rstrip("0") in page.locator("#tip").inner_text()
    assert address(page) == {"group": ["model.norm_placement"], "band": ["deviation"]}


@pytest.mark.browser
def test_smoothing_is_an_average_whose_weights_fall(few, visit):  # noqa: F811
    page = visit(few, "#smoothing=30&run=a")
    values = [10.0, 5.0, 2.0, 1.0]
    total = weight = 0.0
    for value, step, before in zip(values, (10, 20, 50, 100), (0, 10, 20, 50), strict=True):
        decay = np.exp((before - step) / 30)
        total, weight = total * decay + value, weight * decay + 1
    assert f"{total / weight:.3f}"[:5] in page.locator("#curves desc").text_content()
    assert page.locator("#curves path.raw").count() == 1


@pytest.mark.browser
def test_an_address_keeps_the_choice(few, visit):  # noqa: F811
    page = visit(few)
    page.get_by_label("log values").check()
    page.get_by_label("log steps").check()
    for name in ("b", "c", "d"):
        page.get_by_label(f"draw {name}").uncheck()
    assert page.locator("#curves path.stroke").count() == 1
    assert address(page)["log"] == ["xy"]
    again = visit(few, page.evaluate("location.hash"))
    assert again.locator("#curves path.stroke").count() == 1
    assert again.get_by_label("log values").is_checked()
    assert "loss (log)" in again.locator("#curves > svg").text_content()
    assert [again.get_by_label(f"draw {name}").is_checked() for name in "abcd"] == [True, False, False, False]
    again.locator("#draw-all").click()
    assert address(again) == {"log": ["xy"]}
    odd = visit(few, "#metric=gone&group=gone&band=x&smoothing=-3&sort=gone&run=gone&log=7")
    assert len(rows(odd)) == 5


@pytest.mark.browser
def test_a_line_is_read_and_marked_in_the_table(few, visit):  # noqa: F811
    page = visit(few, "#sort=run")
    page.locator("#curves > svg").focus()
    page.keyboard.press("ArrowRight")
    assert "validation/loss 60 at step 10" in page.locator("#tip").inner_text()
    assert page.locator("#runs-table tr.read").get_attribute("data-series") == "d"
    assert page.locator("#curves path.read").count() == 1
    page.locator("#runs-table tbody tr").nth(2).hover()
    assert page.locator("#curves path.read").get_attribute("data-series") == "c"


@pytest.mark.browser
def test_links_and_commands_name_the_run(few, visit):  # noqa: F811
    page = visit(few, "#sort=run")
    links = page.locator("#runs-table a")
    assert links.evaluate_all("all => all.map((each) => each.getAttribute('href'))") == ["./a/report.html"]
    assert page.locator("h1").inner_text() == "my runs"
    buttons = page.locator("#runs-table tbody tr").nth(4).locator(".copy")
    assert buttons.all_inner_texts() == ["report", "resume"]
    page.evaluate(
        "() => { Object.defineProperty(navigator, 'clipboard', { value: { writeText: (t) => (window.copied = t) } }) }"
    )
    buttons.nth(1).click()
    wait_until(page, "window.copied !== undefined")
    assert page.evaluate("window.copied") == f"python -m launch.train --workdir='{few.parent}/e'"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_narrow_window(few, many, page_of_many, visit, scheme):  # noqa: F811
    for path in (few, page_of_many):
        page = visit(path, "", scheme)
        page.set_viewport_size({"width": 400, "height": 800})
        wait_until(page, "document.querySelector('#curves > svg').getBoundingClientRect().width < 400")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_words_of_a_stranger_stay_words(tmp_path, visit):  # noqa: F811
    name = HOSTILE.replace("/", "_")
    lines = [{"step": step, "split": HOSTILE, HOSTILE: 1.0 / step} for step in (1, 2, 3)]
    config = {"name": HOSTILE, "model.norm_placement": HOSTILE, "seed": 3}
    for folder in (name, "javascript:alert(1)", "constructor", "__proto__x"):
        write_run(tmp_path / folder, config, lines=lines, starts=[{"error": f"X: {HOSTILE}"}])
        (tmp_path / folder / "report.html").touch()
        config = {"name": "x", "seed": 4}
    os.rename(tmp_path / "constructor", os.fsencode(tmp_path) + b"/\xff")
    path = write_page(listed(tmp_path), ["config.model.norm_placement"])
    page = visit(path)
    assert page.locator("img").count() == 0
    assert page.locator("#runs-table tbody tr").count() == 4
    links = page.locator("#runs-table a").evaluate_all("all => all.map((each) => each.href)")
    assert all(link.startswith(path.parent.as_uri()) for link in links)
    assert HOSTILE in page.locator("#runs-table").inner_text()
    assert path.read_text().count("</script>") == 2


def test_a_served_page_has_no_links_and_asks_its_server(tmp_path):
    write_run(tmp_path / "a", lines=[{"step": 1, "split": "train", "loss": 1.0}])
    assert page_data(listed(tmp_path), served=True)["served"] is True
    text = render(listed(tmp_path), version="one")
    assert 'data-version="one"' in text
    assert "connect-src 'self'" in text
    assert "connect-src" not in render(listed(tmp_path))


@pytest.mark.browser
def test_a_folder_whose_runs_log_nothing_has_a_page(tmp_path, visit):  # noqa: F811
    write_run(tmp_path / "a")
    page = visit(write_page(listed(tmp_path)))
    assert page.locator("#runs-table tbody tr").count() == 1
    assert page.locator("#curves").count() == 0
