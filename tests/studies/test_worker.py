"""Workers: what they record of every way in which a trial can end, and that kills neither lose nor double a trial."""

import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.studies.fake_worker import HOLD, Sleeping, sweep, trial
from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory
from transformer.storage.storage import DirectoryInUse
from transformer.studies.sweeps import worker
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.worker import TooManyFailures, run_worker

ROOT = Path(__file__).resolve().parents[2]


class Scripted(Sleeping):
    """Trials that sleep not at all, and end as their config says."""

    def __init__(self):
        super().__init__()
        self.trained: list[str] = []

    def train(self, trial, directory, report):
        self.trained.append(trial.name)
        error = {
            "diverges": FloatingPointError("loss is nan at step 7;\n lower the rate"),
            "mistake": UserError("config.model.width=7 cannot be"),
            "breaks": OSError("disk full"),
            "in use": DirectoryInUse(directory.path, "somebody"),
        }.get(trial.config.get("ends"))
        if error is not None:
            raise error
        super().train(trial, directory, report)


def run(trial_store, trainer=None, total=None, **settings):
    total = len(trial_store.trials()) if total is None else total
    settings = {"search_algorithm": None, "metric": "validation/loss", **settings}
    search_algorithm = settings.pop("search_algorithm")
    run_worker(trial_store, search_algorithm, total=total, trainer=trainer or Scripted(), **settings)


def test_each_trial_is_trained_once_and_its_end_recorded(tmp_path):
    trials = [trial(2, seed=seed, loss=2.0 + seed) for seed in range(3)]
    trial_store, trainer = sweep(tmp_path, trials), Scripted()
    run(trial_store, trainer)
    assert trainer.trained == [each.name for each in trials]
    assert [trial_store.outcome(each) for each in trials] == [
        TrialOutcome(TrialState.DONE, (2.0 + seed) / 2, 2, "") for seed in range(3)
    ]
    run(trial_store, trainer)
    assert len(trainer.trained) == 3


def test_the_total_counts_the_first_and_a_greater_one_completes_them(tmp_path):
    trials = [trial(1, seed=seed) for seed in range(5)]
    trial_store = sweep(tmp_path, trials)
    run(trial_store, total=2)
    assert [trial_store.state(each).value for each in trials] == ["done"] * 2 + ["pending"] * 3
    run(trial_store, total=5)
    assert {trial_store.state(each) for each in trials} == {TrialState.DONE}
    # More than there are, and nobody to propose them.
    run(trial_store, total=9)


def test_divergence_is_a_result_and_a_failure_is_one_line(tmp_path, capsys):
    trials = [trial(1, ends=ends) for ends in ("diverges", "mistake", "breaks", "well")]
    trial_store = sweep(tmp_path, trials)
    run(trial_store)
    assert [trial_store.outcome(each) for each in trials] == [
        TrialOutcome(TrialState.DIVERGED, None, 0, "loss is nan at step 7; lower the rate"),
        TrialOutcome(TrialState.FAILED, None, 0, "config.model.width=7 cannot be"),
        TrialOutcome(TrialState.FAILED, None, 0, "OSError: disk full"),
        TrialOutcome(TrialState.DONE, 1.0, 1, ""),
    ]
    assert "Traceback" in capsys.readouterr().err


def test_the_step_of_a_divergence_is_the_errors_own(tmp_path):
    class Diverged(FloatingPointError):
        step = 42

    class Diverging(Scripted):
        def train(self, trial, directory, report):
            raise Diverged("loss is inf")

    trial_store = sweep(tmp_path, [trial(1)])
    run(trial_store, Diverging())
    assert trial_store.outcome(trial_store.trials()[0]).step == 42


def test_a_metric_that_ends_without_a_number_has_diverged(tmp_path):
    class Infinite(Scripted):
        def train(self, trial, directory, report):
            directory.metrics_file.write_text('{"step": 3, "split": "validation", "loss": null}\n')

    trial_store = sweep(tmp_path, [trial(1)])
    run(trial_store, Infinite())
    assert trial_store.outcome(trial_store.trials()[0]) == TrialOutcome(
        TrialState.DIVERGED, None, 3, "validation/loss is not finite"
    )


