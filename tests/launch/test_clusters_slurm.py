"""The Slurm launcher: its script is really run, with stand-ins of Slurm's own commands."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.clusters import slurm
from launch.clusters.gpu_nodes import parse_gpu_topology
from launch.clusters.launcher_common import run_launcher
from tests.launch.engines import HOSTILE_THREES, Engines
from transformer.config import UserError

OWN = ("--topology=gpu:16",)
TRAIN = ("--", "--config=experiments/demo.py", "--workdir=runs/demo")
# srun becomes a process that ends when scancel says so, or one that hears nothing.
SRUN = """
import signal, time
signal.signal(signal.SIGTERM, {action})
open({mark!r}, "w").write(str(os.getpid()))
time.sleep(60)
"""
# One that is told to stop and has a save to finish.
SAVING = """
import signal, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
open({mark!r}, "w").write(str(os.getpid()))
while not told or time.monotonic() < told[0] + 3:
    time.sleep(0.05)
open({mark!r} + ".saved", "w").close()
sys.exit(75)
"""
SCANCEL = """
import signal
os.kill(int(open({mark!r}).read()), signal.SIGTERM)
"""


@pytest.fixture
def engines(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", engines.environment["PATH"])
    for name in ("sbatch", "srun", "scancel", "scontrol", "squeue"):
        engines.add(name)
    return engines


def launch(*words: str) -> int:
    try:
        return run_launcher(slurm.COMMAND, slurm.main, words)
    except SystemExit as ended:
        return int(str(ended.code))


def script(engines: Engines, *words: str) -> str:
    """What sbatch gets."""
    engines.forget()
    assert launch(*words) == 0
    (call,) = engines.calls("sbatch")
    return call.typed


def settings(text: str) -> dict[str, str]:
    """The options in the script, as sbatch reads them: lines before the first command."""
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    found = {}
    for line in lines[1:]:
        if not line.startswith("#SBATCH "):
            break
        key, _, value = line.removeprefix("#SBATCH --").partition("=")
        found[key] = value
    assert text.count("#SBATCH") == len(found)
    return found


def run_job(engines: Engines, text: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {**engines.environment, "SLURM_JOB_ID": "42", **variables}
    return subprocess.Popen(["bash", "-c", text], env=environment, cwd=cwd, stderr=subprocess.PIPE, text=True)


def changes(engines: Engines) -> list[tuple[str, list[str]]]:
    """The calls that change something in Slurm, apart from the submission."""
    calls = [(call.name, call.words) for call in engines.calls() if call.name in ("scancel", "scontrol")]
    return [(name, words) for name, words in calls if words[0] != "show"]


def warn(engines: Engines, text: str, tmp_path: Path, action: str = "signal.SIG_DFL", **variables: str) -> str:
    """Run a job whose process ends as `action` says, warn it, and return what it prints."""
    mark = tmp_path / "mark"
    mark.unlink(missing_ok=True)
    engines.add("srun", SRUN.format(mark=str(mark), action=action))
    engines.add("scancel", SCANCEL.format(mark=str(mark)))
    job = run_job(engines, text, tmp_path, **variables)
    deadline = time.monotonic() + 30
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(job.pid, signal.SIGUSR1)
    job.wait()
    if action.endswith("IGN"):
        # What hears nothing is Slurm's to kill: the job is queued again all the same.
        os.kill(int(mark.read_text()), signal.SIGKILL)
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)
    return job.communicate()[1]


def test_the_script_asks_for_nodes_and_starts_a_task_a_gpu(engines, tmp_path):
    text = script(engines, *OWN, "--time=24:00:00", "--cpus_per_task=12", *TRAIN)
    assert settings(text) == {
        "job-name": "demo-958082",
        "nodes": "2",
        "ntasks-per-node": "8",
        "gpus-per-node": "8",
        "cpus-per-task": "12",
        "time": "24:00:00",
        "output": "demo-958082-%j.log",
        "open-mode": "append",
        "requeue": "",
        "signal": "B:USR1@300",
    }
    job = run_job(engines, text, tmp_path)
    assert job.wait() == 0
    (srun,) = engines.calls("srun")
    words = [".venv/bin/python", "-m", "launch.train", *TRAIN[1:], "--grace_seconds=240"]
    assert srun.words == ["--kill-on-bad-exit=1", *words]
    assert not {"JAX_LOCAL_DEVICE_IDS", "SRUN_CPUS_PER_TASK"} & set(srun.environment)
    assert changes(engines) == []


def test_a_task_a_node_sees_all_its_gpus(engines, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "12")
    text = script(engines, "--topology=gpu:8", "--gpus_per_node=4", "--process_per=node", *TRAIN)
    found = settings(text)
    assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]) == ("2", "1", "4")
    run_job(engines, text, tmp_path).wait()
    (srun,) = engines.calls("srun")
    assert srun.environment["SRUN_CPUS_PER_TASK"] == "12"
    assert srun.environment["JAX_LOCAL_DEVICE_IDS"] == "0,1,2,3"


def test_options_and_the_environment_reach_sbatch(engines, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    script(engines, *OWN, "--options=--partition=h100 --comment='two words'", *TRAIN)
    (call,) = engines.calls("sbatch")
    assert call.words == ["--partition=h100", "--comment=two words"]
    assert "JAX_PLATFORMS" not in call.environment
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    script(engines, *OWN, *TRAIN)
    assert engines.calls("sbatch")[0].environment["JAX_PLATFORMS"] == "cuda"


def test_the_platform_that_python_chooses_on_a_login_node_does_not_reach_the_gpus(engines):
    # The environment's Python chooses the CPU at its start where no accelerator is, and sbatch hands variables on.
    bare = {name: value for name, value in engines.environment.items() if name != "JAX_PLATFORMS"}
    for chosen in ({}, {"JAX_PLATFORMS": "cpu", "HEADWISE_CHOSE_PLATFORM": "cpu"}):
        engines.forget()
        words = [sys.executable, "-m", "launch.clusters.slurm", *OWN, *TRAIN]
        assert subprocess.run(words, env={**bare, **chosen}, check=False).returncode == 0
        (call,) = engines.calls("sbatch")
        assert "JAX_PLATFORMS" not in call.environment


def test_the_job_ends_as_the_training_does(engines, tmp_path):
    text = script(engines, *OWN, *TRAIN)
    engines.add("srun", "sys.exit(7)")
    assert run_job(engines, text, tmp_path).wait() == 7
    assert changes(engines) == []


@pytest.mark.parametrize("action", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_before_its_time_is_up_the_job_is_stopped_and_queued_again(engines, tmp_path, action):
    text = script(engines, *OWN, "--grace_seconds=1" if action.endswith("IGN") else "--grace_seconds=50", *TRAIN)
    warn(engines, text, tmp_path, action)
    assert changes(engines) == [("scancel", ["--signal=TERM", "42"]), ("scontrol", ["requeue", "42"])]


def test_a_task_of_an_array_is_stopped_and_queued_again_alone(engines, tmp_path):
    text = script(engines, *OWN, "--options=--array=1-4", "--grace_seconds=50", *TRAIN)
    # Slurm gives the last task the number of the array, by which all its tasks are meant.
    warn(engines, text, tmp_path, SLURM_ARRAY_JOB_ID="42", SLURM_ARRAY_TASK_ID="4")
    assert changes(engines) == [("scancel", ["--signal=TERM", "42_4"]), ("scontrol", ["requeue", "42_4"])]
    assert (tmp_path / "demo-958082-4.requeue").read_text() == "50 1 none\n"


@pytest.mark.slow
def test_the_whole_warning_is_the_run_s_and_one_that_was_too_short_is_longer_the_next_time(
    engines, tmp_path, monkeypatch
):
    monkeypatch.setattr(slurm, "EARLY", 0)
    monkeypatch.setattr(slurm, "RESERVE", 1)
    text = script(engines, *OWN, "--grace_seconds=1", *TRAIN)
    end = int(time.time()) + 8
    engines.add("squeue", f"print({end})")
    said = warn(engines, text, tmp_path, "signal.SIG_IGN")
    assert end - 1 <= time.time() <= end + 3
    assert "the next start stops 2 seconds before its end; pass --grace_seconds=2 to a new job" in said
    assert (tmp_path / "demo-958082.requeue").read_text() == "2 0 none\n"
    # What was learned is told to the run, and the script warns it by itself.
    engines.add("squeue", f"print({int(time.time()) + 600})")
    engines.add("srun")
    assert run_job(engines, text, tmp_path).wait() == 0
    assert engines.calls("srun")[-1].words[-1] == "--grace_seconds=2"


def test_a_job_without_a_new_checkpoint_is_not_queued_without_end(engines, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "MAX_REQUEUES", 1)
    text = script(engines, *OWN, *TRAIN)
    engines.add("srun", "sys.exit(134)")  # its peer was lost
    checkpoints = tmp_path / "runs" / "demo" / "checkpoints"

    def start(restarts: int) -> tuple[int, str]:
        job = run_job(engines, text, tmp_path, SLURM_RESTART_COUNT=str(restarts))
        return job.wait(), job.communicate()[1]

    assert start(0) == (0, "")
    code, said = start(1)
    assert code == 1
    assert "error: this job went back into the queue 1 times without a new checkpoint" in said
    assert len(changes(engines)) == 1
    # A checkpoint counts when it is complete.
    (checkpoints / "7.orbax-checkpoint-tmp-1").mkdir(parents=True)
    assert start(2)[0] == 1
    for step in ("10", "9"):
        (checkpoints / step).mkdir()
    assert start(3)[0] == 0
    assert (tmp_path / "demo-958082.requeue").read_text() == "240 1 10\n"
    # A job that is submitted anew counts anew.
    assert start(0)[0] == 0
    # The checkpoints of a run in a bucket are not known.
    assert "\ncheckpoints=\n" in script(engines, *OWN, *TRAIN[:2], "--workdir=gs://bucket/other")


@pytest.mark.parametrize(
    ("code", "shown", "queued"),
    [
        (75, "JobState=RUNNING Reason=None PreemptTime=2026-11-27T07:59:21", True),
        (75, "JobState=RUNNING Reason=None PreemptTime=None", True),
        (75, "JobState=COMPLETING Reason=None PreemptTime=None", False),
        (1, "JobState=RUNNING Reason=None PreemptTime=2026-11-27T07:59:21", False),
    ],
)
def test_a_job_that_was_stopped_and_not_canceled_is_queued_again(engines, tmp_path, code, shown, queued):
    """One that is preempted within a GraceTime ends by itself, and Slurm counts it as failed."""
    text = script(engines, *OWN, *TRAIN)
    engines.add("srun", f"sys.exit({code})")
    engines.add("scontrol", f"print('{shown}')")
    assert run_job(engines, text, tmp_path).wait() == (0 if queued else code)
    assert (("scontrol", ["requeue", "42"]) in changes(engines)) == queued


def test_the_job_is_queued_again_as_soon_as_the_run_has_saved_and_no_earlier(engines, tmp_path):
    mark = tmp_path / "mark"
    engines.add("srun", SAVING.format(mark=str(mark)))
    engines.add("scancel", SCANCEL.format(mark=str(mark)))
    engines.add(
        "scontrol", f"open({str(tmp_path / 'queued')!r}, 'w').write(str(os.path.exists({str(mark)!r} + '.saved')))"
    )
    job = run_job(engines, script(engines, *OWN, "--grace_seconds=50", *TRAIN), tmp_path)
    deadline = time.monotonic() + 30
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(job.pid, signal.SIGUSR1)
    job.wait()
    assert (tmp_path / "queued").read_text() == "True"


def test_hostile_words_reach_python_as_they_are(engines, tmp_path):
    directory = "check out;$(touch harm)"
    (tmp_path / directory).mkdir()
    for first, second, third in HOSTILE_THREES:
        words = (*TRAIN[1:2], f"--workdir={first}", f"--config.name={second}", f"--data_dir={third}")
        python = first.lstrip("-")
        text = script(engines, *OWN, f"--checkout_dir={directory}", f"--python={python}", "--", *words)
        assert re.fullmatch(r"[a-z0-9-]+", settings(text)["job-name"])
        job = run_job(engines, text, tmp_path)
        assert (job.wait(), job.communicate()[1]) == (0, "")
        (srun,) = engines.calls("srun")
        assert srun.words == ["--kill-on-bad-exit=1", python, "-m", "launch.train", *words, "--grace_seconds=240"]
        assert Path(srun.environment["PWD"]).name == directory
    assert not [path for path in tmp_path.rglob("harm")]
    assert not os.path.exists("harm")


def test_a_checkout_that_is_not_there_ends_the_job(engines, tmp_path):
    text = script(engines, *OWN, "--checkout_dir=nowhere", *TRAIN)
    assert run_job(engines, text, tmp_path).wait() == 1
    assert engines.calls("srun") == []


def test_the_dry_run_is_a_script_of_the_very_call_and_makes_none(engines, tmp_path, capsys):
    words = (*OWN, "--options=--partition='a b'", *TRAIN, "--config.name=a'b $(touch harm)\\")
    assert launch("--dry_run", *words) == 0
    text = capsys.readouterr().out
    assert engines.calls() == []
    subprocess.run(["bash", "-c", text], env=engines.environment, cwd=tmp_path, check=True)
    (shown,) = engines.calls()
    assert shown.typed == script(engines, *words)
    assert shown.words == engines.calls()[0].words == ["--partition=a b"]
    assert not (tmp_path / "harm").exists()


def test_a_refusal_of_sbatch_is_passed_on(engines):
    engines.add("sbatch", "sys.exit(1)")
    assert launch(*OWN, *TRAIN) == 1


@pytest.mark.parametrize(
    ("topology", "each", "nodes", "gpus"),
    [("gpu:1", 8, 1, 1), ("gpu:8", 8, 1, 8), ("gpu:6", 8, 1, 6), ("gpu:64", 8, 8, 8), ("gpu:4", 1, 4, 1)],
)
def test_gpus_lie_on_whole_nodes(topology, each, nodes, gpus):
    assert parse_gpu_topology(topology, "", each) == (nodes, gpus)
    assert parse_gpu_topology(None, topology, each) == (nodes, gpus)


@pytest.mark.parametrize(
    ("topology", "each", "says"),
    [
        ("v5p:4x4x4", 8, "--topology=v5p:4x4x4 is not a number of GPUs"),
        ("gpu:0", 8, "is not a number of GPUs"),
        ("gpu:08", 8, "is not a number of GPUs"),
        ("gpu:8;x", 8, "is not a number of GPUs"),
        ("gpu:12", 8, "--topology=gpu:12 does not fill whole nodes of --gpus_per_node=8: use gpu:8 or gpu:16"),
        ("gpu:8", 0, "--gpus_per_node=0 must be at least 1"),
    ],
)
def test_gpus_that_no_nodes_make(topology, each, says):
    with pytest.raises(UserError) as caught:
        parse_gpu_topology(topology, "", each)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--time=soon",), "--time=soon is not a time"),
        (("--time=1;rm",), "--time=1;rm is not a time"),
        (("--time=",), "--time= is not a time"),
        (("--time=3",), "--time=3 is too short: the job is stopped 300 seconds before its end"),
        (("--cpus_per_task=0",), "--cpus_per_task=0 must be at least 1"),
        (("--grace_seconds=0",), "--grace_seconds=0 must be at least 1 second"),
        (("--options=job.sh",), "'job.sh' is not of the form --key=value"),
        (("--name=a b",), "--name=a b is not a valid name of a run"),
        (("--python=-x",), "--python='-x' must not"),
        (("--process_per=core",), "--process_per: invalid choice"),
    ],
)
def test_mistakes_are_told_before_sbatch_is_called(engines, capsys, words, says):
    assert launch(*OWN, *words, *TRAIN) == 2
    assert says in capsys.readouterr().err
    assert engines.calls() == []


@pytest.mark.parametrize("time", ["90", "90:30", "24:00:00", "2-12", "2-12:30", "2-12:30:00"])
def test_times_that_slurm_reads(engines, time):
    assert settings(script(engines, *OWN, f"--time={time}", *TRAIN))["time"] == time


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_a_directory_on_a_node_s_own_disk_is_refused(engines, capsys, folder):
    assert launch(*OWN, "--", TRAIN[1], f"--workdir={folder}/x") == 2
    assert "is on a node's own disk" in capsys.readouterr().err
