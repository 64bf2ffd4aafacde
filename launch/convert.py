"""Convert a Hugging Face model to a run directory, or a run to a Hugging Face folder."""

import dataclasses
import shlex
from pathlib import Path

from launch.cli import run
from launch.command import TRUST, Arguments, Command, Flag
from launch.platform import exit_process
from transformer.config import UserError
from transformer.system.command_invocation import shell_command

# Each is a field of transformer.training.huggingface_conversion.FineTuningOptions.
IMPORT_FLAGS = tuple(
    dataclasses.replace(flag, needs=("from_pretrained",))
    for flag in (
        Flag("dataset", "the data to fine-tune on (default: python_docs, or phrases for translation)"),
        Flag("data_dir", "the folder of the data, for data sets that are not generated"),
        Flag(
            "problem",
            "to fine-tune BERT, RoBERTa or XLNet: the problem of your texts, such as entailment, "
            "token_classification or question_answering",
        ),
        Flag("classes", "the same: their labels, such as yes,no (default: the names in config.json)"),
        Flag("test_split", "the split evaluated at the end of training; empty if the data has none"),
        Flag("context_length", "the maximum length of a text in tokens (default: 128)", value_type=int),
        Flag("batch_size", "texts in a batch (default: 16)", value_type=int),
        Flag("steps", "training steps (default: 1000)", value_type=int),
        Flag("learning_rate", "the peak learning rate (default: 5e-5)", value_type=float),
    )
)

COMMAND = Command(
    name="convert",
    description=(
        "Import a published model or export a run. --from_pretrained reads a Hugging Face folder into a new run "
        "directory, as the checkpoint of step 0, on which train, evaluate, generate and maps work. --save_pretrained "
        "writes a run as a Hugging Face folder."
    ),
    example="--from_pretrained=gpt2 --workdir=runs/gpt2 --dataset=wikitext-2 --data_dir=data",
    flags=(
        Flag("workdir", "the run directory", required=True),
        Flag(
            "from_pretrained", "a folder with config.json, model.safetensors and a tokenizer, to import", required=True
        ),
        Flag(
            "save_pretrained",
            "a new folder, to export the run to",
            makes_optional=("from_pretrained",),
            excludes=("from_pretrained",),
        ),
        Flag(
            "step",
            "the step of the checkpoint (default: the latest)",
            value_type=int,
            needs=("save_pretrained",),
        ),
        dataclasses.replace(TRUST, needs=("save_pretrained",)),
        *IMPORT_FLAGS,
    ),
    repeats_steps=False,
)


def main(arguments: Arguments) -> None:
    """Convert in either direction and print a summary."""
    source, target = arguments.from_pretrained, arguments.save_pretrained
    flag_values = {flag.name: getattr(arguments, flag.name) for flag in IMPORT_FLAGS}
    options = {name: value for name, value in flag_values.items() if value is not None}
    if "classes" in options:
        options["classes"] = tuple(label.strip() for label in options["classes"].split(","))
        if "" in options["classes"]:
            raise UserError(f"--classes={arguments.classes} has an empty label: write each between commas, as yes,no")
    from transformer.storage.paths import parse_path
    from transformer.training.huggingface_conversion import (
        FineTuningOptions,
        export_to_huggingface,
        import_from_huggingface,
    )

    workdir = parse_path(arguments.workdir)
    if source is not None:
        summary = import_from_huggingface(Path(source), workdir, FineTuningOptions(**options))
        print(f"{workdir}: {summary.num_parameters:,} parameters of {source} at step 0, task {summary.kind}")
        print(f"Fine-tune it with {shlex.join([*shell_command('train'), f'--workdir={workdir}'])}")
    else:
        summary = export_to_huggingface(workdir, Path(target), arguments.step, arguments.trusted)
        print(f"{target}: {summary.num_parameters:,} parameters of {workdir} as a {summary.kind} model")
    for note in summary.notes:
        print(f"  {note}")


if __name__ == "__main__":
    exit_process(run(COMMAND, main))
