"""The words of the local launcher: its own flags, those of the train command behind --, quoting."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.clusters import local
from launch.clusters.local import format_shell_command, run_launcher

FLAGS = ("--num_processes=2",)
TRAIN = ("--config=experiments/demo.py", "--workdir=gs://bucket/demo")


@pytest.fixture(autouse=True)
def checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


def launch(*words: str) -> int:
    return run_launcher(local.COMMAND, local.main, words)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a call with a mistake prints."""
    code = launch(*words)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ((), "needs the train command's flags after --, as in python -m launch.clusters."),
        (TRAIN[:1], "train needs --workdir=VALUE"),
        # Not in a bucket, which would be asked for the config of a run there.
        (("--workdir=runs/nowhere",), "--workdir=runs/nowhere holds no run to resume"),
        ((*TRAIN, "--config.sed=1"), "unknown key config.sed: did you mean config.seed?"),
        ((*TRAIN, "--show_config"), "--show_config after -- trains nothing: omit it"),
        ((*TRAIN, "--config.seed=x"), "config.seed='x' is not an integer"),
        ((*TRAIN, "--wrokdir=y"), "unknown flag --wrokdir: did you mean '--workdir'?"),
        (("--config=experiments/dmeo.py", *TRAIN[1:]), "no config file 'experiments/dmeo.py': did you mean"),
        ((*TRAIN, "--process_id=0"), "--process_id=0 after -- is set by the launcher for each process"),
        ((*TRAIN, "--coordinator_address", "a:1"), "--coordinator_address after -- is set by the launcher"),
        ((*TRAIN, "--config.name=a\nb"), r"'--config.name=a\nb' has an unprintable character"),
        ((*TRAIN, "--config.name=a\x1b[2J"), r"has an unprintable character"),
    ],
)
def test_mistakes_in_the_train_command_are_told_before_anything_starts(capsys, train, says):
    assert says in refusal(capsys, *FLAGS, "--", *train)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--config.sharding.fsdp=2",), "config.sharding.fsdp=2 divides nothing under config.sharding.rules=dp"),
        (("--config.sharding.data=3",), "config.sharding asks for data=3, which does not make"),
        (("--config.model.heads=3",), "config.model.heads=3"),
        (
            ("--config=experiments/masked_lm/configs/bert.py", "--config.task.batch_size=7"),
            "config.task.batch_size=7 c",
        ),
    ],
)
def test_a_config_that_does_not_fit_the_devices_is_told_before_they_are_requested(capsys, flags, says):
    train = TRAIN[1:] if flags[0].startswith("--config=") else TRAIN
    assert says in refusal(capsys, *FLAGS, "--dry_run", "--", *train, *flags)


def test_mistakes_before_the_dashes(capsys):
    own = FLAGS
    assert "needs the train command's flags after --" in refusal(capsys, *own)
    line = refusal(capsys, *own, *TRAIN)
    assert "--config=experiments/demo.py is a flag of the train command: write it after --, as in python -m" in line
    assert "unknown flag --dryrun: did you mean '--dry_run'?" in refusal(capsys, *own, "--dryrun", "--", *TRAIN)


def test_help_and_the_example_that_it_shows(capsys):
    command = local.COMMAND
    assert launch("--help") == 0
    page = capsys.readouterr().out
    assert f"python -m launch.{command.name} {command.example}" in page
    words = shlex.split(command.example)
    cut = words.index("--")
    assert launch(*words[:cut], "--dry_run", *words[cut:]) == 0
    assert capsys.readouterr().out


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), min_size=1, max_size=4))
def test_a_shell_reads_back_the_words_that_are_shown(words):
    printed = subprocess.run(
        ["bash", "-c", format_shell_command(["printf", "%s\\0", *words], {})], capture_output=True, check=True
    ).stdout.decode()
    assert printed.split("\0")[:-1] == words
