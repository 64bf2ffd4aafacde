"""Run a benchmark: our programs and their PyTorch peers, in alternation, each in a new process."""

import dataclasses
import sys
from pathlib import Path

from launch.cli import run
from launch.command import Arguments, Command, flag, with_data_dir
from launch.config_files import load_config

RESULTS = Path(__file__).resolve().parent / "results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkArguments(Arguments):
    """The arguments of `run`."""

    name: str = flag("the benchmark", required=True)
    rounds: int = flag("the number of rounds", 5)
    peer_python: str | None = flag(
        "the Python of an environment with the peers' libraries (default: skip those programs)"
    )
    experiment: str = flag("the config file of first_step, loop, capture and maps", "experiments/demo.py")
    data_dir: str | None = flag("the folder of the experiment's data, if it is not generated")
    record: bool = flag("also write the result as JSON to experiments/benchmarks/results", False)


COMMAND = Command(
    name="run",
    package="experiments.benchmarks",
    description=(
        "Run the programs of a named benchmark in alternation for several rounds, each in a fresh process, and print "
        "the median times and the ratios of times within a round. docs/guides/performance.md lists the benchmarks."
    ),
    example="--name=decoder_10m --peer_python=../peers/bin/python",
    arguments=BenchmarkArguments,
)


def main(arguments: BenchmarkArguments) -> None:
    """Run the benchmark and print its table."""
    from experiments.benchmarks.alternating_runs import run_alternating
    from experiments.benchmarks.catalog import BENCHMARKS, EXPERIMENT_BENCHMARKS
    from experiments.benchmarks.report import results_table, write_result
    from transformer.config import UserError, suggest_nearest

    if arguments.rounds < 1:
        raise UserError(f"--rounds={arguments.rounds} must be at least 1")
    if arguments.name in BENCHMARKS:
        if arguments.data_dir is not None:
            raise UserError(f"--data_dir has no effect on --name={arguments.name}, whose data is generated: omit it")
        name, benchmark = arguments.name, BENCHMARKS[arguments.name]
    elif arguments.name in EXPERIMENT_BENCHMARKS:
        config = with_data_dir(load_config(arguments.experiment).to_dict(), arguments.data_dir)
        name, benchmark = f"{arguments.name}_{config['name']}", EXPERIMENT_BENCHMARKS[arguments.name](config)
    else:
        raise UserError(
            f"unknown --name={arguments.name}: {suggest_nearest(arguments.name, [*BENCHMARKS, *EXPERIMENT_BENCHMARKS])}"
        )
    result = run_alternating(benchmark, arguments.rounds, arguments.peer_python, lambda line: print(line, flush=True))
    print(results_table(benchmark, result))
    if arguments.record:
        print(f"written to {write_result(name, benchmark, result, RESULTS)}")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
