"""The workers of one machine: start each with its share of it, watch and replace them, and stop them together."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launch.compilation_cache import enable_user_cache
from launch.platform import TPUS, has_device
from transformer.config import UserError
from transformer.runs.exceptions import RunFailed

if TYPE_CHECKING:
    from transformer.studies.sweeps.search_algorithm import SearchAlgorithm
    from transformer.studies.sweeps.sweep_progress import TrialStatus
    from transformer.studies.sweeps.trial_store import TrialStore

# Deaths of one worker in a row, without a trial finished in between, after which it is not replaced. A trial that kills
# its workers is recorded as failed by the first after `worker.MAX_ATTEMPTS` of them: more than that.
MAX_DEATHS = 7
UNFIT_EXIT_CODE = (
    3  # the exit code of a worker in which one trial after another or the disk failed: a new one would fail as well
)
_PARENT = "HEADWISE_PARENT"  # the process that started a worker: the worker ends with it
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"  # whether JAX reserves most of a GPU's memory at its start
_POLL_SECONDS = 1.0  # seconds between two checks
_REPORT_SECONDS = 10.0  # seconds between two times that others than the terminal are shown the trials
_GRACE_SECONDS = 30.0  # seconds that workers have to shut down


class WorkerResources(NamedTuple):
    """A worker's share of the machine.

    Attributes:
        cores: The CPU cores that it may use; None for all.
        environment: Further environment variables.
    """

    cores: tuple[int, ...] | None
    environment: Mapping[str, str]


def divide_machine(
    workers: int, cores: Sequence[int], environment: Mapping[str, str] = os.environ, files: Path = Path("/")
) -> list[WorkerResources]:
    """Divide the machine among workers: its NVIDIA GPUs in turn, or on CPUs the cores.

    A single worker has the whole machine. Workers that share a GPU take its memory as they need it, instead of most of
    it at once. If there are more workers than cores, all share all cores.

    Args:
        workers: The number of workers.
        cores: The CPU cores.
        environment: The environment variables.
        files: The root of the file system.

    Returns:
        The share of each worker.

    Raises:
        UserError: If there are no workers, or several on a TPU, which only one process can use.
    """
    if workers < 1:
        raise UserError(f"--num_workers={workers} must be at least 1")
    if workers == 1:
        return [WorkerResources(None, {})]
    if environment.get("JAX_PLATFORMS", "").split(",")[0] != "cpu":
        if has_device(TPUS, files):
            raise UserError(f"--num_workers={workers}: only one process can use a TPU: pass --num_workers=1")
        if cards := _visible_gpus(environment, files):
            shared = {} if workers <= len(cards) else {_PREALLOCATE: environment.get(_PREALLOCATE, "false")}
            return [
                WorkerResources(None, {"CUDA_VISIBLE_DEVICES": card, **shared})
                for card in itertools.islice(itertools.cycle(cards), workers)
            ]
    if workers > len(cores):
        return [WorkerResources(None, {})] * workers
    bounds = [len(cores) * number // workers for number in range(workers + 1)]
    return [WorkerResources(tuple(cores[low:high]), {}) for low, high in itertools.pairwise(bounds)]


def run_workers(
    command: Sequence[str],
    trial_store: "TrialStore",
    *,
    workers: int,
    total: int,
    metric: str,
    maximize: bool = False,
    on_progress: Callable[[Sequence["TrialStatus"], bool], None] = lambda rows, over: None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Start workers and display the progress of the sweep until all have ended.

    The output of worker N goes to WORKDIR/workers/N.log. A worker that dies is replaced, unless it ends with
    UNFIT_EXIT_CODE or dies again and again. All workers end with this call.

    Args:
        command: The command, which is called with --worker.
        trial_store: The trials of the sweep.
        workers: The number of workers.
        total: The number of trials.
        metric: The sweep's metric, as "split/name".
        maximize: Whether the metric is maximized.
        on_progress: Called with the trials every few seconds, and with True at the end, whatever ended it.
        environment: The environment variables of the workers, to which those of their share are added.

    Raises:
        UserError: If a worker ended with a user error.
        RunFailed: If every worker was given up.
    """
    from transformer.runs.jsonl_reading import parse_metric_name
    from transformer.storage.paths import storage_of
    from transformer.studies.sweeps.sweep_progress import open_progress_display, read_trial_statuses

    places = divide_machine(workers, sorted(os.sched_getaffinity(0)), environment)
    trials = trial_store.trials()[:total]
    num_unfinished = total - sum(trial_store.outcome(trial) is not None for trial in trials)
    metric_name = parse_metric_name(metric)

    def read_statuses() -> list["TrialStatus"]:
        return read_trial_statuses(trial_store, trial_store.trials()[:total], metric_name)

    folder = storage_of(trial_store.path).scratch(trial_store.path) / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    places = places[:num_unfinished]
    worker_environment = {**environment, _PARENT: str(os.getpid())}
    slots = [
        _WorkerSlot(
            [*command, "--worker"],
            place._replace(environment={**worker_environment, **place.environment}),
            folder / f"{number}.log",
        )
        for number, place in enumerate(places)
    ]
    due = 0.0
    watch = open_progress_display(metric_name, maximize, sys.stdout)
    try:
        with contextlib.closing(watch), _stop_at_end(slots):
            while True:
                rows = read_statuses()
                watch.show(rows, total)
                if time.monotonic() >= due:
                    # At the end it must be written; until then a disk that fails once keeps no trial from going on.
                    with contextlib.suppress(OSError):
                        on_progress(rows, False)
                    due = time.monotonic() + _REPORT_SECONDS
                finished = sum(trial_store.outcome(row.trial) is not None for row in rows)
                if not any([slot.attend(finished) for slot in slots]):
                    break
                time.sleep(_POLL_SECONDS)
            watch.show(read_statuses(), total)
    finally:
        # Behind the workers' end, also where Ctrl-C brought it: what was shown as running runs no longer.
        on_progress(read_statuses(), True)
    given_up = [slot for slot in slots if slot.given_up]
    if slots and len(given_up) == len(slots):
        abandoned_slot = given_up[0]
        raise RunFailed(
            f"every worker was given up: one {abandoned_slot.given_up}; its last words: {abandoned_slot.tail()}"
        )


