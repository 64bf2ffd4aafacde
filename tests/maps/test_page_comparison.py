"""This minus that, and rollout, in a real browser; and which runs cannot be compared."""

import dataclasses
import shutil

import numpy as np
import pytest

from tests.maps.conftest import make_kept, make_labels, make_maps, make_sites, write_record, write_run
from tests.maps.test_page import address, browser, cell_center, visit, wait_for  # noqa: F401  fixtures and helpers
from tests.oracles.rollout import read_rollout
from tests.waiting import wait_until
from transformer.config import UserError
from transformer.maps.head_matching import match_heads
from transformer.maps.report.page import write_report
from transformer.maps.report.run_data import config_entries
from transformer.maps.store import MapStore
from transformer.runs.metric_curves import read_curves
from transformer.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow

EXAMPLE = 2


@pytest.fixture(scope="module")
def report(run):
    return write_report(run.directory)


@pytest.fixture(scope="module")
def compared(run, other_run, tmp_path_factory):
    """The page of a run against another, whose steps are not all the run's own."""
    return write_report(
        run.directory, compare_to=other_run.directory, page=tmp_path_factory.mktemp("page") / "compared.html"
    )


def tip(page, query: int, key: int) -> str:
    page.locator("#detail").scroll_into_view_if_needed()
    page.mouse.move(*cell_center(page, query, key))
    return page.locator("#tip b").inner_text().replace("−", "-")


def pixels(page) -> list[str]:
    return page.locator("#head-grid canvas").evaluate_all("all => all.map((canvas) => canvas.toDataURL())")


def drawn(page, selector: str, cells: list[tuple[int, int]]) -> list[int]:
    """Whether each cell is drawn as more (1: blue) or as less (-1: orange); near its corner, for less is hollow."""
    return page.evaluate(
        """([selector, cells, queries, keys]) => {
            const canvas = document.querySelector(selector);
            const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return cells.map(([query, key]) => {
                const x = Math.floor((canvas.width / keys) * (key + 0.1));
                const y = Math.floor((canvas.height / queries) * (query + 0.1));
                const [red, , blue] = image.data.slice(4 * (y * canvas.width + x));
                return Math.sign(blue - red);
            });
        }""",
        [selector, cells, page.locator(".chip.query").count(), page.locator(".chip.key").count()],
    )


def test_two_runs_of_one_config_are_told_apart_by_their_directories(run, tmp_path):
    for name in ("first", "second", "again/first"):
        shutil.copytree(run.directory, tmp_path / name)
    page = write_report(tmp_path / "first", compare_to=tmp_path / "second").read_text()
    assert "<title>first minus second · attention</title>" in page
    page = write_report(tmp_path / "again" / "first", compare_to=tmp_path / "first").read_text()
    assert f"<title>again/first minus {tmp_path.name}/first · attention</title>" in page


@pytest.mark.browser
def test_the_title_is_the_directory_and_the_name_of_the_config_stands_beside_it(run, tmp_path, visit):  # noqa: F811
    for name, title in (("mine", "mine demo"), ("demo", "demo")):
        shutil.copytree(run.directory, tmp_path / name)
        assert visit(write_report(tmp_path / name)).locator("h1").inner_text() == title


@pytest.mark.browser
def test_a_page_of_two_runs_opens_on_their_difference_and_names_both(compared, visit):  # noqa: F811
    page = visit(compared)
    assert page.locator("h1").inner_text() == "demo minus demo, seed 1"
    assert page.title() == "demo minus demo, seed 1 · attention"
    assert address(page)["compare"] == "run"
    assert page.locator("#compare").evaluate("select => select.selectedOptions[0].text") == "run demo, seed 1"
    assert "“demo” step 1,600 minus “demo, seed 1” step" in page.locator("#detail-title").inner_text()
    page.locator("#compare").select_option("")
    wait_for(page, "compare", "nothing")
    assert "minus" not in page.locator("#detail-title").inner_text()
    # Who was sent an address sees what its sender saw.
    page = visit(compared, page.evaluate("location.hash"))
    assert address(page)["compare"] == "nothing"


@pytest.mark.browser
def test_more_and_less_are_drawn_apart_on_wall_and_detail(run, report, visit):  # noqa: F811
    page = visit(report, f"#site=decoder/cross&example={EXAMPLE + 1}&layer=1&head=2&step=1600&compare=200")
    now, then = (run.maps[step]["decoder/cross"][1, EXAMPLE, 2] for step in (1600, 200))
    more, less = (np.unravel_index(find(now - then), now.shape) for find in (np.argmax, np.argmin))
    cells = [tuple(map(int, more)), tuple(map(int, less))]
    for selector in ("#detail canvas", '.thumbnail[aria-label^="layer 1, head 2"] canvas'):
        assert drawn(page, selector, cells) == [1, -1]


