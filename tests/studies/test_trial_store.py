"""The trial store: what a sweep is, what its trials are at, and that a mistake leaves a directory as it was."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.studies.fake_worker import sweep, trial
from transformer.config import UserError
from transformer.runs.run_directory import RunDirectory
from transformer.storage.json_checksum import add_checksum
from transformer.storage.paths import storage_of
from transformer.storage.storage import DirectoryInUse
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore

TRIALS = [trial(1, seed=seed) for seed in range(4)]
DONE = TrialOutcome(TrialState.DONE, 0.5, 10, "")


def contents(path):
    return {file.relative_to(path): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_trials_are_planned_once_in_order_and_read_by_others(tmp_path):
    trial_store = sweep(tmp_path / "s", TRIALS[:2])
    other = TrialStore.open_existing(tmp_path / "s")
    assert other.trials() == tuple(TRIALS[:2])
    trial_store.append_trials(TRIALS[1:])
    trial_store.append_trials([TRIALS[0], TRIALS[0]])
    assert other.trials() == trial_store.trials() == tuple(TRIALS)
    assert other.directory(TRIALS[0]) == tmp_path / "s" / "trials" / TRIALS[0].name
    assert len({each.name for each in TRIALS}) == 4
    assert all(len(each.name) == 16 and int(each.name, 16) >= 0 for each in TRIALS)


def test_a_torn_last_line_is_no_trial_and_is_cut_off(tmp_path):
    trial_store = sweep(tmp_path, TRIALS[:2])
    file = tmp_path / "trials.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"name": "00')
    assert TrialStore.open_existing(tmp_path).trials() == tuple(TRIALS[:2])
    trial_store.append_trials(TRIALS[:3])
    assert trial_store.trials() == tuple(TRIALS[:3])
    assert file.read_bytes().startswith(whole)


def test_a_trial_is_pending_leased_and_then_as_it_ended(tmp_path):
    trial_store = sweep(tmp_path, TRIALS)
    other = TrialStore.open_existing(tmp_path)
    first = TRIALS[0]
    assert (trial_store.state(first), trial_store.outcome(first)) == (TrialState.PENDING, None)
    with trial_store.hold_trial(first) as lease:
        assert other.state(first) == TrialState.RUNNING
        with pytest.raises(DirectoryInUse), other.hold_trial(first):
            pass
        lease.record_start(0)
    assert other.state(first) == TrialState.PENDING
    with other.hold_trial(first) as lease:
        assert [attempt.step for attempt in lease.attempts()] == [0]
        lease.record_outcome(DONE)
        with pytest.raises(RuntimeError, match="has an outcome already"):
            lease.record_outcome(DONE)
    assert trial_store.state(first) == TrialState.DONE
    assert trial_store.outcome(first) == DONE
    began, ended = trial_store.start_and_end_times(first)
    assert ended - began >= 0
    assert trial_store.state(TRIALS[1]) == TrialState.PENDING
    assert json.loads((tmp_path / "trials" / first.name / "outcome.json").read_text())["state"] == "done"


def test_a_lease_ends_with_the_process_that_holds_it(tmp_path):
    trial_store = sweep(tmp_path, TRIALS[:1])
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom transformer.studies.sweeps.trial_store import TrialStore\n"
        "trial_store = TrialStore.open_existing(Path(sys.argv[1]))\n"
        "with trial_store.hold_trial(trial_store.trials()[0]): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert trial_store.state(TRIALS[0]) == TrialState.RUNNING
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert trial_store.state(TRIALS[0]) == TrialState.PENDING
    with trial_store.hold_trial(TRIALS[0]):
        pass


def _plan(path, seeds):
    TrialStore.open_existing(path).append_trials([trial(1, seed=seed) for seed in seeds])


def test_who_plans_at_once_loses_and_doubles_nothing(tmp_path):
    sweep(tmp_path, [])
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda first: _plan(tmp_path, range(first, first + 20)), range(0, 60, 10)))
    names = [each.name for each in TrialStore.open_existing(tmp_path).trials()]
    assert sorted(names) == sorted(trial(1, seed=seed).name for seed in range(70))


def test_plan_next_stops_at_the_total_and_where_nothing_is_suggested(tmp_path):
    trial_store = sweep(tmp_path, TRIALS[:1])
    assert trial_store.append_suggested_trial(2, lambda: TRIALS[1])
    assert trial_store.append_suggested_trial(2, lambda: TRIALS[2])
    assert trial_store.trials() == tuple(TRIALS[:2])
    assert not trial_store.append_suggested_trial(3, lambda: None)
    assert trial_store.trials() == tuple(TRIALS[:2])


def test_failed_trials_can_be_forgotten_and_no_others(tmp_path):
    trial_store = sweep(tmp_path, TRIALS[:3])
    for each, state in zip(TRIALS, (TrialState.DONE, TrialState.FAILED), strict=False):
        with trial_store.hold_trial(each) as lease:
            lease.record_start(0)
            lease.record_start(2)
            lease.record_outcome(TrialOutcome(state, None, 2, ""))
    assert trial_store.forget_failed() == 1
    assert [TrialStore.open_existing(tmp_path).state(each).value for each in TRIALS[:3]] == [
        "done",
        "pending",
        "pending",
    ]
    with trial_store.hold_trial(TRIALS[1]) as lease:
        assert lease.attempts() == []
        lease.record_start(3)
        assert [attempt.step for attempt in lease.attempts()] == [3]


def test_processes_may_replace_one_file_at_once(tmp_path, monkeypatch):
    path, written = tmp_path / "trials.csv", []

    def another_writes_it_meanwhile(descriptor):
        if not written:
            written.append(descriptor)
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 4711)
                storage_of(path).replace(path, b"theirs")

    monkeypatch.setattr(os, "fsync", another_writes_it_meanwhile)
    storage_of(path).replace(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert os.listdir(tmp_path) == ["trials.csv"]


def test_a_changed_sweep_is_refused_with_the_difference(tmp_path):
    space = {"product": [{"choice": {"seed": [1, 2]}}]}
    facts = {"config": {"steps": 3, "model": {"width": 8}}, "space": space, "metric": "validation/loss"}
    trial_store = TrialStore.open(tmp_path, facts)
    trial_store.append_trials(TRIALS[:1])
    TrialStore.open(tmp_path, facts)
    before = contents(tmp_path)
    changed = {**facts, "config": {"steps": 4, "model": {"width": 8}}}
    with pytest.raises(UserError, match=r"holds another sweep: config.steps=3, not 4; choose another --workdir"):
        TrialStore.open(tmp_path, changed)
    longer = {**facts, "space": {"product": [{"choice": {"seed": [1, 2, 3]}}]}}
    with pytest.raises(UserError, match=r"space.product.0.choice.seed.2=absent, not 3"):
        TrialStore.open(tmp_path, longer)
    other = {**facts, "config": {"a": 1, "b": 2, "c": 3, "d": 4}}
    with pytest.raises(UserError, match=r"\(and 3 more\)"):
        TrialStore.open(tmp_path, other)
    assert contents(tmp_path) == before


def test_a_metric_can_be_put_right_until_a_trial_has_ended_by_it(tmp_path):
    trial_store = sweep(tmp_path, TRIALS[:2], metric="validation/lost")
    with trial_store.hold_trial(TRIALS[1]) as lease:
        lease.record_outcome(TrialOutcome(TrialState.FAILED, None, 10, "it has no validation/lost"))
    sweep(tmp_path, TRIALS[:2], metric="validation/loss")
    assert trial_store.facts()["metric"] == "validation/loss"
    with trial_store.hold_trial(TRIALS[0]) as lease:
        lease.record_outcome(DONE)
    with pytest.raises(UserError, match=r'metric="validation/loss", not "test/loss"'):
        sweep(tmp_path, TRIALS[:2], metric="test/loss")


def test_a_directory_with_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"holds 'thesis.tex' but no sweep.json"):
        sweep(tmp_path, [])
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(UserError, match="is a file"):
        sweep(tmp_path / "thesis.tex", [])
    with pytest.raises(UserError, match="holds no sweep"):
        TrialStore.open_existing(tmp_path)
    with pytest.raises(UserError, match="holds no sweep"):
        TrialStore.open_existing(tmp_path / "nowhere")
    # What a start leaves that was killed before it wrote its facts.
    (tmp_path / "s" / "planning").mkdir(parents=True)
    (tmp_path / "s" / "sweep.json.4711.new").touch()
    sweep(tmp_path / "s", TRIALS)


def test_facts_that_are_damaged_are_said_to_be(tmp_path):
    sweep(tmp_path, [])
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        sweep(tmp_path, [])


def test_the_planning_lock_is_waited_for(tmp_path):
    trial_store = sweep(tmp_path, [])
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(_plan_slowly, tmp_path)
        while not (tmp_path / "proposing").exists():
            time.sleep(0.01)
        assert trial_store.append_suggested_trial(5, lambda: TRIALS[1])
        holding.result()
    assert trial_store.trials() == (TRIALS[0], TRIALS[1])


def _plan_slowly(path: Path) -> None:
    def suggest():
        (path / "proposing").touch()
        time.sleep(0.3)
        return TRIALS[0]

    TrialStore.open_existing(path).append_suggested_trial(5, suggest)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "../../x"}, "name='../../x' must be 16 hexadecimal digits"),
        ({"name": "/tmp"}, "name='/tmp' must be 16 hexadecimal digits"),
        ({"name": ["x"]}, "name=['x'] is a list; it must be a str"),
        ({"config": {"steps": 1, "task": {"name": "canary.task"}}}, "is not the hash of the trial's config"),
        ({"config": None}, "config=None is a NoneType; it must be a Mapping"),
        (None, "is no JSON object but a list"),
    ],
)
def test_a_trial_is_only_taken_by_the_hash_of_its_config(tmp_path, change, says):
    sweep(tmp_path, TRIALS[:1])
    line = [] if change is None else add_checksum({**TRIALS[0]._asdict(), **change})
    (tmp_path / "trials.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match=re.escape(says)):
        TrialStore.open_existing(tmp_path).trials()


def test_a_sweep_that_holds_a_link_is_refused(tmp_path):
    sweep(tmp_path / "s", TRIALS[:1])
    (tmp_path / "s" / "trials").symlink_to(tmp_path)
    for opening in (lambda: TrialStore.open_existing(tmp_path / "s"), lambda: sweep(tmp_path / "s", TRIALS[:1])):
        with pytest.raises(UserError, match=r"trials is a link, and what is written"):
            opening()


def test_a_changed_bit_anywhere_is_noticed(tmp_path):
    trial_store = sweep(tmp_path, TRIALS)
    with trial_store.hold_trial(TRIALS[0]) as lease:
        lease.record_start(0)
        lease.record_outcome(DONE)
    random = np.random.default_rng(0)
    for name in ("trials.jsonl", "sweep.json", f"trials/{TRIALS[0].name}/outcome.json"):
        content = (tmp_path / name).read_bytes()
        for _ in range(60):
            changed = bytearray(content)
            changed[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
            (tmp_path / name).write_bytes(changed)
            fresh = TrialStore(tmp_path)
            with contextlib.suppress(UserError):  # else it changes how the same values are written
                assert (fresh.facts(), fresh.trials(), fresh.outcome(TRIALS[0])) == (
                    trial_store.facts(),
                    tuple(TRIALS),
                    DONE,
                )
        (tmp_path / name).write_bytes(content)
    assert TrialStore(tmp_path).trials() == tuple(TRIALS)


@pytest.mark.parametrize("left", [None, 0.0, 0.5])
def test_a_plan_that_has_lost_a_trial_that_has_begun_is_refused(tmp_path, left):
    trial_store = sweep(tmp_path, TRIALS)
    with trial_store.hold_trial(TRIALS[-1]) as lease:
        lease.record_start(0)
    path = tmp_path / "trials.jsonl"
    content = path.read_bytes()
    if left is None:
        path.unlink()
    else:
        path.write_bytes(content[: int(left * len(content))])
    with pytest.raises(UserError, match=f"the trial {TRIALS[-1].name} has begun and is not in it; put back a copy"):
        TrialStore.open_existing(tmp_path).trials()


def test_a_sweep_of_another_version_is_refused_with_its_version_and_left_alone(tmp_path):
    sweep(tmp_path, TRIALS)
    file = tmp_path / "sweep.json"
    recorded = json.loads(file.read_text())
    assert recorded["version"] == 2
    for change, version in (({}, "1"), ({"version": 3}, "3")):
        facts = {key: value for key, value in recorded.items() if key not in ("version", "sha256")}
        file.write_text(json.dumps(add_checksum({**facts, **change})))
        before = contents(tmp_path)
        for opening in (lambda: TrialStore.open_existing(tmp_path), lambda: sweep(tmp_path, TRIALS)):
            with pytest.raises(UserError, match=rf"holds a sweep of version {version}, and this code reads version 2"):
                opening()
        assert contents(tmp_path) == before


def test_a_run_that_is_trained_by_hand_holds_its_trial_and_the_other_way_round(tmp_path):
    trial_store = sweep(tmp_path, TRIALS)
    with RunDirectory.claim(trial_store.directory(TRIALS[0]), {"seed": 0}):
        assert trial_store.state(TRIALS[0]) == TrialState.RUNNING
        with pytest.raises(DirectoryInUse), trial_store.hold_trial(TRIALS[0]):
            pass
    with trial_store.hold_trial(TRIALS[0]) as lease:
        lease.record_start(0)
        with pytest.raises(DirectoryInUse), RunDirectory.claim(lease.directory.path, {"seed": 0}):
            pass
        with RunDirectory.claim(lease.directory, {"seed": 0}) as directory:
            assert not directory.is_new
            # Nor can what a claim returned be claimed again, now or later, without a lock.
            with pytest.raises(DirectoryInUse), RunDirectory.claim(directory, {"seed": 0}):
                pass
        assert trial_store.state(TRIALS[0]) == TrialState.RUNNING


def test_a_config_that_is_refused_leaves_the_record_of_its_trial(tmp_path):
    trial_store = sweep(tmp_path, TRIALS)
    with trial_store.hold_trial(TRIALS[0]) as lease:
        lease.record_start(0)
        lease.directory.outcome_file.with_name("outcome.json.4711.new").touch()  # as a kill leaves it
        with RunDirectory.claim(lease.directory, {"seed": 0}) as directory:
            directory.abandon()
        assert [attempt.step for attempt in lease.attempts()] == [0]
        lease.record_outcome(DONE)
    assert sorted(os.listdir(trial_store.directory(TRIALS[0]))) == ["attempts.jsonl", "lock", "outcome.json"]
    assert trial_store.outcome(TRIALS[0]) == DONE


def test_a_lock_that_is_only_looked_at_can_be_taken(tmp_path, monkeypatch):
    trial_store = sweep(tmp_path, TRIALS[:1])
    with trial_store.hold_trial(TRIALS[0]) as lease:
        lease.record_start(0)
    look = os.open(trial_store.directory(TRIALS[0]) / "lock", os.O_RDWR)
    fcntl.flock(look, fcntl.LOCK_SH)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: os.close(look))
        with trial_store.hold_trial(TRIALS[0]):
            pass
