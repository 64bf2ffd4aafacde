"""Run directories in a bucket: files that grow, a lease for a lock, and a whole run, against a bucket on loopback."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.training.bucket_server import BucketServer, Object, running
from transformer.config import UserError
from transformer.runs.jsonl_reading import read_records
from transformer.runs.run_directory import RunDirectory
from transformer.storage import bucket, lease
from transformer.storage.gcs_objects import translate_gcs_errors
from transformer.storage.lease import Lease, hold_lease
from transformer.storage.paths import parse_path, storage_of
from transformer.storage.storage import DirectoryInUse, DirectoryLost
from transformer.studies.run_listing.listing import RunIndex
from transformer.studies.run_listing.page import write_page
from transformer.studies.run_listing.run_summary import RunState
from transformer.studies.run_listing.selection import ListedRuns
from transformer.studies.sweeps.trial_store import TrialOutcome, TrialState, TrialStore
from transformer.studies.sweeps.trials import trial_from_config
from transformer.studies.sweeps.worker import PROGRESS
from transformer.training.writers.jsonl import MetricsWriter
from transformer.training.writers.tensorboard import TensorBoardWriter
from transformer.training.writers.writer import Metrics

# Not imported here: what it is depends on an environment variable that is set below.
pytestmark = pytest.mark.skipif(find_spec("gcsfs") is None, reason="needs the extra gcs")

CONFIG = {"seed": 0, "steps": 100}
SECONDS = 1.2  # of a lease that is to end here
_TRIAL_FILES = ("attempts.jsonl", "config.json", "environment.json", "outcome.json")


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    """A bucket that all clients find: the Python ones and tensorstore."""
    with running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks a service that is not here
        yield server


@pytest.fixture
def run(server: BucketServer, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own."""
    return parse_path(f"gs://bucket/{request.node.name.partition('[')[0]}/run")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that end while a test waits."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", SECONDS)


# Names


def test_a_name_says_where_it_lies(tmp_path: Path):
    assert parse_path(tmp_path) == tmp_path
    assert type(parse_path("runs/a")) is type(Path("runs/a"))
    assert str(parse_path("gs://bucket/runs/a")) == "gs://bucket/runs/a"
    # pathlib folds the slashes of a URL; what went through it is still that URL.
    assert str(parse_path(Path("gs://bucket/runs/a"))) == "gs://bucket/runs/a"
    path = parse_path("gs://bucket/runs/a")
    assert str(path.resolve() / "b" / "c.json") == str(path.absolute() / "b/c.json") == "gs://bucket/runs/a/b/c.json"
    assert (path.name, str(path.parent), str(path.with_name("b"))) == ("a", "gs://bucket/runs", "gs://bucket/runs/b")


def test_what_follows_a_dot_and_a_slash_is_a_name_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "of-somebody"))
    assert parse_path("~/runs") == tmp_path / "of-somebody" / "runs"
    for name in ("~", "~/runs", "~x", "s3:/runs"):
        assert parse_path(f"./{name}") == parse_path(parse_path(f"./{name}")) == tmp_path / name
    assert parse_path("./runs") == Path("runs")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("s3://bucket/runs", "s3://bucket/runs cannot be used"),
        ("gs://bucket", "is a whole bucket: name a folder in it, as gs://bucket/runs/one"),
        ("gs://bucket/", "is a whole bucket"),
        ("gs://bucket/a[b]", r"no path in a bucket may hold '\['"),
        ("gs://bucket/a/b#1", "no path in a bucket may hold '#'"),
        ("gs://bucket/a\nb", r"no path in a bucket may hold '\\n'"),
        ("~nobody-of-this-name/runs", "cannot be used"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, says: str):
    with pytest.raises(UserError, match=says):
        parse_path(name)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("transformer.storage.paths.find_spec", lambda name: None)
    with (
        pytest.raises(UserError, match=r"pip install gcsfs google-cloud-storage$"),
        RunDirectory.claim("gs://b/run", CONFIG),
    ):
        pass


# Files that grow


