"""Trackers beside a run: told everything in order, and whatever they do, the run is as it would be without them."""

import contextlib
import dataclasses
import fnmatch
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from launch import train
from launch.cli import run
from tests.training.small_run import without_clock
from transformer.config import UserError
from transformer.maps.report import page
from transformer.runs.exceptions import RunStopped
from transformer.runs.run_directory import RunDirectory, write_json
from transformer.studies.sweeps.model_trainer import ModelTrainer
from transformer.training.writers import trackers as tracking
from transformer.training.writers.trackers import (
    ReportThread,
    RunDescription,
    TrackerLibrary,
    TrackersWriter,
    WandbTracker,
    any_tracker_hangs,
    parse_trackers,
)
from transformer.training.writers.writer import Metrics, Progress, Samples

# The folder of compiled programs stays that of the tests.
COMMAND = dataclasses.replace(train.COMMAND, before_jax=None)
CONFIG = """
from ml_collections import ConfigDict

from tests.training.small_run import CONFIG


def get_config():
    return ConfigDict({**CONFIG, "steps": 4, "maps_every": 4, "parameter_averages": {}, "head_statistics_every": 0})
"""


class Recorder:
    """A tracker that keeps what it is told."""

    def __init__(self, run: RunDescription, kept: list[Any]):
        self._kept = kept
        kept.append(("open", run.id, run.name, run.group, run.config, run.resumed))

    def write(self, report: Metrics | Samples) -> None:
        content = report.values if isinstance(report, Metrics) else report.samples
        self._kept.append((report.step, report.split, content))

    def write_page(self, path: Path) -> None:
        self._kept.append(("page", path.read_text()))

    def close(self, complete: bool) -> None:
        self._kept.append(("close", complete))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the only tracker that there is, "recorder", is told."""
    told: list[Any] = []
    table = {"recorder": TrackerLibrary("json", "recorder", lambda run: Recorder(run, told))}
    monkeypatch.setattr(tracking, "TRACKERS", table)
    return told


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A run directory as one that is claimed."""
    path = tmp_path / "sweep" / "trials" / "one"
    path.mkdir(parents=True)
    write_json(RunDirectory(path).config_file, {"steps": 2})
    write_json(RunDirectory(path).environment_file, [{}])
    return path


def tell(trackers: TrackersWriter, steps: Sequence[int], total: int) -> None:
    for step in steps:
        trackers.write(Metrics(step, "train", {"loss": 0.5 * step}))
        trackers.write(Progress(step, total))
    trackers.write(Samples(steps[-1], "test", [{"output": "ok"}]))
    trackers.close()


def test_everything_is_told_in_order_and_a_run_keeps_its_name(
    kept: list[Any], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "render", lambda path: f"page of {path.name}")
    assert TrackersWriter(("recorder",), workdir).wait(30) == []
    assert kept == []  # nothing is opened before the first report
    for steps in ((1,), (2,)):
        trackers = TrackersWriter(("recorder",), workdir, "sweep")
        tell(trackers, steps, 2)
        assert trackers.wait(30) == []
    number = RunDirectory(workdir).facts()["tracked_as"]
    opened = ("open", number, "one", "sweep", {"steps": 2})
    page_of_maps = ("page", "page of one")
    assert kept == [
        (*opened, False),
        (1, "train", {"loss": 0.5}),
        (1, "test", [{"output": "ok"}]),
        page_of_maps,
        ("close", False),
        (*opened, True),
        (2, "train", {"loss": 1.0}),
        (2, "test", [{"output": "ok"}]),
        page_of_maps,
        ("close", True),
    ]


def test_a_run_without_maps_has_no_page(kept: list[Any], workdir: Path) -> None:
    trackers = TrackersWriter(("recorder",), workdir)
    tell(trackers, (1,), 1)
    assert trackers.wait(30) == []
    assert [each[0] for each in kept] == ["open", 1, 1, "close"]


