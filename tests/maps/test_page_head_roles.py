"""What each head does, on the page: a badge and a sentence for every head, and no scrolling for its role."""

import itertools
import re

import numpy as np
import pytest

from tests.maps.conftest import make_kept, write_record
from tests.maps.test_page import address, browser, report, visit, wait_for  # noqa: F401  fixtures and helpers
from transformer.attention.sites import Axis, Site
from transformer.maps.head_roles import NEAR_UNIFORM
from transformer.maps.report.page import write_report
from transformer.maps.report.role_descriptions import ROLE_TEXTS, roles_data
from transformer.maps.role_rules import Role
from transformer.maps.store import MapStore
from transformer.tasks.axis_labels import AxisLabels

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def told(run):
    return roles_data(MapStore.open_existing(run.directory / "maps"))


def name_of(run, head) -> str:
    return f"head {head[1]}.{head[2]} of {run.sites[head[0]].name}"


def role_of(head) -> int:
    """The index of a head's role; behind all others that of heads near uniform, then of those without a role."""
    *_, plays, evidence, uniformity, _ = head
    return evidence[0][0] if plays else len(ROLE_TEXTS) + (uniformity < 100 * NEAR_UNIFORM)


def badge_of(head, badges) -> str:
    role, distance = role_of(head), head[4][0][1][0]
    return [*(badge or f"{'+' if distance > 0 else '−'}{abs(distance)}" for badge in badges), "≈", "–"][role]


def numbers(values: list[int], unit: str = "") -> str:
    least, most = (f"{value:,}" for value in (min(values), max(values)))
    return f"{most}{unit}" if least == most else f"{least}–{most}{unit}"


def test_equal_sentences_stand_once_with_the_heads_that_they_are_of(run, report, told, visit):  # noqa: F811
    page = visit(report, "#site=encoder/self")
    badges = [words.badge for words in ROLE_TEXTS.values()]
    expected = [badge_of(head, badges) for head in told["heads"] if head[0] == 0]
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
    assert len(set(sentences)) == len(sentences) < len(told["heads"])
    heads = {name_of(run, head): head for head in told["heads"]}
    shown = [re.match(r"head \S+ of [^:]+", label)[0] for _, _, labels, _ in groups for label in labels]
    assert sorted(shown) == sorted(heads)
    order = [role_of(heads[name]) for name in shown]
    assert order == sorted(order)
    # Shares are those of the maps; what has no role names the nearest.
    for sentence, chips, labels, count in groups:
        own = [heads[re.match(r"head \S+ of [^:]+", label)[0]] for label in labels]
        assert len(chips) == len(own) == count
        first = [evidence[0] for *_, evidence, _, _ in own]
        role, simpler = role_of(own[0]), own[0][-1]
        if role == len(ROLE_TEXTS):
            assert numbers([head[5] for head in own], "%") in sentence
            continue
        assert [chip.split()[-1] for chip in chips] == [f"{share}%" for _, _, share, *_ in first]
        assert len({(plays, evidence[0][0]) for *_, plays, evidence, _, _ in own}) == 1
        shares, uniform, rows = ([values[place] for values in first] for place in (2, 3, 5))
        assert sentence.startswith("nearest “") == (role > len(ROLE_TEXTS) and not simpler)
        if role < len(ROLE_TEXTS) and list(ROLE_TEXTS)[role] not in (Role.ALIGNMENT, Role.POSITION):
            measured = f"{numbers(shares, '%')} of its weight (uniform: {numbers(uniform, '%')}) in {numbers(rows)} row"
            assert measured in sentence
        for label, (*_, plays, evidence, _, _) in zip(labels, own, strict=True):
            assert f"{evidence[0][2]}%" in label
            assert ("; also “" in label) == (plays and len(evidence) == 2)
    assert "over 8 examples at step 1,600, the last" in page.locator("#roles-note").inner_text()
    assert "at least 40% of the way" in page.locator("#roles-note").inner_text()
    page.locator(".roles-panel summary").click()
    assert page.locator("#role-rules dt").count() == len(ROLE_TEXTS) + 2  # and what cannot be told or is uniform


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
