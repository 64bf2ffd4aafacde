"""Write the page of a run, or serve it to a browser while the run trains."""

import re
import sys
from pathlib import Path

from launch.cli import run
from launch.command import TRUST, Arguments, Command, Flag
from launch.compiled import keep_compiled
from transformer.config import UserError

UNITS = {"kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
COMMAND = Command(
    name="maps",
    description=(
        "Write one offline page of a run, report.html: curves, samples, and what every head attends to, step by step. "
        "With --against it also shows the difference to another run; with --serve it is given to a browser on this "
        "machine and follows the run while it trains, until Ctrl-C. With --text the page is of that text alone, read "
        "by a run or, with --from, by a published model."
    ),
    example="--workdir=runs/demo --budget=25MB",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag(
            "from",
            "instead of a run, a folder with config.json, model.safetensors and a tokenizer",
            waives=("workdir",),
        ),
        Flag("text", "a text to read: the page shows what every head attends to in it"),
        Flag("target", "with --text, what a model of two sides shall have answered (default: its own answer)"),
        Flag("language", "with --text, the target language, where the run has learned several"),
        Flag("page", "with --text, the file of the page (default: a new one in WORKDIR/looks, or here)"),
        Flag("step", "with --text, the checkpoint's step; the latest by default", kind=int),
        Flag("vectors", "with --text, also how queries and keys make each logit", kind=bool, default=False),
        Flag("against", "the directory of another run with the same probe examples, to compare with"),
        Flag("budget", "the page's greatest size, as 25MB, 500kB or 1GB; a number alone is megabytes", default="25MB"),
        Flag("serve", "give the page to a browser and follow the run", kind=bool, default=False),
        Flag("port", "where --serve listens; 0 takes any free one (default: 8765)", kind=int),
        TRUST,
        Flag("data_dir", "where the data of a run that keeps no maps lies, if it has moved"),
    ),
    before_jax=keep_compiled,
)
OF_TEXT, OF_RUN = ("target", "language", "page", "step", "vectors"), ("against", "serve", "port", "data_dir")


def main(arguments: Arguments) -> None:
    """Write the page and print its path, or serve it."""
    budget = parse_size(arguments.budget)
    _check(arguments)
    if arguments.text is not None:
        _look(arguments, budget)
        return
    from transformer.maps.report import live_server
    from transformer.maps.report.page import render, write_report
    from transformer.runs.directory import RunDirectory

    run = RunDirectory.open(arguments.workdir)
    directory, against = run.path, _other_run(arguments.against, run.path)
    if arguments.serve:
        live_server.serve(
            directory,
            lambda version: render(directory, budget, against=against, version=version),
            also=[] if against is None else [against],
            port=live_server.PORT if arguments.port is None else arguments.port,
            announce=lambda url: print(f"Open {url} in a browser of this machine; Ctrl-C ends it.", flush=True),
        )
        return
    if against is None and not run.maps.exists() and run.checkpoints.exists():
        from transformer.interpret.show import report_of_checkpoint

        page = report_of_checkpoint(run, budget, arguments.data_dir, arguments.trusted)
    else:
        page = write_report(directory, budget, against=against)
    print(f"Open this page in a browser: {page.resolve()}")


def _check(arguments: Arguments) -> None:
    """Raise UserError for flags that do not go together."""
    source = getattr(arguments, "from")
    if source is not None and arguments.workdir is not None:
        raise UserError(f"--from={source} is read instead of a run: leave --workdir out")
    if source is not None and arguments.text is None:
        raise UserError(f"--from={source} needs --text: a published model has no maps of its own")
    for name in OF_TEXT if arguments.text is None else OF_RUN:
        if getattr(arguments, name) not in (None, False):
            what = "goes with --text alone" if arguments.text is None else "does not go with --text"
            raise UserError(f"--{name} {what}")
    if arguments.port is not None and not arguments.serve:
        raise UserError(f"--port={arguments.port} means something with --serve alone: add --serve, or leave it out")


def _look(arguments: Arguments, budget: int) -> None:
    """The page of one text."""
    from transformer.interpret.load import load
    from transformer.storage.locate import locate

    source = getattr(arguments, "from") or arguments.workdir
    folder = Path.cwd() if arguments.workdir is None else locate(source) / "looks"
    model = load(source, step=arguments.step, trust=arguments.trusted)
    for note in model.notes:
        print(note, file=sys.stderr)
    page = _new_page(folder, model.name) if arguments.page is None else locate(arguments.page)
    asked = {"language": arguments.language, "page": page, "budget": budget, "vectors": arguments.vectors}
    model.look(arguments.text, arguments.target, **asked)


def _new_page(folder: Path, name: str) -> Path:
    """The next file that does not exist yet, so that earlier pages stay; a run's name may be a stranger's."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w-]+", "_", name)[:80]
    number = 1
    while (folder / f"{name}-{number:04d}.html").exists():
        number += 1
    return folder / f"{name}-{number:04d}.html"


def parse_size(text: str) -> int:
    """The bytes that a size such as 25MB, 500kB or 1.5GB stands for; a number alone is megabytes.

    Raises:
        UserError: For anything else, for less than one byte, and for more than files have.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]b)?", text.strip(), flags=re.ASCII | re.IGNORECASE)
    size = float(match[1]) * UNITS[(match[2] or "MB").lower()] if match else 0.0
    if not 1 <= size < 2**63:
        raise UserError(f"--budget={text} is no size: write it as 25MB, 500kB or 1GB; a number alone is megabytes")
    return int(size)


def _other_run(against: str | None, directory: Path) -> Path | None:
    if against is None:
        return None
    from transformer.runs.directory import RunDirectory
    from transformer.storage.locate import locate

    other = locate(against)
    if not RunDirectory(other).is_run():
        raise UserError(f"--against={against} is not a run directory: it has no config.json")
    if other.resolve() == directory.resolve():
        raise UserError(f"--against={against} is --workdir itself: name another run")
    return other


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
