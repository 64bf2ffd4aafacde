"""The batch script for Slurm: it is really run, with stand-ins of Slurm's own commands."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.engines import HOSTILE_THREES, Engines

TRAIN = ("--config=experiments/demo.py", "--workdir=runs/demo")
# What Slurm sets for the options in the script.
JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NAME": "demo",
    "SLURM_GPUS_PER_NODE": "8",
    "SLURM_NTASKS_PER_NODE": "8",
}
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
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(time.monotonic()))
open({mark!r}, "w").write(str(os.getpid()))
while not signals or time.monotonic() < signals[0] + 3:
    time.sleep(0.05)
open({mark!r} + ".saved", "w").close()
sys.exit(75)
"""
SCANCEL = """
import signal
os.kill(int(open({mark!r}).read()), signal.SIGTERM)
"""


@pytest.fixture
def script(root: Path) -> Path:
    return root / "launch" / "clusters" / "train.sbatch"


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    engines = Engines(tmp_path)
    for name in ("srun", "scancel", "scontrol", "squeue"):
        engines.add(name)
    return engines


def start(engines: Engines, script: Path, folder: Path, *words: str, **variables: str) -> "subprocess.Popen[str]":
    """Start the script as Slurm does; `words` are flags of the train command."""
    environment = {**engines.environment, **JOB, **variables}
    call = ["bash", str(script), *(words or TRAIN)]
    return subprocess.Popen(call, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)


def run(engines: Engines, script: Path, folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Run the script to its end; return its exit code and its errors."""
    job = start(engines, script, folder, *words, **variables)
    return job.wait(), job.communicate()[1]


def slurm_changes(engines: Engines) -> list[tuple[str, list[str]]]:
    """The calls that change something in Slurm."""
    calls = [(call.name, call.words) for call in engines.calls() if call.name in ("scancel", "scontrol")]
    return [(name, words) for name, words in calls if words[0] != "show"]


def wait_for(mark: Path) -> None:
    deadline = time.monotonic() + 30
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def warn(engines: Engines, script: Path, folder: Path, action: str = "signal.SIG_DFL", **variables: str) -> str:
    """Run a job whose process handles SIGTERM by `action`, send it Slurm's warning, and return its errors."""
    mark = folder / "mark"
    mark.unlink(missing_ok=True)
    engines.add("srun", SRUN.format(mark=str(mark), action=action))
    engines.add("scancel", SCANCEL.format(mark=str(mark)))
    job = start(engines, script, folder, **variables)
    wait_for(mark)
    os.kill(job.pid, signal.SIGUSR1)
    job.wait()
    if action.endswith("IGN"):
        # What hears nothing is Slurm's to kill: the job is queued again all the same.
        os.kill(int(mark.read_text()), signal.SIGKILL)
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)
    return job.communicate()[1]


def test_the_script_starts_a_task_a_gpu(engines, script, tmp_path):
    assert run(engines, script, tmp_path) == (0, "")
    (srun,) = engines.calls("srun")
    words = [".venv/bin/python", "-m", "launch.train", *TRAIN, "--grace_seconds=240"]
    assert srun.words == ["--kill-on-bad-exit=1", *words]
    assert not {"JAX_LOCAL_DEVICE_IDS", "SRUN_CPUS_PER_TASK"} & set(srun.environment)
    assert slurm_changes(engines) == []


@pytest.mark.parametrize("gpus", ["4", "h100:4"])
def test_a_task_a_node_sees_all_its_gpus(engines, script, tmp_path, gpus):
    settings = {"SLURM_NTASKS_PER_NODE": "1", "SLURM_GPUS_PER_NODE": gpus, "SLURM_CPUS_PER_TASK": "12"}
    assert run(engines, script, tmp_path, **settings) == (0, "")
    (srun,) = engines.calls("srun")
    assert srun.environment["SRUN_CPUS_PER_TASK"] == "12"
    assert srun.environment["JAX_LOCAL_DEVICE_IDS"] == "0,1,2,3"