@pytest.mark.browser
def test_the_difference_of_two_steps_says_both_values(run, report, visit):  # noqa: F811
    page = visit(report, f"#site=decoder/cross&example={EXAMPLE + 1}&layer=1&head=2&step=1600")
    plain = pixels(page)
    page.locator("#compare").select_option(label="step 200")
    wait_for(page, "compare", "200")
    assert "step 1,600 minus step 200" in page.locator("#detail-title").inner_text()
    assert pixels(page) != plain
    for query, key in ((1, 3), (0, 0), (3, 6)):
        now, then = (run.maps[step]["decoder/cross"][1, EXAMPLE, 2, query, key] for step in (1600, 200))
        said = tip(page, query, key).split()
        assert float(said[0]) == pytest.approx(now - then, abs=0.01)
        assert (float(said[2]), float(said[6])) == pytest.approx((now, then), abs=0.01)
        assert " ".join(said[3:5]) == "(step 1,600)"
    page.keyboard.press("d")
    wait_until(page, "!location.hash.includes('compare') && document.body.dataset.shown === location.hash")
    assert pixels(page) == plain
    page.keyboard.press("d")
    wait_for(page, "compare", "200")


@pytest.mark.browser
def test_a_step_minus_itself_is_nothing(report, visit):  # noqa: F811
    page = visit(report, "#site=encoder/self&step=400&compare=400")
    assert len(set(pixels(page))) == 1
    assert tip(page, 0, 0).startswith("+0.000 = ")


@pytest.mark.browser
def test_the_difference_of_two_runs_is_of_heads_that_are_alike(run, other_run, compared, visit, tmp_path):  # noqa: F811
    store, other = (MapStore.open_existing(each.directory / "maps") for each in (run, other_run))
    match = next(m for m in match_heads(store, other) if m.site == "encoder/self" and m.head != m.other_head)
    page = visit(compared, f"#site=encoder/self&example=1&layer={match.layer}&head={match.head}&step=800&compare=run")
    title = page.locator("#detail-title").inner_text()
    assert "“demo” step 800 minus “demo, seed 1” step 800" in title
    assert f"head {match.other_layer}.{match.other_head} ({round(100 * match.similarity)}% alike)" in title

    def expect(other_head: int) -> None:
        for query, key in ((0, 0), (3, 2)):
            mine = run.maps[800]["encoder/self"][match.layer, 0, match.head, query, key]
            theirs = other_run.maps[800]["encoder/self"][match.layer, 0, other_head, query, key]
            assert float(tip(page, query, key).split()[0]) == pytest.approx(mine - theirs, abs=0.02)

    expect(match.other_head)
    page.locator("#matched").uncheck()
    wait_until(page, "!document.querySelector('#detail-title').textContent.includes('alike')")
    expect(match.head)
    # Both runs' curves of the pair are there.
    assert page.locator(".stroke.other").count() == 1
    page.screenshot(path=tmp_path / "compared.png", full_page=True)
    assert (tmp_path / "compared.png").stat().st_size > 20_000


@pytest.mark.browser
def test_a_run_is_compared_at_the_nearest_step(run, visit, tmp_path):  # noqa: F811
    other = write_run(tmp_path / "demo, seed 1", steps=(150, 900), seed=1)
    path = write_report(run.directory, compare_to=other.directory, page=tmp_path / "page.html")
    page = visit(path, "#site=encoder/self&step=600&compare=run")
    assert "“demo” step 600 minus “demo, seed 1” step 900" in page.locator("#detail-title").inner_text()
    page.keyboard.press("ArrowLeft")
    wait_for(page, "step", "400")
    assert "step 400 minus “demo, seed 1” step 150" in page.locator("#detail-title").inner_text()


@pytest.mark.browser
def test_without_another_run_there_is_none_to_compare_with(report, visit):  # noqa: F811
    page = visit(report, "#compare=run")
    assert "compare" not in address(page)
    assert page.locator("#compare option").all_inner_texts()[:2] == ["–", "step 100"]
    assert page.locator("#matched-toggle").is_hidden()


@pytest.mark.browser
@pytest.mark.parametrize("site", ["encoder/self", "decoder/self", "decoder/cross"])
def test_rollout_mixes_as_the_analysis_does_and_is_no_attribution(run, report, visit, site):  # noqa: F811
    store = MapStore.open_existing(run.directory / "maps")
    page = visit(report, f"#site={site}&example={EXAMPLE + 1}&layer=2&head=1&step=800")
    plain = pixels(page)
    page.locator("#rollout").check()
    wait_for(page, "view", "rollout")
    title = page.locator("#detail-title").inner_text()
    assert "layer 2 · all heads" in title
    assert "how attention mixes positions, not an attribution" in title
    expected = read_rollout(store, site, 800)[EXAMPLE]
    for layer in (2, 1, 0):
        for query, key in ((3, 0), (3, 2), (2, 2), (1, 0)):
            assert float(tip(page, query, key).split()[0]) == pytest.approx(expected[layer, query, key], abs=0.001)
        page.keyboard.press("ArrowUp")
        wait_for(page, "layer", str((layer - 1) % 3))
    assert pixels(page) == plain
    page.keyboard.press("r")
    wait_until(page, "!location.hash.includes('view') && document.body.dataset.shown === location.hash")


