"""Several processes on this machine: what each is started with, their lines, and that they end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.clusters import local
from launch.clusters.local import ProcessSpec, run_launcher, run_processes
from launch.platform import NVIDIA_GPUS, has_device
from tests.launch.engines import HOSTILE_THREES, Engines

TRAIN = ("--", "--config=experiments/demo.py", "--workdir=runs/demo")
# A process that says that it is there and waits for a signal, which it says, and ends by; or which it only says.
WAITER = """
import os, pathlib, signal, sys, time
def note(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if sys.argv[3] == "ends":
        sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
pathlib.Path(sys.argv[1], sys.argv[2]).write_text(str(os.getpid()))
while True:
    time.sleep(0.02)
"""
LAUNCHER = """
import sys
from launch.clusters import local
from launch.clusters.local import ProcessSpec
calls = [ProcessSpec((sys.executable, "-Sc", sys.argv[1], sys.argv[2], str(n), sys.argv[3]), {}) for n in range(2)]
sys.exit(local.run_processes(calls, dict(PATH="")))
"""


@pytest.fixture
def engines(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "executable", str(engines.add("python")))
    return engines


def launch(*words: str) -> int:
    try:
        return run_launcher(local.COMMAND, local.main, words)
    except SystemExit as ended:
        return int(str(ended.code))


def python(program: str, *words: str) -> ProcessSpec:
    return ProcessSpec((sys.executable, "-Sc", program, *words), {})


def until(met: object, what: str) -> None:
    deadline = time.monotonic() + 60
    while not met():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_each_process_knows_the_first_and_has_cpu_devices_of_its_own(engines, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_x=1 --xla_force_host_platform_device_count=8")
    assert launch("--num_processes=3", "--devices_per_process=4", "--port=1234", *TRAIN) == 0
    calls = sorted(engines.calls(), key=lambda call: call.words[-1])
    assert [call.words for call in calls] == [
        [
            *("-m", "launch.train", *TRAIN[1:]),
            *("--coordinator_address=127.0.0.1:1234", "--num_processes=3", f"--process_id={index}"),
        ]
        for index in range(3)
    ]
    for call in calls:
        assert call.environment["JAX_PLATFORMS"] == "cpu"
        assert call.environment["XLA_FLAGS"] == "--xla_cpu_x=1 --xla_force_host_platform_device_count=4"


def test_each_process_has_a_gpu_of_its_own_and_the_platform_that_the_user_chose(engines, monkeypatch):
    assert launch("--use_gpus", *TRAIN) == (0 if has_device(NVIDIA_GPUS) else 2)
    engines.forget()
    monkeypatch.setattr(local, "has_device", lambda patterns: True)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,9")
    assert launch("--use_gpus", *TRAIN) == 0
    calls = sorted(engines.calls(), key=lambda call: call.words[-1])
    assert [call.environment["CUDA_VISIBLE_DEVICES"] for call in calls] == ["5", "7"]
    assert {call.environment["JAX_PLATFORMS"] for call in calls} == {"cuda"}
    assert {call.environment["NCCL_SOCKET_IFNAME"] for call in calls} == {"lo"}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv("JAX_PLATFORMS")
    engines.forget()
    assert launch("--use_gpus", "--num_processes=1", *TRAIN) == 0
    assert engines.calls()[0].environment["CUDA_VISIBLE_DEVICES"] == "0"
    # Else jax would train on the CPU of a machine that has no GPU, without a word.
    assert engines.calls()[0].environment["JAX_PLATFORMS"] == "cuda"


def test_hostile_words_reach_python_as_they_are(engines):
    for first, second, third in HOSTILE_THREES:
        engines.forget()
        words = (*TRAIN[1:2], f"--workdir={first}", f"--config.name={second}", f"--data_dir={third}")
        assert launch("--num_processes=1", "--", *words) == 0
        (call,) = engines.calls()
        assert call.words[:-3] == ["-m", "launch.train", *words]
    assert not os.path.exists("harm")


def test_the_dry_run_is_a_script_of_the_very_calls_and_makes_none(engines, tmp_path, capsys):
    words = ("--port=1234", "--devices_per_process=2", *TRAIN, "--config.name=a'b $(touch harm)")
    assert launch("--dry_run", *words) == 0
    text = capsys.readouterr().out
    assert engines.calls() == []
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True)
    shown = sorted(call.words for call in engines.calls())
    flags = {call.environment["XLA_FLAGS"].split()[-1] for call in engines.calls()}
    assert flags == {"--xla_force_host_platform_device_count=2"}
    engines.forget()
    assert launch(*words) == 0
    assert sorted(call.words for call in engines.calls()) == shown
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--num_processes=0",), "--num_processes=0 must be at least 1"),
        (("--devices_per_process=0",), "--devices_per_process=0 must be at least 1"),
        (
            ("--use_gpus", "--devices_per_process=2"),
            "--devices_per_process=2 is for CPU devices, and --use_gpus for GPUs",
        ),
        (("--port=0",), "--port=0 is not a port"),
        (("--port=65536",), "--port=65536 is not a port"),
    ],
)
def test_mistakes_are_told_before_anything_starts(engines, capsys, monkeypatch, words, says):
    assert launch(*words, *TRAIN) == 2
    assert says in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert launch("--use_gpus", *TRAIN) == 2
    assert "--num_processes=2 is more than the 1 GPUs of CUDA_VISIBLE_DEVICES" in capsys.readouterr().err
    assert engines.calls() == []


def test_lines_carry_the_number_of_their_process(capfd):
    program = "import sys; print('first', sys.argv[1]); print('err', file=sys.stderr); print('no end', end='')"
    assert run_processes([python(program, "a"), python(program, "b")], os.environ) == 0
    lines = capfd.readouterr().out.splitlines()
    for index, name in enumerate("ab"):
        own = [line.removeprefix(f"[{index}] ") for line in lines if line.startswith(f"[{index}]")]
        assert sorted(own) == ["err", f"first {name}", "no end"]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        ("raise SystemExit(3)", 3, "ended with exit code 3: ending the others\n"),
        (
            "import os; os.kill(os.getpid(), 9)",
            128 + 9,
            "was killed by signal 9: ending the others; start the same command again to go on from the newest check",
        ),
    ],
)
def test_when_one_fails_all_are_ended_and_its_exit_code_is_theirs(capfd, tmp_path, program, code, says):
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path)!r}, '0').exists(): time.sleep(0.02)\n"
    processes = [python(WAITER, str(tmp_path), "0", "ends"), python(waits + program)]
    assert run_processes(processes, os.environ) == code
    said = capfd.readouterr()
    assert f"process 1 {says}" in said.err
    assert "[0] got SIGTERM" in said.out
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "0").read_text()), 0)


def launcher_of(tmp_path: Path, root: Path, ends: str) -> subprocess.Popen[str]:
    """A launcher whose two processes are there."""
    words = [sys.executable, "-c", LAUNCHER, WAITER, str(tmp_path), ends]
    launcher = subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True)
    until(lambda: all((tmp_path / n).exists() and (tmp_path / n).read_text() for n in "01"), "no processes")
    return launcher


def heard(launcher: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send the launcher a signal, and wait until both processes have it."""
    launcher.send_signal(number)
    assert launcher.stdout is not None
    lines = sorted(launcher.stdout.readline() for _ in range(2))
    assert lines == [f"[{n}] got {number.name}\n" for n in range(2)]


def assert_none_is_left(tmp_path: Path) -> None:
    for n in "01":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / n).read_text()), 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all(tmp_path, root, number):
    launcher = launcher_of(tmp_path, root, "ends")
    heard(launcher, number)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + number
    assert_none_is_left(tmp_path)


def test_whoever_saves_is_waited_for_and_the_third_ctrl_c_kills(tmp_path, root):
    launcher = launcher_of(tmp_path, root, "stays")
    # As many as Slurm and its preemption send; then an impatient person.
    for number in [signal.SIGTERM] * 3 + [signal.SIGINT] * 2:
        heard(launcher, number)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert_none_is_left(tmp_path)


def test_ctrl_c_is_told_as_every_command_tells_it(engines, monkeypatch, capsys):
    monkeypatch.setattr(local, "run_processes", lambda *_: 128 + signal.SIGINT)
    assert launch(*TRAIN) == 130
    assert "interrupted; start the same command again to resume" in capsys.readouterr().err
    monkeypatch.setattr(local, "run_processes", lambda *_: 2)
    assert launch(*TRAIN) == 2
