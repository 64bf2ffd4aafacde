"""Wrong and hostile input, a few of each kind; `python -m tests.faults.hostile` has them all."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_no_input_crashes_runs_code_writes_elsewhere_or_calls_out(root: Path) -> None:
    words = [sys.executable, "-m", "tests.faults.hostile", "--quick"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "| all |" in done.stdout


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(root: Path) -> None:
    words = [sys.executable, "-m", "launch.model_sizes"]
    done = subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.stdout is not None
    assert done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == ""
    assert done.wait() == 141
