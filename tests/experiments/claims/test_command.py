"""`python -m experiments.claims` on three small claims: what it measures, records, prints, writes and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.claims import catalog, evidence, pages
from experiments.claims.__main__ import COMMAND, main
from experiments.claims.claim import Claim, Figures, Finding, Measurement, Records, Verdict
from experiments.claims.exhibits import Table
from launch import cli


def judge(figures: Figures) -> Finding:
    return Finding(Verdict.HOLDS if figures["count"] else Verdict.FAILS, f"It was measured {figures['count']} times.")


def exhibits(figures: Figures) -> tuple[Table, ...]:
    return (Table(caption="Counts", columns=("count",), rows=[(str(figures["count"]),)]),)


class CountedMeasurement:
    """An experiment whose figure is how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Figures:
        self.calls += 1
        return {"count": self.calls, "pair": (1, 2.5)}


def claim_of(number: int, lectures: tuple[str, ...], evidence: Measurement | Records) -> Claim:
    return Claim(
        number=number,
        title=f"Title {number}",
        sentence="A sentence.",
        lectures=lectures,
        source="A paper",
        refutation="Never.",
        evidence=evidence,
        judge=judge,
        exhibits=exhibits,
    )


class Checkout:
    """A folder for records and pages, and three claims: a quick one, a slow one and one of a record."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.quick, self.slow = CountedMeasurement(), CountedMeasurement()
        (folder / "words").mkdir()
        (folder / "words" / "counts.jsonl").write_text('{"count": 3}\n{"count": 4}\n')
        counts = Records(files=("words/counts.jsonl",), page="words/counts.md", read=lambda parsed: parsed[0][-1])
        self.claims = {
            "quick_one": claim_of(1, ("S1", "S3"), Measurement(measure=self.quick, seconds=2)),
            "slow_one": claim_of(2, ("S2",), Measurement(measure=self.slow, seconds=119)),
            "of_counts": claim_of(7, ("S3",), counts),
        }

    def call(self, *words: str) -> tuple[int, list[str], str]:
        """The exit code, the lines of the standard output, and the standard error."""
        self._capsys.readouterr()
        code = cli.run(COMMAND, main, words)
        printed = self._capsys.readouterr()
        return code, printed.out.splitlines(), printed.err


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Checkout:
    checkout = Checkout(tmp_path, capsys)
    monkeypatch.setattr(catalog, "claims_by_module", lambda: checkout.claims)
    monkeypatch.setattr(evidence, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(evidence, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "HTML_PAGE", tmp_path / "claims.html")
    monkeypatch.setattr(pages, "MARKDOWN_PAGE", tmp_path / "claims.md")
    return checkout


def test_what_is_missing_is_measured_and_recorded_once(checkout: Checkout) -> None:
    code, lines, _ = checkout.call()
    assert (code, lines) == (
        0,
        [
            "C-01  Title 1: holds. It was measured 1 times.",
            "C-02  Title 2: holds. It was measured 1 times.",
            "C-07  Title 7: holds. It was measured 4 times.",
        ],
    )
    record = json.loads((checkout.folder / "results" / "quick_one.json").read_text())
    assert record["figures"] == {"count": 1, "pair": [1, 2.5]}
    assert (record["claim"], record["command"]) == ("C-01", "python -m experiments.claims --only=C-01 --rerun")
    assert {"python", "jax"} <= set(record["versions"])
    assert record["seconds"] >= 0
    assert "CPU core" in record["hardware"]
    assert checkout.call()[1] == lines
    assert (checkout.quick.calls, checkout.slow.calls) == (1, 1)
    for name in ("claims.html", "claims.md"):
        text = (checkout.folder / name).read_text()
        assert all(title in text for title in ("Title 1", "Title 2", "Title 7"))


def test_rerun_measures_again(checkout: Checkout) -> None:
    checkout.call("--only=C-01")
    assert checkout.call("--only=C-01", "--rerun")[1] == ["C-01  Title 1: holds. It was measured 2 times."]
    assert "measured 2 times" in (checkout.folder / "claims.md").read_text()
    assert checkout.slow.calls == 0


def test_a_wrong_record_turns_a_claim_to_what_does_not_hold(checkout: Checkout) -> None:
    checkout.call()
    file = checkout.folder / "results" / "quick_one.json"
    file.write_text(file.read_text().replace('"count": 1', '"count": 0'))
    (checkout.folder / "words" / "counts.jsonl").write_text('{"count": 0}\n')
    _, lines, _ = checkout.call("--lecture=S3")
    assert lines == [f"C-0{number}  Title {number}: does not hold here. It was measured 0 times." for number in (1, 7)]
    assert "| does not hold here | 2 |" in (checkout.folder / "claims.md").read_text()
    assert checkout.quick.calls == 1


def test_only_takes_several_in_their_order(checkout: Checkout) -> None:
    _, lines, error = checkout.call("--only=C-07,C-01")
    assert [line[:4] for line in lines] == ["C-07", "C-01"]
    # The page has what is recorded, and the command says what is not.
    assert "without figures, and so not on the page: C-02\n" in error
    assert "Title 2" not in (checkout.folder / "claims.html").read_text()


def test_a_lecture_has_its_claims(checkout: Checkout) -> None:
    assert [line[:4] for line in checkout.call("--lecture=S3")[1]] == ["C-01", "C-07"]


def test_fast_measures_the_quick_ones_anew_and_reads_records(checkout: Checkout) -> None:
    checkout.call()
    # Together they would take two minutes and a second.
    assert [line[:4] for line in checkout.call("--fast")[1]] == ["C-01", "C-07"]
    assert (checkout.quick.calls, checkout.slow.calls) == (2, 1)
    assert [line[:4] for line in checkout.call("--fast", "--lecture=S2")[1]] == ["C-02"]
    assert checkout.slow.calls == 2


def spoil(name: str, text: str | None) -> Callable[[Path], None]:
    """What writes another text into a file of the folder, or removes it."""

    def change(folder: Path) -> None:
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    return change


@pytest.mark.parametrize(
    ("words", "change", "says"),
    [
        (("--only=C-1",), None, "--only=C-1 is no claim: did you mean 'C-01'?"),
        (("--lecture=S9",), None, "--lecture=S9 is no lecture: they are S0, S1, S2, S3, S4"),
        (("--only=C-01", "--lecture=S1"), None, "--lecture"),
        (("--only=C-01", "--fast"), None, "--fast"),
        (("--fast", "--rerun"), None, "--rerun"),
        (("--slow",), None, "--slow"),
        ((), spoil("results/quick_one.json", "{"), "quick_one.json"),
        ((), spoil("results/quick_one.json", '{"figures": {}}'), "quick_one.json"),
        ((), spoil("words/counts.jsonl", '{"count": 3'), "counts.jsonl is not JSON Lines"),
        ((), spoil("words/counts.jsonl", ""), "words/counts.jsonl in experiments/ has not the figures of the claim"),
        ((), spoil("words/counts.jsonl", None), "counts.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    checkout: Checkout, words: tuple[str, ...], change: Callable[[Path], None] | None, says: str
) -> None:
    if change is not None:
        change(checkout.folder)
    code, _, error = checkout.call(*words)
    message = error.splitlines()[-1]
    assert code == 2
    assert message.startswith("error: ")
    assert says in message
    assert not (checkout.folder / "claims.html").exists()
    if change is None:
        assert (checkout.quick.calls, checkout.slow.calls) == (0, 0)