@pytest.mark.browser
def test_rollout_needs_self_attention(report, speech_run, visit):  # noqa: F811
    page = visit(write_report(speech_run.directory), "#site=decoder/cross&view=rollout")
    assert page.locator("#rollout").is_disabled()
    why = "only for self-attention, or cross-attention with self-attention in every layer"
    assert page.locator("#rollout-toggle").get_attribute("title") == why
    assert "rollout" not in page.locator("#detail-title").inner_text()
    page.locator("#sites button").first.click()
    wait_until(page, "document.querySelector('#detail-title').textContent.includes('rollout')")
    # A difference and rollout are not shown at once.
    page = visit(report, "#site=decoder/cross&view=rollout")
    page.keyboard.press("d")
    wait_for(page, "compare", "100")
    assert "view" not in address(page)
    page.keyboard.press("r")
    wait_for(page, "view", "rollout")
    assert "compare" not in address(page)


def write_other(directory, sites, labels, maps) -> None:
    store = MapStore.open(directory / "maps", sites, labels, "ab" * 32)
    store.write(100, make_kept(store, maps))
    write_record(directory, "other")


def test_runs_that_cannot_be_compared_are_refused_in_one_line(run, tmp_path):
    sites, labels = make_sites(), make_labels()
    maps = make_maps(100, sites, labels)
    unlinked = dataclasses.replace(labels, gold_alignments=None)  # the gold alignments are of a site that is left out
    write_other(tmp_path / "fewer", sites[:1], unlinked, {sites[0].name: maps[sites[0].name]})
    narrow = tuple(dataclasses.replace(site, heads=site.heads[:2]) for site in sites)
    write_other(tmp_path / "heads", narrow, labels, {name: each[:, :, :2] for name, each in maps.items()})
    source = (("another", *labels.tokens["source"][0][1:]), *labels.tokens["source"][1:])
    words = dataclasses.replace(labels, tokens={**labels.tokens, "source": source})
    write_other(tmp_path / "words", sites, words, maps)
    (tmp_path / "nothing").mkdir()
    shutil.copy(run.directory / "config.json", tmp_path / "nothing")
    for name, says in (
        ("fewer", "the runs have other sites"),
        ("heads", "'encoder/self' has .* in one run and .* in the other"),
        ("words", "probed other examples .axis 'source' of encoder/self.: compare runs of the same"),
        ("nothing", "no map store at"),
    ):
        with pytest.raises(UserError, match=says) as caught:
            write_report(run.directory, compare_to=tmp_path / name)
        assert "\n" not in str(caught.value)
        assert not list(run.directory.glob("*.new"))


@pytest.mark.slow
def test_two_runs_fit_into_the_budget(run, other_run, tmp_path):
    page = tmp_path / "page.html"
    whole = write_report(run.directory, compare_to=other_run.directory, page=page).stat().st_size
    budget = whole * 2 // 3
    assert write_report(run.directory, budget, compare_to=other_run.directory, page=page).stat().st_size <= budget
    with pytest.raises(UserError, match="too small for one step of maps: give at least"):
        write_report(run.directory, 1000, compare_to=other_run.directory, page=page)


@pytest.mark.browser
def test_the_curves_of_two_runs_are_laid_over_each_other_and_their_configs_set_beside(run, other_run, compared, visit):  # noqa: F811
    page = visit(compared)
    loss = page.locator("#curves figure").filter(has=page.get_by_text("loss", exact=True)).first
    names = [entry.rpartition("\n")[0] for entry in loss.locator(".entry").all_inner_texts()]
    own = list(read_curves(RunDirectory(run.directory))["loss"])
    assert names == [*own, *(f"{split} of demo, seed 1" for split in own)]
    assert loss.locator("path.stroke.other-run").count() == len(own)
    configs = [dict(config_entries(RunDirectory(each.directory).config())) for each in (run, other_run)]
    differing = [key for key in configs[0] | configs[1] if configs[0].get(key) != configs[1].get(key)]
    rows = page.locator("#config-differences tbody tr")
    assert [row.locator("th, td").all_inner_texts() for row in rows.all()] == [
        [key, *(config.get(key, "–") for config in configs)] for key in differing
    ]
    assert "name" in differing
    assert page.locator("#config-differences thead th").all_inner_texts() == ["key", "demo", "demo, seed 1"]
    alone = visit(write_report(run.directory))
    assert alone.locator("#config-differences").inner_text() == ""
    assert alone.locator("path.stroke.other-run").count() == 0
