"""Every figure of a project's README has a record that holds it, and every record names the commit of its code."""

import functools
import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.checkout import is_commit, is_shallow
from tests.markdown import links

ROOT = Path(__file__).resolve().parents[1]
READMES = sorted(ROOT.glob("experiments/*/README.md"))
RECORDS = sorted([*ROOT.glob("experiments/*/results/*.md"), *ROOT.glob("tests/records/*.md")])
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
# A mean with its standard deviation over seeds, and one with half the width of its confidence interval.
OVER_SEEDS = re.compile(rf"({NUMBER.pattern}) ± ([\d.]+) \((\d+) seeds\)")
WITH_INTERVAL = re.compile(rf"({NUMBER.pattern}) ± ([\d.]+) \(95% CI\)")
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
    Of "0.984 ± 0.003 (3 seeds)" the record must hold the three numbers, of "0.984 ± 0.003 (95% CI)" both ends.
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
        for cell in cells:
            if found := OVER_SEEDS.fullmatch(cell):
                mean, deviation, count = found.groups()
                seeds = (of_seeds for record in records for of_seeds in numbers_of_seeds(record))
                if not any(has_moments(of_seeds, mean, deviation, int(count)) for of_seeds in seeds):
                    wrong.append(f"{setting}: the seeds of {cell} are in no record")
            elif found := WITH_INTERVAL.fullmatch(cell):
                mean, half = map(float, found.groups())
                ends = [end for end in held if abs(abs(value_of(end) - mean) - half) < 1.1 * unit_of(found[2])]
                if found[1] not in held or {value_of(end) > mean for end in ends} != {True, False}:
                    wrong.append(f"{setting}: the interval of {cell} is in no record")
            else:
                wrong += [f"{setting}: {n} is in no record" for n in NUMBER.findall(cell) if n not in held]
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


def value_of(number: str) -> float:
    return float(number.replace(",", ""))


def unit_of(number: str) -> float:
    """One unit of the last place of a number."""
    return 10.0 ** -len(number.partition(".")[2])


@functools.cache
def numbers_of_seeds(record: Path) -> list[list[float]]:
    """Numbers that may be of the seeds of one setting: of a line, of a column of a table, of a cell of a study."""
    text, found = record.read_text(encoding="utf-8").replace("*", " "), []
    for line in text.splitlines():
        values = [value_of(number) for number in NUMBER.findall(line)]
        # A line may have several metrics of each seed, or several steps.
        found += [values[first::stride] for stride in range(1, 5) for first in range(stride)]
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [[NUMBER.findall(cell) for cell in cells] for cells in rows(table)]
        for column in range(max(map(len, lines), default=0)):
            found.append([value_of(cells[column][0]) for cells in lines if len(cells) > column and cells[column]])
    for study in sorted(record.parent.glob("*.json")):
        found += results_of_seeds(study)
    return found


@functools.cache
def results_of_seeds(study: Path) -> list[list[float]]:
    """The results of each arm of a study on each task, with the values that it was tuned to."""
    content = json.loads(study.read_text(encoding="utf-8"))
    results: dict[str, list[float]] = {}
    if not isinstance(content, dict) or "arms" not in content:
        return []  # no study
    for run in content.get("runs", ()):
        arm = json.dumps([run["arm"], run["task"], run["hyperparameters"]])
        results.setdefault(arm, []).append(run["reported_value"])
    return list(results.values())


def has_moments(values: list[float], mean: str, deviation: str, count: int) -> bool:
    """Whether `count` numbers in a row among `values` have this mean and this standard deviation, rounded."""
    for start in range(len(values) - count + 1):
        part = values[start : start + count]
        if math.isclose(statistics.fmean(part), value_of(mean), abs_tol=1.1 * unit_of(mean)) and math.isclose(
            statistics.stdev(part), value_of(deviation), abs_tol=1.1 * unit_of(deviation)
        ):
            return True
    return False


def tables_of_untuned_studies(page: str, project: Path) -> list[str]:
    """The sections of a README that quote a study in which nothing was tuned, and do not say so."""
    found = []
    for section in page.split("\n### ")[1:]:
        studies = [project / link for link in links(section) if link.endswith(".json")]
        contents = [json.loads(study.read_text(encoding="utf-8")) for study in studies]
        untuned = [study for study in contents if "comparisons" in study and not study["hyperparameter_values"]]
        if untuned and not re.search(r"\b(not|none|wasn't|No) .*?\btuned\b|\bwasn't tuned\b", section, re.DOTALL):
            found.append(section.partition("\n")[0])
    return found


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_study_without_tuning_says_so_where_it_is_quoted(readme: Path) -> None:
    assert tables_of_untuned_studies(readme.read_text(encoding="utf-8"), readme.parent) == []


def test_a_section_that_is_silent_about_tuning_is_found(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"comparisons": [], "hyperparameter_values": {}}')
    (tmp_path / "tuned.json").write_text(
        '{"comparisons": [], "hyperparameter_values": {"optimizer.learning_rate": [1, 2]}}'
    )
    page = "# Project\n\n### Parts\n\nData: [study](study.json).\n\n### Rates\n\nData: [tuned](tuned.json).\n"
    assert tables_of_untuned_studies(page, tmp_path) == ["Parts"]
    told = page.replace("\nData: [study]", "\nNo learning rate was tuned.\n\nData: [study]")
    assert tables_of_untuned_studies(told, tmp_path) == []


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_figure_is_in_the_record_that_it_names(readme: Path) -> None:
    page = readme.read_text(encoding="utf-8")
    assert list(rows(page.partition("\n## Results\n")[2])), f"{readme} has no table of results"
    assert faults(page, readme.parent) == []


def test_the_losses_of_the_first_page_are_those_of_the_recorded_study() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    seeds = numbers_of_seeds(ROOT / "experiments" / "ablations" / "results" / "pre_norm_vs_post_norm.md")
    losses = [found.groups() for cells in rows(page) for cell in cells if (found := OVER_SEEDS.fullmatch(cell))]
    assert len(losses) == 12
    assert not [loss for loss in losses if not any(has_moments(each, loss[0], loss[1], int(loss[2])) for each in seeds)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("| bleu | 33.4 | quickly |", "bleu: no record"),
        ("| bleu | 33.4 | [it](results/held.md), [curve](results/gone.jsonl) |", "bleu: a link leads nowhere"),
        ("| bleu | 33.5 | [it](results/held.md) |", "bleu: 33.5 is in no record"),
        (
            "| bleu | 33.9 ± 0.2 (3 seeds) | [it](results/held.md) |",
            "bleu: the seeds of 33.9 ± 0.2 (3 seeds) are in no record",
        ),
        (
            "| bleu | 33.4 ± 0.4 (95% CI) | [it](results/held.md) |",
            "bleu: the interval of 33.4 ± 0.4 (95% CI) is in no record",
        ),
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
    if is_shallow():
        pytest.skip("needs git and a checkout with its history")
    for commit in named:
        assert is_commit(commit), f"{record} names {commit}, which is no commit of this project"
