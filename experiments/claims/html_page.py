"""claims.html: one closed file, without a script, with every claim of the lectures, its figures and the errata."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.claims.claim import Records, Verdict
from experiments.claims.drawing import draw_exhibit, heat_styles
from experiments.claims.errata import Erratum
from experiments.claims.evidence import format_provenance, format_seconds
from experiments.claims.judgment import LECTURES, JudgedClaim, LectureSection, divide_by_lecture
from transformer.pages.template import escape_html, render_static_page, with_shared_styles

TITLE = "The claims of five lectures on attention"
FOLDER = Path(__file__).resolve().parent
# The class of each verdict in html_page.css, and its mark.
STYLES: Mapping[Verdict, tuple[str, str]] = {
    Verdict.HOLDS: ("holds", "✓"),
    Verdict.CONDITIONAL: ("conditional", "◐"),
    Verdict.FAILS: ("fails", "✗"),
    Verdict.NOT_TESTABLE: ("untestable", "?"),
}


def render_page(judged_claims: Sequence[JudgedClaim], errata: Sequence[Erratum]) -> str:
    """Render the page.

    Args:
        judged_claims: The claims, in the order of their numbers.
        errata: The errata, in the order of their numbers.
    """
    known_names = {judged.claim.name for judged in judged_claims}
    sections = divide_by_lecture(judged_claims, errata)
    lectures = "".join(_lecture(lecture, section, known_names) for lecture, section in sections.items())
    index = "".join(map(_index_entry, judged_claims))
    body = f"""<header>
