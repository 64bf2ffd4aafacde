"""Trackio: a run of theirs for each of ours, in their store on this machine or where their own variables say."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.training.sinks.contract import Sample
from transformer.training.sinks.tracked import Tracked


class ToTrackio:
    """The tracker of one run. Its project is TRACKIO_PROJECT or "headwise".

    Their runs are known again by their names: ours end with the run's id.

    Errors: what the library raises.
    """

    def __init__(self, run: Tracked):
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
