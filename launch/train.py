"""Train a model, or go on with a run that was stopped."""

import sys
from pathlib import Path

from launch.cli import Arguments, Command, Flag, run

COMMAND = Command(
    name="train",
    description=(
        "Train the model of a config file in a run directory, logging metrics and the attention maps of every "
        "head. The same command on the same directory goes on where it stopped; there --config may be left out."
    ),
    example="python -m launch.train --config=experiments/demo.py --workdir=runs/demo",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("data_dir", "where the data lies, for data sets that are not made here"),
        Flag("profile", "trace steps 10 to 14 into WORKDIR/profile", default=False, kind=bool),
    ),
    takes_config=True,
    resumes=True,
)


def main(arguments: Arguments) -> None:
    """Check the config, then train."""
    values = arguments.config.to_dict()
    if arguments.data_dir is not None:
        values["task"]["data_dir"] = arguments.data_dir
    from transformer.training.experiment import resolve, train

    train(resolve(values), Path(arguments.workdir), profile=arguments.profile)


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
