"""A run directory (`--workdir`): its files, its lock, and the recorded environment of every start."""

import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import logging
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from transformer.config import ABSENT, NonNegativeInt, Range, UserError, config_differences, config_text, is_key_within
from transformer.runs.exceptions import RunStopped
from transformer.runs.jsonl_reading import FileExtent, RecordsName, StepNumber
from transformer.runs.preemption import write_stderr
from transformer.runs.processor import describe_processor
from transformer.runs.trust import remember_config
from transformer.storage.disk_errors import refuse_unusable_storage
from transformer.storage.json_reading import parse_dataclass, read_json, read_regular_file
from transformer.storage.paths import parse_path, storage_of
from transformer.storage.storage import AppendOnlyFile, DirectoryLost
from transformer.system.command_invocation import shell_command

_CONFIG = "config.json"
_FILE_SUFFIXES = (".json", ".jsonl", ".txt", ".html", ".csv")  # of names that are no folder's
_LOCK, _ATTEMPTS, _OUTCOME = "lock", "attempts.jsonl", "outcome.json"
_TRIAL_FILES = (_ATTEMPTS, _OUTCOME)  # of a trial, which has them also before and without a run
_ERROR_LENGTH = 2000  # characters of an error that are recorded
_UNFINISHED = re.compile(r".+\.\d+\.new")
_PACKAGES = ("headwise", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """The devices of a start."""

    platform: str
    kind: str
    count: NonNegativeInt


@dataclasses.dataclass(frozen=True)
class ReportedCheckpoint:
    """A checkpoint whose step was logged only after it was saved, and the extents of the records then."""

    step: StepNumber
    records: Mapping[RecordsName, FileExtent]


@dataclasses.dataclass(frozen=True)
class BranchOrigin:
    """Where a run was branched off another one.

    Attributes:
        run: The directory of the other run.
        step: The step of it from which the branch continues.
        overrides: The config keys of the branch that differ from those of the run, with their values.
        left_out_batches: The first batch that the branch leaves out and the one after the last, counted from 0 in the
            order of the data; empty if it leaves none out.
    """

    run: str
    step: StepNumber
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    left_out_batches: tuple[NonNegativeInt, ...] = ()

    def __post_init__(self) -> None:
        if len(self.left_out_batches) not in (0, 2):
            raise ValueError("left_out_batches: it must be empty, or the first batch and the one after the last")

    def __str__(self) -> str:
        """Return where it was branched off, and what differs, in one line."""
        changes = [f"config.{key}={value}" for key, value in self.overrides.items()]
        if self.left_out_batches:
            first, end = self.left_out_batches
            changes.append(f"without batches {first} to {end - 1}")
        return f"{self.run} at step {self.step}" + (f": {', '.join(changes)}" if changes else "")


@dataclasses.dataclass(frozen=True)
class RunStart:
    """A start of the run in environment.json: its environment, and facts recorded later.

    Attributes:
        started: The time of the start.
        command: The command.
        host: The name of the machine.
        platform: The operating system.
        processor: The processor, with its family and model.
        cpus: The number of CPU cores that the process may use.
        devices: The devices.
        python: The version of Python.
        packages: The versions of packages.
        commit: The commit of the code.
        parameters: The number of parameters.
        initialized_from: The report of the initialization from another run.
        converted: The source of a converted run.
        branched_from: The run that it was branched off, and what differs.
        tracked_as: The id under which experiment trackers know the run.
        diverged_at: The step at which a vmapped run diverged.
        error: The error that ended this start, as "TYPE: MESSAGE" in one line.
        reported: The checkpoint whose step was logged only after it was saved.
    """

    started: str | None = None
    command: str | None = None
    host: str | None = None
    platform: str | None = None
    processor: str | None = None
    cpus: NonNegativeInt | None = None
    devices: DeviceInfo | None = None
    python: str | None = None
    packages: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    commit: str | None = None
    parameters: Annotated[int, Range(0, 2**63)] | None = None
    initialized_from: Mapping[str, Any] | None = None
    converted: Mapping[str, Any] | None = None
    branched_from: BranchOrigin | None = None
    tracked_as: str | None = None
    diverged_at: StepNumber | None = None
    error: str | None = None
    reported: ReportedCheckpoint | None = None


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The files of one run. `open` a run to read it, `claim` it to train in it.

    Attributes:
        path: The path of the directory.
        is_locked: Whether `lock` holds it, for one `claim` to begin a run under that lock.
        is_new: Whether it was claimed without an earlier run in it.
    """

    path: Path
    is_locked: bool = False
    is_new: bool = False  # claimed without an earlier run

    @property
    def config_file(self) -> Path:
        """The resolved config of the latest start."""
        return self.path / _CONFIG

    @property
    def environment_file(self) -> Path:
        """Versions, devices, commit and command of every start."""
        return self.path / "environment.json"

    @property
    def rollback_file(self) -> Path:
        """The last requested rollback, and the batches that the run skips since."""
        return self.path / "rollback.json"

    @property
    def metrics_file(self) -> Path:
        """The metrics of the run, a JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def heads_file(self) -> Path:
        """Statistics of every head over training, a JSON object per line."""
        return self.path / "heads.jsonl"

    @property
    def samples_file(self) -> Path:
        """The model's outputs for sample inputs, a JSON object per line."""
        return self.path / "samples.jsonl"

    @property
    def tensorboard_dir(self) -> Path:
        """The directory of TensorBoard's events."""
        return self.path / "tensorboard"

    @property
    def checkpoints_dir(self) -> Path:
        """The directory of the training states."""
        return self.path / "checkpoints"

    @property
    def maps_dir(self) -> Path:
        """The zarr store of attention maps."""
        return self.path / "maps"

    @property
    def report_file(self) -> Path:
        """The offline page."""
        return self.path / "report.html"

    @property
    def head_ablation_file(self) -> Path:
        """What each head is worth, as `launch.ablate_heads` measured it."""
        return self.path / "head_ablation.json"

    @property
    def attempts_file(self) -> Path:
        """Of a trial of a sweep: when workers started it and stopped in good order, a JSON object per line."""
        return self.path / _ATTEMPTS

    @property
    def outcome_file(self) -> Path:
        """Of a trial of a sweep: how it ended."""
        return self.path / _OUTCOME

    @property
    def log_file(self) -> Path:
        """The run's log, and warnings of libraries."""
        return self.path / "log.txt"

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Open an existing run for reading; it takes no lock and changes nothing.

        Raises:
            UserError: If the path does not exist, is not a run, or cannot be read.
        """
        directory = cls(parse_path(path))
        with refuse_unusable_storage(directory.path):
            storage_of(directory.path).reach(directory.path)
            check_regular_files(directory.path)
        why = _describe_missing_run(directory.path)
        if why is not None and (directory.config_file.exists() or not directory.is_run()):
            raise UserError(f"--workdir={path} {why}")
        return directory

    @classmethod
    def at(cls, path: "str | Path | RunDirectory") -> "RunDirectory":
        """Return the directory at a path, whatever it holds; a directory is returned as it is."""
        return path if isinstance(path, RunDirectory) else cls(parse_path(path))

    @classmethod
    @contextlib.contextmanager
    def lock(cls, path: Path) -> Iterator["RunDirectory"]:
        """Hold a directory for this process alone while the context lasts, before a run begins or goes on in it.

        A process that dies, in any way, releases its directory.

        Raises:
            UserError: If it is a file, or another process holds it (`DirectoryInUse`). In a bucket `DirectoryLost` is
                also raised inside the context, if another process has taken the directory over.
        """
        directory = cls(path, is_locked=True)
        directory._refuse_file()
        with storage_of(path).claim(path, _LOCK):
            yield directory

    @classmethod
    @contextlib.contextmanager
    def claim(
        cls, path: "str | Path | RunDirectory", config: Mapping[str, Any], *, may_change: Collection[str] = ()
    ) -> Iterator["RunDirectory"]:
        """Create or resume a run directory, for this process alone while the context lasts.

        The config of a new run is recorded at once; a resumed run keeps the recorded one until `write_config`, as it
        may still be refused.

        Args:
            path: The path of the directory, or the directory that this process has locked (`lock`).
            config: The resolved config, ready for JSON.
            may_change: Dotted keys, each with all keys under it, in which the config of a resumed run may differ from
                the recorded one.

        Raises:
            UserError: If another process holds the directory, it holds something other than a run, the config differs
                in another key, or it cannot be written; the directory is unchanged. In a bucket it is also raised
                inside the context, if another process has taken the directory over.
        """
        directory = cls.at(path)
        plain = json.loads(json.dumps(config, allow_nan=False))
        with contextlib.ExitStack() as stack:
            with refuse_unusable_storage(directory.path):
                storage_of(directory.path).reach(directory.path)
                check_regular_files(directory.path)
                # Before the lock, so that a refused directory gets no lock file.
                directory.check_claim(plain, may_change)
                if not directory.is_locked:
                    stack.enter_context(cls.lock(directory.path))
                    directory.check_claim(plain, may_change)  # another process may have started in between
                directory._remove_unfinished()
                is_new = not directory.is_run()
                starts = directory._read_starts()
                if not directory.config_file.exists():
                    directory.write_config(plain)
                remember_config(plain)
                write_json(directory.environment_file, [*starts, describe_environment()])
            # Not as locked: the lock serves this claim alone.
            yield dataclasses.replace(directory, is_locked=False, is_new=is_new)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Record the resolved config, ready for JSON, with which the run is trained."""
        write_json(self.config_file, config)

    def record(self, **facts: Any) -> None:
        """Add facts about this start, fields of `RunStart`, to environment.json.

        Raises:
            UserError: If a fact is not such a field.
        """
        starts = self._read_starts()
        start = {**starts[-1], **facts}
        parse_dataclass(RunStart, start, f"a fact for {self.environment_file}")  # what is written must be readable
        write_json(self.environment_file, [*starts[:-1], start])

    @contextlib.contextmanager
    def record_error(self) -> Iterator[None]:
        """Record an error that ends the context as the `error` of this start, and raise it again.

        That a run is stopped is no error.
        """
        try:
            yield
        except RunStopped:
            raise
        except Exception as error:
            # What ended the run may keep its directory from being written, too.
            with contextlib.suppress(OSError, ValueError):
                self.record(error=" ".join(f"{type(error).__name__}: {error}".split())[:_ERROR_LENGTH])
            raise

    def abandon(self) -> None:
        """Empty a new run's directory, so that a corrected config can start in it.

        Raises:
            ValueError: If the directory held a run before, or the run has trained; neither is ever deleted.
        """
        if not self.is_new or self.checkpoints_dir.exists():
            raise ValueError(f"{self.path} holds a run: it cannot be abandoned")
        for entry in self.path.iterdir():
            if entry.is_dir():
                storage_of(entry).remove_tree(entry)
            elif entry.name not in (_LOCK, *_TRIAL_FILES):
                entry.unlink()

    def starts(self) -> list[RunStart]:
        """Return all starts, the first one first.

        Raises:
            UserError: If environment.json is malformed.
        """
        return [parse_dataclass(RunStart, start, str(self.environment_file)) for start in self._read_starts()]

    def facts(self) -> dict[str, Any]:
        """Return the latest value of each fact in environment.json."""
        return {name: value for start in self._read_starts() for name, value in start.items()}

    def branch_origin(self) -> BranchOrigin | None:
        """Return where the run was branched off another one; None if it was not."""
        return next((start.branched_from for start in self.starts() if start.branched_from is not None), None)

    def is_in_use(self) -> bool:
        """Whether a process holds it; in a bucket it may have died within the last minute."""
        return storage_of(self.path).is_claimed(self.path, _LOCK)

    def is_run(self) -> bool:
        """Whether it holds a run: its config.json, or a checkpoint with its config."""
        return self.config_file.exists() or self._read_saved_config() is not None

    def config(self) -> dict[str, Any]:
        """Return the recorded config; if config.json is missing, that of the newest checkpoint with a valid manifest.

        Raises:
            UserError: If the file is not a JSON object.
        """
        saved = None if self.config_file.exists() else self._read_saved_config()
        if saved is None:
            return _read_json(self.config_file, dict)
        step, config = saved
        _print_once(f"{self.config_file} is missing: what it held is read from the checkpoint of step {step}")
        return config

    def saved_steps(self) -> list[int]:
        """Return the steps of the folders of checkpoints, in ascending order; they may be damaged."""
        entries = self.checkpoints_dir.iterdir() if self.checkpoints_dir.is_dir() else ()
        return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())

    def _read_saved_config(self) -> tuple[int, dict[str, Any]] | None:
        """Return the step and the config of the newest checkpoint with a valid manifest."""
        steps = self.saved_steps()
        if not steps:
            return None
        from transformer.runs.checkpoint_files import manifest_file, parse_manifest  # imports jax

        for step in reversed(steps):
            # If one is damaged, try the next.
            with contextlib.suppress(OSError, ValueError):
                manifest = parse_manifest(read_regular_file(manifest_file(self.checkpoints_dir / str(step))))
                if isinstance(saved := manifest.metadata.get("config"), dict):
                    return step, saved
        return None

    @contextlib.contextmanager
    def log_to_file(self) -> Iterator[None]:
        """Append log messages to log.txt while the context lasts.

        They are INFO and above from `transformer`, WARNING and above from other libraries, without those of another run
        of this process. Messages about attention that are logged at every trace appear once. Handlers that print
        messages, such as absl's, which comes with orbax, get no more of them than without this file.
        """
        lines = _LogFileStream(self.log_file)
        handler = _LogFileHandler(lines)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handler.addFilter(lambda record: getattr(record, "run", self.path) == self.path)
        handler.addFilter(_OncePerMessageFilter("transformer.attention"))
        root_logger, library_logger = logging.getLogger(), logging.getLogger("transformer")
        level, own_filter = library_logger.level, _LibraryLevelFilter(library_logger.getEffectiveLevel())
        printing_handlers = [sink for sink in root_logger.handlers if not isinstance(sink, _LogFileHandler)]
        for sink in printing_handlers:
            sink.addFilter(own_filter)
        library_logger.setLevel(logging.INFO)
        root_logger.addHandler(handler)
        try:
            yield
        finally:
            root_logger.removeHandler(handler)
            for sink in printing_handlers:
                sink.removeFilter(own_filter)
            library_logger.setLevel(level)
            handler.close()
            lines.close()

    def _remove_unfinished(self) -> None:
        """Remove the remains of files that were being replaced when a process was killed, on a disk."""
        if not isinstance(self.path, Path):
            return
        for folder in (self.path, *self.path.glob("maps/"), *self.path.glob("maps/*/")):
            for entry in folder.iterdir():
                if _UNFINISHED.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)

    def check_claim(self, config: Mapping[str, Any], may_change: Collection[str]) -> None:
        """Refuse what `claim` refuses of the directory and the config, without changing anything.

        Raises:
            UserError: If the directory holds something other than a run, or a run whose config differs.
        """
        self._refuse_file()
        if self.is_run():
            self._check_config(config, may_change)
        elif self.path.is_dir():
            names = {entry.name for entry in self.path.iterdir()} - {_LOCK, *_TRIAL_FILES}
            # What a process leaves that was killed while it wrote the config of a run, or a file of a trial.
            unfinished = {name for name in names if name.startswith((_CONFIG, *_TRIAL_FILES)) and name.endswith(".new")}
            unexpected = names - unfinished
            if unexpected:
                raise UserError(
                    f"--workdir={self.path} holds {min(unexpected)!r} but no config.json, so it is no run; "
                    "name an empty or a new directory"
                )

    def _refuse_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--workdir={self.path} is a file; name a directory")

    def _check_config(self, config: Mapping[str, Any], may_change: Collection[str]) -> None:
        for key, (now, before) in config_differences(config, self.config()).items():
            if is_key_within(key, may_change):
                continue
            if ABSENT in (now, before):
                difference = (
                    f"without config.{key}, which is {config_text(now)} here"
                    if before is ABSENT
                    else f"with config.{key}={config_text(before)}, which this config does not have"
                )
                raise UserError(
                    f"--workdir={self.path} holds a run {difference}: resume it without --config, by its own {_CONFIG} "
                    "and with the version that wrote that, or choose another --workdir"
                )
            elsewhere = "choose another --workdir"
            if key == "steps":  # which may change where no learning rate depends on them
                elsewhere = (
                    "its learning rate is scheduled over these steps: train on in another --workdir with "
                    f"--config.initialize_from.run={self.path}"
                )
            raise UserError(
                f"--workdir={self.path} holds a run with config.{key}={config_text(before)}, not {config_text(now)}; "
                f"{elsewhere}, or go back to config.{key}={config_text(before)} to resume it"
            )

    def _read_starts(self) -> list[Any]:
        starts = _read_json(self.environment_file, list) if self.environment_file.exists() else []
        for number, start in enumerate(starts):
            try:
                parse_dataclass(RunStart, start, f"start {number}")
            except UserError as error:
                raise UserError(
                    f"{self.environment_file} is not what a run writes ({error}); repair it or choose another --workdir"
                ) from error
        return starts


