"""What a tracker is told of a run, and what it has to do."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from transformer.training.sinks.contract import Sample


@dataclasses.dataclass(frozen=True)
class Tracked:
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
