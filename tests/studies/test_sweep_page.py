"""The page of a sweep in a real browser: its numbers are the result's, and hostile words stay words."""

import shlex

import numpy as np
import pytest

from tests.maps.test_page import browser, visit  # noqa: F401  fixtures
from transformer.runs.jsonl_reading import parse_metric_name
from transformer.studies.sweeps import page as sweep_page
from transformer.studies.sweeps.sweep_page_data import SweepInfo, TrialCurves, sweep_page_data
from transformer.studies.sweeps.sweep_progress import read_trial_statuses
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import trial_from_config

RATE, NORM = "optimizer.learning_rate", "model.norm_placement"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def made_up(state="running"):
    """Twelve trials over two keys, as the page has them."""
    random = np.random.default_rng(0)
    trials = []
    for number, (rate, norm) in enumerate((rate, norm) for rate in (1e-4, 1e-3, 1e-2) for norm in ("pre", HOSTILE)):
        value = None if number == 5 else 0.2 + abs(np.log10(rate) + 3) + 0.1 * number
        ended = "running" if state == "running" and number == 4 else "failed" if value is None else "done"
        trials.append(
            {
                "name": f"{number:016x}",
                "state": ended,
                "step": 100,
                "steps": 100,
                "value": value,
                "message": HOSTILE if value is None else "",
                "overrides": {RATE: rate, NORM: norm},
                "curve": [(step, (value or 1) + 1 / step + 0.01 * random.random()) for step in range(10, 101, 10)],
                "directory": f'runs/it\'s "a" sweep/trials/{number}',
                "command": f"python -m launch.train --config=x.py --config.seed={number}",
                "trust": "--trust=lab.mine",
            }
        )
    trials.sort(key=lambda trial: (trial["state"] != "done", trial["value"] is None, trial["value"]))
    return {
        "name": "rates",
        "metric": "validation/loss",
        "direction": "minimize",
        "state": state,
        "counts": "4 of 6 finished: 4 done; 1 running",
        "seconds_left": 600.0 if state == "running" else None,
        "command": "python -m launch.sweep --config=x.py",
        "maps_command": "python -m launch.maps",
        "hyperparameter_values": {RATE: [1e-4, 1e-3, 1e-2], NORM: [HOSTILE, "pre"]},
        "importance": {RATE: 0.75, NORM: 0.0},
        "best": trials[0]["name"],
        "trials": trials,
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for state in ("running", "stopped", "done"):
        (folder / f"{state}.html").write_text(sweep_page.render(made_up(state)), encoding="utf-8")
    return folder


@pytest.mark.browser
def test_the_best_the_lines_the_bars_and_the_table_are_the_results(files, visit):  # noqa: F811
    page, result = visit(files / "done.html"), made_up("done")
    best = result["trials"][0]
    assert "validation/loss 0.4 with learning rate 1e-3, norm placement pre" in page.locator(".answer").inner_text()
    assert page.locator("#best .command code").first.inner_text() == best["command"]
    words = shlex.split(page.locator("#best .command code").nth(1).inner_text())
    assert words == ["python", "-m", "launch.maps", f"--workdir={best['directory']}", "--trust=lab.mine"]
    assert page.locator("#coordinates path.trial").count() == page.locator("#curve path.trial").count() == 6
    for figure in ("#coordinates", "#curve"):
        assert page.locator(f"{figure} path.best").get_attribute("data-trial") == best["name"]
    assert "learning rate 75%; norm placement 0%" in page.locator("#importances desc").text_content()
    rows = page.locator("#trials-table tbody tr")
    found = [rows.nth(number).locator("data").first.get_attribute("value") for number in range(5)]
    assert list(map(float, found)) == [trial["value"] for trial in result["trials"][:5]]
    assert HOSTILE in rows.nth(5).inner_text()
    assert page.locator("img").count() == 0
    drawn = page.locator("figure > svg").evaluate_all("all => all.map((each) => each.outerHTML)")
    assert not any(words in each for each in drawn for words in ("NaN", "undefined", "Infinity"))


@pytest.mark.browser
def test_trials_that_tie_are_one_color_and_are_counted(tmp_path, visit):  # noqa: F811
    result = made_up("done")
    for trial, value in zip(result["trials"], (0.2, 0.2, 0.2, 0.5, 0.7), strict=False):
        trial["value"] = value
    file = tmp_path / "tied.html"
    file.write_text(sweep_page.render(result), encoding="utf-8")
    page = visit(file)
    assert page.locator(".answer").inner_text() == "validation/loss 0.2: 3 trials tie"
    assert "one of them, with learning rate 1e-3, norm placement pre" in page.locator("#best .note").inner_text()
    for figure in ("#coordinates", "#curve"):
        lines = page.locator(f"{figure} path.ranked").evaluate_all(
            "all => all.map((each) => [each.dataset.trial, each.getAttribute('stroke'), each.matches('.best')])"
        )
        color, best = ({name: values[place] for name, *values in lines} for place in (0, 1))
        names = [trial["name"] for trial in result["trials"][:5]]
        assert len({color[name] for name in names[:3]}) == 1
        assert len({color[name] for name in names}) == 3
        assert [best[name] for name in names] == [True, True, True, False, False]
    # All that tie is the best.
    for trial in result["trials"]:
        trial["value"] = 0.2
    file.write_text(sweep_page.render(result), encoding="utf-8")
    page = visit(file)
    colors = page.locator("#coordinates path.ranked").evaluate_all(
        "all => all.map((each) => each.getAttribute('stroke'))"
    )
    assert len(colors) == 5
    assert len(set(colors)) == 1
    assert "5 trials tie" in page.locator(".answer").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 400])
