"""Whole trainings on a real Slurm cluster of two nodes: no step is lost or made twice, and nothing goes on for ever.

Two processes, one a node. What a run has written is compared with the run that nothing disturbed.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch import slurm_cluster
from tests.launch.slurm_cluster import SlurmCluster, running_cluster
from tests.training import small_run
from tests.training.small_run import without_clock

WHY_NOT = slurm_cluster.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

HEARTBEAT = 10  # seconds
# Two nodes with a GPU each.
OPTIONS = ("--nodes=2", "--gpus-per-node=1", "--ntasks-per-node=1", "--cpus-per-task=2")
CONFIG: dict[str, Any] = {
    **small_run.CONFIG,
    "steps": 12,
    "log_every": 1,
    "eval_every": 0,
    "maps_every": 0,
    "head_statistics_every": 0,
    "checkpoint_every": 100,
    "parameter_averages": {},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


class Job:
    """A job, and the files of its run."""

    def __init__(self, cluster: SlurmCluster, number: str, folder: Path, name: str) -> None:
        self.cluster, self.number = cluster, number
        self.run = folder / "runs" / name
        self.log = folder / f"{name}-{number}.log"

    def steps(self) -> list[int]:
        """The steps in the records."""
        file = self.run / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return [record["step"] for record in records if record["split"] == "train"]

    def said(self) -> str:
        """Everything that it printed."""
        return self.log.read_text() if self.log.exists() else ""

    def wait(self, state: str, seconds: float = 120) -> dict[str, str]:
        """Wait for the job's state."""
        try:
            return self.cluster.wait_for(self.number, state, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()[-6000:]}") from None

    def wait_for_step(self, step: int, seconds: float = 120) -> None:
        """Wait until a step is written."""
        what = f"step {step} of job {self.number}"
        try:
            self.cluster.wait(lambda: step in self.steps(), what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()[-6000:]}") from None

    def checkpoints(self) -> list[int]:
        """The complete checkpoints."""
        folder = self.run / "checkpoints"
        return (
            sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()) if folder.exists() else []
        )


