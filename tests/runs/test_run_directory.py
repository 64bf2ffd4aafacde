"""A run directory belongs to one live process, remembers its config, and loses nothing by a refusal."""

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory
from transformer.storage.disk import AppendOnlyDiskFile, DiskStorage

CONFIG = {
    "seed": 0,
    "steps": 100,
    "model": {"width": 64, "layers": [2, 2]},
    "cadence": {"maps": 10, "log": 5},
}

HOLDER = """
import sys, time
from transformer.runs.run_directory import RunDirectory
with RunDirectory.claim(sys.argv[1], {"seed": 0}):
    print("held", flush=True)
    time.sleep(600)
"""

PARENT = """
import os, sys, time
from transformer.runs.run_directory import RunDirectory
with RunDirectory.claim(sys.argv[1], {"seed": 0}):
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    print(child, flush=True)
    time.sleep(600)
"""


def tree(path: Path) -> dict[str, bytes | None]:
    return {
        str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None
        for entry in sorted(path.rglob("*"))
    }


@contextmanager
def process(program: str, path: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A process that has claimed the directory, with the line that it printed then; killed at the end."""
    command = [sys.executable, "-c", program, str(path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert running.stdout is not None
        yield running, running.stdout.readline().strip()
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped, with files of its own."""
    with RunDirectory.claim(tmp_path / "run", CONFIG) as directory:
        directory.metrics_file.write_text('{"step": 1, "split": "train"}\n')
        directory.checkpoints_dir.mkdir()
        (directory.checkpoints_dir / "state").write_bytes(b"\x00\x01")
    return tmp_path / "run"


def test_a_claim_records_config_and_environment(tmp_path: Path):
    path = tmp_path / "a" / "b"
    with RunDirectory.claim(path, CONFIG) as directory:
        assert json.loads((path / "config.json").read_text()) == CONFIG
        assert RunDirectory.open(path).config() == CONFIG
    with RunDirectory.claim(path, CONFIG):
        pass
    starts = json.loads(directory.environment_file.read_text())
    assert len(starts) == 2
    assert starts[0]["python"] == sys.version.split()[0]
    assert starts[0]["devices"] == {"platform": "cpu", "kind": "cpu", "count": 8}
    assert {"jax", "flax", "optax", "orbax-checkpoint", "numpy"} <= set(starts[0]["packages"])
    assert {"command", "commit", "platform", "started"} <= set(starts[0])
    assert set(tree(path)) == {"config.json", "environment.json", "lock"}


def test_no_git_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with RunDirectory.claim(tmp_path, CONFIG) as directory:
        assert json.loads(directory.environment_file.read_text())[0]["commit"] is None


def test_the_commit_is_that_of_the_checkout(tmp_path: Path, root: Path):
    asked = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip("needs a checkout with a commit")
    with RunDirectory.claim(tmp_path, CONFIG) as directory:
        commit = json.loads(directory.environment_file.read_text())[0]["commit"]
    assert commit.removesuffix("+changes") == asked.stdout.strip()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "config.seed=0, not 1"),
        ({"seed": 0.0}, "config.seed=0, not 0.0"),
        ({"model": {"width": 128, "layers": [2, 2]}}, "config.model.width=64, not 128"),
        ({"model": {"width": 64, "layers": [2, 3]}}, r"config.model.layers=\[2, 2\], not \[2, 3\]"),
        (
            {"model": {"width": 64}},
            r"config.model.layers=\[2, 2\], which this config does not have: .*without --config",
        ),
        ({"extra": "x"}, 'without config.extra, which is "x" here: .*without --config'),
        ({"steps": 200, "cadence": {"maps": 1, "log": 1}, "seed": 2}, "config.seed=0, not 2"),
    ],
)
def test_another_config_is_refused_and_nothing_changes(run: Path, change: dict, message: str):
    before = tree(run)
    with (
        pytest.raises(UserError, match=f"{message}.*choose another --workdir"),
        RunDirectory.claim(run, {**CONFIG, **change}, may_change=("steps", "cadence")),
    ):
        pass
    assert tree(run) == before


