"""The cost of the loop over the compiled step: both timed in turn, in one process, on the same batches."""

import dataclasses
import io
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import jax

from transformer.attention.capture import Capture
from transformer.attention.statistics import STATISTICS
from transformer.maps.store import MapStore
from transformer.runs.directory import RunDirectory
from transformer.tasks.contract import Batch
from transformer.training.assembly import Assembly, assemble, compile_step, count_flops
from transformer.training.experiment import Experiment
from transformer.training.loop import Cadence, run
from transformer.training.meter import Meter
from transformer.training.probe import Probe, compile_probe
from transformer.training.sharding import on_host_batches, shard_batch
from transformer.training.sinks import Console, Log, MetricsFile, SamplesFile, Sinks, TensorBoard
from transformer.training.sinks.background import BackgroundMaps
from transformer.training.sinks.contract import Sink
from transformer.training.sinks.maps import Maps
from transformer.training.state import TrainState
from transformer.training.step import Step


class Overhead(NamedTuple):
    """Median seconds of `steps` steps, bare and in the loop, and the median of their ratios, one a repeat."""

    steps: int
    bare: float
    loop: float
    ratio: float


def measure_overhead(experiment: Experiment, directory: Path, *, steps: int, repeats: int) -> Overhead:
    """Time the loop with its logging and its making of batches against the step alone on ready batches."""
    assembly = assemble(experiment, directory)
    step = on_host_batches(compile_step(experiment, assembly), assembly.placement)
    source = assembly.task.source(experiment.run.seed)
    batches = [source[number] for number in range(steps)]
    key = jax.random.key(experiment.run.seed)

    def bare() -> float:
        state = jax.block_until_ready(assembly.initialise(key))
        began = time.perf_counter()
        for batch in batches:
            state, _ = step(state, batch)
        jax.block_until_ready(state)
        return time.perf_counter() - began

    bare()  # compiles every shape
    pairs = [
        (bare(), _seconds_of_loop(experiment, assembly, step, directory / f"loop-{number}", steps))
        for number in range(repeats)
    ]
    return Overhead(
        steps,
        statistics.median(first for first, _ in pairs),
        statistics.median(second for _, second in pairs),
        statistics.median(second / first for first, second in pairs),
    )


class CaptureCost(NamedTuple):
    """Median seconds of one step: without capture, with it compiled in but switched off, and switched on.

    `overhead` is what observing one step in `every` adds to the plain step, as a share.
    """

    plain: float
    off: float
    on: float
    every: int
    overhead: float


def measure_capture(
    experiment: Experiment, directory: Path, *, rows: int, every: int, steps: int, repeats: int
) -> CaptureCost:
    """Time the training step with `rows` query rows of every head and all statistics captured beside it.

    The three kinds of step are taken in turn on the same batch, so that changes of the machine's speed affect all.
    """
    assembly = assemble(experiment, directory)
    batch = shard_batch(assembly.task.source(experiment.run.seed)[0], assembly.placement)
    sites = tuple(site.name for site in assembly.model.sites)
    capture = Capture(sites, rows=rows, statistics=tuple(STATISTICS.values()))
    unobserved = dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, head_statistics_every=0))
    plain, capturing = compile_step(unobserved, assembly), compile_step(unobserved, assembly, capture)
    kinds = ((plain, False), (capturing, False), (capturing, True))
    key = jax.random.key(experiment.run.seed)
    times: list[list[float]] = [[] for _ in kinds]
    for repeat in range(repeats + 1):
        for (step, observe), measured in zip(kinds, times, strict=True):
            state = jax.block_until_ready(assembly.initialise(key))
            seconds = _seconds_a_step(step, state, batch, observe, steps)
            if repeat:  # the first compiles
                measured.append(seconds)
    without, off, on = (statistics.median(measured) for measured in times)
    overhead = statistics.median(
        ((every - 1) * quiet + loud) / (every * bare) - 1 for bare, quiet, loud in zip(*times, strict=True)
    )
    return CaptureCost(without, off, on, every, overhead)


class MapsCost(NamedTuple):
    """The cost of maps: median seconds of a step and of one map of the probe batch, and the share of all maps.

    `compiling` is the time of the first map, once a run; a whole run takes `probe_count` maps, which are `share` of
    its time without compiling.
    """

    step: float
    look: float
    compiling: float
    probe_count: int
    share: float


def measure_maps(experiment: Experiment, directory: Path, *, steps: int, repeats: int) -> MapsCost:
    """Time the loop with maps taken, written and drawn at its start and end, in turn with the loop without."""
    assembly = assemble(experiment, directory)
    step, config = on_host_batches(compile_step(experiment, assembly), assembly.placement), experiment.run
    probe = compile_probe(
        assembly.model,
        assembly.task,
        assembly.abstract,
        assembly.placement,
        config=experiment.maps,
        times=config.probe_count,
    )
    state = assembly.initialise(jax.random.key(config.seed))
    began = time.perf_counter()
    jax.block_until_ready(probe.run(state))
    compiling = time.perf_counter() - began

    def loop(number: int, probe: Probe | None) -> float:
        kind = "plain" if probe is None else "mapped"
        return _seconds_of_loop(experiment, assembly, step, directory / f"{kind}-{number}", steps, probe)

    loop(-1, probe)  # compiles every shape
    pairs = [(loop(number, None), loop(number, probe)) for number in range(repeats)]
    one_step = statistics.median(without for without, _ in pairs) / steps
    look = max(0.0, statistics.median(mapped - without for without, mapped in pairs) / 2)
    looking = config.probe_count * look
    return MapsCost(one_step, look, compiling, config.probe_count, looking / (looking + config.steps * one_step))


def _seconds_of_loop(
    experiment: Experiment, assembly: Assembly, step: Step, folder: Path, steps: int, probe: Probe | None = None
) -> float:
    """The time of a run's loop with its sinks in `folder`; with a probe, maps are taken at its start and at its end."""
    folder.mkdir()
    files = RunDirectory(folder)
    shown: Sink = TensorBoard(files.tensorboard)
    if probe is not None:
        plan = probe.plan
        store = MapStore.open(files.maps, plan.sites, plan.labels, "", plan.tiers, plan.sizes)
        shown = BackgroundMaps(Sinks(Maps(store), shown))
    numbers = (MetricsFile(files.metrics_file), SamplesFile(files.samples_file), Log(steps))
    sink = Sinks(*numbers, Console(steps, io.StringIO()), shown)
    state = jax.block_until_ready(assembly.initialise(jax.random.key(experiment.run.seed)))
    began = time.perf_counter()
    state = run(
        state,
        step,
        assembly.task.source(experiment.run.seed),
        steps=steps,
        cadence=Cadence(experiment.run.log_every, 0, maps=0 if probe is None else steps, checkpoint=0),
        evaluations=[],
        probe=(lambda state: {}) if probe is None else probe.run,
        save=lambda state: None,
        sink=sink,
        meter=Meter(flops=count_flops(experiment, assembly)),
    )
    jax.block_until_ready(state)
    seconds = time.perf_counter() - began
    sink.close()
    return seconds


def _seconds_a_step(step: Step, state: TrainState, batch: Batch, observe: bool, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        state, _ = step(state, batch, observe)
    jax.block_until_ready(state)
    return (time.perf_counter() - began) / steps
