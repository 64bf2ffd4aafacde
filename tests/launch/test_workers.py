"""Workers as processes: their share of the machine, and that they are watched, replaced and stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import ablate, cli, workers
from launch import sweep as sweep_command
from launch.workers import WorkerResources, divide_machine, run_workers
from tests.studies.fake_worker import sweep, trial
from transformer.config import UserError
from transformer.runs.jsonl_reading import parse_metric_name
from transformer.studies.sweeps.page import SweepPage
from transformer.studies.sweeps.sweep_page_data import SweepInfo
from transformer.studies.sweeps.trial_store import TrialState, TrialStore

ROOT = Path(__file__).resolve().parents[2]
CPU = {"JAX_PLATFORMS": "cpu"}


def cores_of(places):
    return [place.cores for place in places]


def test_cores_are_divided_where_there_are_enough(tmp_path):
    assert cores_of(divide_machine(2, [0, 1, 4, 5, 6], CPU)) == [(0, 1), (4, 5, 6)]
    assert cores_of(divide_machine(3, [0, 1, 2], CPU)) == [(0,), (1,), (2,)]
    assert cores_of(divide_machine(3, [0, 1], CPU)) == [None] * 3
    assert divide_machine(1, [0, 1], CPU) == [WorkerResources(None, {})]
    assert cores_of(divide_machine(2, [0, 1], {}, tmp_path)) == [(0,), (1,)]


def test_workers_have_the_cards_in_turn_and_a_tpu_has_one_worker(tmp_path):
    (tmp_path / "dev").mkdir()
    for card in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl"):
        (tmp_path / "dev" / card).touch()
    places = divide_machine(3, range(64), {}, tmp_path)
    assert [place.environment for place in places] == [{"CUDA_VISIBLE_DEVICES": card} for card in ("0", "1", "2")]
    assert cores_of(places) == [None] * 3
    chosen = divide_machine(2, range(64), {"CUDA_VISIBLE_DEVICES": "3,GPU-1f"}, tmp_path)
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in chosen] == ["3", "GPU-1f"]
    assert cores_of(divide_machine(2, [0, 1], {"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path)) == [(0,), (1,)]
    of_card = {card: {"CUDA_VISIBLE_DEVICES": card, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} for card in "012"}
    shared = divide_machine(5, range(64), {}, tmp_path)
    assert [place.environment for place in shared] == [of_card[card] for card in "01201"]
    reserving = {"CUDA_VISIBLE_DEVICES": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    assert divide_machine(2, range(64), reserving, tmp_path) == [WorkerResources(None, reserving)] * 2
    assert cores_of(divide_machine(4, range(4), CPU, tmp_path)) == [(0,), (1,), (2,), (3,)]
    assert divide_machine(1, range(4), {}, tmp_path) == [WorkerResources(None, {})]
    (tmp_path / "dev" / "accel0").touch()
    with pytest.raises(UserError, match="--num_workers=2: only one process can use a TPU"):
        divide_machine(2, range(64), {}, tmp_path)
    with pytest.raises(UserError, match="--num_workers=0 must be at least 1"):
        divide_machine(0, range(4))


PROGRAM = """
import os, sys, time
from pathlib import Path
from launch.workers import become_worker
from tests.studies.fake_worker import Sleeping
from transformer.config import UserError
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.worker import run_worker

class Odd(Sleeping):
    def train(self, trial, directory, report):
        assert os.environ.get("GIVEN") == "here"
        marks = directory.path.with_name(directory.path.name + ".marks")
        with marks.open("a") as file:
            file.write(",".join(map(str, sorted(os.sched_getaffinity(0)))) + "\\n")
        if trial.config.get("ends") == "kills once" and len(marks.read_text().splitlines()) == 1:
            os.kill(os.getpid(), 9)
        if trial.config.get("ends") == "kills":
            os.kill(os.getpid(), 9)
        if trial.config.get("ends") == "unfit":
            os._exit(3)
        if trial.config.get("ends") == "mistake":
            print("error: --metric=x is unknown", file=sys.stderr, flush=True)
            os._exit(2)
        super().train(trial, directory, report)

