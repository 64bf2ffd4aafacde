"""Measure what the loop costs."""

import sys
import tempfile
from pathlib import Path

from launch.cli import Arguments, Command, Flag, run

COMMAND = Command(
    name="bench",
    description=(
        "Time the training loop of a config, its batches and logging included, against its bare compiled step, in turn "
        "on the same batches, and print the ratio."
    ),
    example="python -m launch.bench --config=experiments/demo.py",
    flags=(
        Flag("steps", "steps a measurement", default=30, kind=int),
        Flag("repeats", "measurements of each", default=5, kind=int),
        Flag("data_dir", "where the data lies, for data sets that are not made here"),
    ),
    takes_config=True,
)


def main(arguments: Arguments) -> None:
    """Measure in a temporary directory and print."""
    values = arguments.config.to_dict()
    if arguments.data_dir is not None:
        values["task"]["data_dir"] = arguments.data_dir
    from transformer.training.experiment import resolve
    from transformer.training.overhead import measure_overhead

    with tempfile.TemporaryDirectory() as folder:
        found = measure_overhead(resolve(values), Path(folder), steps=arguments.steps, repeats=arguments.repeats)
    print(
        f"{found.steps} steps: bare step {found.bare:.2f} s, loop {found.loop:.2f} s (medians of "
        f"{arguments.repeats}); loop over bare step {found.ratio:.3f}"
    )


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