class _LogFileHandler(logging.StreamHandler):
    """The handler of a run's log.txt."""


class _LibraryLevelFilter(logging.Filter):
    """A filter that lets messages of `transformer` through from a level on, and all of other libraries."""

    def __init__(self, level: int):
        super().__init__("transformer")
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= self._level or not super().filter(record)


class _OncePerMessageFilter(logging.Filter):
    """A filter that lets each message of a logger, and of those below it, through once."""

    def __init__(self, logger: str):
        super().__init__(logger)
        self._messages: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):  # of another logger
            return True
        message = record.getMessage()
        if message in self._messages:
            return False
        self._messages.add(message)
        return True


class _LogFileStream:
    """The stream of a log handler, which appends to a file; if that fails it reports it once, and the run continues."""

    def __init__(self, path: Path):
        self._path, self._is_reported = path, False
        self._file: AppendOnlyFile | None = None
        with self._report_first_error():
            self._file = storage_of(path).append_to(path)

    def write(self, text: str) -> None:
        # The training process reports once that its directory is lost.
        with contextlib.suppress(DirectoryLost), self._report_first_error():
            if self._file is not None:
                self._file.append(text.encode())

    def flush(self) -> None:
        """Do nothing: a log handler calls it at every line, and the file flushes itself."""

    def close(self) -> None:
        with self._report_first_error():
            if self._file is not None:
                self._file.close()

    @contextlib.contextmanager
    def _report_first_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._is_reported:
                self._is_reported = True
                write_stderr(f"{self._path} lacks lines: {error.strerror or error}; training continues")