if __name__ == "__main__":
    path = Path(sys.argv[1])
    (path / "trials").mkdir(exist_ok=True)
    assert sys.argv[2] == "--worker"
    if "light" not in os.environ:
        become_worker()
    trial_store = TrialStore.open_existing(path)
    run_worker(trial_store, None, total=len(trial_store.trials()), metric="validation/loss", trainer=Odd(0.02))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The name of a module whose workers need no jax, and the environment in which it is found."""
    (tmp_path / "odd_worker.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    monkeypatch.setattr(workers, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(workers, "_REPORT_SECONDS", 0.05)
    return {**os.environ, **CPU, "PYTHONPATH": path, "GIVEN": "here", "light": "1"}


def run(trial_store, environment, count=2, **more):
    about = {"total": len(trial_store.trials()), "metric": "validation/loss", "environment": environment}
    run_workers(
        [sys.executable, "-m", "odd_worker", str(trial_store.path)], trial_store, workers=count, **about, **more
    )


def test_workers_do_all_and_one_that_dies_is_replaced(tmp_path, program, capsys):
    trials = [trial(2, seed=seed) for seed in range(4)] + [trial(2, ends="kills once")]
    trial_store = sweep(tmp_path / "s", trials)
    run(trial_store, program)
    assert {trial_store.state(each) for each in trials} == {TrialState.DONE}
    said = capsys.readouterr().out
    assert "5 of 5 finished: 5 done" in said
    assert said.count("  done ") == 5
    assert sorted(entry.name for entry in (tmp_path / "s" / "workers").iterdir()) == ["0.log", "1.log"]
    marks = {line for file in (tmp_path / "s" / "trials").glob("*.marks") for line in file.read_text().splitlines()}
    here = sorted(os.sched_getaffinity(0))
    if len(here) >= 2:
        halves = [here[: len(here) // 2], here[len(here) // 2 :]]
        assert marks <= {",".join(map(str, half)) for half in halves}
    # All is done: no process is started again.
    (tmp_path / "odd_worker.py").unlink()
    run(trial_store, program)


def test_a_workers_mistake_stops_them_all_and_is_told(tmp_path, program):
    trial_store = sweep(tmp_path / "s", [trial(1, ends="mistake"), trial(500, seed=1)])
    with pytest.raises(UserError, match=r"^--metric=x is unknown$"):
        run(trial_store, program)
    assert [trial_store.state(each).value for each in trial_store.trials()] == ["pending", "pending"]


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_the_page_of_a_stopped_sweep_says_so_with_the_command_that_goes_on(tmp_path, program, told):
    trial_store = sweep(tmp_path / "s", [trial(1000, steps=1000)])
    about = SweepInfo("rates", parse_metric_name("validation/loss"), False, 1, "python -m launch.sweep --config=x.py")
    page = SweepPage(trial_store, about, lambda trial: "")

    def shown():
        return json.loads(page.path.read_text().split('id="data">')[1].split("</script>")[0])

    def write(rows, over):
        page.write(rows, over)
        if not over and rows[0].state == TrialState.RUNNING:
            assert shown()["state"] == "running"
            os.kill(os.getpid(), told)
            time.sleep(5)  # cut short by the signal, which a process gets when it may

    with pytest.raises(KeyboardInterrupt):
        run(trial_store, program, count=1, on_progress=write)
    found = shown()
    assert (found["state"], found["counts"], found["command"]) == (
        "stopped",
        "0 of 1 finished; 1 pending",
        about.command,
    )
    assert 'http-equiv="refresh"' not in page.path.read_text()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_workers_that_only_die_are_given_up(tmp_path, program, monkeypatch):
    monkeypatch.setattr(workers, "MAX_DEATHS", 2)
    trial_store = sweep(tmp_path / "s", [trial(1, ends="kills")])
    with pytest.raises(RuntimeError, match=r"every worker was given up: one died 2 times in a row; .*0\.log"):
        run(trial_store, program, count=1)
    assert trial_store.state(trial_store.trials()[0]) == TrialState.PENDING
    # One that has finished a trial in between has not only died.
    getting_on = sweep(tmp_path / "t", [trial(1, ends="kills once", seed=seed) for seed in range(3)])
    run(getting_on, program, count=1)
    assert {getting_on.state(each) for each in getting_on.trials()} == {TrialState.DONE}


def test_a_worker_that_is_unfit_is_not_started_again(tmp_path, program):
    trial_store = sweep(tmp_path / "s", [trial(1, ends="unfit")])
    with pytest.raises(RuntimeError, match=r"one found that another would fail as well; .*0\.log"):
        run(trial_store, program, count=1)
    assert len((tmp_path / "s" / "trials" / f"{trial_store.trials()[0].name}.marks").read_text().splitlines()) == 1


def test_a_trial_that_kills_every_worker_has_failed_before_the_last_is_given_up(tmp_path, program):
    trial_store = sweep(tmp_path / "s", [trial(1, ends="kills"), trial(1)])
    run(trial_store, program, count=1)
    assert [trial_store.state(each).value for each in trial_store.trials()] == ["failed", "done"]


def test_a_worker_ends_with_who_started_it_and_in_good_order(tmp_path, program):
    trial_store = sweep(tmp_path / "s", [trial(1000)])
    starter = (
        "import sys, time\nfrom launch.workers import run_workers\n"
        "from transformer.studies.sweeps.trial_store import TrialStore\n"
        "from pathlib import Path\ntrial_store = TrialStore.open_existing(Path(sys.argv[1]))\n"
        "command = [sys.executable, '-m', 'odd_worker', sys.argv[1]]\n"
        "run_workers(command, trial_store, workers=1, total=1, metric='validation/loss')"
    )
    environment = {name: value for name, value in program.items() if name != "light"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    parent = subprocess.Popen(
        [sys.executable, "-c", starter, trial_store.path], env=environment, stdout=subprocess.DEVNULL
    )
    while trial_store.state(trial_store.trials()[0]) != TrialState.RUNNING:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while trial_store.state(trial_store.trials()[0]) == TrialState.RUNNING:
        time.sleep(0.05)
    with trial_store.hold_trial(trial_store.trials()[0]) as lease:
        assert [attempt.stopped_cleanly for attempt in lease.attempts()] == [True]
    # Programs that lie in a sweep's directory may be whoever's wrote it.
    assert not (tmp_path / "s" / "compiled").exists()
    (compiled,) = (tmp_path / "cache" / "headwise").iterdir()
    assert compiled.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("module", [sweep_command, ablate])
def test_a_worker_is_one_before_its_config_is_read_with_jax(module, tmp_path, monkeypatch, capsys):
    def become():
        raise UserError("a worker")

    monkeypatch.setattr(module, "become_worker", become)
    monkeypatch.setattr(TrialStore, "open_existing", lambda path: None)
    words = [
        "--config=experiments/ablations/configs/num_heads.py",
        f"--workdir={tmp_path}",
        "--worker",
        "--config.no_such_key=1",
    ]
    monkeypatch.chdir(ROOT)
    assert cli.run(module.COMMAND, module.main, words) == 2
    assert capsys.readouterr().err == "error: a worker\n"
