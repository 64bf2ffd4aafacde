"""What attends to a training process: the monitor that can be ended, the signals that end it, and the watchdog."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from transformer.runs import lifecycle, preemption, watchdog
from transformer.runs.exceptions import EXIT_CODE_RESTARTABLE, RunStopped
from transformer.runs.lifecycle import ProcessMessages
from transformer.runs.preemption import PausePoint, ProgressMonitor, mark_save_end, mark_save_start, wait_for_save


def test_a_pulse_ends_behind_the_unit_that_it_is_told() -> None:
    monitor = ProgressMonitor()
    for unit in range(1, 4):
        monitor.begin_unit(f"step {unit}", makes=True)
    assert monitor.pause() == PausePoint(3, True)
    monitor.stop_after(4)
    monitor.begin_unit("step 4")
    with pytest.raises(RunStopped, match="before step 5"):
        monitor.begin_unit("step 5")


def test_a_pulse_that_is_held_waits_until_the_end_is_known() -> None:
    monitor = ProgressMonitor()
    monitor.begin_unit("the maps of step 0")
    monitor.begin_unit("step 1", makes=True)
    assert monitor.pause() == PausePoint(2, False)  # the first step is not done
    done: list[str] = []

    def go_on() -> None:
        monitor.begin_unit("step 2")
        done.append(monitor.current_unit)
        with pytest.raises(RunStopped):
            monitor.begin_unit("step 3")
        done.append("stopped")

    thread = threading.Thread(target=go_on)
    thread.start()
    time.sleep(0.05)
    assert done == []
    monitor.stop_after(3)
    thread.join(timeout=60)
    assert done == ["step 2", "stopped"]


class Service:
    """The keys and values of several processes, as jax's coordination service keeps them."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.changed = threading.Condition()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        with self.changed:
            if key in self.kept and not allow_overwrite:
                raise lifecycle.jax.errors.JaxRuntimeError("ALREADY_EXISTS")
            self.kept[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.kept, timeout_in_ms / 1000):
                raise lifecycle.jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            return self.kept[key]


def test_processes_that_are_at_different_units_end_behind_the_furthest(monkeypatch: pytest.MonkeyPatch) -> None:
    index = threading.local()
    monkeypatch.setattr(lifecycle.jax, "process_index", lambda: index.value)
    monkeypatch.setattr(lifecycle.jax, "process_count", lambda: 3)
    service, pulses = Service(), [ProgressMonitor() for _ in range(3)]
    threads = []
    for number, monitor in enumerate(pulses):
        for unit in range(number + 2):
            monitor.begin_unit(f"step {unit + 1}", makes=True)

        def agree(number: int = number, monitor: ProgressMonitor = monitor) -> None:
            index.value = number
            one = ProcessMessages(monitor)
            one._client = service
            if number == 1:
                one.stop("SIGTERM")
                one.stop("SIGTERM")  # told already
            one._listen()

        threads.append(threading.Thread(target=agree))
        threads[-1].start()
    for thread in threads:
        thread.join(timeout=60)
    for number, monitor in enumerate(pulses):
        for unit in range(number + 2, 4):
            monitor.begin_unit(f"step {unit + 1}")
        with pytest.raises(RunStopped, match="before step 5"):
            monitor.begin_unit("step 5")


@pytest.mark.parametrize("patient", [True, False])
def test_a_watchdog_ends_what_hangs_and_nothing_that_goes_on(patient: bool, capfd: pytest.CaptureFixture[str]) -> None:
    monitor, ended = ProgressMonitor(), threading.Event()
    monitor.begin_unit("step 1", makes=True)
    with watchdog.watchdog_thread(
        monitor, 0.5, "process 1 of 2", lambda what: "; furthest behind: process 0", ended.set
    ):
        for unit in range(2, 10):
            monitor.begin_unit(f"step {unit}")
            time.sleep(0.1)
        assert not ended.is_set()
        if not patient:
            assert ended.wait(timeout=60)
    said = capfd.readouterr().err
    assert ended.is_set() != patient
    for word in ("process 1 of 2 on", "in: step 9; furthest behind: process 0", "test_lifecycle.py"):
        assert (word in said) != patient


def test_a_watchdog_waits_long_for_what_was_slow_and_for_the_first_step() -> None:
    monitor = ProgressMonitor()
    assert watchdog.time_limit(monitor, 5.0) == watchdog.time_limit(monitor, None) == watchdog.FIRST_STEP_SECONDS
    for unit in ("step 1", "step 2"):
        monitor.begin_unit(unit, makes=True)
        assert watchdog.time_limit(monitor, 5.0) == watchdog.FIRST_STEP_SECONDS
    monitor.begin_unit("step 3")
    assert (watchdog.time_limit(monitor, 5.0), watchdog.time_limit(monitor, None)) == (5.0, watchdog.MIN_SECONDS)
    monitor.slowest_unit_seconds = 100.0
    assert watchdog.time_limit(monitor, None) == 1000.0


def test_a_watchdog_is_patient_while_a_save_is_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    """The last save of a run begins no unit, and may take longer than ten times the slowest of them."""
    monitor, ended = ProgressMonitor(), threading.Event()
    for unit in range(1, 4):
        monitor.begin_unit(f"step {unit}", makes=True)
    with watchdog.watchdog_thread(monitor, 0.2, "process 0 of 1", end=ended.set):
        with wait_for_save():
            assert watchdog.time_limit(monitor, 0.2) == watchdog.FIRST_STEP_SECONDS
            assert not ended.wait(timeout=0.6)
        assert ended.wait(timeout=60)
    assert "in: step 3" in capfd.readouterr().err


