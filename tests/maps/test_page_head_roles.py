"""What each head does, on the page: a badge and a sentence for every head, and no scrolling for its role."""

import itertools
import re

import numpy as np
import pytest

from tests.maps.conftest import make_kept, write_record
from tests.maps.test_page import address, browser, report, visit, wait_for  # noqa: F401  fixtures and helpers
from transformer.attention.sites import Axis, Site
from transformer.maps.report.page import write_report
from transformer.maps.report.role_descriptions import ROLE_TEXTS, roles_data
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def told(run):
    return roles_data(MapStore.open_existing(run.directory / "maps"))


def name_of(run, head) -> str:
    return f"head {head[1]}.{head[2]} of {run.sites[head[0]].name}"


def test_equal_sentences_stand_once_with_the_heads_that_they_are_of(run, report, told, visit):  # noqa: F811
    page = visit(report, "#site=encoder/self")
    badges = [words.badge for words in ROLE_TEXTS.values()]
    expected = [
        "–" if role < 0 else badges[role] or f"{'+' if distance > 0 else '−'}{abs(distance)}"
        for site, _, _, role, _, distance, *_ in told["heads"]
        if site == 0
    ]
    assert page.locator(".thumbnail .badge").all_inner_texts() == expected
    assert len(set(expected) - {"–"}) >= 3
    groups = [
        (
            group.locator(".role-sentence").inner_text(),
            group.locator(".head-chip").all_inner_texts(),
            group.locator(".head-chip").evaluate_all("all => all.map((each) => each.getAttribute('aria-label'))"),
            int(group.locator(".count").inner_text()),
        )
        for group in page.locator(".role-group").all()
    ]
    sentences = [sentence for sentence, *_ in groups]
    assert len(set(re.sub(r"\d+", "#", sentence) for sentence in sentences)) == len(sentences) < len(told["heads"])
    heads = {name_of(run, head): head for head in told["heads"]}
    shown = [re.match(r"head \S+ of [^:]+", label)[0] for _, _, labels, _ in groups for label in labels]
    assert sorted(shown) == sorted(heads)
    order = [len(ROLE_TEXTS) if heads[name][3] < 0 else heads[name][3] for name in shown]
    assert order == sorted(order)
    # Shares are those of the maps; what has no role names the nearest.
    for sentence, chips, labels, count in groups:
        own = [heads[re.match(r"head \S+ of [^:]+", label)[0]] for label in labels]
        assert len(chips) == len(own) == count
        assert [chip.split()[-1] for chip in chips] == [f"{share}%" for *_, share, _, _, _ in own]
        assert len({(role, nearest) for _, _, _, role, nearest, *_ in own}) == 1
        shares, uniform = ([head[place] for head in own] for place in (6, 7))
        assert percents(shares) in sentence
        role, simpler = own[0][3], own[0][9]
        assert sentence.startswith("nearest “") == (role < 0 and not simpler)
        if role >= 0 and list(ROLE_TEXTS)[role].value not in ("broad", "alignment"):
            assert sentence.endswith(f": {percents(shares)} of its weight (uniform: {percents(uniform)})")
        for label, (*_, share, even, _, _) in zip(labels, own, strict=True):
            assert f"{share}%" in label
            assert ("(" not in label) or f"{even}%)" in label
    assert "over 8 examples at step 1,600, the last" in page.locator("#roles-note").inner_text()
    assert "at least 40% of the way" in page.locator("#roles-note").inner_text()
    page.locator(".roles-panel summary").click()
    assert page.locator("#role-rules dt").count() == len(ROLE_TEXTS) + 1  # and of what cannot be told


def percents(values: list[int]) -> str:
    least, most = min(values), max(values)
    return f"{most}%" if least == most else f"{least}–{most}%"


