"""Measure a named benchmark: our programs and their peers, in turn, in fresh processes."""

import sys

from launch.cli import run
from launch.command import Arguments, Command, Flag, with_data
from launch.config_files import load_config
from transformer.installation import checkout

COMMAND = Command(
    name="bench",
    description=(
        "Run the programs of a named benchmark in turn, round after round, each time in a fresh process, and print "
        "their median times and the ratios of the times of one round. docs/guides/performance.md lists the names."
    ),
    example="--name=decoder_10m --peers=../peers/bin/python",
    flags=(
        Flag("name", "the benchmark", required=True),
        Flag("rounds", "how often each program is run", default=5, kind=int),
        Flag("peers", "the Python of an environment that has PyTorch and transformers; without it they are left out"),
        Flag("experiment", "the config file of first_step, loop, capture and maps", default="experiments/demo.py"),
        Flag("data_dir", "folder of the data on this machine, for an experiment whose data is not generated"),
        Flag("record", "write the result to experiments/benchmarks/results as well, as JSON", default=False, kind=bool),
    ),
)


def main(arguments: Arguments) -> None:
    """Measure, telling what is run, and print the table."""
    from transformer.benchmarks.catalog import BENCHMARKS, OF_A_CONFIG
    from transformer.benchmarks.in_turn import run_in_turn
    from transformer.benchmarks.report import record, table
    from transformer.config import UserError, nearest

    root = checkout()
    if arguments.rounds < 1:
        raise UserError(f"--rounds={arguments.rounds} must be at least 1")
    if arguments.record and root is None:
        raise UserError(
            "--record writes to experiments/benchmarks/results of a checkout, and this is none: leave it out"
        )
    if arguments.name in BENCHMARKS:
        if arguments.data_dir is not None:
            raise UserError(f"--data_dir does nothing for --name={arguments.name}, whose data is made: leave it away")
        name, benchmark = arguments.name, BENCHMARKS[arguments.name]
    elif arguments.name in OF_A_CONFIG:
        config = with_data(load_config(arguments.experiment).to_dict(), arguments.data_dir)
        name, benchmark = f"{arguments.name}_{config['name']}", OF_A_CONFIG[arguments.name](config)
    else:
        raise UserError(f"unknown --name={arguments.name}: {nearest(arguments.name, [*BENCHMARKS, *OF_A_CONFIG])}")
    result = run_in_turn(benchmark, arguments.rounds, arguments.peers, lambda line: print(line, flush=True))
    print(table(benchmark, result))
    if arguments.record and root is not None:
        results = root / "experiments" / "benchmarks" / "results"
        print(f"written to {record(name, benchmark, result, results).relative_to(root)}")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