@pytest.fixture
def submit(cluster: SlurmCluster, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Submit a job by the batch script; what is still there at the end of the test is killed."""
    (tmp_path / "runs").mkdir()
    config = f"from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict({CONFIG!r})\n"
    (tmp_path / "config.py").write_text(config)
    # The script calls `PYTHON -m launch.train`.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m tests.launch.slowed_train "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")

    def start(
        name: str,
        *words: str,
        step_seconds: float = 0.3,
        save_seconds: float = 0.0,
        more: Any = (),
        variables: dict[str, str] | None = None,
    ) -> Job:
        monkeypatch.setenv("STEP_SECONDS", str(step_seconds))
        monkeypatch.setenv("SAVE_SECONDS", str(save_seconds))
        monkeypatch.setenv("PYTHON", str(python))
        for variable, value in (variables or {}).items():
            monkeypatch.setenv(variable, value)
        train = ("--config=config.py", f"--workdir=runs/{name}", f"--heartbeat_timeout={HEARTBEAT}", *more)
        script = str(root / "launch" / "clusters" / "train.sbatch")
        # sbatch hands this process's environment on.
        command = ["sbatch", *OPTIONS, f"--job-name={name}", *words, script, *train]
        subprocess.run(command, check=True, capture_output=True)
        listed = cluster.say("squeue", "--noheader", "--format=%i %j").split("\n")
        (number,) = [line.split()[0] for line in listed if line.split()[1:] == [name]]
        return Job(cluster, number, tmp_path, name)

    yield start
    cluster.say("scancel", "--user=root", "--signal=KILL", "--full")
    cluster.say("scancel", "--user=root")
    cluster.wait(lambda: not cluster.say("squeue", "--noheader").strip(), "end of all jobs", 120)


def preempt(cluster: SlurmCluster) -> None:
    """Take both nodes for a second."""
    words = ["srun", "--partition=high", "--nodes=2", "--gpus-per-node=1", "--time=1", "sleep", "1"]
    subprocess.run(words, env=cluster.environment, check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def reference(cluster: SlurmCluster) -> dict[str, Any]:
    """The records of the run that nothing disturbed, once it is there."""
    return {}


def assert_undisturbed(job: Job, reference: dict[str, Any]) -> None:
    """The run wrote what the undisturbed one has written, bit for bit: each step once."""
    steps = job.steps()
    assert steps == list(range(1, len(steps) + 1)), job.said()
    if reference:
        assert without_clock(job.run, "train") == reference["records"][: len(steps)]


def test_slurm_accepts_the_script_as_it_is(cluster: SlurmCluster, root: Path) -> None:
    script = str(root / "launch" / "clusters" / "train.sbatch")
    words = ["sbatch", "--test-only", *OPTIONS, script, "--config=x", "--workdir=y"]
    answer = subprocess.run(words, env=cluster.environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "to start at" in answer.stderr


def test_a_run_starts_on_both_nodes_and_ends(submit: Any, reference: dict[str, Any]) -> None:
    job = submit("start", step_seconds=0.0)
    found = job.wait("COMPLETED")
    assert found["NumNodes"] == "2"
    assert found["CPUs/Task"] == "2"
    assert "of 2 processes" in job.said()
    assert job.steps() == list(range(1, 13))
    reference["records"] = without_clock(job.run, "train")


def test_a_preempted_run_saves_and_goes_on(submit: Any, cluster: SlurmCluster, reference: dict[str, Any]) -> None:
    job = submit("preempted")
    job.wait_for_step(3)
    preempt(cluster)
    assert job.checkpoints() != []
    found = job.wait("COMPLETED")
    assert found["Restarts"] == "1"
    assert_undisturbed(job, reference)
    assert len(job.steps()) == 12


def test_a_run_that_ends_within_its_grace_time_is_queued_again(
    submit: Any, cluster: SlurmCluster, reference: dict[str, Any]
) -> None:
    """Slurm itself counts it as failed."""
    job = submit("graced", "--partition=graced")
    job.wait_for_step(3)
    began = time.monotonic()
    preempt(cluster)
    assert time.monotonic() - began < slurm_cluster.GRACE_TIME
    found = job.wait("COMPLETED")
    assert found["Restarts"] == "1"
    assert_undisturbed(job, reference)
    assert len(job.steps()) == 12


def test_a_run_that_is_queued_again_by_hand_goes_on(
    submit: Any, cluster: SlurmCluster, reference: dict[str, Any]
) -> None:
    job = submit("requeued")
    job.wait_for_step(2)
    cluster.say("scontrol", "requeue", job.number)
    found = job.wait("COMPLETED")
    assert found["Restarts"] == "1"
    assert_undisturbed(job, reference)
    assert len(job.steps()) == 12


def test_a_cancelled_run_saves_and_stays_away(submit: Any, cluster: SlurmCluster, reference: dict[str, Any]) -> None:
    job = submit("cancelled")
    job.wait_for_step(3)
    cluster.say("scancel", job.number)
    found = job.wait("CANCELLED")
    assert found["Restarts"] == "0"
    made = job.steps()
    assert job.checkpoints() == [made[-1]]
    assert_undisturbed(job, reference)
    # The same command goes on.
    cluster.wait(lambda: not cluster.say("squeue", "--noheader").strip(), "end of the job", 60)
    again = submit("cancelled")
    again.wait("COMPLETED")
    assert_undisturbed(again, reference)
    assert len(again.steps()) == 12


def test_the_survivor_of_a_lost_node_ends_within_the_heartbeat_and_the_run_goes_on(
    submit: Any, cluster: SlurmCluster, reference: dict[str, Any]
) -> None:
    job = submit("lost", more=("--config.checkpoint_every=3",), step_seconds=0.5)
    job.wait_for_step(5)
    cluster.lose_node("node2")
    began = time.monotonic()

    def survives() -> bool:
        commands = [_command(entry) for entry in Path("/proc").glob("[0-9]*")]
        return any(b"slowed_train" in each and b"runs/lost" in each for each in commands)

    cluster.wait(lambda: not survives(), "end of the survivor", HEARTBEAT + 30)
    print(f"the survivor ended after {time.monotonic() - began:.1f} s")
    assert set(job.checkpoints()) <= {3, 6}, "the survivor saved"
    cluster.wait(lambda: cluster.state(job.number)["JobState"] == "PENDING", "queued job", 90)
    cluster.start_node("node2")
    found = job.wait("COMPLETED", 180)
    assert int(found["Restarts"]) >= 1
    assert_undisturbed(job, reference)
    assert len(job.steps()) == 12


def test_a_save_that_outlasts_the_warning_is_warned_earlier_the_next_time(
    submit: Any, cluster: SlurmCluster, reference: dict[str, Any]
) -> None:
    """A save of 30 s, and a warning of 20: the first start saves nothing, the second does."""
    variables = {"EARLY_SECONDS": "5", "RESERVE_SECONDS": "5", "GRACE_SECONDS": "15"}
    job = submit("slow", "--time=2", "--signal=B:USR1@20", save_seconds=30, step_seconds=12.0, variables=variables)
    cluster.wait(lambda: int(cluster.state(job.number)["Restarts"]) >= 1, "first requeue", 240)
    assert job.checkpoints() == []
    assert "the next start stops 35 seconds before its end; set GRACE_SECONDS=30 for a new job" in job.said()
    cluster.wait(lambda: job.checkpoints() != [], "checkpoint", 600)
    job.wait("PENDING", 60)
    cluster.say("scancel", job.number)
    assert_undisturbed(job, reference)
    assert job.steps()[-1] == job.checkpoints()[-1]


def test_a_job_that_comes_to_no_checkpoint_is_not_queued_without_end(submit: Any, cluster: SlurmCluster) -> None:
    variables = {"EARLY_SECONDS": "1", "RESERVE_SECONDS": "2", "GRACE_SECONDS": "27", "MAX_REQUEUES": "1"}
    job = submit("endless", "--time=1", "--signal=B:USR1@28", save_seconds=200, step_seconds=2.0, variables=variables)
    job.wait("FAILED", 400)
    assert "is not queued again: pass a longer --time, a longer GRACE_SECONDS (now " in job.said()
    assert job.checkpoints() == []


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
