"""Write the page of a run, or serve it to a browser while the run trains."""

import re
import sys
from pathlib import Path

from launch.cli import run
from launch.command import Arguments, Command, Flag
from transformer.config import UserError

UNITS = {"kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
COMMAND = Command(
    name="maps",
    description=(
        "Write one offline page of a run, report.html: curves, samples, and what every head attends to, step by step. "
        "With --against it also shows the difference to another run; with --serve it is given to a browser on this "
        "machine and follows the run while it trains, until Ctrl-C."
    ),
    example="python -m launch.maps --workdir=runs/demo --budget=25MB",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("against", "the directory of another run with the same probe examples, to compare with"),
        Flag("budget", "the page's greatest size, as 25MB, 500kB or 1GB; a number alone is megabytes", default="25MB"),
        Flag("serve", "give the page to a browser and follow the run", kind=bool, default=False),
        Flag("port", "where --serve listens; 0 takes any free one (default: 8765)", kind=int),
    ),
)


def main(arguments: Arguments) -> None:
    """Write the page and print its path, or serve it."""
    budget = parse_size(arguments.budget)
    if arguments.port is not None and not arguments.serve:
        raise UserError(f"--port={arguments.port} means something with --serve alone: add --serve, or leave it out")
    from transformer.maps import report, serve
    from transformer.runs.directory import RunDirectory

    directory = RunDirectory.open(arguments.workdir).path
    against = _other_run(arguments.against, directory)
    if arguments.serve:
        serve.serve(
            directory,
            lambda version: report.render(directory, budget, against=against, version=version),
            also=[] if against is None else [against],
            port=serve.PORT if arguments.port is None else arguments.port,
            announce=lambda url: print(f"Open {url} in a browser of this machine; Ctrl-C ends it.", flush=True),
        )
        return
    page = report.write_report(directory, budget, against=against)
    print(f"Open this page in a browser: {page.resolve()}")


def parse_size(text: str) -> int:
    """The bytes that a size such as 25MB, 500kB or 1.5GB stands for; a number alone is megabytes.

    Errors: UserError for anything else, and for less than one byte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]b)?", text.strip(), flags=re.ASCII | re.IGNORECASE)
    size = int(float(match[1]) * UNITS[(match[2] or "MB").lower()]) if match else 0
    if size < 1:
        raise UserError(f"--budget={text} is no size: write it as 25MB, 500kB or 1GB; a number alone is megabytes")
    return size


def _other_run(against: str | None, directory: Path) -> Path | None:
    if against is None:
        return None
    from transformer.runs.directory import RunDirectory
    from transformer.storage import locate

    other = locate(against)
    if not RunDirectory(other).config_file.is_file():
        raise UserError(f"--against={against} is not a run directory: it has no config.json")
    if other.resolve() == directory.resolve():
        raise UserError(f"--against={against} is --workdir itself: name another run")
    return other


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