<p class="eyebrow">Headwise</p>
<h1>{TITLE}</h1>
<p class="lead">Lectures on attention say many things. Here {len(judged_claims)} claims have figures, a written rule
that judges them, and a verdict; a claim says so if its rule or experiment was changed after a first run. {len(errata)}
errata say what the lectures have wrong. <code>python -m experiments.claims</code> judges the claims and writes this
page.</p>
</header>
{_filter(judged_claims)}
<section class="panel intro"><h2>All claims</h2><ol class="index">{index}</ol></section>
{lectures}
<footer>Every number is computed from a record. The times are those of the measurement on the hardware named beside
them.</footer>"""
    style = with_shared_styles(f"{(FOLDER / 'html_page.css').read_text(encoding='utf-8')}\n{heat_styles()}")
    return render_static_page(TITLE, body, style)


def _filter(judged_claims: Sequence[JudgedClaim]) -> str:
    """Return the radio buttons that leave claims of one verdict."""
    counts = Counter(judged.finding.verdict for judged in judged_claims)
    choices = [("all", "all", len(judged_claims), True)]
    choices += [(style, str(verdict), counts[verdict], False) for verdict, (style, _) in STYLES.items()]
    buttons = "".join(
        f'<span><input type="radio" name="verdict" id="only-{name}"{" checked" if is_checked else ""}>'
        f'<label for="only-{name}">{words}<b>{count}</b></label></span>'
        for name, words, count, is_checked in choices
    )
    return f'<div class="controls filter" role="radiogroup" aria-label="verdicts to show">{buttons}</div>'


def _index_entry(judged: JudgedClaim) -> str:
    style, mark = STYLES[judged.finding.verdict]
    claim = judged.claim
    return (
        f'<li class="judged {style}"><i class="mark" title="{judged.finding.verdict}">{mark}</i>'
        f'<span class="number">{claim.name}</span><a href="#{claim.name}">{escape_html(claim.title)}</a></li>'
    )


def _lecture(lecture: str, section: LectureSection, known_names: set[str]) -> str:
    """Return the claims and errata of a lecture: in full those that no earlier lecture has, links to the others."""
    parts = [
        f'<section class="lecture" id="{lecture}"><h2>Lecture {lecture} '
        f'<span class="topic">{escape_html(LECTURES[lecture])}</span></h2>',
        f'<p class="note">{_count(len(section.claims) + len(section.repeated_claims), "claim", "claims")}, '
        f"{_count(len(section.errata) + len(section.repeated_errata), 'erratum', 'errata')}</p>",
        f'<div class="claims">{"".join(map(_claim, section.claims))}</div>',
    ]
    if section.repeated_claims:
        entries = ((claim.name, claim.title) for claim in section.repeated_claims)
        parts.append(_links("Also claimed here, and judged above", entries))
    if section.errata:
        items = "".join(_erratum(erratum, known_names) for erratum in section.errata)
        parts.append(f'<div class="panel errata"><h3>Errata of {lecture}</h3>{items}</div>')
    if section.repeated_errata:
        entries = ((erratum.name, erratum.statement) for erratum in section.repeated_errata)
        parts.append(_links("Errata above that are of this lecture too", entries))
    return "".join([*parts, "</section>"])


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _links(words: str, entries: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<span><a href="#{name}">{name} {escape_html(title)}</a></span>' for name, title in entries)
    return f'<p class="links">{words}: {items}</p>'


def _claim(judged: JudgedClaim) -> str:
    claim, (style, mark) = judged.claim, STYLES[judged.finding.verdict]
    facts = {"Source": escape_html(claim.source), "Refuted if": escape_html(claim.refutation)}
    if claim.revision:
        facts["Changed after a first run"] = escape_html(claim.revision)
    if claim.lectures[1:]:
        facts["Also in"] = ", ".join(f'<a href="#{lecture}">{lecture}</a>' for lecture in claim.lectures[1:])
    facts |= _provenance(judged)
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    return (
        f'<article class="panel claim judged {style}" id="{claim.name}"><div class="head">'
        f'<h3><a href="#{claim.name}"><span class="number">{claim.name}</span> {escape_html(claim.title)}</a></h3>'
        f'<span class="verdict"><i class="mark">{mark}</i>{judged.finding.verdict}</span></div>'
        f'<p class="sentence">{escape_html(claim.sentence)}</p>'
        f'<p class="reason">{escape_html(judged.finding.reason)}</p>'
        f'<div class="exhibits">{"".join(map(draw_exhibit, judged.exhibits))}</div>'
        f'<dl class="facts-of-claim">{listed}</dl></article>'
    )


def _provenance(judged: JudgedClaim) -> Mapping[str, str]:
    """Return where a claim's figures come from, as HTML."""
    evidence, record = judged.claim.evidence, judged.record
    if isinstance(evidence, Records):
        files = ", ".join(f"<code>experiments/{escape_html(name)}</code>" for name in evidence.files)
        return {"Figures": files, "Commands": f"<code>experiments/{escape_html(evidence.page)}</code>"}
    assert record is not None
    measured = f"in {format_seconds(record.seconds)}, {format_provenance(record)}"
    return {"Command": f"<code>{escape_html(record.command)}</code>", "Measured": escape_html(measured)}


def _erratum(erratum: Erratum, known_names: set[str]) -> str:
    references = ", ".join(_reference(reference, known_names) for reference in erratum.shown_by) or "the source alone"
    return (
        f'<div class="erratum" id="{erratum.name}"><h4><a href="#{erratum.name}">{erratum.name}</a></h4>'
        f'<div><p class="label">It says</p><p>{escape_html(erratum.statement)}</p></div>'
        f'<div><p class="label">Right is</p><p>{escape_html(erratum.correction)}</p>'
        f'<p class="because">{escape_html(erratum.reason)}</p>'
        f'<p class="shown">{escape_html(erratum.source)}. Shown by {references}</p></div></div>'
    )


def _reference(reference: str, known_names: set[str]) -> str:
    if reference in known_names:
        return f'<a href="#{reference}">{reference}</a>'
    path, _, test = reference.partition("::")
    return f'<code title="{escape_html(path)}">{escape_html(test or path)}</code>'
