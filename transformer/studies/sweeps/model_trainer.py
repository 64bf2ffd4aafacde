"""Train the trials of a sweep with the loop that trains any run."""

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from transformer.data.datasets.tfds_preparation import restrict_downloads
from transformer.runs.distributed import print_and_log
from transformer.runs.run_directory import RunDirectory
from transformer.runs.trust import check_trusted
from transformer.studies.sweeps.trials import Trial
from transformer.studies.sweeps.worker import ReportMetrics
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.driver import train
from transformer.training.writers.trackers import open_trackers
from transformer.training.writers.writer import Metrics, MultiWriter, Report, Writer


class ModelTrainer:
    """Trains the models of trials.

    Args:
        data_dir: The directory of the data on this machine; by default that of a trial's config. It is not
            part of a trial's identity.
        trusted_names: The modules and downloads that trials may name (`check_trusted`), since the trial store
            may have been written by someone else.
        trackers: The experiment trackers that log every trial, grouped by sweep.
    """

    def __init__(self, data_dir: str | None = None, trusted_names: Collection[str] = (), trackers: Sequence[str] = ()):
        self._data_dir, self._vouched, self._trackers = data_dir, trusted_names, trackers
        self._programs: dict[str, str] = {}  # by trial: every look at what could be joined asks for all of them

    def train(self, trial: Trial, directory: RunDirectory, report: ReportMetrics) -> None:
        with restrict_downloads(self._vouched), self._tracking(directory) as tracked:
            train(self._experiment(trial), directory, writer=MultiWriter(*tracked, _MetricsCallback(report)))

    def program_key(self, trial: Trial) -> str:
        from transformer.training.vmapped import program_key

        if trial.name not in self._programs:
            self._programs[trial.name] = program_key(self._experiment(trial))
        return self._programs[trial.name]

    def train_together(self, trials: Sequence[Trial], directories: Sequence[RunDirectory]) -> list[int | None]:
        from transformer.training.vmapped import train_vmapped

        with restrict_downloads(self._vouched), contextlib.ExitStack() as stack:
            tracked = [MultiWriter(*stack.enter_context(self._tracking(directory))) for directory in directories]
            diverged_at = train_vmapped([self._experiment(trial) for trial in trials], directories, tracked)
        return diverged_at

    def _tracking(self, directory: RunDirectory) -> contextlib.AbstractContextManager[tuple[Writer, ...]]:
        """Open the trackers' writers for a trial, grouped by the name of the sweep's directory."""
        path = directory.path
        return open_trackers(self._trackers, path, print_and_log, group=path.parent.parent.name)

    def _experiment(self, trial: Trial) -> ExperimentConfig:
        check_trusted(trial.config, self._vouched, training=True)
        values: dict[str, Any] = {**trial.config, "task": dict(trial.config["task"])}
        if self._data_dir is not None:
            values["task"]["data_dir"] = self._data_dir
        return resolve_config(values)


class _MetricsCallback(Writer):
    """A writer that passes metrics to a function."""

    def __init__(self, report: ReportMetrics):
        self._report = report

    def write(self, report: Report) -> None:
        if isinstance(report, Metrics):
            self._report(report.step, report.split, report.values)
