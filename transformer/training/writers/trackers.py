"""Experiment trackers (W&B, MLflow, Trackio), each in a thread that cannot block or stop the run."""

import contextlib
import dataclasses
import functools
import os
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

from transformer.config import UserError, flatten_config, lookup_by_name
from transformer.runs.exceptions import RunStopped
from transformer.runs.run_directory import RunDirectory
from transformer.storage.paths import parse_path
from transformer.training.writers.writer import Metrics, Progress, Report, Samples, Writer

QUEUE_SIZE = 1000  # reports in the queue, at most; then further ones are left out
_PREFIX = "tracker "
GRACE_SECONDS = 30.0  # seconds for pending reports after a run has ended
GRACE_SECONDS_WHEN_STOPPED = 5.0  # ... and after it was stopped, since a kill may follow soon
_TRACKED_AS = "tracked_as"  # the fact of a run with its id in trackers
_PAGE = "report.html"
_STEP = "step"
_ID, _GROUP = "headwise.id", "group"
_URI, _FILES = "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"
_UNNAMED = re.compile(r"[^\w. :/-]")
_REPORTED = "reported_"  # begins the hidden keys of W&B that hold the last step of each kind of report
_VALUE, _AT_ONCE = 500, 100  # characters of a parameter, and parameters in a request


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """The description of a run that trackers get.

    Attributes:
        id: A unique id, which stays the same when the run is resumed.
        name: The name shown to people.
        group: The sweep that the run is a trial of, if any.
        config: The resolved config.
        resumed: Whether the tracker may have reports of the run already.
    """

    id: str
    name: str
    group: str | None
    config: Mapping[str, Any]
    resumed: bool


class Tracker(Protocol):
    """A service outside of the run directory. Its library may raise or hang at any call."""

    def write(self, report: Metrics | Samples) -> None:
        """Send metrics, as Python numbers, or samples, except those that it has already."""

    def write_page(self, path: Path) -> None:
        """Send the page of the run's maps, a file that is removed afterwards."""

    def close(self, complete: bool) -> None:
        """Send what is pending.

        Args:
            complete: Whether the run is at its last step.
        """