def test_lines_arrive_at_a_flush_and_by_themselves_a_little_later(
    run: Path, server: BucketServer, monkeypatch: pytest.MonkeyPatch
):
    file = storage_of(run).append_to(run / "m")
    file.append(b"one\n")
    file.flush()
    assert (run / "m").read_bytes() == b"one\n"
    monkeypatch.setattr(bucket, "SYNC_SECONDS", 0.05)
    other = storage_of(run).append_to(run / "n")
    other.append(b"two\n")
    _wait(lambda: server.names(f"{_key(run)}/n"))
    file.close()
    other.close()
    assert _contents(server, run) == {"m": b"one\n", "n": b"two\n"}


def test_what_is_appended_while_the_file_is_sent_is_neither_lost_nor_doubled(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket, "SYNC_SECONDS", 0.001)
    lines = [f"line {number}\n".encode() for number in range(400)]
    for started in (0, 200):  # two processes, one after the other
        file = storage_of(run).append_to(run / "m")
        for number in range(started, started + 200):
            file.append(lines[number])
            time.sleep(0.001)
            if number % 100 == 99:
                file.flush()
                assert (run / "m").read_bytes() == b"".join(lines[: number + 1])
        file.close()
    assert (run / "m").read_bytes() == b"".join(lines)


def test_a_file_that_does_not_grow_is_not_sent_again(run: Path, server: BucketServer):
    server.put("bucket", f"{_key(run)}/m", b'{"step": 1, "split": "a"}\n')
    before = server.objects["bucket", f"{_key(run)}/m"].generation
    for _ in range(2):
        file = MetricsWriter(run / "m")
        file.truncate(1)
        file.close()
    assert server.objects["bucket", f"{_key(run)}/m"].generation == before
    MetricsWriter(run / "n").close()
    assert _contents(server, run).keys() == {"m"}


@pytest.mark.parametrize("lost", [False, True])
def test_a_kill_while_dropping_steps_leaves_the_old_lines_or_the_kept_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
):
    run = run / str(lost)
    file = MetricsWriter(run / "m")
    for step in range(1, 9):
        file.write(Metrics(step, "train", {"loss": 1 / step}))
    file.close()
    before = read_records(run / "m")
    stopped = MetricsWriter(run / "m")

    def killed(path: Path, send: Any) -> None:
        raise DirectoryLost("killed")

    with monkeypatch.context() as patch:
        if lost:
            patch.setattr(bucket, "_write_object", killed)
            with pytest.raises(DirectoryLost):
                stopped.truncate(after_step=3)
        else:
            stopped.truncate(after_step=3)
        stopped._file._mirror._closed.set()  # type: ignore[attr-defined]  # a killed process sends nothing
    assert read_records(run / "m") == (before if lost else before[:3])
    resumed = MetricsWriter(run / "m")
    resumed.truncate(after_step=3)
    assert read_records(run / "m") == before[:3]
    resumed.write(Metrics(4, "train", {"loss": 1 / 4}))
    resumed.close()
    assert read_records(run / "m") == before[:4]


def test_a_spoilt_line_is_named_and_heals(run: Path, server: BucketServer, capsys: pytest.CaptureFixture[str]):
    content = b'{"step": 1, "split": "a"}\nrubbish\n{"step": 3, "split": "a"}\n'
    server.put("bucket", f"{_key(run)}/m", content)
    with pytest.raises(UserError, match="m:2 is no JSON object"):
        read_records(run / "m")
    file = MetricsWriter(run / "m")
    file.truncate(1)
    file.close()
    assert "line 2 cannot be read" in capsys.readouterr().err
    assert _contents(server, run) == {"m": content.splitlines(keepends=True)[0], "m.damaged-1": content}


def test_a_checkpoint_is_moved_whole_and_removed_from_its_mark_on(run: Path, server: BucketServer):
    files = {"5/commit_success.txt": b"", "5/state/d/0": b"bits", "5/manifest/metadata": b"{}"}
    for name, content in files.items():
        server.put("bucket", f"{_key(run)}/{name}", content)
    storage_of(run).move_tree(run / "5", run / "damaged-5")
    assert _contents(server, run) == {f"damaged-{name}": content for name, content in files.items()}
    before = len(server.requests)
    storage_of(run).remove_tree(run / "damaged-5")
    removals = [request for request in server.requests[before:] if request.startswith("DELETE")]
    assert removals[0] == f"DELETE {_key(run)}/damaged-5/commit_success.txt"
    assert _contents(server, run) == {}


