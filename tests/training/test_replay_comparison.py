"""What a replay computed is compared with what ran by value, and what differs is measured."""

import json
import math
from pathlib import Path
from typing import Any

from transformer.runs.run_directory import RunDirectory, describe_environment
from transformer.training.replay_comparison import (
    Comparison,
    compare_head_statistics,
    compare_metrics,
    describe_comparisons,
    is_bit_identical,
)


def test_lines_are_compared_by_value_and_missing_ones_are_not_equal(tmp_path: Path) -> None:
    recorded, replayed = tmp_path / "recorded.jsonl", tmp_path / "replayed.jsonl"

    def compare(*values: dict[str, Any], first: int = 0) -> Comparison:
        for path, value in zip((recorded, replayed), values, strict=True):
            path.write_text(json.dumps({"step": 3, "split": "train", **value}) + "\n")
        return compare_metrics(recorded, replayed, first, 3)

    assert compare({"loss": 1.5, "steps_per_second": 3.0}, {"loss": 1.5, "steps_per_second": 4.0}).num_different == 0
    assert compare({"loss": None}, {"loss": None}).num_different == 0
    assert compare({"loss": 2.0}, {"loss": 1.0}).largest_difference == 0.5
    assert compare({"loss": None}, {"loss": 1.0}).num_different == 1
    assert compare({"loss": 1.0}, {}).num_different == 1
    assert compare({"loss": 1.0}, {"loss": 2.0}, first=3).num_compared == 0
    nothing = describe_comparisons([compare({}, {}, first=3)], RunDirectory(tmp_path))
    assert nothing == "not compared with what ran: the run recorded nothing on the replayed steps"


def test_only_lines_after_the_first_step_and_of_training_count(tmp_path: Path) -> None:
    for name, loss in (("recorded", 1.0), ("replayed", 2.0)):
        lines = [{"step": step, "split": "train", "loss": loss if step == 2 else 3.0} for step in (2, 4, 6)]
        lines.append({"step": 4, "split": "validation", "loss": loss})
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    files = tmp_path / "recorded", tmp_path / "replayed"
    assert compare_metrics(*files, 2, 6)[:3] == ("2 lines of metrics.jsonl (steps 4 to 6)", 2, 0)
    assert compare_metrics(*files, 2, 4)[:3] == ("1 line of metrics.jsonl (step 4)", 1, 0)
    differs = compare_metrics(*files, 0, 6)
    assert differs[1:] == (3, 1, 2, 0.5, "loss")


def test_head_statistics_are_compared_head_by_head(tmp_path: Path) -> None:
    def write(name: str, values: list[list[float | None]]) -> Path:
        record = {"step": 3, "site": "self", "entropy": values}
        (tmp_path / name).write_text(f"{json.dumps(record)}\n")
        return tmp_path / name

    recorded = write("recorded", [[1.0, 2.0], [3.0, None]])
    assert compare_head_statistics(recorded, write("same", [[1.0, 2.0], [3.0, None]]), 0, 3).num_different == 0
    other = compare_head_statistics(recorded, write("other", [[1.0, 2.5], [3.0, None]]), 0, 3)
    assert (other.num_different, other.largest_difference, other.largest_name) == (1, 0.2, "self/entropy")
    lost = compare_head_statistics(recorded, write("lost", [[1.0, 2.0], [3.0, 4.0]]), 0, 3)
    assert lost.largest_difference == math.inf


def test_the_verdict_is_one_line_that_names_the_largest_differences(tmp_path: Path) -> None:
    start = {**describe_environment(), "processor": "a faster one"}
    (tmp_path / "environment.json").write_text(json.dumps([start]))
    equal, wrong = Comparison("4 arrays of it", 4), Comparison("2 lines of that", 2, 1, 7, 0.25, "loss")
    directory = RunDirectory(tmp_path)
    assert describe_comparisons([equal, Comparison("none", 0)], directory) == (
        "bit-identical to what ran: 4 arrays of it are equal"
    )
    verdict = describe_comparisons([equal, wrong], directory)
    assert verdict.startswith(
        "not bit-identical to what ran: 1 of 2 lines of that differ, the first at step 7, by at most 0.25 relative "
        "(loss); processor a faster one then, "
    )
    assert "number of cores" not in verdict
    assert is_bit_identical([equal, wrong]) is False
    assert is_bit_identical([equal]) is True
    assert is_bit_identical([Comparison("none", 0)]) is None
