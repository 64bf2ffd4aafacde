"""launch.scaling_laws: runs of a sweep are read as they lie, and what is printed is what is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch import cli, scaling_laws


def make_run(
    path: Path, parameters: int, tokens: int, loss: float | None, *, steps: int = 100, last: int = 100
) -> None:
    """The files of a run: 0.1 seconds a step, so that a step's tokens are a tenth of those of a second."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"steps": steps}))
    (path / "environment.json").write_text(json.dumps([{"parameters": parameters}]))
    a_step = tokens / steps
    train = {"steps_per_second": 10.0, "tokens_per_second": 10 * a_step, "flops_per_step": 7.0 * parameters * a_step}
    records = [
        {"step": 50, "split": "validation", "loss": 9.0},
        {"step": 50, "split": "train", "loss": 9.0, **train},
        {"step": last, "split": "validation", "loss": loss},
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for number, n in enumerate((100_000, 400_000, 1_600_000)):
        make_run(tmp_path / "trials" / f"{number}", n, 2_000_000, 20 / n**0.2)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert cli.run(scaling_laws.COMMAND, scaling_laws.main, words) == code
    return capsys.readouterr()


def test_the_planted_exponent_of_a_sweep_is_printed_and_written(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = call(capsys, f"--workdir={sweep}").out
    assert "L = A / N^alpha\n  A = 20  (too few runs for an interval)\n  alpha = 0.2  (" in said
    assert "the loss falls with every larger size: yes" in said
    found = json.loads((sweep / "scaling.json").read_text())
    assert found["fits"]["parameters"]["values"] == pytest.approx({"A": 20.0, "alpha": 0.2})
    assert found["fits"]["flops"]["values"]["gamma"] == pytest.approx(0.2)
    run = found["runs"][0]
    assert (run["parameters"], run["tokens"]) == (100_000, 2_000_000)
    assert run["flops"] == pytest.approx(7 * 100_000 * 2_000_000)


def test_seeds_give_intervals_and_unfinished_runs_are_left_out_and_named(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, n in enumerate((100_000, 400_000, 1_600_000)):
        make_run(sweep / "other" / f"{number}", n, 2_000_000, 20.2 / n**0.2)
    make_run(sweep / "other" / "early", 100_000, 2_000_000, 5.0, last=60)
    make_run(sweep / "other" / "burst", 100_000, 2_000_000, None)
    make_run(sweep / "other" / "strange", 100_000, 2_000_000, 5.0)
    (sweep / "other" / "strange" / "config.json").write_text("{}")
    paths = ",".join(map(str, (*(sweep / "trials").iterdir(), *(sweep / "other").iterdir())))
    said = call(capsys, f"--runs={paths}", f"--output={sweep / 'found.json'}")
    assert "early: it reports no validation/loss at its last step, 100" in said.err
    assert "strange: its files cannot be read: 'steps'" in said.err
    assert "burst: its validation/loss is not finite" in said.err
    low, high = json.loads((sweep / "found.json").read_text())["fits"]["parameters"]["intervals"]["alpha"]
    assert low < 0.2 < high < 0.21


def test_a_run_that_is_named_twice_is_not_two_seeds(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ",".join(map(str, [*(sweep / "trials").iterdir()] * 2))
    assert "alpha = 0.2  (too few runs for an interval)" in call(capsys, f"--runs={paths}").out


def test_runs_that_differ_in_both_and_are_few_are_not_said_to_fall_or_to_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, n in enumerate((100_000, 200_000)):
        make_run(tmp_path / "trials" / f"{number}", n, int(2e11 / n), 20 / n**0.2)
    said = call(capsys, f"--workdir={tmp_path}").out
    assert "every larger size: unknown, no two sizes have the same number of tokens" in said
    assert "both vary: a joint law needs three values of each and six pairs" in said
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert (found["falls_with_parameters"], found["fits"]) == (None, {})


def test_what_cannot_be_fitted_is_refused(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no run directory" in call(capsys, f"--workdir={sweep / 'trials'}", code=2).err
    assert "1 finished runs" in call(capsys, f"--runs={sweep / 'trials' / '0'}", code=2).err
    assert (
        "--workdir has no effect on --runs: omit one of them"
        in call(capsys, f"--runs={sweep}", f"--workdir={sweep}", code=2).err
    )
    assert "report validation/nothing" in call(capsys, f"--workdir={sweep}", "--metric=validation/nothing", code=2).err


def test_an_exponent_at_an_end_of_its_search_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, loss in enumerate((2.0, 2.1, 2.2, 2.3, 2.4)):
        make_run(tmp_path / "trials" / f"{number}", 100_000 * 4**number, 2_000_000, loss)
    said = call(capsys, f"--workdir={tmp_path}").out
    assert "alpha = 0.001  (too few runs for an interval)  not determined: 0.001" in said
    found = json.loads((tmp_path / "scaling.json").read_text())["fits"]
    assert found["parameters"]["undetermined"].keys() == {"alpha"}
    assert found["flops"]["undetermined"] == {}
