"""Make a run of a published model, or publish a run."""

import shlex
from pathlib import Path

from launch.cli import run
from launch.command import TRUST, Arguments, Command, Flag
from launch.platform import leave
from transformer.config import UserError
from transformer.installation import command_words

COMMAND = Command(
    name="convert",
    description=(
        "Make a run directory of a Hugging Face folder with --from: its parameters become the checkpoint of step 0, "
        "on which train, evaluate, generate and maps work. Or write a run as such a folder with --to."
    ),
    example="--from=gpt2 --workdir=runs/gpt2 --dataset=wikitext-2 --data_dir=data",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag("from", "a folder with config.json, model.safetensors and a tokenizer, to make a run of"),
        Flag("to", "a new folder, to write the run into"),
        Flag("step", "with --to, the checkpoint's step; the latest by default", kind=int),
        TRUST,
        Flag("dataset", "with --from, the data to train on further; python_docs, or phrases for translation"),
        Flag("data_dir", "with --from, the folder of the data, for data sets that are not generated"),
        Flag("test", "with --from, the split that is measured at the end; empty where the data has none"),
        Flag("context", "with --from, the greatest length of a text, in tokens (default: 128)", kind=int),
        Flag("rows", "with --from, texts of that length in a batch (default: 16)", kind=int),
        Flag("steps", "with --from, steps to train (default: 1000)", kind=int),
        Flag("learning_rate", "with --from, the peak of the learning rate (default: 5e-5)", kind=float),
    ),
)
FITTING = ("dataset", "data_dir", "test", "context", "rows", "steps", "learning_rate")


def main(arguments: Arguments) -> None:
    """Convert in either direction, and print the result."""
    source, target = getattr(arguments, "from"), arguments.to
    if (source is None) == (target is None):
        raise UserError("convert needs exactly one of --from=DIR, to make a run of it, and --to=DIR, to write a run")
    given = {name: getattr(arguments, name) for name in FITTING if getattr(arguments, name) is not None}
    if target is not None and given:
        raise UserError(f"--{next(iter(given))} goes with --from alone")
    for name in ("step", "trust"):
        if source is not None and getattr(arguments, name) is not None:
            raise UserError(f"--{name} goes with --to alone")
    from transformer.storage.locate import locate
    from transformer.training.conversion import Fitting, export_run, import_run

    workdir = locate(arguments.workdir)
    if source is not None:
        made = import_run(Path(source), workdir, Fitting(**given))
        print(f"{workdir}: {made.parameters:,} parameters of {source} at step 0, task {made.kind}")
        print(f"Train it further with {shlex.join([*command_words('train'), f'--workdir={workdir}'])}")
    else:
        made = export_run(workdir, Path(target), arguments.step, arguments.trusted)
        print(f"{target}: {made.parameters:,} parameters of {workdir} as a {made.kind} model")
    for note in made.notes:
        print(f"  {note}")


if __name__ == "__main__":
    leave(run(COMMAND, main))
