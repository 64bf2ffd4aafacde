"""The maps of the probe batch: into the run's store."""

from collections.abc import Mapping

from transformer.maps.store import MapStore
from transformer.maps.tiers import StoredMaps
from transformer.training.sinks.contract import NullSink


class Maps(NullSink):
    """The sink that appends maps to a store."""

    def __init__(self, store: MapStore):
        self._store = store

    def maps(self, step: int, maps: Mapping[str, StoredMaps]) -> None:
        self._store.write(step, maps)