def test_a_run_whose_learning_rate_depends_on_its_steps_says_how_to_train_on(run: Path):
    with (
        pytest.raises(
            UserError, match=r"config\.steps=100, not 200; its learning rate is scheduled over these steps: "
        ) as refusal,
        RunDirectory.claim(run, {**CONFIG, "steps": 200}, may_change=("cadence",)),
    ):
        pass
    assert f"another --workdir with --config.initialize_from.run={run}, or go back to config.steps=100" in str(
        refusal.value
    )


def test_keys_that_may_change_do(run: Path):
    config = {**CONFIG, "steps": 200, "cadence": {"maps": 0, "log": 5}}
    with RunDirectory.claim(run, config, may_change=("steps", "cadence.maps")) as directory:
        assert directory.config() == CONFIG  # the resume may still be refused
        directory.write_config(config)
        assert directory.config() == config
    with RunDirectory.claim(run, CONFIG, may_change=("steps", "cadence")) as directory:  # a section and all in it
        assert directory.config() == config
    with (
        pytest.raises(UserError, match=r"config\.cadence\.maps=0"),
        RunDirectory.claim(run, CONFIG, may_change=("steps", "cadence.map")),
    ):
        pass


def test_tuples_are_lists(run: Path):
    with RunDirectory.claim(run, {**CONFIG, "model": {"width": 64, "layers": (2, 2)}}):
        pass


def test_a_refusal_makes_no_lock_in_a_copied_run(run: Path):
    (run / "lock").unlink()
    before = tree(run)
    with pytest.raises(UserError), RunDirectory.claim(run, {**CONFIG, "seed": 1}):
        pass
    assert tree(run) == before


def test_a_live_run_is_refused_and_a_killed_one_is_not(tmp_path: Path):
    path = tmp_path / "run"
    with process(HOLDER, path) as (holder, line):
        assert line == "held"
        before = tree(path)
        with (
            pytest.raises(UserError, match=f"in use by process {holder.pid} on host .*; wait for it"),
            RunDirectory.claim(path, {"seed": 0}),
        ):
            pass
        assert tree(path) == before
        assert RunDirectory.open(path).config() == {"seed": 0}
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with RunDirectory.claim(path, {"seed": 0}):
            assert f"process {os.getpid()} " in (path / "lock").read_text()


def test_a_second_claim_in_the_same_process_is_refused(tmp_path: Path):
    with RunDirectory.claim(tmp_path, CONFIG):
        with pytest.raises(UserError, match="in use"), RunDirectory.claim(tmp_path, CONFIG):
            pass
        with pytest.raises(UserError, match="in use"), RunDirectory.claim(tmp_path, CONFIG):
            pass
    with RunDirectory.claim(tmp_path, CONFIG):
        pass


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_run(tmp_path: Path):
    with process(PARENT, tmp_path) as (parent, line):
        child = int(line)
        try:
            time.sleep(0.2)
            parent.kill()
            parent.wait()
            os.kill(child, 0)
            with RunDirectory.claim(tmp_path, {"seed": 0}):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path):
    (tmp_path / "letter.txt").write_text("dear")
    before = tree(tmp_path)
    with (
        pytest.raises(UserError, match=r"holds 'letter.txt' but no config.json"),
        RunDirectory.claim(tmp_path, CONFIG),
    ):
        pass
    with pytest.raises(UserError, match="is a file"), RunDirectory.claim(tmp_path / "letter.txt", CONFIG):
        pass
    with (
        pytest.raises(UserError, match="cannot be used"),
        RunDirectory.claim(tmp_path / "letter.txt" / "x", CONFIG),
    ):
        pass
    assert tree(tmp_path) == before