def test_a_file_that_was_copied_from_a_disk_goes_on(run: Path, server: BucketServer):
    server.put("bucket", f"{_key(run)}/m", b'{"step": 1, "split": "a"}\n{"step": 2, "split": "a"}\n')
    file = MetricsWriter(run / "m")
    file.truncate(1)
    file.write(Metrics(2, "b", {}))
    file.close()
    assert [(record["step"], record["split"]) for record in read_records(run / "m")] == [(1, "a"), (2, "b")]


def test_a_file_that_cannot_be_read_is_not_taken_for_a_missing_one(run: Path, server: BucketServer):
    server.put("bucket", f"{_key(run)}/m", b"a\n")
    with server.failing("GET .*/m", 403), pytest.raises(OSError, match="planted"):
        storage_of(run).append_to(run / "m")
    assert _contents(server, run) == {"m": b"a\n"}
    with pytest.raises(FileNotFoundError):
        (run / "none").read_bytes()
    assert read_records(run / "none") == []


def test_what_cannot_be_sent_for_a_while_is_kept(run: Path, server: BucketServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bucket, "SYNC_SECONDS", 0.02)
    file = storage_of(run).append_to(run / "m")
    with server.failing("POST"):
        file.append(b"a\n")
        _wait(lambda: any(request.startswith("POST") and _key(run) in request for request in server.requests))
        file.append(b"b\n")
        with pytest.raises(OSError, match="planted"):
            file.flush()
    file.close()
    assert (run / "m").read_bytes() == b"a\nb\n"


# The lease


@pytest.mark.usefixtures("short")
def test_a_second_claimant_goes_away_and_comes_in_when_the_first_has_left(
    run: Path, server: BucketServer, capsys: pytest.CaptureFixture[str]
):
    with hold_lease(run, "lock"):
        about = json.loads(server.objects["bucket", f"{_key(run)}/lock"].content)
        assert set(about) == {"holder", "token", "seconds"}
        for _ in range(2):
            with (
                pytest.raises(DirectoryInUse, match=r"in use by process \d+ on host .*; wait for it"),
                hold_lease(run, "lock"),
            ):
                pass
            assert "is watched whether that process is alive" in capsys.readouterr().err
    assert server.names(_key(run)) == []
    capsys.readouterr()
    with hold_lease(run, "lock"):
        assert "is watched" not in capsys.readouterr().err


@pytest.mark.usefixtures("short")
def test_a_holder_that_died_is_followed_once_its_time_is_over(run: Path, server: BucketServer):
    dead = _dead(run)
    before = server.objects["bucket", f"{_key(run)}/lock"].generation
    with hold_lease(run, "lock"):
        assert server.objects["bucket", f"{_key(run)}/lock"].generation > before
        assert lease.monotonic_seconds() - dead._renewed >= SECONDS
        dead.release()  # what is another's is left alone
        assert server.names(_key(run))


@pytest.mark.usefixtures("short")
def test_a_claimant_whose_clock_is_ahead_does_not_take_a_live_lease(
    run: Path, server: BucketServer, monkeypatch: pytest.MonkeyPatch
):
    put, old = server.put, "2020-01-01T00:00:00Z"  # by its clock, years ago

    def put_long_ago(bucket: str, name: str, *more: Any) -> Object | None:
        stored = put(bucket, name, *more)
        if stored is not None:
            server.objects[bucket, name] = stored._replace(updated=old)
        return stored

    monkeypatch.setattr(server, "put", put_long_ago)
    with hold_lease(run, "lock"):
        assert server.objects["bucket", f"{_key(run)}/lock"].updated == old
        with pytest.raises(DirectoryInUse), hold_lease(run, "lock"):
            pass


@pytest.mark.parametrize("seconds", ["0", "-5", "NaN", "1e300", '"x"'])
def test_a_lease_of_no_sensible_length_is_watched_like_one_of_ours(run: Path, server: BucketServer, seconds: str):
    content = f'{{"holder": "other", "token": "t", "seconds": {seconds}}}'.encode()
    assert lease._parse_lease(1, content, 60.0).seconds == 60.0