@functools.cache
def _print_once(line: str) -> None:
    write_stderr(line)


def _describe_missing_run(path: Path) -> str | None:
    """Describe what a folder is that is not a run, and what to do; None if it is a run."""
    if (path / _CONFIG).is_file():
        recorded = _read_json(path / _CONFIG, dict)
        if "model_type" in recorded and "task" not in recorded:
            words = [*shell_command("convert"), f"--from_pretrained={path}", f"--workdir={path}-run"]
            return f"is a folder of published weights, no run; make a run of it with {shlex.join(words)}"
        return None
    train = shlex.join(shell_command("train"))
    if not path.is_dir():
        return f"is missing; make a run with {train} --config=FILE --workdir=DIR"
    if (path / "sweep.json").is_file():
        what, runs = "is a sweep or an ablation, no run; there are runs in", _list_runs(path / "trials")
    else:
        what, runs = "is not a run directory: it has no config.json; there are runs in", _list_runs(path)
    if runs:
        return f"{what} it: say one of them, such as {shlex.join([f'--workdir={runs[0]}'])}"
    return (
        f"is not a run directory: it has no config.json; make a run with {train} --config=FILE --workdir=DIR, or name "
        "the folder of one"
    )


def _list_runs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if RunDirectory(path).is_run()) if folder.is_dir() else []


