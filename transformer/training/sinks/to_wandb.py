"""Weights & Biases: a run of theirs for each of ours, online or, by WANDB_MODE=offline, in a folder of this machine."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.training.sinks.contract import Sample
from transformer.training.sinks.tracked import Tracked

_STEP = "step"


class ToWandb:
    """The tracker of one run. Project, entity and folder are their own variables': WANDB_PROJECT, WANDB_DIR ...

    Every report is a line of their history with its `step`, which their charts have as the horizontal axis: their own
    counter of steps refuses what a resumed run reports of the step that it stopped at.

    Errors: RuntimeError where nobody is logged in; what the library raises.
    """

    def __init__(self, run: Tracked):
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