def test_what_cannot_be_told_is_said_with_what_it_may_be(visit, tmp_path):  # noqa: F811
    """A head that looks 11 places back on texts that repeat every 12 may copy; one before it does not."""
    axis = Axis("tokens")
    site = Site("decoder/self", axis, axis, ("0",), ("0", "1"), causal=True)
    words = tuple(tuple(f"w{number % 12 + 20 * example}" for number in range(48)) for example in range(2))
    labels = AxisLabels({"tokens": words}, ("one", "two"))
    weights = np.zeros((1, 2, 2, 48, 48))
    for query, (head, distance) in itertools.product(range(48), enumerate((11, 1))):
        weights[0, :, head, query, max(query - distance, 0)] = 1
    store = MapStore.open(tmp_path / "run" / "maps", (site,), labels, "0f" * 32)
    store.write(1600, make_kept(store, {site.name: weights}))
    write_record(tmp_path / "run", "demo", 0)
    page = visit(write_report(tmp_path / "run"))
    assert page.locator(".thumbnail .badge").all_inner_texts() == ["?", "prev"]
    page.locator(".head-chip[aria-label^='head 0.0 ']").click()
    wait_for(page, "head", "0")
    sentence = page.locator("#chosen-role").inner_text()
    assert "ambiguous here: “repetition (induction)”, or always 11 places back, or position alone" in sentence
    assert "either way 100% of its weight" in sentence
    group = page.locator(".role-group", has_text="ambiguous here")
    assert group.locator("p").first.inner_text() == "ambiguous here 1"
    assert group.locator(".role-sentence").inner_text().startswith("“repetition (induction)”, or always 11 places back")


@pytest.mark.parametrize("size", [(1400, 900), (400, 800)])
def test_the_roles_stand_below_the_heads_and_nothing_is_cut(run, report, told, visit, size):  # noqa: F811
    page = visit(report, shown=False)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.wait_for_selector("body[data-shown]")
    grid, panel = (page.locator(name).bounding_box() for name in ("#head-grid", ".roles-panel"))
    assert grid["y"] + grid["height"] <= panel["y"]
    # The badges say the roles of the module that is shown above the fold.
    badges = page.locator(".thumbnail .badge")
    ends = badges.evaluate_all("all => all.map((badge) => badge.getBoundingClientRect().bottom)")
    assert max(ends) <= size[1]
    chips = page.locator(".head-chip")
    assert chips.count() == len(told["heads"])
    inside = """(all) => {
        const panel = document.querySelector(".roles-panel").getBoundingClientRect();
        return all.every((each) => {
            const box = each.getBoundingClientRect();
            return box.left >= panel.left && box.right <= panel.right && box.bottom <= panel.bottom;
        });
    }"""
    assert chips.evaluate_all(inside)
    cut = """() => [...document.querySelectorAll(".roles-panel, .roles-panel *")].filter(
        (each) => each.scrollHeight > each.clientHeight + 1 && getComputedStyle(each).overflowY !== "visible"
    ).length"""
    assert page.evaluate(cut) == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_a_head_is_chosen_where_it_is_named(report, visit):  # noqa: F811
    page = visit(report, "#site=decoder/cross&layer=0&head=0")
    page.locator(".head-chip[aria-label^='head 2.1 of encoder/self']").focus()
    page.keyboard.press("Enter")
    wait_for(page, "site", "encoder/self")
    assert page.locator("#detail-title").inner_text() == "layer 2 · head 1"
    (chosen,) = page.locator(".head-chip[aria-pressed=true]").all()
    sentence = chosen.get_attribute("aria-label").removeprefix("head 2.1 of encoder/self: ")
    assert page.locator("#chosen-role").inner_text().endswith(f" {sentence}.")
    page.keyboard.press("l")
    wait_for(page, "head", "2")
    assert page.locator(".head-chip[aria-pressed=true]").inner_text().startswith("2.2 ")


def test_the_arrow_keys_go_from_head_to_head(report, visit):  # noqa: F811
    page = visit(report, "#site=decoder/cross&layer=0&head=0&step=800")
    chips = page.locator(".head-chip").evaluate_all("all => all.map((each) => each.getAttribute('aria-label'))")
    page.locator(".head-chip").first.focus()
    for key, place in (("ArrowDown", 1), ("ArrowRight", 2), ("ArrowUp", 1)):
        page.keyboard.press(key)
        page.locator(f".head-chip[aria-label='{chips[place]}'][aria-pressed=true]:focus").wait_for()
    assert address(page)["step"] == "800"
    # Of the many doors Tab reaches the chosen one alone.
    assert page.locator(".head-chip[tabindex='0']").count() == 1
