"""Measure the cost of the training loop, of head statistics and of maps."""

import sys
import tempfile
from pathlib import Path

from launch.cli import run
from launch.command import Arguments, Command, Flag

COMMAND = Command(
    name="bench",
    description=(
        "Time the training loop of a config, its batches and logging included, against its bare compiled step, in turn "
        "on the same batches, and print the ratio; then the step with captured rows and statistics of every head "
        "against the step without; then the loop with the maps of the probe batch against the loop without."
    ),
    example="python -m launch.bench --config=experiments/demo.py",
    flags=(
        Flag("steps", "steps a measurement", default=30, kind=int),
        Flag("repeats", "measurements of each", default=5, kind=int),
        Flag("data_dir", "folder of the data, for data sets that are not generated"),
    ),
    takes_config=True,
)

# The capture of a run that records its heads.
ROWS, EVERY = 8, 100


def main(arguments: Arguments) -> None:
    """Measure in a temporary directory and print."""
    from transformer.benchmarks.overhead import measure_capture, measure_maps, measure_overhead
    from transformer.training.experiment import resolve

    experiment = resolve(arguments.with_data())
    counts = {"steps": arguments.steps, "repeats": arguments.repeats}
    with tempfile.TemporaryDirectory() as folder:
        overhead = measure_overhead(experiment, Path(folder), **counts)
    print(
        f"{overhead.steps} steps: bare step {overhead.bare:.2f} s, loop {overhead.loop:.2f} s (medians of "
        f"{arguments.repeats}); loop over bare step {overhead.ratio:.3f}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        cost = measure_capture(experiment, Path(folder), rows=ROWS, every=EVERY, **counts)
    print(
        f"one step: {cost.plain * 1e3:.1f} ms plain, {cost.off * 1e3:.1f} ms with the capture of {ROWS} rows and all "
        f"statistics of every head switched off, {cost.on * 1e3:.1f} ms switched on; once in {EVERY} steps it adds "
        f"{100 * cost.overhead:.2f} %",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        maps = measure_maps(experiment, Path(folder), **counts)
    print(
        f"maps: {maps.look * 1e3:.0f} ms for the probe batch, beside {maps.step * 1e3:.0f} ms a step; "
        f"{maps.probe_count} times are {100 * maps.share:.2f} % of a whole run, without the {maps.compiling:.1f} s of "
        "compiling once"
    )


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
