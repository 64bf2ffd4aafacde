"""Opening the sinks of a run, and closing them with it."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

import jax

from transformer.maps.plan import Plan
from transformer.maps.store import MapStore
from transformer.runs.directory import RunDirectory
from transformer.runs.processes import in_turn, primary
from transformer.training.sinks import HeadsFile, Log, MetricsFile, SamplesFile, Sinks, TensorBoard
from transformer.training.sinks.background import BackgroundMaps
from transformer.training.sinks.contract import Sink
from transformer.training.sinks.maps import Maps


def open_sinks(directory: RunDirectory, plan: Plan, config_hash: str, *, steps: int, start: int) -> Sink:
    """The sinks of a run of `steps`; on resuming, records beyond step `start` are dropped, as they are written again.

    Every process writes its own part of the maps; the first writes all other files.
    """
    maps = in_turn(
        lambda: MapStore.open(
            directory.maps,
            plan.sites,
            plan.labels,
            config_hash,
            plan.tiers,
            plan.sizes,
            writers=(jax.process_index(), jax.process_count()),
        )
    )
    maps.truncate(after_step=start or -1)
    if not primary():
        return BackgroundMaps(Maps(maps))
    files = (
        MetricsFile(directory.metrics_file),
        SamplesFile(directory.samples_file),
        HeadsFile(directory.heads_file),
    )
    for file in files:
        file.truncate(after_step=start or -1)
    return Sinks(
        *files,
        BackgroundMaps(Sinks(Maps(maps), TensorBoard(directory.tensorboard, start or None))),
        Log(steps, directory.path),
    )


class Closeable(Protocol):
    """What is closed when a run ends, such as a sink."""

    def close(self) -> None: ...


@contextlib.contextmanager
def closed_with_the_run(resource: Closeable) -> Iterator[None]:
    """Close `resource` at the end of the context; where an error ends it, that error is raised, not one of closing."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            resource.close()
        raise
    resource.close()
