"""The real trackers: each holds, number for number, what metrics.jsonl holds; skipped where one is not installed.

They are no requirement of the tests: `pip install wandb mlflow-skinny trackio` into a folder of PYTHONPATH runs these.
"""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.small_run import CONFIG
from transformer.runs.jsonl_reading import read_records
from transformer.training.config import resolve_config
from transformer.training.driver import train
from transformer.training.writers.trackers import MlflowTracker, RunDescription, open_trackers
from transformer.training.writers.writer import Metrics, MultiWriter

Curves = dict[str, list[tuple[int, float]]]
# The second start goes on behind step 4, and sends nothing twice.
STEPS = (4, 8)


def trained(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in two starts that is told to a tracker, and its directory."""
    for variable, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": f"file:{folder / 'mlruns'}",
        "TRACKIO_DIR": str(folder / "trackio"),
    }.items():
        monkeypatch.setenv(variable, value)
    # Some read their variables when they are imported.
    pytest.importorskip(name, reason=f"needs {name}, which is not installed here")
    workdir, said = folder / "run", []
    for steps in STEPS:
        task = {**CONFIG["task"], "prompts": ("The ",), "max_new_tokens": 4}
        config = {**CONFIG, "steps": steps, "maps_every": 4, "task": task}
        with open_trackers((name,), workdir, said.append, group="sweep") as writers:
            train(resolve_config(config), workdir, writer=MultiWriter(*writers))
    assert said == []
    return workdir


def curves(workdir: Path) -> Curves:
    """The numbers of metrics.jsonl by split and name."""
    found: Curves = defaultdict(list)
    for record in read_records(workdir / "metrics.jsonl"):
        for name, value in record.items():
            if name not in ("step", "split"):
                found[f"{record['split']}/{name}"].append((record["step"], value))
    return dict(found)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_mlflow_holds_the_numbers_the_config_and_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = trained("mlflow", folder, monkeypatch)
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("headwise")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    held = {
        key: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, key)]
        for key in run.data.metrics
    }
    assert held == curves(workdir)
    assert (run.info.status, run.data.tags["group"]) == ("FINISHED", "sweep")
    assert run.data.params["model.width"] == "16"
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {
        "config.json",
        "report.html",
        "samples",
    }
    # A run that was killed reports again what lies behind its checkpoint: nothing of it is there twice.
    again = MlflowTracker(RunDescription(run.data.tags["headwise.id"], "run", "sweep", {}, resumed=True))
    for step in (6, 8, 10):
        again.write(Metrics(step, "train", {"loss": 1.0}))
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == [2, 4, 6, 8, 10]


def test_trackio_holds_the_numbers_the_config_and_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = trained("trackio", folder, monkeypatch)
    from trackio import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("headwise")
    held: Curves = defaultdict(list)
    rows = SQLiteStorage.get_logs("headwise", name)
    assert any("The" in str(row.get("validation/samples")) for row in rows)
    for row in rows:
        for key, value in row.items():
            if "/" in key and isinstance(value, float | int):
                held[key].append((row["step"], value))
    assert dict(held) == curves(workdir)
    config = SQLiteStorage.get_run_config("headwise", name)
    assert config is not None
    assert (config["model"]["width"], config["_Group"]) == (16, "sweep")
    assert SQLiteStorage.get_artifacts("headwise")


def test_wandb_holds_the_numbers_the_config_and_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = trained("wandb", folder, monkeypatch)
    from wandb.proto import wandb_internal_pb2

    held: Curves = defaultdict(list)
    said: dict[str, Any] = {}
    tables = set()
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for content in records_of(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(content)
            said[record.WhichOneof("record_type")] = record
            row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            for key, value in row.items():
                if "/samples" in key:
                    tables.add(key)
                elif "/" in key and isinstance(value, float | int):
                    held[key].append((row["step"], value))
    assert dict(held) == curves(workdir)
    assert any(key.startswith("validation/samples") for key in tables)
    run = said["run"].run
    assert (run.display_name, run.run_group, run.project) == ("run", "sweep", "headwise")
    config = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert config["model"]["width"] == 16
    assert [each.path for each in said["artifact"].artifact.manifest.contents] == ["report.html"]


def records_of(content: bytes) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it, behind seven bytes that name the format."""
    block, header, place, parts = 32768, 7, 7, b""
    while place + header <= len(content):
        if block - place % block < header:
            place += block - place % block
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + header])
        parts += content[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
