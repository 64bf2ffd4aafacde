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


def test_every_head_has_its_badge_and_its_sentence_sorted_by_role(run, report, told, visit):  # noqa: F811
    page = visit(report, "#site=encoder/self")
    badges = [words.badge for words in ROLE_TEXTS.values()]
    expected = [badge_of(head, badges) for head in told["heads"] if head[0] == 0]
    assert page.locator(".thumbnail .badge").all_inner_texts() == expected
    assert len(set(expected) - {"–"}) >= 3
    sentences = page.locator(".told-head").all_inner_texts()
    assert len(sentences) == len(told["heads"])
    order = [role_of(head) for head in told["heads"]]
    shown = [re.search(r"Head (\d)\.(\d) of (.*?) · (self|cross)", each).groups() for each in sentences]
    places = [
        next(
            number
            for number, head in enumerate(told["heads"])
            if name_of(run, head) == f"head {layer}.{head_number} of {side}/{kind}"
        )
        for layer, head_number, side, kind in shown
    ]
    assert sorted(places) == list(range(len(places)))
    assert [order[place] for place in places] == sorted(order)
    # Shares are those of the maps; what has no role says so and names the nearest.
    for place, sentence in zip(places, sentences, strict=True):
        *_, plays, evidence, _, simpler = told["heads"][place]
        assert ("none of these; nearest “" in sentence) == (
            badge_of(told["heads"][place], badges) == "–" and not simpler
        )
        assert ("; also “" in sentence) == (plays and len(evidence) == 2)
        for role, _, share, even, _, rows in evidence:
            if list(ROLE_TEXTS)[role] is Role.ALIGNMENT:
                assert f"{share}% of {rows} aligned rows right (chance: {even}%)" in sentence
            else:
                assert re.search(rf"{share}% [a-z ]+ \(uniform: {even}%\) in {rows} rows", sentence)
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
    (told,) = (text for text in page.locator(".told-head").all_inner_texts() if "Head 0.0" in text)
    assert "ambiguous here: “repetition (induction)”, or always 11 places back, or position alone" in told
    assert "either way 100% of its weight" in told
    assert "ambiguous here 1" in " ".join(page.locator("#roles-by-kind").inner_text().split())


@pytest.mark.parametrize("size", [(1400, 900), (400, 800)])
def test_the_role_of_every_head_is_above_the_fold(run, report, told, visit, size):  # noqa: F811
    page = visit(report, shown=False)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.locator(".head-chip").first.wait_for()
    page.wait_for_timeout(200)
    chips = page.locator(".head-chip")
    assert chips.count() == len(told["heads"])
    ends = chips.evaluate_all("all => all.map((chip) => chip.getBoundingClientRect().bottom)")
    assert max(ends) <= size[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    labels = chips.evaluate_all("all => all.map((chip) => chip.getAttribute('aria-label'))")
    assert {re.match(r"head \S+ of \S+", label)[0] for label in labels} == {
        name_of(run, head) for head in told["heads"]
    }


def test_a_head_is_chosen_where_it_is_named(report, visit):  # noqa: F811
    page = visit(report, "#site=decoder/cross&layer=0&head=0")
    page.locator(".head-chip[aria-label^='head 2.1 of encoder/self']").focus()
    page.keyboard.press("Enter")
    wait_for(page, "site", "encoder/self")
    assert page.locator("#detail-title").inner_text() == "layer 2 · head 1"
    (chosen,) = page.locator(".told-head[aria-pressed=true]").all()
    assert chosen.inner_text().split("\n")[-1].startswith("Head 2.1 of encoder · self ")
    # In its box the sentence is in sight, and the page itself stays where it was.
    box, sentence = page.locator("#roles-by-head").bounding_box(), chosen.bounding_box()
    assert box["y"] <= sentence["y"] <= box["y"] + box["height"]
    page.keyboard.press("l")
    wait_for(page, "head", "2")
    assert page.locator(".head-chip[aria-pressed=true]").inner_text() == "2.2"


def test_the_arrow_keys_go_from_sentence_to_sentence(report, visit):  # noqa: F811
    page = visit(report, "#site=decoder/cross&layer=0&head=0&step=800")
    page.locator(".told-head").first.focus()
    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        page.keyboard.press(key)
        page.locator(f".told-head:nth-child({place + 1})[aria-pressed=true]:focus").wait_for()
    assert address(page)["step"] == "800"
    # Of the many doors of each kind Tab reaches the chosen one alone.
    for kind in (".told-head", ".head-chip"):
        assert page.locator(f"{kind}[tabindex='0']").count() == 1