class WandbTracker:
    """The tracker of one run in Weights & Biases.

    Project, entity and folder are those of its environment variables, WANDB_PROJECT (default "headwise"), WANDB_DIR,
    ... Every report is a line of its history with the run's `step`, which is the horizontal axis of its charts: its own
    step counter would refuse what a resumed run reports for the step at which it stopped. A line also has a hidden key
    of its kind of report with the step; the summary, which a resumed run gets back, has the last of each. So what was
    reported behind the last checkpoint of a run that was killed is not sent again. Offline there is no summary to get.

    Raises:
        RuntimeError: If nobody is logged in. Errors of the library are raised unchanged.
    """

    def __init__(self, run: RunDescription):
        import wandb

        mode = os.environ.get("WANDB_MODE", "online")
        # On a terminal it would prompt for a key and wait forever.
        if mode == "online" and not wandb.login(prompt=False):
            raise RuntimeError("nobody is logged in: wandb login, or WANDB_MODE=offline")
        self._library: Any = wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "headwise"),
            id=run.id,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            allow_val_change=True,
            resume="allow",
            reinit="create_new",
            # The console is the run's own.
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("*", step_metric=_STEP)
        self._run.define_metric(f"{_REPORTED}*", hidden=True)
        summary = self._run.summary if run.resumed else {}
        self._last_steps = {key: int(summary[key]) for key in summary.keys() if key.startswith(_REPORTED)}  # noqa: SIM118

    def write(self, report: Metrics | Samples) -> None:
        match report:
            case Metrics(step, split, values):
                self._log(step, {f"{split}/{name}": value for name, value in values.items()}, values)
            case Samples(step, split, samples):
                names = list(dict.fromkeys(name for sample in samples for name in sample))
                rows = [[sample.get(name, "") for name in names] for sample in samples]
                self._log(step, {f"{split}/samples": self._library.Table(columns=names, data=rows)}, names)

    def write_page(self, path: Path) -> None:
        artifact = self._library.Artifact(f"maps-{self._run.id}", type="maps")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def _log(self, step: int, report: Mapping[str, Any], names: Iterable[str]) -> None:
        """Send a report, unless W&B has one of its kind (the same keys and names) for this step or a later one."""
        kind = _REPORTED + sha256("\n".join((*report, *names)).encode()).hexdigest()[:12]
        if step > self._last_steps.get(kind, -1):
            self._run.log({_STEP: step, kind: step, **report})

    def close(self, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


class MlflowTracker:
    """The tracker of one run in MLflow.

    Its experiment is MLFLOW_EXPERIMENT_NAME (default "headwise"); a sweep is the tag `group`. A resumed run is found by
    its tag, and of each metric only steps after the last known one are sent. Errors of the library are raised
    unchanged.
    """

    def __init__(self, run: RunDescription):
        # A user who names a file store has chosen it; the library would ask for a second confirmation.
        if os.environ.get(_URI, "").startswith("file:"):
            os.environ.setdefault(_FILES, "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        self._last_steps: dict[str, int] = {}
        self._resumed = None
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "headwise"))
        if run.resumed:
            runs = self._client.search_runs([experiment], f"tags.`{_ID}` = '{run.id}'", max_results=1)
            self._resumed = runs[0].info.run_id if runs else None
        if self._resumed is not None:
            self._run = self._resumed
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {_ID: run.id, **({} if run.group is None else {_GROUP: run.group})}
        self._run = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        parameters = [
            Param(_UNNAMED.sub("_", key), str(value)[:_VALUE]) for key, value in flatten_config(run.config).items()
        ]
        for start in range(0, len(parameters), _AT_ONCE):
            self._client.log_batch(self._run, params=parameters[start : start + _AT_ONCE])
        self._client.log_dict(self._run, dict(run.config), "config.json")

    def write(self, report: Metrics | Samples) -> None:
        match report:
            case Metrics(step, split, values):
                now = int(time.time() * 1000)
                by_key = {_UNNAMED.sub("_", f"{split}/{name}"): value for name, value in values.items()}
                new = [
                    self._metric(key, value, now, step) for key, value in by_key.items() if step > self._last_step(key)
                ]
                if new:
                    self._client.log_batch(self._run, metrics=new)
            case Samples(step, split, samples):
                lines = [f"{name}: {text}" for sample in samples for name, text in sample.items()]
                self._client.log_text(self._run, "\n".join(lines), f"samples/{split}/{step:09d}.txt")

    def write_page(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if complete else "KILLED")

    def _experiment(self, name: str) -> str:
        """Return the id of an experiment by its name; another process may create it at the same time."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return self._client.create_experiment(name)
            except Exception:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return experiment.experiment_id

    def _last_step(self, key: str) -> int:
        """Return the last step of a metric that MLflow has of a resumed run; -1 if it has none."""
        if self._resumed is None:
            return -1
        if key not in self._last_steps:
            steps = [metric.step for metric in self._client.get_metric_history(self._run, key)]
            self._last_steps[key] = max(steps, default=-1)
        return self._last_steps[key]


class TrackioTracker:
    """The tracker of one run in Trackio.

    Its project is TRACKIO_PROJECT (default "headwise"). Trackio identifies runs by name, so the run's id is part of it.
    It does not tell what it has of a run: one that was killed sends what it reported behind its last checkpoint again.
    Errors of the library are raised unchanged.
    """

    def __init__(self, run: RunDescription):
        import trackio

        self._library: Any = trackio
        self._run = trackio.init(
            os.environ.get("TRACKIO_PROJECT", "headwise"),
            name=f"{run.name}-{run.id}",
            group=run.group,
            config=dict(run.config),
            resume="allow",
            embed=False,
        )

    def write(self, report: Metrics | Samples) -> None:
        match report:
            case Metrics(step, split, values):
                self._run.log({f"{split}/{name}": value for name, value in values.items()}, step=step)
            case Samples(step, split, samples):
                lines = [f"- {name}: {text}" for sample in samples for name, text in sample.items()]
                self._run.log({f"{split}/samples": self._library.Markdown("\n".join(lines))}, step=step)

    def write_page(self, path: Path) -> None:
        self._run.log_artifact(str(path), name=f"maps-{self._run.id}", type="maps")

    def close(self, complete: bool) -> None:
        self._run.finish()


class TrackerLibrary(NamedTuple):
    """The library of a tracker.

    Attributes:
        module: The module to import.
        package: The package to install.
        open: A function that opens the tracker of a run.
    """

    module: str
    package: str
    open: Callable[[RunDescription], Tracker]


TRACKERS: Mapping[str, TrackerLibrary] = {
    "wandb": TrackerLibrary("wandb", "wandb", WandbTracker),
    "mlflow": TrackerLibrary("mlflow", "mlflow-skinny", MlflowTracker),
    "trackio": TrackerLibrary("trackio", "trackio", TrackioTracker),
}


def parse_trackers(flag: str | None) -> tuple[str, ...]:
    """Parse the value of --trackers=A,B.

    Raises:
        UserError: If a name is unknown, or its library is not installed.
    """
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in (flag or "").split(",")))))
    for name in names:
        library = lookup_by_name(name, TRACKERS, "--trackers")
        if find_spec(library.module) is None:
            raise UserError(f"--trackers={name} needs a library: pip install {library.package}")
    return names


@contextlib.contextmanager
def open_trackers(
    names: Sequence[str],
    workdir: Path,
    say: Callable[[str], None],
    *,
    group: str | None = None,
) -> Iterator[tuple[Writer, ...]]:
    """Open the trackers of a run as a writer.

    At the end of the context the trackers have `GRACE_SECONDS` for pending reports, or `GRACE_SECONDS_WHEN_STOPPED` if
    the run is stopped.

    Args:
        names: The names of the trackers.
        workdir: The run directory.
        say: A function that prints a line; it gets one for each tracker that did not take all reports.
        group: The sweep that the run is a trial of.

    Yields:
        A tuple of the writer; empty without trackers.
    """
    if not names:
        yield ()
        return
    writer, seconds = TrackersWriter(names, workdir, group), GRACE_SECONDS
    try:
        yield (writer,)
    except (RunStopped, KeyboardInterrupt):
        seconds = GRACE_SECONDS_WHEN_STOPPED
        raise
    finally:
        for line in writer.wait(seconds):
            say(line)


class TrackersWriter(Writer):
    """A writer that sends metrics and samples to trackers, each in a thread of its own.

    Trackers are opened at the first report, when this process has the run directory. No call waits for a tracker or
    raises its errors.

    Args:
        names: The names of the trackers.
        workdir: The run directory.
        group: The sweep that the run is a trial of.
    """

    def __init__(self, names: Sequence[str], workdir: Path, group: str | None = None):
        self._names, self._workdir, self._group = names, workdir, group
        self._threads: list[ReportThread] = []
        self._complete = self._closed = False
        self._page = _Page(workdir)

    def write(self, report: Report) -> None:
        match report:
            case Metrics(step, split, values):
                self._enqueue(Metrics(step, split, {name: float(value) for name, value in values.items()}))
            case Samples(step, split, samples):
                self._enqueue(Samples(step, split, [dict(sample) for sample in samples]))
            case Progress(step, total):
                self._complete = step == total

    def close(self) -> None:
        """Tell the trackers to end, and return; `wait` waits for them."""
        if self._closed:
            return
        complete, self._closed = self._complete, True
        for thread in self._threads:
            thread.enqueue(self._page.give)
            thread.end(lambda tracker: tracker.close(complete))

    def wait(self, seconds: float) -> list[str]:
        """Wait for pending reports.

        Args:
            seconds: The largest number of seconds to wait.

        Returns:
            A line for each tracker that did not take all reports.
        """
        self.close()
        lines = ReportThread.join(self._threads, seconds)
        self._page.remove()
        return lines

    def _enqueue(self, report: Metrics | Samples) -> None:
        if not self._threads:
            run = self._describe_run()
            self._threads = [ReportThread(name, functools.partial(TRACKERS[name].open, run)) for name in self._names]
        for thread in self._threads:
            thread.enqueue(lambda tracker: tracker.write(report))

    def _describe_run(self) -> RunDescription:
        """Return the description of the run, with the id that it got when it was first tracked."""
        directory, new_id = RunDirectory(parse_path(self._workdir)), uuid.uuid4().hex[:12]
        known_id, config = None, {}
        # Where its own records cannot be read or written, the run says so itself.
        with contextlib.suppress(OSError, UserError, IndexError):
            config, known_id = directory.config(), directory.facts().get(_TRACKED_AS)
            if known_id is None:
                directory.record(**{_TRACKED_AS: new_id})
        return RunDescription(known_id or new_id, directory.path.name, self._group, config, known_id is not None)


class ReportThread:
    """A thread that opens a tracker and sends it the queued reports in order.

    A report that raises an error is counted and the next is tried; one that hangs blocks only its own thread.

    Args:
        name: The name of the tracker.
        open_it: A function that opens it.
    """

    def __init__(self, name: str, open_it: Callable[[], Any]):
        self._name, self._open = name, open_it
        self._queue: queue.Queue[tuple[Callable[[Any], None], bool]] = queue.Queue(QUEUE_SIZE)
        self._num_queued = self._num_sent = 0
        self._error = ""
        # Not waited for when the process ends.
        self._thread = threading.Thread(target=self._run, name=f"{_PREFIX}{name}", daemon=True)
        self._thread.start()

    def enqueue(self, report: Callable[[Any], None]) -> None:
        """Queue a report if there is room, and return at once."""
        self._try_enqueue(report, last=False)

    def end(self, close: Callable[[Any], None]) -> None:
        """Let the thread end after the queued reports.

        Args:
            close: The last report, which closes the tracker.
        """
        if not self._try_enqueue(close, last=True):
            # If the queue is full, drop one report to make room: the thread must end if it ever continues.
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()
            self._queue.put_nowait((close, True))

    @staticmethod
    def join(threads: Sequence["ReportThread"], seconds: float) -> list[str]:
        """Wait for the ends of several threads.

        Args:
            threads: The threads.
            seconds: The largest number of seconds to wait for all together.

        Returns:
            A line for each thread that did not send all of its reports.
        """
        until = time.monotonic() + seconds
        for thread in threads:
            thread._thread.join(max(until - time.monotonic(), 0))
        return [thread._describe_unsent(seconds) for thread in threads if thread._num_queued != thread._num_sent]

    def _describe_unsent(self, seconds: float) -> str:
        hangs = f"no answer within {seconds:.0f} s" if self._thread.is_alive() else ""
        why = "; ".join(filter(None, (hangs, self._error))) or "more reports than it took"
        return f"{self._name} did not take {self._num_queued - self._num_sent} of {self._num_queued} reports ({why})"

    def _try_enqueue(self, report: Callable[[Any], None], *, last: bool) -> bool:
        self._num_queued += 1
        try:
            self._queue.put_nowait((report, last))
        except queue.Full:
            return False
        return True

    def _run(self) -> None:
        opened = self._try_call(self._open)
        last = not opened
        while not last:
            report, last = self._queue.get()
            if self._try_call(functools.partial(report, opened[0])):
                self._num_sent += 1

    def _try_call(self, act: Callable[[], Any]) -> list[Any]:
        """Call a function; return its result in a list, or an empty list if it raises anything."""
        try:
            return [act()]
        except BaseException as error:
            self._error = self._error or " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return []


def any_tracker_hangs() -> bool:
    """Whether a tracker's thread is still working: a process that ends normally may then wait for its library."""
    return any(thread.name.startswith(_PREFIX) and thread.is_alive() for thread in threading.enumerate())


class _Page:
    """The page of the run's maps in a temporary file, made once by the first thread that needs it."""

    def __init__(self, workdir: Path):
        self._workdir, self._lock = workdir, threading.Lock()
        self._folder: TemporaryDirectory[str] | None = None
        self._path: Path | None = None

    def give(self, tracker: Tracker) -> None:
        """Send the page to a tracker, if the run has maps."""
        from transformer.maps.report.page import render  # a run without trackers needs none of it

        with self._lock:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="headwise-", ignore_cleanup_errors=True)
                with contextlib.suppress(UserError):
                    text = render(parse_path(self._workdir))
                    self._path = Path(self._folder.name) / _PAGE
                    self._path.write_text(text, encoding="utf-8")
        if self._path is not None:
            tracker.write_page(self._path)

    def remove(self) -> None:
        """Remove the file."""
        if self._folder is not None:
            self._folder.cleanup()
