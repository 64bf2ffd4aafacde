"""Overhead of a run over its bare compiled step: the training loop, head capture, attention maps, and data.

`python -m experiments.benchmarks.programs.run_overhead SETTINGS`: `config`, the values of an experiment, the `part`
(loop, capture or maps), `steps` and `repeats`. Each part is measured in alternation within one process, on the same
batches, so that changes of the machine's speed affect all alike.
"""

import dataclasses
import io
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks.programs.program_main import program_main
from transformer.attention.capture import Capture
from transformer.attention.statistics import STATISTICS
from transformer.maps.store import MapStore
from transformer.runs.preemption import ProgressMonitor
from transformer.runs.run_directory import RunDirectory
from transformer.tasks.task import Batch
from transformer.training.build import TrainingComponents, build_components, flops_counter, make_jitted_train_step
from transformer.training.compiled_probe import Probe, compile_probe
from transformer.training.config import ExperimentConfig, resolve_config
from transformer.training.loop import Reporter, train_loop
from transformer.training.metric_accumulator import MetricAccumulator
from transformer.training.partitioning import shard_batch, shard_host_batches
from transformer.training.state import TrainState
from transformer.training.step import TrainStep
from transformer.training.writers.console import ConsoleWriter, LogWriter
from transformer.training.writers.jsonl import MetricsWriter, SamplesWriter
from transformer.training.writers.map_writer import BackgroundMapWriter, MapWriter
from transformer.training.writers.tensorboard import TensorBoardWriter
from transformer.training.writers.writer import MultiWriter, Writer

# The capture of a run that records its heads.
CAPTURED_EXAMPLES, CAPTURE_EVERY = 8, 100

Seconds = Mapping[str, list[float]]


def time_training_loop(experiment: ExperimentConfig, directory: Path, *, steps: int, repeats: int) -> Seconds:
    """Time `steps` bare steps on prepared batches, the training loop with logging and data, and the data alone."""
    components = build_components(experiment, directory)
    step = shard_host_batches(make_jitted_train_step(experiment, components), components.placement)
    source = components.task.training_batches(experiment.run.seed)
    batches = [source[number] for number in range(steps)]
    key = jax.random.key(experiment.run.seed)

    def time_bare_steps() -> float:
        state = jax.block_until_ready(components.init_state(key))
        start_seconds = time.perf_counter()
        for batch in batches:
            state, _ = step(state, batch)
        jax.block_until_ready(state)
        return time.perf_counter() - start_seconds

    def time_data() -> float:
        source = components.task.training_batches(experiment.run.seed)
        start_seconds = time.perf_counter()
        for number in range(steps):
            source[number]
        return time.perf_counter() - start_seconds

    time_bare_steps()  # compiles every shape
    seconds: dict[str, list[float]] = {"bare step": [], "loop": [], "data alone": []}
    for number in range(repeats):
        seconds["bare step"].append(time_bare_steps())
        folder = directory / f"loop-{number}"
        seconds["loop"].append(_time_loop(experiment, components, step, folder, steps))
        seconds["data alone"].append(time_data())
    return seconds


def time_head_capture(experiment: ExperimentConfig, directory: Path, *, steps: int, repeats: int) -> Seconds:
    """Time a step without capture, and with capture of all heads switched off and on.

    Also returned is the mean step of a run that captures one step in a hundred.
    """
    components = build_components(experiment, directory)
    batch = shard_batch(components.task.training_batches(experiment.run.seed)[0], components.placement)
    sites = tuple(site.name for site in components.model.sites)
    capture = Capture(sites, rows=CAPTURED_EXAMPLES, statistics=tuple(STATISTICS.values()))
    unobserved = dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, head_statistics_every=0))
    plain = make_jitted_train_step(unobserved, components)
    capturing = make_jitted_train_step(unobserved, components, capture)
    kinds = {"plain step": (plain, False), "switched off": (capturing, False), "switched on": (capturing, True)}
    key = jax.random.key(experiment.run.seed)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for repeat in range(repeats + 1):
        for name, (step, observe) in kinds.items():
            state = jax.block_until_ready(components.init_state(key))
            measured = _time_step(step, state, batch, observe, steps)
            if repeat:  # the first compiles
                seconds[name].append(measured)
    pairs = zip(seconds["switched off"], seconds["switched on"], strict=True)
    return {
        **seconds,
        f"one in {CAPTURE_EVERY} on": [((CAPTURE_EVERY - 1) * off + on) / CAPTURE_EVERY for off, on in pairs],
    }