def test_another_python_is_named_by_the_environment(engines, script, tmp_path):
    assert run(engines, script, tmp_path, PYTHON="env/bin/python3", GRACE_SECONDS="600") == (0, "")
    (srun,) = engines.calls("srun")
    assert srun.words[1] == "env/bin/python3"
    assert srun.words[-1] == "--grace_seconds=600"


def test_the_job_ends_as_the_training_does(engines, script, tmp_path):
    engines.add("srun", "sys.exit(7)")
    assert run(engines, script, tmp_path)[0] == 7
    assert slurm_changes(engines) == []


@pytest.mark.parametrize("action", ["signal.SIG_DFL", "signal.SIG_IGN"])
def test_before_its_time_is_up_the_job_is_stopped_and_queued_again(engines, script, tmp_path, action):
    warn(engines, script, tmp_path, action, GRACE_SECONDS="1" if action.endswith("IGN") else "50")
    assert slurm_changes(engines) == [("scancel", ["--signal=TERM", "42"]), ("scontrol", ["requeue", "42"])]


def test_a_task_of_an_array_is_stopped_and_queued_again_alone(engines, script, tmp_path):
    # Slurm gives the last task the number of the array, by which all its tasks are meant.
    warn(engines, script, tmp_path, GRACE_SECONDS="50", SLURM_ARRAY_JOB_ID="42", SLURM_ARRAY_TASK_ID="4")
    assert slurm_changes(engines) == [("scancel", ["--signal=TERM", "42_4"]), ("scontrol", ["requeue", "42_4"])]
    assert (tmp_path / "runs" / "demo.requeue").read_text() == "50 1 none\n"


@pytest.mark.slow
def test_the_whole_warning_is_the_run_s_and_one_that_was_too_short_is_longer_the_next_time(engines, script, tmp_path):
    short = {"EARLY_SECONDS": "0", "RESERVE_SECONDS": "1", "GRACE_SECONDS": "1"}
    end = int(time.time()) + 8
    engines.add("squeue", f"print({end})")
    errors = warn(engines, script, tmp_path, "signal.SIG_IGN", **short)
    assert end - 1 <= time.time() <= end + 3
    assert "the next start stops 2 seconds before its end; set GRACE_SECONDS=2 for a new job" in errors
    assert (tmp_path / "runs" / "demo.requeue").read_text() == "2 0 none\n"
    # What was learned is told to the run, and the script warns it by itself.
    engines.add("squeue", f"print({int(time.time()) + 600})")
    engines.add("srun")
    assert run(engines, script, tmp_path, **short)[0] == 0
    assert engines.calls("srun")[-1].words[-1] == "--grace_seconds=2"


def test_a_job_without_a_new_checkpoint_is_not_queued_without_end(engines, script, tmp_path):
    engines.add("srun", "sys.exit(134)")  # its peer was lost
    checkpoints = tmp_path / "runs" / "demo" / "checkpoints"

    def restart(number: int) -> tuple[int, str]:
        return run(engines, script, tmp_path, SLURM_RESTART_COUNT=str(number), MAX_REQUEUES="1")

    assert restart(0) == (0, "")
    code, errors = restart(1)
    assert code == 1
    assert "error: this job went back into the queue 1 times without a new checkpoint" in errors
    assert len(slurm_changes(engines)) == 1
    # A checkpoint counts when it is complete.
    (checkpoints / "7.orbax-checkpoint-tmp-1").mkdir(parents=True)
    assert restart(2)[0] == 1
    for step in ("10", "9"):
        (checkpoints / step).mkdir()
    assert restart(3)[0] == 0
    assert (tmp_path / "runs" / "demo.requeue").read_text() == "240 1 10\n"
    # A job that is submitted anew counts anew.
    assert restart(0)[0] == 0


def test_requeues_of_a_run_in_a_bucket_do_not_count(engines, script, tmp_path):
    engines.add("srun", "sys.exit(134)")
    for restart in range(3):
        code, _ = run(
            engines,
            script,
            tmp_path,
            TRAIN[0],
            "--workdir=gs://bucket/run",
            SLURM_RESTART_COUNT=str(restart),
            MAX_REQUEUES="1",
        )
        assert code == 0