@pytest.mark.usefixtures("short")
def test_of_many_claimants_one_follows_a_dead_holder(run: Path):
    _dead(run)
    held, refused = [], []

    def claim() -> None:
        mine = Lease(run, "lock", SECONDS)
        try:
            mine.acquire()
            held.append(mine)
        except DirectoryInUse:
            refused.append(mine)

    threads = [threading.Thread(target=claim) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in held:
        each.check()
        each.release()
    assert (len(held), len(refused)) == (1, 4)


@pytest.mark.usefixtures("short")
def test_a_run_that_lost_its_lease_stops_with_one_line_and_writes_nothing_more(run: Path, server: BucketServer):
    """Also in the midst of something that asks for nothing."""
    key = "bucket", f"{_key(run)}/lock"
    opened: list[MetricsWriter] = []

    def train() -> None:
        with RunDirectory.claim(run, CONFIG) as directory:
            opened.append(MetricsWriter(directory.metrics_file))
            opened[0].write(Metrics(1, "train", {"loss": 1.0}))
            theirs = {**json.loads(server.objects[key].content), "holder": "process 1 on host other", "token": "x"}
            server.put(*key, json.dumps(theirs).encode())
            try:
                time.sleep(20)
            finally:
                opened[0].flush()

    with pytest.raises(DirectoryLost, match="its lease was taken over by process 1 on host other") as caught:
        train()
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    with pytest.raises(DirectoryLost):
        opened[0].close()
    assert server.names(f"{_key(run)}/metrics") == []
    assert json.loads(server.objects[key].content)["token"] == "x"  # theirs stays


@pytest.mark.parametrize("done", [True, False])
def test_a_claim_whose_first_answer_is_an_error_succeeds(run: Path, server: BucketServer, done: bool):
    with server.failing("POST .*lock", 503, done=done, times=1), hold_lease(run, "lock"):
        pass
    assert server.names(_key(run)) == []


def test_each_write_asks_whether_the_lease_still_stands(run: Path, server: BucketServer):
    """A holder would otherwise write on until it next renews its lease, a quarter of a minute later."""
    key = "bucket", f"{_key(run)}/lock"
    storage = storage_of(run)
    server.put("bucket", f"{_key(run)}/5/state", b"bits")
    with contextlib.suppress(DirectoryLost), hold_lease(run, "lock"):
        storage.replace(run / "config.json", b"mine")
        file = storage.append_to(run / "m")
        file.append(b"mine\n")
        server.put(*key, json.dumps({"holder": "other", "token": "x", "seconds": 60}).encode())
        for write in (
            lambda: storage.replace(run / "config.json", b"late"),
            lambda: storage.replace(run / "new", b"late"),
            file.flush,
            lambda: storage.remove_tree(run / "5"),
            lambda: storage.move_tree(run / "5", run / "damaged-5"),
            (run / "config.json").unlink,
        ):
            with pytest.raises(DirectoryLost, match="taken over by other"):
                write()
    assert {name: content for name, content in _contents(server, run).items() if name != "lock"} == {
        "config.json": b"mine",
        "5/state": b"bits",
    }
    file._mirror._closed.set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("taken", [True, False])
def test_a_write_that_is_held_up_overwrites_nothing_of_the_next_holder(
    run: Path, server: BucketServer, monkeypatch: pytest.MonkeyPatch, taken: bool
):
    """As long as another process needs to take the lease, and to write; where none has, it is written after all."""
    run = run / str(taken)
    confirm, held_up = bucket.check_lease_in_bucket, []

    def confirm_and_wait(path: Path) -> None:
        confirm(path)
        if not held_up:
            held_up.append(path)
            server.put("bucket", f"{_key(run)}/config.json", b"theirs")
            if taken:
                server.put("bucket", f"{_key(run)}/lock", b'{"holder": "other", "token": "x", "seconds": 60}')

    monkeypatch.setattr(bucket, "check_lease_in_bucket", confirm_and_wait)
    ended = pytest.raises(DirectoryLost) if taken else contextlib.nullcontext()
    with ended, hold_lease(run, "lock"):
        storage_of(run).replace(run / "config.json", b"mine")
    assert _contents(server, run)["config.json"] == (b"theirs" if taken else b"mine")


@pytest.mark.parametrize("done", [True, False])
def test_what_is_asked_twice_is_done_once(run: Path, server: BucketServer, done: bool):
    """An answer that is lost: the client asks again, and finds the object gone, or another generation of it."""
    run, storage = run / str(done), storage_of(run)
    for name in ("5/commit_success.txt", "5/state/d/0", "6/commit_success.txt", "old"):
        server.put("bucket", f"{_key(run)}/{name}", b"bits")
    with hold_lease(run, "lock"):
        with server.failing("DELETE", 503, done=done, times=1):
            storage.remove_tree(run / "5")
        with server.failing("POST .*copyTo", 503, done=done, times=1):
            storage.move_tree(run / "6", run / "damaged-6")
        with server.failing("DELETE", 503, done=done, times=1):
            (run / "old").unlink()
        (run / "old").unlink(missing_ok=True)
        for content in (b"new", b"newer"):
            with server.failing("POST .*config", 503, done=done, times=1):
                storage.replace(run / "config.json", content)
    assert _contents(server, run) == {"damaged-6/commit_success.txt": b"bits", "config.json": b"newer"}


@pytest.mark.usefixtures("short")
def test_a_lease_that_cannot_be_renewed_in_time_is_lost(run: Path, server: BucketServer):
    with (
        pytest.raises(DirectoryLost, match="could not be renewed in time"),
        hold_lease(run, "lock"),
        server.failing("POST .*lock"),
    ):
        time.sleep(20)


def test_a_process_that_was_stopped_for_too_long_writes_nothing(run: Path, server: BucketServer):
    mine = Lease(run, "lock", SECONDS)
    mine.acquire()
    mine._renewed -= 2 * SECONDS  # as if the whole machine had slept
    with pytest.raises(DirectoryLost):
        mine.check()
    mine._released.set()


@pytest.mark.usefixtures("short")
def test_a_renewal_whose_answer_was_lost_has_succeeded(run: Path, server: BucketServer):
    key = "bucket", f"{_key(run)}/lock"
    with hold_lease(run, "lock"):
        first = server.objects[key].generation
        with server.failing("POST .*lock", 503, done=True, times=1):
            _wait(lambda: server.objects[key].generation != first)
        second = server.objects[key].generation
        _wait(lambda: server.objects[key].generation != second)


@pytest.mark.usefixtures("short")
def test_a_renewal_whose_answer_was_lost_counts_from_when_it_was_made(run: Path, server: BucketServer):
    key = "bucket", f"{_key(run)}/lock"
    mine = Lease(run, "lock", 60.0)
    assert mine._write_lease(lease.ABSENT_GENERATION)
    with server.failing("POST .*lock", 503, done=True, times=1), pytest.raises(OSError, match="planted"):
        mine._write_lease(mine._generation)
    unheard = server.objects[key].generation
    # A claimant has watched that one since: only a write that it can see makes it wait longer.
    assert mine._write_lease(mine._generation)
    assert mine._generation == server.objects[key].generation > unheard


@pytest.mark.usefixtures("short")
def test_the_lock_of_a_disk_that_was_copied_here_is_nobodys(run: Path, server: BucketServer):
    server.put("bucket", f"{_key(run)}/lock", b"process 12 on host laptop\n")
    with hold_lease(run, "lock"):
        assert json.loads(server.objects["bucket", f"{_key(run)}/lock"].content)["seconds"] == SECONDS


# Run directories


def test_what_stays_on_the_machine_lies_where_nobody_else_can_write(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = storage_of(run).scratch(run)
    assert folder.parent == tmp_path / "cache" / "headwise"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.parent.chmod(0o777)
    with pytest.raises(UserError, match="others may write to"):
        storage_of(run).scratch(run)


def test_a_run_directory_in_a_bucket_is_claimed_refused_and_read_as_on_a_disk(run: Path, server: BucketServer):
    with pytest.raises(UserError, match=r"is missing; make a run with python -m launch\.train"):
        RunDirectory.open(run)
    with RunDirectory.claim(str(run), CONFIG) as directory:
        assert directory.is_new
        assert RunDirectory.open(run).config() == CONFIG
        directory.record(parameters=3)
    before = _contents(server, run)
    assert set(before) == {"config.json", "environment.json"}
    with pytest.raises(UserError, match=r"config\.seed=0, not 1"), RunDirectory.claim(run, {**CONFIG, "seed": 1}):
        pass
    assert _contents(server, run) == before
    with RunDirectory.claim(run, {**CONFIG, "steps": 200}, may_change=("steps",)) as directory:
        assert not directory.is_new
        directory.write_config({**CONFIG, "steps": 200})
        assert directory.config()["steps"] == 200
    starts = json.loads(directory.environment_file.read_text())
    assert [start.get("parameters") for start in starts] == [3, None]
    server.put("bucket", f"{_key(run)}-other/letter.txt", b"dear")
    with (
        pytest.raises(UserError, match=r"holds 'letter.txt' but no config.json"),
        RunDirectory.claim(f"{run}-other", CONFIG),
    ):
        pass


def test_the_runs_of_a_folder_in_a_bucket_are_listed_and_get_a_page(run: Path, server: BucketServer):
    line = b'{"step": 50, "split": "train", "loss": 0.123456}\n'
    with RunDirectory.claim(run / "deep" / "a", CONFIG):
        server.put("bucket", f"{_key(run)}/deep/a/metrics.jsonl", line)
        assert [each.state for each in RunIndex(run).read().runs] == [RunState.RUNNING]
    server.put("bucket", f"{_key(run)}/b/config.json", b"{")
    listing = RunIndex(str(run)).read()
    assert [(each.name, each.state, each.step) for each in listing.runs] == [
        ("b", RunState.UNREADABLE, 0),
        ("deep/a", RunState.STOPPED, 50),
    ]
    assert listing.runs[0].problems[0].startswith("config.json is not JSON")
    contents = _contents(server, run / "deep" / "a")
    assert listing.runs[1].num_bytes == sum(map(len, contents.values()))
    assert abs(listing.runs[1].files.modified - time.time()) < 3600
    page = write_page(ListedRuns(listing, listing.runs, listing.main_metrics(), []))
    assert page.name == "runs.html"
    assert b"0.12346" in _contents(server, run)["runs.html"]


def test_a_trial_in_a_bucket_has_one_lease_which_its_run_begins_under(run: Path, server: BucketServer):
    sweep = TrialStore.open(run, {"metric": "validation/loss"})
    trial = trial_from_config({"seed": 0}, CONFIG)
    sweep.append_trials([trial])
    other, name = TrialStore.open_existing(run), f"{_key(run)}/trials/{trial.name}"
    with server.failing("GET .*lock", status=503, times=2), sweep.hold_trial(trial) as held:
        assert other.state(trial) == TrialState.RUNNING
        held.record_start(0)
        with RunDirectory.claim(held.directory, CONFIG) as directory:
            assert directory.is_new
            assert [name for name in server.names(_key(run)) if name.endswith("/lock")] == [f"{name}/lock"]
        assert other.state(trial) == TrialState.RUNNING
    assert other.state(trial) == TrialState.PENDING
    with sweep.hold_trial(trial) as held:
        assert [attempt.step for attempt in held.attempts()] == [0]
        with server.failing("POST .*outcome", status=503, times=2):
            held.record_outcome(TrialOutcome(TrialState.DONE, 0.5, 100, ""))
    assert other.outcome(trial) == TrialOutcome(TrialState.DONE, 0.5, 100, "")
    assert server.names(name) == [f"{name}/{file}" for file in _TRIAL_FILES]


def test_who_has_lost_the_lease_of_a_trial_writes_no_outcome(run: Path, server: BucketServer, short: None):
    sweep = TrialStore.open(run, {"metric": "validation/loss"})
    trial = trial_from_config({"seed": 0}, CONFIG)
    sweep.append_trials([trial])

    def end() -> None:
        with sweep.hold_trial(trial) as held:
            server.put("bucket", f"{_key(run)}/trials/{trial.name}/lock", b"somebody")
            held.record_outcome(TrialOutcome(TrialState.DONE, 0.5, 100, ""))

    with pytest.raises(DirectoryLost):
        end()
    assert TrialStore.open_existing(run).outcome(trial) is None


def test_a_start_that_fails_leaves_nothing(run: Path, server: BucketServer):
    with RunDirectory.claim(run, CONFIG) as directory:
        server.put("bucket", f"{_key(run)}/data/deep/file", b"x")
        directory.abandon()
    assert server.names(_key(run)) == []


def test_a_bucket_that_cannot_be_asked_is_told_in_one_line(run: Path, server: BucketServer):
    with server.failing("GET"), pytest.raises(UserError, match=r"cannot be used: .*planted") as caught:
        RunDirectory.open(run)
    assert "\n" not in str(caught.value)
    with server.failing("GET"), pytest.raises(UserError, match="cannot be used"), RunDirectory.claim(run, CONFIG):
        pass


def test_what_orbax_needs_to_remove_a_checkpoint_is_asked_for_before_the_run_begins(run: Path, server: BucketServer):
    with (
        server.failing(r"^GET $"),  # the bucket itself
        pytest.raises(UserError, match=r"cannot be used: .*planted"),
        RunDirectory.claim(run, CONFIG),
    ):
        pass
    assert server.names(_key(run)) == []


def test_the_log_and_the_events_arrive(run: Path, server: BucketServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bucket, "SYNC_SECONDS", 0.05)
    ours = logging.getLogger("transformer.training")
    with RunDirectory.claim(run, CONFIG) as directory:
        for note in ("a note", "again"):
            with directory.log_to_file():
                ours.info(note)
        board = TensorBoardWriter(directory.tensorboard_dir)
        board.write(Metrics(1, "train", {"loss": 2.5}))
        _wait(lambda: server.names(f"{_key(run)}/tensorboard/"))
        (early,) = [server.objects["bucket", name] for name in server.names(f"{_key(run)}/tensorboard/")]
        board.write(Metrics(2, "train", {"loss": 1.5}))
        board.close()
        (late,) = [server.objects["bucket", name] for name in server.names(f"{_key(run)}/tensorboard/")]
    lines = (run / "log.txt").read_text().splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == ["a note", "again"]
    assert b"train/loss" in late.content
    assert late.content.startswith(early.content)
    assert len(late.content) > len(early.content)


def test_versions_change_with_what_they_are_of(run: Path, server: BucketServer):
    place, patterns = storage_of(run), ("*.json", "*.jsonl", "maps/*.json")
    seen = [place.versions(run, patterns)]
    for name in ("config.json", "metrics.jsonl", "metrics.jsonl", "maps/zarr.json"):
        server.put("bucket", f"{_key(run)}/{name}", b"{}")
        seen.append(place.versions(run, patterns))
    for name in ("maps/site/codes/c/0", "log.txt", "lock", "maps/site/zarr.json"):  # no page is made from these
        server.put("bucket", f"{_key(run)}/{name}", b"{}")
        assert place.versions(run, patterns) == seen[-1]
    assert len(set(seen)) == len(seen)


def test_what_a_worker_watches_changes_with_a_run_that_gets_on_and_not_with_its_lease(run: Path, server: BucketServer):
    place = storage_of(run)
    seen = [place.versions(run, PROGRESS)]
    for name in ("metrics.jsonl", "metrics.jsonl", "checkpoints/10/state", "maps/zarr.json"):
        server.put("bucket", f"{_key(run)}/{name}", b"{}")
        seen.append(place.versions(run, PROGRESS))
    assert len(set(seen)) == len(seen)
    server.put("bucket", f"{_key(run)}/lock", b"renewed")
    assert place.versions(run, PROGRESS) == seen[-1]


def _dead(run: Path, seconds: float = SECONDS) -> Lease:
    """A lease whose holder renews it no more."""
    gone = Lease(run, "lock", seconds)
    gone.acquire()
    gone._released.set()
    gone._thread.join()
    return gone


def _key(run: Path) -> str:
    return str(run).removeprefix("gs://bucket/")


def _contents(server: BucketServer, run: Path) -> dict[str, bytes]:
    there: dict[str, Object] = {
        name.removeprefix(f"{_key(run)}/"): each
        for (_, name), each in server.objects.items()
        if name.startswith(f"{_key(run)}/")
    }
    return {name: each.content for name, each in there.items()}


def _wait(until: Any, seconds: float = 20) -> None:
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)


def test_a_bucket_without_credentials_is_one_line() -> None:
    from google.auth.exceptions import DefaultCredentialsError

    says = r"^gs://bucket/run cannot be reached: no credentials$"
    with pytest.raises(OSError, match=says), translate_gcs_errors(parse_path("gs://bucket/run")):
        raise DefaultCredentialsError("no credentials")
