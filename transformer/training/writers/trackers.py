"""W&B, MLflow and Trackio: a run of theirs for each of ours."""

import dataclasses
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from transformer.config import flatten
from transformer.training.writers.contract import Sample

_STEP = "step"
_ID, _GROUP = "headwise.id", "group"
_URI, _FILES = "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"
_UNNAMED = re.compile(r"[^\w. :/-]")
_VALUE, _AT_ONCE = 500, 100  # characters of a parameter, and parameters in a request


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run as trackers are told of it.

    `id` is its own for good, `name` what people read, `group` the sweep that it is a trial of; `config` is the
    resolved one. `resumed`: the tracker may hold what it was told before.
    """

    id: str
    name: str
    group: str | None
    config: Mapping[str, Any]
    resumed: bool


class Tracker(Protocol):
    """A place outside the run directory, reached by somebody else's library, which may raise or hang at any call."""

    def scalars(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Numbers of one step of one split; those that it holds already are left out."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Examples to read."""

    def page(self, path: Path) -> None:
        """The page of the run's maps, a file that is removed afterwards."""

    def close(self, complete: bool) -> None:
        """Send what is left; `complete`: the run is at its last step."""


class ToWandb:
    """The tracker of one run. Project, entity and folder are their own variables': WANDB_PROJECT, WANDB_DIR ...

    Every report is a line of their history with its `step`, which their charts have as the horizontal axis: their own
    counter of steps refuses what a resumed run reports of the step that it stopped at.

    Errors: RuntimeError where nobody is logged in; what the library raises.
    """

    def __init__(self, run: TrackedRun):
        import wandb

        mode = os.environ.get("WANDB_MODE", "online")
        # Asked for on a terminal, a key would be waited for without an end.
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
        self._held = int(self._run.summary.get(_STEP) or -1) if run.resumed else -1

    def scalars(self, step: int, split: str, values: Mapping[str, float]) -> None:
        if step >= self._held:
            self._run.log({_STEP: step, **{f"{split}/{name}": value for name, value in values.items()}})

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        names = list(dict.fromkeys(name for sample in samples for name in sample))
        rows = [[sample.get(name, "") for name in names] for sample in samples]
        self._run.log({_STEP: step, f"{split}/samples": self._library.Table(columns=names, data=rows)})

    def page(self, path: Path) -> None:
        artefact = self._library.Artifact(f"maps-{self._run.id}", type="maps")
        artefact.add_file(str(path))
        self._run.log_artifact(artefact)

    def close(self, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


class ToMlflow:
    """The tracker of one run. Its experiment is MLFLOW_EXPERIMENT_NAME or "headwise"; a sweep is its tag `group`.

    A run is found again by its tag, and of each of its numbers only what is behind the last step held is sent.

    Errors: what the library raises.
    """

    def __init__(self, run: TrackedRun):
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


class ToTrackio:
    """The tracker of one run. Its project is TRACKIO_PROJECT or "headwise".

    Their runs are known again by their names: ours end with the run's id.

    Errors: what the library raises.
    """

    def __init__(self, run: TrackedRun):
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

    def scalars(self, step: int, split: str, values: Mapping[str, float]) -> None:
        self._run.log({f"{split}/{name}": value for name, value in values.items()}, step=step)

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        lines = [f"- {name}: {text}" for sample in samples for name, text in sample.items()]
        self._run.log({f"{split}/samples": self._library.Markdown("\n".join(lines))}, step=step)

    def page(self, path: Path) -> None:
        self._run.log_artifact(str(path), name=f"maps-{self._run.id}", type="maps")

    def close(self, complete: bool) -> None:
        self._run.finish()
