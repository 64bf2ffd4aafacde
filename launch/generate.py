"""Let a trained run speak."""

import sys
from pathlib import Path

from launch.cli import Arguments, Command, Flag, run
from transformer.config import UserError

COMMAND = Command(
    name="generate",
    description=(
        "Translate a sentence, or every line of standard input, with a trained run, and write a page of what every "
        "head attended to."
    ),
    example="python -m launch.generate --workdir=runs/demo --language=de --text='half past four in the afternoon'",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("text", "the sentence; without it, the lines of standard input"),
        Flag("language", "the target language, where the run has learned several"),
        Flag("step", "the checkpoint's step; the latest by default", kind=int),
        Flag("beams", "beams of the search, 1 for greedy; as in the config by default", kind=int),
        Flag("data_dir", "where the data lies, if it has moved"),
        Flag("maps", "write the page of maps to WORKDIR/generated/", default=True, kind=bool),
    ),
)


def main(arguments: Arguments) -> None:
    """Translate and print; say where the page is."""
    texts = [arguments.text] if arguments.text is not None else sys.stdin.read().splitlines()
    from transformer.maps.report import write_report
    from transformer.maps.store import MapStore
    from transformer.tasks.contract import View
    from transformer.tasks.translate import map_pairs, translate
    from transformer.tasks.translation import Translation
    from transformer.training.experiment import config_hash, load

    workdir = Path(arguments.workdir)
    given = {"data_dir": arguments.data_dir, "beams": arguments.beams}
    changes = {name: value for name, value in given.items() if value is not None}
    experiment, setting, state = load(workdir, arguments.step, task_changes=changes)
    if not isinstance(setting.task, Translation):
        raise UserError(f"{workdir} is no run of a task that generates; only translation does")
    view = View(setting.model, state.variables, state.averages, state.extra, state.step, train=False)
    pairs = translate(setting.task, view, texts, arguments.language, experiment.model.longest)
    for pair in pairs:
        print(pair.target)
    if arguments.maps:
        sites = setting.model.sites
        maps, labels = map_pairs(setting.task, view, pairs, tuple(site.name for site in sites))
        folder = _new_folder(workdir / "generated")
        MapStore.open(folder / "maps", sites, labels, config_hash(experiment)).write(int(state.step), maps)
        page = write_report(workdir, maps=folder / "maps", page=folder / "report.html")
        print(f"Open this page in a browser: {page.resolve()}", file=sys.stderr)


def _new_folder(parent: Path) -> Path:
    """The next folder that does not exist yet: nothing that was generated before is written over."""
    number = 1
    while (parent / f"{number:04d}").exists():
        number += 1
    (parent / f"{number:04d}").mkdir(parents=True)
    return parent / f"{number:04d}"


if __name__ == "__main__":
    sys.exit(run(COMMAND, main))
