"""The loop: next batch, step, and every so often an evaluation, maps, a checkpoint. The same for every model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.data.batches import Source, stream
from transformer.maps.plan import StoredMaps
from transformer.runs.exit_codes import Stopped
from transformer.runs.preemption import Pulse
from transformer.tasks.contract import Report
from transformer.training.meter import Meter
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step
from transformer.training.writers.contract import Sink


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


@dataclasses.dataclass(frozen=True)
class Look:
    """What is reported of the state between two steps: evaluations, and the maps of the probe."""

    cadence: Cadence
    evaluations: Sequence[Measured]
    probe: Callable[[TrainState], Mapping[str, StoredMaps]]
    sink: Sink
    pulse: Pulse

    def __call__(self, number: int, state: TrainState, last: bool) -> None:
        """Report what is due at step `number`: all of it or, where the run is stopped in between, nothing."""
        chosen = [each for each in self.evaluations if last or not each.at_end]
        due = last or _due(number, self.cadence.evaluate)
        reports = [(each.split, each.run(state)) for each in chosen] if due else []
        maps = None
        if last or _due(number, self.cadence.maps):
            self.pulse.beat(f"the maps of step {number}")
            maps = self.probe(state)
        for split, report in reports:
            if report.scalars:
                self.sink.scalars(number, split, report.scalars)
            if report.samples:
                self.sink.samples(number, split, report.samples)
        if maps is not None:
            self.sink.maps(number, maps)


def run(
    state: TrainState,
    step: Step,
    source: Source,
    *,
    steps: int,
    look: Look,
    save: Callable[[TrainState, Mapping[str, Any]], None],
    meter: Meter | None = None,
) -> TrainState:
    """Train from the state's step to `steps`, feeding all metrics, samples and maps to the sink of `look`.

    `meter` averages what the steps report, by default without counting operations. A state, and with it all that is
    reported, may be that of several runs at one step (transformer.training.vmapped). The metrics of step N - 1 are read
    after step N is dispatched: the device never waits for the host. The last checkpoint is saved after the last
    evaluations: a run that has it is complete. One that is told to stop saves behind the step that it is at, together
    with what the next process needs to go on as if there had been no stop.

    Errors: what `meter` raises; Stopped.
    """
    cadence, sink, pulse = look.cadence, look.sink, look.pulse
    done = saved = first = int(np.max(jax.device_get(state.step)))
    meter, looked, pending = meter or Meter(), True, None
    try:
        if first == 0 and cadence.maps:
            pulse.beat("the maps of step 0")
            sink.maps(0, look.probe(state))
        batches = stream(source, first, steps)
        for number in range(first + 1, steps + 1):
            pulse.beat(f"step {number}", makes=True)
            batch, observe = next(batches), _due(number, cadence.heads)
            meter.start_clock()
            state, metrics = step(state, batch, observe)
            pulse.waits()
            done, looked, last = number, False, number == steps
            _settle(pending, meter, sink)
            meter.feed(batch)
            pending = Seen(number, metrics, observe)
            sink.progress(number, steps)
            if last or number % cadence.log == 0:
                _settle(pending, meter, sink)
                pending = None
                sink.scalars(number, "train", meter.report())
            with meter.paused():
                look(number, state, last)
                looked = True
                if last or _due(number, cadence.checkpoint):
                    pulse.beat(f"the checkpoint of step {number}")
                    # A run that resumes from this checkpoint does not report the steps before it again.
                    sink.flush()
                    save(state, {})
                    saved = number
    except Stopped:
        if done > saved:
            _settle(pending, meter, sink)
            sink.flush()
            save(state, {"window": meter.window(), "looked": looked})
        raise
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
