"""Convert a Hugging Face model to a run directory, or a run to a Hugging Face folder."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from launch.cli import run
from launch.command import Arguments, Command, flag, trust_flag
from launch.platform import exit_process
from transformer.config import UserError
from transformer.system.command_invocation import shell_command


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertArguments(Arguments):
    """The arguments of `convert`."""

    workdir: str = flag("the run directory", required=True)
    from_pretrained: str | None = flag(
        "a folder with config.json, model.safetensors and a tokenizer, to import", required=True
    )
    save_pretrained: str | None = flag(
        "a new folder, to export the run to", makes_optional=("from_pretrained",), excludes=("from_pretrained",)
    )
    step: int | None = flag("the step of the checkpoint (default: the latest)", needs=("save_pretrained",))
    trust: tuple[str, ...] = trust_flag(needs=("save_pretrained",))
    dataset: str | None = flag(
        "the data to fine-tune on (default: python_docs, or phrases for translation)", needs=("from_pretrained",)
    )
    data_dir: str | None = flag(
        "the folder of the data, for data sets that are not generated", needs=("from_pretrained",)
    )
    problem: str | None = flag(
        "to fine-tune on texts of your own, their problem: classification, regression, entailment, similarity, choice, "
        "token_classification or question_answering",
        needs=("from_pretrained",),
    )
    classes: str | None = flag(
        "the same: their labels, such as yes,no (default: the names in config.json)", needs=("from_pretrained",)
    )
    test_split: str | None = flag(
        "the split evaluated at the end of training; empty if the data has none", needs=("from_pretrained",)
    )
    context_length: int | None = flag(
        "the maximum length of a text in tokens (default: 128)", needs=("from_pretrained",)
    )
    batch_size: int | None = flag("texts in a batch (default: 16)", needs=("from_pretrained",))
    steps: int | None = flag("training steps (default: 1000)", needs=("from_pretrained",))
    learning_rate: float | None = flag("the peak learning rate (default: 5e-5)", needs=("from_pretrained",))
    dtype: str | None = flag(
        "the type in which parameters are stored, such as bfloat16 for half the memory (default: float32)",
        needs=("from_pretrained",),
    )

    @property
    def fine_tuning(self) -> dict[str, Any]:
        """The given fields of `FineTuningOptions`.

        Raises:
            UserError: If a label is empty.
        """
        classes = None if self.classes is None else tuple(label.strip() for label in self.classes.split(","))
        if "" in (classes or ()):
            raise UserError(f"--classes={self.classes} has an empty label: write each between commas, as yes,no")
        options = {
            "dataset": self.dataset,
            "data_dir": self.data_dir,
            "problem": self.problem,
            "classes": classes,
            "test_split": self.test_split,
            "context_length": self.context_length,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "dtype": self.dtype,
        }
        return {name: value for name, value in options.items() if value is not None}


COMMAND = Command(
    name="convert",
    description=(
        "Import a published model or export a run. --from_pretrained reads a Hugging Face folder into a new run "
        "directory, as the checkpoint of step 0, on which train, evaluate, generate and maps work. --save_pretrained "
        "writes a run as a Hugging Face folder."
    ),
    example="--from_pretrained=gpt2 --workdir=runs/gpt2 --dataset=wikitext-2 --data_dir=data",
    arguments=ConvertArguments,
    repeats_steps=False,
)


def main(arguments: ConvertArguments) -> None:
    """Convert in either direction and print a summary."""
    source, target = arguments.from_pretrained, arguments.save_pretrained
    options = arguments.fine_tuning
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
        assert target is not None  # one of them is required
        summary = export_to_huggingface(workdir, Path(target), arguments.step, arguments.trust)
        print(f"{target}: {summary.num_parameters:,} parameters of {workdir} as a {summary.kind} model")
    for note in summary.notes:
        print(f"  {note}")


if __name__ == "__main__":
    exit_process(run(COMMAND, main))
