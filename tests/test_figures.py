"""Every figure of a project's README has a record that holds it, and every record names the commit of its code."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.markdown import links

ROOT = Path(__file__).resolve().parents[1]
READMES = sorted(ROOT.glob("experiments/*/README.md"))
RECORDS = sorted([*ROOT.glob("experiments/*/results/*.md"), *ROOT.glob("tests/records/*.md")])
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
ONE_SIDED = re.compile(r"p = ([\d.]+),? one-sided|one-sided p = ([\d.]+)")
COMMIT = re.compile(r"\bcommit:? `?([0-9a-f]{7,40})\b", re.IGNORECASE)


def rows(text: str) -> Iterator[list[str]]:
    """The cells of each row of the tables of a text, without the rows of titles."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        title = number + 1 < len(lines) and lines[number + 1].startswith("| ---")
        if line.startswith("| ") and not line.startswith("| ---") and not title:
            yield [cell.strip() for cell in line.strip().removesuffix("|").removeprefix("|").split("|")]


def faults(page: str, project: Path) -> list[str]:
    """What is wrong with the figures of the results of a README, which lies in the folder `project`.

    A number of a row must be in the records that its last cell links, one between the tables in any of the project's.
    """
    wrong = []
    text = page.partition("\n## Results\n")[2]
    for setting, *cells, how in rows(text):
        linked = [project / link.partition("#")[0] for link in links(how)]
        records = [record for record in linked if record.suffix == ".md"]
        if not records or not all(each.is_file() for each in linked):
            wrong.append(f"{setting}: no record" if not records else f"{setting}: a link leads nowhere")
            continue
        if len(cells) > 3:
            wrong.append(f"{setting}: more than five columns")
        held = numbers(records)
        wrong += [f"{setting}: {n} is in no record" for cell in cells for n in NUMBER.findall(cell) if n not in held]
    records = [*sorted(project.glob("results/*.md")), ROOT / "docs" / "guides" / "ahead_of_time_compilation.md"]
    said = re.sub(r"\]\([^)]*\)|`[^`]*`|^\|.*$|^#.*$", "", text, flags=re.MULTILINE)
    held = numbers(records)
    wrong += [f"{number} is in no record" for number in NUMBER.findall(said) if number not in held]
    whole = " ".join(" ".join(record.read_text(encoding="utf-8") for record in records).split())
    sides = {one or other for one, other in ONE_SIDED.findall(whole)}
    plain = " ".join(said.split())
    return wrong + [f"p = {p} is one-sided" for p in sides if p in plain and f"one-sided p = {p}" not in plain]


def numbers(records: Iterable[Path]) -> set[str]:
    """The numbers of some records."""
    text = " ".join(record.read_text(encoding="utf-8") for record in records)
    return set(NUMBER.findall(text.replace("*", " ")))


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_figure_is_in_the_record_that_it_names(readme: Path) -> None:
    page = readme.read_text(encoding="utf-8")
    assert list(rows(page.partition("\n## Results\n")[2])), f"{readme} has no table of results"
    assert faults(page, readme.parent) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("| bleu | 33.4 | quickly |", "bleu: no record"),
        ("| bleu | 33.4 | [it](results/held.md), [curve](results/gone.jsonl) |", "bleu: a link leads nowhere"),
        ("| bleu | 33.5 | [it](results/held.md) |", "bleu: 33.5 is in no record"),
        ("| bleu | 33.4 and 7 | [it](results/held.md) |", "bleu: 7 is in no record"),
        ("| bleu | 1 | 1 | 1 | 1 | [it](results/held.md) |", "bleu: more than five columns"),
        ("| bleu | 33.4 | [it](results/held.md) |\n\nAfter 18.2 hours.", "18.2 is in no record"),
        ("| bleu | 33.4 | [it](results/held.md) |\n\nAhead (p = 0.03).", "p = 0.03 is one-sided"),
    ],
)
def test_a_figure_without_its_record_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "held.md").write_text("# x\n\n33.4 BLEU after 17.7 hours, 1; ahead (p = 0.03,\none-sided)")
    page = f"# x\n\n## Results\n\n| what | value | record |\n| --- | --- | --- |\n{text}\n"
    assert faults(page, tmp_path) == [fault]


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
