"""What the launchers share: the words behind --, names, quoting, tools that are missing."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.clusters import gke, local, slurm, tpu_vm
from launch.clusters.launcher_common import (
    check_flag_value,
    format_shell_command,
    make_run_name,
    parse_extra_options,
    run_launcher,
)
from transformer.config import UserError

ENGINES: dict[str, tuple[ModuleType, tuple[str, ...]]] = {
    "tpu_vm": (tpu_vm, ("--zone=us-east5-a", "--topology=v5e:4x4")),
    "gke": (gke, ("--image=registry/image:1", "--topology=v5e:4x4")),
    "slurm": (slurm, ("--topology=gpu:16",)),
    "local": (local, ("--num_processes=2",)),
}
TRAIN = ("--config=experiments/demo.py", "--workdir=gs://bucket/demo")
every_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


def launch(engine: str, *words: str) -> int:
    return run_launcher(ENGINES[engine][0].COMMAND, ENGINES[engine][0].main, words)


def refusal(capsys: pytest.CaptureFixture[str], engine: str, *words: str) -> str:
    """The one line that a call with a mistake prints."""
    code = launch(engine, *words)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


@every_engine
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
def test_mistakes_in_the_train_command_are_told_before_anything_starts(capsys, engine, train, says):
    assert says in refusal(capsys, engine, *ENGINES[engine][1], "--", *train)


@every_engine
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
def test_a_config_that_does_not_fit_the_devices_is_told_before_they_are_requested(capsys, engine, flags, says):
    train = TRAIN[1:] if flags[0].startswith("--config=") else TRAIN
    assert says in refusal(capsys, engine, *ENGINES[engine][1], "--dry_run", "--", *train, *flags)


@every_engine
def test_mistakes_before_the_dashes(capsys, engine):
    own = ENGINES[engine][1]
    assert "needs the train command's flags after --" in refusal(capsys, engine, *own)
    line = refusal(capsys, engine, *own, *TRAIN)
    assert "--config=experiments/demo.py is a flag of the train command: write it after --, as in python -m" in line
    assert "unknown flag --dryrun: did you mean '--dry_run'?" in refusal(capsys, engine, *own, "--dryrun", "--", *TRAIN)


@every_engine
def test_help_and_the_example_that_it_shows(capsys, engine):
    command = ENGINES[engine][0].COMMAND
    assert launch(engine, "--help") == 0
    page = capsys.readouterr().out
    assert f"python -m launch.{command.name} {command.example}" in page
    words = shlex.split(command.example)
    cut = words.index("--")
    assert launch(engine, *words[:cut], "--dry_run", *words[cut:]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(("engine", "tool"), [("tpu_vm", "gcloud"), ("gke", "kubectl"), ("slurm", "sbatch")])
def test_a_missing_tool_is_named(capsys, monkeypatch, tmp_path, engine, tool):
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refusal(capsys, engine, *ENGINES[engine][1], "--", *TRAIN)
    assert line.startswith(f"error: {tool} is not on PATH: ")
    assert "--dry_run prints what would be run without it" in line
    assert launch(engine, *ENGINES[engine][1], "--dry_run", "--", *TRAIN) == 0


@pytest.mark.parametrize("engine", ["tpu_vm", "gke"])
@pytest.mark.parametrize(
    ("train", "says"),
    [
        (
            ("--config=experiments/demo.py", "--workdir=runs/demo"),
            "--workdir=runs/demo would be a different directory on",
        ),
        (("--config=experiments/demo.py", "--workdir=gs://"), "--workdir=gs:// would be a different directory on"),
        (
            ("--config=../main/experiments/demo.py", TRAIN[1]),
            "is a file of this machine: pass a path relative to the checkout",
        ),
        (("--config", f"{os.sep}nowhere{os.sep}x.py", TRAIN[1]), "no config file"),
    ],
)
def test_hosts_that_share_no_disk_need_object_storage_and_the_checkout(capsys, root, engine, train, says):
    train = tuple(word.replace("../main/", f"../{root.name}/") for word in train)
    assert says in refusal(capsys, engine, *ENGINES[engine][1], "--", *train)
    line = refusal(capsys, engine, *ENGINES[engine][1], "--", f"--config={root}/experiments/demo.py", TRAIN[1])
    assert "is a file of this machine: pass a path relative to the checkout" in line


def test_the_topology_is_the_config_s_pod_unless_a_flag_says_another(capsys, monkeypatch, tmp_path):
    (tmp_path / "c.py").write_text(
        "from experiments import demo\ndef get_config():\n    config = demo.get_config()\n"
        "    config.topology = 'v5p:8x4x8'\n    return config\n"
    )
    monkeypatch.chdir(tmp_path)
    train = ("--", "--config=c.py", TRAIN[1])
    assert launch("tpu_vm", "--zone=z", "--dry_run", *train) == 0
    assert "--accelerator-type=v5p-512" in capsys.readouterr().out
    assert launch("tpu_vm", "--zone=z", "--dry_run", *train, "--config.topology=v5e:4x4") == 0
    assert "--accelerator-type=v5litepod-16" in capsys.readouterr().out
    assert launch("tpu_vm", "--zone=z", "--topology=v4:2x2x2", "--dry_run", *train) == 0
    assert "--accelerator-type=v4-16" in capsys.readouterr().out
    assert "config.topology=v5p:8x4x8 is not a number of GPUs" in refusal(capsys, "slurm", *train)
    train = (*train, "--config.topology=")
    assert "no topology: pass --topology=v5p:4x8x8, or set config.topology" in refusal(
        capsys, "gke", "--image=i", *train
    )
    assert "no topology: pass the total number of GPUs" in refusal(capsys, "slurm", *train)


def test_a_run_is_called_as_the_last_part_of_its_directory_and_no_other_run_is():
    workdirs = ("demo", "runs/demo", "/runs/demo", "gs://a/runs/demo", "gs://b/runs/demo", "gs://a/demo")
    names = {make_run_name(None, workdir) for workdir in workdirs}
    assert len(names) == len(workdirs)
    assert all(re.fullmatch("demo-[0-9a-f]{6}", name) for name in names)
    assert make_run_name(None, "gs://a/runs/demo/") == make_run_name(None, "gs://a/runs/demo")
    assert make_run_name("demo", "gs://a/runs/demo") == "demo"


@given(st.text(max_size=90), st.integers(20, 63))
def test_derived_names_are_labels(part, longest):
    workdir = "gs://bucket/" + part.replace("/", "")
    name = make_run_name(None, workdir, longest)
    # RFC 1123's label, beginning with a letter as Google Cloud's names do; spelt out apart from the code's own check.
    assert 0 < len(name) <= longest
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert name[0].isalpha()
    assert name[-1] != "-"
    assert name == make_run_name(None, workdir, longest)


def test_names_that_had_to_change_do_not_run_into_one_another():
    names = {make_run_name(None, f"runs/{part}") for part in ("a b", "a-b", "A-b", "a_b", "a--b", "a.b")}
    assert len(names) == 6
    assert make_run_name(None, "runs/2024").startswith("run-2024-")


@pytest.mark.parametrize("name", ["", "-x", "x-", "X", "a_b", "a.b", "2nd", "a" * 64, "$(rm)", "a b", "é"])
def test_a_given_name_that_is_none_is_refused_with_one_that_is(name):
    with pytest.raises(UserError, match="is not a valid name of a run: use at most") as caught:
        make_run_name(name, "runs/demo")
    proposal = str(caught.value).rpartition("--name=")[2]
    assert make_run_name(proposal, "runs/demo") == proposal


def test_options_are_words_of_the_form_key_value():
    assert parse_extra_options(None) == ()
    assert parse_extra_options("--partition=a --comment='two words' --exclusive") == (
        "--partition=a",
        "--comment=two words",
        "--exclusive",
    )
    for text in ("-p a", "script.sh", "--x 'y", "--x=a b", "--", "--x='a\nb'"):
        with pytest.raises(UserError, match="write it as in --options='--key=value --key=value'"):
            parse_extra_options(text)


@pytest.mark.parametrize("value", ["", "-x", "--wrap=x", "a\nb"])
def test_words_that_a_tool_would_take_for_flags_are_refused(value):
    with pytest.raises(UserError, match="--image='"):
        check_flag_value("image", value)


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), min_size=1, max_size=4))
def test_a_shell_reads_back_the_words_that_are_shown(words):
    printed = subprocess.run(
        ["bash", "-c", format_shell_command(["printf", "%s\\0", *words])], capture_output=True, check=True
    ).stdout.decode()
    assert printed.split("\0")[:-1] == words
    typed = subprocess.run(
        ["bash", "-c", format_shell_command(["cat"], stdin="$(x) `y` \\ 'z'")], capture_output=True, check=True
    )
    assert typed.stdout.decode() == "$(x) `y` \\ 'z'\n"
