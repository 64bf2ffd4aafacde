"""The loop: next batch, step, and every so often an evaluation, maps, a checkpoint. The same for every model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from transformer.data.batches import Source, stream
from transformer.maps.tiers import StoredMaps
from transformer.tasks.contract import Report
from transformer.training.meter import Meter
from transformer.training.sinks.contract import Sink
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step


@dataclasses.dataclass(frozen=True)
class Cadence:
    """The number of steps between two reports, evaluations ...; 0: only at the end, for `heads` never."""

    log: int
    evaluate: int
    maps: int
    checkpoint: int
    heads: int = 0


@dataclasses.dataclass(frozen=True)
class Measured:
    """An evaluation as the loop sees it."""

    name: str
    split: str
    at_end: bool
    run: Callable[[TrainState], Report]


def run(
    state: TrainState,
    step: Step,
    source: Source,
    *,
    steps: int,
    cadence: Cadence,
    evaluations: Sequence[Measured],
    probe: Callable[[TrainState], Mapping[str, StoredMaps]],
    save: Callable[[TrainState], None],
    sink: Sink,
    meter: Meter | None = None,
) -> TrainState:
    """Train from the state's step to `steps`, feeding all metrics, samples and maps to `sink`.

    `meter` averages what the steps report, by default without counting operations. A state, and with it all that is
    reported, may be that of several runs at one step (transformer.training.vmapped).

    The metrics of step N - 1 are read after step N is dispatched, so that the device never waits for the host. The
    last checkpoint is saved after the last evaluations: a run that has it is complete.

    Errors: what `meter` raises, by default Diverged at the first loss that is not finite.
    """
    first = int(np.max(jax.device_get(state.step)))
    meter = meter or Meter()
    pending: Seen | None = None
    if first == 0 and cadence.maps:
        sink.maps(0, probe(state))
    for number, batch in enumerate(stream(source, first, steps), start=first + 1):
        meter.start_clock()
        observe = _due(number, cadence.heads)
        state, metrics = step(state, batch, observe)
        _settle(pending, meter, sink)
        meter.feed(batch)
        pending = Seen(number, metrics, observe)
        sink.progress(number, steps)
        last = number == steps
        if last or number % cadence.log == 0:
            _settle(pending, meter, sink)
            pending = None
            sink.scalars(number, "train", meter.report())
        with meter.paused():
            if last or _due(number, cadence.evaluate):
                for evaluation in evaluations:
                    if last or not evaluation.at_end:
                        _record(sink, number, evaluation.split, evaluation.run(state))
            if last or _due(number, cadence.maps):
                sink.maps(number, probe(state))
            if last or _due(number, cadence.checkpoint):
                # A run that resumes from this checkpoint does not report the steps before it again.
                sink.flush()
                save(state)
    return state


class Seen(NamedTuple):
    """A dispatched step whose metrics were not read yet."""

    step: int
    metrics: Metrics
    observed: bool


def _settle(seen: Seen | None, meter: Meter, sink: Sink) -> None:
    """Read a step's metrics, waiting until it is done."""
    if seen is None:
        return
    meter.read(seen.metrics, seen.step)
    if seen.observed:
        heads = {site: captured.means() for site, captured in seen.metrics.maps.items()}
        sink.heads(seen.step, jax.device_get(heads))


def _due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


def _record(sink: Sink, step: int, split: str, report: Report) -> None:
    if report.scalars:
        sink.scalars(step, split, report.scalars)
    if report.samples:
        sink.samples(step, split, report.samples)
