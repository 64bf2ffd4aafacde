"""Every claim of the lectures: it is whole, judged by its record, and on both pages as its record has it."""

import ast
import dataclasses
import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.claims.__main__ import FAST_SECONDS, quick_claims
from experiments.claims.catalog import claims, claims_by_module, sort_claims
from experiments.claims.claim import Measurement, Records, Verdict
from experiments.claims.evidence import EXPERIMENTS, RESULTS, measuring_command, read_recorded_figures
from experiments.claims.exhibits import HeatMap, LineChart, Table
from experiments.claims.judgment import LECTURES, JudgedClaim, judge_figures
from experiments.claims.pages import MARKDOWN_PAGE, render_pages
from tests.experiments.claims.wrong_figures import WRONG_FIGURES, replace_figures
from tests.markdown import ROOT
from transformer.config import UserError

CLAIMS = claims_by_module()
each_claim = pytest.mark.parametrize("module", CLAIMS)


@functools.cache
def recorded_claim(module: str) -> JudgedClaim:
    """A claim judged by its record; none is measured."""
    claim = CLAIMS[module]
    figures, record = read_recorded_figures(module, claim)
    return judge_figures(claim, figures, record)


def test_claims_are_numbered_from_1_to_48() -> None:
    assert [claim.number for claim in claims()] == list(range(1, 49))


def test_two_claims_with_one_number_are_refused() -> None:
    module, claim = next(iter(CLAIMS.items()))
    twin = dataclasses.replace(claim, title="another")
    with pytest.raises(UserError, match=rf"{module}.py and twin.py are both {claim.name}"):
        sort_claims([(module, claim), ("twin", twin)])


def exhibit_faults(exhibit: Table | LineChart | HeatMap) -> list[str]:
    """What of an exhibit does not fit together."""
    faults = [] if exhibit.caption else ["no caption"]
    if isinstance(exhibit, Table):
        faults += [f"row {row}" for row in exhibit.rows if len(row) != len(exhibit.columns)]
        faults += [] if exhibit.rows else ["no rows"]
    elif isinstance(exhibit, LineChart):
        for name, series in exhibit.series.items():
            lengths = {len(values) for values in (series.x, series.y, series.low, series.high) if values is not None}
            faults += [] if len(lengths) == 1 and lengths != {0} else [f"series {name}"]
    else:
        shape = {(len(exhibit.values), len(row)) for row in exhibit.values}
        faults += [] if shape == {(len(exhibit.row_labels), len(exhibit.column_labels))} else ["shape"]
    return faults


@each_claim
def test_a_claim_is_whole(module: str) -> None:
    claim, judged = CLAIMS[module], recorded_claim(module)
    assert claim.lectures
    assert set(claim.lectures) <= set(LECTURES)
    assert list(claim.lectures) == sorted(set(claim.lectures))
    assert all((claim.title, claim.sentence, claim.source, claim.refutation))
    assert judged.exhibits
    assert [fault for exhibit in judged.exhibits for fault in exhibit_faults(exhibit)] == []
    assert re.search(r"\d", judged.finding.reason), "a reason has figures"
    if isinstance(claim.evidence, Records):
        assert (EXPERIMENTS / claim.evidence.page).is_file()
    else:
        assert judged.record is not None
        assert (judged.record.claim, judged.record.command) == (claim.name, measuring_command(claim))
        assert judged.record.commit


def test_faults_of_exhibits_are_found() -> None:
    assert exhibit_faults(Table(caption="", columns=("a", "b"), rows=[("1",)])) == ["no caption", "row ('1',)"]
    heat_map = HeatMap(caption="c", values=[[1.0], [2.0, 3.0]], row_labels="ab", column_labels="c")
    assert exhibit_faults(heat_map) == ["shape"]


def test_every_record_is_of_a_claim() -> None:
    measured = {module for module, claim in CLAIMS.items() if isinstance(claim.evidence, Measurement)}
    assert {path.stem for path in RESULTS.glob("*.json")} == measured


def test_the_page_of_the_site_is_what_the_records_give() -> None:
    text = render_pages([recorded_claim(module) for module in CLAIMS])[MARKDOWN_PAGE]
    assert MARKDOWN_PAGE.read_text(encoding="utf-8") == text, "out of date: run python -m experiments.claims"


def judge_with(module: str, replacements: Mapping[str, Any]) -> JudgedClaim:
    """A claim judged by other figures than those of its record."""
    claim = CLAIMS[module]
    figures, record = read_recorded_figures(module, claim)
    return judge_figures(claim, replace_figures(figures, replacements), record)


def test_pages_of_another_record_differ() -> None:
    changed = judge_with("softmax_saturation", {"trials": 2001})
    recorded = {module: recorded_claim(module) for module in CLAIMS}
    pages = render_pages(list(recorded.values()))
    for path, text in render_pages(list({**recorded, "softmax_saturation": changed}.values())).items():
        assert pages[path] != text


@pytest.mark.parametrize(("module", "replacements", "verdict"), WRONG_FIGURES)
def test_wrong_figures_change_the_verdict(module: str, replacements: Mapping[str, Any], verdict: Verdict) -> None:
    assert recorded_claim(module).finding.verdict is not verdict
    wrong = judge_with(module, replacements)
    assert wrong.finding.verdict is verdict
    assert wrong.finding.reason


def test_every_claim_has_wrong_figures_and_fails_by_them_if_it_holds() -> None:
    assert {module for module, _, _ in WRONG_FIGURES} == set(CLAIMS)
    verdicts = {module: recorded_claim(module).finding.verdict for module in CLAIMS}
    holding = {module for module, verdict in verdicts.items() if verdict in (Verdict.HOLDS, Verdict.CONDITIONAL)}
    assert holding <= {module for module, _, verdict in WRONG_FIGURES if verdict is Verdict.FAILS}


def test_figures_that_a_record_does_not_have_are_not_replaced() -> None:
    with pytest.raises(KeyError):
        replace_figures({"rows": [{"a": 1}]}, {"rows.0.b": 2})


def listed_claims(text: str) -> Mapping[str, tuple[str, str]]:
    """The claims of a README by name: title and module."""
    rows = re.findall(r"^\| (C-\d\d) \| (.+?) \| \[(\w+)\.py\]\(\3\.py\) \|$", text, re.MULTILINE)
    return {name: (title, module) for name, title, module in rows}


def test_the_readme_lists_every_claim() -> None:
    readme = (ROOT / "experiments" / "claims" / "README.md").read_text(encoding="utf-8")
    expected: dict[str, tuple[str, str]] = {claim.name: (claim.title, module) for module, claim in CLAIMS.items()}
    assert listed_claims(readme) == expected


def test_the_fast_claims_are_more_than_half() -> None:
    fast = quick_claims(CLAIMS)
    assert len(fast) >= 25
    evidence = [claim.evidence for claim in fast.values()]
    assert sum(each.seconds for each in evidence if isinstance(each, Measurement)) < FAST_SECONDS
    assert {module for module, claim in CLAIMS.items() if isinstance(claim.evidence, Records)} <= set(fast)


def imports_on_import(file: Path) -> set[str]:
    """The modules that a file imports outside of functions."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    modules = {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
    return modules | {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}


@each_claim
def test_a_claim_imports_what_is_heavy_where_it_measures(module: str) -> None:
    names = imports_on_import(EXPERIMENTS / "claims" / f"{module}.py")
    foreign = {name for name in names if not name.startswith("experiments.claims.")}
    assert foreign - {"numpy", "transformer.config"} - sys.stdlib_module_names <= {"collections.abc"}
