"""What the loop costs beside the compiled step: both measured in turn, in one process, on the same batches."""

import io
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import jax

from transformer.training.experiment import Experiment, assemble, compile_step, count_flops
from transformer.training.loop import Cadence, run
from transformer.training.sharding import shard_batch
from transformer.training.sinks import Console, Log, MetricsFile, SamplesFile, Sinks, TensorBoard


class Overhead(NamedTuple):
    """Median seconds of `steps` steps, bare and in the loop, and the median of their ratios, one a repeat."""

    steps: int
    bare: float
    loop: float
    ratio: float


def measure_overhead(experiment: Experiment, directory: Path, *, steps: int, repeats: int) -> Overhead:
    """Time the loop with its logging and its making of batches against the step alone on batches made before."""
    setting = assemble(experiment, directory)
    step = compile_step(experiment, setting)
    source = setting.task.source(experiment.run.seed)
    batches = [source[number] for number in range(steps)]
    key = jax.random.key(experiment.run.seed)

    def bare() -> float:
        state = jax.block_until_ready(setting.initialise(key))
        began = time.perf_counter()
        for batch in batches:
            state, _ = step(state, shard_batch(batch, setting.mesh))
        jax.block_until_ready(state)
        return time.perf_counter() - began

    def loop(number: int) -> float:
        folder = directory / f"loop-{number}"
        folder.mkdir()
        sink = Sinks(
            MetricsFile(folder / "metrics.jsonl"),
            SamplesFile(folder / "samples.jsonl"),
            TensorBoard(folder / "tensorboard"),
            Log(steps),
            Console(steps, io.StringIO()),
        )
        state = jax.block_until_ready(setting.initialise(key))
        began = time.perf_counter()
        state = run(
            state,
            lambda state, batch: step(state, shard_batch(batch, setting.mesh)),
            source,
            steps=steps,
            cadence=Cadence(experiment.run.log_every, 0, 0, 0),
            evaluations=[],
            probe=lambda state: {},
            save=lambda state: None,
            sink=sink,
            flops=count_flops(experiment, setting),
        )
        jax.block_until_ready(state)
        seconds = time.perf_counter() - began
        sink.close()
        return seconds

    bare()  # compiles every shape
    pairs = [(bare(), loop(number)) for number in range(repeats)]
    return Overhead(
        steps,
        statistics.median(first for first, _ in pairs),
        statistics.median(second for _, second in pairs),
        statistics.median(second / first for first, second in pairs),
    )
