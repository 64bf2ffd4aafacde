"""Write the page of a run."""

import sys
from pathlib import Path

from launch.cli import Arguments, Command, Flag, run

COMMAND = Command(
    name="maps",
    description=(
        "Write one offline page of a run, report.html: curves, samples, and what every head attends to, step by step."
    ),
    example="python -m launch.maps --workdir=runs/demo",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("budget", "the page's greatest size in megabytes", default=25.0, kind=float),
    ),
)


def main(arguments: Arguments) -> None:
    """Write the page and say where it is."""
    from transformer.maps.report import write_report
    from transformer.training.run_directory import RunDirectory

    directory = RunDirectory.open(arguments.workdir)
    page = write_report(Path(directory.path), budget=int(arguments.budget * 1_000_000))
    print(f"Open this page in a browser: {page.resolve()}")


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