def become_worker() -> None:
    """Make this process a worker of a sweep; call it before anything imports jax.

    It uses the user's own cache of compiled programs: programs in a shared directory might be anybody's. It shuts down
    on SIGTERM, and ends with the process that started it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parent = os.environ.pop(_PARENT, "")
    if parent:
        threading.Thread(target=_exit_with_parent, args=(int(parent),), name="parent", daemon=True).start()
    enable_user_cache()


def run_as_worker(
    trial_store: "TrialStore",
    search_algorithm: "SearchAlgorithm | None",
    *,
    total: int,
    metric: str,
    vmap: int,
    data_dir: str | None,
    trusted_names: Collection[str],
    trackers: Sequence[str] = (),
) -> None:
    """Work on a sweep in this process, after `become_worker`, until all trials are finished by any worker.

    If several trials in a row fail, or a disk does, it reports that in one line and exits with UNFIT_EXIT_CODE.

    Args:
        trial_store: The trials of the sweep.
        search_algorithm: Proposes further trials; None to train only those planned.
        total: The number of trials.
        metric: The sweep's metric, as "split/name".
        vmap: The number of trials of one program to train together.
        data_dir: The folder of the data on this machine.
        trusted_names: Modules and downloadable data sets that trials may name.
        trackers: The experiment trackers that log every trial.

    Raises:
        UserError: If no trial reports the metric.
    """
    from transformer.storage.disk_errors import explain_disk_error, find_disk_error
    from transformer.studies.sweeps.model_trainer import ModelTrainer
    from transformer.studies.sweeps.worker import TooManyFailures, run_worker

    trainer = ModelTrainer(data_dir, trusted_names, trackers)
    try:
        run_worker(
            trial_store,
            search_algorithm,
            total=total,
            metric=metric,
            trainer=trainer,
            vmap=vmap,
        )
    except TooManyFailures as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(UNFIT_EXIT_CODE) from None
    except Exception as error:
        failure = find_disk_error(error)
        if failure is None:
            raise
        print(f"error: {explain_disk_error(failure)}", file=sys.stderr)
        raise SystemExit(UNFIT_EXIT_CODE) from None


class _WorkerSlot:
    """One worker and its replacements."""

    def __init__(self, command: Sequence[str], place: WorkerResources, log: Path):
        self._command, self._place, self._log = command, place, log
        self._deaths = 0
        self._finished = 0  # trials of the sweep, when the worker last died
        self.given_up = ""  # the reason, if it is given up
        self._process = self._start_process()

    def attend(self, finished: int) -> bool:
        """Replace the worker if it has died, and return whether one is running.

        Raises:
            UserError: If the worker ended with a user error.
        """
        code = self._process.poll()
        if code is None:
            return True
        if code == 0 or self.given_up:
            return False
        if code == 2:
            mistakes = [line for line in self._read_log_lines() if line.startswith("error: ")]
            raise UserError(mistakes[-1].removeprefix("error: ") if mistakes else f"a worker stopped: {self.tail()}")
        self._deaths = self._deaths + 1 if finished == self._finished else 1
        self._finished = finished
        if code == UNFIT_EXIT_CODE:
            self.given_up = "found that another would fail as well"
        elif self._deaths >= MAX_DEATHS:
            self.given_up = f"died {MAX_DEATHS} times in a row"
        else:
            self._process = self._start_process()
        return not self.given_up

    def stop(self, number: int) -> None:
        """Send a signal if the worker is alive."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Wait for the worker's end, at most so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(seconds, 0))

    def tail(self) -> str:
        """Return the last line of the worker's log, and the log's path."""
        lines = [line for line in self._read_log_lines() if line.strip()]
        return f"{lines[-1].strip() if lines else 'nothing'} (see {self._log})"

    def _read_log_lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _start_process(self) -> subprocess.Popen[bytes]:
        from transformer.storage.disk import break_hard_links

        # A session of its own: Ctrl-C reaches only the first process, which shuts the workers down.
        options: dict[str, Any] = {
            "env": self._place.environment,
            "stdin": subprocess.DEVNULL,
            "start_new_session": True,
        }
        break_hard_links(self._log)
        with self._log.open("ab") as log, _restrict_to_cores(self._place.cores):
            return subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, **options)


