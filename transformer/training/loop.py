"""The loop: next batch, step, and every so often an evaluation, maps, a checkpoint. The same for every model."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.data.batches import Source, stream
from transformer.maps.tiers import Kept
from transformer.tasks.contract import Batch, Report
from transformer.training.sinks.contract import Sink
from transformer.training.state import TrainState
from transformer.training.step import Metrics, Step


@dataclasses.dataclass(frozen=True)
class Cadence:
    """Every how many steps each thing happens; 0: only at the end, for `heads` never."""

    log: int
    evaluate: int
    maps: int
    checkpoint: int
    heads: int = 0


class Diverged(FloatingPointError):
    """A loss that is not finite, read from step `step`."""

    def __init__(self, name: str, value: float, step: int):
        super().__init__(
            f"{name} is {value} at step {step}; lower config.optimizer.learning_rate, lengthen "
            "config.optimizer.warmup or set config.optimizer.clip"
        )
        self.step = step


def refuse_divergence(step: int, losses: Mapping[str, np.ndarray]) -> None:
    """Errors: Diverged for the first of the losses that is not finite."""
    for name, value in losses.items():
        if not np.isfinite(value):
            raise Diverged(name, float(value), step)


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
    probe: Callable[[TrainState], Mapping[str, Kept]],
    save: Callable[[TrainState], None],
    sink: Sink,
    check: Callable[[int, Mapping[str, np.ndarray]], None] = refuse_divergence,
    flops: Callable[[Batch], float] | None = None,
    peak_flops: float = math.inf,
) -> TrainState:
    """Train from the state's step to `steps`, feeding everything that is seen to `sink`.

    `flops` counts a step's floating-point operations by formula and `peak_flops` is what the devices could do
    in a second: their ratio over time is logged as utilisation. `check` is shown the losses of every step. A state,
    and with it all that is seen, may be that of several runs at one step (transformer.training.lanes).

    The metrics of step N - 1 are read after step N is dispatched, so that the device never waits for the host. The
    last checkpoint is saved after the last evaluations: a run that has it is complete.

    Errors: Diverged at the first loss that is not finite, or what else `check` raises.
    """
    first = int(np.max(jax.device_get(state.step)))
    meter = Meter(check, flops, peak_flops)
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
                # A run that comes back to this checkpoint writes nothing again of what came before it.
                sink.flush()
                save(state)
    return state


class Seen(NamedTuple):
    """A step that was dispatched and is not yet read."""

    step: int
    metrics: Metrics
    observed: bool


class Meter:
    """Means of the training metrics since the last report, and how fast the steps went.

    Metrics may have a leading axis, of several runs, and then so have their means.
    """

    def __init__(
        self,
        check: Callable[[int, Mapping[str, np.ndarray]], None],
        flops: Callable[[Batch], float] | None,
        peak_flops: float,
    ):
        self._check, self._flops_of, self._peak = check, flops, peak_flops
        self._since: float | None = None
        self._clear()

    def start_clock(self) -> None:
        """Begin timing with the first step after the start: what came before was set-up."""
        self._since = time.perf_counter() if self._since is None else self._since

    def feed(self, batch: Batch) -> None:
        """Count a batch that was handed to the step."""
        self._flops += self._flops_of(batch) if self._flops_of is not None else 0

    def read(self, metrics: Metrics, step: int) -> None:
        """Add the metrics of a step, waiting until they are there."""
        totals, values = jax.device_get((metrics.totals, metrics.values))
        self._check(step, {name: value for name, value in values.items() if name.endswith("loss")})
        for found, sums in ((values, self._sums), (totals, self._totals)):
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + np.asarray(value, np.float64)
        self._steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep what happens inside out of the steps' time."""
        began = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - began

    def report(self) -> dict[str, Any]:
        """The means since the last report, with the rate of every total, and start again."""
        assert self._since is not None
        seconds = time.perf_counter() - self._since
        found = {name: value / self._steps for name, value in self._sums.items()}
        found |= {f"{name}_per_second": value / seconds for name, value in self._totals.items()}
        found["steps_per_second"] = self._steps / seconds
        if self._flops:
            found["flops_per_step"] = self._flops / self._steps
            found["utilisation"] = self._flops / seconds / self._peak
        self._since = time.perf_counter()
        self._clear()
        return found

    def _clear(self) -> None:
        self._sums: dict[str, Any] = {}
        self._totals: dict[str, Any] = {}
        self._steps = 0
        self._flops = 0.0


def _settle(seen: Seen | None, meter: Meter, sink: Sink) -> None:
    """Read a step, waiting until it is done."""
    if seen is None:
        return
    meter.read(seen.metrics, seen.step)
    if seen.observed:
        heads = {site: captured.means() for site, captured in seen.metrics.captured.items()}
        sink.heads(seen.step, jax.device_get(heads))


def _due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


def _record(sink: Sink, step: int, split: str, report: Report) -> None:
    if report.scalars:
        sink.scalars(step, split, report.scalars)
    if report.samples:
        sink.samples(step, split, report.samples)