@pytest.mark.parametrize(
    ("code", "record", "queued"),
    [
        (75, "JobState=RUNNING Reason=None PreemptTime=2026-11-27T07:59:21", True),
        (75, "JobState=RUNNING Reason=None PreemptTime=None", True),
        (75, "JobState=COMPLETING Reason=None PreemptTime=None", False),
        (1, "JobState=RUNNING Reason=None PreemptTime=2026-11-27T07:59:21", False),
    ],
)
def test_a_job_that_was_stopped_and_not_canceled_is_queued_again(engines, script, tmp_path, code, record, queued):
    """One that is preempted within a GraceTime ends by itself, and Slurm counts it as failed."""
    engines.add("srun", f"sys.exit({code})")
    engines.add("scontrol", f"print('{record}')")
    assert run(engines, script, tmp_path)[0] == (0 if queued else code)
    assert (("scontrol", ["requeue", "42"]) in slurm_changes(engines)) == queued


def test_the_job_is_queued_again_as_soon_as_the_run_has_saved_and_no_earlier(engines, script, tmp_path):
    mark = tmp_path / "mark"
    engines.add("srun", SAVING.format(mark=str(mark)))
    engines.add("scancel", SCANCEL.format(mark=str(mark)))
    engines.add(
        "scontrol", f"open({str(tmp_path / 'queued')!r}, 'w').write(str(os.path.exists({str(mark)!r} + '.saved')))"
    )
    job = start(engines, script, tmp_path, GRACE_SECONDS="50")
    wait_for(mark)
    os.kill(job.pid, signal.SIGUSR1)
    job.wait()
    assert (tmp_path / "queued").read_text() == "True"


def test_hostile_words_reach_python_as_they_are(engines, script, tmp_path):
    for first, second, third in HOSTILE_THREES:
        words = (TRAIN[0], f"--workdir={first}", f"--config.name={second}", f"--data_dir={third}")
        engines.forget()
        engines.add("srun", "sys.exit(75)")
        engines.add("scontrol", "print('JobState=RUNNING')")
        assert run(engines, script, tmp_path, *words) == (0, "")
        (srun,) = engines.calls("srun")
        python = [".venv/bin/python", "-m", "launch.train"]
        assert srun.words == ["--kill-on-bad-exit=1", *python, *words, "--grace_seconds=240"]
    assert not [path for path in tmp_path.rglob("harm")]


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        ((TRAIN[0],), {}, "no --workdir: give the train command's flags after train.sbatch"),
        ((TRAIN[0], "--workdir=/run/x"), {}, "--workdir=/run/x is on a node's own disk"),
        ((TRAIN[0], "--workdir", "/dev/shm/x/"), {}, "--workdir=/dev/shm/x is on a node's own disk"),
        ((*TRAIN, "--grace_seconds=3"), {}, "--grace_seconds=3: set GRACE_SECONDS in the environment"),
        (TRAIN, {"GRACE_SECONDS": "0"}, "GRACE_SECONDS=0 must be a number of seconds, at least 1"),
        (TRAIN, {"GRACE_SECONDS": "5m"}, "GRACE_SECONDS=5m must be a number of seconds"),
    ],
)
def test_mistakes_end_the_job_before_anything_starts(engines, script, tmp_path, words, variables, message):
    code, errors = run(engines, script, tmp_path, *words, **variables)
    assert code == 2
    assert f"error: {message}" in errors
    assert engines.calls() == []


def test_a_time_limit_within_the_warning_is_refused(engines, script, tmp_path):
    engines.add("squeue", f"print({int(time.time()) + 299})")
    code, errors = run(engines, script, tmp_path)
    assert code == 2
    assert "error: the time limit is too short: the job is stopped 300 seconds before its end" in errors
    assert engines.calls("srun") == []


def test_the_options_in_the_script_are_those_that_a_run_needs(script):
    lines = [line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    options = dict(line.partition("=")[::2] for line in lines)
    assert {"requeue": "", "open-mode": "append", "signal": "B:USR1@300"}.items() <= options.items()
    assert options["gpus-per-node"] == options["ntasks-per-node"]
