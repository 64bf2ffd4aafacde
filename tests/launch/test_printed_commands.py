"""Every command that the library prints runs as it is printed: of a run whose path needs quotes and its code trust."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import launch.convert
import launch.evaluate
import launch.maps
import launch.replay
import launch.train
from launch import cli
from launch.flag_parsing import parse_arguments
from launch.retrain_command import retrain_command
from launch.train import describe_next_commands
from tests.markdown import ROOT
from tests.training.written_run import CONFIG, MODEL, with_params, write_run
from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory
from transformer.studies.run_listing.listing import RunIndex
from transformer.studies.run_listing.page import page_data
from transformer.studies.run_listing.selection import ListedRuns
from transformer.studies.sweeps.trials import make_trial
from transformer.training import rollback
from transformer.training.config import resolve_config
from transformer.training.huggingface_conversion import export_to_huggingface
from transformer.training.replay import refuse_live_run
from transformer.training.rollback import RollbackRequest
from transformer.training.update_guard import TrainingDiverged

NAME = """it's "my" run"""
COMMANDS = {each.COMMAND.name: each for each in (launch.convert, launch.evaluate, launch.maps, launch.train)}
OWN = """
import dataclasses
from transformer.models import decoder

@dataclasses.dataclass(frozen=True)
class OwnConfig(decoder.DecoderConfig):
    pass

FAMILY = dataclasses.replace(decoder.FAMILY, config_class=OwnConfig, sizes={})
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run of a family of one's own, under a name with a space and quotes, and its config."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "printed_here").mkdir()
    (folder / "printed_here" / "own.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        config = {**CONFIG, "model": {**MODEL, "family": "printed_here.own"}}
        run = write_run(folder / NAME, config, with_params(0))
        (run / "metrics.jsonl").write_text('{"step": 0, "split": "train", "loss": 2.0}\n')
        yield run, config
    del sys.modules["printed_here.own"]


def printed(text: str) -> list[list[str]]:
    """The words of each command that ends a line, as a shell has them, without python -m launch."""
    lines = [line.partition("python -m launch.")[2] for line in text.splitlines() if "python -m launch." in line]
    return [shlex.split(line) for line in lines]


def call(name: str, *words: str) -> int:
    return cli.run(COMMANDS[name].COMMAND, COMMANDS[name].main, words)


def test_what_is_said_of_a_complete_run(own: tuple[Path, dict[str, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    run, config = own
    commands = printed(describe_next_commands(run, config))
    assert [name for name, *_ in commands] == ["maps", "evaluate"]
    for words in commands:
        assert call(*words) == 0, capfd.readouterr().err


def test_how_a_run_without_a_checkpoint_is_trained(
    own: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = own
    copy = Path(shutil.copytree(run, tmp_path / NAME, ignore=shutil.ignore_patterns("checkpoints*")))
    assert call("evaluate", f"--workdir={copy}", "--trust=printed_here.own") == 2
    ((name, *words),) = printed(capsys.readouterr().err)
    assert (name, parse_arguments(launch.train.COMMAND, words).workdir) == ("train", str(copy))


def test_how_batches_that_are_not_finite_are_left_out(own: tuple[Path, dict[str, Any]]) -> None:
    run, config = own
    opened: Any = SimpleNamespace(experiment=resolve_config(config), directory=RunDirectory(run))
    ((name, *words),) = printed(rollback._rewind_command(opened, RollbackRequest(4, 3)))
    arguments = parse_arguments(launch.train.COMMAND, words)
    assert (name, arguments.workdir, arguments.rollback_to_step, arguments.skip_batches) == ("train", str(run), 4, 3)


def test_how_a_run_of_a_study_is_trained_again_from_its_own_config(
    own: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run, config = own
    (tmp_path / "study.py").write_text(
        f"import ml_collections\n\ndef get_config():\n    return ml_collections.ConfigDict({config!r})\n"
    )
    # A whole group has no flag.
    trial = make_trial(config, {"optimizer": {"learning_rate": 1e-3}})
    again = tmp_path / "again" / NAME
    command = retrain_command(str(tmp_path / "study.py"), [], trial, recorded=str(run), workdir=str(again))
    copied, _, train = command.rpartition(" && ")
    subprocess.run(["bash", "-c", copied], check=True)
    assert (again / "config.json").read_bytes() == (run / "config.json").read_bytes()
    ((name, *words),) = printed(train)
    assert (name, parse_arguments(launch.train.COMMAND, words).workdir) == ("train", str(again))


def test_how_a_published_model_becomes_a_run_and_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = tmp_path / NAME
    export_to_huggingface(write_run(tmp_path / "written", CONFIG, with_params(0)), published)
    assert call("maps", f"--workdir={published}") == 2
    ((name, *words),) = printed(capsys.readouterr().err)
    # Its tokenizer knows the letters of its own text alone.
    assert call(name, *words, f"--dataset={CONFIG['task']['dataset']}") == 0, capsys.readouterr().err
    ((name, *words),) = printed(capsys.readouterr().out)
    assert (name, parse_arguments(launch.train.COMMAND, words).workdir) == ("train", f"{published}-run")


def test_how_a_branch_is_compared_with_its_run(own: tuple[Path, dict[str, Any]]) -> None:
    run, _ = own
    parent = str(run.parent / "parent run")
    ((name, *words),) = printed(launch.replay.describe_comparison_command(RunDirectory(run), parent))
    arguments = parse_arguments(launch.maps.COMMAND, words)
    assert (name, arguments.workdir, arguments.compare_to) == ("maps", str(run), parent)
    assert arguments.trust == ("printed_here.own",)


def test_how_a_step_that_diverged_is_replayed(own: tuple[Path, dict[str, Any]]) -> None:
    run, config = own
    opened: Any = SimpleNamespace(
        experiment=resolve_config(config), directory=RunDirectory(run), checkpoints=SimpleNamespace(steps=lambda: [])
    )
    batches: Any = [{"tokens": [0]}] * 4
    error = rollback.explain_divergence(TrainingDiverged(2, 3, "the loss is nan"), opened, batches)
    rewind, replay = (f"python -m {command}" for command in str(error).split("python -m ")[1:])
    ((name, *words),) = printed(rewind.partition(";")[0])
    arguments = parse_arguments(launch.train.COMMAND, words)
    assert (name, arguments.workdir, arguments.skip_batches) == ("train", str(run), 3)
    ((name, *words),) = printed(replay)
    assert (name, parse_arguments(launch.replay.COMMAND, words).step) == ("replay", 2)


def test_how_a_run_that_is_trained_elsewhere_is_resumed_later(
    own: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = own
    monkeypatch.setattr(RunDirectory, "is_in_use", lambda self: True)
    with pytest.raises(UserError) as refused:
        refuse_live_run(RunDirectory(run))
    ((name, *words),) = printed(str(refused.value).removesuffix(" resumes it later"))
    assert (name, parse_arguments(launch.train.COMMAND, words).workdir) == ("train", str(run))


def test_what_the_page_of_runs_copies(own: tuple[Path, dict[str, Any]]) -> None:
    run, _ = own
    listing = RunIndex(run.parent).read()
    data = page_data(ListedRuns(listing, listing.runs, listing.main_metrics(), ()))
    (listed,) = data["runs"]
    for command, name in ((data["maps_command"], "maps"), (data["train_command"], "train")):
        # As listed_runs_table.js puts it together.
        words = f"{command} --workdir={shlex.quote(str(run.parent / listed['name']))} {listed['trust']}"
        ((called, *flags),) = printed(words)
        assert called == name
        assert parse_arguments(COMMANDS[name].COMMAND, flags).workdir == str(run)


# How often a file writes a command that a user runs, and the tests that run it or parse it with its own parser.
PLACES = {
    "launch/ablate.py": 2,  # test_ablate.py
    "launch/command.py": 1,  # the examples of --help: test_cli.py
    "launch/convert.py": 1,
    "launch/replay.py": 1,
    "launch/retrain_command.py": 1,
    "launch/runs.py": 2,  # test_runs.py
    "launch/sweep.py": 1,  # test_sweep.py
    "launch/train.py": 3,  # one of them in test_train_check.py
    "transformer/runs/run_directory.py": 2,
    "transformer/studies/run_listing/page.py": 2,
    "transformer/studies/sweeps/sweep_page_data.py": 1,  # test_sweep_page.py
    "transformer/training/init_from.py": 1,  # with FOLDER and RUN, which the reader names
    "transformer/training/replay.py": 1,
    "transformer/training/rollback.py": 2,
    "transformer/training/run_loading.py": 1,
}


def test_every_place_that_prints_a_command_has_its_test() -> None:
    files = [path for folder in ("launch", "transformer") for path in sorted((ROOT / folder).rglob("*.py"))]
    counts = {
        str(path.relative_to(ROOT)): len(re.findall(r"(?<!def )\bshell_command\(", path.read_text(encoding="utf-8")))
        for path in files
    }
    assert {name: count for name, count in counts.items() if count} == PLACES


def test_which_run_of_a_folder_is_meant(own: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = own
    assert call("maps", f"--workdir={run.parent}") == 2
    (word,) = shlex.split(capsys.readouterr().err.partition("such as ")[2])
    assert call("maps", word, "--trust=printed_here.own") == 0, capsys.readouterr().err


def test_what_must_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "it's my text.txt"
    shutil.copy(CONFIG["task"]["dataset"], text)
    config = {**CONFIG, "task": {**CONFIG["task"], "dataset": str(text)}}
    run = write_run(tmp_path / "run", config, with_params(0))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another account"))
    assert call("evaluate", f"--workdir={run}") == 2
    (word,) = shlex.split(capsys.readouterr().err.partition("add ")[2].removesuffix(" if you know what it does\n"))
    assert call("evaluate", f"--workdir={run}", word) == 0, capsys.readouterr().err