def check_regular_files(path: Path) -> None:
    """Check that a directory of a run or a sweep holds only regular files and directories, each where it should be.

    What is written to a link lands elsewhere, and reading a pipe may never end. The directory itself may be a link, as
    the user has named it. A bucket has no links.

    Raises:
        UserError: If it holds something else; the message names the first.
    """
    if not isinstance(path, Path) or not path.is_dir():
        return
    folders = [os.fspath(path)]
    while folders:
        # Entries that vanish meanwhile were removed by another process.
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise UserError(
                        f"{entry.path} is a link, and what is written to --workdir={path} would land where it points: "
                        "put what it stands for in its place, or remove it"
                    )
                if entry.is_dir():
                    if entry.name.endswith(_FILE_SUFFIXES):
                        raise UserError(f"{entry.path} is a folder, and a file is to stand there: move it away")
                    folders.append(entry.path)
                elif not entry.is_file() and os.path.lexists(entry.path):
                    raise UserError(
                        f"{entry.path} is no regular file (a pipe, a socket or a device), and reading it might never "
                        "end: remove it"
                    )
    run = RunDirectory(path)
    for folder in (run.checkpoints_dir, run.maps_dir, run.tensorboard_dir):
        if folder.is_file():
            raise UserError(f"{folder} is a file, and a folder is to stand there: move it away")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON so that a kill at any moment leaves either the old or the new content, complete."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    storage_of(path).replace(path, f"{text}\n".encode())


