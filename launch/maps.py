"""Write the page of a run's attention maps, or serve it to a browser during training."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launch.cli import run
from launch.command import Arguments, Command, flag, trust_flag
from launch.compilation_cache import enable_compilation_cache
from transformer.config import UserError

if TYPE_CHECKING:
    from transformer.runs.run_directory import RunDirectory

UNITS = {"kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapsArguments(Arguments):
    """The arguments of `maps`."""

    workdir: str | None = flag("the run directory", required=True)
    from_pretrained: str | None = flag(
        "instead of a run, a folder with config.json, model.safetensors and a tokenizer",
        makes_optional=("workdir",),
        needs=("text",),
        excludes=("workdir",),
        because="it is read instead of a run, and a published model has no maps of its own",
    )
    text: str | None = flag(
        "a text: the page shows what every head attends to in it",
        excludes=("compare_to", "serve", "port", "data_dir"),
    )
    target_text: str | None = flag("the target of an encoder-decoder (default: what it generates)", needs=("text",))
    target_language: str | None = flag("the target language, if the run has learned several", needs=("text",))
    output: str | None = flag("the file to write (default: a new one in WORKDIR/looks, or here)", needs=("text",))
    step: int | None = flag("the step of the checkpoint (default: the latest)", needs=("text",))
    query_key_vectors: bool = flag("also show the queries and keys of each logit", False, needs=("text",))
    compare_to: str | None = flag("another run directory with the same probe examples, to compare with")
    max_page_size: str = flag("the maximum size of the page: 25MB, 500kB, 1GB; a bare number is megabytes", "25MB")
    serve: bool = flag("serve the page to a browser and update it during training", False)
    port: int | None = flag("the port; 0 takes a free one (default: 8765)", needs=("serve",))
    trust: tuple[str, ...] = trust_flag()
    data_dir: str | None = flag("the folder of the data, if it has moved and the run stores no maps")


COMMAND = Command(
    name="maps",
    description=(
        "Write one offline page of a run, report.html: learning curves, samples, and what every head attends to, step "
        "by step. --compare_to adds the difference to another run. --serve serves the page to a browser on this "
        "machine and updates it during training, until Ctrl-C. With --text the page shows one text, read by the run "
        "or, with --from_pretrained, by a published model."
    ),
    example="--workdir=runs/demo --max_page_size=25MB",
    arguments=MapsArguments,
    before_jax=enable_compilation_cache,
)


def main(arguments: MapsArguments) -> None:
    """Write the page and print its path, or serve it."""
    budget = parse_size(arguments.max_page_size)
    if arguments.text is not None:
        _write_text_page(arguments, arguments.text, budget)
        return
    assert arguments.workdir is not None  # --from_pretrained needs --text
    from transformer.maps.report import report_server
    from transformer.maps.report.page import render, write_report
    from transformer.runs.run_directory import RunDirectory

    run = RunDirectory.open(arguments.workdir)
    directory, other_run = run.path, _parse_compared_run(arguments.compare_to, run.path)
    if arguments.serve:
        report_server.serve(
            directory,
            lambda version: render(directory, budget, compare_to=other_run, version=version),
            also=[] if other_run is None else [other_run],
            port=report_server.PORT if arguments.port is None else arguments.port,
            announce=lambda url: print(f"Open {url} in a browser on this machine; press Ctrl-C to stop.", flush=True),
        )
        return
    if other_run is None and not run.maps_dir.exists() and run.checkpoints_dir.exists():
        from transformer.interpret.show import write_checkpoint_report

        page = write_checkpoint_report(run, budget, arguments.data_dir, arguments.trust)
    elif other_run is None and (parent := _branch_parent(run)) is not None:
        page = _write_branch_report(directory, budget, parent)
    else:
        page = write_report(directory, budget, compare_to=other_run)
    print(f"Open this page in a browser: {page.resolve()}")


def _branch_parent(run: "RunDirectory") -> Path | None:
    """Return the run that a branch was branched off, if it is still there and has maps to compare with."""
    from transformer.runs.run_directory import RunDirectory
    from transformer.storage.paths import parse_path

    origin = run.branch_origin()
    if origin is None:
        return None
    parent = RunDirectory(parse_path(origin.run))
    return parent.path if parent.is_run() and parent.maps_dir.exists() else None


def _write_branch_report(directory: Path, budget: int, parent: Path) -> Path:
    """Write the page of a branch, compared with its parent if the two can be compared."""
    from transformer.maps.report.page import write_report

    try:
        page = write_report(directory, budget, compare_to=parent)
    except UserError as error:
        print(f"not compared with {parent}, which it was branched off: {error}", file=sys.stderr)
        return write_report(directory, budget)
    print(f"compared with {parent}, which it was branched off")
    return page


def _write_text_page(arguments: MapsArguments, text: str, budget: int) -> None:
    """Write the page of one text."""
    from transformer.interpret.load import load
    from transformer.storage.paths import parse_path

    source = arguments.from_pretrained or arguments.workdir
    assert source is not None  # one of them is required
    folder = Path.cwd() if arguments.workdir is None else parse_path(source) / "looks"
    model = load(source, step=arguments.step, trust=arguments.trust)
    for note in model.notes:
        print(note, file=sys.stderr)
    page = _choose_page_path(folder, model.name) if arguments.output is None else parse_path(arguments.output)
    model.show_attention(
        text,
        arguments.target_text,
        language=arguments.target_language,
        page=page,
        budget=budget,
        query_key_vectors=arguments.query_key_vectors,
    )


def _choose_page_path(folder: Path, name: str) -> Path:
    """Return the next free file name, so that earlier pages stay; the name of an untrusted run is sanitized."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w-]+", "_", name)[:80]
    number = 1
    while (folder / f"{name}-{number:04d}.html").exists():
        number += 1
    return folder / f"{name}-{number:04d}.html"


def parse_size(text: str) -> int:
    """Parse a size such as 25MB, 500kB or 1.5GB as bytes; a bare number is megabytes.

    Raises:
        UserError: If the text is no size, or the size is below one byte or above the largest of a file.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]b)?", text.strip(), flags=re.ASCII | re.IGNORECASE)
    size = float(match[1]) * UNITS[(match[2] or "MB").lower()] if match else 0.0
    if not 1 <= size < 2**63:
        raise UserError(f"--max_page_size={text} is not a size: write 25MB, 500kB or 1GB; a bare number is megabytes")
    return int(size)


def _parse_compared_run(other_run: str | None, directory: Path) -> Path | None:
    if other_run is None:
        return None
    from transformer.runs.run_directory import RunDirectory
    from transformer.storage.paths import parse_path

    compared_run = parse_path(other_run)
    if not RunDirectory(compared_run).is_run():
        raise UserError(f"--compare_to={other_run} is not a run directory: it has no config.json")
    if compared_run.resolve() == directory.resolve():
        raise UserError(f"--compare_to={other_run} is --workdir itself: pass another run")
    return compared_run


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
