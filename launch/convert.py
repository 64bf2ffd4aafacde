"""Convert a Hugging Face model to a run directory, or a run to a Hugging Face folder."""

import shlex
from pathlib import Path

from launch.cli import run
from launch.command import TRUST, Arguments, Command, Flag
from launch.platform import exit_process
from transformer.config import UserError
from transformer.system.command_invocation import shell_command

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
        Flag("from_pretrained", "a folder with config.json, model.safetensors and a tokenizer, to import"),
        Flag("save_pretrained", "a new folder, to export the run to"),
        Flag("step", "to export: the step of the checkpoint (default: the latest)", value_type=int),
        TRUST,
        Flag("dataset", "to import: the data to fine-tune on (default: python_docs, or phrases for translation)"),
        Flag("data_dir", "to import: the folder of the data, for data sets that are not generated"),
        Flag(
            "problem",
            "to import BERT, RoBERTa or XLNet for fine-tuning: the problem of your texts, such as entailment, "
            "token_classification or question_answering",
        ),
        Flag("classes", "the same: their labels, such as yes,no (default: the names in config.json)"),
        Flag("test_split", "to import: the split evaluated at the end of training; empty if the data has none"),
        Flag("context_length", "to import: the maximum length of a text in tokens (default: 128)", value_type=int),
        Flag("batch_size", "to import: texts in a batch (default: 16)", value_type=int),
        Flag("steps", "to import: training steps (default: 1000)", value_type=int),
        Flag("learning_rate", "to import: the peak learning rate (default: 5e-5)", value_type=float),
    ),
    repeats_steps=False,
)
IMPORT_FLAGS = (
    "dataset",
    "data_dir",
    "problem",
    "classes",
    "test_split",
    "context_length",
    "batch_size",
    "steps",
    "learning_rate",
)


def main(arguments: Arguments) -> None:
    """Convert in either direction and print a summary."""
    source, target = arguments.from_pretrained, arguments.save_pretrained
    if (source is None) == (target is None):
        raise UserError(
            "convert needs exactly one of --from_pretrained=DIR, to import a model, and --save_pretrained=DIR, to "
            "export a run"
        )
    options = {name: getattr(arguments, name) for name in IMPORT_FLAGS if getattr(arguments, name) is not None}
    if "classes" in options:
        options["classes"] = tuple(label.strip() for label in options["classes"].split(","))
        if "" in options["classes"]:
            raise UserError(f"--classes={arguments.classes} has an empty label: write each between commas, as yes,no")
    if target is not None and options:
        raise UserError(f"--{next(iter(options))} needs --from_pretrained")
    for name in ("step", "trust"):
        if source is not None and getattr(arguments, name) is not None:
            raise UserError(f"--{name} needs --save_pretrained")
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