@pytest.mark.parametrize("leftover", ["lock", "config.json.new"])
def test_a_start_that_was_killed_at_once_can_start_again(tmp_path: Path, leftover: str):
    (tmp_path / leftover).write_text("")
    with RunDirectory.claim(tmp_path, CONFIG) as directory:
        assert directory.config() == CONFIG


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_spoilt_record_is_refused_and_kept(run: Path, name: str):
    (run / name).write_text('{"seed"')
    before = tree(run)
    with (
        pytest.raises(UserError, match=f"{name} is not what a run writes"),
        RunDirectory.claim(run, {**CONFIG, "steps": 3}, may_change=("steps",)),
    ):
        pass
    assert {key: value for key, value in tree(run).items() if key != "lock"} == {
        key: value for key, value in before.items() if key != "lock"
    }


def test_opening_what_is_no_run_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(UserError, match=r"no config\.json; make a run with python -m launch\.train"):
        RunDirectory.open(tmp_path)
    with pytest.raises(UserError, match=r"is missing; make a run with python -m launch\.train"):
        RunDirectory.open(tmp_path / "none")
    run = tmp_path / "all of them" / "trials" / "first"
    run.mkdir(parents=True)
    (run / "config.json").write_text('{"task": {}}')
    with pytest.raises(UserError, match=rf"no config\.json; there are runs in it: .* '--workdir={run}'"):
        RunDirectory.open(run.parent)
    (run.parent.parent / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match=rf"is a sweep or an ablation, no run; .* '--workdir={run}'"):
        RunDirectory.open(run.parent.parent)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(
        UserError, match=rf"published weights, .* python -m launch\.convert --from_pretrained={tmp_path}"
    ):
        RunDirectory.open(tmp_path)


