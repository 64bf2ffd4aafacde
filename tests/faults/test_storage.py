"""A small, seeded part of the harness: some failed operations, and that its comparison names what differs."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import operations, outcome, subject

# In a process of its own, which must not have used jax before it forks.
SOME = """
import sys, tempfile
from pathlib import Path
from tests.faults.operations import operations
(row,) = operations(Path(sys.argv[1]), every=25)
print(row.measured)
sys.exit(not row.held)
"""


@pytest.mark.slow
def test_after_some_failed_operations_the_next_start_finds_all(tmp_path: Path, root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SOME, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 restarts failed" in done.stdout


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
def test_an_operation_fails_once_and_in_that_place(tmp_path: Path, kind: str) -> None:
    injection = operations.Injection(2, kind)
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    with operations.injected(injection):
        os.write(descriptor, b"some")
        with pytest.raises(OSError, match=r"error|space"):
            os.write(descriptor, b"some")
    assert (injection.count, injection.delivered) == (2, True)
    assert (tmp_path / "file").read_bytes() == (b"someso" if kind == "ENOSPC" else b"some")


def test_a_restart_that_lost_something_says_what(tmp_path: Path) -> None:
    operations.begin(tmp_path)
    assert operations.restart(tmp_path) == ""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    for step in (2, 3):
        shutil.rmtree(tmp_path / "checkpoints" / str(step), ignore_errors=True)
    operations.begin(tmp_path / "again")
    (tmp_path / "again" / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    assert "the records of step 2 are of [1]" in operations.restart(tmp_path / "again")


def test_what_differs_is_named() -> None:
    one = {"step": 3, "leaves": {"key": "a", "variables/w": "b"}, "metrics": [1], "maps": {}}
    assert subject.differences(one, one) == []
    other = {**one, "leaves": {**one["leaves"], "variables/w": "c"}, "metrics": [2]}  # type: ignore[dict-item]
    assert subject.differences(one, other) == ["variables/w", "metrics"]


def test_a_child_ends_as_it_ended(tmp_path: Path) -> None:
    assert outcome.table([outcome.Row("a", "b", False)]).endswith("| a | b | NOT HELD |")
    assert subject.Ended(-signal.SIGKILL, "", None).code == -9
