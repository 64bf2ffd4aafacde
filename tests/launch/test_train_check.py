"""`launch.train --check`: all that can be wrong before the first step is told, and nothing is left behind."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from launch import compile, train
from launch.cli import run
from launch.flag_parsing import parse_arguments
from tests.training import small_run
from transformer.training import build
from transformer.training.partitioning import single_device_placement

CONFIG = f"from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict({small_run.CONFIG!r})\n"


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.py").write_text(CONFIG)
    return f"--config={tmp_path / 'config.py'}"


def check(*words: str) -> int:
    return run(train.COMMAND, train.main, ("--check", *words))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_right_run_is_said_to_be_right_and_leaves_nothing(tmp_path, config, capsys):
    workdir = tmp_path / "runs" / "new"
    assert check(config, f"--workdir={workdir}") == 0
    data, line, export = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"data .*LICENSE: [\d,]+ train, [\d,]+ validation, [\d,]+ test tokens; .*", data)
    assert export.startswith("The model has no export to Hugging Face, which training does not need: the nearest ")
    assert f"config, data and {workdir} are right" in line
    assert "nothing was started" in line
    assert not workdir.exists()
    # What is printed is pasted: the command compiles the step of this config.
    module, *words = shlex.split(line.partition("Whether the step fits too: python -m ")[2])
    assert module == "launch.compile"
    assert parse_arguments(compile.COMMAND, words).config == parse_arguments(compile.COMMAND, [config]).config


def test_a_run_that_exists_is_checked_and_not_touched(tmp_path, config, capsys, monkeypatch):
    monkeypatch.setattr(build, "make_placement", lambda config: single_device_placement())
    workdir = tmp_path / "run"
    assert run(train.COMMAND, train.main, (config, f"--workdir={workdir}")) == 0
    before = contents(workdir)
    capsys.readouterr()
    assert check(f"--workdir={workdir}") == 0
    assert check(config, f"--workdir={workdir}", "--config.seed=9") == 2
    assert f"--workdir={workdir} holds a run with config.seed=" in capsys.readouterr().err
    assert contents(workdir) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--config.sharding.data=3",), "config.sharding asks for data=3"),
        (("--config.model.heads=3",), "config.model.heads=3"),
        (("--config.topology=v9:2x2",), "topology='v9:2x2' is not a topology"),
        (("--config.initialize_from.run=nowhere",), "nowhere"),
    ],
)
def test_mistakes_exit_with_2_and_leave_nothing(tmp_path, config, capsys, words, message):
    workdir = tmp_path / "new"
    assert check(config, f"--workdir={workdir}", *words) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert message in errors
    assert not workdir.exists()


def test_an_empty_topology_takes_that_of_the_file_away(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG.replace("ConfigDict({", "ConfigDict({'topology': 'v5e:2x4', "))
    words = (f"--config={tmp_path / 'config.py'}", "--workdir=new")
    assert parse_arguments(train.COMMAND, words).config_topology == "v5e:2x4"
    assert parse_arguments(train.COMMAND, (*words, "--config.topology=v5e:4x4")).config_topology == "v5e:4x4"
    assert parse_arguments(train.COMMAND, (*words, "--config.topology=")).config_topology == ""


def test_missing_data_are_told(tmp_path, capsys):
    workdir = tmp_path / "new"
    words = ("--config=experiments/language_modeling/configs/gpt.py", f"--workdir={workdir}")
    assert check(*words, "--config.task.dataset=nowhere.txt") == 2
    assert "nowhere.txt" in capsys.readouterr().err
    assert not workdir.exists()


LABELS = """from ml_collections import ConfigDict

def get_config():
    task = {"name": "classification", "dataset": "x.csv", "tokenizer": "bytes"}
    model = {"family": "recurrent_classifier"}
    return ConfigDict({"name": "labels", "steps": 1, "task": task, "model": model, "optimizer": {"learning_rate": 0.1}})
"""


def test_the_data_are_described_and_a_header_with_other_names_is_refused(tmp_path, capsys):
    (tmp_path / "config.py").write_text(LABELS)
    words = (f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'new'}", f"--data_dir={tmp_path}")
    rows = "".join(f"film {number},{('bad', 'good')[number % 2]}\n" for number in range(100))
    (tmp_path / "x.csv").write_text("review,sentiment\n" + rows)
    assert check(*words) == 2
    assert 'x.csv: its first line, "review" -> "sentiment", names no columns' in capsys.readouterr().err
    (tmp_path / "x.csv").write_text("text,label\n" + rows)
    assert check(*words) == 0
    data = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(r"data x.csv: \d+ train, \d+ validation, \d+ test texts; .*; classes bad, good", data)
    assert "no header" not in data


def test_a_directory_that_is_no_run_is_refused(tmp_path, config, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    assert check(config, f"--workdir={tmp_path / 'full'}") == 2
    assert "holds 'thesis.tex' but no config.json" in capsys.readouterr().err
    assert contents(tmp_path / "full") == {"thesis.tex": b"mine"}


@pytest.mark.parametrize(
    ("topology", "code", "message"),
    [
        ("v5e:2x4", 0, "fits 8 devices of v5e:2x4"),
        ("gpu:8", 0, "was not compared with the memory of gpu:8"),
        ("v5e:1x1", 2, "error: out of memory: parameters and optimizer state take "),
    ],
)
def test_mesh_and_memory_are_those_of_the_topology(root, tmp_path, topology, code, message):
    """No device of the topology is there; 1.6 billion parameters are too many for one chip of 16 GB."""
    words = ["--config=experiments/language_modeling/configs/gpt.py", f"--workdir={tmp_path / 'new'}"]
    words += ["--check", f"--config.topology={topology}", "--config.model.size=gpt2-xl", "--config.task.batch_size=8"]
    words += ["--config.sharding.rules=fsdp", "--config.sharding.fsdp=-1", "--config.sharding.data=1"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "launch.train", *words]
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert message in result.stdout + result.stderr
    assert not (tmp_path / "new").exists()