@pytest.mark.parametrize(("grace", "warned"), [(None, False), (20.0, False), (19.0, True)])
def test_a_save_that_outlasts_the_grace_is_told_once(
    grace: float | None, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr(preemption.time, "monotonic", lambda: clock[0])
    monitor = ProgressMonitor()
    # Compilation is no measure of a step: 50 s until the second one, then steps of 3 s.
    for seconds in (50.0, 3.0, 3.0, 3.0):
        monitor.begin_unit("a step", makes=True)
        clock[0] += seconds
    monitor.begin_unit("a step", makes=True)
    with lifecycle.compare_saves_with_grace(monitor, grace):
        for _ in range(2):
            mark_save_start()
            clock[0] += 16.5
            mark_save_end()
    mark_save_start()
    clock[0] += 500.0
    mark_save_end()
    said = capsys.readouterr().err
    assert said.count("\n") == warned
    if warned:
        assert "stopping takes up to 20 s (a save 16 s, a step or batch 3 s)" in said
        assert "--grace_seconds=19" in said


# A process that holds the interpreter's main thread in a lock, as one that waits for another process.
HEEDING = """
import contextlib, signal, sys, threading, time
if sys.argv[1] == "background":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from transformer.runs.exceptions import RunStopped
from transformer.runs.lifecycle import ProcessMessages
from transformer.runs.preemption import ProgressMonitor, mark_save_start, mark_save_end
from transformer.runs.preemption import handle_stop_signals, write_stderr
monitor = ProgressMonitor()
with handle_stop_signals(ProcessMessages(monitor).stop):
    if sys.argv[1] != "compiling":
        for unit in ("step 1", "step 2"):
            monitor.begin_unit(unit, makes=True)
    if sys.argv[1] == "saving":
        mark_save_start()
    write_stderr("ready")
    if sys.argv[1] == "saving":
        sys.stdin.readline()
        write_stderr("saved")
        mark_save_end()
    if sys.argv[1] in ("stuck", "saving", "compiling"):
        threading.Lock().acquire() and threading.Event().wait()
    with contextlib.suppress(RunStopped if sys.argv[1] == "leaving" else ()):
        while True:
            time.sleep(0.05)
            monitor.begin_unit("step")
time.sleep(1.5)
sys.exit(75)
"""


@pytest.mark.parametrize(
    ("how", "signals", "code"),
    [
        ("going", [signal.SIGTERM], 1),  # the traceback of RunStopped, which no command turned into its code
        ("background", [signal.SIGINT, signal.SIGTERM], 1),
        ("compiling", [signal.SIGINT], EXIT_CODE_RESTARTABLE),
        ("stuck", [signal.SIGTERM, signal.SIGINT], 130),
        # What schedulers warn with, as `sbatch --signal=USR1@120`, and what a closed connection sends; once the run has
        # stopped, no further signal changes its exit code.
        ("leaving", [signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM], EXIT_CODE_RESTARTABLE),
    ],
)
def test_signals_are_heard_whatever_the_main_thread_does(
    root: Path, how: str, signals: list[signal.Signals], code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDING, how],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        while "ready" not in process.stderr.readline():
            assert process.poll() is None
        for number in signals:
            process.send_signal(number)
            time.sleep(0.7)
        assert process.wait(timeout=120) == code
        said = process.stderr.read()
    finally:
        process.kill()
    assert ("RunStopped: stopped before step" in said) == (code == 1)
    assert (" again: stopped" in said) == (code == 130)


@pytest.mark.parametrize(
    ("how", "signals"),
    [("stuck", [signal.SIGTERM] * 3), ("saving", [signal.SIGTERM, signal.SIGTERM, signal.SIGINT])],
)
def test_no_signal_but_a_second_ctrl_c_ends_a_run_that_stops_and_none_ends_a_save(
    root: Path, how: str, signals: list[signal.Signals]
) -> None:
    """Slurm sends SIGTERM again when it queues a job again: a run that ended by it would never have saved."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDING, how],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stderr is not None
        while "ready" not in process.stderr.readline():
            assert process.poll() is None
        for number in signals:
            process.send_signal(number)
            time.sleep(0.7)
        assert process.poll() is None
        if how == "stuck":
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
            return
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(timeout=120) == 130
        said = process.stderr.read()
    finally:
        process.kill()
    assert said.index("SIGTERM again: already stopping") < said.index("as soon as the checkpoint is saved")
    assert said.index("as soon as the checkpoint is saved") < said.index("saved\n") < said.index("again: stopped; the")


@pytest.mark.parametrize("others", [(12, False), (11, True)], ids=["a unit later", "waiting in the same unit"])
def test_who_is_behind_is_told(others: tuple[int, bool]) -> None:
    told: dict[str, Any] = {"0": others, "1": (11, False), "2": others}
    texts = {
        f"headwise/hung/{name}": json.dumps({"place": place, "what": f"step {place[0]}"})
        for name, place in told.items()
    }
    assert lifecycle._describe_slowest_processes(texts) == "; furthest behind: process 1 (step 11)"
    assert "none is behind" in lifecycle._describe_slowest_processes({key: texts["headwise/hung/0"] for key in texts})


def test_a_unit_that_waits_is_further_than_one_at_work_and_not_as_far_as_the_next() -> None:
    monitor, places = ProgressMonitor(), []
    for _ in range(2):
        monitor.begin_unit("a step")
        places.append(monitor.progress)
        monitor.mark_waiting()
        places.append(monitor.progress)
    assert places == sorted(set(places))
