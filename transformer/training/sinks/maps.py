"""The maps: every head of the probe batch, into the run's store."""

from collections.abc import Mapping, Sequence

import numpy as np

from transformer.maps.store import MapStore
from transformer.training.sinks.contract import Number, Sample


class Maps:
    """The sink that appends maps to a store."""

    def __init__(self, store: MapStore):
        self._store = store

    def scalars(self, step: int, split: str, values: Mapping[str, Number]) -> None:
        """Nothing: the store holds maps."""

    def samples(self, step: int, split: str, samples: Sequence[Sample]) -> None:
        """Nothing: the store holds maps."""

    def maps(self, step: int, maps: Mapping[str, np.ndarray]) -> None:
        """Append one step."""
        self._store.write(step, maps)

    def heads(self, step: int, heads: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Nothing: the store holds maps."""

    def progress(self, step: int, total: int) -> None:
        """Nothing: a step without maps is not stored."""

    def close(self) -> None:
        """Nothing: each step is complete when it was written."""