def test_a_disk_that_fails_is_no_failure_of_the_trial(tmp_path):
    class OnFullDisk(Scripted):
        def train(self, trial, directory, report):
            try:
                raise OSError(errno.ENOSPC, "No space left on device", str(directory.path))
            finally:
                raise RuntimeError("closing failed as well")

    trial_store = sweep(tmp_path, [trial(1), trial(1, seed=1)])
    with pytest.raises(RuntimeError, match="closing failed as well"):
        run(trial_store, OnFullDisk())
    assert [trial_store.state(each) for each in trial_store.trials()] == [TrialState.PENDING] * 2
    run(trial_store)
    assert [trial_store.state(each) for each in trial_store.trials()] == [TrialState.DONE] * 2


def test_one_failure_after_another_stops_the_worker(tmp_path):
    trials = [trial(1, ends=ends, seed=seed) for seed, ends in enumerate(["breaks", "", "breaks", "breaks", "breaks"])]
    trial_store = sweep(tmp_path, [*trials, trial(1, seed=99)])
    with pytest.raises(
        TooManyFailures, match="3 trials in a row failed in this worker, the last with: OSError: disk full"
    ):
        run(trial_store)
    # The one that went well begins the count anew.
    states = [trial_store.state(each).value for each in trial_store.trials()]
    assert states == ["failed", "done", "failed", "failed", "failed", "pending"]
    # Also what is told as a mistake may be of the machine: data that is not there, a disk that is full.
    mistaken = sweep(tmp_path / "m", [trial(1, ends="mistake", seed=seed) for seed in range(5)])
    with pytest.raises(TooManyFailures, match=r"config\.model\.width=7 cannot be"):
        run(mistaken)
    assert [mistaken.state(each).value for each in mistaken.trials()] == ["failed"] * 3 + ["pending"] * 2


def test_an_unknown_metric_is_told_with_those_there_are_and_nothing_recorded(tmp_path):
    trial_store = sweep(tmp_path, [trial(1)])
    with pytest.raises(UserError, match=r"validation/bleu is unknown .* it reports validation/loss$"):
        run(trial_store, metric="validation/bleu")
    assert trial_store.state(trial_store.trials()[0]) == TrialState.PENDING
    for metric in ("loss", "/loss", "validation/", "validation//x"):
        with pytest.raises(UserError, match="is no metric: write split/name"):
            run(trial_store, metric=metric)


def test_a_metric_that_only_some_trials_have_fails_the_others(tmp_path):
    class Other(Together):
        def train(self, trial, directory, report):
            super().train(trial, directory, report)
            if trial.config.get("ends") == "otherwise":
                file = directory.metrics_file
                file.write_text(file.read_text().replace('"loss"', '"bleu"'))

        def train_together(self, trials, directories):
            self.groups.append([each.name for each in trials])
            for each, directory in zip(trials, directories, strict=True):
                self.train(each, directory, lambda *about: None)
            return [None for _ in trials]

    says = "it does not report validation/loss; it reports validation/bleu"
    trials = [trial(1), trial(2, ends="otherwise"), trial(3)]
    trial_store = sweep(tmp_path / "alone", trials)
    run(trial_store, Other())
    assert [trial_store.state(each).value for each in trials] == ["done", "failed", "done"]
    assert trial_store.outcome(trials[1]) == TrialOutcome(TrialState.FAILED, None, 2, says)
    trials = [trial(1), *(trial(2, ends="otherwise", seed=seed) for seed in range(2))]
    trial_store, trainer = sweep(tmp_path / "together", trials), Other()
    run(trial_store, trainer, vmap=16)
    assert trainer.groups == [[each.name for each in trials[1:]]]
    assert [trial_store.outcome(each).message for each in trials[1:]] == [says] * 2
    # Where nothing has a value nothing is recorded, and the start was left in good order.
    trial_store = sweep(tmp_path / "none", trials[1:])
    with pytest.raises(UserError, match="is unknown to the first trial"):
        run(trial_store, Other(), vmap=16)
    for each in trials[1:]:
        with trial_store.hold_trial(each) as lease:
            assert [attempt.stopped_cleanly for attempt in lease.attempts()] == [True]


