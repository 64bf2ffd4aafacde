"""The config that a run recorded: of another version of the library, changed by hand, or lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import launch.convert
import launch.evaluate
import launch.generate
import launch.maps
import launch.train
from launch import cli
from launch.maps import _parse_compared_run
from tests.training.written_run import CONFIG, with_params, write_run
from transformer.config import UserError
from transformer.interpret.load import load
from transformer.runs.checkpoint_files import _hash_manifest
from transformer.runs.run_directory import RunDirectory
from transformer.studies.scaling_laws import _run_directories
from transformer.training.huggingface_conversion import export_to_huggingface
from transformer.training.init_from import open_init_source
from transformer.training.init_plan import InitializeFromConfig

TRUST = f"--trust=lab.retired,{CONFIG['task']['dataset']}"
COMMANDS = {
    "train": (launch.train, [TRUST]),
    "evaluate": (launch.evaluate, [TRUST]),
    "maps": (launch.maps, ["--text=the", TRUST]),
    "generate": (launch.generate, ["--text=the", TRUST]),
    "convert": (launch.convert, ["--save_pretrained=out", TRUST]),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of step 0."""
    config = {**CONFIG, "parameter_averages": {"last": {"kind": "exponential"}}}
    return write_run(tmp_path_factory.mktemp("written") / "run", config, with_params(0))


@pytest.fixture
def run(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, among the trials of a study."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(written, tmp_path / "trials" / "run"))


def change(run: Path, key: str, value: Any) -> None:
    """Give a key of config.json another value; None removes it."""
    config = json.loads((run / "config.json").read_text())
    *groups, last = key.split(".")
    section = config
    for group in groups:
        section = section[group]
    section.pop(last, None)
    if value is not None:
        section[last] = value
    (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model.family", "retired", "config.model.family='retired' is unknown"),
        ("model.family", "lab.retired", "config.model.family='lab.retired': Python finds no module lab"),
        ("task.name", "retired", "config.task.name='retired' is unknown"),
        ("model.norm_placement", "retired", "config.model.norm_placement='retired' is unknown"),
        ("optimizer.algorithm", "retired", "config.optimizer.algorithm='retired' is unknown"),
        ("parameter_averages.last.kind", "retired", "config.parameter_averages.last.kind='retired' is unknown"),
        ("parameter_averages", {"last": 3}, "config.parameter_averages['last']=3 is a int"),
        ("optimizers", {"generator": 3}, "config.optimizers['generator']=3 is a int"),
        ("model.retired", 3, "unknown key config.model.retired"),
        ("retired", 3, "unknown key config.retired"),
    ],
)
def test_a_name_that_does_not_exist_any_more_is_told(
    run: Path, command: str, key: str, value: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run, key, value)
    module, words = COMMANDS[command]
    assert cli.run(module.COMMAND, module.main, [f"--workdir={run}", *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "optimizer.clip_norm",
            None,
            "has no config.optimizer.clip_norm, but the checkpoint of step 0 was trained with",
        ),
        (
            "optimizer.clip_norm",
            3.0,
            "says config.optimizer.clip_norm=3.0, but the checkpoint of step 0 was trained with",
        ),
    ],
)
def test_a_config_that_is_not_that_of_the_checkpoint_is_put_back(
    run: Path, key: str, value: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run, key, value)
    module, words = COMMANDS["evaluate"]
    assert cli.run(module.COMMAND, module.main, [f"--workdir={run}", *words]) == 2
    said = capsys.readouterr().err
    assert f"{says} config.optimizer.clip_norm=0.0; put it back" in said


def test_a_key_that_the_checkpoint_was_trained_without_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "checkpoints" / "0" / "manifest" / "metadata"
    manifest = json.loads(file.read_text())
    del manifest["metadata"]["config"]["optimizer"]["clip_norm"]
    file.write_text(json.dumps({**manifest, "sha256": _hash_manifest(manifest["leaves"], manifest["metadata"])}))
    module, words = COMMANDS["evaluate"]
    assert cli.run(module.COMMAND, module.main, [f"--workdir={run}", *words]) == 2
    assert "was trained without config.optimizer.clip_norm; " in capsys.readouterr().err


READERS: dict[str, Callable[[Path], Any]] = {
    "convert": lambda run: export_to_huggingface(run, run.parent / "published").num_parameters,
    "maps --text": lambda run: jax.tree.map(lambda leaf: leaf.tolist(), load(run).variables.params),
    "maps --compare_to": lambda run: _parse_compared_run(str(run), run.parent) and "a run",
    "scaled runs": lambda run: [path.name for path in _run_directories([run])],
    "trials": lambda run: [path.name for path in _run_directories([run.parent.parent])],
    "initialize_from": lambda run: sorted(open_init_source(InitializeFromConfig(str(run)), None).leaves),
    "advice": lambda run: refusal_of(run.parent),
}


def refusal_of(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        RunDirectory.open(folder)
    return str(refused.value)


@pytest.mark.parametrize("reader", READERS)
def test_a_lost_config_is_read_from_the_checkpoint_wherever_a_run_is_read(
    run: Path, reader: str, capfd: pytest.CaptureFixture[str]
) -> None:
    read = READERS[reader]
    expected = read(run)
    shutil.rmtree(run.parent / "published", ignore_errors=True)
    (run / "config.json").unlink()
    capfd.readouterr()
    assert read(run) == expected
    told = f"{run / 'config.json'} is missing: what it held is read from the checkpoint of step 0\n"
    assert capfd.readouterr().err.count(told) == (reader in ("convert", "maps --text", "initialize_from"))
