"""docs/claims.md: every claim of the lectures with its verdict, reason and tables, and the errata, as Markdown."""

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from experiments.claims.claim import Claim, Records, Verdict
from experiments.claims.drawing import format_number
from experiments.claims.errata import Erratum
from experiments.claims.evidence import format_provenance, format_seconds
from experiments.claims.exhibits import Exhibit, LineChart, Table
from experiments.claims.judgment import LECTURES, JudgedClaim, divide_by_lecture

FOLDER = "docs"
MAX_CHART_ROWS = 12  # a chart over more values is on the other page alone
_HEAD = """# Claims of lectures

Five lectures on attention say many things. Each of {num_claims} claims has figures and a written rule that judges
them, and {num_errata} errata say what the lectures have wrong. A rule for a claim's own experiment was fixed before it
ran; where the rule or the experiment was changed after a first run, the claim says so. A rule for other projects'
records was written after them. This page is generated:

```
python -m experiments.claims                        # judge all claims, measure what is not recorded
python -m experiments.claims --only=C-01 --rerun    # measure one again
python -m experiments.claims --lecture=S3 --fast    # measure the quick ones of a lecture again
```

The command writes this page, and in `experiments/claims` one offline page, `claims.html`, with the curves and heat
maps. [How to add a claim](../experiments/claims/README.md#add-a-claim).

| verdict | claims | |
| --- | --- | --- |
"""
_MEANINGS: Mapping[Verdict, str] = {
    Verdict.HOLDS: "the figures do what the claim says",
    Verdict.CONDITIONAL: "they do under a condition that the reason names",
    Verdict.FAILS: "they don't, at the size of these experiments",
    Verdict.NOT_TESTABLE: "no experiment that fits here decides it",
}


def render_markdown(judged_claims: Sequence[JudgedClaim], errata: Sequence[Erratum]) -> str:
    """Render the page.

    Args:
        judged_claims: The claims, in the order of their numbers.
        errata: The errata, in the order of their numbers.
    """
    counts = Counter(judged.finding.verdict for judged in judged_claims)
    head = _HEAD.format(num_claims=len(judged_claims), num_errata=len(errata))
    head += "".join(f"| {verdict} | {counts[verdict]} | {_MEANINGS[verdict]} |\n" for verdict in Verdict)
    anchors = {judged.claim.name: f"#{_anchor(_heading(judged.claim))}" for judged in judged_claims}
    parts = [head, _list_claims(judged_claims, anchors), *([_list_errata(errata)] if errata else [])]
    for lecture, section in divide_by_lecture(judged_claims, errata).items():
        parts.append(f"## Lecture {lecture}\n\n{LECTURES[lecture]}.\n")
        if section.repeated_claims:
            links = ", ".join(f"[{claim.name}]({anchors[claim.name]})" for claim in section.repeated_claims)
            parts.append(f"Also claimed here, and judged above: {links}.\n")
        parts += map(_claim, section.claims)
        if section.errata:
            rows = (_erratum_row(erratum, anchors) for erratum in section.errata)
            columns = ("", "the lecture says", "right is", "source", "shown by")
            parts.append(f"### {_errata_heading(lecture)}\n\n{_table(columns, rows)}")
    return "\n".join(parts)


def _list_claims(judged_claims: Sequence[JudgedClaim], anchors: Mapping[str, str]) -> str:
    """Return the claims by number, each with its verdict and a link to its section."""
    rows = [
        (f"[{claim.name}]({anchors[claim.name]})", _escape(claim.title), str(judged.finding.verdict))
        for judged in sorted(judged_claims, key=lambda judged: judged.claim.name)
        for claim in (judged.claim,)
    ]
    return f"## Claims by number\n\n{_table(('', 'claim', 'verdict'), rows)}"


def _list_errata(errata: Sequence[Erratum]) -> str:
    """Return the errata by number, each with a link to the table of its lecture."""
    rows = [
        (f"[{erratum.name}](#{_anchor(_errata_heading(erratum.lectures[0]))})", _escape(erratum.statement))
        for erratum in sorted(errata, key=lambda erratum: erratum.number)
    ]
    return f"## Errata by number\n\n{_table(('', 'the lecture says'), rows)}"