def test_a_directory_in_use_is_no_outcome(tmp_path, monkeypatch):
    class Busy(Scripted):
        def train(self, trial, directory, report):
            if self.trained.count(trial.name) == 3:
                trial.config.pop("ends", None)
            super().train(trial, directory, report)

    monkeypatch.setattr(worker, "_WAITS", (0.01, 0.01))
    trial_store = sweep(tmp_path, [trial(1, ends="in use"), trial(1, seed=2)])
    trainer = Busy()
    run(trial_store, trainer)
    assert [trial_store.state(each).value for each in trial_store.trials()] == ["done", "done"]
    assert trainer.trained.count(trial_store.trials()[0].name) == 4
    with trial_store.hold_trial(trial_store.trials()[0]) as lease:
        assert [attempt.stopped_cleanly for attempt in lease.attempts()] == [True, True, True, False]


def test_a_worker_that_is_stopped_leaves_its_trial_pending(tmp_path):
    class Stopped(Scripted):
        def train(self, trial, directory, report):
            raise KeyboardInterrupt

    trial_store = sweep(tmp_path, [trial(1)])
    for _ in range(worker.MAX_ATTEMPTS + 1):
        with pytest.raises(KeyboardInterrupt):
            run(trial_store, Stopped())
    assert trial_store.state(trial_store.trials()[0]) == TrialState.PENDING
    run(trial_store)
    assert trial_store.state(trial_store.trials()[0]) == TrialState.DONE