def test_no_label_is_under_a_line(files, visit, width):  # noqa: F811
    page = visit(files / "done.html")
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(300)
    # What is drawn at each label's place besides the label, from the top.
    covered = page.locator("#coordinates svg text.tick").evaluate_all(
        """(all) => {
            document.querySelector("#coordinates").scrollIntoView();
            return all.flatMap((label) => {
                const box = label.getBoundingClientRect();
                const places = [0.1, 0.3, 0.5, 0.7, 0.9].map((share) => box.left + share * box.width);
                return places.map((x) => {
                    const drawn = document.elementsFromPoint(x, box.top + box.height / 2);
                    const line = drawn.findIndex((each) => each.matches("path.trial"));
                    const ground = drawn.findIndex((each) => each.matches(".label-ground"));
                    return line >= 0 && (ground < 0 || ground > line) ? label.textContent : "";
                });
            });
        }"""
    )
    assert len(covered) >= 5 * 10
    assert set(covered) == {""}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_a_trial_is_read_by_keys_and_marked_everywhere(files, visit):  # noqa: F811
    page = visit(files / "done.html")
    page.locator("#coordinates > svg").focus()
    page.keyboard.press("ArrowRight")
    marked = page.locator(".read").evaluate_all("all => all.map((each) => each.dataset.trial)")
    assert set(marked) == {made_up()["best"]}
    assert len(marked) == 3
    assert "learning rate 1e-3" in page.locator("#tip").inner_text()


@pytest.mark.browser
def test_a_page_of_a_running_sweep_says_so_and_reads_itself_again(files, visit):  # noqa: F811
    page = visit(files / "running.html")
    assert "· running" in page.locator(".eyebrow").inner_text()
    assert "about 10 minutes left" in page.locator("#facts").inner_text()
    assert page.locator('meta[http-equiv="refresh"]').count() == 1
    narrow = visit(files / "done.html")
    assert narrow.locator(".eyebrow").inner_text().split() == ["Headwise", "·", "sweep"]
    assert narrow.locator('meta[http-equiv="refresh"]').count() == 0
    narrow.set_viewport_size({"width": 400, "height": 800})
    assert narrow.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_a_page_of_a_stopped_sweep_says_so_with_the_command_that_goes_on(files, visit):  # noqa: F811
    page = visit(files / "stopped.html")
    assert "· stopped" in page.locator(".eyebrow").inner_text()
    assert "To resume it, run:" in page.locator("#goes-on .notice").inner_text()
    assert page.locator("#goes-on .command code").inner_text() == made_up()["command"]
    assert page.locator("#again").count() == 0
    assert page.locator('meta[http-equiv="refresh"]').count() == 0
    assert "left" not in page.locator("#facts").inner_text()


def test_a_page_is_written_where_it_changed(tmp_path):
    trials = [trial_from_config({RATE: rate}, {"steps": 10, RATE: rate}) for rate in (1e-3, 1e-2)]
    trial_store = TrialStore.open(tmp_path / "s", {"what": "test"})
    trial_store.append_trials(trials)
    about = SweepInfo("rates", parse_metric_name("validation/loss"), False, 2, "python -m launch.sweep")
    asked = []
    page = sweep_page.SweepPage(trial_store, about, lambda trial: asked.append(trial.name) or f"train {trial.name}")
    page.write(read_trial_statuses(trial_store, trials, about.metric), over=False)
    first = page.path.stat().st_mtime_ns
    page.write(read_trial_statuses(trial_store, trials, about.metric), over=False)
    assert page.path.stat().st_mtime_ns == first
    for trial in trials:
        with trial_store.hold_trial(trial) as lease:
            lease.record_outcome(TrialOutcome(TrialState.DONE, trial.config[RATE], 10, ""))
        page.write(read_trial_statuses(trial_store, trials, about.metric), over=False)
    assert page.path.stat().st_mtime_ns != first
    assert asked == [trial.name for trial in trials]
    assert f"train {trials[1].name}" in page.path.read_text()
    rows = read_trial_statuses(trial_store, trials, about.metric)
    assert (
        sweep_page_data(about, trial_store, rows, TrialCurves(trial_store, about.metric), {}, over=True)["best"]
        == trials[0].name
    )
