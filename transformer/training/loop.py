"""The training loop: batches and steps, with periodic logs, evaluations, attention maps and checkpoints."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.config import RunConfig
from transformer.data.batches import BatchSource, iterate_batches
from transformer.maps.capture_plan import StoredMaps
from transformer.runs.exceptions import RunStopped
from transformer.runs.preemption import ProgressMonitor
from transformer.tasks.task import EvaluationReport
from transformer.training.compiled_evaluation import CompiledEvaluation
from transformer.training.metric_accumulator import MetricAccumulator
from transformer.training.state import TrainState
from transformer.training.step import StepMetrics, TrainStep
from transformer.training.writers.writer import HeadStatistics, Metrics, ProbeMaps, Progress, Samples, Writer


@dataclasses.dataclass(frozen=True)
class Reporter:
    """Reports the evaluations and the probe's maps between two steps.

    Attributes:
        config: The config of the run, whose intervals say when they are due.
        evaluations: The evaluations.
        evaluate: A function that runs an evaluation on the training state.
        probe: A function from the training state to the maps by site.
        writer: The writer of all reports.
        monitor: The monitor, through which the run can be told to stop.
    """

    config: RunConfig
    evaluations: Sequence[CompiledEvaluation]
    evaluate: Callable[[CompiledEvaluation, TrainState], EvaluationReport]
    probe: Callable[[TrainState], Mapping[str, StoredMaps]]
    writer: Writer
    monitor: ProgressMonitor

    def __call__(self, number: int, state: TrainState, last: bool) -> None:
        """Report what is due; if the run is stopped in between, nothing is written.

        Args:
            number: The number of steps made.
            state: The training state.
            last: Whether it is the last step, at which everything is due.

        Raises:
            RunStopped: If the run is told to stop.
        """
        reports: list[tuple[str, EvaluationReport]] = []
        if last or _is_due(number, self.config.eval_every):
            due = [compiled for compiled in self.evaluations if last or not compiled.evaluation.at_end]
            reports = [(compiled.evaluation.split, self.evaluate(compiled, state)) for compiled in due]
        maps = None
        if last or _is_due(number, self.config.maps_every):
            self.monitor.begin_unit(f"the maps of step {number}")
            maps = self.probe(state)
        for split, report in reports:
            if report.scalars:
                self.writer.write(Metrics(number, split, report.scalars))
            if report.samples:
                self.writer.write(Samples(number, split, report.samples))
        if maps is not None:
            self.writer.write(ProbeMaps(number, maps))


class PendingStep(NamedTuple):
    """A dispatched step whose metrics have not been fetched from the device yet."""

    step: int
    metrics: StepMetrics
    observed: bool


def train_loop(
    state: TrainState,
    step: TrainStep,
    source: BatchSource,
    *,
    reporter: Reporter,
    save: Callable[[TrainState, Mapping[str, Any]], None],
    accumulator: MetricAccumulator | None = None,
) -> TrainState:
    """Train up to the last step of the config, and write all metrics, samples and maps.

    The metrics of step N - 1 are fetched after step N is dispatched, so that the device never waits for the host. The
    last checkpoint is saved after the last evaluations: a run that has it is complete. A run that is told to stop saves
    its current step, together with what the next process needs to continue as if there had been no stop. The state, and
    with it all reports, may be that of several runs at one step (transformer.training.vmapped).

    Args:
        state: The state to start from.
        step: The compiled train step.
        source: The training batches.
        reporter: The reporter of evaluations and maps, and the writer of everything.
        save: A function that saves a state; its second argument is what a resumed run needs to continue the current log
            interval, {} between intervals.
        accumulator: The accumulator of training metrics; the default counts no FLOPs.

    Returns:
        The state after the last step.

    Raises:
        UserError: If a batch is not valid.
        RunFailed: If training diverges (raised by `accumulator` or `save`).
        RunStopped: If the run is told to stop.
    """
    config, writer, monitor = reporter.config, reporter.writer, reporter.monitor
    steps = config.steps
    first = int(np.max(jax.device_get(state.step)))
    done = saved = first  # the last step that was dispatched, and the last that was saved
    reported = True  # whether the reports due at step `done` are written
    pending: PendingStep | None = None
    accumulator = accumulator or MetricAccumulator()
    try:
        if first == 0 and config.maps_every:
            monitor.begin_unit("the maps of step 0")
            writer.write(ProbeMaps(0, reporter.probe(state)))
        batches = iterate_batches(source, first, steps)
        for number in range(first + 1, steps + 1):
            monitor.begin_unit(f"step {number}", makes=True)
            with accumulator.waiting_for_batch():
                batch = next(batches)
            observe = _is_due(number, config.head_statistics_every)
            last = number == steps
            accumulator.start_clock()
            state, metrics = step(state, batch, observe)
            monitor.mark_waiting()
            done, reported = number, False
            _read_pending(pending, accumulator, writer)
            accumulator.count_batch(batch)
            pending = PendingStep(number, metrics, observe)
            writer.write(Progress(number, steps))
            if last or number % config.log_every == 0:
                _read_pending(pending, accumulator, writer)
                pending = None
                writer.write(Metrics(number, "train", accumulator.compute_and_reset()))
            with accumulator.paused():
                reporter(number, state, last)
                reported = True
                if last or _is_due(number, config.checkpoint_every):
                    monitor.begin_unit(f"the checkpoint of step {number}")
                    # A run that resumes from this checkpoint does not report the steps before it again.
                    writer.flush()
                    save(state, {})
                    saved = number
    except RunStopped:
        if done > saved:
            _read_pending(pending, accumulator, writer)
            writer.flush()
            save(state, {"window": accumulator.window(), "reports_done": reported})
        raise
    return state


def _read_pending(pending: PendingStep | None, accumulator: MetricAccumulator, writer: Writer) -> None:
    """Fetch a step's metrics, waiting until it is done."""
    if pending is None:
        return
    accumulator.add_step(pending.metrics, pending.step)
    if pending.observed:
        heads = {site: captured.means() for site, captured in pending.metrics.maps.items()}
        writer.write(HeadStatistics(pending.step, jax.device_get(heads)))


def _is_due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0