def _errata_heading(lecture: str) -> str:
    return f"Errata of {lecture}"


def _heading(claim: Claim) -> str:
    return f"{claim.name}: {claim.title}"


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _claim(judged: JudgedClaim) -> str:
    claim = judged.claim
    also = f" Also in {', '.join(claim.lectures[1:])}." if claim.lectures[1:] else ""
    paragraphs = [
        f"### {_heading(claim)}\n",
        f"{_escape(claim.sentence)} ({_escape(claim.source)}.){also}\n",
        f"**{str(judged.finding.verdict).capitalize()}.** {_escape(judged.finding.reason)}\n",
        *(f"{table}" for exhibit in judged.exhibits if (table := _exhibit_table(exhibit))),
        f"Refuted if: {_escape(claim.refutation)}\n",
        *([f"Changed after a first run: {_escape(claim.revision)}\n"] if claim.revision else []),
        _provenance(judged),
    ]
    return "\n".join(paragraphs)


def _provenance(judged: JudgedClaim) -> str:
    evidence, record = judged.claim.evidence, judged.record
    if isinstance(evidence, Records):
        files = ", ".join(_link(posixpath.basename(name), f"experiments/{name}") for name in evidence.files)
        page = _link(posixpath.basename(evidence.page), f"experiments/{evidence.page}")
        return f"Figures: {files} of the record {page}.\n"
    assert record is not None
    return f"Measured by `{record.command}` in {format_seconds(record.seconds)}, {format_provenance(record)}.\n"


def _exhibit_table(exhibit: Exhibit) -> str:
    """Return an exhibit as a table; nothing for a heat map and for a chart with many points."""
    match exhibit:
        case Table():
            return _captioned_table(exhibit.caption, exhibit.columns, exhibit.rows)
        case LineChart():
            return _chart_table(exhibit)
        case _:
            return ""


def _chart_table(chart: LineChart) -> str:
    x_values = sorted({x for series in chart.series.values() for x in series.x})
    if len(x_values) > MAX_CHART_ROWS:
        return ""
    values = {name: dict(zip(series.x, series.y, strict=True)) for name, series in chart.series.items()}
    rows = [
        (format_number(x), *(format_number(line[x]) if x in line else "" for line in values.values())) for x in x_values
    ]
    single = len(values) == 1
    columns = (chart.x_label, *((chart.y_label,) if single else values))
    caption = chart.caption if single else f"{chart.caption} ({chart.y_label})"
    return _captioned_table(caption, columns, rows)


def _captioned_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    escaped_rows = [[_escape(cell) for cell in row] for row in rows]
    return f"{_escape(caption)}:\n\n{_table([_escape(column) for column in columns], escaped_rows)}"


def _erratum_row(erratum: Erratum, anchors: Mapping[str, str]) -> Sequence[str]:
    also = f" (also {', '.join(erratum.lectures[1:])})" if erratum.lectures[1:] else ""
    references = ", ".join(_reference(reference, anchors) for reference in erratum.shown_by) or "the source alone"
    correction = f"{erratum.correction} {erratum.reason}"
    texts = (_escape(text) for text in (erratum.statement, correction, erratum.source))
    return (f"{erratum.name}{also}", *texts, references)


def _reference(reference: str, anchors: Mapping[str, str]) -> str:
    path, _, test = reference.partition("::")
    if test:
        return f"{_link(posixpath.basename(path), path)} `{test}`"
    if path.partition("#")[0].endswith(".md"):
        return _link(path.partition("#")[0], path)
    return f"[{reference}]({anchors[reference]})" if reference in anchors else reference


def _link(text: str, path: str) -> str:
    """Return a link to a file of the checkout."""
    return f"[{text}]({posixpath.relpath(path, FOLDER)})"


def _escape(text: str) -> str:
    """Return text of which Markdown takes nothing for a tag or for emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