def time_attention_maps(experiment: ExperimentConfig, directory: Path, *, steps: int, repeats: int) -> Seconds:
    """Time the mean step of a whole run without maps, and with maps computed and written."""
    components = build_components(experiment, directory)
    step = shard_host_batches(make_jitted_train_step(experiment, components), components.placement)
    config = experiment.run
    probe = compile_probe(
        components.model,
        components.task,
        components.abstract_state,
        components.placement,
        config=experiment.maps,
        times=config.num_probe_steps,
        parameters=experiment.eval_parameters,
    )
    jax.block_until_ready(probe.run(components.init_state(jax.random.key(config.seed))))

    def loop(number: int, probe: Probe | None) -> float:
        kind = "plain" if probe is None else "mapped"
        return _time_loop(experiment, components, step, directory / f"{kind}-{number}", steps, probe)

    loop(-1, probe)  # compiles every shape
    seconds: dict[str, list[float]] = {"step of a run without maps": [], "step of a run with maps": []}
    for number in range(repeats):
        seconds_without, seconds_with = loop(number, None), loop(number, probe)
        seconds["step of a run without maps"].append(seconds_without / steps)
        # The loop looked twice; the run looks `probe_count` times.
        probe_seconds = (seconds_with - seconds_without) / 2 * config.num_probe_steps / config.steps
        seconds["step of a run with maps"].append(seconds_without / steps + probe_seconds)
    return seconds


def _time_loop(
    experiment: ExperimentConfig,
    components: TrainingComponents,
    step: TrainStep,
    folder: Path,
    steps: int,
    probe: Probe | None = None,
) -> float:
    """The time of a training loop with its writers in `folder`; with a probe, maps are stored at its start and end."""
    folder.mkdir()
    files = RunDirectory(folder)
    display_writer: Writer = TensorBoardWriter(files.tensorboard_dir)
    if probe is not None:
        plan = probe.capture_plan
        store = MapStore.open(files.maps_dir, plan.sites, plan.labels, "", plan.resolutions, plan.sizes)
        display_writer = BackgroundMapWriter(MultiWriter(MapWriter(store), display_writer))
    numbers = (MetricsWriter(files.metrics_file), SamplesWriter(files.samples_file), LogWriter(steps))
    writer = MultiWriter(*numbers, ConsoleWriter(steps, io.StringIO()), display_writer)
    state = jax.block_until_ready(components.init_state(jax.random.key(experiment.run.seed)))
    start_seconds = time.perf_counter()
    state = train_loop(
        state,
        step,
        components.task.training_batches(experiment.run.seed),
        reporter=Reporter(
            dataclasses.replace(
                experiment.run,
                steps=steps,
                eval_every=0,
                maps_every=0 if probe is None else steps,
                checkpoint_every=0,
                permanent_checkpoint_every=0,
                head_statistics_every=0,
            ),
            evaluations=[],
            evaluate=lambda evaluation, state: evaluation(state),
            probe=(lambda state: {}) if probe is None else probe.run,
            writer=writer,
            monitor=ProgressMonitor(),
        ),
        save=lambda state, progress: None,
        accumulator=MetricAccumulator(flops=flops_counter(components)),
    )
    jax.block_until_ready(state)
    seconds = time.perf_counter() - start_seconds
    writer.close()
    return seconds


def _time_step(step: TrainStep, state: TrainState, batch: Batch, observe: bool, steps: int) -> float:
    start_seconds = time.perf_counter()
    for _ in range(steps):
        state, _ = step(state, batch, observe)
    jax.block_until_ready(state)
    return (time.perf_counter() - start_seconds) / steps


PARTS = {"loop": time_training_loop, "capture": time_head_capture, "maps": time_attention_maps}


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of each measurement, by what was measured."""
    experiment = resolve_config(settings["config"])
    with tempfile.TemporaryDirectory() as folder:
        counts = {"steps": settings["steps"], "repeats": settings["repeats"]}
        return {"seconds": PARTS[settings["part"]](experiment, Path(folder), **counts)}


if __name__ == "__main__":
    program_main(measure)