def test_trials_are_told_as_one_sweep(kept: list[Any], workdir: Path) -> None:
    with ModelTrainer(trackers=("recorder",))._tracking(RunDirectory(workdir)) as writers:
        writers[0].write(Metrics(1, "train", {"loss": 1.0}))
    assert kept[0][2:4] == ("one", "sweep")
    assert kept[-1] == ("close", False)
    with ModelTrainer()._tracking(RunDirectory(workdir)) as writers:
        assert writers == ()


def test_a_run_that_is_stopped_waits_less(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung, said = threading.Event(), []
    monkeypatch.setattr(tracking, "TRACKERS", {"x": TrackerLibrary("json", "x", lambda run: hung.wait())})  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(tracking, "GRACE_SECONDS", 10_000.0)
    monkeypatch.setattr(tracking, "GRACE_SECONDS_WHEN_STOPPED", 0.1)

    def stopped() -> None:
        with tracking.open_trackers(("x",), workdir, said.append) as (writer,):
            writer.write(Metrics(1, "train", {"loss": 1.0}))
            raise RunStopped

    with pytest.raises(RunStopped):
        stopped()
    assert said == ["x did not take 3 of 3 reports (no answer within 0 s)"]
    hung.set()


def test_what_raises_is_counted_and_the_next_is_tried() -> None:
    done: list[int] = []

    def report(number: int) -> Any:
        def act(opened: list[int]) -> None:
            if number % 2:
                raise SystemExit("no\nnetwork")
            opened.append(number)

        return act

    thread = ReportThread("x", lambda: done)
    for number in range(5):
        thread.enqueue(report(number))
    thread.end(lambda opened: opened.append(-1))
    assert ReportThread.join([thread], 30) == ["x did not take 2 of 6 reports (SystemExit: no network)"]
    assert done == [0, 2, 4, -1]
    thread = ReportThread("x", lambda: 1 / 0)
    thread.enqueue(report(0))
    thread.end(report(0))
    assert ReportThread.join([thread], 30) == ["x did not take 2 of 2 reports (ZeroDivisionError: division by zero)"]


def test_what_hangs_holds_up_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "QUEUE_SIZE", 3)
    go_on, done = threading.Event(), []
    hanging = ReportThread("x", go_on.wait)
    quick = ReportThread("y", lambda: None)
    for number in range(10):
        hanging.enqueue(lambda _, number=number: done.append(number))
        hanging.enqueue(lambda _: None)
    for each in (hanging, quick):
        each.end(lambda _: done.append("end"))
    assert ReportThread.join([quick, hanging], 0.2) == [
        "x did not take 21 of 21 reports (no answer within 0 s)",
    ]
    assert done == ["end"]
    assert any_tracker_hangs()
    # One that gets on at last ends all the same.
    go_on.set()
    assert ReportThread.join([hanging], 30)[0].startswith("x did not take 18 of 21 reports (more reports than it took)")
    assert done == ["end", 1, "end"]
    assert not any_tracker_hangs()


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("wandbb", "--trackers='wandbb' is unknown: did you mean 'wandb'? known: wandb, mlflow, trackio"),
        ("wandb,comet", "--trackers='comet' is unknown: known: mlflow, trackio, wandb"),
        ("absent", "--trackers=absent needs a library: pip install absent-client"),
    ],
)
def test_an_unknown_tracker_and_an_absent_library_are_one_line(
    flag: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {name: TrackerLibrary("json", name, Recorder) for name in tracking.TRACKERS}  # type: ignore[arg-type]
    if flag == "absent":
        table["absent"] = TrackerLibrary("no_such_module", "absent-client", Recorder)  # type: ignore[arg-type]
    monkeypatch.setattr(tracking, "TRACKERS", table)
    with pytest.raises(UserError) as told:
        parse_trackers(flag)
    assert says in str(told.value)
    assert "\n" not in str(told.value)
    assert parse_trackers(" mlflow,wandb,mlflow,") == ("mlflow", "wandb")
    assert parse_trackers(None) == ()


class Raises(ModuleType):
    """A library of which every call raises."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConnectionError("no route to host")


class Hangs(ModuleType):
    """A library whose first call never comes back."""

    ended = threading.Event()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.ended.wait()
        raise ConnectionError("too late")


class RecordingWandb(ModuleType):
    """W&B as a resumed run meets it: the summary holds the last value of every key that was logged."""

    def __init__(self, name: str):
        super().__init__(name)
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.hidden: list[str] = []

    def login(self, prompt: bool) -> bool:
        return True

    def init(self, **options: Any) -> Any:
        assert options["resume"] == "allow"
        return SimpleNamespace(
            id=options["id"], summary=dict(self.summary), log=self.log, define_metric=self.define_metric
        )

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.summary |= row

    def define_metric(self, name: str, *, hidden: bool = False, step_metric: str | None = None) -> None:
        self.hidden += [name] * hidden

    def Settings(self, **options: Any) -> None:
        pass

    def Table(self, columns: list[str], data: list[list[str]]) -> str:
        return f"table of {columns}: {data}"

    def reported(self) -> list[tuple[int, str, Any]]:
        """What a person sees: all keys but the hidden ones."""
        patterns = [name for name in self.hidden if name != "step"]
        return [
            (row["step"], key, value)
            for row in self.rows
            for key, value in row.items()
            if key != "step" and not any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)
        ]


def test_what_wandb_has_of_a_run_that_was_killed_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between two reports of step 4; the run goes on from its checkpoint of step 2."""

    def report(tracker: WandbTracker, first: int, last: int, *, killed: bool = False) -> None:
        for step in range(first, last + 1, 2):
            tracker.write(Metrics(step, "train", {"loss": 1.0 / (step + 1)}))
            tracker.write(Metrics(step, "validation", {"loss": 2.0 / (step + 1)}))
            tracker.write(Samples(step, "validation", [{"source": f"text {step}", "output": "x"}]))
            if not (killed and step == last):
                tracker.write(Metrics(step, "validation", {"bleu": float(step)}))
                tracker.write(Samples(step, "validation", [{"prompt": f"prompt {step}"}]))

    whole, killed = RecordingWandb("wandb"), RecordingWandb("wandb")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "wandb", whole)
        report(WandbTracker(RunDescription("id", "run", None, {}, resumed=False)), 0, 8)
        patched.setitem(sys.modules, "wandb", killed)
        report(WandbTracker(RunDescription("id", "run", None, {}, resumed=False)), 0, 4, killed=True)
        for last in (6, 8):
            report(WandbTracker(RunDescription("id", "run", None, {}, resumed=True)), 2, last)
    assert len(set(whole.reported())) == len(whole.reported()) == 25
    assert killed.reported() == whole.reported()


@contextlib.contextmanager
def library(name: str, kind: type[ModuleType], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of that name that is of this kind, as if it were installed."""
    module = kind(name)
    module.__spec__ = ModuleSpec(name, None)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, name, module)
        yield


@pytest.mark.slow
def test_a_tracker_that_raises_or_hangs_changes_nothing_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "GRACE_SECONDS", 0.5)
    (tmp_path / "config.py").write_text(CONFIG)

    def trained(name: str, *words: str) -> tuple[Any, str]:
        code = run(COMMAND, train.main, [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / name}", *words])
        return (code, without_clock(tmp_path / name)), capsys.readouterr().err

    alone, said = trained("alone")
    assert alone[0] == 0
    assert said == ""
    # Two of training, one of validation and of test, the page, the end.
    with library("wandb", Raises, monkeypatch):
        beside, said = trained("raises", "--trackers=wandb")
    assert beside == alone
    assert said == "wandb did not take 6 of 6 reports (ConnectionError: no route to host)\n"
    with library("trackio", Hangs, monkeypatch):
        beside, said = trained("hangs", "--trackers=trackio")
        assert beside == alone
        assert said == "trackio did not take 6 of 6 reports (no answer within 0 s)\n"
    Hangs.ended.set()