def test_a_trial_that_kills_its_workers_has_failed_unless_it_gets_on(tmp_path):
    stuck, moving = trial(99, seed=1), trial(99, seed=2)
    trial_store = sweep(tmp_path, [stuck, moving])
    for number, each in itertools.product(range(worker.MAX_ATTEMPTS), (stuck, moving)):
        with trial_store.hold_trial(each) as lease:
            lease.record_start(4 if each is stuck else number)
    for each in (stuck, moving):
        directory = trial_store.directory(each)
        lines = [json.dumps({"step": step, "split": "validation", "loss": 1.0}) for step in range(1, 5)]
        (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run(trial_store)
    assert trial_store.outcome(stuck).state == TrialState.FAILED
    assert "5 workers in a row died at it, none past step 4" in trial_store.outcome(stuck).message
    assert trial_store.state(moving) == TrialState.DONE


def test_a_search_algorithm_is_asked_until_the_total_and_may_prune(tmp_path):
    class Suggesting:
        def __init__(self):
            self.asked = 0

        def suggest(self):
            self.asked += 1
            return trial(5, seed=self.asked, loss=float(self.asked)) if self.asked <= 3 else None

        def should_prune(self, trial, step, value):
            return trial.config["seed"] == 2 and step == 3

    trial_store, search_algorithm = sweep(tmp_path, []), Suggesting()
    run(trial_store, total=2, search_algorithm=search_algorithm)
    assert search_algorithm.asked == 2
    assert [trial_store.outcome(each) for each in trial_store.trials()] == [
        TrialOutcome(TrialState.DONE, 0.2, 5, ""),
        TrialOutcome(TrialState.PRUNED, pytest.approx(2 / 3), 3, ""),
    ]
    run(trial_store, total=9, search_algorithm=search_algorithm)
    assert len(trial_store.trials()) == 3
    assert search_algorithm.asked == 4


def test_an_exhausted_search_algorithm_is_not_asked_again_while_others_train(tmp_path, monkeypatch):
    class Exhausted:
        asked = 0

        def suggest(self):
            self.asked += 1

        def should_prune(self, trial, step, value):
            return False

    monkeypatch.setattr(worker, "_WAITS", (0.01, 0.01))
    trial_store, search_algorithm = sweep(tmp_path, [trial(1)]), Exhausted()
    with ThreadPoolExecutor(1) as pool, trial_store.hold_trial(trial_store.trials()[0]) as lease:
        working = pool.submit(run, TrialStore.open_existing(tmp_path), total=9, search_algorithm=search_algorithm)
        time.sleep(0.3)
        lease.record_outcome(TrialOutcome(TrialState.DONE, 1.0, 1, ""))
        working.result(timeout=60)
    assert search_algorithm.asked == 1


class Together(Scripted):
    """Trials of as many ticks are one program."""

    def __init__(self):
        super().__init__()
        self.groups = []

    def train_together(self, trials, directories):
        self.groups.append([each.name for each in trials])
        if any(each.config.get("ends") == "not together" for each in trials):
            raise UserError("their batches differ in shape")
        for each, directory in zip(trials, directories, strict=True):
            Sleeping.train(self, each, directory, lambda *about: None)
        return [3 if each.config.get("ends") == "diverges" else None for each in trials]


def test_trials_of_one_program_are_trained_together(tmp_path):
    short = [trial(1, seed=seed) for seed in range(3)] + [trial(1, ends="diverges")]
    long = [trial(2, seed=0)]
    trial_store, trainer = sweep(tmp_path, [short[0], long[0], *short[1:]]), Together()
    run(trial_store, trainer, vmap=16)
    assert trainer.groups == [[each.name for each in short]]
    assert trainer.trained == [long[0].name]
    assert [trial_store.state(each).value for each in short] == ["done", "done", "done", "diverged"]
    assert trial_store.outcome(short[3]).step == 3


def test_trials_are_trained_one_by_one_where_together_they_fail(tmp_path):
    odd = [trial(1, seed=seed, ends="not together") for seed in range(3)]
    trial_store, trainer = sweep(tmp_path, odd), Together()
    run(trial_store, trainer, vmap=16)
    assert len(trainer.groups) == 1
    assert trainer.trained == [each.name for each in odd]
    assert {trial_store.state(each) for each in odd} == {TrialState.DONE}


def test_so_many_trials_are_trained_together_and_none_that_another_worker_holds(tmp_path):
    trials = [trial(1, seed=seed) for seed in range(5)]
    trial_store, trainer = sweep(tmp_path, trials), Together()
    with trial_store.hold_trial(trials[0]):
        with pytest.raises(KeyboardInterrupt):
            run(trial_store, Interrupted(trainer), vmap=2)
        assert trainer.groups == [[trials[1].name, trials[2].name]]


class Interrupted(Together):
    """Stopped when it has trained one group."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def train_together(self, trials, directories):
        self.inner.train_together(trials, directories)
        raise KeyboardInterrupt


def test_a_trial_at_which_two_workers_died_is_trained_alone(tmp_path):
    trials = [trial(1, seed=seed) for seed in range(4)]
    trial_store, trainer = sweep(tmp_path, trials), Together()
    for each in (trials[0], trials[2], trials[0], trials[2], trials[3]):
        with trial_store.hold_trial(each) as lease:
            lease.record_start(0)
    run(trial_store, trainer, vmap=16)
    assert trainer.trained == [trials[0].name, trials[2].name]
    assert trainer.groups == [[trials[1].name, trials[3].name]]


def test_a_trial_that_has_begun_is_joined_by_none_that_has_not(tmp_path):
    trials = [trial(3, seed=seed) for seed in range(4)]
    trial_store, trainer = sweep(tmp_path, trials), Together()
    for each in trials[:2]:
        trial_store.directory(each).mkdir(parents=True)
        line = json.dumps({"step": 1, "split": "validation", "loss": 1.0})
        (trial_store.directory(each) / "metrics.jsonl").write_text(line + "\n")
    run(trial_store, trainer, vmap=16)
    assert trainer.groups == [[each.name for each in trials[:2]], [each.name for each in trials[2:]]]


def start(path, total, seconds):
    command = [sys.executable, "-m", "tests.studies.fake_worker", path, str(total), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def leased(trial_store):
    return sum(trial_store.state(each) == TrialState.RUNNING for each in trial_store.trials())


@pytest.mark.slow
def test_sixteen_workers_half_of_them_killed_twice_lose_and_double_nothing(tmp_path):
    total, ticks = 40, 8
    trial_store = sweep(tmp_path, [trial(ticks, seed=seed) for seed in range(total)])
    # Nobody gets past the middle of a trial before the last kill: on a busy machine all would be over before it.
    hold = tmp_path / "trials" / HOLD
    hold.parent.mkdir()
    hold.touch()
    chance = random.Random(0)
    workers = [start(tmp_path, total, 0.02) for _ in range(16)]
    for _ in range(2):
        for _ in range(2000):
            if leased(trial_store) == 16:
                break
            assert all(each.poll() is None for each in workers)
            time.sleep(0.05)
        assert leased(trial_store) == 16
        for victim in chance.sample(workers, 8):
            victim.kill()
            victim.communicate()
            workers.remove(victim)
        workers += [start(tmp_path, total, 0.02) for _ in range(8)]
    hold.unlink()
    for each in workers:
        _, said = each.communicate()
        assert each.returncode == 0, said
    trials = TrialStore.open_existing(tmp_path).trials()
    assert len({each.name for each in trials}) == len(trials) == total
    attempts = 0
    for each in trials:
        assert trial_store.outcome(each) == TrialOutcome(TrialState.DONE, 1 / ticks, ticks, "")
        # One at a time, each from where the one before was: two at once would have written some step twice.
        lines = (trial_store.directory(each) / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, ticks + 1))
        with trial_store.hold_trial(each) as lease:
            attempts += len(lease.attempts())
    assert attempts == total + 16
    assert sorted(entry.name for entry in (tmp_path / "trials").iterdir()) == sorted(each.name for each in trials)


def test_a_worker_that_hangs_ends_itself_and_says_where(tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[2])\n"
        "from tests.studies.fake_worker import Sleeping\n"
        "from transformer.studies.sweeps.trial_store import TrialStore\n"
        "from transformer.studies.sweeps.worker import run_worker\n"
        "class Hanging(Sleeping):\n"
        "    def train(self, trial, directory, report):\n"
        "        super().train(trial, directory, report)\n"
        "        time.sleep(600)\n"
        "trial_store = TrialStore.open_existing(Path(sys.argv[1]))\n"
        # Long enough to come to the sleep on a busy machine: who is told of while running may crash the telling.
        "run_worker(trial_store, None, total=1, metric='validation/loss', trainer=Hanging(), patience=3)\n"
    )
    trial_store = sweep(tmp_path, [trial(1)])
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path, ROOT], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in train" in done.stderr
    assert trial_store.state(trial_store.trials()[0]) == TrialState.PENDING
    run(trial_store)
    assert trial_store.state(trial_store.trials()[0]) == TrialState.DONE


def test_a_directory_that_cannot_be_seen_is_not_one_that_stands_still(tmp_path, monkeypatch):
    class Unseen:
        looks = 0

        def versions(self, path, patterns):
            Unseen.looks += 1
            raise OSError("stale file handle")

    changes = []
    monkeypatch.setattr(worker, "storage_of", lambda path: Unseen())
    monkeypatch.setattr(worker.faulthandler, "dump_traceback_later", lambda *about, **how: changes.append(about))
    with worker._exit_if_hung([RunDirectory(tmp_path)], 0.04):
        while Unseen.looks < 4:
            time.sleep(0.01)
    assert len(changes) >= 3


@pytest.mark.slow
def test_four_workers_are_at_work_at_once_all_but_a_seventh_of_the_time(tmp_path):
    """3.5 times as fast as one: as much work overlapping, counted from what each trial's record says."""
    total, ticks = 32, 10
    trial_store = sweep(tmp_path, [trial(ticks, seed=seed) for seed in range(total)])
    for each in [start(tmp_path, total, 0.1) for _ in range(4)]:
        each.wait()
    times = [trial_store.start_and_end_times(each) for each in trial_store.trials()]
    worked = sum(ended - began for began, ended in times)
    span = max(ended for _, ended in times) - min(began for began, _ in times)
    print(f"{worked:.2f} s of trials in {span:.2f} s: {worked / span:.2f}")
    assert worked / span >= 3.5


def test_signals_and_locks_leave_no_process_behind(tmp_path):
    trial_store = sweep(tmp_path, [trial(1000)])
    one = start(tmp_path, 1, 0.05)
    while leased(trial_store) == 0:
        assert one.poll() is None
        time.sleep(0.02)
    os.kill(one.pid, signal.SIGINT)
    assert one.wait() != 0
    one.stderr.close()
    assert trial_store.state(trial_store.trials()[0]) == TrialState.PENDING
