"""The command that measures: whose data a benchmark reads, and under what name its result is kept."""

from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks import alternating_runs, run
from experiments.benchmarks.alternating_runs import BenchmarkResult, ResultRow
from experiments.benchmarks.benchmark import Benchmark
from launch import cli


def test_an_experiment_is_measured_on_the_data_given_and_kept_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[Benchmark] = []

    def fake(benchmark: Benchmark, *others: Any) -> BenchmarkResult:
        measured.append(benchmark)
        facts: dict[str, Any] = {name: {} for name in benchmark.programs}
        return BenchmarkResult((ResultRow("bare step", (0.5,), 0.5, 1.0, 1.0, 1.0),), facts, ())

    monkeypatch.setattr(alternating_runs, "run_alternating", fake)
    results = tmp_path / "experiments" / "benchmarks" / "results"
    monkeypatch.setattr(run, "RESULTS", results)
    words = (
        "--name=loop",
        "--experiment=experiments/language_modeling/configs/shakespeare_large.py:cpu",
        "--data_dir=DIR",
        "--record",
    )
    assert cli.run(run.COMMAND, run.main, words) == 0
    assert [path.name for path in results.iterdir()] == ["loop_shakespeare_large_cpu.json"]
    (program,) = measured[0].programs.values()
    assert program.settings["config"]["task"]["data_dir"] == "DIR"
    assert "loop_shakespeare_large_cpu.json" in capsys.readouterr().out


def test_a_folder_of_data_that_nothing_reads_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(run.COMMAND, run.main, ("--name=lstm", "--data_dir=DIR")) == 2
    assert "--data_dir has no effect on --name=lstm" in capsys.readouterr().err
