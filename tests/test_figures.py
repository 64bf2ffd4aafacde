"""Every figure of docs/results.md has a record that holds it, and every record names the commit of its code."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORDS = sorted([*ROOT.glob("experiments/*/results/*.md"), *ROOT.glob("tests/records/*.md")])
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
ONE_SIDED = re.compile(r"p = ([\d.]+),? one-sided|one-sided p = ([\d.]+)")
DATA_SETS = ("CIFAR-10", "Multi30k", "Omniglot", "SST-2", "tiny-shakespeare")
COMMIT = re.compile(r"\bcommit:? `?([0-9a-f]{7,40})\b", re.IGNORECASE)


def rows(page: str) -> Iterator[tuple[str, str, str]]:
    """The rows of the table of results: what, measured, how."""
    table = page.partition("# Results")[2]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "what" and not set(cells[0]) <= {"-"}:
            yield cells[0], cells[1], cells[2]


def faults(page: str, folder: Path) -> list[str]:
    """What is wrong with the figures of a page of results, which lies in `folder`."""
    wrong = []
    meant = ""  # by "the same"
    for what, measured, how in rows(page):
        meant = meant if what.startswith("the same") else what
        if measured == "not measured":
            continue
        records = [folder / link for link in re.findall(r"\]\(([^)#]+)\)", f"{measured} {how}")]
        missing = [record for record in records if not record.is_file()]
        if not records or missing:
            wrong.append(f"{what}: no record" if not records else f"{what}: {missing[0].name} is missing")
            continue
        text = " ".join(record.read_text(encoding="utf-8") for record in records)
        held = set(NUMBER.findall(text.replace("*", " ")))
        wrong += [f"{what}: {number} is in no record" for number in NUMBER.findall(measured) if number not in held]
        sides = {one or other for one, other in ONE_SIDED.findall(" ".join(text.split()))}
        wrong += [f"{what}: p = {p} is one-sided" for p in sides if p in how and f"one-sided p = {p}" not in how]
        titles = [record.read_text(encoding="utf-8").partition("\n")[0] for record in records]
        others = [name for name in DATA_SETS if any(name in title for title in titles) and name not in meant]
        wrong += [f"{what}: the same as {meant!r}, and of {name}" for name in others if what != meant]
    return wrong


def test_every_result_is_in_the_record_that_it_names() -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert len(list(rows(page))) > 10
    assert faults(page, ROOT / "docs") == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| bleu | 33.4 | quickly |", "bleu: no record"),
        ("| bleu | 33.4 | [it](gone.md) |", "bleu: gone.md is missing"),
        ("| bleu | 33.5 | [it](held.md) |", "bleu: 33.5 is in no record"),
        ("| bleu | 33.4 and 7 | [it](held.md) |", "bleu: 7 is in no record"),
        ("| bleu | 33.4 | ahead, p = 0.03; [it](held.md) |", "bleu: p = 0.03 is one-sided"),
        (
            "| SST-2 | 33.4 | [it](held.md) |\n| the same longer | 17.7 | [it](held.md) |",
            "the same longer: the same as 'SST-2', and of Multi30k",
        ),
    ],
)
def test_a_figure_without_its_record_is_refused(row: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "held.md").write_text("# Multi30k\n\n33.4 BLEU after 17.7 hours, ahead (p = 0.03,\none-sided)")
    assert faults(f"# Results\n\n| what | measured | how |\n| --- | --- | --- |\n{row}\n", tmp_path) == [fault]


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_every_record_names_a_commit_of_this_project(record: Path) -> None:
    named = COMMIT.findall(record.read_text(encoding="utf-8"))
    assert named, f"{record} names no commit: say '- Commit: HASH', the code that gave its figures"
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run(
        [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("needs git and a checkout with its history")
    for commit in named:
        known = subprocess.run([*git, "cat-file", "-t", commit], capture_output=True, text=True, check=False)
        assert known.stdout.strip() == "commit", f"{record} names {commit}, which is no commit of this project"