def test_a_kill_while_writing_leaves_the_old_config(run: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    before = (run / "config.json").read_bytes()
    monkeypatch.setattr(Path, "replace", killed)
    with (
        pytest.raises(KeyboardInterrupt),
        RunDirectory.claim(run, {**CONFIG, "steps": 3}, may_change=("steps",)) as directory,
    ):
        directory.write_config({**CONFIG, "steps": 3})
    assert (run / "config.json").read_bytes() == before
    monkeypatch.undo()
    with RunDirectory.claim(run, CONFIG):
        pass


def test_the_log_holds_our_notes_and_their_warnings(run: Path):
    directory = RunDirectory.open(run)
    ours, theirs = logging.getLogger("transformer.training"), logging.getLogger("somebody")
    with directory.log_to_file():
        ours.info("a note")
        theirs.info("chatter")
        theirs.warning("a warning")
    ours.warning("too late")
    with directory.log_to_file():
        ours.info("again")
    lines = directory.log_file.read_text().splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == ["a note", "a warning", "again"]


def test_what_prints_messages_gets_no_more_of_them_than_without_a_log(run: Path, tmp_path: Path):
    """As absl's handler, which stands at the root once orbax is imported."""
    printed: list[str] = []
    printing = logging.Handler()
    printing.emit = lambda record: printed.append(record.getMessage())  # type: ignore[method-assign]
    ours, theirs, root = logging.getLogger("transformer.maps"), logging.getLogger("orbax"), logging.getLogger()
    root.addHandler(printing)
    try:
        shutil.copytree(run, tmp_path / "other")
        first, second = RunDirectory.open(run), RunDirectory.open(tmp_path / "other")
        with first.log_to_file(), second.log_to_file():
            ours.info("a note")
            ours.warning("a warning")
            theirs.warning("another")
        assert printed == ["a warning", "another"]
        for directory in (first, second):
            assert [line.split(": ", 1)[1] for line in directory.log_file.read_text().splitlines()] == [
                "a note",
                "a warning",
                "another",
            ]
        logging.getLogger("transformer").setLevel(logging.INFO)
        with first.log_to_file():
            ours.info("asked for")
        assert printed[2:] == ["asked for"]
    finally:
        root.removeHandler(printing)
        logging.getLogger("transformer").setLevel(logging.NOTSET)


def test_a_log_that_cannot_be_written_is_said_once_and_goes_on_where_it_can(
    run: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    ours, directory = logging.getLogger("transformer.training"), RunDirectory.open(run)
    with directory.log_to_file():
        ours.info("before")
        with monkeypatch.context() as patch:
            patch.setattr(AppendOnlyDiskFile, "append", full)
            for _ in range(3):
                ours.info("lost")
        ours.info("after")
    assert [line.rpartition(" ")[2] for line in directory.log_file.read_text().splitlines()] == ["before", "after"]
    said = capfd.readouterr().err
    assert said == f"{directory.log_file} lacks lines: No space left on device; training continues\n"


def test_a_disk_that_is_full_is_no_mistake_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(error: int) -> Callable[..., None]:
        def replace(*_: object) -> None:
            raise OSError(error, os.strerror(error))

        return replace

    monkeypatch.setattr(DiskStorage, "replace", fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"), RunDirectory.claim(tmp_path / "a", CONFIG):
        pass
    monkeypatch.setattr(DiskStorage, "replace", fails(errno.EROFS))
    with pytest.raises(UserError, match="cannot be used: Read-only"), RunDirectory.claim(tmp_path / "b", CONFIG):
        pass


@pytest.mark.parametrize("name", ["log.txt", "lock", "maps", "checkpoints/1/x"])
def test_what_would_be_written_through_a_link_is_refused(run: Path, tmp_path: Path, name: str):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(outside)
    for start in (RunDirectory.claim(run, CONFIG), contextlib.nullcontext(run)):
        with pytest.raises(UserError, match=rf"{name} is a link, and what is written"), start as path:
            RunDirectory.open(path)
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "heads.jsonl", "report.html", "log.txt", "checkpoints.json"]
)
def test_a_folder_where_a_file_is_to_stand_is_refused(run: Path, name: str):
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    for start in (RunDirectory.claim(run, CONFIG), contextlib.nullcontext(run)):
        with pytest.raises(UserError, match=rf"{name} is a folder, and a file is to stand there"), start as path:
            RunDirectory.open(path)


@pytest.mark.parametrize("name", ["maps", "checkpoints", "tensorboard"])
def test_a_file_where_a_folder_is_to_stand_is_refused(run: Path, name: str):
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).write_text("")
    for start in (RunDirectory.claim(run, CONFIG), contextlib.nullcontext(run)):
        with pytest.raises(UserError, match=rf"{name} is a file, and a folder is to stand there"), start as path:
            RunDirectory.open(path)


def test_a_run_directory_may_itself_be_reached_by_a_link(run: Path, tmp_path: Path):
    (tmp_path / "latest").symlink_to(run)
    assert RunDirectory.open(tmp_path / "latest").config() == CONFIG


def test_what_every_trace_says_stands_once_in_the_log(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    traced, other = (logging.getLogger(f"transformer.{name}") for name in ("attention.backends", "training.step"))
    with directory.log_to_file():
        for logger in (traced, other, traced, other):
            logger.info("backend=%s", "einsum")
        traced.info("backend=%s", "blockwise")
    said = [line.partition(" INFO ")[2] for line in directory.log_file.read_text().splitlines()]
    assert said == [
        "transformer.attention.backends: backend=einsum",
        "transformer.training.step: backend=einsum",
        "transformer.training.step: backend=einsum",
        "transformer.attention.backends: backend=blockwise",
    ]


def test_what_a_kill_left_of_replaced_files_goes_in_the_maps_too(tmp_path: Path):
    run = tmp_path / "run"
    with RunDirectory.claim(run, CONFIG):
        pass
    labels, steps = (run / "maps" / name for name in ("labels", "steps"))
    for folder in (labels, steps):
        folder.mkdir(parents=True)
    left = [folder / "zarr.json.123.new" for folder in (run, run / "maps", labels, steps)]
    for file in left:
        file.touch()
    kept = steps / "zarr.json"
    kept.touch()
    with RunDirectory.claim(run, CONFIG):
        assert not any(file.exists() for file in left)
        assert kept.exists()
