"""MLflow: a run of theirs for each of ours, on the server or in the store that MLFLOW_TRACKING_URI names."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer.config import flatten
from transformer.training.sinks.contract import Sample
from transformer.training.sinks.tracked import Tracked

_ID, _GROUP = "headwise.id", "group"
_URI, _FILES = "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"
_UNNAMED = re.compile(r"[^\w. :/-]")
_VALUE, _AT_ONCE = 500, 100  # characters of a parameter, and parameters in a request


class ToMlflow:
    """The tracker of one run. Its experiment is MLFLOW_EXPERIMENT_NAME or "headwise"; a sweep is its tag `group`.

    A run is found again by its tag, and of each of its numbers only what is behind the last step held is sent.

    Errors: what the library raises.
    """

    def __init__(self, run: Tracked):
        # A person who names a folder of files has chosen it; the library would have that said twice.
        if os.environ.get(_URI, "").startswith("file:"):
            os.environ.setdefault(_FILES, "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        self._held: dict[str, int] = {}
        self._resumed = None
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "headwise"))
        if run.resumed:
            found = self._client.search_runs([experiment], f"tags.`{_ID}` = '{run.id}'", max_results=1)
            self._resumed = found[0].info.run_id if found else None
        if self._resumed is not None:
            self._run = self._resumed
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {_ID: run.id, **({} if run.group is None else {_GROUP: run.group})}
        self._run = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        told = [Param(_UNNAMED.sub("_", key), str(value)[:_VALUE]) for key, value in flatten(run.config).items()]
        for start in range(0, len(told), _AT_ONCE):
            self._client.log_batch(self._run, params=told[start : start + _AT_ONCE])
        self._client.log_dict(self._run, dict(run.config), "config.json")

    def scalars(self, step: int, split: str, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        told = {_UNNAMED.sub("_", f"{split}/{name}"): value for name, value in values.items()}
        new = [self._metric(key, value, now, step) for key, value in told.items() if step > self._last(key)]
        if new:
            self._client.log_batch(self._run, metrics=new)

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        lines = [f"{name}: {text}" for sample in samples for name, text in sample.items()]
        self._client.log_text(self._run, "\n".join(lines), f"samples/{split}/{step:09d}.txt")

    def page(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if complete else "KILLED")

    def _experiment(self, name: str) -> str:
        """The number of an experiment by its name; another process may make it in the meantime."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return self._client.create_experiment(name)
            except Exception:
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def _last(self, key: str) -> int:
        """The last step of a number that a resumed run's record holds, -1 where it holds none."""
        if self._resumed is None:
            return -1
        if key not in self._held:
            steps = [each.step for each in self._client.get_metric_history(self._run, key)]
            self._held[key] = max(steps, default=-1)
        return self._held[key]
