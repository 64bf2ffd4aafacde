"""List the runs, sweeps and ablations of a folder, and write one page of all their curves."""

import dataclasses
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Literal

from launch.cli import run
from launch.command import Arguments, Command, flag
from transformer.config import UserError
from transformer.system.command_invocation import find_checkout, shell_command

if TYPE_CHECKING:
    from transformer.studies.run_listing.listing import Listing, RunIndex
    from transformer.studies.run_listing.selection import ListedRuns


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsArguments(Arguments):
    """The arguments of `runs`."""

    workdir: str = flag("the folder with runs, at any depth", required=True)
    sort: str = flag(
        "name, study, state, step, age, size, config.KEY or a metric, of which the best value counts; -KEY reverses",
        "age",
    )
    filter: tuple[str, ...] = flag(
        "conditions on the same keys, separated by commas, which all must hold: state=running, config.model.width>=128,"
        " validation/loss<2, age<2d, name=demo*",
        (),
    )
    group: tuple[str, ...] = flag("group the runs by these keys, separated by commas: config.model.norm_placement", ())
    metric: tuple[str, ...] = flag(
        "the metrics to show, as SPLIT/NAME, separated by commas (default: a held-out loss and a held-out score)", ()
    )
    direction: Literal["by_name", "minimize", "maximize"] = flag(
        "whether the best value of --metric is the lowest or the highest", "by_name", needs=("metric",)
    )
    json: bool = flag(
        "print everything but the curves as JSON, and write no page",
        False,
        excludes=("serve", "port"),
        because="it prints once",
    )
    serve: bool = flag("serve the page to a browser and update it while runs train", False)
    port: int | None = flag("the port; 0 takes a free one (default: 8765)", needs=("serve",))


COMMAND = Command(
    name="runs",
    description=(
        "List every run, sweep and ablation under a folder: state, step, last and best metrics, the config keys in "
        "which the runs differ, age and size. A table on a terminal, tab-separated lines elsewhere. Also writes "
        "runs.html there: one offline page with the curves of all runs over one another. --serve serves that page to a "
        "browser on this machine and updates it while runs train, until Ctrl-C. Damaged files are named in their row."
    ),
    example="--workdir=runs --filter=state=finished --sort=validation/loss",
    arguments=RunsArguments,
    repeats_steps=False,
)


def main(arguments: RunsArguments) -> None:
    """Print the listing and write its page, or serve the page."""
    from transformer.studies.run_listing.listing import RunIndex

    index = RunIndex(arguments.workdir)
    if arguments.serve:
        _serve(arguments, index)
        return
    listing = index.read()
    if not listing.runs and not listing.studies:
        config = "FILE.py" if find_checkout() is None else "experiments/demo.py"
        words = [f"--config={config}", f"--workdir={arguments.workdir}/demo"]
        train = shlex.join([*shell_command("train"), *words])
        raise UserError(f"--workdir={arguments.workdir} holds no runs; make one with {train}")
    _print(arguments, _select(arguments, listing))


def _select(arguments: RunsArguments, listing: "Listing") -> "ListedRuns":
    """Return the runs that the flags choose, in their order.

    Raises:
        UserError: If a flag names a key or a metric that no run has.
    """
    from transformer.runs.jsonl_reading import parse_metric_name
    from transformer.studies.run_listing.selection import (
        ListedRuns,
        condition_keys,
        differing_keys,
        select_runs,
        sort_runs,
        table_keys,
    )

    metrics = [parse_metric_name(name) for name in dict.fromkeys(arguments.metric)]
    for metric in metrics:
        listing.check_metric(metric)
    if arguments.direction != "by_name":
        listing = listing.with_directions(dict.fromkeys(metrics, arguments.direction))
    runs = sort_runs(listing, select_runs(listing, arguments.filter), arguments.sort)
    named_keys = [*arguments.group, *condition_keys(arguments.filter), arguments.sort.removeprefix("-")]
    return ListedRuns(
        listing, runs, metrics or listing.main_metrics(), differing_keys(runs), table_keys(runs, named_keys)
    )


def _print(arguments: RunsArguments, listed: "ListedRuns") -> None:
    from transformer.studies.run_listing import formatting
    from transformer.studies.run_listing.page import write_page
    from transformer.studies.run_listing.run_summary import RunState
    from transformer.studies.run_listing.selection import group_runs
    from transformer.system.terminal import is_watched, pluralize, raw_terminal_stream

    groups = group_runs(listed.listing, listed.runs, arguments.group) if arguments.group else []
    if arguments.json:
        print(formatting.format_json(listed, groups, arguments.group))
        return
    if is_watched(sys.stdout):
        import rich.console

        width = shutil.get_terminal_size().columns
        console = rich.console.Console(file=raw_terminal_stream(sys.stdout), width=width, highlight=False)
        if listed.studies():
            console.print(formatting.studies_table(listed.studies()))
        console.print(formatting.runs_table(listed, width))
        if groups:
            console.print(formatting.groups_table(listed, groups, arguments.group))
    else:
        print("\n".join(formatting.plain_lines(listed)))
        if num_omitted_keys := len(set(listed.keys) - set(listed.table_keys)):
            print(
                f"without {pluralize(num_omitted_keys, 'config key')} in which only runs of different tasks or model "
                "families differ: --json has them",
                file=sys.stderr,
            )
        if groups:
            print("\n".join(["", *formatting.plain_group_lines(listed, groups, arguments.group)]))
        if listed.studies():
            print("\n".join(["", *formatting.plain_study_lines(listed.studies())]))
    sys.stdout.flush()
    for line in formatting.problem_lines(listed):
        print(line, file=sys.stderr)
    print(f"{len(listed.runs)} of {len(listed.listing.runs)} runs", file=sys.stderr)
    try:
        page = write_page(listed, arguments.group)
    except OSError as error:
        print(f"the page is not written: {error.filename or arguments.workdir}: {error.strerror}", file=sys.stderr)
        return
    print(f"Open this page in a browser: {page.resolve()}", file=sys.stderr)
    without_report = [run for run in listed.runs if not run.has_report and run.step]
    if without_report:
        first = next((run for run in without_report if run.state is RunState.FINISHED), without_report[0])
        words = [*shell_command("maps"), f"--workdir={first.files.path}", *first.trust_flags]
        print(f"write the report of a run: {shlex.join(words)}", file=sys.stderr)


def _serve(arguments: RunsArguments, index: "RunIndex") -> None:
    from transformer.maps.report import report_server
    from transformer.studies.run_listing.page import render

    scan = index.scan()

    def read_version() -> object:
        nonlocal scan
        scan = index.scan()
        return scan.version

    source = report_server.PageSource(
        read_version=read_version,
        describe_missing=lambda: None if scan.runs else f"the first run in {arguments.workdir}",
        render=lambda version: render(_select(arguments, index.read(scan)), arguments.group, version=version),
        title=index.folder.resolve().name,
    )
    report_server.serve_page(
        source,
        port=report_server.PORT if arguments.port is None else arguments.port,
        announce=lambda url: print(f"Open {url} in a browser on this machine; press Ctrl-C to stop.", flush=True),
    )


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
