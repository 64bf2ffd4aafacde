"""claims.html and docs/claims.md: every claim and erratum once, links that lead somewhere, and the filter."""

import re
from collections import Counter

import pytest

from experiments.claims.catalog import claims, claims_by_module
from experiments.claims.claim import Finding, Verdict
from experiments.claims.errata import ERRATA
from experiments.claims.evidence import MeasuredRecord, format_provenance, format_seconds
from experiments.claims.exhibits import LineChart, Series, Table
from experiments.claims.html_page import STYLES
from experiments.claims.judgment import JudgedClaim, judge_recorded
from experiments.claims.markdown_page import render_markdown
from experiments.claims.pages import HTML_PAGE, MARKDOWN_PAGE, render_pages
from tests import markdown
from tests.maps.test_page import browser, visit  # noqa: F401  fixtures

TEXT = render_pages(judge_recorded(claims_by_module()))[HTML_PAGE]
MARKDOWN = MARKDOWN_PAGE.read_text(encoding="utf-8")
RECORD = MeasuredRecord("C-01", "a command", "0123456789abcdef+changes", "one lamp", {"jax": "1.2"}, 3.0, {})


def test_every_claim_and_erratum_stands_once_and_links_lead_to_it() -> None:
    ids = Counter(re.findall(r' id="([^"]+)"', TEXT))
    assert set(ids.values()) == {1}
    names = {claim.name for claim in claims()} | {erratum.name for erratum in ERRATA}
    assert names <= set(ids)
    assert set(re.findall(r'href="#([^"]+)"', TEXT)) <= set(ids)
    assert {name for name in names if f"### {name}: " not in MARKDOWN and f"| {name} " not in MARKDOWN} == set()


def test_a_claim_of_several_lectures_is_linked_from_the_later_ones() -> None:
    for claim in claims():
        for lecture in claim.lectures[1:]:
            section = TEXT.partition(f'id="{lecture}"')[2].partition("</section>")[0]
            assert f'<a href="#{claim.name}">{claim.name} ' in section


def test_the_page_is_closed() -> None:
    assert "<script" not in TEXT
    assert "http" not in TEXT.replace("http-equiv", "")
    assert " style=" not in TEXT  # the policy admits the style sheet alone
    assert len(TEXT) < 1_000_000


def test_counts_of_verdicts_are_those_of_the_claims() -> None:
    counts = {
        style: len(re.findall(rf'<article class="panel claim judged {style}"', TEXT)) for style, _ in STYLES.values()
    }
    shown = {name: int(count) for name, count in re.findall(r'for="only-(\w+)">[^<]*<b>(\d+)</b>', TEXT)}
    assert shown == {"all": len(claims()), **counts}
    for verdict in Verdict:
        assert f"| {verdict} | {counts[STYLES[verdict][0]]} |" in MARKDOWN


def test_times_are_in_seconds_or_minutes() -> None:
    assert [format_seconds(seconds) for seconds in (0.02, 1.26, 11.8, 300)] == [
        "under 0.1 s",
        "1.3 s",
        "12 s",
        "5 minutes",
    ]


def test_a_record_says_where_it_was_measured() -> None:
    assert format_provenance(RECORD) == "one lamp; jax 1.2; commit 01234567 with changes"


@pytest.mark.parametrize("width", [400, 1400])
def test_the_filter_leaves_one_verdict_and_nothing_is_wider_than_the_window(visit, width, tmp_path):  # noqa: F811
    file = tmp_path / HTML_PAGE.name
    file.write_text(TEXT, encoding="utf-8")
    page = visit(file, shown=False)
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    articles = page.locator("article.claim")
    assert articles.count() == len(claims())
    page.get_by_text("holds with a condition", exact=False).first.click()
    visible = page.locator("article.claim:visible")
    assert 0 < visible.count() == page.locator("article.conditional").count() < articles.count()
    assert page.locator("article.conditional:visible").count() == visible.count()


def test_markdown_takes_no_text_for_a_tag_or_emphasis() -> None:
    claim = claims()[0]
    table = Table(caption="of <end>", columns=("a|b",), rows=[("<sos> 2*3*4",)])
    finding = Finding(Verdict.FAILS, "1 < 2")
    text = render_markdown([JudgedClaim(claim=claim, finding=finding, exhibits=[table], record=RECORD)], [])
    assert "**Does not hold here.** 1 &lt; 2\n\nof &lt;end>:\n\n| a\\|b |\n| --- |\n| &lt;sos> 2\\*3\\*4 |\n" in text


def test_a_chart_of_few_values_is_a_table_in_markdown() -> None:
    series = {"one": Series((1, 10), (0.5, 2.0)), "two": Series((10, 100), (7.0, 8000.0))}
    chart = LineChart(caption="Two", x_label="steps", y_label="loss", series=series)
    judged = JudgedClaim(claim=claims()[0], finding=Finding(Verdict.HOLDS, ""), exhibits=[chart], record=RECORD)
    table = "| steps | one | two |\n| --- | --- | --- |\n| 1 | 0.5 |  |\n| 10 | 2 | 7 |\n| 100 |  | 8,000 |\n"
    assert f"Two (loss):\n\n{table}" in render_markdown([judged], [])


def test_the_lists_by_number_link_to_what_the_page_has() -> None:
    finding = Finding(Verdict.HOLDS, "")
    judged = [JudgedClaim(claim=claim, finding=finding, exhibits=[], record=RECORD) for claim in claims()[5::-1]]
    text = render_markdown(judged, ERRATA[4::-1])
    listed_claims, listed_errata = text.partition("## Claims by number")[2].partition("## Errata by number")[::2]
    listed_errata = listed_errata.partition("## Lecture")[0]
    numbers = [re.findall(r"^\| \[([CX]-?\d+)\]\(#[\w-]+\) \|", part, re.M) for part in (listed_claims, listed_errata)]
    assert numbers == [[f"C-0{number}" for number in range(1, 7)], [f"X{number}" for number in range(1, 6)]]
    assert f"{judged[0].claim.title} | holds |" in listed_claims
    assert {link[1:] for link in re.findall(r"\]\((#[^)]*)\)", listed_claims + listed_errata)} <= markdown.anchors(text)
