"""A worker whose trials sleep instead of training; as a process: python fake_worker.py SWEEP TOTAL SECONDS."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.runs.jsonl_reading import read_records
from transformer.runs.run_directory import RunDirectory
from transformer.studies.sweeps.trial_store import TrialStore
from transformer.studies.sweeps.trials import Trial, trial_from_config
from transformer.studies.sweeps.worker import ReportMetrics, run_worker

HOLD = "hold"  # a file beside the trials' directories: while it is there, they stand still in their middle


class Sleeping:
    """Trials of config["ticks"] steps, each a while; what is reported is what a resumed trial goes on from."""

    def __init__(self, seconds: float = 0.0):
        self._seconds = seconds

    def train(self, trial: Trial, directory: RunDirectory, report: ReportMetrics) -> None:
        for tick in range(len(read_records(directory.metrics_file)) + 1, trial.config["ticks"] + 1):
            time.sleep(self._seconds)
            while tick > trial.config["ticks"] // 2 and (directory.path.parent / HOLD).exists():
                time.sleep(0.02)
            loss = trial.config["loss"] / tick
            with directory.metrics_file.open("a") as file:
                file.write(json.dumps({"step": tick, "split": "validation", "loss": loss}) + "\n")
            report(tick, "validation", {"loss": loss})

    def program_key(self, trial: Trial) -> str:
        return str(trial.config["ticks"])

    def train_together(self, trials: Sequence[Trial], directories: Sequence[RunDirectory]) -> list[int | None]:
        raise AssertionError("nothing is trained together here")


def trial(ticks: int, **about: Any) -> Trial:
    """A trial that takes so many steps."""
    return trial_from_config({"seed": about}, {"ticks": ticks, "loss": 1.0, **about})


def sweep(path: Path, trials: Sequence[Trial], **facts: Any) -> TrialStore:
    """The trial store of a sweep of these trials."""
    about: Mapping[str, Any] = {"config": {"ticks": 1}, "metric": "validation/loss", "direction": "minimize", **facts}
    trial_store = TrialStore.open(path, about)
    trial_store.append_trials(trials)
    return trial_store


if __name__ == "__main__":
    trial_store = TrialStore.open_existing(Path(sys.argv[1]))
    run_worker(
        trial_store, None, total=int(sys.argv[2]), metric="validation/loss", trainer=Sleeping(float(sys.argv[3]))
    )
    assert "jax" not in sys.modules