@contextlib.contextmanager
def _restrict_to_cores(cores: tuple[int, ...] | None) -> Iterator[None]:
    """Run processes started inside the context on these cores from the start, when jax counts them."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _stop_at_end(slots: Sequence[_WorkerSlot]) -> Iterator[None]:
    """Stop all workers at the end of the context, which SIGTERM ends as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for slot in slots:
            slot.stop(signal.SIGTERM)
        until = time.monotonic() + _GRACE_SECONDS
        for slot in slots:
            slot.wait(until - time.monotonic())
        for slot in slots:
            slot.stop(signal.SIGKILL)


def _exit_with_parent(parent: int, now: Callable[[], int] = os.getppid) -> None:
    while now() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _visible_gpus(environment: Mapping[str, str], files: Path) -> list[str]:
    """Return the NVIDIA GPUs that jax would see, as CUDA_VISIBLE_DEVICES names them."""
    devices = list(files.glob("dev/nvidia[0-9]*"))
    visible_devices = environment.get("CUDA_VISIBLE_DEVICES")
    if visible_devices is None:
        # CUDA numbers the visible cards from 0: in a container that has only card 5, that is card 0.
        return [str(number) for number in range(len(devices))]
    # CUDA ignores all entries from the first invalid one, such as -1, on.
    return (
        list(itertools.takewhile(lambda card: card != "-1", re.findall(r"[^,\s]+", visible_devices))) if devices else []
    )