def parse_time(text: str | None) -> datetime.datetime | None:
    """Return the time of an ISO 8601 text with a time zone, in UTC; None if it is no such text."""
    try:
        time = datetime.datetime.fromisoformat(text or "")
        return None if time.tzinfo is None else time.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


def describe_environment() -> dict[str, Any]:
    """Return the environment of this process: versions, devices, command and commit; unknown values are None."""
    import jax  # processes that only read runs do not need jax

    devices = jax.devices()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join([sys.executable, *sys.orig_argv[1:]]),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": describe_processor(),
        "cpus": _num_cores(),
        "devices": {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)},
        "python": platform.python_version(),
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "commit": current_commit(),
    }


def _num_cores() -> int | None:
    """Return the number of cores that this process may use; it divides matrix products, which changes the last bits."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def current_commit() -> str | None:
    """Return the commit of the checkout that this code runs from, with "+changes" if files differ.

    Returns:
        The commit; without a checkout that of HEADWISE_COMMIT, which the Dockerfile sets, or None.
    """
    built = os.environ.get("HEADWISE_COMMIT") or None
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # An installed package may lie inside another project's checkout.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return built
        head = git("rev-parse", "HEAD")
        return head + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return built


def _read_json(path: Path, kind: type) -> Any:
    try:
        value = read_json(path)
    except UserError as error:
        raise UserError(f"{path} is not what a run writes ({error}); repair it or choose another --workdir") from error
    if not isinstance(value, kind):
        raise UserError(f"{path} is not what a run writes; repair it or choose another --workdir")
    return value
