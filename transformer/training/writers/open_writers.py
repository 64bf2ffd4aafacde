"""Open and close the writers of a run."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import jax

from transformer.maps.capture_plan import CapturePlan
from transformer.maps.store import MapStore
from transformer.runs.distributed import is_primary, run_on_primary_first
from transformer.runs.jsonl_reading import FileExtent
from transformer.runs.run_directory import RunDirectory
from transformer.training.writers.console import LogWriter
from transformer.training.writers.jsonl import HeadStatisticsWriter, MetricsWriter, SamplesWriter
from transformer.training.writers.map_writer import BackgroundMapWriter, MapWriter
from transformer.training.writers.tensorboard import TensorBoardWriter
from transformer.training.writers.writer import BestEffortWriter, MultiWriter, Writer

# A writer that appends to a file of records.
RecordWriter = MetricsWriter | SamplesWriter | HeadStatisticsWriter


class RunWriters(MultiWriter):
    """The writers of one run, which know the extents of its files of records."""

    def __init__(self, files: Sequence[RecordWriter], *other_writers: Writer):
        super().__init__(*files, *other_writers)
        self._files = files

    def extents(self) -> dict[str, FileExtent]:
        """Return the extent of every file of records, by its name."""
        return {file.path.name: file.extent() for file in self._files}


def open_writers(
    directory: RunDirectory,
    plan: CapturePlan,
    config_hash: str,
    *,
    steps: int,
    start: int,
    extents: Mapping[str, FileExtent] = MappingProxyType({}),
    reported: bool = True,
) -> RunWriters:
    """Open the writers of a run; a resumed run drops the records after its first step, as they will be written again.

    Every process writes its own part of the maps; the first writes all other files.

    Args:
        directory: The run directory.
        plan: The plan of stored maps.
        config_hash: The hash of the resolved config, which the map store records.
        steps: The number of steps of the run.
        start: The step that it starts from.
        extents: The extents of the files at that step, from its checkpoint.
        reported: Whether the metrics due at that step had been written. If not, its maps are dropped as well.
    """

    def open_maps() -> MapStore:
        maps = MapStore.open(
            directory.maps_dir,
            plan.sites,
            plan.labels,
            config_hash,
            plan.resolutions,
            plan.sizes,
            writers=(jax.process_index(), jax.process_count()),
        )
        # A process killed while it reported may have left the step's maps or not: they are written again.
        maps.truncate(after_step=start if start and reported else start - 1)
        return maps

    # The first process removes the dropped steps before another one can write them again.
    maps = run_on_primary_first(open_maps)
    if not is_primary():
        return RunWriters((), BackgroundMapWriter(MapWriter(maps)))
    files: tuple[RecordWriter, ...] = (
        MetricsWriter(directory.metrics_file),
        SamplesWriter(directory.samples_file),
        HeadStatisticsWriter(directory.heads_file),
    )
    for file in files:
        file.truncate(after_step=start or -1, extent=extents.get(file.path.name))
    events = BestEffortWriter(
        "TensorBoard's events", lambda: TensorBoardWriter(directory.tensorboard_dir, start or None)
    )
    return RunWriters(
        files,
        BackgroundMapWriter(MultiWriter(MapWriter(maps), events)),
        LogWriter(steps, directory.path),
    )


class Closeable(Protocol):
    """A resource with a `close` method, such as a writer."""

    def close(self) -> None: ...


@contextlib.contextmanager
def close_with_run(resource: Closeable) -> Iterator[None]:
    """Close a resource at the end of the context; if an error ends it, that error is raised and not one of closing."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            resource.close()
        raise
    resource.close()
