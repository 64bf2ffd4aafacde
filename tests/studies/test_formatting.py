"""A study's CSV and its table for the terminal."""

import csv
import dataclasses
import io

from transformer.studies.ablations.ablation import Ablation
from transformer.studies.ablations.analysis import analyze
from transformer.studies.ablations.formatting import format_arms_table, format_interval, format_runs_csv
from transformer.studies.ablations.report import StudyReport
from transformer.studies.ablations.run_result import RunResult
from transformer.studies.ablations.statistics import Interval

KEY = "optimizer.learning_rate"


def result(seeds: tuple[int, ...] = (1, 2, 3)) -> StudyReport:
    spec = Ablation("Q?", {"pre": {}, "post": {}}, "pre", {KEY: (1e-3, 1e-2)}, seeds=seeds)
    cells = [
        RunResult(
            arm,
            "",
            seed,
            {KEY: rate},
            "diverged" if arm == "post" and rate == 1e-2 else "done",
            value := (1.0 if arm == "pre" else 1.3) + rate + 0.1 * seed + (0.01 * seed**2 if arm == "post" else 0),
            value + 1 / 3,
            {},
            None,
            {},
            40,
            f"trials/{arm}{seed}",
            "python -m launch.train --config='a, b'",
        )
        for arm in ("pre", "post")
        for rate in (1e-3, 1e-2)
        for seed in seeds
    ]
    return analyze(spec, cells, {})


def test_the_csv_has_every_cell_with_every_digit() -> None:
    found = result()
    rows = list(csv.DictReader(io.StringIO(format_runs_csv(found))))
    assert list(rows[0]) == [
        "arm",
        "task",
        "seed",
        KEY,
        "state",
        "selection_value",
        "reported_value",
        "steps",
        "started",
        "commit",
        "hardware",
        "directory",
        "command",
    ]
    assert len(rows) == len(found.runs) == 12
    for row, cell in zip(rows, found.to_json()["runs"], strict=True):
        assert (row["arm"], int(row["seed"]), float(row[KEY])) == (
            cell["arm"],
            cell["seed"],
            cell["hyperparameters"][KEY],
        )
        assert (float(row["selection_value"]), float(row["reported_value"])) == (
            cell["selection_value"],
            cell["reported_value"],
        )
        assert row["command"] == cell["command"]
        assert (row["started"], row["commit"], row["hardware"]) == ("unknown", "unknown", "unknown")
    assert [row["state"] for row in rows].count("diverged") == 3


def test_the_csv_leaves_out_what_is_not_there() -> None:
    found = result()
    lacking = dataclasses.replace(found.runs[0], reported_value=None)
    found = dataclasses.replace(found, runs=[lacking, *found.runs[1:]])
    assert next(csv.DictReader(io.StringIO(format_runs_csv(found))))["reported_value"] == ""


def test_the_table() -> None:
    header, pre, post = (line.split() for line in format_arms_table(result()).splitlines())
    assert header[:2] == ["arm", "test/loss"]
    # Means over seeds 1, 2, 3: 1 + 0.001 + 0.2 + 1/3; two digits of the error.
    assert pre[:5] == ["pre", "1.53", "1.29", "to", "1.78"]
    assert pre[-4:] == ["reference", "0", "of", "6"]
    assert post[0] == "post"
    # Differences 0.31, 0.34 and 0.39: t = 14.86, of which two degrees of freedom give p = 1 - t / sqrt(t^2 + 2).
    assert post[5:10] == ["0.35", "0.25", "to", "0.45", "0.0045"]
    assert post[10] == "worse"
    assert post[-3:] == ["3", "of", "6"]


def test_the_table_of_one_seed_has_no_intervals() -> None:
    lines = format_arms_table(result((1,))).splitlines()
    assert "not judged" in lines[2]
    assert " - " in lines[1]


def test_an_end_beside_zero_is_not_written_as_zero() -> None:
    assert format_interval(Interval(0.00047, 0.0527)) == "95% interval 0.0005 to 0.053"
    assert format_interval(Interval(-0.00021, 0.0431)) == "95% interval -0.0002 to 0.043"
    assert format_interval(Interval(0.0, 0.89)) == "95% interval 0.00 to 0.89"
