"""Cells say what the files of their runs say, by a reader of its own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.maps.conftest import write_run as write_mapped_run
from tests.studies.tiny import ablation, base, write_run
from transformer.config import UserError
from transformer.studies.ablations.collect_results import (
    EndedRun,
    collect_provenance,
    collect_results,
    head_statistics_over_training,
)
from transformer.studies.ablations.run_plan import PlannedRun, plan_runs

# As a run writes them: a number that was not finite is null.
RECORDS = (
    {"step": 2, "split": "train", "loss": 5.0, "flops_per_step": 10.0},
    {"step": 2, "split": "validation", "loss": 4.5, "cross_entropy": 4.25, "exact_match/de": 0.5},
    {"step": 4, "split": "train", "loss": None, "flops_per_step": 30.0},
    {"step": 4, "split": "validation", "loss": 4.0, "cross_entropy": 3.75, "exact_match/de": 1},
    {"step": 4, "split": "validation", "bleu": 1.5},
    {"step": 4, "split": "test", "bleu": 2.5},
)


def parse(file: Path, metric: str) -> list[tuple[int, float]]:
    """The points of a metric, read without anything of the package."""
    split, name = metric.split("/", 1)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(line["step"], line[name]) for line in lines if line["split"] == split and line.get(name) is not None]


def ended(planned: PlannedRun, path: Path, state: str = "done") -> EndedRun:
    return EndedRun(planned, state, path, f"trials/{planned.trial.name}", "python -m launch.train")


@pytest.fixture(scope="module")
def planned() -> list[PlannedRun]:
    return plan_runs(ablation(tuning_grid={"optimizer.warmup_steps": (0, 2)}), base())


def test_a_cell_has_the_numbers_of_its_metrics_file(planned, tmp_path):
    spec = ablation(
        tuning_grid={"optimizer.warmup_steps": (0, 2)},
        plotted_metrics=("validation/exact_match/de",),
        reported_metric="validation/cross_entropy",
    )
    directory = write_run(tmp_path / "run", RECORDS)
    (cell,) = collect_results(spec, [ended(planned[1], directory)])
    file = directory / "metrics.jsonl"
    assert set(cell.curves) == {"validation/loss", "train/loss", "validation/exact_match/de"}
    for metric, points in cell.curves.items():
        assert list(points) == parse(file, metric)
    assert cell.selection_value == parse(file, "validation/loss")[-1][1] == 4.0
    assert cell.reported_value == parse(file, "validation/cross_entropy")[-1][1] == 3.75
    assert cell.flops == 20.0
    assert (cell.arm_name, cell.task_name, cell.seed, cell.hyperparameters) == (
        "post",
        "",
        1,
        {"optimizer.warmup_steps": 2},
    )
    assert (cell.state, cell.num_steps, cell.directory) == ("done", 4, f"trials/{planned[1].trial.name}")
    assert cell.head_statistics == {}


def test_a_report_that_was_not_finite_is_no_older_one(planned, tmp_path):
    later = ({"step": 6, "split": "validation", "loss": None, "cross_entropy": None},)
    (cell,) = collect_results(ablation(), [ended(planned[0], write_run(tmp_path / "run", (*RECORDS, *later)))])
    # What chooses is the last finite value; what is reported is the last.
    assert cell.selection_value == 4.0
    assert cell.reported_value is None


def test_runs_that_ended_early_say_what_they_have(planned, tmp_path):
    diverged = write_run(tmp_path / "diverged", RECORDS[:1])
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    cells = collect_results(ablation(), [ended(planned[0], diverged, "diverged"), ended(planned[1], nothing, "failed")])
    assert [(cell.state, cell.selection_value, cell.reported_value) for cell in cells] == [
        ("diverged", None, None),
        ("failed", None, None),
    ]
    assert cells[0].curves["train/loss"] == ((2, 5.0),)
    assert cells[1].curves["train/loss"] == ()
    assert cells[1].flops is None


def test_a_metric_that_runs_do_not_report_is_refused_naming_theirs(planned, tmp_path):
    directory = write_run(tmp_path / "run", RECORDS)
    with pytest.raises(UserError) as refusal:
        collect_results(ablation(reported_metric="test/loss"), [ended(planned[0], directory)])
    said = str(refusal.value)
    assert said.startswith("ablation: metric 'test/loss' is not reported by the runs (arm 'post', seed 1, ")
    assert "test/bleu, train/flops_per_step, train/loss, validation/bleu, validation/cross_entropy" in said


def test_heads_are_means_over_layers_heads_and_examples(tmp_path):
    """Read here from the raw array, whose last axis has the names that the site's group lists."""
    run = write_mapped_run(tmp_path / "run", steps=(100, 200))
    import zarr

    found = head_statistics_over_training(run.directory / "maps")
    assert set(found) == {"entropy", "sink"}
    for site in run.sites:
        groups = [zarr.open_group(run.directory / "maps" / "steps" / str(step))[site.name] for step in (100, 200)]
        values = np.stack([group["statistics"][:] for group in groups])
        names = groups[0].attrs["statistics"]
        for name, stored in (("entropy", "entropy"), ("sink", "first_token")):
            points = []
            for number, step in enumerate((100, 200)):
                flat = [float(x) for x in values[number, ..., names.index(stored)].ravel() if not math.isnan(x)]
                points.append((step, math.fsum(flat) / len(flat)))
            assert [step for step, _ in found[name][site.name]] == [100, 200]
            np.testing.assert_allclose([x for _, x in found[name][site.name]], [x for _, x in points], rtol=1e-6)


def test_where_runs_come_from_is_told_of_all(tmp_path):
    one, other = write_run(tmp_path / "one", RECORDS), write_run(tmp_path / "other", RECORDS, commit="def")
    found = collect_provenance([one, other, tmp_path / "missing"])
    assert found == {
        "hardware": "1 x cpu, 2 CPU cores a run, Linux",
        "commit": "abc, def",
        "versions": {"python": "3.13", "jax": "0.12.0"},
    }
    assert collect_provenance([]) == {"hardware": None, "commit": None, "versions": {}}
